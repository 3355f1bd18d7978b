from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from pixeldp import Gaussian, Laplace
from pixeldp.errors import InvalidArgument
from pixeldp.mechanisms import Mechanism as Mechanism_

if TYPE_CHECKING:
    from pixeldp.mechanisms import Mechanism

MECHANISMS = [Gaussian(scale=1.0, norm=2), Laplace(scale=1.0, norm=1)]
by_name = pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: m.name)

probability = st.floats(1e-6, 1 - 1e-6)


def test_gaussian_scale_is_the_papers() -> None:
    noise = Gaussian.for_attack(size=0.3, epsilon=1.0, delta=0.05, norm=2)
    assert noise.scale == pytest.approx(math.sqrt(2 * math.log(1.25 / 0.05)) * 0.3)
    doubled = Gaussian.for_attack(size=0.3, epsilon=1.0, delta=0.05, norm=2, sensitivity=2.0)
    assert doubled.scale == pytest.approx(2 * noise.scale)


@given(
    size=st.floats(1e-3, 1e3),
    epsilon=st.floats(1e-3, 1),
    delta=st.floats(1e-9, 0.9),
    sensitivity=st.floats(0.1, 10),
)
def test_size_inverts_for_attack(
    size: float, epsilon: float, delta: float, sensitivity: float
) -> None:
    gaussian = Gaussian.for_attack(
        size=size, epsilon=epsilon, delta=delta, norm=2, sensitivity=sensitivity
    )
    recovered = gaussian.size(epsilon=epsilon, delta=delta, sensitivity=sensitivity)
    assert recovered == pytest.approx(size)
    if epsilon < 1 - 1e-9:
        found = gaussian.epsilon(size=size, delta=delta, sensitivity=sensitivity)
        assert found == pytest.approx(epsilon)
    laplace = Laplace.for_attack(size=size, epsilon=epsilon, norm=1, sensitivity=sensitivity)
    assert laplace.epsilon(size=size, sensitivity=sensitivity) == pytest.approx(epsilon)
    assert laplace.size(epsilon=epsilon, sensitivity=sensitivity) == pytest.approx(size)


@pytest.mark.parametrize(
    ("mechanism", "law"),
    [
        (Gaussian(scale=0.7, norm=2), stats.norm(scale=0.7)),
        (Laplace(scale=0.7, norm=1), stats.laplace(scale=0.7)),
    ],
)
def test_samples_have_the_stated_scale_and_no_other(mechanism: Mechanism, law: object) -> None:
    generator = torch.Generator().manual_seed(5)
    drawn = mechanism.sample(torch.empty(300, 500), generator).double().numpy().ravel()
    assert stats.kstest(drawn, law.cdf).pvalue > 1e-3  # type: ignore[attr-defined]
    # The test would see a scale that is five percent off.
    assert stats.kstest(drawn / 1.05, law.cdf).pvalue < 1e-6  # type: ignore[attr-defined]
    assert stats.kstest(drawn * 1.05, law.cdf).pvalue < 1e-6  # type: ignore[attr-defined]


def test_laplace_tails_are_not_cut_off() -> None:
    generator = torch.Generator().manual_seed(5)
    drawn = Laplace(scale=1.0, norm=1).sample(torch.empty(4000, 1000), generator)
    beyond = int((drawn.abs() > 10).sum())
    expected = 4e6 * math.exp(-10)
    assert abs(beyond - expected) < 5 * math.sqrt(expected)


@by_name
@pytest.mark.parametrize("shift", [0.1, 0.7, 2.0])
def test_least_after_is_the_neyman_pearson_test_on_a_grid(
    mechanism: Mechanism, shift: float
) -> None:
    """Fill the region of a given mass where the shifted density is smallest against the first."""
    grid = np.linspace(-30, 30, 600_001)
    law = stats.norm if isinstance(mechanism, Gaussian) else stats.laplace
    before, after = law.pdf(grid), law.pdf(grid - shift)
    before, after = before / before.sum(), after / after.sum()
    order = np.argsort(law.logpdf(grid - shift) - law.logpdf(grid), kind="stable")
    mass, power = np.cumsum(before[order]), np.cumsum(after[order])
    for p in (0.05, 0.3, 0.5, 0.62, 0.8, 0.97, 0.999):
        expected = float(np.interp(p, mass, power))
        assert float(mechanism.least_after(p, shift)) == pytest.approx(expected, abs=2e-4)


@by_name
@given(p=probability, first=st.floats(0, 5), second=st.floats(0, 5))
def test_least_after_falls_with_the_shift_and_composes(
    mechanism: Mechanism, p: float, first: float, second: float
) -> None:
    low, high = sorted((first, second))
    assert mechanism.least_after(p, 0.0) == pytest.approx(p, rel=1e-9)
    assert mechanism.least_after(p, high) <= mechanism.least_after(p, low) + 1e-12
    # Going in two steps can never guarantee more than going at once.
    in_steps = mechanism.least_after(mechanism.least_after(p, first), second)
    assert in_steps <= mechanism.least_after(p, first + second) + 1e-9


@by_name
@given(first=probability, second=probability)
def test_largest_shift_is_where_the_curves_meet(
    mechanism: Mechanism, first: float, second: float
) -> None:
    upper, lower = sorted((first, second))
    if lower - upper < 1e-4:
        return

    def gap(shift: float) -> float:
        least = mechanism.least_after(lower, shift)
        most = 1 - mechanism.least_after(1 - upper, shift)
        return float(least - most)

    closed = float(mechanism.largest_shift(np.array(lower), np.array(upper)))
    root = optimize.brentq(gap, 0.0, 60.0, xtol=1e-13)
    assert closed == pytest.approx(root, rel=1e-7, abs=1e-9)
    assert gap(closed * (1 - 1e-6)) > 0


@by_name
def test_certain_scores_are_never_nan(mechanism: Mechanism) -> None:
    lower = np.array([1.0, 1.0, 1 - 1e-16, 1.0])
    upper = np.array([0.0, 0.3, 1e-300, 5e-324])
    shift = mechanism.largest_shift(lower, upper)
    assert not np.isnan(shift).any()
    assert np.isinf(shift[[0, 1, 3]]).all()
    assert np.isfinite(shift[2])
    assert shift[2] > 5
    ends = mechanism.least_after(np.array([0.0, 1.0]), 3.0)
    assert ends.tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: Gaussian(scale=0.0, norm=2),
            r"scale must be a finite number above 0, got scale=0",
        ),
        (lambda: Gaussian(scale=math.nan, norm=2), "scale must be a finite number above 0"),
        (lambda: Laplace(scale=1.0, norm=3), "norm must be one of 0, 1, 2, inf"),
        (
            lambda: Gaussian.for_attack(size=1, epsilon=1.5, delta=0.1, norm=2),
            r"epsilon must be in \(0, 1\] for the Gaussian mechanism, got epsilon=1.5",
        ),
        (
            lambda: Gaussian.for_attack(size=1, epsilon=1, delta=1.5, norm=2),
            r"delta must be in \(0, 1\), got delta=1.5",
        ),
        (
            lambda: Gaussian(scale=1.0, norm=2).epsilon(size=5.0, delta=0.05),
            "classical formula holds for epsilon up to 1, got epsilon=12.69",
        ),
        (lambda: Laplace.for_attack(size=-1, epsilon=1, norm=1), "size must be a finite number"),
    ],
)
def test_impossible_parameters_are_refused(build: object, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        build()  # type: ignore[operator]


def test_numbers_are_keyword_only() -> None:
    with pytest.raises(TypeError):
        Gaussian(0.5, 2)  # type: ignore[call-arg]


def loss_of(mechanism: Mechanism, shift: float) -> Any:  # noqa: ANN401 - the other side's type
    """The privacy loss as dp-accounting has it: sensitivity 1 and the noise of that shift."""
    from dp_accounting.pld import privacy_loss_mechanism as oracle

    kind = oracle.GaussianPrivacyLoss if mechanism.name == "gaussian" else oracle.LaplacePrivacyLoss
    return kind(1 / shift)


@by_name
@pytest.mark.parametrize("shift", [0.05, 0.5, 1.0, 3.0])
def test_profile_agrees_with_an_independent_accountant(mechanism: Mechanism, shift: float) -> None:
    loss = loss_of(mechanism, shift)
    for epsilon in (0.0, 0.01, 0.3, 1.0, 2.5, 6.0):
        expected = loss.get_delta_for_epsilon(epsilon)
        ours = float(mechanism.profile(epsilon, shift))
        assert ours == pytest.approx(expected, rel=1e-9, abs=1e-15)


@by_name
@pytest.mark.parametrize("shift", [0.3, 1.0, 2.0])
def test_trade_off_is_what_the_accountants_profile_implies(
    mechanism: Mechanism, shift: float
) -> None:
    """Every (ε, δ) bounds an event from below, twice: itself, and through its complement."""
    loss = loss_of(mechanism, shift)
    epsilons = np.linspace(0, 12, 6001)
    deltas = np.array([loss.get_delta_for_epsilon(epsilon) for epsilon in epsilons])
    for p in (0.05, 0.3, 0.5, 0.62, 0.8, 0.97, 0.999):
        direct = np.exp(-epsilons) * (p - deltas)
        through = 1 - np.exp(epsilons) * (1 - p) - deltas
        expected = max(direct.max(), through.max())
        assert float(mechanism.least_after(p, shift)) == pytest.approx(expected, abs=2e-6)


@by_name
@given(epsilon=st.floats(0, 20), log_delta=st.floats(-200, -1e-6))
def test_exact_shift_inverts_the_profile_from_below(
    mechanism: Mechanism, epsilon: float, log_delta: float
) -> None:
    delta = math.exp(log_delta)
    shift = float(mechanism.exact_shift(np.array(epsilon), np.array(delta)))
    assert float(mechanism.profile(epsilon, shift)) <= delta
    if epsilon > 1e-3 and log_delta > -25:
        assert float(mechanism.profile(epsilon, shift * (1 + 1e-5))) > delta * (1 - 1e-9)


@by_name
@pytest.mark.parametrize("order", [1.001, 1.5, 2.0, 7.0])
def test_renyi_divergence_is_the_integral(mechanism: Mechanism, order: float) -> None:
    grid = np.linspace(-60, 60, 400_001)
    law = stats.norm if mechanism.name == "gaussian" else stats.laplace
    for shift in (0.2, 1.0):
        inside = order * law.logpdf(grid) + (1 - order) * law.logpdf(grid - shift)
        integral = np.exp(inside).sum() * (grid[1] - grid[0])
        expected = math.log(integral) / (order - 1)
        assert float(mechanism.renyi(order, shift)) == pytest.approx(expected, rel=1e-3)
        back = mechanism.renyi_shift(np.array(order), np.array(mechanism.renyi(order, shift)))
        assert shift * (1 - 1e-5) < float(back) <= shift * (1 + 1e-12)


@by_name
def test_what_a_mechanism_does_not_know_in_closed_form_is_found_by_a_root(
    mechanism: Mechanism,
) -> None:
    from pixeldp.mechanisms import Mechanism as General

    lower, upper = np.array([0.6, 0.9, 0.4]), np.array([0.4, 0.02, 0.1])
    pairs = [
        (General.largest_shift(mechanism, lower, upper), mechanism.largest_shift(lower, upper)),
        (
            General.exact_shift(mechanism, np.array([0.1, 1.0]), np.array([0.2, 1e-5])),
            mechanism.exact_shift(np.array([0.1, 1.0]), np.array([0.2, 1e-5])),
        ),
        (
            General.renyi_shift(mechanism, np.array([1.5, 3.0]), np.array([0.2, 1.0])),
            mechanism.renyi_shift(np.array([1.5, 3.0]), np.array([0.2, 1.0])),
        ),
    ]
    for by_root, closed in pairs:
        assert by_root == pytest.approx(closed, rel=1e-8)


def test_spreading_a_laplace_shift_is_never_worse_for_the_defender() -> None:
    """On a grid of equal masses in two dimensions, the best test against a spread shift."""
    size, laplace = 900, Laplace(scale=1.0, norm=1)
    points = stats.laplace.ppf((np.arange(size) + 0.5) / size)
    for total in (0.5, 2.0):
        for share in (0.5, 0.7, 0.9):
            logs = [
                np.abs(points) - np.abs(points - part)
                for part in (share * total, (1 - share) * total)
            ]
            ratio = np.sort(np.exp(logs[0][:, None] + logs[1][None, :]).ravel())
            least = np.cumsum(ratio) / ratio.size
            for p in (0.2, 0.5, 0.8, 0.95):
                spread = least[int(p * ratio.size) - 1]
                assert spread >= float(laplace.least_after(p, total)) - 2e-3


@dataclass(frozen=True, kw_only=True)
class Uniform(Mechanism_):
    """Noise in [−scale, scale]: a shift of 1-norm L moves any probability by at most L / 2 scale.

    All that another mechanism needs: how it is drawn, and what a shift can do.
    """

    name: ClassVar[str] = "uniform"
    q: ClassVar[int] = 1

    def fill(self, out: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        return out.uniform_(-self.scale, self.scale, generator=generator)

    def least_after(self, probability: object, shift: object) -> np.ndarray:
        return np.maximum(np.asarray(probability) - np.asarray(shift) / 2, 0.0)


def test_another_mechanism_is_one_class() -> None:
    from pixeldp import PixelDP, certified_radius, certify

    noise = Uniform(scale=2.0, norm=1)
    radius = certified_radius([0.9, 0.6], [0.1, 0.3], noise)
    assert radius == pytest.approx([2.0 * 0.8, 2.0 * 0.3], rel=1e-9)
    for certificate in ("dp", "analytic", "renyi"):
        with pytest.raises(
            InvalidArgument, match="is not available for uniform noise; take 'tight'"
        ):
            certified_radius(0.9, 0.1, noise, certificate=certificate)
    network = torch.nn.Linear(2, 2, bias=False)
    network.weight.data = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    made = certify(PixelDP(network, noise), torch.tensor([[1.0, 0.0]]), draws=2000, seed=1)  # type: ignore[arg-type]
    assert 0.7 < made.radius[0] < 1.0  # E A = 3/4, and the boundary is at distance 1
