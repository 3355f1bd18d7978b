"""Norms of linear operators: Δ_{p,q} of dense and convolution layers (§3.2).

Every function returns an upper bound as a 0-dimensional float64 tensor through which gradients
flow, so that the same formula measures a layer and constrains it in training.
A pair ``(p, q)`` names the norm of the input and of the output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pixeldp.errors import InvalidArgument
from pixeldp.sensitivities.spectral import largest_singular_value, torus_norm

if TYPE_CHECKING:
    from pixeldp.sensitivities.geometry import Convolution

PAIRS = ((1, 1), (1, 2), (2, 2))


def check_pair(p: float, q: int) -> None:
    """Refuse a pair of norms between which nothing is bounded."""
    if (p, q) not in PAIRS:
        raise InvalidArgument(
            f"no sensitivity is available from the {p:g}-norm to the {q}-norm, only for (p, q) in "
            f"{', '.join(map(str, PAIRS))}; Gaussian noise needs q = 2, Laplace noise q = 1"
        )


def dense_norm(weight: torch.Tensor, *, p: int, q: int) -> torch.Tensor:
    """Return ``‖W‖_{p,q}`` of ``x → W x``: exact.

    ``‖W‖_{1,1}`` and ``‖W‖_{1,2}`` are the largest 1- and 2-norm of a column, ``‖W‖_{2,2}`` the
    largest singular value.
    """
    check_pair(p, q)
    matrix = weight.double()
    if p == 1:
        columns: torch.Tensor = torch.linalg.vector_norm(matrix, ord=q, dim=0)
        return columns.amax()
    return largest_singular_value(matrix)


def convolution_norm(
    weight: torch.Tensor, convolution: Convolution, *, p: int, q: int
) -> torch.Tensor:
    """Return an upper bound on Δ_{p,q} of a convolution with kernel ``[out, in/groups, kh, kw]``.

    Exact for p = 1 wherever the image holds a pixel that all its taps reach; within a few percent
    for (2, 2) on images that are large against the kernel.
    """
    check_pair(p, q)
    kernel = weight.double().reshape(convolution.groups, -1, *weight.shape[1:])  # group, out, in, …
    if p == 1:
        return _column_norm(kernel, convolution, q=q)
    return torch.stack([torus_norm(group, convolution) for group in kernel]).amax()


def _column_norm(kernel: torch.Tensor, convolution: Convolution, *, q: int) -> torch.Tensor:
    """Return the largest q-norm of a column: all that one input pixel reaches.

    With stride s, a pixel of phase ``(position + padding) mod s`` is touched only by the taps t
    with ``t · dilation ≡ phase (mod s)``; near the border some of them fall away.
    """
    weights = kernel.abs() ** q
    rows = _taps_by_phase(kernel.shape[3], convolution.stride[0], convolution.dilation[0])
    columns = _taps_by_phase(kernel.shape[4], convolution.stride[1], convolution.dilation[1])
    sums = [
        weights[:, :, :, taps_h][..., taps_w].sum(dim=(1, 3, 4)).amax()
        for taps_h in rows
        for taps_w in columns
    ]
    largest = torch.stack(sums).amax()
    return largest if q == 1 else largest.sqrt()


def _taps_by_phase(size: int, stride: int, dilation: int) -> list[list[int]]:
    phases: dict[int, list[int]] = {}
    for tap in range(size):
        phases.setdefault(tap * dilation % stride, []).append(tap)
    return list(phases.values())
