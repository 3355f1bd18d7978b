"""Norms of linear operators as they are measured: the least of what can be proved, no gradient.

Each function returns entries ``{(p, q): bound}`` for a table. The hard pairs, from the ∞-norm and
to the 1-norm, cost more and are filled in only where they are asked for (``Wanted``).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from pixeldp.sensitivities.geometry import (
    NOTHING,
    Classes,
    output_classes,
    output_pair_classes,
    place_classes,
    place_pair_classes,
)
from pixeldp.sensitivities.spectral import largest_singular_value, torus_norm

if TYPE_CHECKING:
    import numpy.typing as npt

    from pixeldp.sensitivities.geometry import Convolution, Reads
    from pixeldp.sensitivities.tables import Wanted

    Maps = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]

Entries = dict[tuple[float, float], float]

INF = math.inf

# Eigenvalues of larger matrices than this are bounded by a factorisation instead.
_EIGEN_SIDE = 1024

# Gram matrices of this side, and products of kernels of this size, are still summed.
_GRAM_SIDE = 4096
_PRODUCT_SIZE = 2**23


# Sign patterns over the channels of a pixel: 2^(channels − 1).
_SIGNED_CHANNELS = 8


def dense_entries(matrix: torch.Tensor, wanted: Wanted) -> Entries:
    """Return the norms of an explicit matrix ``[m, n]``: exact where they can be computed.

    ``‖W‖²_{∞,2} ≤ Σ |WᵀW|_ij``, since ``‖W s‖² = sᵀ WᵀW s`` for signs s; by duality
    ``‖W‖²_{2,1} = ‖Wᵀ‖²_{∞,2} ≤ Σ |W Wᵀ|_ij``.
    """
    magnitudes = matrix.abs()
    entries: dict[tuple[float, float], torch.Tensor] = {
        (1, 1): magnitudes.sum(dim=0).amax(),
        (1, 2): matrix.norm(dim=0).amax(),
        (1, INF): magnitudes.amax(),
        (2, 2): _matrix_norm(matrix),
        (2, INF): matrix.norm(dim=1).amax(),
        (INF, INF): magnitudes.sum(dim=1).amax(),
        (INF, 1): magnitudes.sum(),
    }
    outputs, inputs = matrix.shape
    if wanted.from_infinity and inputs <= _GRAM_SIDE:
        entries[INF, 2] = (matrix.mT @ matrix).abs().sum().sqrt()
    if wanted.to_one and outputs <= _GRAM_SIDE:
        entries[2, 1] = (matrix @ matrix.mT).abs().sum().sqrt()
    return {pair: float(bound) for pair, bound in entries.items()}


def _matrix_norm(matrix: torch.Tensor) -> torch.Tensor:
    rows, columns = matrix.shape
    if min(rows, columns) <= _EIGEN_SIDE or not torch.isfinite(matrix).all():
        return largest_singular_value(matrix)
    gram = matrix @ matrix.mT if rows <= columns else matrix.mT @ matrix
    return _proven_largest_eigenvalue(gram).sqrt()


def _proven_largest_eigenvalue(gram: torch.Tensor) -> torch.Tensor:
    """Bound the largest eigenvalue: guessed from below by iteration, proved by a factorisation.

    ``t I − G`` has a Cholesky factor only if it is positive semidefinite, up to an error of
    rounding that is added.
    """
    size = len(gram)
    vector = torch.ones(size, dtype=gram.dtype, device=gram.device)
    guess = gram.diagonal().amax()
    for _ in range(60):
        vector = gram @ (vector / vector.norm().clamp_min(1e-300))
        guess = torch.maximum(guess, vector.norm())
    rounding = 4 * size**2 * torch.finfo(gram.dtype).eps  # a share of the bound
    identity = torch.eye(size, dtype=gram.dtype, device=gram.device)
    for margin in (1e-6, 1e-4, 1e-2, 0.1, 1.0):
        bound = guess * (1 + margin)
        _, failed = torch.linalg.cholesky_ex(bound * identity - gram)
        if int(failed) == 0:
            return bound * (1 + rounding)
    return gram.diagonal().sum()  # the trace bounds any eigenvalue


def convolution_entries(
    weight: torch.Tensor, convolution: Convolution, wanted: Wanted, maps: Maps | None = None
) -> Entries:
    """Return the norms of a convolution with kernel ``[out, in/groups, kh, kw]``.

    ``maps`` say, for each axis, which place of the real image a place of ``convolution.image`` is
    a copy of: padding by reflection and the like. Rows, columns and sums are exact, also at the
    border; (2, 2) is a bound on a torus, times the root of the copies that a place can have.
    """
    kernel = weight.reshape(convolution.groups, -1, *weight.shape[1:])
    reads = [convolution.reads(axis, kernel.shape[3 + axis]) for axis in (0, 1)]
    copies = 1
    if maps is not None:
        reads = [through(one, mapped) for one, mapped in zip(reads, maps, strict=True)]
        copies = math.prod(int(_counts(mapped).max(initial=0)) for mapped in maps)
    columns = _swept(kernel, [place_classes(one) for one in reads], over=(1, 3, 4))
    rows = _swept(kernel, [output_classes(one) for one in reads], over=(2, 3, 4))
    torus = [float(torus_norm(group, convolution)) for group in kernel]
    entries: Entries = {
        (1, 1): columns.ones,
        (1, 2): columns.twos,
        (1, INF): columns.largest,
        (2, 2): _maximum(torus) * math.sqrt(copies),
        (2, INF): rows.twos,
        (INF, INF): rows.ones,
        (INF, 1): columns.total,
    }
    if wanted.from_infinity:
        entries[INF, 2] = _gram_root(kernel, [place_pair_classes(one) for one in reads])
    if wanted.to_one:
        turned = kernel.transpose(1, 2)
        entries[2, 1] = _gram_root(turned, [output_pair_classes(one) for one in reads])
    return entries


def pixel_norm(kernel: torch.Tensor, reads: list[Reads], q: float) -> float:
    """Return the most that one place, all its channels changed by 1 at most, moves the output.

    A norm is convex, so the worst change is a pattern of signs over the channels, the same for
    all taps: ``max over s of ‖Σ_c s_c W_c‖_q``, for a kernel ``[out, in, kh, kw]``.
    """
    channels = kernel.shape[1]
    if channels > _SIGNED_CHANNELS:
        return INF
    worst = [0.0]
    classes = [place_classes(one) for one in reads]
    for signs in itertools.product((1.0, -1.0), repeat=channels - 1):
        mixed = torch.einsum("oihw,i->ohw", kernel, kernel.new_tensor((1.0, *signs)))
        swept = _swept(mixed[None, :, None], classes, over=(1, 3, 4))
        worst.append(swept.ones if q == 1 else swept.twos)
    return _maximum(worst)


def through(reads: Reads, mapped: npt.NDArray[np.int64]) -> Reads:
    """Return what is read of the real image where ``reads`` are of its padded copy."""
    real: Reads = mapped[reads]
    real[reads == NOTHING] = NOTHING
    return real


def _counts(mapped: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.bincount(mapped[mapped != NOTHING])


def _maximum(values: list[float]) -> float:
    """Return the largest, or NaN where there is one: NaN must not be lost in a comparison."""
    return math.nan if any(map(math.isnan, values)) else max(values, default=0.0)


@dataclass(frozen=True)
class _Swept:
    """Norms of all columns (or rows): the largest of each kind, and the sum of all entries."""

    ones: float
    twos: float
    largest: float
    total: float


def _swept(kernel: torch.Tensor, classes: list[Classes], *, over: tuple[int, ...]) -> _Swept:
    """Look at one column (or row) of each class of places."""
    ones, twos, largest, total = [0.0], [0.0], [0.0], 0.0
    for pattern_h, members_h in zip(classes[0].patterns, classes[0].members, strict=True):
        half = torch.einsum("goihw,ha->goiaw", kernel, pattern_h.to(kernel))
        for pattern_w, members_w in zip(classes[1].patterns, classes[1].members, strict=True):
            entries = torch.einsum("goiaw,wb->goiab", half, pattern_w.to(kernel)).abs()
            sums = entries.sum(dim=over)
            ones.append(float(sums.amax()))
            twos.append(float(entries.square().sum(dim=over).amax().sqrt()))
            largest.append(float(entries.amax()))
            total += float(members_h * members_w * sums.sum())
    return _Swept(_maximum(ones), _maximum(twos), _maximum(largest), total)


def _gram_root(kernel: torch.Tensor, classes: list[Classes]) -> float:
    """Return ``(Σ_ij |WᵀW|_ij)^(1/2)``: each pair of places that share an output, by its class."""
    group, _, inner, height, width = kernel.shape
    if group * (inner * height * width) ** 2 > _PRODUCT_SIZE:
        return INF
    if not all(one.patterns for one in classes):
        return 0.0  # every output reads padding alone
    products = torch.einsum("goihw,gojkv->gijhkwv", kernel, kernel)
    second = torch.stack(classes[1].patterns).to(kernel)
    total = 0.0
    for pattern, members in zip(classes[0].patterns, classes[0].members, strict=True):
        half = torch.einsum("gijhkwv,hk->gijwv", products, pattern.to(kernel))
        sums = torch.einsum("gijwv,cwv->cgij", half, second).abs().sum(dim=(1, 2, 3))
        total += float(members * (sums * classes[1].members.to(kernel)).sum())
    return math.sqrt(total) if not math.isnan(total) else math.nan
