"""Bounds of single layers against their explicit matrices and, for the rest, their true slopes."""

from __future__ import annotations

import contextlib
import itertools
import math
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pixeldp import sensitivity
from pixeldp.errors import UnsupportedLayer
from pixeldp.graphs import capture

Matrix = npt.NDArray[np.float64]
Shape = tuple[int, ...]
Pair = tuple[float, int]
Bounds = dict[Pair, float]

PAIRS: tuple[Pair, ...] = tuple(itertools.product((1, 2, math.inf), (1, 2)))
ENUMERABLE = 12
SLACK = 1 - 1e-12  # the oracles round too


def bounds_of(module: nn.Module, shape: Shape, pairs: tuple[Pair, ...] = PAIRS) -> Bounds:
    """Every pair from one capture, which is nearly all of the time."""
    graph = capture(module, shape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pixeldp.sensitivities.capture", lambda *_, **__: graph)
        return {(p, q): sensitivity(module, shape, p=p, q=q) for p, q in pairs}


def matrix_of(module: nn.Module, shape: Shape) -> Matrix:
    """The explicit matrix of an affine module, column by column."""
    size = math.prod(shape)
    with torch.no_grad():
        basis = torch.eye(size, dtype=torch.float64).reshape(size, *shape)
        columns = module(basis) - module(torch.zeros_like(basis[:1]))
    matrix: Matrix = columns.reshape(size, -1).T.numpy()
    return matrix


def signs(size: int) -> Matrix:
    """All vectors of ±1, as columns."""
    bits = np.arange(2**size)[None] >> np.arange(size)[:, None] & 1
    return np.asarray(2.0 * bits - 1)


def reached(matrix: Matrix, p: float, q: int) -> float:
    """``‖W‖_{p,q}`` where it can be had, and otherwise a ratio that some vector does reach."""
    outputs, inputs = matrix.shape
    if p == 1:
        return float(np.linalg.norm(matrix, ord=q, axis=0).max())
    if (p, q) == (2, 2):
        return float(np.linalg.norm(matrix, 2))
    if p == math.inf and inputs <= ENUMERABLE:
        return float(np.linalg.norm(matrix @ signs(inputs), ord=q, axis=0).max())
    if q == 1 and outputs <= ENUMERABLE:  # ‖W‖_{p,1} = max over signs s of the dual norm of Wᵀs
        dual = 2 if p == 2 else 1
        return float(np.linalg.norm(matrix.T @ signs(outputs), ord=dual, axis=0).max())
    return climbed(matrix, p, q)


def climbed(matrix: Matrix, p: float, q: int) -> float:
    """Alternate between the worst output functional and the worst input; each step goes up."""
    vectors = np.random.default_rng(0).standard_normal((matrix.shape[1], 24))
    for _ in range(12):
        moved = matrix @ vectors
        pulled = matrix.T @ (np.sign(moved) if q == 1 else moved)
        if not pulled.any():
            return 0.0
        vectors = np.sign(pulled) if p == math.inf else pulled / np.abs(pulled).max()
    sizes = np.maximum(np.linalg.norm(vectors, ord=p, axis=0), 1e-300)
    return float((np.linalg.norm(matrix @ vectors, ord=q, axis=0) / sizes).max())


def looseness(module: nn.Module, shape: Shape, pairs: tuple[Pair, ...] = PAIRS) -> Bounds:
    """Check that no pair of norms is bounded too low, and return how much too high each is."""
    module = module.double().eval()
    matrix = matrix_of(module, shape)
    ratios = {}
    for (p, q), bound in bounds_of(module, shape, pairs).items():
        known = reached(matrix, p, q)
        assert bound >= known * SLACK, (p, q, bound, known)
        ratios[p, q] = bound / known if known else 1.0
    return ratios


def seeded(module: nn.Module, seed: int) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return module


def extents(layer: nn.Conv2d) -> list[int]:
    return [(k - 1) * d + 1 for k, d in zip(layer.kernel_size, layer.dilation, strict=True)]


@st.composite
def geometries(draw: st.DrawFn, axes: int) -> dict[str, tuple[int, ...]]:
    """Kernel, stride, padding and dilation along each axis, of an extent that is not too large."""
    kernel = tuple(draw(st.integers(1, 7)) for _ in range(axes))
    most = 8 if axes == 2 else 18
    return {
        "kernel_size": kernel,
        "stride": tuple(draw(st.integers(1, 4)) for _ in range(axes)),
        "padding": tuple(draw(st.integers(0, 3)) for _ in range(axes)),
        "dilation": tuple(draw(st.integers(1, min(3, most // max(k - 1, 1)))) for k in kernel),
    }


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[nn.Module, Shape]:
    axes = draw(st.integers(1, 2))
    kind: Any = (nn.Conv1d, nn.Conv2d)[axes - 1]
    groups = draw(st.integers(1, 2))
    inputs, outputs = (groups * draw(st.integers(1, 4 // groups)) for _ in range(2))
    geometry: dict[str, Any] = draw(geometries(axes))
    if draw(st.booleans()) and set(geometry["stride"]) == {1}:
        geometry["padding"] = "same"
    mode = draw(st.sampled_from(["zeros", "zeros", "zeros", "reflect", "replicate", "circular"]))
    layer = kind(inputs, outputs, groups=groups, padding_mode=mode, **geometry)
    pads = [0] * axes if geometry["padding"] == "same" else geometry["padding"]
    sides = [
        draw(st.integers(0, 5)) + max(1 if mode == "zeros" else 10, reach - 2 * pad)
        for reach, pad in zip(extents(layer), pads, strict=True)
    ]
    return seeded(layer, draw(st.integers(0, 999))), (inputs, *sides)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@settings(max_examples=32)
@given(case=convolutions())
def test_no_convolution_exceeds_its_bound(case: tuple[nn.Module, Shape]) -> None:
    layer, shape = case
    try:
        looseness(layer, shape)
    except UnsupportedLayer:
        assert layer.padding_mode != "zeros"


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
def test_the_copies_of_a_border_count(mode: Literal["zeros", "reflect", "replicate"]) -> None:
    """Sums over windows wider than the image: nothing but the copies makes them large."""
    layer = nn.Conv2d(1, 1, (7, 5), padding=(3, 2), padding_mode=mode)
    nn.init.ones_(layer.weight)
    with contextlib.suppress(UnsupportedLayer):
        looseness(layer, (1, 4, 3))


WIDE: dict[str, Any] = {
    "plain": nn.Conv2d(1, 4, 3, padding=1),
    "even kernel": nn.Conv2d(3, 2, 4, padding=(0, 3)),
    "same": nn.Conv2d(2, 2, (2, 4), padding="same"),
    "stride": nn.Conv2d(3, 4, 5, stride=2, padding=2),
    "stride beyond the kernel": nn.Conv2d(2, 3, (1, 3), stride=(3, 4)),
    "stride and dilation": nn.Conv2d(2, 2, 3, stride=2, dilation=2, padding=1),
    "stride against dilation": nn.Conv2d(2, 2, 3, stride=(2, 3), dilation=(3, 2)),
    "groups": nn.Conv2d(4, 4, 3, stride=(1, 2), groups=2),
    "depthwise": nn.Conv2d(3, 6, 3, groups=3),
    "one axis": nn.Conv1d(2, 3, 7, stride=3, padding=3, dilation=2),
    "one axis, dilated by the stride": nn.Conv1d(1, 4, 5, stride=3, dilation=3),
    "transposed": nn.ConvTranspose2d(2, 3, 3),
    "transposed with stride": nn.ConvTranspose2d(3, 2, 4, stride=2, padding=1),
    "transposed, uneven": nn.ConvTranspose2d(2, 2, (3, 2), stride=(2, 3), output_padding=(1, 2)),
    "transposed, dilated": nn.ConvTranspose2d(2, 2, 3, stride=2, dilation=2, padding=2),
    "transposed in groups": nn.ConvTranspose2d(4, 2, 3, groups=2),
    "transposed along one axis": nn.ConvTranspose1d(2, 3, 5, stride=3, padding=1, dilation=2),
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("name", WIDE)
def test_wide_zero_padded_convolutions_are_bounded_closely(name: str) -> None:
    layer = WIDE[name]
    seeded(layer, 7)
    shape = (layer.in_channels, *(4 * reach for reach in extents(layer)))
    ratios = looseness(layer, shape)
    assert ratios[1, 1] == pytest.approx(1, rel=1e-6)
    assert ratios[1, 2] == pytest.approx(1, rel=1e-6)
    assert ratios[2, 2] <= 1.10


@st.composite
def wide(draw: st.DrawFn) -> tuple[nn.Module, Shape]:
    """A zero-padded convolution of an image that is at least four dilated kernels wide."""
    axes = draw(st.sampled_from([1, 1, 2]))
    kind: Any = (nn.Conv1d, nn.Conv2d)[axes - 1]
    groups = draw(st.integers(1, 2))
    most = 4 if axes == 1 else 2
    inputs, outputs = (groups * draw(st.integers(1, most // groups)) for _ in range(2))
    geometry: dict[str, Any] = draw(geometries(axes))
    if axes == 2:  # explicit matrices of images grow with the fourth power
        geometry["kernel_size"] = tuple(draw(st.integers(1, 4)) for _ in range(axes))
        geometry["dilation"] = tuple(
            draw(st.integers(1, 2 if k < 3 else 1)) for k in geometry["kernel_size"]
        )
    layer = kind(inputs, outputs, groups=groups, **geometry)
    sides = [4 * reach + draw(st.integers(0, 3)) for reach in extents(layer)]
    return seeded(layer, draw(st.integers(0, 999))), (inputs, *sides)


@settings(max_examples=40)
@given(case=wide())
def test_bounds_of_wide_images_are_exact_or_close(case: tuple[nn.Module, Shape]) -> None:
    ratios = looseness(*case, pairs=((1, 1), (1, 2), (2, 2)))
    assert ratios[1, 1] == pytest.approx(1, rel=1e-6)
    assert ratios[1, 2] == pytest.approx(1, rel=1e-6)
    assert ratios[2, 2] <= 1.10


@pytest.mark.parametrize("mode", ["zeros", "reflect"])
def test_changed_pixels_move_a_convolution_by_their_worst_pattern(
    mode: Literal["zeros", "reflect"],
) -> None:
    layer = nn.Conv2d(3, 4, 3, stride=(1, 2), padding=1, padding_mode=mode)
    matrix = matrix_of(seeded(layer, 3), (3, 6, 5)).reshape(-1, 3, 30)
    for q in (1, 2):
        bound = sensitivity(layer, (3, 6, 5), p=0, q=q, value_range=(-1, 2), pixels=True)
        # All channels of a place at once, each by the whole range, up or down.
        worst = 3 * np.linalg.norm(np.einsum("ocp,cs->ops", matrix, signs(3)), ord=q, axis=0).max()
        assert worst * SLACK <= bound <= worst * (1 + 1e-6)


@st.composite
def transposed(draw: st.DrawFn) -> tuple[nn.Module, Shape]:
    axes = draw(st.integers(1, 2))
    kind: Any = (nn.ConvTranspose1d, nn.ConvTranspose2d)[axes - 1]
    groups = draw(st.integers(1, 2))
    inputs, outputs = (groups * draw(st.integers(1, 4 // groups)) for _ in range(2))
    geometry: dict[str, Any] = draw(geometries(axes))
    steps = zip(geometry["stride"], geometry["dilation"], strict=True)
    extra = tuple(draw(st.integers(0, max(pair) - 1)) for pair in steps)
    layer = kind(inputs, outputs, groups=groups, output_padding=extra, **geometry)
    sides = [
        draw(st.integers(1, 4)) + max(0, 2 * pad + 1 - reach)
        for pad, reach in zip(geometry["padding"], extents(layer), strict=True)
    ]
    return seeded(layer, draw(st.integers(0, 999))), (inputs, *sides)


@settings(max_examples=22)
@given(case=transposed())
def test_no_transposed_convolution_exceeds_its_bound(case: tuple[nn.Module, Shape]) -> None:
    looseness(*case)


@settings(max_examples=8)
@given(
    seed=st.integers(0, 999),
    outputs=st.integers(1, 12),
    inputs=st.integers(1, 12),
    vectors=st.integers(0, 3),
)
def test_dense_layers(seed: int, outputs: int, inputs: int, vectors: int) -> None:
    layer = nn.Linear(inputs, outputs)
    seeded(layer, seed)
    ratios = looseness(layer, (vectors, inputs) if vectors else (inputs,))
    for pair in ((1, 1), (1, 2), (2, 2)):
        assert ratios[pair] == pytest.approx(1, rel=1e-6)
    if vectors == 0:  # the three classical bounds, and their like for the others
        weight = layer.weight.detach().numpy()
        spectral, row = np.linalg.norm(weight, 2), np.abs(weight).sum(1).max()
        most = min(
            math.sqrt(inputs) * spectral,
            math.sqrt(outputs) * row,
            math.sqrt(np.abs(weight.T @ weight).sum()),
        )
        bounds = bounds_of(layer, (inputs,))
        assert bounds[math.inf, 2] <= most * (1 + 1e-6)
        most = min(math.sqrt(inputs * outputs) * spectral, np.abs(weight).sum())
        assert bounds[math.inf, 1] <= most * (1 + 1e-6)
        assert bounds[2, 1] <= math.sqrt(outputs) * spectral * (1 + 1e-6)


@st.composite
def pools(draw: st.DrawFn) -> tuple[dict[str, Any], int, Shape]:
    axes = draw(st.integers(1, 2))
    kernel = tuple(draw(st.integers(1, 4)) for _ in range(axes))
    options: dict[str, Any] = {
        "kernel_size": kernel,
        "stride": tuple(draw(st.integers(1, 4)) for _ in range(axes)),
        "padding": tuple(draw(st.integers(0, k // 2)) for k in kernel),
        "ceil_mode": draw(st.booleans()),
    }
    sides = [k + draw(st.integers(0, 7)) for k in kernel]
    return options, axes, (draw(st.integers(1, 2)), *sides)


@settings(max_examples=22)
@given(case=pools(), include=st.booleans(), divisor=st.sampled_from([None, None, 2]))
def test_average_pools(
    case: tuple[dict[str, Any], int, Shape], *, include: bool, divisor: int | None
) -> None:
    options, axes, shape = case
    options = {**options, "count_include_pad": include}
    if axes == 1:
        looseness(nn.AvgPool1d(**options), shape)
    else:
        looseness(nn.AvgPool2d(**options, divisor_override=divisor), shape)


def most_seen(pool: nn.Module, shape: Shape) -> int:
    """How many windows of a maximum see one place: raise a single pixel of a flat image."""
    flat = torch.zeros(math.prod(shape), *shape, dtype=torch.float64)
    raised = flat + torch.eye(len(flat), dtype=torch.float64).reshape(flat.shape)
    return int((pool(raised) - pool(flat)).flatten(1).sum(1).max())


def check_maximum(pool: nn.Module, shape: Shape) -> Bounds:
    seen, outputs = most_seen(pool, shape), pool(torch.zeros(1, *shape)).numel()
    bounds = bounds_of(pool, shape)
    first = torch.randn(300, *shape, dtype=torch.float64)
    second = first + torch.randn_like(first) * torch.logspace(-3, 1, 300).reshape(
        -1, *[1] * len(shape)
    )
    moved, step = (pool(first) - pool(second)).flatten(1), (first - second).flatten(1)
    for (p, q), bound in bounds.items():
        ratios = moved.norm(p=q, dim=1) / step.norm(p=p, dim=1)
        assert float(ratios.max()) <= bound
        # One pixel above all others, and all pixels raised together.
        known = max(seen ** (1 / q), outputs ** (1 / q) / math.prod(shape) ** (1 / p))
        assert bound >= known * SLACK
    assert bounds[math.inf, 2] >= math.sqrt(outputs) * SLACK
    return {pair: bounds[pair] / seen ** (1 / pair[1]) for pair in bounds}


@settings(max_examples=18)
@given(case=pools(), dilation=st.integers(1, 3))
def test_maximum_pools(case: tuple[dict[str, Any], int, Shape], dilation: int) -> None:
    options, axes, shape = case
    shape = (shape[0], *(side * dilation for side in shape[1:]))
    kind: Any = (nn.MaxPool1d, nn.MaxPool2d)[axes - 1]
    ratios = check_maximum(kind(**options, dilation=dilation), shape)
    if min(shape[1:]) >= 4 * dilation * max(options["kernel_size"]):
        for pair in ((1, 1), (1, 2), (2, 2)):
            assert ratios[pair] == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize(("side", "target"), [(4, 1), (4, 3), (4, 6), (7, 2), (7, 4)])
def test_adaptive_pools(side: int, target: int) -> None:
    looseness(nn.AdaptiveAvgPool2d((target, 2)), (2, side, 5))
    looseness(nn.AdaptiveAvgPool1d(target), (2, side))
    check_maximum(nn.AdaptiveMaxPool2d((target, 2)), (2, side, 5))
    check_maximum(nn.AdaptiveMaxPool1d(target), (2, side))


@pytest.mark.parametrize(
    ("pool", "shape"),
    [
        (nn.AvgPool2d(3, 1), (5, 6)),  # takes the batch for channels
        (nn.AvgPool1d(3, 1), (6,)),
        (nn.AdaptiveAvgPool2d(3), (5, 4)),
    ],
)
def test_pools_of_inputs_without_channels_are_bounded_or_refused(
    pool: nn.Module, shape: Shape
) -> None:
    with contextlib.suppress(UnsupportedLayer):
        looseness(pool, shape)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(3,), (3, 4), (3, 4, 2)])
def test_batch_norms_of_evaluation(shape: Shape, *, affine: bool) -> None:
    kind: Any = nn.BatchNorm2d if len(shape) == 3 else nn.BatchNorm1d
    layer = kind(3, affine=affine, eps=0.1)
    layer.unused = nn.Parameter(torch.zeros(()))  # to be captured in float64 without any other
    seeded(layer, 4)
    layer.running_mean = torch.tensor([1.0, -2.0, 0.5])
    layer.running_var = torch.tensor([0.04, 4.0, 1e-9])
    ratios = looseness(layer, shape)
    for pair in ((1, 1), (1, 2), (2, 2)):
        assert ratios[pair] == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.ZeroPad2d((1, 2, 0, 3)), (2, 3, 4)),
        (nn.ConstantPad2d(1, 5.0), (1, 3, 4)),
        (nn.Flatten(), (2, 2, 3)),
        (nn.Unflatten(1, (2, 6)), (12,)),
        (nn.Identity(), (4,)),
        (nn.Dropout(0.0), (4,)),
    ],
)
def test_what_only_moves_coordinates_is_exact(module: nn.Module, shape: Shape) -> None:
    ratios = looseness(module, shape)
    assert max(ratios.values()) <= 1 + 1e-6


@pytest.mark.parametrize("words", [1, 3])
def test_embeddings_by_the_worst_exchange_of_a_category(words: int) -> None:
    layer = nn.Embedding(5, 3)
    seeded(layer, 2)
    rows = layer.weight.detach()
    for q in (1, 2):
        worst = max(float((a - b).norm(p=q)) for a, b in itertools.combinations(rows, 2))
        bound = sensitivity(layer, (words,), p=0, q=q, value_range=(0, 4))
        assert worst * SLACK <= bound <= worst * (1 + 1e-6)
