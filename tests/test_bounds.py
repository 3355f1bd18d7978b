from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from pixeldp.bounds import (
    PLANS,
    Spending,
    bounds_for,
    check_draws,
    confidence_bounds,
    least_draws,
)
from pixeldp.bounds.methods import METHODS
from pixeldp.bounds.sums import checked_sums
from pixeldp.errors import InvalidArgument, TooFewDraws
from pixeldp.sketches import PLACES, sketch_of

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
    [
        (10, 0.999, "clopper-pearson", 15),
        (10, 0.999, "hoeffding", 20),
        (10, 0.999, "bernstein", 51),
    ],
)
def test_least_draws_is_the_least(labels: int, confidence: float, method: str, least: int) -> None:
    assert least_draws(labels=labels, confidence=confidence, method=method) == least
    for draws, certifies in ((least, True), (least - 1, False)):
        counts = np.zeros(labels)
        counts[0] = draws
        lower, upper = confidence_bounds(counts, draws, confidence=confidence, method=method)
        assert (lower[0] > min(upper[1], 1 - lower[0])) is np.bool_(certifies)


@by_method
def test_a_label_chosen_beforehand_needs_fewer_draws(method: str) -> None:
    needed = [least_draws(labels=10, confidence=0.999, method=method, plan=p) for p in PLANS]
    union, rest, every = needed
    assert rest < every <= union


@pytest.mark.parametrize("labels", [2, 7])
def test_each_plan_spends_exactly_its_alpha(labels: int) -> None:
    for plan, sides in (("union", 2 * labels), ("rest", 1), ("all", labels)):
        spending = Spending(alpha=0.05, plan=plan, labels=labels)
        each = spending.level / (2 if spending.two_sided else 1)
        assert sides * each == pytest.approx(0.05)


def test_a_plan_bounds_what_it_pays_for() -> None:
    counts = np.array([[60, 30, 10], [20, 70, 10]])
    label = np.array([0, 1])
    sums = checked_sums(counts, 100)
    made = {
        plan: bounds_for(sums, confidence=0.95, method="clopper-pearson", plan=plan, label=label)
        for plan in PLANS
    }
    for plan, beta in (("union", 0.05 / 6), ("rest", 0.05), ("all", 0.05 / 3)):
        bounds = made[plan]
        # The p at which as many successes or more have probability beta.
        tail = stats.binom.sf(59, 100, bounds.lower[0, 0])
        assert tail == pytest.approx(beta, rel=1e-6)
        assert bounds.spending.plan == plan
    assert made["rest"].upper[0, 1] == pytest.approx(1 - made["rest"].lower[0, 0])
    assert made["rest"].lower[0, 1] == 0.0
    tail = stats.binom.cdf(30, 100, made["all"].upper[0, 1])
    assert tail == pytest.approx(0.05 / 3, rel=1e-6)
    with pytest.raises(InvalidArgument, match="plan='rest' needs a label chosen"):
        bounds_for(sums, confidence=0.95, method="hoeffding", plan="rest")


def test_simultaneous_bounds_divide_alpha_by_the_inputs() -> None:
    sums = checked_sums(np.array([[60, 40]] * 5), 100)
    together = bounds_for(sums, confidence=0.95, method="clopper-pearson", simultaneous=True)
    alone = bounds_for(sums, confidence=0.99, method="clopper-pearson")
    assert together.lower == pytest.approx(alone.lower, rel=1e-9)
    assert together.spending.alpha == pytest.approx(0.01)
    assert together.confidence == 0.95


def test_bernstein_is_the_formula() -> None:
    scores = np.array([[0.9, 0.1], [0.7, 0.3], [0.8, 0.2], [0.6, 0.4]])
    lower, upper = confidence_bounds(
        scores.sum(0), 4, method="bernstein", squares=(scores**2).sum(0), confidence=0.2
    )
    log = math.log(2 / (0.8 / 4))
    width = math.sqrt(2 * scores[:, 0].var(ddof=1) * log / 4) + 7 * log / (3 * 3)
    assert upper[0] == min(1.0, 0.75 + width)
    assert lower[0] == max(0.0, 0.75 - width)
    many = np.tile(scores, (2000, 1))
    lower, _ = confidence_bounds(
        many.sum(0), 8000, method="bernstein", squares=(many**2).sum(0), confidence=0.2
    )
    width = math.sqrt(2 * many[:, 0].var(ddof=1) * log / 8000) + 7 * log / (3 * 7999)
    assert lower[0] == pytest.approx(0.75 - width, rel=1e-9)


def test_beta_binomial_is_where_the_mixture_reaches_its_level() -> None:
    """p stays while B(1 + c, 1 + n − c) < p^c (1 − p)^(n − c) / level."""
    counts, draws, alpha = [70, 30], 100, 0.1
    lower, upper = confidence_bounds(counts, draws, confidence=1 - alpha, method="beta-binomial")
    for end in (lower[0], upper[0]):
        mixture = special.betaln(71, 31) - (70 * math.log(end) + 30 * math.log(1 - end))
        assert math.exp(mixture) == pytest.approx(2 / alpha, rel=1e-6)


def test_betting_is_where_the_capital_reaches_one_over_beta() -> None:
    from pixeldp.bounds.methods import _FRACTIONS

    rng = np.random.default_rng(2)
    scores = rng.beta(5, 2, size=300)
    both = np.stack([scores, 1 - scores], axis=1)
    sketch = sketch_of(both)
    lower, _ = confidence_bounds(both.sum(0), 300, method="betting", sketch=sketch)
    payoffs = 1 + _FRACTIONS[:, None] * (PLACES / lower[0] - 1)
    capital = np.exp(sketch[0] @ np.log(payoffs).T).mean()
    assert capital == pytest.approx(4 / 0.05, rel=1e-6)


def test_what_a_method_needs_is_asked_for() -> None:
    soft = [[1.5, 2.5]]
    with pytest.raises(InvalidArgument, match="needs the sums of squared scores"):
        confidence_bounds(soft, 4, method="bernstein")
    with pytest.raises(InvalidArgument, match="needs a sketch of softmax scores"):
        confidence_bounds(soft, 4, method="betting")
    with pytest.raises(InvalidArgument, match="squares must be sums of squares"):
        confidence_bounds(soft, 4, method="bernstein", squares=[[3.0, 2.0]])
    with pytest.raises(InvalidArgument, match="sketch must have 29 weights"):
        confidence_bounds(soft, 4, method="betting", sketch=np.ones((1, 2, 29)))
    with pytest.raises(InvalidArgument, match="beta-binomial needs whole counts"):
        confidence_bounds(soft, 4, method="beta-binomial")


@by_method
def test_no_success_and_nothing_but_success_are_right(method: str) -> None:
    empty = confidence_bounds(np.zeros((0, 3)), np.zeros(0), method=method)
    assert [side.shape for side in empty] == [(0, 3), (0, 3)]
    for draws in (1, 50, 10**6):
        lower, upper = confidence_bounds([[0, draws]], draws, method=method)
        assert lower[0, 0] == 0.0
        assert upper[0, 1] == 1.0
        assert not np.isnan([lower, upper]).any()
        if draws > 50:
            assert upper[0, 0] < 0.01
            assert lower[0, 1] > 0.99


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
