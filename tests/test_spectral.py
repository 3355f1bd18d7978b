"""Norms by frequencies agree with the straightforward transform, in value and in gradient."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - the usual name

from pixeldp.errors import InvalidArgument
from pixeldp.sensitivities import spectral
from pixeldp.sensitivities.geometry import Convolution
from pixeldp.sensitivities.operators import convolution_norm
from pixeldp.sensitivities.spectral import largest_singular_value, torus_norm

PADDED = ((1, 1), (2, 0))


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def straightforward(kernel: torch.Tensor, convolution: Convolution) -> torch.Tensor:
    """The same norm with nothing spared: every alias of every frequency, and all their norms."""
    sides = []
    for axis in (0, 1):
        step, image = convolution.stride[axis], convolution.image[axis]
        extent = (kernel.shape[2 + axis] - 1) * convolution.dilation[axis] + 1
        least = max(image + sum(convolution.padding[axis]), image + extent - 1)
        sides.append(math.ceil(least / step) * step)
    spread = kernel.new_zeros(*kernel.shape[:2], *sides)
    step_h, step_w = convolution.dilation
    spread[:, :, : kernel.shape[2] * step_h : step_h, : kernel.shape[3] * step_w : step_w] = kernel
    spectrum = torch.fft.fft2(spread)
    step_h, step_w = convolution.stride
    aliases = spectrum.unflatten(3, (step_w, -1)).unflatten(2, (step_h, -1))
    # out, in, alias, frequency, alias, frequency -> frequency, frequency, out, (in, alias, alias)
    blocks = aliases.permute(3, 5, 0, 1, 2, 4).flatten(3).flatten(0, 1)
    values: torch.Tensor = torch.linalg.svdvals(blocks)
    return values.amax() / math.sqrt(step_h * step_w)


def assert_agrees(kernel: torch.Tensor, convolution: Convolution) -> None:
    kernel = kernel.clone().requires_grad_()
    fast, slow = torus_norm(kernel, convolution), straightforward(kernel, convolution)
    assert fast.item() == pytest.approx(slow.item(), rel=1e-12)
    (of_fast,), (of_slow,) = (torch.autograd.grad(norm, kernel) for norm in (fast, slow))
    assert torch.allclose(of_fast, of_slow, rtol=1e-6, atol=1e-8)
    # The norm is homogeneous, so its gradient reproduces it.
    assert (of_fast * kernel).sum().item() == pytest.approx(fast.item(), rel=1e-10)


SHAPES = [(1, 1, 3, 3), (6, 1, 5, 3), (2, 4, 3, 3), (6, 4, 3, 2), (5, 3, 4, 4), (4, 4, 1, 3)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2])
def test_values_and_gradients_are_those_of_the_full_transform(
    shape: tuple[int, int, int, int], stride: int, dilation: int
) -> None:
    for seed, mixed in itertools.product(range(3), (False, True)):
        convolution = Convolution(
            image=(9, 12),
            stride=(stride, 1 if mixed else stride),
            padding=PADDED,
            dilation=(dilation, 3 - dilation if mixed else dilation),
        )
        assert_agrees(normal(*shape, seed=seed), convolution)


def test_groups_have_the_norm_and_the_gradient_of_the_largest() -> None:
    kernel = normal(6, 2, 3, 3).requires_grad_()
    grouped = Convolution(image=(8, 8), stride=(2, 2), padding=PADDED, groups=3)
    single = Convolution(image=(8, 8), stride=(2, 2), padding=PADDED)
    norm = convolution_norm(kernel, grouped, p=2, q=2)
    expected = torch.stack(
        [straightforward(part, single) for part in torch.split(kernel, 2)]
    ).amax()
    assert norm.item() == pytest.approx(expected.item(), rel=1e-12)
    (fast,), (slow,) = (torch.autograd.grad(value, kernel) for value in (norm, expected))
    assert torch.allclose(fast, slow, atol=1e-8)
    assert (fast != 0).flatten(1).any(dim=1).sum() == 2  # one group alone moves the norm


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("shape", [(2, 3, 3, 3), (4, 2, 3, 2)])
def test_the_gradient_is_that_of_finite_differences(shape: tuple[int, ...], stride: int) -> None:
    convolution = Convolution(
        image=(6, 7), stride=(stride, stride), padding=PADDED, dilation=(1, 2)
    )
    kernel = normal(*shape, seed=3).requires_grad_()
    assert torch.autograd.gradcheck(lambda w: torus_norm(w, convolution), (kernel,))


def test_norms_on_unusual_images() -> None:
    kernel = normal(3, 2, 5, 4)
    for image in [(1, 1), (2, 3), (3, 2), (5, 4), (31, 2), (1, 40)]:
        for stride in [(1, 1), (2, 3), (4, 1), (7, 5)]:
            assert_agrees(kernel, Convolution(image=image, stride=stride, padding=PADDED))
    assert_agrees(normal(3, 2, 1, 1), Convolution(image=(5, 6)))
    assert_agrees(normal(3, 2, 1, 1), Convolution(image=(5, 6), stride=(2, 3)))


def hard_kernels() -> dict[str, torch.Tensor]:
    """Kernels whose frequencies have nearly the same norm, or one that stands out."""
    centre = torch.zeros(4, 4, 3, 3, dtype=torch.float64)
    centre[:, :, 1, 1] = torch.linalg.qr(normal(4, 4))[0]
    sparse = torch.zeros(4, 3, 3, 3, dtype=torch.float64)
    sparse[2, 1, 0, 2] = -2.0
    return {
        "all frequencies alike": centre,
        "nearly alike": centre + 1e-9 * normal(4, 4, 3, 3),
        "constant": torch.ones(4, 3, 3, 3, dtype=torch.float64),
        "one tap": sparse,
        "orthonormal rows": torch.linalg.qr(normal(27, 8))[0].T.reshape(8, 3, 3, 3),
        "orthonormal columns": torch.linalg.qr(normal(64, 27))[0].reshape(64, 3, 3, 3),
        "rank one": torch.einsum(
            "o,i,h,w->oihw", normal(5), normal(4, seed=1), normal(3, seed=2), normal(3, seed=4)
        ),
    }


@pytest.mark.parametrize("name", hard_kernels())
@pytest.mark.parametrize("stride", [1, 2])
def test_no_frequency_is_passed_over_wrongly(name: str, stride: int) -> None:
    kernel = hard_kernels()[name]
    convolution = Convolution(image=(11, 10), stride=(stride, stride), padding=((1, 1), (1, 1)))
    expected = straightforward(kernel, convolution).item()
    assert torus_norm(kernel, convolution).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("at_once", [1, 300, 5000])
def test_pieces_of_any_size_give_the_same_norm(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spectral, "_ENTRIES_AT_ONCE", at_once)
    for seed in range(5):
        assert_agrees(normal(3, 5, 3, 4, seed=seed), Convolution(image=(13, 14), padding=PADDED))


def test_few_matrices_are_decomposed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of the 115 · 58 frequencies of a large first layer."""
    decomposed = 0
    decompose = torch.linalg.eigvalsh

    def counting(matrices: torch.Tensor) -> torch.Tensor:
        nonlocal decomposed
        decomposed += matrices.shape[0] if matrices.dim() == 3 else 1
        values: torch.Tensor = decompose(matrices)
        return values

    monkeypatch.setattr(torch.linalg, "eigvalsh", counting)
    first_layer = Convolution(image=(224, 224), stride=(2, 2), padding=((3, 3), (3, 3)))
    for seed in range(3):
        torus_norm(normal(64, 3, 7, 7, seed=seed), first_layer)
    assert 0 < decomposed < 3 * 100


@pytest.mark.parametrize("size", [1, 2, 3, 12])
def test_the_bound_by_two_moments_is_never_too_small(size: int) -> None:
    roots = torch.randn(
        500, size, size, dtype=torch.complex128, generator=torch.Generator().manual_seed(size)
    )
    roots *= torch.logspace(-3, 3, 500)[:, None, None]
    grams = roots @ roots.mH
    largest = torch.linalg.eigvalsh(grams)[:, -1]
    bound = spectral._largest_at_most(grams)
    assert (bound >= largest * (1 - 1e-13)).all()
    if size <= 2:  # two eigenvalues are known from two moments
        assert torch.allclose(bound, largest, rtol=1e-12)
    alike = torch.eye(size, dtype=torch.complex128)[None] * 3
    assert spectral._largest_at_most(alike).item() == pytest.approx(3, rel=1e-14)


def test_a_zero_kernel_has_norm_zero_and_a_gradient() -> None:
    kernel = torch.zeros(2, 3, 3, 3, dtype=torch.float64, requires_grad=True)
    matrix = kernel.flatten(1)
    for norm in (torus_norm(kernel, Convolution(image=(5, 5))), largest_singular_value(matrix)):
        (gradient,) = torch.autograd.grad(norm, kernel)
        assert norm.item() == 0.0
        assert gradient.isfinite().all()


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_has_no_norm(wrong: float) -> None:
    kernel = normal(2, 3, 3, 3)
    kernel[1, 0, 2, 2] = wrong
    assert torus_norm(kernel, Convolution(image=(5, 5))).isnan()
    assert largest_singular_value(kernel.flatten(1)).isnan()
    assert largest_singular_value(torch.full((1, 1), wrong)).isnan()
    norm = torus_norm(kernel.requires_grad_(), Convolution(image=(5, 5)))
    assert torch.autograd.grad(norm, kernel)[0].isnan().all()


@pytest.mark.parametrize("scale", [1e-300, 1e-170, 1e170, 1e300])
def test_squares_neither_vanish_nor_overflow(scale: float) -> None:
    kernel, convolution = normal(2, 3, 3, 3), Convolution(image=(5, 5))
    norm = torus_norm(kernel, convolution).item()
    assert torus_norm(kernel * scale, convolution).item() == pytest.approx(norm * scale, rel=1e-12)
    matrix = kernel.flatten(1)
    expected = float(np.linalg.norm(matrix.numpy(), 2))
    assert largest_singular_value(matrix * scale).item() == pytest.approx(expected * scale)


def test_single_precision_is_measured_in_double() -> None:
    kernel, convolution = normal(2, 3, 3, 3).float(), Convolution(image=(5, 5))
    norm = torus_norm(kernel, convolution)
    assert norm.dtype == torch.float64
    assert norm.item() == pytest.approx(straightforward(kernel.double(), convolution).item(), 1e-12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torus_norm(kernel, convolution).item() == norm.item()


def test_a_norm_first_taken_in_inference_mode_trains_later() -> None:
    spectral._waves.cache_clear()
    kernel, convolution = normal(2, 3, 3, 3), Convolution(image=(17, 17))
    with torch.inference_mode():
        torus_norm(kernel, convolution)
    assert_agrees(kernel, convolution)


def test_a_second_derivative_is_refused() -> None:
    kernel = normal(2, 3, 3, 3).requires_grad_()
    norm = torus_norm(kernel, Convolution(image=(5, 5)))
    (gradient,) = torch.autograd.grad(norm, kernel, create_graph=True)
    with pytest.raises(InvalidArgument, match="through create_graph=True; differentiate once"):
        torch.autograd.grad(gradient.sum(), kernel)


def test_the_largest_singular_value_of_a_batch() -> None:
    for rows, columns in [(3, 5), (5, 3), (1, 4), (4, 1)]:
        matrices = normal(6, rows, columns, seed=rows)
        expected = np.linalg.norm(matrices.numpy(), 2, axis=(1, 2)).max()
        assert largest_singular_value(matrices).item() == pytest.approx(expected, rel=1e-13)
    assert torch.autograd.gradcheck(largest_singular_value, (normal(2, 3, 4).requires_grad_(),))


def test_the_operation_is_seen_by_torch_as_it_is() -> None:
    """Its declared schema, its shapes without values, and its gradient registration are right."""
    operation = torch.ops.pixeldp.torus_norm.default
    arguments = (normal(2, 3, 3, 3).requires_grad_(), [7, 8], [1, 1], [1, 1])
    checked = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(operation, arguments, test_utils=checked)


def test_the_straightforward_norm_is_that_of_the_explicit_circular_matrix() -> None:
    """The oracle itself, against a third way: the matrix of the convolution on its torus."""
    kernel = normal(2, 2, 3, 2)
    for stride in ((1, 1), (2, 3)):
        convolution = Convolution(image=(4, 5), stride=stride)
        side = (6, 6)  # 4 + 2 and 5 + 1, which both strides divide
        basis = torch.eye(2 * 36, dtype=torch.float64).reshape(-1, 2, *side)
        wrapped = F.pad(basis, (0, 1, 0, 2), mode="circular")
        matrix = F.conv2d(wrapped, kernel, stride=stride).flatten(1)
        expected = float(np.linalg.norm(matrix.numpy(), 2))
        assert straightforward(kernel, convolution).item() == pytest.approx(expected, rel=1e-12)
