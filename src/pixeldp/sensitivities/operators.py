"""Norms of linear operators: Δ_{p,q} of dense and convolution layers (§3.2).

Every function returns an upper bound as a 0-dimensional float64 tensor through which gradients
flow, so that the same formula measures a layer and constrains it in training.
A pair ``(p, q)`` names the norm of the input and of the output.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional as F  # noqa: N812 - the usual name

from pixeldp.errors import InvalidArgument

PAIRS = ((1, 1), (1, 2), (2, 2))

# Frequencies whose Gram matrices are held at once, to bound memory on large images.
_FREQUENCIES_AT_ONCE = 4096


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
    return _largest_singular_value(matrix)


@dataclass(frozen=True)
class Convolution:
    """A two-dimensional convolution with zero padding, without its weights.

    ``image`` is the height and width of its input, ``padding`` the zeros added before and after
    each of them.
    """

    image: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1


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
    return torch.stack([_torus_norm(group, convolution) for group in kernel]).amax()


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


def _torus_norm(kernel: torch.Tensor, convolution: Convolution) -> torch.Tensor:
    """Bound the largest singular value by that of a circular convolution it is a piece of.

    Zero-padded, on an image of side n, it is a restriction of the circular convolution on a torus
    of side N ≥ n + padding, N ≥ n + extent − 1, with the stride dividing N: a piece of an operator
    never has a larger norm. The circular one is block-diagonal in frequency. Subsampling by s
    folds the s² frequencies that look alike afterwards into one block ``out × (in s²)``, divided
    by s (a generalisation of Sedghi et al. 2019 to strides).
    """
    stride_h, stride_w = convolution.stride
    sides = [
        _torus_side(
            convolution.image[axis],
            sum(convolution.padding[axis]),
            (kernel.shape[2 + axis] - 1) * convolution.dilation[axis] + 1,
            convolution.stride[axis],
        )
        for axis in (0, 1)
    ]
    spread = _dilate(kernel, convolution.dilation)
    spread = F.pad(spread, (0, sides[1] - spread.shape[3], 0, sides[0] - spread.shape[2]))
    spectrum = torch.fft.fft2(spread)  # out, in, frequencies of the large torus
    out_channels, in_channels = kernel.shape[:2]
    aliases = spectrum.reshape(
        out_channels, in_channels, stride_h, sides[0] // stride_h, stride_w, sides[1] // stride_w
    )
    # frequency of the small torus, out, (in, alias, alias)
    blocks = aliases.permute(3, 5, 0, 1, 2, 4).reshape(
        sides[0] // stride_h * (sides[1] // stride_w), out_channels, -1
    )
    largest = [_largest_singular_value(part) for part in blocks.split(_FREQUENCIES_AT_ONCE)]
    norm: torch.Tensor = torch.stack(largest).amax() / (stride_h * stride_w) ** 0.5
    return norm


def _torus_side(image: int, padding: int, extent: int, stride: int) -> int:
    least = max(image + padding, image + extent - 1)
    return -(-least // stride) * stride


def _dilate(kernel: torch.Tensor, dilation: tuple[int, int]) -> torch.Tensor:
    out_channels, in_channels, height, width = kernel.shape
    spread = kernel.new_zeros(
        out_channels, in_channels, (height - 1) * dilation[0] + 1, (width - 1) * dilation[1] + 1
    )
    spread[:, :, :: dilation[0], :: dilation[1]] = kernel
    return spread


def _largest_singular_value(matrices: torch.Tensor) -> torch.Tensor:
    """Return the largest singular value among a batch, through the smaller Gram matrix.

    The largest eigenvalue of a Gram matrix is accurate to rounding, which the caller adds.
    """
    rows, columns = matrices.shape[-2:]
    gram = matrices @ matrices.mH if rows <= columns else matrices.mH @ matrices
    squares: torch.Tensor = torch.linalg.eigvalsh(gram)
    return squares.amax().clamp_min(0.0).sqrt()
