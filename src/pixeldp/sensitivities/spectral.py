"""Largest singular values: of matrices, and of convolutions through the frequencies of a torus."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F  # noqa: N812 - the usual name

if TYPE_CHECKING:
    from pixeldp.sensitivities.geometry import Convolution

# Frequencies whose Gram matrices are held at once, to bound memory on large images.
_FREQUENCIES_AT_ONCE = 4096


def torus_norm(kernel: torch.Tensor, convolution: Convolution) -> torch.Tensor:
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
    largest = [largest_singular_value(part) for part in blocks.split(_FREQUENCIES_AT_ONCE)]
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


def largest_singular_value(matrices: torch.Tensor) -> torch.Tensor:
    """Return the largest singular value among a batch, through the smaller Gram matrix.

    The largest eigenvalue of a Gram matrix is accurate to rounding, which the caller adds.
    """
    rows, columns = matrices.shape[-2:]
    gram = matrices @ matrices.mH if rows <= columns else matrices.mH @ matrices
    squares: torch.Tensor = torch.linalg.eigvalsh(gram)
    return squares.amax().clamp_min(0.0).sqrt()
