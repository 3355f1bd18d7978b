from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from pixeldp import Gaussian, Laplace, PixelDP, certify, sensitivity
from pixeldp.constraints import hold_sensitivity
from pixeldp.errors import (
    CannotTrace,
    InvalidArgument,
    InvalidInput,
    NoiseBypassed,
    UnsupportedLayer,
)

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


def test_every_attack_norm_has_a_sensitivity_on_the_input(network: nn.Module) -> None:
    """Of n = 36 coordinates: ``n^(1/q − 1/p)`` for p > q, the range for a changed coordinate."""
    expected = {(1, 1): 1, (2, 1): 6, (math.inf, 1): 36, (1, 2): 1, (2, 2): 1, (math.inf, 2): 6}
    for (p, q), bound in expected.items():
        noise = Laplace(scale=1.0, norm=p) if q == 1 else Gaussian(scale=1.0, norm=p)
        model = PixelDP(network, noise, input_shape=SHAPE)
        assert bound <= model.sensitivity <= bound * (1 + 1e-9)
    model = PixelDP(
        network, Gaussian(scale=1.0, norm=0), input_shape=SHAPE, input_range=(-1.0, 2.0)
    )
    assert 3 <= model.sensitivity <= 3 * (1 + 1e-9)


def test_what_a_norm_needs_is_asked_for(network: nn.Module) -> None:
    with pytest.raises(InvalidArgument, match=r"input_shape must be given for the ∞-norm"):
        PixelDP(network, Gaussian(scale=1.0, norm=math.inf))
    for after in (None, "0"):
        with pytest.raises(InvalidArgument, match="range of the input must be given for norm=0"):
            PixelDP(network, Gaussian(scale=1.0, norm=0), after=after, input_shape=SHAPE)
    with pytest.raises(InvalidArgument, match="norm must be one of 0, 1, 2, inf, got norm=3"):
        Gaussian(scale=1.0, norm=3)


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


def test_a_front_without_a_bound_is_refused_at_once() -> None:
    noise = Gaussian(scale=1.0, norm=2)
    plain = nn.Sequential(nn.Flatten(), nn.LayerNorm(36), nn.Linear(36, 3))
    with pytest.raises(UnsupportedLayer, match=r"layer_norm.* in '1': it divides by"):
        PixelDP(plain, noise, after="1", input_shape=SHAPE)


def test_batch_normalisation_before_the_noise_must_be_in_evaluation_mode(
    network: nn.Module,
) -> None:
    noise = Gaussian(scale=1.0, norm=2)
    with pytest.raises(UnsupportedLayer, match=r"batch normalisation '1' .* call \.eval\(\)"):
        PixelDP(network, noise, after="1", input_shape=SHAPE)
    model = PixelDP(network.eval(), noise, after="1", input_shape=SHAPE)
    assert model.sensitivity > 0
    model.train()
    with pytest.raises(UnsupportedLayer, match="training mode"):
        _ = model.sensitivity


def test_the_account_is_kept_until_a_weight_changes(model: PixelDP, network: nn.Module) -> None:
    first = model.account()
    assert model.account() is first
    network.get_parameter("4.weight").data.mul_(2)  # behind the noise
    assert model.account() is first
    network.get_parameter("0.weight").data.mul_(2)  # leaves no other trace than the values
    assert model.account() is not first
    assert model.sensitivity == pytest.approx(2 * first.bound)


def test_weights_that_are_no_numbers_are_refused(model: PixelDP, network: nn.Module) -> None:
    weight = network.get_parameter("0.weight")
    weight.data[0, 0, 0, 0] = math.nan
    with pytest.raises(UnsupportedLayer, match="weights before the noise hold NaN"):
        _ = model.sensitivity
    weight.data[0, 0, 0, 0] = math.inf
    with pytest.raises(UnsupportedLayer):
        _ = model.sensitivity


class _Branches(nn.Module):
    """A back that cannot be captured: it looks at its values."""

    def __init__(self) -> None:
        super().__init__()
        self.output = nn.Linear(8, 3)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.output(value)
        return logits if bool(logits.sum() > 0) else logits - 1


def test_a_front_and_a_back_given_by_hand() -> None:
    torch.manual_seed(0)
    front: Any = nn.Sequential(nn.Flatten(), nn.Linear(36, 8))
    back, noise = _Branches(), Gaussian(scale=0.5, norm=2)
    with pytest.raises(CannotTrace, match=r"PixelDP\(front=…, back=…\)"):
        PixelDP(nn.Sequential(front, back), noise, after="0.1", input_shape=SHAPE)
    model = PixelDP(noise=noise, front=front, back=back, input_shape=SHAPE)
    assert model.sensitivity == pytest.approx(sensitivity(front, SHAPE))
    x = torch.randn(1, *SHAPE)
    with torch.no_grad():
        torch.testing.assert_close(model.back(model.front(x)), back(front(x)))
        assert model(x).shape == (1, 3)
    front[1].weight.data.mul_(2)
    assert model.sensitivity == pytest.approx(sensitivity(front, SHAPE))
    assert len(list(copy.deepcopy(model).parameters())) == 4


def test_parts_that_do_not_fit_are_refused() -> None:
    front, noise = nn.Flatten(), Gaussian(scale=0.5, norm=2)
    with pytest.raises(InvalidArgument, match="input_shape must be given with front"):
        PixelDP(noise=noise, front=front, back=nn.Linear(36, 2))
    with pytest.raises(InvalidArgument, match=r"back must be a torch\.nn\.Module, got NoneType"):
        PixelDP(noise=noise, front=front, input_shape=SHAPE)
    with pytest.raises(InvalidArgument, match="not both"):
        PixelDP(front, noise, front=front, back=front, input_shape=SHAPE)
    with pytest.raises(UnsupportedLayer, match="randomness before the noise"):
        PixelDP(noise=noise, front=_Drops(), back=nn.Linear(36, 2), input_shape=SHAPE)


class _Drops(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x.flatten(1), 0.5, training=True)


def test_explain_prints_the_front_with_its_rules_and_bounds(
    network: nn.Module, capsys: pytest.CaptureFixture[str]
) -> None:
    model = PixelDP(network.eval(), Gaussian(scale=1.0, norm=2), after="1", input_shape=SHAPE)
    model.explain()
    printed = capsys.readouterr().out
    for word in ("aten.conv2d.default", "convolution: taps", "§3.2", "largest factor", "explicit"):
        assert word in printed
    assert f"≤ {model.sensitivity:.9g}" in printed


def test_categories_are_whole_numbers_and_their_changes_are_counted() -> None:
    torch.manual_seed(0)
    table: Any = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(12, 2))
    model = PixelDP(table, Laplace(scale=1.0, norm=0), after="1", input_shape=(4,))
    rows = table[0].weight.detach().double()
    farthest = (rows[:, None] - rows[None]).abs().sum(-1).max()
    assert model.sensitivity == pytest.approx(float(farthest))
    x = torch.tensor([[0, 1, 2, 4]])
    model.check_inputs(x)
    assert certify(model, x, draws=100, seed=1).radius.shape == (1,)
    with pytest.raises(InvalidInput, match=r"must hold torch\.int64 numbers"):
        model.check_inputs(x.float())
    with pytest.raises(UnsupportedLayer, match="no finite sensitivity from the 2-norm"):
        PixelDP(table, Gaussian(scale=1.0, norm=2), after="1", input_shape=(4,))


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


def test_a_network_of_two_inputs_is_refused() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.ReLU()

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            masked: torch.Tensor = self.first(x) * mask
            return masked

    with pytest.raises(CannotTrace, match=r"takes 2 inputs \(x, mask\)"):
        PixelDP(Two(), Gaussian(scale=1.0, norm=2), after="first", input_shape=SHAPE)


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


def test_the_input_that_is_not_finite_is_named_among_many(model: PixelDP) -> None:
    x = torch.zeros(600, 1, 6, 6)
    x[431, 0, 2, 2] = torch.nan
    with pytest.raises(InvalidInput, match=r"in input 431$"):
        model.check_inputs(x)
