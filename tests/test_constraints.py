from __future__ import annotations

import pytest
import torch
from torch import nn

from pixeldp import sensitivity
from pixeldp.constraints import hold_sensitivity
from pixeldp.errors import InvalidArgument, UnknownLayer, UnsupportedLayer
from pixeldp.sensitivities.operators import PAIRS

SHAPE = (2, 7, 7)


def small(**options: object) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, **options),  # type: ignore[arg-type]
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(4),
    )


def weight_of(network: nn.Module) -> torch.Tensor:
    weight = network.get_submodule("0").weight
    assert isinstance(weight, torch.Tensor)
    return weight.detach()


@pytest.mark.parametrize(("p", "q"), PAIRS)
@pytest.mark.parametrize(
    "options",
    [{}, {"padding": 1, "stride": 2}, {"padding": "same", "dilation": 2}, {"padding": "valid"}],
)
def test_training_cannot_move_a_held_sensitivity(
    p: int, q: int, options: dict[str, object]
) -> None:
    network = small(**options)
    network(torch.zeros(1, *SHAPE))
    hold_sensitivity(network, "0", SHAPE, p=p, q=q, bound=0.5)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    before = weight_of(network).clone()
    for _ in range(5):
        loss = network(torch.rand(8, *SHAPE)).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert not torch.allclose(before, weight_of(network))
    measured = sensitivity(network[:1], SHAPE, p=p, q=q)
    assert 0.5 * (1 - 1e-5) < measured <= 0.5


@pytest.mark.parametrize(("p", "q"), PAIRS)
def test_a_dense_layer_is_held(p: int, q: int) -> None:
    network = nn.Sequential(nn.Linear(5, 4))
    hold_sensitivity(network, "0", (5,), p=p, q=q)
    assert 1 - 1e-5 < sensitivity(network, (5,), p=p, q=q) <= 1


def test_the_gradient_is_that_of_the_quotient() -> None:
    network = nn.Sequential(nn.Linear(3, 2, bias=False)).double()
    start = weight_of(network).clone()
    hold_sensitivity(network, "0", (3,), p=2, q=2)
    held_norm = network.get_submodule("0.parametrizations.weight.0")
    x = torch.randn(4, 3, dtype=torch.float64)

    def loss(original: torch.Tensor) -> torch.Tensor:
        held: torch.Tensor = held_norm(original)
        return (x @ held.T).sin().sum()

    assert torch.autograd.gradcheck(loss, (start.requires_grad_(),))


def test_what_cannot_be_held_is_refused() -> None:
    network = small()
    network(torch.zeros(1, *SHAPE))
    with pytest.raises(UnknownLayer, match="got layer='9'"):
        hold_sensitivity(network, "9", SHAPE, p=2, q=2)
    with pytest.raises(UnsupportedLayer, match="got ReLU"):
        hold_sensitivity(network, "1", SHAPE, p=2, q=2)
    reflecting = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"))
    with pytest.raises(UnsupportedLayer, match="got Conv2d"):
        hold_sensitivity(reflecting, "0", SHAPE, p=2, q=2)
    with pytest.raises(InvalidArgument, match="bound must be"):
        hold_sensitivity(network, "0", SHAPE, p=2, q=2, bound=0.0)

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(2, 2, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.layer(self.layer(x))
            return result

    with pytest.raises(UnknownLayer, match="ran 2 times"):
        hold_sensitivity(Twice(), "layer", SHAPE, p=2, q=2)
