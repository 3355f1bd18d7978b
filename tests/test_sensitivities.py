from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pixeldp import sensitivity
from pixeldp.errors import InvalidArgument, UnsupportedLayer
from pixeldp.sensitivities import tables
from pixeldp.sensitivities.geometry import Convolution
from pixeldp.sensitivities.operators import convolution_norm, dense_norm

PAIRS = ((1, 1), (1, 2), (2, 2))


def matrix_of(module: nn.Module, shape: tuple[int, ...]) -> np.ndarray:
    """The explicit matrix of an affine module, column by column."""
    module = module.double()
    size = int(np.prod(shape))
    with torch.no_grad():
        basis = torch.eye(size, dtype=torch.float64).reshape(size, *shape)
        columns = module(basis) - module(torch.zeros(1, *shape, dtype=torch.float64))
    matrix: np.ndarray = columns.reshape(size, -1).T.numpy()
    return matrix


def exact_norm(matrix: np.ndarray, p: int, q: int) -> float:
    if (p, q) == (2, 2):
        return float(np.linalg.norm(matrix, 2))
    return float(np.linalg.norm(matrix, ord=q, axis=0).max())


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[nn.Conv2d, tuple[int, int, int]]:
    groups = draw(st.integers(1, 2))
    channels = groups * draw(st.integers(1, 2))
    kernel = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    dilation = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    padding = draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
    extent = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    sides = [
        draw(st.integers(max(1, reach - 2 * pad), max(1, reach - 2 * pad) + 5))
        for reach, pad in zip(extent, padding, strict=True)
    ]
    layer = nn.Conv2d(
        channels,
        groups * draw(st.integers(1, 3)),
        kernel,
        stride=draw(st.tuples(st.integers(1, 4), st.integers(1, 4))),
        padding=padding,
        dilation=dilation,
        groups=groups,
    )
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    layer.weight.data.normal_(generator=generator)
    return layer, (channels, sides[0], sides[1])


def described(layer: nn.Conv2d, shape: tuple[int, int, int]) -> Convolution:
    height, width = (int(size) for size in layer.padding)
    return Convolution(
        image=(shape[1], shape[2]),
        stride=(layer.stride[0], layer.stride[1]),
        padding=((height, height), (width, width)),
        dilation=(layer.dilation[0], layer.dilation[1]),
        groups=layer.groups,
    )


@settings(max_examples=300)
@given(case=convolutions())
def test_no_convolution_exceeds_its_bound(
    case: tuple[nn.Conv2d, tuple[int, int, int]],
) -> None:
    layer, shape = case
    matrix = matrix_of(layer, shape)
    for p, q in PAIRS:
        bound = float(convolution_norm(layer.weight.detach(), described(layer, shape), p=p, q=q))
        assert exact_norm(matrix, p, q) <= bound * (1 + 1e-10)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("groups", [1, 2])
def test_bounds_are_exact_or_close_on_wide_images(stride: int, dilation: int, groups: int) -> None:
    torch.manual_seed(stride * 10 + dilation)
    layer = nn.Conv2d(2, 4, 3, stride=stride, dilation=dilation, groups=groups, padding=1)
    side = 4 * (2 * dilation + 1)
    shape = (2, side, side)
    matrix = matrix_of(layer, shape)
    for p, q in PAIRS:
        exact = exact_norm(matrix, p, q)
        bound = float(convolution_norm(layer.weight.detach(), described(layer, shape), p=p, q=q))
        if p == 1:
            assert bound == pytest.approx(exact, rel=1e-9)
        else:
            assert exact <= bound * (1 + 1e-10) <= 1.10 * exact


def test_a_torus_of_the_image_alone_would_be_too_small() -> None:
    """Why the torus has room for the padding: without it the bound can be below the norm."""
    kernel = torch.ones(1, 1, 1, 3)
    kernel[..., 2] = -1.0
    layer = nn.Conv2d(1, 1, (1, 3), padding=(0, 1), bias=False)
    layer.weight.data = kernel
    found_too_small = False
    for side in range(3, 9):
        exact = exact_norm(matrix_of(layer, (1, 1, side)), 2, 2)
        too_small = float(torch.fft.fft(kernel.double().flatten(), n=side).abs().max())
        found_too_small |= too_small < exact - 1e-6
        shape = described(layer, (1, 1, side))
        assert float(convolution_norm(layer.weight.detach(), shape, p=2, q=2)) >= exact - 1e-9
    assert found_too_small


@given(seed=st.integers(0, 1000), rows=st.integers(1, 6), columns=st.integers(1, 6))
def test_dense_norms_are_exact(seed: int, rows: int, columns: int) -> None:
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)).double()
    for p, q in PAIRS:
        bound = float(dense_norm(weight, p=p, q=q))
        assert bound == pytest.approx(exact_norm(weight.numpy(), p, q))


@pytest.mark.parametrize("padding", ["same", "valid", 1])
def test_the_captured_layer_is_bounded_as_the_explicit_matrix(padding: str | int) -> None:
    torch.manual_seed(2)
    layer = nn.Conv2d(2, 3, (3, 4), padding=padding)
    for p, q in PAIRS:
        bound = sensitivity(layer.float(), (2, 9, 8), p=p, q=q)
        exact = exact_norm(matrix_of(layer, (2, 9, 8)), p, q)
        assert exact <= bound <= exact * (1.25 if p == 2 else 1 + 1e-6)


def test_chains_and_contractions() -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(6, 5), nn.Linear(5, 4)
    front = nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Tanh(), nn.Sigmoid(), second)
    shape = (1, 2, 3)
    a, b = (layer.weight.detach().double().numpy() for layer in (first, second))
    steepest = 0.25  # of the sigmoid
    assert sensitivity(front, shape, p=2, q=2) == pytest.approx(
        steepest * exact_norm(a, 2, 2) * exact_norm(b, 2, 2)
    )
    best = min(exact_norm(a, 1, 1) * exact_norm(b, 1, 2), exact_norm(a, 1, 2) * exact_norm(b, 2, 2))
    assert sensitivity(front, shape, p=1, q=2) == pytest.approx(steepest * best)


def test_a_chain_is_never_exceeded_by_real_pairs() -> None:
    torch.manual_seed(1)
    front = nn.Sequential(nn.Conv2d(1, 3, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(27, 8))
    first = torch.randn(2000, 1, 8, 8)
    second = first + torch.randn(2000, 1, 8, 8) * torch.logspace(-3, 1, 2000)[:, None, None, None]
    with torch.no_grad():
        moved = (front(first) - front(second)).double()
    step = (first - second).flatten(1).double()
    for p, q in PAIRS:
        ratio = moved.norm(p=q, dim=1) / step.norm(p=p, dim=1)
        assert float(ratio.max()) <= sensitivity(front, (1, 8, 8), p=p, q=q)


def test_composition_takes_the_better_norm_in_between() -> None:
    first = tables.table_of({(1, 1): 2.0, (1, 2): 1.0, (2, 2): 3.0})
    then = tables.table_of({(1, 1): 1.0, (1, 2): 1.0, (2, 2): 4.0})
    both = tables.compose(first, then)
    for (p, q), bound in {(1, 1): 2.0, (1, 2): 2.0, (2, 2): 12.0, (2, 1): math.inf}.items():
        assert both[tables.at(p, q)] == pytest.approx(bound)


def test_tables_keep_what_is_no_number() -> None:
    table = tables.table_of({(1, 1): math.nan, (2, 2): 1.0})
    for made in (tables.complete(table, 3, 3), tables.compose(table, tables.isometry(3))):
        assert math.isnan(made[tables.at(1, 1)])
    nothing = tables.table_of({(2, 2): 0.0})
    assert tables.compose(nothing, nothing)[tables.at(2, 2)] == 0.0


class _Mixes(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1, 2)


class _Turns(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flip(0)


class _Squares(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x


class _Divides(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 1 / x


class _Halves(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.half()


class _Repeats(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.ones(3, 4)


class _ChannelsOfTheBatch(nn.Module):
    """A pool that takes the batch for channels: rows stay apart, axes are not what they seem."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.avg_pool2d(x, 2)


class _Indices(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.max_pool2d(x, 2, return_indices=True)[1].float()


class _Ignores(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(x.shape[0], 3)


@pytest.mark.parametrize(
    ("module", "shape", "message"),
    [
        (
            nn.BatchNorm2d(1),
            (1, 4, 4),
            "batch normalisation '' stands before the noise in training",
        ),
        (nn.BatchNorm2d(1, track_running_stats=False).eval(), (1, 4, 4), "of the input or of the"),
        (nn.InstanceNorm2d(1), (1, 4, 4), "statistics are of the input"),
        (nn.LayerNorm(4), (4,), "divides by the input's own spread"),
        (nn.Dropout(0.5).eval(), (4,), "dropout '' stands before the noise"),
        (nn.Softmax(dim=1), (4,), "aten.softmax"),
        (nn.Softplus(threshold=1), (4,), "jumps at its threshold=1"),
        (nn.CELU(-1.0), (4,), "grows without bound for alpha=-1"),
        (nn.Hardshrink(), (4,), "aten.le.Scalar"),
        (nn.Conv3d(1, 1, 2), (1, 4, 4, 4), "aten.conv3d"),
        (_Mixes(), (4,), "moves coordinates between the inputs of a batch"),
        (_Turns(), (4, 4), "moves coordinates between the inputs of a batch"),
        (_Squares(), (4,), "combines several values that depend on the input"),
        (_Divides(), (4,), "aten.reciprocal"),
        (_Halves(), (4,), "rounds from torch.float32 to torch.float16"),
        (_Repeats(), (1, 4), "repeats the value to a larger shape"),
        (_ChannelsOfTheBatch(), (4, 4), "for inputs of shape"),
        (_Indices(), (1, 4, 4), "takes the result number 1"),
        (_Ignores(), (4,), "does not depend on the input"),
    ],
)
def test_what_is_not_proven_is_refused(
    module: nn.Module, shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(UnsupportedLayer, match=message):
        sensitivity(module, shape)


def test_pairs_without_a_bound_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="p must be one of 0, 1, 2, inf, got p=3"):
        sensitivity(nn.Linear(2, 2), (2,), p=3)
    with pytest.raises(InvalidArgument, match="q must be one of 1, 2, got q=inf"):
        sensitivity(nn.Linear(2, 2), (2,), q=math.inf)
    with pytest.raises(InvalidArgument, match="from the 2-norm to the 1-norm"):
        dense_norm(torch.eye(2), p=2, q=1)
    with pytest.raises(InvalidArgument, match=r"value_range must be \(lowest, highest\)"):
        sensitivity(nn.Linear(2, 2), (2,), p=0, value_range=(1.0, 0.0))
