from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pixeldp import Gaussian, Laplace, certified_radius
from pixeldp.certificates import CERTIFICATES, SEPARATE, tight, top_k_radius
from pixeldp.errors import InvalidArgument
from pixeldp.mechanisms import Mechanism

GAUSSIAN = Gaussian(scale=1.0, norm=2)
LAPLACE = Laplace(scale=1.0, norm=1)
by_noise = pytest.mark.parametrize("noise", [GAUSSIAN, LAPLACE], ids=lambda m: m.name)
by_certificate = pytest.mark.parametrize("certificate", sorted(CERTIFICATES))

probability = st.floats(0, 1)


@st.composite
def leading(draw: st.DrawFn) -> tuple[float, float]:
    first, second = draw(probability), draw(probability)
    return max(first, second), min(first, second)


@pytest.mark.parametrize(
    ("lower", "dp", "fixed", "analytic", "renyi", "best"),
    [
        (0.6, 0.059, 0.042, 0.251, 0.202, 0.253),
        (0.8, 0.235, 0.235, 0.771, 0.674, 0.842),
        (0.9, 0.390, 0.388, 1.049, 1.032, 1.282),
        (0.99, 0.555, 0.394, 1.318, 1.908, 2.326),
        (0.999, 0.569, 0.394, 1.420, 2.576, 3.090),
    ],
)
def test_gaussian_radii_against_the_rest(
    lower: float, dp: float, fixed: float, analytic: float, renyi: float, best: float
) -> None:
    expected = {"dp": dp, "analytic": analytic, "renyi": renyi, "tight": best}
    for certificate, value in expected.items():
        radius = certified_radius(lower, 1 - lower, GAUSSIAN, certificate=certificate)
        assert float(radius) == pytest.approx(value, abs=6e-4)
    radius = certified_radius(lower, 1 - lower, GAUSSIAN, certificate="dp", delta=0.05)
    assert float(radius) == pytest.approx(fixed, abs=6e-4)


@given(pair=leading(), delta=st.floats(1e-6, 0.5))
def test_a_fixed_delta_never_beats_the_best(pair: tuple[float, float], delta: float) -> None:
    fixed = certified_radius(*pair, GAUSSIAN, certificate="dp", delta=delta)
    assert fixed <= certified_radius(*pair, GAUSSIAN, certificate="dp") * (1 + 1e-9) + 1e-12


@by_noise
@given(pair=leading())
def test_analytic_is_the_best_pair_of_the_exact_profile(
    noise: Mechanism, pair: tuple[float, float]
) -> None:
    """Brute force over ε at the returned radius and a little beyond it."""
    lower, upper = pair
    radius = float(certified_radius(lower, upper, noise, certificate="analytic"))
    if radius < 1e-3 or math.isinf(radius) or upper < 1e-12:
        return
    epsilon = np.linspace(0, math.log(lower / upper) / 2, 20_001)

    def holds(shift: float) -> bool:
        delta = noise.profile(epsilon, np.full_like(epsilon, shift))
        return bool((lower > np.exp(2 * epsilon) * upper + (1 + np.exp(epsilon)) * delta).any())

    assert holds(radius * (1 - 1e-3))
    assert not holds(radius * (1 + 2e-3))


def test_renyi_is_the_supremum_over_orders() -> None:
    orders = 1 + np.exp(np.linspace(-8, 4, 20_001))
    for lower, upper in ((0.6, 0.4), (0.9, 0.05), (0.5, 0.1), (0.99, 1e-4)):
        mean = ((lower ** (1 - orders) + upper ** (1 - orders)) / 2) ** (1 / (1 - orders))
        inside = 1 - lower - upper + 2 * mean
        brute = math.sqrt(float((-2 / orders * np.log(inside)).max()))
        radius = float(certified_radius(lower, upper, GAUSSIAN, certificate="renyi"))
        assert radius == pytest.approx(brute, rel=1e-5)


def worst_rank(p: np.ndarray, label: int, shift: float) -> int:
    """How many labels can reach the label's score at that shift, each by its own worst case."""
    least = GAUSSIAN.least_after(p[label], shift)
    most = 1 - GAUSSIAN.least_after(1 - p, shift)
    return int((np.delete(most, label) >= least).sum())


@given(weights=st.lists(st.floats(0.01, 1), min_size=4, max_size=7), k=st.integers(1, 3))
def test_top_k_is_counting_who_can_overtake(weights: list[float], k: int) -> None:
    p = np.array(weights) / sum(weights)
    label = 0
    radius = float(top_k_radius(p[label], np.delete(p, label), GAUSSIAN, k=k))
    if radius > 0:
        assert worst_rank(p, label, radius * (1 - 1e-9)) < k
    # The cap on the k-th largest can only help, where scores sum to 1 it never changes the truth.
    assert worst_rank(p, label, radius * (1 + 1e-6) + 1e-6) >= k


def test_top_one_is_the_usual_certificate_and_grows_with_k() -> None:
    others = [0.3, 0.1, 0.05, 0.02]
    for certificate in SEPARATE:
        radii = [
            float(top_k_radius(0.4, others, GAUSSIAN, k=k, certificate=certificate))
            for k in (1, 2, 3, 4)
        ]
        usual = float(certified_radius(0.4, 0.3, GAUSSIAN, certificate=certificate))
        assert radii[0] == usual
        assert radii == sorted(radii)
    with pytest.raises(
        InvalidArgument, match="certificate must be one of 'dp', 'analytic', 'tight'"
    ):
        top_k_radius(0.4, others, GAUSSIAN, k=1, certificate="renyi")
    with pytest.raises(InvalidArgument, match=r"k must be from 1 to 4, .* got k=5"):
        top_k_radius(0.4, others, GAUSSIAN, k=5)
    with pytest.raises(InvalidArgument, match="k must be a whole number"):
        top_k_radius(0.4, others, GAUSSIAN, k=2.5)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="delta is for"):
        certified_radius(0.9, 0.1, LAPLACE, certificate="dp", delta=0.05)
    with pytest.raises(InvalidArgument, match=r"got \(1,\) and \(4,\)"):
        top_k_radius([0.4], others, GAUSSIAN, k=1)


def test_laplace_radii_in_closed_form() -> None:
    lower, upper = 0.9, 0.1
    dp = certified_radius(lower, upper, LAPLACE, certificate="dp")
    assert float(dp) == pytest.approx(0.5 * math.log(lower / upper))
    best = certified_radius(lower, upper, LAPLACE)
    assert float(best) == pytest.approx(math.log(1 / (2 * (1 - lower))))


@by_noise
@settings(max_examples=300)
@given(pair=leading())
def test_the_certificates_are_ordered(noise: Mechanism, pair: tuple[float, float]) -> None:
    """tight ≥ renyi, and tight ≥ analytic ≥ dp, everywhere."""
    radius = {name: certified_radius(*pair, noise, certificate=name) for name in CERTIFICATES}
    room = 1 + 1e-11
    assert radius["tight"] * room + 1e-11 >= radius["analytic"]
    assert radius["analytic"] >= radius["dp"]
    assert radius["tight"] * room + 1e-11 >= radius["renyi"]


@by_noise
@by_certificate
@given(pair=leading(), other=leading())
def test_radius_grows_with_lower_and_falls_with_upper(
    noise: Mechanism, certificate: str, pair: tuple[float, float], other: tuple[float, float]
) -> None:
    better = certified_radius(
        max(pair[0], other[0]), min(pair[1], other[1]), noise, certificate=certificate
    )
    radius = certified_radius(*pair, noise, certificate=certificate)
    assert better >= radius * (1 - 1e-9) - 1e-9


@by_noise
@by_certificate
@given(lower=probability, upper=probability)
def test_no_lead_no_radius_and_never_nan(
    noise: Mechanism, certificate: str, lower: float, upper: float
) -> None:
    radius = float(certified_radius(lower, upper, noise, certificate=certificate))
    assert radius >= 0
    if lower <= upper:
        assert radius == 0.0


@given(pair=leading())
def test_gaussian_tight_is_strictly_below_the_exact_value(pair: tuple[float, float]) -> None:
    """In fifty digits, the label still leads at the returned radius: it was rounded down."""
    radius = float(certified_radius(*pair, GAUSSIAN))
    if radius == 0.0 or math.isinf(radius):
        return
    with mpmath.workdps(50):
        lower, upper = (mpmath.mpf(p) for p in pair)
        if upper == 0 or lower == 1:
            return
        exact = (_quantile(lower) - _quantile(upper)) / 2
        assert mpmath.mpf(radius) < exact
        assert mpmath.mpf(radius) > exact * (1 - mpmath.mpf("1e-9")) - mpmath.mpf("1e-9")


def _quantile(p: mpmath.mpf) -> mpmath.mpf:
    """The normal quantile in high precision, by Newton from the double's value."""
    from scipy import special

    z = mpmath.mpf(float(special.ndtri(float(p))))
    for _ in range(6):
        z -= (mpmath.ncdf(z) - p) / mpmath.npdf(z)
    return z


@given(pair=leading())
def test_gaussian_dp_is_the_best_epsilon_and_delta_of_the_box(pair: tuple[float, float]) -> None:
    """Brute force over epsilon and, independently, over delta: L_max box of §3.4."""
    lower, upper = pair
    epsilon = np.linspace(1e-3, 1, 400)[:, None]
    delta = np.geomspace(1e-6, 0.5, 400)[None, :]
    holds = lower > np.exp(2 * epsilon) * upper + (1 + np.exp(epsilon)) * delta
    covered = np.where(holds, epsilon / np.sqrt(2 * np.log(1.25 / delta)), 0.0)
    brute = float(covered.max())
    radius = float(certified_radius(lower, upper, GAUSSIAN, certificate="dp"))
    assert radius >= brute - 1e-9
    assert radius <= brute * 1.02 + 2e-3  # the grid is that coarse


@given(pair=leading())
def test_gaussian_dp_satisfies_the_condition_it_claims(pair: tuple[float, float]) -> None:
    """At the returned radius some allowed (epsilon, delta) must exist, checked from the radius."""
    lower, upper = pair
    radius = float(certified_radius(lower, upper, GAUSSIAN, certificate="dp"))
    if radius == 0.0:
        return
    epsilon = np.linspace(1e-6, 1, 200_001)
    delta = 1.25 * np.exp(-((epsilon / radius) ** 2) / 2)
    allowed = np.exp(2 * epsilon) * upper + (1 + np.exp(epsilon)) * delta
    assert (lower > allowed - 1e-7).any()


@by_certificate
def test_radius_scales_with_noise_and_shrinks_with_sensitivity(certificate: str) -> None:
    wide, narrow = Gaussian(scale=2.0, norm=2), Gaussian(scale=0.5, norm=2)
    radius = certified_radius(0.9, 0.05, wide, certificate=certificate)
    quarter = certified_radius(0.9, 0.05, narrow, certificate=certificate)
    assert float(radius) == pytest.approx(4 * float(quarter))
    halved = certified_radius(0.9, 0.05, wide, certificate=certificate, sensitivity=2.0)
    assert float(halved) == pytest.approx(float(radius) / 2)


@by_certificate
def test_many_pairs_are_the_same_as_each_alone(certificate: str) -> None:
    """Across the parts in which they are computed, and for none at all."""
    rng = np.random.default_rng(0)
    lower = rng.uniform(0.5, 1, size=(2, 9000))
    upper = (1 - lower) * rng.random(lower.shape)
    radius = certified_radius(lower, upper, GAUSSIAN, certificate=certificate)
    assert radius.shape == lower.shape
    for place in ((0, 0), (0, 8999), (1, 7383), (1, 7384), (1, 7385)):
        alone = certified_radius(lower[place], upper[place], GAUSSIAN, certificate=certificate)
        assert float(radius[place]) == float(alone)
    assert certified_radius([], [], GAUSSIAN, certificate=certificate).shape == (0,)


def test_arrays_broadcast() -> None:
    radius = certified_radius([[0.9], [0.8]], [0.1, 0.2, 0.3], GAUSSIAN)
    assert radius.shape == (2, 3)
    assert float(radius[1, 2]) == float(certified_radius(0.8, 0.3, GAUSSIAN))


def test_extremes_touch_at_the_largest_shift() -> None:
    lower, upper = np.array(0.85), np.array(0.12)
    at = float(tight.shift(lower, upper, GAUSSIAN))
    least, _ = tight.extremes(lower, lower, at, GAUSSIAN)
    _, most = tight.extremes(upper, upper, at, GAUSSIAN)
    assert float(least) == pytest.approx(float(most))


def test_false_certificates_are_as_rare_as_stated_in_an_exact_world() -> None:
    """A linear classifier's true radius is known: the distance of the input to the boundary.

    With noise of scale 1 and an input at distance d, ``E A(x) = Φ(d)`` and the expected-score
    label cannot change within d. Certified further is false.
    """
    from scipy import stats

    from pixeldp import confidence_bounds

    rng, trials, draws, distance = np.random.default_rng(3), 20_000, 1000, 0.7
    counts = rng.binomial(draws, stats.norm.cdf(distance), size=trials)
    pairs = np.stack([counts, draws - counts], axis=1)
    lower, upper = confidence_bounds(pairs, draws, confidence=0.95)

    def false_share(low: np.ndarray, up: np.ndarray, scale: float) -> float:
        radius = certified_radius(low, up, Gaussian(scale=scale, norm=2))
        return float((radius > distance).mean())

    allowed = stats.binom.ppf(0.999, trials, 0.05) / trials
    assert false_share(lower[:, 0], upper[:, 1], 1.0) <= allowed
    # The test sees: means without bounds, and a scale that is a tenth too large.
    means = pairs / draws
    assert false_share(means[:, 0], means[:, 1], 1.0) > allowed
    assert false_share(lower[:, 0], upper[:, 1], 1.1) > allowed


@pytest.mark.parametrize(
    ("lower", "upper", "options", "message"),
    [
        (1.2, 0.1, {}, r"lower must lie in \[0, 1\], got lower=1.2"),
        (0.9, -0.1, {}, r"upper must lie in \[0, 1\], got upper=-0.1"),
        (math.nan, 0.1, {}, r"lower must lie in \[0, 1\], got lower=nan"),
        (0.9, 0.1, {"certificate": "loose"}, "certificate must be one of 'dp', 'analytic'"),
        (0.9, 0.1, {"delta": 0.05}, "delta is for certificate='dp' with Gaussian noise only"),
        (0.9, 0.1, {"certificate": "dp", "delta": 2.0}, r"delta must be in \(0, 1\)"),
        (0.9, 0.1, {"sensitivity": 0.0}, "sensitivity must be a finite number above 0"),
        ([0.9, 0.8], [0.1, 0.1, 0.1], {}, r"shapes that fit, got \(2,\) and \(3,\)"),
    ],
)
def test_impossible_arguments_are_refused(
    lower: object, upper: object, options: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        certified_radius(lower, upper, GAUSSIAN, **options)  # type: ignore[arg-type]


def test_dp_refuses_a_mechanism_it_does_not_know() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Other(Mechanism):
        name: ClassVar[str] = "other"
        q: ClassVar[int] = 2
        fill = least_after = largest_shift = None  # type: ignore[assignment]

    with pytest.raises(InvalidArgument, match="certificate='dp' is not available for other noise"):
        certified_radius(0.9, 0.1, Other(scale=1.0, norm=2), certificate="dp")
