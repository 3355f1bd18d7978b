from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from pixeldp import Gaussian, PixelDP
from pixeldp.errors import (
    CannotTrace,
    InvalidArgument,
    NetworkError,
    NoiseBypassed,
    UnknownLayer,
    UnsupportedLayer,
)
from pixeldp.tracing import cut

if TYPE_CHECKING:
    from collections.abc import Callable

SHAPE = (1, 6, 6)


class Net(nn.Module):
    """A network whose forward is given, so that each test states its own."""

    def __init__(self, forward: Callable[[Net, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv1 = nn.Conv2d(1, 4, 3, padding=1)
        self.conv2 = nn.Conv2d(4, 4, 3, padding=1)
        self.dropout = nn.Dropout(0.5)
        self.output = nn.Linear(4 * 36, 3)
        self.seen: torch.Tensor
        self.register_buffer("seen", torch.zeros(2, *SHAPE))
        self._forward = forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._forward(self, x)


def straight(net: Net, x: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = net.output(net.conv2(net.conv1(x).relu()).relu_().flatten(1))
    return logits


def skip(net: Net, x: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = net.output((net.conv1(x) + x).flatten(1))
    return logits


def closure(net: Net, x: torch.Tensor) -> torch.Tensor:
    kept = [x * 2]

    def later(h: torch.Tensor) -> torch.Tensor:
        return h * kept[0].mean(dim=(1, 2, 3), keepdim=True)

    logits: torch.Tensor = net.output(later(net.conv1(x)).flatten(1))
    return logits


def buffer(net: Net, x: torch.Tensor) -> torch.Tensor:
    net.seen = x
    logits: torch.Tensor = net.output((net.conv1(x) + net.seen).flatten(1))
    return logits


def buffer_in_place(net: Net, x: torch.Tensor) -> torch.Tensor:
    net.seen[0] = x[0]
    logits: torch.Tensor = net.output((net.conv1(x) + net.seen[:1]).flatten(1))
    return logits


def in_place(net: Net, x: torch.Tensor) -> torch.Tensor:
    h = net.conv1(x)
    x.mul_(2)
    logits: torch.Tensor = net.output(h.flatten(1))
    return logits


def in_place_into_later(net: Net, x: torch.Tensor) -> torch.Tensor:
    kept = torch.zeros(x.shape[0], 4, 6, 6)
    view = kept[:, :1]
    h = net.conv1(x)
    view.add_(x)
    logits: torch.Tensor = net.output((h + kept).flatten(1))
    return logits


def dropout_module(net: Net, x: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = net.output(net.conv1(net.dropout(x)).flatten(1))
    return logits


def random_before(net: Net, x: torch.Tensor) -> torch.Tensor:
    dropped = nn.functional.dropout(x, 0.5, training=True)
    logits: torch.Tensor = net.output(net.conv1(dropped).flatten(1))
    return logits


def inside_a_block(net: Net, x: torch.Tensor) -> torch.Tensor:
    h = net.conv1(x)
    logits: torch.Tensor = net.output((h + net.conv2(h)).flatten(1))
    return logits


def test_a_straight_network_is_cut_and_computes_the_same() -> None:
    net = Net(straight).eval()
    pieces = cut(net, "conv1", SHAPE)
    x = torch.randn(7, *SHAPE)
    with torch.no_grad():
        value = pieces.front(x)
        assert torch.equal(value, net.conv1(x))
        torch.testing.assert_close(pieces.back(value), net(x))


def test_a_later_cut_has_all_before_it_in_front() -> None:
    net = Net(straight).eval()
    pieces = cut(net, "conv2", SHAPE)
    x = torch.randn(3, *SHAPE)
    with torch.no_grad():
        torch.testing.assert_close(pieces.front(x), net.conv2(net.conv1(x).relu()))
        torch.testing.assert_close(pieces.back(pieces.front(x)), net(x))
    assert [str(node.target) for node in pieces.front_nodes[1:]] == [
        "aten.conv2d.default",
        "aten.relu.default",
        "aten.conv2d.default",
    ]


def test_the_pieces_see_todays_weights() -> None:
    net = Net(straight).eval()
    pieces = cut(net, "conv1", SHAPE)
    x = torch.randn(2, *SHAPE)
    with torch.no_grad():
        net.conv1.weight.mul_(3)
        net.output.weight.mul_(-2)
        torch.testing.assert_close(pieces.back(pieces.front(x)), net(x))


@pytest.mark.parametrize(
    ("forward", "error"),
    [
        (skip, NoiseBypassed),
        (closure, NoiseBypassed),
        (buffer, NetworkError),
        (buffer_in_place, NetworkError),
        (in_place, NetworkError),
        (in_place_into_later, NoiseBypassed),
        (random_before, UnsupportedLayer),
    ],
)
def test_a_hidden_path_around_the_noise_is_refused(
    forward: Callable[[Net, torch.Tensor], torch.Tensor], error: type[Exception]
) -> None:
    with pytest.raises(error):
        cut(Net(forward), "conv1", SHAPE)


DISGUISES = {
    "skip": (skip, r"aten\.add\.Tensor in the network's forward"),
    "closure": (closure, r"aten\.mul\.Tensor"),
    "buffer": (buffer, "cannot be captured|seen"),
    "buffer written in place": (buffer_in_place, "writes to 'seen'"),
    "in place": (in_place, "writes to 'x'"),
    "in place, seen later": (in_place_into_later, r"aten\.add\.Tensor"),
    "dropout": (dropout_module, "dropout 'dropout' stands before the noise"),
    "functional dropout": (random_before, r"randomness before the noise .* aten\.native_dropout"),
}


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("disguise", sorted(DISGUISES))
def test_no_model_is_made_of_a_bypass_in_disguise(disguise: str, training: bool) -> None:
    forward, message = DISGUISES[disguise]
    network = Net(forward).train(training)
    with pytest.raises(NetworkError, match=message):
        PixelDP(network, Gaussian(scale=1.0, norm=2), after="conv1", input_shape=SHAPE)


def test_the_refusal_of_a_write_names_what_is_written() -> None:
    with pytest.raises(CannotTrace, match="writes to 'seen'"):
        cut(Net(buffer_in_place), "conv1", SHAPE)
    with pytest.raises(CannotTrace, match="writes to 'x'"):
        cut(Net(in_place), "conv1", SHAPE)


def test_the_refusal_names_the_operations_that_join() -> None:
    with pytest.raises(NoiseBypassed, match=r"around it, through aten\.add\.Tensor"):
        cut(Net(skip), "conv1", SHAPE)


def test_inside_a_residual_block_is_refused_but_before_it_is_not() -> None:
    with pytest.raises(NoiseBypassed, match="noise after 'conv2' would be bypassed"):
        cut(Net(inside_a_block), "conv2", SHAPE)
    cut(Net(inside_a_block), "conv1", SHAPE)


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(_: object, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return first + second


def aliased(h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    both = torch.zeros(x.shape[0], 288)
    here, there = both[:, :144], both[:, 144:180]
    here.copy_(h)
    there.copy_(x)
    return both.as_strided((x.shape[0], 144), (288, 1), 144)


def behind_the_back_of_autograd(h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    kept = torch.zeros_like(x)
    kept.data = x * 2.0
    return h + kept.mean(1, keepdim=True)


def written_to_out(h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    result = torch.empty_like(h)
    return torch.add(h, x.mean(1, keepdim=True), out=result)


# What a network may do with the output h of its first layer and, flattened, its input x.
DEEP_DISGUISES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "detached": lambda h, x: h * x.detach().sum(1, keepdim=True),
    "as data": lambda h, x: h + x.data.mean(1, keepdim=True),
    "replaced data": behind_the_back_of_autograd,
    "through NumPy": lambda h, x: h + torch.from_numpy(x.detach().numpy().sum(1, keepdims=True)),
    "through a list": lambda h, x: h + torch.tensor(x.tolist()).sum(),
    "as a number": lambda h, x: h * x.sum().item(),
    "as a count": lambda h, x: h * (x > 0).nonzero().shape[0],
    "as distinct values": lambda h, x: h * torch.unique(x).shape[0],
    "as an order": lambda h, x: h[:, x.repeat(1, 4).argsort(1)[0]],
    "as places": lambda h, x: h.gather(1, (x > 0).long().repeat(1, 4)),
    "as a mask": lambda h, x: torch.where(x.sum(1, keepdim=True) > 0, h, -h),
    "as a branch": lambda h, x: torch.cond(x.sum() > 0, lambda a: 2 * a, lambda a: 3 * a, (h,)),
    "scattered": lambda h, x: h.scatter(1, torch.zeros(x.shape[0], 1, dtype=torch.long), x[:, :1]),
    "accumulated": lambda h, x: torch.stack([x.mean(1), h.mean(1)], 1).cumsum(1)[:, 1:] * h,
    "imaginary": lambda h, x: torch.complex(h, x.repeat(1, 4)).abs(),
    "in another view": aliased,
    "written to out": written_to_out,
    "an autograd function": lambda h, x: Sum.apply(  # type: ignore[no-untyped-call]
        h, x.mean(1, keepdim=True)
    ),
    "row by row": torch.vmap(lambda h, x: h + x.mean()),
    "as a weight": lambda h, x: nn.functional.linear(h, x[0].repeat(4)[None]).repeat(1, 144),
    "cast and back": lambda h, x: h + x.half().float().mean(1, keepdim=True),
    "without a gradient": torch.no_grad()(lambda h, x: h + x.mean(1, keepdim=True)),
}


@pytest.mark.parametrize("disguise", DEEP_DISGUISES)
def test_no_operation_hides_the_input(disguise: str) -> None:
    def forward(net: Net, x: torch.Tensor) -> torch.Tensor:
        h = DEEP_DISGUISES[disguise](net.conv1(x).flatten(1), x.flatten(1))
        logits: torch.Tensor = net.output(h)
        return logits

    with pytest.raises((NoiseBypassed, CannotTrace)):
        cut(Net(forward), "conv1", SHAPE)


def test_weights_before_and_behind_the_noise_may_be_the_same() -> None:
    def tied(net: Net, x: torch.Tensor) -> torch.Tensor:
        h = nn.functional.conv_transpose2d(net.conv1(x), net.conv1.weight, padding=1)
        logits: torch.Tensor = net.output(h.repeat(1, 4, 1, 1).flatten(1))
        return logits

    net = Net(tied).eval()
    pieces = cut(net, "conv1", SHAPE)
    x = torch.randn(3, *SHAPE)
    with torch.no_grad():
        torch.testing.assert_close(pieces.back(pieces.front(x)), net(x))


def test_a_branch_on_noisy_data_is_refused_and_by_hand_is_not() -> None:
    def branch(h: torch.Tensor) -> torch.Tensor:
        chosen: torch.Tensor = torch.cond(h.sum() > 0, lambda a: 2 * a, lambda a: 3 * a, (h,))
        return chosen

    def forward(net: Net, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = net.output(branch(net.conv1(x).flatten(1)))
        return logits

    with pytest.raises(CannotTrace, match=r"torch\.cond .* by hand: PixelDP\(front=…, back=…\)"):
        cut(Net(forward), "conv1", SHAPE)


def twice(net: Net, x: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = net.output((net.conv1(x) + net.conv1(2 * x)).flatten(1))
    return logits


def never(net: Net, x: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = net.output(net.conv1(x).flatten(1))
    return logits


def by_hand(net: Net, x: torch.Tensor) -> torch.Tensor:
    h = nn.functional.conv2d(x, net.conv1.weight, padding=1)
    logits: torch.Tensor = net.output(h.flatten(1))
    return logits


@pytest.mark.parametrize(
    ("forward", "after", "message"),
    [
        (straight, "conv3", "got after='conv3'; did you mean 'conv"),
        (straight, "xyz", "its layers are 'conv1', 'conv2'"),
        (twice, "conv1", "hands 2 values to the rest"),
        (never, "conv2", "'conv2' does not see the input"),
        (by_hand, "conv1", "'conv1' does not see the input"),
    ],
)
def test_a_name_that_cannot_carry_the_noise_is_refused(
    forward: Callable[[Net, torch.Tensor], torch.Tensor], after: str, message: str
) -> None:
    with pytest.raises(UnknownLayer, match=message):
        cut(Net(forward), after, SHAPE)


def twice_in_a_row(net: Net, x: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = net.output(net.conv2(net.conv2(net.conv1(x))).flatten(1))
    return logits


def test_a_layer_that_is_used_twice_in_a_row_or_by_another_name_is_refused() -> None:
    with pytest.raises(UnknownLayer, match=r"'conv2' is used 2 times \(as conv2\)"):
        cut(Net(twice_in_a_row), "conv2", SHAPE)
    cut(Net(twice_in_a_row), "conv1", SHAPE)
    layer = nn.Linear(4, 4)
    chain = nn.Sequential(layer, nn.ReLU(), nn.Sequential(nn.Tanh(), layer))
    with pytest.raises(UnknownLayer, match=r"'0' is used 2 times \(as 0, 2\.1\)"):
        cut(chain, "0", (4,))
    cut(chain, "2", (4,))


def depends_on_data(net: Net, x: torch.Tensor) -> torch.Tensor:
    return straight(net, x if bool(x.sum() > 0) else -x)


def fixed_batch(net: Net, x: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = net.output(net.conv1(x).reshape(2, 144))
    return logits


def two_outputs(net: Net, x: torch.Tensor) -> torch.Tensor:
    logits = straight(net, x)
    return logits, logits  # type: ignore[return-value]


@pytest.mark.parametrize("forward", [depends_on_data, fixed_batch, two_outputs])
def test_what_cannot_be_captured_is_refused(
    forward: Callable[[Net, torch.Tensor], torch.Tensor],
) -> None:
    with pytest.raises(CannotTrace):
        cut(Net(forward), "conv1", SHAPE)


def test_rows_that_are_asked_for_are_not_a_path() -> None:
    def forward(net: Net, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = net.output(net.conv1(x).view(x.shape[0], -1))
        return logits

    net = Net(forward).eval()
    pieces = cut(net, "conv1", SHAPE)
    x = torch.randn(5, *SHAPE)
    with torch.no_grad():
        # The back is run on more rows than the front: many draws of one input.
        many = pieces.front(x[:1]).expand(9, -1, -1, -1)
        torch.testing.assert_close(pieces.back(many), net(x[:1].expand(9, -1, -1, -1)))


def test_the_mode_of_every_module_is_put_back() -> None:
    net = Net(straight).train()
    net.conv2.eval()
    cut(net, "conv1", SHAPE)
    assert net.training
    assert net.conv1.training
    assert not net.conv2.training


def test_shapes_that_the_network_rejects_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"rejects inputs of shape \(3, 6, 6\)"):
        cut(Net(straight), "conv1", (3, 6, 6))
    with pytest.raises(InvalidArgument, match="input_shape must be the shape of one input"):
        cut(Net(straight), "conv1", (1, 0, 6))
