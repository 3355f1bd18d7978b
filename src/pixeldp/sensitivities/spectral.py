"""Largest singular values: of matrices, and of convolutions through the frequencies of a torus."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F  # noqa: N812 - the usual name

from pixeldp.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pixeldp.sensitivities.geometry import Convolution

# Entries of Gram matrices that are held at once, to bound memory: 8 MB of complex numbers.
_ENTRIES_AT_ONCE = 2**19
# So few matrices are decomposed straight away: looking for a reason not to would cost as much.
_FEW = 16
# A frequency is passed over when it cannot exceed the best by this much, relative, in the square.
# Callers raise the norm by far more.
_SLACK = 1 + 1e-12
# Powers 2, 4, … of the Gram matrices that are tried before the rest are decomposed.
_SQUARINGS = 4


def torus_norm(kernel: torch.Tensor, convolution: Convolution) -> torch.Tensor:
    """Bound the largest singular value by that of a circular convolution it is a piece of.

    Zero-padded, on an image of side n, it is a restriction of the circular convolution on a torus
    of side N ≥ n + padding, N ≥ n + extent − 1, with the stride dividing N: a piece of an operator
    never has a larger norm. The circular one is block-diagonal in frequency (Sedghi et al. 2019).
    With stride s, each block is the transform of the s² subsampled kernels side by side, at the
    frequencies of a torus of side N / s.

    ``kernel`` is ``[out, in, kh, kw]``, the result 0-dimensional, and NaN where the kernel is not
    finite. It can be differentiated once: the gradient is that of the one block which attains the
    norm.
    """
    sides = [
        _torus_side(
            convolution.image[axis],
            sum(convolution.padding[axis]),
            (kernel.shape[2 + axis] - 1) * convolution.dilation[axis] + 1,
            convolution.stride[axis],
        )
        for axis in (0, 1)
    ]
    norm: torch.Tensor = torch.ops.pixeldp.torus_norm(
        kernel.double(), sides, list(convolution.stride), list(convolution.dilation)
    )[0]
    return norm


def largest_singular_value(matrices: torch.Tensor) -> torch.Tensor:
    """Return the largest singular value among a batch, through the smaller Gram matrix.

    The largest eigenvalue of a Gram matrix is accurate to rounding, which the caller adds. NaN
    where an entry is not finite.
    """
    scale = matrices.detach().abs().amax()
    finite = scale.isfinite()
    unit = torch.where(finite & (scale > 0), scale, 1.0)  # squares neither overflow nor vanish
    scaled = torch.where(finite, matrices / unit, 0.0)
    rows, columns = matrices.shape[-2:]
    gram = scaled @ scaled.mH if rows <= columns else scaled.mH @ scaled
    square: torch.Tensor = torch.linalg.eigvalsh(gram).amax()
    # The root has no derivative at 0, and would turn the gradient of a zero matrix into NaN.
    norm = torch.where(square > 0, torch.where(square > 0, square, 1.0).sqrt(), 0.0) * unit
    return torch.where(finite, norm, math.nan)


def _torus_side(image: int, padding: int, extent: int, stride: int) -> int:
    least = max(image + padding, image + extent - 1)
    return -(-least // stride) * stride


def _norm_and_gradient(
    kernel: torch.Tensor, sides: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the norm and its gradient with respect to the kernel."""
    scale = float(kernel.abs().amax())
    if not math.isfinite(scale):
        return kernel.new_full((), math.nan), torch.full_like(kernel, math.nan)
    if scale == 0.0:
        return kernel.new_zeros(()), torch.zeros_like(kernel)
    # Many small steps, each of which decides on the next: they are taken on the processor.
    phases = _phases(kernel.cpu() / scale, stride, dilation)
    wide = phases.shape[0] < phases.shape[1]
    tall = phases.transpose(0, 1) if wide else phases
    small = [
        side // step if taps > 1 else 1  # a single tap looks alike at every frequency
        for side, step, taps in zip(sides, stride, phases.shape[2:], strict=True)
    ]
    norm, gradient = _block_norm(tall, _top_frequency(tall, small))
    if wide:
        gradient = gradient.transpose(0, 1)
    gradient = _kernel_of(gradient, kernel, stride, dilation)
    return kernel.new_tensor(norm * scale), gradient.to(kernel.device)


def _like_norm_and_gradient(
    kernel: torch.Tensor, sides: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    del sides, stride, dilation
    return kernel.new_empty(()), torch.empty_like(kernel)


def _keep_gradient(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ANN401, ARG001 - torch's own
    ctx.save_for_backward(output[1])
    ctx.set_materialize_grads(False)


def _backward(
    ctx: Any,  # noqa: ANN401 - torch's own
    of_norm: torch.Tensor | None,
    of_gradient: torch.Tensor | None,
) -> tuple[torch.Tensor | None, None, None, None]:
    if of_gradient is not None:
        raise InvalidArgument(
            "the 2-norm of a convolution can be differentiated once, got a second derivative "
            "through create_graph=True; differentiate once, or hold the layer in another norm"
        )
    (gradient,) = ctx.saved_tensors
    return (None if of_norm is None else of_norm * gradient, None, None, None)


# One opaque operation, because the search takes decisions that no captured graph could hold.
_OPERATION = "pixeldp::torus_norm"
_library = torch.library.Library("pixeldp", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(  # type: ignore[no-untyped-call]
    "torus_norm(Tensor kernel, int[] sides, int[] stride, int[] dilation) -> (Tensor, Tensor)"
)
_library.impl(  # type: ignore[no-untyped-call]
    "torus_norm", _norm_and_gradient, "CompositeExplicitAutograd"
)
torch.library.register_fake(_OPERATION, _like_norm_and_gradient, lib=_library)
torch.library.register_autograd(_OPERATION, _backward, setup_context=_keep_gradient, lib=_library)


def _phases(kernel: torch.Tensor, stride: Sequence[int], dilation: Sequence[int]) -> torch.Tensor:
    """Return the kernel as one of stride 1, on the phases of the image as channels.

    ``[out, in · s_h · s_w, taps, taps]``: stride s sees the image as s² smaller ones, and each of
    them meets every s-th tap.
    """
    if (*stride, *dilation) == (1, 1, 1, 1):
        return kernel
    (out, channels), taps = kernel.shape[:2], _taps(kernel, stride, dilation)
    spread = kernel.new_zeros(out, channels, taps[0] * stride[0], taps[1] * stride[1])
    _where_taps_are(spread, kernel, dilation).copy_(kernel)
    apart = spread.reshape(out, channels, taps[0], stride[0], taps[1], stride[1])
    return apart.permute(0, 1, 3, 5, 2, 4).reshape(out, -1, *taps)


def _kernel_of(
    phases: torch.Tensor, kernel: torch.Tensor, stride: Sequence[int], dilation: Sequence[int]
) -> torch.Tensor:
    """Undo ``_phases``: return the entries that belong to the taps of the kernel."""
    if (*stride, *dilation) == (1, 1, 1, 1):
        return phases.contiguous()
    (out, channels), taps = kernel.shape[:2], _taps(kernel, stride, dilation)
    apart = phases.reshape(out, channels, stride[0], stride[1], *taps)
    spread = apart.permute(0, 1, 4, 2, 5, 3).reshape(
        out, channels, taps[0] * stride[0], taps[1] * stride[1]
    )
    return _where_taps_are(spread, kernel, dilation).contiguous()


def _taps(kernel: torch.Tensor, stride: Sequence[int], dilation: Sequence[int]) -> tuple[int, int]:
    """Return how many taps meet one phase, along each axis."""
    height, width = (
        ((size - 1) * spacing) // step + 1
        for size, spacing, step in zip(kernel.shape[2:], dilation, stride, strict=True)
    )
    return height, width


def _where_taps_are(
    spread: torch.Tensor, kernel: torch.Tensor, dilation: Sequence[int]
) -> torch.Tensor:
    height, width = (
        (size - 1) * spacing + 1 for size, spacing in zip(kernel.shape[2:], dilation, strict=True)
    )
    return spread[:, :, : height : dilation[0], : width : dilation[1]]


def _block_norm(
    kernel: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]
) -> tuple[float, torch.Tensor]:
    """Return the largest singular value σ of the block at one frequency, and its gradient.

    ``σ = Re(uᴴ K v)`` with ``K = Σ_t w_t e^{−iθt}``, so the derivative by ``w_t`` is
    ``Re(ū ⊗ v e^{−iθt})``; where σ is not simple, this is one of its subgradients.
    """
    waves = angles[0][:, None] * angles[1][None, :]
    block = (kernel * waves).sum(dim=(2, 3))
    squares, vectors = torch.linalg.eigh(block.mH @ block)
    right = vectors[:, -1]
    norm = math.sqrt(squares[-1])
    left = block @ right / norm
    outer = left.conj()[:, None] * right[None, :]
    return norm, (outer[:, :, None, None] * waves).real


def _top_frequency(kernel: torch.Tensor, sides: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the waves ``e^{−iθt}`` over the taps at the frequency of the largest block."""
    best, top = 0.0, (0, 0)
    for start, grams in _gram_matrices(kernel, sides):
        value, index = _largest_above(best, grams)
        if index is not None:
            width = grams.shape[0] // sides[0]
            best, top = value, (index // width, start + index % width)
    taps = kernel.shape[2:]
    return (
        _waves(sides[0], taps[0])[top[0], taps[0] - 1 :],
        _waves(sides[1], taps[1])[top[1], taps[1] - 1 :],
    )


def _gram_matrices(
    kernel: torch.Tensor, sides: Sequence[int]
) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield ``KᴴK``, transposed, at every frequency of the torus up to conjugation.

    ``KᴴK`` is the Fourier transform of the kernel's correlation with itself, in which the larger
    side of K is summed over once and for all: ``G(θ) = Σ_lag C_lag e^{−iθ·lag}``.
    """
    columns = kernel.transpose(0, 1).contiguous()
    size, (height, width) = columns.shape[0], kernel.shape[2:]
    shape = (2 * height - 1, 2 * width - 1)
    at_once = max(1, _ENTRIES_AT_ONCE // (columns[0].numel() * math.prod(shape)))
    correlation = torch.cat(
        [
            F.conv2d(part, columns, padding=(height - 1, width - 1))
            for part in torch.split(columns, at_once)
        ]
    )
    lags = correlation.permute(2, 3, 0, 1).reshape(*shape, -1).to(torch.complex128)
    rows = _waves(sides[0], height)
    # A real kernel has conjugate blocks at opposite frequencies: half of them are enough.
    half = _waves(sides[1], width)[: sides[1] // 2 + 1]
    step = max(1, _ENTRIES_AT_ONCE // (sides[0] * size**2))
    for start in range(0, half.shape[0], step):
        part = half[start : start + step] @ lags
        yield start, (rows @ part.reshape(rows.shape[1], -1)).reshape(-1, size, size)


@lru_cache(maxsize=64)
def _waves(side: int, taps: int) -> torch.Tensor:
    """Return ``e^{−2πi f lag / side}`` at every frequency f, for lags between −taps and taps."""
    turns = torch.outer(
        torch.arange(side, device="cpu"), torch.arange(1 - taps, taps, device="cpu")
    ).remainder(side)
    angles = turns.double() * (-2 * math.pi / side)
    return torch.polar(torch.ones_like(angles), angles)


def _largest_above(best: float, grams: torch.Tensor) -> tuple[float, int | None]:
    """Return the largest eigenvalue of all ``grams`` and where it is, if it exceeds ``best``.

    Only those are decomposed whose bound exceeds the best so far. The bound gets sharper with
    every squaring: ``λ(G)^m = λ(G^m)``.
    """
    at: int | None = None
    left, powers, unit = torch.arange(len(grams), device=grams.device), grams, 1.0
    for squarings in range(_SQUARINGS + 1):
        if squarings:
            powers = powers @ powers
        upper = _largest_at_most(powers)
        first = int(left[upper.argmax()])
        value = float(torch.linalg.eigvalsh(grams[first])[-1])
        if value > best:
            best, at = value, first
        kept = (upper > (best * _SLACK / unit) ** 2**squarings).nonzero()[:, 0]
        left = left[kept]
        if len(left) <= _FEW:
            break
        powers = powers[kept]
        if not squarings:
            powers, unit = powers / best, best
    if len(left):
        values = torch.linalg.eigvalsh(grams[left])[:, -1]
        if float(values.amax()) > best:
            best, at = float(values.amax()), int(left[values.argmax()])
    return best, at


def _largest_at_most(matrices: torch.Tensor) -> torch.Tensor:
    """Bound the largest eigenvalue of each Hermitian matrix by the first two moments of all.

    With mean m and standard deviation s of n eigenvalues, none exceeds ``m + s sqrt(n − 1)``
    (Wolkowicz and Styan 1980). Subtracting m first keeps s accurate where it is small.
    """
    size = matrices.shape[-1]
    mean: torch.Tensor = matrices.diagonal(dim1=-2, dim2=-1).real.mean(dim=-1)
    if size == 1:
        return mean
    apart = matrices.clone()
    apart.diagonal(dim1=-2, dim2=-1).sub_(mean[:, None])
    # ‖G − m I‖_F = s sqrt(n), over real numbers since that is many times faster.
    spread: torch.Tensor = torch.linalg.vector_norm(torch.view_as_real(apart).flatten(1), dim=1)
    return mean + spread * math.sqrt((size - 1) / size)
