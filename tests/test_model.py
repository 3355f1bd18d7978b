from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from pixeldp import Gaussian, Laplace, PixelDP
from pixeldp.constraints import hold_sensitivity
from pixeldp.errors import InvalidArgument, InvalidInput, NoiseBypassed, UnsupportedLayer

if TYPE_CHECKING:
    from pixeldp.mechanisms import Mechanism

SHAPE = (1, 6, 6)


def without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gaussian, "sample", lambda _self, like, _generator=None: 0 * like)


@pytest.mark.parametrize("after", ["0", None])
def test_without_noise_it_is_the_network(
    network: nn.Module, after: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_noise(monkeypatch)
    model = PixelDP(network, Gaussian(scale=0.5, norm=2), after=after, input_shape=SHAPE).eval()
    x = torch.randn(4, *SHAPE)
    with torch.no_grad():
        torch.testing.assert_close(model.back(model.front(x)), network(x))
        torch.testing.assert_close(model(x), network(x))


def test_training_and_evaluation_add_the_same_noise_at_the_same_place(
    model: PixelDP, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed = torch.randn(3, 4, 6, 6)
    monkeypatch.setattr(Gaussian, "sample", lambda _self, _like, _generator=None: fixed)
    model.eval()
    x = torch.randn(3, *SHAPE)
    with torch.no_grad():
        torch.testing.assert_close(model(x), model.back(model.front(x) + fixed))


def test_every_draw_differs_and_gradients_reach_all_weights(model: PixelDP) -> None:
    x = torch.randn(3, *SHAPE)
    assert not torch.equal(model(x), model(x))
    model(x).sum().backward()
    assert all(
        parameter.grad is not None and bool(parameter.grad.abs().sum() > 0)
        for name, parameter in model.named_parameters()
        if not name.endswith("0.bias")  # batch normalisation takes a constant out again
    )


def test_evaluation_uses_running_statistics_whatever_the_mode(
    network: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_noise(monkeypatch)
    for after in ("0", None):
        model = PixelDP(network, Gaussian(scale=0.5, norm=2), after=after, input_shape=SHAPE)
        x = torch.randn(4, *SHAPE)
        with torch.no_grad():
            expected = network.eval()(x)
            model.train()
            torch.testing.assert_close(model.back(model.front(x)), expected)
        assert network.training


def test_sensitivity_follows_the_weights(model: PixelDP, network: nn.Module) -> None:
    before = model.sensitivity
    with torch.no_grad():
        network.get_parameter("0.weight").mul_(3)
    assert model.sensitivity == pytest.approx(3 * before)
    state = {name: 2 * value for name, value in network.state_dict().items()}
    network.load_state_dict(state)
    assert model.sensitivity == pytest.approx(6 * before)


def test_sensitivity_on_the_input_is_one(network: nn.Module) -> None:
    assert PixelDP(network, Gaussian(scale=0.5, norm=2)).sensitivity == 1.0
    assert PixelDP(network, Gaussian(scale=0.5, norm=1)).sensitivity == 1.0
    assert PixelDP(network, Laplace(scale=0.5, norm=1)).sensitivity == 1.0


def test_each_mechanism_gets_the_sensitivity_that_it_needs(network: nn.Module) -> None:
    kernel = network.get_parameter("0.weight").detach().double()
    cases: list[tuple[Mechanism, float]] = [
        (Laplace(scale=1.0, norm=1), float(kernel.abs().sum((0, 2, 3)).max())),
        (Gaussian(scale=1.0, norm=1), math.sqrt(float(kernel.square().sum((0, 2, 3)).max()))),
    ]
    for noise, expected in cases:
        model = PixelDP(network, noise, after="0", input_shape=SHAPE)  # type: ignore[arg-type]
        assert model.sensitivity == pytest.approx(expected)


@pytest.mark.parametrize("after", ["0", None])
def test_laplace_against_the_2_norm_is_refused(network: nn.Module, after: str | None) -> None:
    with pytest.raises(InvalidArgument, match="2-norm to the 1-norm"):
        PixelDP(network, Laplace(scale=1.0, norm=2), after=after, input_shape=SHAPE)


def test_copies_and_other_types_work(model: PixelDP) -> None:
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.network.get_parameter("0.weight").mul_(2)
    assert other.sensitivity == pytest.approx(2 * model.sensitivity)
    double = copy.deepcopy(model).double().eval()
    x = torch.randn(2, *SHAPE, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(double.back(double.front(x)), double.network(x))


def test_a_layer_may_be_held_after_wrapping() -> None:
    plain = nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), nn.Flatten(), nn.Linear(32, 2))
    model = PixelDP(plain, Gaussian(scale=0.5, norm=2), after="0", input_shape=SHAPE)
    hold_sensitivity(plain, "0", SHAPE, p=2, q=2)
    assert 1 - 1e-5 < model.sensitivity <= 1
    assert model.back(model.front(torch.rand(3, *SHAPE))).shape == (3, 2)


def test_a_front_without_a_bound_is_refused_at_once(network: nn.Module) -> None:
    with pytest.raises(UnsupportedLayer, match="_native_batch_norm"):
        PixelDP(network, Gaussian(scale=1.0, norm=2), after="1", input_shape=SHAPE)


def test_a_bypass_is_refused_at_once() -> None:
    class Skips(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.relu(self.first(x))

    with pytest.raises(NoiseBypassed):
        PixelDP(Skips(), Gaussian(scale=1.0, norm=2), after="first", input_shape=(3,))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(2, 1, 6, 7), r"x must have shape \(batch, 1, 6, 6\), got \(2, 1, 6, 7\)"),
        (torch.zeros(0, 1, 6, 6), "at least one input"),
        (torch.tensor(1.0), "at least one input"),
        ([[0.5]], "x must be a torch.Tensor, got list"),
        (torch.zeros(2, 1, 6, 6, dtype=torch.uint8), "must hold torch.float32 .* got torch.uint8"),
        (torch.zeros(2, 1, 6, 6).double(), "must hold torch.float32 numbers on cpu"),
        (torch.full((2, 1, 6, 6), math.nan), "NaN or infinity in input 0"),
        (torch.full((2, 1, 6, 6), 255.0), r"x must lie in \[0, 1\], got values from 255 to 255"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(
    network: nn.Module, x: torch.Tensor, message: str
) -> None:
    noise = Gaussian(scale=0.5, norm=2)
    model = PixelDP(network, noise, after="0", input_shape=SHAPE, input_range=(0.0, 1.0))
    with pytest.raises(InvalidInput, match=message):
        model.check_inputs(x)


def test_impossible_parameters_are_refused(network: nn.Module) -> None:
    noise = Gaussian(scale=0.5, norm=2)
    with pytest.raises(InvalidArgument, match="input_shape must be given with after"):
        PixelDP(network, noise, after="0")
    with pytest.raises(InvalidArgument, match="noise must be Gaussian"):
        PixelDP(network, 0.5)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"network must be a torch\.nn\.Module, got function"):
        PixelDP(lambda x: x, noise)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="input_range must be"):
        PixelDP(network, noise, input_range=(1.0, 0.0))


def test_it_names_its_noise(model: PixelDP) -> None:
    assert "after='0'" in repr(model)
    assert "scale=0.5" in repr(model)
