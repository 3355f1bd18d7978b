"""Fronts put together at random, and awkward ones on purpose, against attacks on their bounds."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Literal

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the usual name

from pixeldp import sensitivity
from pixeldp.graphs import capture

if TYPE_CHECKING:
    from collections.abc import Callable

Shape = tuple[int, ...]
Bounds = dict[tuple[float, int], float]
Tensor = torch.Tensor

PAIRS = tuple(itertools.product((1, 2, math.inf), (1, 2)))
MODES: tuple[Literal["reflect", "replicate", "circular"], ...] = (
    "reflect",
    "replicate",
    "circular",
)
SLACK = 1 + 1e-9  # what the attacks themselves round


class Applied(nn.Module):
    """A function as a module, with a parameter only to be captured in float64."""

    def __init__(self, function: Callable[[Tensor], Tensor], *parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.parts = nn.ModuleList(parts)
        self.unused = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Residual(nn.Module):
    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.branch(x)
        return result


class Branches(nn.Module):
    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat(
            [self.first(x).flatten(1), x[:, -1].flatten(1), self.second(x).flatten(1)], 1
        )


def bounds_of(
    front: nn.Module,
    shape: Shape,
    pairs: tuple[tuple[float, int], ...] = PAIRS,
    value_range: tuple[float, float] | None = None,
    *,
    pixels: bool = False,
) -> Bounds:
    """Every pair from one capture, which is nearly all of the time."""
    graph = capture(front, shape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pixeldp.sensitivities.capture", lambda *_, **__: graph)
        return {
            (p, q): sensitivity(front, shape, p=p, q=q, value_range=value_range, pixels=pixels)
            for p, q in pairs
        }


def jacobians(front: nn.Module, points: Tensor) -> Tensor:
    """Point, output, input."""
    points = points.clone().requires_grad_()
    outputs = front(points).flatten(1)
    rows = [
        torch.autograd.grad(outputs[:, k].sum(), points, retain_graph=True)[0].flatten(1)
        for k in range(outputs.shape[1])
    ]
    return torch.stack(rows, 1)


def climbed(matrices: Tensor, p: float, q: int) -> tuple[float, Tensor]:
    """A ratio ``‖Jv‖_q / ‖v‖_p`` that some v reaches by going uphill, and the worst v of each."""
    if p == 1:
        norms, places = matrices.norm(p=q, dim=1).max(1)
        return float(norms.max()), F.one_hot(places, matrices.shape[2]).double()
    vectors = torch.randn(len(matrices), matrices.shape[2], 8, dtype=torch.float64)
    for _ in range(8):
        moved = matrices @ vectors
        pulled = matrices.mT @ (moved.sign() if q == 1 else moved)
        vectors = (
            pulled.sign() if p == math.inf else pulled / (pulled.norm(dim=1, keepdim=True) + 1e-300)
        )
    sizes = vectors.norm(p=p, dim=1).clamp_min(1e-12)
    ratios = (matrices @ vectors).norm(p=q, dim=1) / sizes
    best = ratios.max(1)
    worst = vectors.gather(2, best.indices[:, None, None].expand(-1, vectors.shape[1], 1))
    return float(best.values.max()), worst[:, :, 0]


def distance_ratios(front: nn.Module, first: Tensor, second: Tensor, p: float, q: int) -> Tensor:
    moved, step = (front(first) - front(second)).flatten(1), (first - second).flatten(1)
    ratios: Tensor = moved.norm(p=q, dim=1) / step.norm(p=p, dim=1).clamp_min(1e-300)
    return ratios


def searched(front: nn.Module, first: Tensor, second: Tensor, p: float, q: int) -> Tensor:
    """The ratios after a few steps of both points uphill."""
    best = distance_ratios(front, first, second, p, q).detach()
    for _ in range(6):
        first, second = first.detach().requires_grad_(), second.detach().requires_grad_()
        ratios = distance_ratios(front, first, second, p, q)
        best = torch.maximum(best, ratios.detach())
        ups = torch.autograd.grad(ratios.clamp_min(1e-300).log().sum(), (first, second))
        size = (first - second).flatten(1).norm(dim=1).detach()
        moves = []
        for point, up in zip((first, second), ups, strict=True):
            length = up.flatten(1).norm(dim=1) + 1e-12
            moves.append(point + up * (0.2 * size / length).reshape(-1, *[1] * (up.dim() - 1)))
        first, second = moves
    return best


def attack(front: nn.Module, shape: Shape, bounds: Bounds, *, pairs: int = 400) -> Bounds:
    """Check the bounds on pairs near and far, random and searched; return what was reached."""
    first = torch.randn(pairs, *shape, dtype=torch.float64)
    first *= (
        torch.logspace(-1, 1, pairs, dtype=torch.float64).flip(0).reshape(-1, *[1] * len(shape))
    )
    scale = torch.logspace(-4, 1, pairs, dtype=torch.float64).reshape(-1, *[1] * len(shape))
    local = jacobians(front, first[:: pairs // 40])
    best = {}
    for (p, q), bound in bounds.items():
        reached, worst = climbed(local, p, q)
        start = first[:: pairs // 40]
        along = searched(front, start, start + 1e-2 * worst.reshape(start.shape), p, q)
        step = torch.randn_like(first).sign() if p == math.inf else torch.randn_like(first)
        with torch.no_grad():
            anywhere = distance_ratios(front, first, first + scale * step, p, q)
        best[p, q] = max(float(along.max()), float(anywhere.max()))
        assert best[p, q] <= bound * SLACK, (p, q)
        # Derivatives are less exact: that of hardsigmoid has its 1/6 in float32 throughout.
        assert reached <= bound * (1 + 1e-7), (p, q)
        best[p, q] = max(best[p, q], reached)
    return best


def image_piece(rng: np.random.Generator, shape: Shape) -> nn.Module:
    """One of the pieces that take images, of a size that the image allows."""
    channels, side = shape[0], min(shape[1:])
    size, step = int(rng.integers(1, min(4, side) + 1)), int(rng.integers(1, 3))
    out, pad = int(rng.integers(1, 4)), int(rng.integers(0, size // 2 + 1))
    same: nn.Module = nn.Conv2d(channels, channels, 3, padding=1)
    pieces: list[Callable[[], nn.Module]] = [
        lambda: nn.Conv2d(channels, out, size, stride=step, padding=pad),
        lambda: nn.Conv2d(channels, channels, 2, padding=1, dilation=2, groups=channels),
        lambda: nn.Conv2d(
            channels,
            out,
            size,
            stride=step,
            padding=min(1, size - 1),
            padding_mode=MODES[rng.integers(len(MODES))],
        ),
        lambda: nn.ConvTranspose2d(
            channels, out, size, stride=step, padding=min(pad, size - 1) // 2
        ),
        lambda: normalised(rng, channels),
        lambda: nn.AvgPool2d(size, step, pad, ceil_mode=True, count_include_pad=bool(pad % 2)),
        lambda: nn.MaxPool2d(size, step, pad, ceil_mode=bool(step % 2)),
        lambda: nn.AdaptiveAvgPool2d(int(rng.integers(1, 4))),
        lambda: nn.AdaptiveMaxPool2d(int(rng.integers(1, 4))),
        lambda: nn.ZeroPad2d((1, 0, 2, 1)),
        lambda: Residual(nn.Sequential(same, activation(rng))),
        lambda: Residual(same),
        lambda: Applied(lambda x: x.permute(0, 2, 3, 1)[:, :, 1:].permute(0, 3, 1, 2)),
        lambda: Applied(lambda x: torch.cat([x, same(x).relu(), x[:, :1]], 1), same),
        lambda: Applied(lambda x: (x - 0.5) / 0.25 * torch.tensor(-0.3)),
    ]
    return pieces[rng.integers(len(pieces))]()


def vector_piece(rng: np.random.Generator, shape: Shape) -> nn.Module:
    size, out = shape[-1], int(rng.integers(1, 7))
    pieces: list[Callable[[], nn.Module]] = [
        lambda: nn.Linear(size, out),
        lambda: nn.Linear(size, out, bias=False),
        lambda: Residual(nn.Sequential(nn.Linear(size, size), activation(rng))),
        lambda: Applied(lambda x: torch.cat([-x, 2 * x[:, : size // 2 + 1]], 1)),
        lambda: Applied(lambda x: (x - torch.ones(size)) / -torch.linspace(0.5, 2, size)),
    ]
    return pieces[rng.integers(len(pieces))]()


def activation(rng: np.random.Generator) -> nn.Module:
    kinds: list[Callable[[], nn.Module]] = [
        *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU),
        *(nn.Mish, nn.Softplus, nn.Softsign, nn.Tanh, nn.Sigmoid, nn.LogSigmoid, nn.Hardtanh),
        *(nn.Hardsigmoid, nn.Hardswish, lambda: Applied(torch.sin), lambda: Applied(torch.abs)),
        *(lambda: Applied(lambda x: x.clamp(-1, 0.5)), lambda: nn.LeakyReLU(-1.7)),
    ]
    return kinds[rng.integers(len(kinds))]()


def normalised(rng: np.random.Generator, channels: int) -> nn.Module:
    layer = nn.BatchNorm2d(channels)
    layer.weight.data = torch.as_tensor(rng.normal(size=channels))
    layer.running_mean = torch.as_tensor(rng.normal(size=channels))
    layer.running_var = torch.as_tensor(rng.uniform(0.1, 4, channels))
    return layer


def random_front(seed: int) -> tuple[nn.Module, Shape]:
    """Two to five pieces and what they take, each the last one's output."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    shape: Shape = tuple(int(n) for n in rng.integers((1, 4, 4), (3, 8, 8)))
    start, parts = shape, []
    for _ in range(rng.integers(2, 6)):
        kind = image_piece if len(shape) == 3 else vector_piece
        choice = rng.random()
        if choice < 0.2:
            part = activation(rng)
        elif choice < 0.3 and len(shape) == 3:
            part = nn.Flatten()
        elif choice < 0.4 and len(shape) == 3:
            part = Branches(nn.MaxPool2d(2, 1), nn.Conv2d(shape[0], 2, 2))
        else:
            part = kind(rng, shape)
        try:
            shape = tuple(part.double()(torch.zeros(1, *shape, dtype=torch.float64)).shape[1:])
        except RuntimeError:  # the image has become too small for this one
            continue
        parts.append(part)
        if math.prod(shape) > 400 or (len(shape) == 3 and min(shape[1:]) < 2):
            break
    return nn.Sequential(*parts).double().eval(), start


@pytest.mark.parametrize("seed", range(40))
def test_no_attack_exceeds_the_bound_of_a_random_front(seed: int) -> None:
    front, shape = random_front(seed)
    attack(front, shape, bounds_of(front, shape))


@pytest.mark.parametrize("pixels", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_changes_of_the_input_move_a_front_at_most_by_their_number(
    seed: int, *, pixels: bool
) -> None:
    front, shape = random_front(seed)
    low, high = -0.5, 1.5
    places, rows = math.prod(shape[1:]) if pixels else math.prod(shape), 400
    counts = torch.randint(1, min(6, places) + 1, (rows,))
    changed = torch.rand(rows, places).argsort(1).argsort(1) < counts[:, None]
    if pixels:
        changed = changed[:, None].expand(-1, shape[0], -1)
    first = low + (high - low) * torch.rand(rows, *shape, dtype=torch.float64)
    ends = low + (high - low) * torch.randint(2, first.shape).double()
    mask = changed.reshape(first.shape)
    # What changes goes from one end of the range to the other, or from anywhere to an end.
    first[::2] = torch.where(mask, low + high - ends, first)[::2]
    second = torch.where(mask, ends, first)
    with torch.no_grad():
        moved = (front(first) - front(second)).flatten(1)
    bounds = bounds_of(front, shape, ((0, 1), (0, 2)), (low, high), pixels=pixels)
    for (_, q), bound in bounds.items():
        assert (moved.norm(p=q, dim=1) <= counts.double() * bound * SLACK).all()


class Words(nn.Module):
    """Integers in, and a front of the usual kind on their vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 3)
        self.convolution = nn.Conv1d(3, 4, 2)
        self.out = nn.Linear(4 * 4, 5)

    def forward(self, x: Tensor) -> Tensor:
        features = self.convolution(self.table(x.long()).transpose(1, 2)).tanh()
        result: Tensor = self.out(features.flatten(1))
        return result


def test_exchanged_words_move_a_front_at_most_by_their_number() -> None:
    torch.manual_seed(0)
    front = Words().double()
    first, second = torch.randint(7, (2, 3000, 5))
    changed = (first != second).sum(1)
    with torch.no_grad():
        moved = front(first) - front(second)
    for (_, q), bound in bounds_of(front, (5,), ((0, 1), (0, 2)), (0, 6)).items():
        assert (moved.norm(p=q, dim=1) <= changed.double() * bound * SLACK).all()


CHAINS: dict[str, tuple[list[nn.Module], Shape]] = {
    "convolution, batch norm, pool, convolution": (
        [nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.AvgPool2d(2), nn.Conv2d(3, 2, 2)],
        (2, 8, 8),
    ),
    "dense layers": ([nn.Flatten(), nn.Linear(12, 7), nn.Linear(7, 9), nn.Linear(9, 2)], (1, 3, 4)),
    "normalised input": (
        [nn.BatchNorm2d(2), nn.Conv2d(2, 2, 3, stride=2), nn.Flatten(), nn.Linear(18, 4)],
        (2, 7, 7),
    ),
    "down and up": (
        [nn.Conv2d(1, 3, 3, stride=2), nn.ConvTranspose2d(3, 1, 3, stride=2)],
        (1, 9, 9),
    ),
    "one axis": (
        [nn.Conv1d(2, 2, 3), nn.BatchNorm1d(2), nn.AvgPool1d(3, 2), nn.Flatten()],
        (2, 14),
    ),
    "differences": (
        [nn.Conv2d(1, 1, 2), nn.AvgPool2d(3, 1, padding=1), nn.ZeroPad2d(1)],
        (1, 6, 6),
    ),
}


def chained(parts: list[Bounds]) -> Bounds:
    """The best product of the parts' bounds over the norms in between."""
    total = parts[0]
    for part in parts[1:]:
        total = {(p, q): min(total[p, r] * part[r, q] for r in (1, 2)) for p, q in PAIRS}
    return total


def norm_of(matrix: Tensor, p: float, q: int) -> float:
    if (p, q) == (2, 2):
        return float(torch.linalg.matrix_norm(matrix, 2))
    return climbed(matrix[None], p, q)[0]


@pytest.mark.parametrize("name", CHAINS)
def test_a_folded_chain_lies_between_its_norm_and_the_product_of_its_parts(name: str) -> None:
    torch.manual_seed(5)
    parts, shape = CHAINS[name]
    for part in parts:
        part.double().eval()
        for parameter in part.parameters():
            nn.init.normal_(parameter)
        if isinstance(part, (nn.BatchNorm1d, nn.BatchNorm2d)):
            part.running_var = torch.rand_like(part.weight) + 0.1
    front = nn.Sequential(*parts)
    matrix = jacobians(front, torch.zeros(1, *shape, dtype=torch.float64))[0]
    products, place = [], shape
    for part in parts:
        products.append(bounds_of(part, place))
        place = tuple(part(torch.zeros(1, *place, dtype=torch.float64)).shape[1:])
    product, bounds = chained(products), bounds_of(front, shape)
    for (p, q), bound in bounds.items():
        assert norm_of(matrix, p, q) / SLACK <= bound <= product[p, q] * SLACK, (p, q)


class Normalize(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x - 0.45) / torch.tensor([0.1, 0.3, 0.9]).reshape(3, 1, 1)


class Turned(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x[:, 2:], x[:, 1:2], x[:, :1]], 1)


def scaled(layer: nn.Conv2d, factors: Tensor, *, outputs: bool) -> nn.Conv2d:
    single = nn.Conv2d(layer.in_channels, layer.out_channels, 3, padding=1)
    shape = (-1, 1, 1, 1) if outputs else (1, -1, 1, 1)
    single.weight.data = layer.weight.data * factors.reshape(shape)
    return single


def folded_fronts() -> dict[str, tuple[list[nn.Module], nn.Module]]:
    """Linear chains whose explicit matrix is too large, and the one layer that each of them is."""
    torch.manual_seed(0)
    layer, other, norm = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 2, 2), nn.BatchNorm2d(4)
    norm.running_var = torch.tensor([0.1, 0.5, 2.0, 8.0])
    factors = (norm.running_var + norm.eps).rsqrt()
    # A convolution and one of 2 × 2 after it reach 4 × 4; a pool of 2 × 2 reaches as far.
    wide, pooled = nn.Conv2d(3, 2, 4, padding=1), nn.Conv2d(3, 4, 4, padding=1, stride=2)
    wide.weight.data = composed(layer.weight.data, other.weight.data)
    pooled.weight.data = composed(
        layer.weight.data, torch.eye(4)[:, :, None, None].expand(-1, -1, 2, 2) / 4
    )
    first, second, both = nn.Linear(1728, 9), nn.Linear(9, 1200), nn.Linear(1728, 1200)
    both.weight.data = second.weight.data @ first.weight.data
    return {
        "normalisation before": (
            [Normalize(), layer],
            scaled(layer, 1 / torch.tensor([0.1, 0.3, 0.9]), outputs=False),
        ),
        "normalisation behind": ([layer, norm], scaled(layer, factors, outputs=True)),
        "two convolutions": ([layer, other], wide),
        "a pool": ([layer, nn.AvgPool2d(2)], pooled),
        "two dense layers": ([nn.Flatten(), first, second], nn.Sequential(nn.Flatten(), both)),
        "turned channels": ([Turned(), layer], turned(layer)),
        "flattened in the end": (
            [Normalize(), layer, nn.Flatten()],
            scaled(layer, 1 / torch.tensor([0.1, 0.3, 0.9]), outputs=False),
        ),
    }


def composed(first: Tensor, second: Tensor) -> Tensor:
    """The kernel of two convolutions, tap by tap."""
    taps = first.shape[2] + second.shape[2] - 1
    kernel = torch.zeros(len(second), first.shape[1], taps, taps)
    for u, v in itertools.product(range(second.shape[2]), repeat=2):
        part = torch.einsum("om,mihw->oihw", second[:, :, u, v], first)
        kernel[:, :, u : u + first.shape[2], v : v + first.shape[3]] += part
    return kernel


def turned(layer: nn.Conv2d) -> nn.Conv2d:
    single = nn.Conv2d(3, 4, 3, padding=1)
    single.weight.data = layer.weight.data.flip(1)
    return single


@pytest.mark.parametrize("name", folded_fronts())
def test_a_chain_too_large_for_a_matrix_is_bounded_as_the_one_layer_that_it_is(name: str) -> None:
    parts, single = folded_fronts()[name]
    front, shape = nn.Sequential(*parts).eval(), (3, 24, 24)
    bounds, expected = bounds_of(front, shape), bounds_of(single, shape)
    for pair in ((1, 1), (1, 2), (2, 2)):
        assert bounds[pair] == pytest.approx(expected[pair], rel=1e-5), pair
