from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pixeldp.bounds import METHODS, check_draws, confidence_bounds, least_draws
from pixeldp.errors import InvalidArgument, TooFewDraws

by_method = pytest.mark.parametrize("method", sorted(METHODS))


def failure_probability(method: str, p: float, draws: int, confidence: float) -> float:
    """The exact probability that any of the four bounds on two labels misses: no simulation."""
    counts = np.arange(draws + 1)
    pairs = np.stack([counts, draws - counts], axis=1)
    lower, upper = confidence_bounds(pairs, draws, confidence=confidence, method=method)
    truth = np.array([p, 1 - p])
    misses = ((truth < lower) | (truth > upper)).any(axis=1)
    return float(stats.binom.pmf(counts, draws, p) @ misses)


@by_method
@pytest.mark.parametrize("draws", [1, 7, 40, 300])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.999])
def test_bounds_hold_together_at_their_confidence(
    method: str, draws: int, confidence: float
) -> None:
    worst = max(
        failure_probability(method, p, draws, confidence) for p in np.linspace(0.001, 0.999, 301)
    )
    assert worst <= (1 - confidence) * (1 + 1e-9)


def test_the_coverage_test_would_see_a_dropped_union() -> None:
    """Every side at alpha itself is what confidence 1 − 2K alpha spends here."""
    dropped = 1 - 4 * (1 - 0.95)
    worst = max(
        failure_probability("clopper-pearson", p, 300, dropped)
        for p in np.linspace(0.001, 0.999, 301)
    )
    assert worst > 1 - 0.95


@given(draws=st.integers(1, 5000), share=st.floats(0, 1), labels=st.integers(2, 50))
def test_clopper_pearson_inverts_the_binomial(draws: int, share: float, labels: int) -> None:
    count = round(share * draws)
    counts = np.zeros(labels)
    counts[0], counts[1] = count, draws - count
    lower, upper = confidence_bounds(counts, draws, confidence=0.99)
    beta = 0.01 / (2 * labels)
    if count > 0:
        assert stats.binom.sf(count - 1, draws, lower[0]) == pytest.approx(beta, rel=1e-6)
    else:
        assert lower[0] == 0.0
    if count < draws:
        assert stats.binom.cdf(count, draws, upper[0]) == pytest.approx(beta, rel=1e-6)
    else:
        assert upper[0] == 1.0


def test_hoeffding_is_the_papers_formula() -> None:
    lower, upper = confidence_bounds([60.5, 39.5], 100, confidence=0.9, method="hoeffding")
    width = math.sqrt(math.log(2 * 2 / 0.1) / (2 * 100))
    assert lower == pytest.approx([0.605 - width, 0.395 - width])
    assert upper == pytest.approx([0.605 + width, 0.395 + width])


@by_method
@given(counts=st.lists(st.integers(0, 1000), min_size=2, max_size=8))
def test_bounds_enclose_the_mean_and_stay_probabilities(method: str, counts: list[int]) -> None:
    draws = max(sum(counts), 1)
    lower, upper = confidence_bounds(counts, draws, method=method)
    mean = np.array(counts) / draws
    assert (lower >= 0).all()
    assert (lower <= mean).all()
    assert (mean <= upper).all()
    assert (upper <= 1).all()


def test_each_input_may_have_its_own_draws() -> None:
    together = confidence_bounds([[5, 5], [50, 50]], [10, 100])
    alone = [confidence_bounds([5, 5], 10), confidence_bounds([50, 50], 100)]
    for side in (0, 1):
        assert together[side].tolist() == [alone[0][side].tolist(), alone[1][side].tolist()]


@pytest.mark.parametrize(
    ("labels", "confidence", "method", "least"),
    [(10, 0.999, "clopper-pearson", 15), (10, 0.999, "hoeffding", 20)],
)
def test_least_draws_is_the_least(labels: int, confidence: float, method: str, least: int) -> None:
    assert least_draws(labels=labels, confidence=confidence, method=method) == least
    for draws, certifies in ((least, True), (least - 1, False)):
        counts = np.zeros(labels)
        counts[0] = draws
        lower, upper = confidence_bounds(counts, draws, confidence=confidence, method=method)
        assert (lower[0] > min(upper[1], 1 - lower[0])) is np.bool_(certifies)


def test_too_few_draws_names_the_least_number() -> None:
    check_draws(15, labels=10, confidence=0.999, method="clopper-pearson")
    with pytest.raises(TooFewDraws, match=r"at least 15 .* 10 labels at confidence=0.999 .*=14"):
        check_draws(14, labels=10, confidence=0.999, method="clopper-pearson")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"counts": [1, 2], "draws": 0}, "draws must be whole numbers of at least 1, got draws=0"),
        ({"counts": [1, 2], "draws": 2.5}, "draws must be whole numbers"),
        ({"counts": [1, 9], "draws": 8}, "between 0 and draws, got counts from 1 to 9"),
        ({"counts": [-1, 2], "draws": 8}, "between 0 and draws"),
        ({"counts": [math.nan, 2], "draws": 8}, "between 0 and draws"),
        ({"counts": [1.5, 2.5], "draws": 8}, "clopper-pearson needs whole counts"),
        ({"counts": [3], "draws": 8}, "at least two labels on the last axis"),
        ({"counts": [1, 2], "draws": 8, "confidence": 1.0}, r"confidence must be in \(0, 1\)"),
        ({"counts": [1, 2], "draws": 8, "confidence": 0.0}, r"confidence must be in \(0, 1\)"),
        ({"counts": [1, 2], "draws": 8, "method": "wald"}, "method must be one of"),
    ],
)
def test_impossible_arguments_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        confidence_bounds(**arguments)  # type: ignore[arg-type]


def test_a_confidence_that_no_draws_reach_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="confidence"):
        least_draws(labels=2, confidence=1 - 1e-17, method="hoeffding")
