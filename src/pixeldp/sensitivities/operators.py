"""Norms of linear operators that also hold them in training: with a gradient (§3.2, §3.3).

Every function returns an upper bound as a 0-dimensional float64 tensor through which gradients
flow. A pair ``(p, q)`` names the norm of the input and of the output. What ``model.sensitivity``
measures afterwards is never larger: it takes the least of several bounds, these among them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from pixeldp.errors import InvalidArgument
from pixeldp.sensitivities.spectral import largest_singular_value, torus_norm

if TYPE_CHECKING:
    from pixeldp.sensitivities.geometry import Convolution

PAIRS = ((1, 1), (1, 2), (2, 2), (math.inf, math.inf), (math.inf, 2), (math.inf, 1))


def check_pair(p: float, q: float) -> None:
    """Refuse a pair of norms that no layer can be held to."""
    if (p, q) not in PAIRS:
        raise InvalidArgument(
            f"no layer can be held to a sensitivity from the {p:g}-norm to the {q:g}-norm, only "
            f"for (p, q) in {', '.join(map(str, PAIRS))}"
        )


def dense_norm(weight: torch.Tensor, *, p: float, q: float) -> torch.Tensor:
    """Return ``‖W‖_{p,q}`` of ``x → W x``: exact, but for (∞, 1) and (∞, 2).

    ``‖W‖_{1,q}`` is the largest q-norm of a column, ``‖W‖_{2,2}`` the largest singular value,
    ``‖W‖_{∞,∞}`` the largest 1-norm of a row.
    """
    check_pair(p, q)
    matrix = weight.double()
    if p == 1:
        columns: torch.Tensor = torch.linalg.vector_norm(matrix, ord=q, dim=0)
        return columns.amax()
    if p == q == math.inf:
        return matrix.abs().sum(dim=1).amax()
    largest = largest_singular_value(matrix)
    if p == math.inf:
        return _from_infinity(largest, matrix, inputs=matrix.shape[1], outputs=len(matrix), q=q)
    return largest


def convolution_norm(
    weight: torch.Tensor, convolution: Convolution, *, p: float, q: float
) -> torch.Tensor:
    """Return an upper bound on Δ_{p,q} of a convolution with kernel ``[out, in/groups, kh, kw]``.

    Exact for p = 1 and (∞, ∞) wherever the image holds a place that all taps reach; within a few
    percent for (2, 2) on images that are large against the kernel.
    """
    check_pair(p, q)
    kernel = weight.double().reshape(convolution.groups, -1, *weight.shape[1:])  # group, out, in, …
    if p == 1:
        return _column_norm(kernel, convolution, q=int(q))
    if p == q == math.inf:
        return kernel.abs().sum(dim=(2, 3, 4)).amax()
    largest = torch.stack([torus_norm(group, convolution) for group in kernel]).amax()
    if p == math.inf:
        places = [len(convolution.reads(axis, kernel.shape[3 + axis])) for axis in (0, 1)]
        spread = math.prod(places)
        inputs = kernel.shape[0] * kernel.shape[2] * math.prod(convolution.image)
        matrix = kernel.reshape(-1, kernel[0, 0].numel())
        return _from_infinity(
            largest, matrix, inputs=inputs, outputs=len(matrix) * spread, q=q, times=spread
        )
    return largest


def _from_infinity(
    largest: torch.Tensor,
    rows: torch.Tensor,
    *,
    inputs: int,
    outputs: int,
    q: float,
    times: int = 1,
) -> torch.Tensor:
    """Bound ``‖W‖_{∞,2}`` or ``‖W‖_{∞,1}`` by the 2-norm, by the rows and by the entries.

    ``sqrt(n) ‖W‖_{2,2}`` and ``sqrt(m) ‖W‖_{∞,∞}`` are the paper's (§3.2), for q = 2 only; for
    q = 1 they are ``sqrt(m n) ‖W‖_{2,2}``, and ``Σ |W_ij|``, which is at most ``m ‖W‖_{∞,∞}``.
    """
    if q == 1:
        return torch.minimum(math.sqrt(outputs * inputs) * largest, times * rows.abs().sum())
    return torch.minimum(
        math.sqrt(inputs) * largest, math.sqrt(outputs) * rows.abs().sum(dim=1).amax()
    )


def _column_norm(kernel: torch.Tensor, convolution: Convolution, *, q: int) -> torch.Tensor:
    """Return the largest q-norm of a column: all that one input pixel reaches.

    With stride s, a pixel of phase ``(position + padding) mod s`` is touched only by the taps t
    with ``t · dilation ≡ phase (mod s)``; near the border some of them fall away.
    """
    weights = kernel.abs() ** q
    rows = taps_by_phase(kernel.shape[3], convolution.stride[0], convolution.dilation[0])
    columns = taps_by_phase(kernel.shape[4], convolution.stride[1], convolution.dilation[1])
    sums = [
        weights[:, :, :, taps_h][..., taps_w].sum(dim=(1, 3, 4)).amax()
        for taps_h in rows
        for taps_w in columns
    ]
    largest = torch.stack(sums).amax()
    return largest if q == 1 else largest.sqrt()


def taps_by_phase(size: int, stride: int, dilation: int) -> list[list[int]]:
    """Return the taps of one axis, grouped by the input places that they meet."""
    phases: dict[int, list[int]] = {}
    for tap in range(size):
        phases.setdefault(tap * dilation % stride, []).append(tap)
    return list(phases.values())
