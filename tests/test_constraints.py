from __future__ import annotations

import copy
import io
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import nn

from pixeldp import Gaussian, PixelDP, sensitivity
from pixeldp.constraints import Parseval, hold_sensitivity
from pixeldp.constraints.layers import convolution_of
from pixeldp.errors import InvalidArgument, TrainingDiverged, UnknownLayer, UnsupportedLayer
from pixeldp.sensitivities.geometry import Convolution
from pixeldp.sensitivities.operators import PAIRS

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

# An even kernel is padded by one more behind than before, which torch remarks on.
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")

SHAPE = (2, 7, 7)
INF = math.inf

# Every way with the pairs of norms that it holds.
WAYS = [
    *(("norm", p, q) for p, q in PAIRS),
    ("columns", 1, 1),
    ("columns", 1, 2),
    ("rows", INF, INF),
]

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "conv": lambda: nn.Conv2d(2, 4, 3),
    "strided": lambda: nn.Conv2d(2, 3, 3, padding=1, stride=(2, 3)),
    "dilated": lambda: nn.Conv2d(2, 3, 3, padding="same", dilation=2),
    "both": lambda: nn.Conv2d(2, 3, (3, 2), padding=(2, 1), stride=2, dilation=(2, 1)),
    "groups": lambda: nn.Conv2d(2, 4, 3, padding="valid", groups=2, stride=2),
    "conv1d": lambda: nn.Conv1d(2, 3, 3, padding=1, stride=2),
    "conv1d same": lambda: nn.Conv1d(2, 4, 4, padding="same", groups=2, bias=False),
    "dense": lambda: nn.Linear(98, 5),
}


class Row(nn.Module):
    """An image as channels of one dimension."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(2)


def front_of(name: str) -> nn.Sequential:
    """A layer of that name, as '1', after what brings an image to its shape."""
    torch.manual_seed(0)
    layer = LAYERS[name]()
    if isinstance(layer, nn.Linear):
        return nn.Sequential(nn.Flatten(), layer)
    return nn.Sequential(Row() if isinstance(layer, nn.Conv1d) else nn.Identity(), layer)


def network_of(name: str) -> nn.Sequential:
    """The same with a back."""
    network = nn.Sequential(*front_of(name), nn.ReLU(), nn.Flatten(), nn.LazyLinear(4))
    network(torch.zeros(1, *SHAPE))
    return network


def weight_of(network: nn.Module, name: str = "1") -> torch.Tensor:
    weight = network.get_submodule(name).weight
    assert isinstance(weight, torch.Tensor)
    return weight.detach()


def held_weight(network: nn.Module) -> nn.Parameter:
    """What the optimiser moves."""
    return network.get_parameter("1.parametrizations.weight.original")


def matrix_of(name: str, weight: torch.Tensor) -> Array:
    """The explicit matrix, in double precision, of the layer of that name with this weight."""
    front = front_of(name).double()
    layer = front.get_submodule("1")
    layer.weight = nn.Parameter(weight.double())
    layer.register_parameter("bias", None)
    size = math.prod(SHAPE)
    with torch.no_grad():
        matrix: Array = front(torch.eye(size).double().reshape(size, *SHAPE)).flatten(1).T.numpy()
    return matrix


def norms_of(matrix: Array, p: float, q: float) -> Array:
    """All whose largest is the norm; for (∞, 1) and (∞, 2), some that are not larger."""
    if (p, q) == (2, 2):
        return np.array(np.linalg.svd(matrix, compute_uv=False))
    if (p, q) == (INF, INF):
        return np.array(np.linalg.norm(matrix, ord=1, axis=1))
    if p == INF:
        signs = np.random.default_rng(0).choice([-1.0, 1.0], (matrix.shape[1], 300))
        return np.array(np.linalg.norm(matrix @ signs, ord=q, axis=0))
    return np.array(np.linalg.norm(matrix, ord=q, axis=0))


def train(network: nn.Module) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    for _ in range(5):
        loss = network(torch.rand(8, *SHAPE)).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize(("way", "p", "q"), WAYS)
@pytest.mark.parametrize("name", LAYERS)
def test_training_cannot_move_a_held_sensitivity(name: str, way: str, p: float, q: float) -> None:
    network = network_of(name)
    hold_sensitivity(network, "1", SHAPE, p=p, q=q, bound=0.5, way=way)
    before = weight_of(network).clone()
    train(network)
    assert not torch.allclose(before, weight_of(network))
    held = norms_of(matrix_of(name, weight_of(network)), p, q).max()
    assert held <= 0.5
    if name in ("strided", "conv1d") and q != INF:  # what no noise needs is not measured
        assert held <= sensitivity(network[:2], SHAPE, p=p, q=q) <= 0.5
    if q in (p, INF) or p == 1:
        # The bound on a torus is larger than the norm where the image is hardly larger than the
        # kernel; the others are exact.
        assert held > 0.5 * (0.7 if p == 2 else 1 - 1e-5)


@pytest.mark.parametrize("q", [1, 2])
@pytest.mark.parametrize("name", LAYERS)
def test_all_columns_have_the_same_norm(name: str, q: int) -> None:
    """Those of the explicit matrix, away from the border, where no tap falls away."""
    network = network_of(name)
    hold_sensitivity(network, "1", SHAPE, p=1, q=q, bound=2.0, way="columns")
    train(network)
    norms = norms_of(matrix_of(name, weight_of(network)), 1, q)
    assert norms.max() <= 2.0
    if name == "dense":
        assert norms == pytest.approx(2.0, rel=1e-5)
        return
    layer = network.get_submodule("1")
    assert isinstance(layer, nn.Conv1d | nn.Conv2d)
    weight = weight_of(network).double()
    weight = weight.reshape(layer.groups, -1, *weight.shape[1:])
    if weight.dim() == 4:
        weight = weight.unsqueeze(3)
    stride, dilation = ((1, *map(int, pair))[-2:] for pair in (layer.stride, layer.dilation))
    columns: dict[tuple[int, ...], float] = {}
    for tap_h, tap_w in np.ndindex(*weight.shape[3:]):
        phase = (tap_h * dilation[0] % stride[0], tap_w * dilation[1] % stride[1])
        powers = (weight[..., tap_h, tap_w].abs() ** q).sum(dim=1)
        for (group, channel), power in np.ndenumerate(powers.numpy()):
            key = (group, channel, *phase)
            columns[key] = columns.get(key, 0.0) + float(power)
    assert [value ** (1 / q) for value in columns.values()] == pytest.approx(
        [2.0] * len(columns), rel=1e-5
    )


@pytest.mark.parametrize("name", LAYERS)
def test_all_rows_have_the_same_norm(name: str) -> None:
    network = network_of(name)
    hold_sensitivity(network, "1", SHAPE, p=INF, q=INF, way="rows")
    train(network)
    assert weight_of(network).flatten(1).abs().sum(dim=1).tolist() == pytest.approx(
        [1.0] * len(weight_of(network)), rel=1e-5
    )


@pytest.mark.parametrize(("way", "p", "q"), WAYS)
@pytest.mark.parametrize("name", ["both", "groups", "conv1d", "dense"])
def test_the_gradient_is_that_of_the_quotient(name: str, way: str, p: float, q: float) -> None:
    network = front_of(name).double()
    start = weight_of(network).clone().requires_grad_()
    hold_sensitivity(network, "1", SHAPE, p=p, q=q, way=way)
    held = network.get_submodule("1.parametrizations.weight.0")
    assert torch.autograd.gradcheck(lambda weight: held(weight).sin(), (start,))


@pytest.mark.parametrize(("way", "p", "q"), WAYS)
@pytest.mark.parametrize("name", ["strided", "groups", "dense"])
def test_what_is_zero_stays_zero(name: str, way: str, p: float, q: float) -> None:
    network = network_of(name)
    weight = weight_of(network)
    weight[:, 0] = 0.0  # a column, or all that belong to an input channel
    weight[0] = 0.0  # a row
    hold_sensitivity(network, "1", SHAPE, p=p, q=q, way=way)
    held = weight_of(network)
    assert (held[weight == 0] == 0).all()
    assert held.isfinite().all()
    assert (held[weight != 0] != 0).all()
    held_weight(network).data.zero_()
    loss = network(torch.rand(2, *SHAPE)).square().sum()
    assert (weight_of(network) == 0).all()
    assert torch.autograd.grad(loss, held_weight(network))[0].isfinite().all()


@pytest.mark.parametrize(("way", "p", "q"), WAYS)
@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_what_is_not_finite_does_not_become_a_number(
    way: str, p: float, q: float, wrong: float
) -> None:
    network = network_of("strided")
    hold_sensitivity(network, "1", SHAPE, p=p, q=q, way=way)
    held_weight(network).data[0, 0, 0, 0] = wrong
    assert weight_of(network)[0, 0, 0, 0].isnan()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(("way", "p", "q"), WAYS)
def test_rounding_never_ends_above_the_bound(
    way: str, p: float, q: float, dtype: torch.dtype
) -> None:
    for seed in range(20):
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Linear(6, 40, bias=False)).to(dtype)
        hold_sensitivity(network, "0", (6,), p=p, q=q, way=way)
        matrix = weight_of(network, "0").double().numpy()
        assert norms_of(matrix, p, q).max() <= 1.0


@pytest.mark.parametrize(("way", "p", "q"), WAYS)
def test_a_kernel_with_channels_last_is_held_as_any_other(way: str, p: float, q: float) -> None:
    plain, last = network_of("groups"), network_of("groups")
    weight = weight_of(last)
    last.get_submodule("1").weight = nn.Parameter(weight.to(memory_format=torch.channels_last))
    for each in (plain, last):
        hold_sensitivity(each, "1", SHAPE, p=p, q=q, way=way)
    assert torch.allclose(weight_of(plain), weight_of(last))


@pytest.mark.parametrize(("way", "p", "q"), WAYS)
def test_a_held_network_is_saved_and_copied(way: str, p: float, q: float) -> None:
    network, fresh = network_of("strided"), network_of("strided")
    for each in (network, fresh):
        hold_sensitivity(each, "1", SHAPE, p=p, q=q, way=way)
    train(network)
    file = io.BytesIO()
    torch.save(network.state_dict(), file)
    file.seek(0)
    fresh.load_state_dict(torch.load(file))
    assert torch.equal(weight_of(fresh), weight_of(network))
    copied = copy.deepcopy(network)
    train(copied)
    assert torch.equal(weight_of(fresh), weight_of(network))  # the copy trains by itself
    assert not torch.equal(weight_of(copied), weight_of(network))
    assert norms_of(matrix_of("strided", weight_of(copied)), p, q).max() <= 1


@pytest.mark.parametrize(("way", "p", "q"), [way for way in WAYS if way[2] == 2])
def test_a_wrapped_network_sees_the_weights_of_today(way: str, p: float, q: float) -> None:
    network = network_of("strided")
    hold_sensitivity(network, "1", SHAPE, p=p, q=q, way=way, bound=0.7)
    noise = Gaussian(scale=1.0, norm=p)
    model = PixelDP(network, noise, after="1", input_shape=SHAPE).eval()
    first = model.front(torch.ones(1, *SHAPE))
    train(network)
    second = model.front(torch.ones(1, *SHAPE))
    assert not torch.allclose(first, second)
    assert torch.allclose(second, network[:2](torch.ones(1, *SHAPE)), atol=1e-6)
    assert 0.1 < model.sensitivity <= 0.7


@pytest.mark.parametrize("q", [1, 2, INF])
def test_several_vectors_of_an_input_count_together(q: float) -> None:
    """In the ∞-norm all of them move at once."""
    if (INF, q) not in PAIRS:
        pytest.skip("no norm to hold")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 2, bias=False))
    hold_sensitivity(network, "0", (4, 3), p=INF, q=q)
    signs = torch.tensor(np.array(np.meshgrid(*[[-1.0, 1.0]] * 3)).reshape(3, -1).T).float()
    outputs = (signs @ weight_of(network, "0").T).double()
    worst = torch.linalg.vector_norm(outputs, ord=1 if q == 1 else q, dim=1).amax()
    assert float(worst) * 4 ** (0 if q == INF else 1 / q) <= 1.0


def test_the_geometry_of_a_convolution() -> None:
    """Of one dimension, it is that of an image of height 1; "same" pads by one more behind."""
    plain = nn.Conv2d(2, 4, (3, 2), padding=(2, 1), stride=(1, 3), dilation=(2, 1), groups=2)
    assert convolution_of(plain, (7, 8)) == Convolution(
        image=(7, 8), stride=(1, 3), padding=((2, 2), (1, 1)), dilation=(2, 1), groups=2
    )
    same = nn.Conv2d(1, 1, (4, 3), padding="same", dilation=(1, 3))
    assert convolution_of(same, (7, 8)) == Convolution(
        image=(7, 8), padding=((1, 2), (3, 3)), dilation=(1, 3)
    )
    row = nn.Conv1d(2, 4, 3, padding=1, stride=2, dilation=3)
    assert convolution_of(row, (9,)) == Convolution(
        image=(1, 9), stride=(1, 2), padding=((0, 0), (1, 1)), dilation=(1, 3)
    )
    assert convolution_of(nn.Conv1d(1, 1, 3, padding="valid"), (9,)).padding == ((0, 0), (0, 0))


def test_what_cannot_be_held_is_refused() -> None:
    network = network_of("conv")
    with pytest.raises(UnknownLayer, match="got layer='9'"):
        hold_sensitivity(network, "9", SHAPE, p=2, q=2)
    with pytest.raises(UnsupportedLayer, match="got ReLU for layer='2'"):
        hold_sensitivity(network, "2", SHAPE, p=2, q=2)
    reflecting = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"))
    with pytest.raises(UnsupportedLayer, match="got Conv2d with padding_mode='reflect'"):
        hold_sensitivity(reflecting, "0", SHAPE, p=2, q=2)
    transposed = nn.Sequential(nn.ConvTranspose2d(2, 3, 3))
    with pytest.raises(UnsupportedLayer, match="got ConvTranspose2d"):
        hold_sensitivity(transposed, "0", SHAPE, p=2, q=2)
    with pytest.raises(InvalidArgument, match="bound must be"):
        hold_sensitivity(network, "1", SHAPE, p=2, q=2, bound=0.0)
    with pytest.raises(InvalidArgument, match=r"rejects inputs of shape \(3, 7, 7\)"):
        hold_sensitivity(network, "1", (3, 7, 7), p=2, q=2)

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(2, 2, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.layer(self.layer(x))
            return result

    with pytest.raises(UnknownLayer, match="ran 2 times"):
        hold_sensitivity(Twice(), "layer", SHAPE, p=2, q=2)


@pytest.mark.parametrize(
    ("way", "p", "q", "message"),
    [
        ("columns", 2, 2, "way='columns' holds p=1, q=1 or p=1, q=2, got p=2, q=2; use way='norm'"),
        ("columns", INF, INF, "got p=inf, q=inf"),
        ("rows", 1, 1, "way='rows' holds p=inf, q=inf, got p=1, q=1; use way='norm'"),
        ("rows", 2, 2, "got p=2, q=2"),
        ("norm", 2, 1, "from the 2-norm to the 1-norm"),
        ("spectral", 2, 2, "way must be one of 'norm', 'columns', 'rows', got way='spectral'"),
    ],
)
def test_ways_that_make_no_sense_are_refused(way: str, p: float, q: float, message: str) -> None:
    network = network_of("conv")
    with pytest.raises(InvalidArgument, match=message):
        hold_sensitivity(network, "1", SHAPE, p=p, q=q, way=way)
    assert not nn.utils.parametrize.is_parametrized(network)  # nothing was changed


def svd_of(network: nn.Module) -> torch.Tensor:
    values: torch.Tensor = torch.linalg.svdvals(weight_of(network, "0").double().flatten(1))
    return values


def dense(rows: int = 4, columns: int = 6) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(columns, rows).double())


@pytest.mark.parametrize(("rows", "columns"), [(4, 6), (6, 4)])
@pytest.mark.parametrize("loops", [1, 3])
def test_a_parseval_step_maps_every_singular_value(rows: int, columns: int, loops: int) -> None:
    network, beta = dense(rows, columns), 0.1
    left, before, right = torch.linalg.svd(weight_of(network, "0"), full_matrices=False)
    values = before.clone()
    for _ in range(loops):
        values = (1 + beta) * values - beta * values**3
    Parseval(network, "0", beta=beta, loops=loops).step()
    assert torch.allclose(weight_of(network, "0"), left @ values.diag() @ right)


def test_a_parseval_step_keeps_groups_apart() -> None:
    network = front_of("groups")
    before = torch.split(weight_of(network).double().flatten(1), 2)
    Parseval(network, "1", beta=0.1, loops=1).step()
    for matrix, after in zip(before, torch.split(weight_of(network).flatten(1), 2), strict=True):
        expected = 1.1 * matrix - 0.1 * matrix @ matrix.T @ matrix
        assert torch.allclose(expected.float(), after)


@pytest.mark.parametrize("name", ["groups", "conv", "conv1d", "dense"])
@pytest.mark.parametrize("bound", [1.0, 0.5])
def test_parseval_ends_at_a_tight_frame(name: str, bound: float) -> None:
    torch.manual_seed(0)
    layer = LAYERS[name]()
    network = nn.Sequential(layer)
    Parseval(network, "0", beta=0.3, loops=300, bound=bound).step()
    weight = weight_of(network, "0").double()
    groups = getattr(layer, "groups", 1)
    values = torch.linalg.svdvals(weight.reshape(groups, weight.shape[0] // groups, -1))
    assert values.flatten().tolist() == pytest.approx([bound] * values.numel(), rel=1e-5)


@pytest.mark.parametrize("beta", [0.0003, 0.05, 0.5, 0.99])
@pytest.mark.parametrize("start", [1e-3, 1.0, 0.999, 1.001, 1e3, 1e9, 1e300])
def test_parseval_never_diverges(beta: float, start: float) -> None:
    """Without the guard every start beyond sqrt((2 + β)/β) ends in infinity."""
    network = dense()
    weight_of(network, "0").mul_(start / svd_of(network)[0])
    signs = weight_of(network, "0").clone()
    projection = Parseval(network, "0", beta=beta, loops=50)
    for _ in range(4):
        projection.step()
        assert svd_of(network)[0] <= max(start, 1.2)
    if start > 100:  # it was divided by its norm, and so has kept its directions
        assert svd_of(network)[0] == pytest.approx(1.0, abs=1e-2)
        assert (weight_of(network, "0") * signs / start).sum() > 0


@pytest.mark.parametrize("beta", [0.0003, 0.05, 0.3])
def test_no_singular_value_changes_its_sign(beta: float) -> None:
    """From sqrt((1 + β)/β) on it would, and from sqrt((2 + β)/β) on it would grow without end."""
    turns, grows = (math.sqrt((k + beta) / beta) for k in (1, 2))
    for start in (turns * 0.999, turns * 1.001, math.sqrt(turns * grows), grows * 1.001):
        network = dense()
        weight_of(network, "0").mul_(start / svd_of(network)[0])
        left, _, right = torch.linalg.svd(weight_of(network, "0"), full_matrices=False)
        Parseval(network, "0", beta=beta, loops=1).step()
        assert (left.T @ weight_of(network, "0") @ right.T).diag().min() > 0


def test_beyond_the_limits_the_map_itself_does_what_the_guard_says() -> None:
    beta = 0.05
    turns, grows = (math.sqrt((k + beta) / beta) for k in (1, 2))
    assert (1 + beta) * turns - beta * turns**3 == pytest.approx(0, abs=1e-12)
    assert (1 + beta) * grows - beta * grows**3 == pytest.approx(-grows)


def test_parseval_follows_an_optimizer_until_it_is_removed() -> None:
    network = dense()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.0)
    before = svd_of(network)
    handle = Parseval(network, "0", beta=0.1, loops=1).attach(optimizer)
    network(torch.ones(1, 6, dtype=torch.float64)).sum().backward()
    optimizer.step()
    once = svd_of(network)
    assert torch.allclose(once, 1.1 * before - 0.1 * before**3)
    handle.remove()
    optimizer.step()
    assert torch.equal(svd_of(network), once)


def test_training_with_parseval_approaches_a_tight_frame() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(100, 4))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    Parseval(network, "0", beta=0.05, loops=100).attach(optimizer)
    for _ in range(20):
        loss = network(torch.rand(8, *SHAPE)).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert svd_of(network).tolist() == pytest.approx([1.0] * 4, abs=1e-3)
    # The reshaped kernel says little about the convolution; between 1 and sqrt(3 · 3) is proved.
    assert 1.0 < sensitivity(network[:1], SHAPE) <= 3.0


@pytest.mark.parametrize(("size", "loops"), [(0.1, 10), (0.07, 7), (0.101, 11), (1.0, 100)])
def test_the_loops_of_the_original(size: float, loops: int) -> None:
    """0.07 · 100 is a little more than 7 in floating point."""
    network, other = dense(), dense()
    Parseval.for_attack(network, "0", size=size, beta=0.05).step()
    Parseval(other, "0", beta=0.05, loops=loops).step()
    assert torch.equal(weight_of(network, "0"), weight_of(other, "0"))


def test_what_cannot_be_projected_is_refused() -> None:
    network = dense()
    projection = Parseval(network, "0")
    with pytest.raises(InvalidArgument, match=r"optimizer must train the weight of layer='0'"):
        projection.attach(torch.optim.SGD(dense().parameters(), lr=0.1))
    weight_of(network, "0")[0, 0] = math.nan
    with pytest.raises(TrainingDiverged, match="layer='0' holds NaN or infinite values"):
        projection.step()
    with pytest.raises(InvalidArgument, match=r"beta must be in \(0, 1\), got beta=1.0"):
        Parseval(network, "0", beta=1.0)
    with pytest.raises(InvalidArgument, match="loops must be a whole number"):
        Parseval(network, "0", loops=0)
    with pytest.raises(InvalidArgument, match="bound must be a finite number above 0"):
        Parseval(network, "0", bound=-1.0)
    with pytest.raises(InvalidArgument, match="size must be a finite number above 0"):
        Parseval.for_attack(network, "0", size=0.0)
    with pytest.raises(UnsupportedLayer, match="got ReLU"):
        Parseval(nn.Sequential(nn.ReLU()), "0")
    network = dense()
    projection = Parseval(network, "0")
    hold_sensitivity(network, "0", (6,), p=2, q=2)
    for refused in (projection.step, lambda: Parseval(network, "0")):
        with pytest.raises(InvalidArgument, match="either hold it or project it"):
            refused()
