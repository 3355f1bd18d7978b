"""Slopes of activations, and awkward operations: each is bounded as it must be, or refused."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the usual name

from pixeldp import sensitivity
from pixeldp.errors import PixelDPError, UnsupportedLayer
from pixeldp.graphs import capture

if TYPE_CHECKING:
    from collections.abc import Callable

Tensor = torch.Tensor
Bounds = dict[tuple[float, int], float]

PAIRS = tuple(itertools.product((1, 2, math.inf), (1, 2)))
SLACK = 1 + 1e-9  # what the measured ratios themselves round


class Applied(nn.Module):
    """A function as a module, with a parameter only to be captured in float64."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.unused = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def bounds_of(front: nn.Module, shape: tuple[int, ...]) -> Bounds:
    """Every pair from one capture, which is nearly all of the time."""
    graph = capture(front, shape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pixeldp.sensitivities.capture", lambda *_, **__: graph)
        return {(p, q): sensitivity(front, shape, p=p, q=q) for p, q in PAIRS}


def prelu(slope: float) -> nn.Module:
    layer = nn.PReLU()
    layer.weight.data.fill_(slope)
    return layer


ACTIVATIONS: dict[str, nn.Module] = {
    **{
        kind.__name__: kind()
        for kind in (
            *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU),
            *(nn.SiLU, nn.Mish, nn.Softplus, nn.Softsign, nn.Tanh, nn.Sigmoid, nn.LogSigmoid),
            *(nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish),
        )
    },
    "GELU by tanh": nn.GELU(approximate="tanh"),
    "LeakyReLU, steep": nn.LeakyReLU(3.0),
    "LeakyReLU, negative": nn.LeakyReLU(-2.0),
    "PReLU, steep": prelu(2.5),
    "PReLU, negative": prelu(-1.5),
    "ELU, steep": nn.ELU(2.0),
    "CELU, wide": nn.CELU(3.0),
    "CELU, narrow": nn.CELU(0.3),
    "Softplus, sharp": nn.Softplus(beta=3.0),
    "Hardtanh, wide": nn.Hardtanh(-3.0, 0.5),
    "abs": Applied(torch.abs),
    "sin": Applied(torch.sin),
    "cos": Applied(torch.cos),
    "neg": Applied(torch.neg),
    "clamp": Applied(lambda x: x.clamp(-1.0, 2.0)),
    "clamp from below": Applied(lambda x: x.clamp_min(0.3)),
}


def steepest(function: nn.Module) -> float:
    """The largest slope between neighbours of a fine grid, which has the kinks as points."""
    grid = torch.linspace(-25, 25, 400_001, dtype=torch.float64)
    with torch.no_grad():
        return float((function(grid).diff() / grid.diff()).abs().max())


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_have_their_true_lipschitz_constants(name: str) -> None:
    activation = ACTIVATIONS[name].double()
    slope, count = steepest(activation), 5
    for p, q in PAIRS:
        # All coordinates may sit at the steepest place, so the norm is that of a multiple of 1.
        exact = slope * max(1.0, count ** (1 / q - 1 / p))
        bound = sensitivity(activation, (count,), p=p, q=q)
        assert exact * (1 - 1e-9) <= bound <= exact * 1.001, (p, q)


@pytest.mark.parametrize(
    "activation",
    [nn.Softplus(threshold=1.0), nn.CELU(-1.0), nn.Hardshrink(), nn.Threshold(0.1, 20.0)],
)
def test_functions_with_a_jump_or_without_a_bound_are_refused(activation: nn.Module) -> None:
    with pytest.raises(UnsupportedLayer):
        sensitivity(activation, (3,))


def distance_ratios(front: nn.Module, first: Tensor, second: Tensor, p: float, q: int) -> Tensor:
    with torch.no_grad():
        moved, step = (front(first) - front(second)).flatten(1), (first - second).flatten(1)
    ratios: Tensor = moved.norm(p=q, dim=1) / step.norm(p=p, dim=1)
    return ratios


def reached(matrix: Tensor, p: float, q: int) -> float:
    """A ratio that some vector reaches: a basis vector, or what turns out worst going uphill."""
    vectors = torch.eye(matrix.shape[1], dtype=torch.float64)
    for _ in range(0 if p == 1 else 12):
        moved = matrix @ vectors
        pulled = matrix.mT @ (moved.sign() if q == 1 else moved)
        vectors = pulled.sign() if p == math.inf else pulled / (pulled.norm(dim=0) + 1e-300)
    sizes = vectors.norm(p=p, dim=0).clamp_min(1e-12)
    return float(((matrix @ vectors).norm(p=q, dim=0) / sizes).max())


LINEAR: dict[str, Callable[[Tensor], Tensor]] = {
    "constant": lambda x: 2.5 * x - 1,
    "by channel": lambda x: (x - torch.ones(2, 1, 1)) / torch.tensor([[[0.5]], [[-0.25]]]),
    "from a constant": lambda x: 1 - x / 3,
    "sum": lambda x: x + 2 * x.flip(2),
    "cancelled": lambda x: x - x,
    "concatenated": lambda x: torch.cat([x, x[:, :1], -x], 1),
    "slices": lambda x: x[:, :, 1:3] + x[:, :, :2],
    "padded": lambda x: F.pad(x, (1, 0, 0, 2)),
    "permuted": lambda x: x.permute(0, 3, 1, 2).flatten(2),
    "one channel minus itself upside down": lambda x: (
        x[:, 0][:, [3, 2, 1, 0]].unsqueeze(1) - x[:, :1]
    ),
    "rows of one channel scaled": lambda x: (
        (x[:, 0] * torch.tensor([[1.0], [1.0], [1.0], [100.0]])).unsqueeze(1) + x[:, :1]
    ),
    "channels above each other": lambda x: (
        torch.cat([x[:, 0], x[:, 1]], 1)[:, 2:6].unsqueeze(1) - x[:, :1]
    ),
}
PERHAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "copied by broadcasting": lambda x: x[:, :1] * torch.tensor([1.0, 2, 3]).reshape(1, 3, 1, 1),
    "copied by adding": lambda x: x[:, :, :1] + torch.zeros(2, 5, 4),
    "sum of unequal shapes": lambda x: x + x[:, :1, :1],
    "expanded": lambda x: x[:, :1].expand(-1, 4, -1, -1),
    "repeated": lambda x: x.repeat(1, 2, 1, 3),
    "interleaved": lambda x: x.repeat_interleave(3, 2),
    "stacked": lambda x: torch.stack([x, x, 3 * x], 2),
    "rolled": lambda x: x + x.roll(1, 3),
    "centred": lambda x: x - 3 * x.mean((2, 3), keepdim=True),
    "summed": lambda x: x.sum(3),
    "accumulated": lambda x: x.cumsum(2),
    "weighted by one another": lambda x: x + 2 * x.roll((1, 1), (2, 3)) - x.flip(1),
    "strided": lambda x: x.as_strided((x.shape[0], 2, 4, 4), (32, 1, 2, 8)),
    "blurred by gathering": lambda x: x.gather(3, torch.zeros_like(x, dtype=torch.long)) + x,
    "written over": lambda x: torch.zeros_like(x).index_add(1, torch.tensor([0, 0]), x),
    "scattered": lambda x: torch.zeros_like(x).scatter_add(1, (0 * x).long(), x),
    "fourier": lambda x: torch.view_as_real(torch.fft.rfft2(x)),
    "matrix on the right": lambda x: x @ torch.arange(12.0, dtype=x.dtype).reshape(4, 3),
    "matrix on the left": lambda x: torch.arange(12.0, dtype=x.dtype).reshape(3, 4) @ x,
    "einsum": lambda x: torch.einsum("bchw,co->bohw", x, torch.ones(2, 3, dtype=x.dtype)),
    "nearest": lambda x: F.interpolate(x, scale_factor=2.0),
    "bilinear": lambda x: F.interpolate(x, size=(7, 5), mode="bilinear"),
    "pixels": lambda x: F.pixel_unshuffle(x, 2),
    "unfolded": lambda x: F.unfold(x, 2),
    "the same twice": lambda x: x[:, [0, 0, 1, 0]],
    "windows that overlap": lambda x: x.unfold(2, 2, 1),
    "masked": lambda x: x.masked_fill(torch.eye(4, dtype=torch.bool), 3.0),
    "mirrored border": lambda x: F.pad(x, (2, 2, 2, 2), mode="reflect"),
    "copied border": lambda x: F.pad(x, (3, 3, 3, 3), mode="replicate"),
    "through float32": lambda x: x.float().double() * 2,
    "cropped before a convolution": lambda x: F.conv2d(
        F.pad(x, (-1, 0, 1, -2)), torch.ones(1, 2, 2, 2, dtype=x.dtype)
    ),
    "weighted sum": lambda x: torch.sub(x, x.flip(3), alpha=-3),
    "weighted constant": lambda x: torch.rsub(x, 2, alpha=3),
}


@pytest.mark.parametrize("name", [*LINEAR, *PERHAPS])
def test_linear_arithmetic_is_bounded_or_refused(name: str) -> None:
    front, shape = Applied((LINEAR | PERHAPS)[name]), (2, 4, 4)
    try:
        bounds = bounds_of(front, shape)
    except PixelDPError:
        assert name in PERHAPS
        return
    basis = torch.eye(math.prod(shape), dtype=torch.float64).reshape(-1, *shape)
    with torch.no_grad():
        matrix = (front(basis) - front(torch.zeros_like(basis))).flatten(1).T
    for (p, q), bound in bounds.items():
        assert reached(matrix, p, q) <= bound * SLACK, (p, q)


ONE = torch.ones(4, dtype=torch.float64)


def column(x: Tensor) -> Tensor:
    return torch.ones(x.shape[0], 1, dtype=x.dtype)


STEEP: dict[str, Callable[[Tensor], Tensor]] = {
    "square": lambda x: x * x,
    "power": lambda x: x**3,
    "product": lambda x: x[:, :2] * x[:, 2:],
    "quotient": lambda x: x / (1 + x.abs().sum(1, keepdim=True)),
    "exponential": torch.exp,
    "root": lambda x: x.abs().sqrt(),
    "reciprocal": lambda x: 1 / x,
    "floor": torch.floor,
    "step": lambda x: (x > 0).double(),
    "integer": lambda x: x.long().double(),
    "where": lambda x: torch.where(x > 0, x + 5, x),
    "gate": lambda x: x * torch.sigmoid(x.flip(1)),
    "maximum": lambda x: torch.maximum(x, 3 * x.flip(1)),
    "largest": lambda x: x.amax(1, keepdim=True),
    "sorted": lambda x: x.sort(1).values,
    "softmax": lambda x: (8 * x).softmax(1),
    "normalised": lambda x: F.normalize(x, dim=1),
    "standardised": lambda x: F.layer_norm(x, (4,)),
    "remainder": lambda x: x.remainder(1.0),
    "tangent": torch.tan,
    "clamped by itself": lambda x: x.clamp(max=-2 * x.flip(1)),
    "slope from the input": lambda x: F.prelu(x, x[0, :1]),
    "bilinear form": lambda x: x @ x.mT @ x if x.dim() > 2 else (x[:, None] @ x[:, :, None])[:, 0],
    "attention": lambda x: F.scaled_dot_product_attention(
        x[:, :, None], x[:, :, None], x[:, :, None]
    ),
    "scaled by a number of its own": lambda x: x * x.sum().item(),
    "random": lambda x: x * torch.rand_like(x) * 9,
    "factor of a product": lambda x: torch.addmm(ONE * 0, x, torch.diag(ONE), alpha=3),
    "addend of a product": lambda x: torch.addmm(x, column(x), 0.1 * ONE[None]),
    "weighted addend": lambda x: torch.addmm(x, column(x), 0.1 * ONE[None], beta=5),
    "bias": lambda x: F.linear(column(x), 0.1 * ONE[:, None], x),
    "by way of complex numbers": lambda x: (x * 1j).abs(),
    "over a complex number": lambda x: (x / torch.tensor(0.5j)).abs(),
    "complex and back": lambda x: torch.view_as_real(x.to(torch.complex128)).flatten(1),
    "kernel": lambda x: F.conv1d(torch.ones(1, 1, 4, dtype=x.dtype), x[:, None]).flatten(1).mT,
    "weight of the normalisation": lambda x: F.batch_norm(column(x) * ONE, 0 * ONE, ONE, x[0]),
    "in whole numbers": lambda x: (x.to(torch.uint8) * 200).double(),
}


@pytest.mark.parametrize("name", STEEP)
def test_functions_of_any_steepness_are_bounded_or_refused(name: str) -> None:
    torch.manual_seed(0)
    front = Applied(STEEP[name])
    try:
        bounds = bounds_of(front, (4,))
    except PixelDPError:
        return
    first = torch.randn(4000, 4, dtype=torch.float64) * torch.logspace(-3, 2, 4000)[:, None]
    second = (
        first + torch.randn_like(first) * torch.logspace(-5, 1, 4000)[torch.randperm(4000), None]
    )
    for (p, q), bound in bounds.items():
        assert float(distance_ratios(front, first, second, p, q).max()) <= bound * SLACK, (p, q)


ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean of the batch": lambda x: x - x.mean(0),
    "reversed batch": lambda x: x.flip(0),
    "rolled batch": lambda x: x.roll(1, 0),
    "rolled as one": lambda x: x.roll(1),
    "accumulated over the batch": lambda x: x.cumsum(0),
    "exchanged axes": lambda x: x.transpose(0, 1).reshape(x.shape[0], -1),
    "rows among columns": lambda x: x.flatten().reshape(-1, 4),
    "concatenated batch": lambda x: torch.cat([x[1:], x[:1]], 0),
    "shifted batch": lambda x: F.pad(x, (0, 0, 1, 0))[:-1],
    "product of rows": lambda x: x @ x.T @ x,
    "the first row": lambda x: x + x[:1],
    "times the rows": lambda x: x * x.shape[0],
    "over the rows": lambda x: x / (1.0 / x.shape[0]),
    "numbered": lambda x: x * torch.arange(x.shape[0])[:, None],
    "columns by the rows": lambda x: x @ torch.ones(4, x.shape[0], dtype=x.dtype),
    "rows looked up": lambda x: F.embedding(torch.arange(x.shape[0]).flip(0), x),
    "weighted by the rows": lambda x: torch.add(ONE, x, alpha=x.shape[0]),
    "rows shifted by padding": lambda x: F.pad(x, (0, 0, 1, -1)),
    "batch statistics": lambda x: F.batch_norm(x, None, None, training=True),
    "softmax of the batch": lambda x: x.softmax(0),
    "sum weighted by the rows": lambda x: torch.add(x, x.flip(1), alpha=x.shape[0]),
    "padded by the rows": lambda x: F.pad(x, (0, x.shape[0])),
    "repeated by the rows": lambda x: x.repeat(1, x.shape[0]),
    "as many columns as rows": lambda x: x[:, : x.shape[0]] * 2,
    "from the column of the number of rows": lambda x: x.repeat(1, 9)[:, x.shape[0] :],
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_that_see_each_other_or_their_number_are_refused(name: str) -> None:
    with pytest.raises(PixelDPError):
        sensitivity(Applied(ROWS[name]), (4,))


@pytest.mark.parametrize(
    "front",
    [
        lambda x: x * torch.rand(4, dtype=x.dtype),
        lambda x: F.linear(x, torch.randn(2, 4, dtype=x.dtype)),
        lambda x: x + torch.empty(4, dtype=x.dtype).uniform_(),
    ],
)
def test_random_weights_have_no_sensitivity(front: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(UnsupportedLayer, match="randomness before the noise is not supported"):
        sensitivity(Applied(front), (4,))


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(4, track_running_stats=False),
        nn.LayerNorm(4),
        nn.Softmax(dim=1),
        nn.Bilinear(4, 4, 2),
    ],
)
def test_layers_without_a_bound_are_refused(layer: nn.Module) -> None:
    with pytest.raises((UnsupportedLayer, PixelDPError)):
        sensitivity(layer, (4,))
