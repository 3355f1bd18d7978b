from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixeldp import Gaussian, Laplace, certified_radius
from pixeldp.certificates import CERTIFICATES, tight
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
    ("lower", "dp", "best"),
    [
        (0.6, 0.059, 0.253),
        (0.8, 0.235, 0.842),
        (0.9, 0.390, 1.282),
        (0.99, 0.555, 2.326),
        (0.999, 0.569, 3.090),
    ],
)
def test_gaussian_radii_against_the_rest(lower: float, dp: float, best: float) -> None:
    for certificate, expected in (("dp", dp), ("tight", best)):
        radius = certified_radius(lower, 1 - lower, GAUSSIAN, certificate=certificate)
        assert float(radius) == pytest.approx(expected, abs=5e-4)


def test_laplace_radii_in_closed_form() -> None:
    lower, upper = 0.9, 0.1
    dp = certified_radius(lower, upper, LAPLACE, certificate="dp")
    assert float(dp) == pytest.approx(0.5 * math.log(lower / upper))
    best = certified_radius(lower, upper, LAPLACE)
    assert float(best) == pytest.approx(math.log(1 / (2 * (1 - lower))))


@by_noise
@given(pair=leading())
def test_tight_is_never_below_dp(noise: Mechanism, pair: tuple[float, float]) -> None:
    dp = certified_radius(*pair, noise, certificate="dp")
    best = certified_radius(*pair, noise, certificate="tight")
    assert best >= dp * (1 - 1e-12) - 1e-12


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
        (0.9, 0.1, {"certificate": "loose"}, "certificate must be one of 'dp', 'tight'"),
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
        sample = least_after = largest_shift = None  # type: ignore[assignment]

    with pytest.raises(InvalidArgument, match="does not know the mechanism 'other'"):
        certified_radius(0.9, 0.1, Other(scale=1.0, norm=2), certificate="dp")
