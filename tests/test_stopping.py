"""Stopping rules in worlds whose expected scores are known: what they prove is rarely false."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest
from scipy import stats

from pixeldp import Gaussian, stopping
from pixeldp.bounds import methods
from pixeldp.bounds.planned import planned_looks
from pixeldp.scores import Drawn
from pixeldp.sketches import PLACES, sketch_of
from pixeldp.stopping import Duel, Evidence, Exactly, Ladder, Rule, Within, forecast, lower_bound
from pixeldp.tasks import radius_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    Array = npt.NDArray[np.float64]
    Whole = npt.NDArray[np.int64]
    Marks = npt.NDArray[np.bool_]

ALPHA, TRIALS = 0.05, 10_000
LOOKS = planned_looks(600, step=32)
FEW = planned_looks(400, step=32, growth=2.0)
# What an expectation just below a target is: to reach the target is to be wrong.
JUST_BELOW = 1 - 1e-9


@dataclass(frozen=True)
class World:
    """Draws of one input give ``rows[j]``, scores of all labels, with probability ``shares[j]``.

    The label is fixed beforehand: it is number 0, or the one that ``selection`` draws choose.
    """

    rows: tuple[tuple[float, ...], ...]
    shares: tuple[float, ...]
    kind: str = "argmax"

    @property
    def expected(self) -> Array:
        return np.asarray(np.array(self.shares) @ np.array(self.rows))

    def falls(self, looks: tuple[int, ...], trials: int, seed: int) -> Whole:
        """How many draws gave each row up to every look, ``[trials, looks, rows]``."""
        rng = np.random.default_rng(seed)
        steps = np.diff(np.array([0, *looks]))
        return np.asarray(rng.multinomial(steps, self.shares, (trials, len(looks))).cumsum(axis=1))

    def drawn(self, falls: Whole, label: int) -> Drawn:
        """What such draws leave behind; for a duel of soft scores, with the sketch of the leads."""
        rows = np.array(self.rows)
        made = Drawn.nothing(0, rows.shape[1], label=label)
        np.add.at(made.counts, rows.argmax(axis=1), falls)
        made.draws, made.sums, made.squares = int(falls.sum()), falls @ rows, falls @ rows**2
        if self.kind == "leads":
            rows = (1 + rows[:, [label]] - rows) / 2
        if self.kind != "argmax":
            made.sketch = np.tensordot(falls, sketch_of(rows[None]), axes=1)
        return made


def coin(p: float) -> World:
    return World(rows=((1.0, 0.0), (0.0, 1.0)), shares=(p, 1 - p))


class Ended(NamedTuple):
    """What became of every simulated input."""

    proved: Array
    evidence: Array
    draws: Whole


def drive(
    rule: Rule,
    world: World,
    *,
    trials: int = TRIALS,
    seed: int = 1,
    label: Whole | None = None,
    adversary: bool = False,
    same_draws: bool = False,
) -> Ended:
    """Ask the rule at its looks as the engine does; what is in the same state is asked once.

    ``adversary``: it is stopped at whatever look proves most. Broken on purpose: ``same_draws``
    follows the label that leads at the look, by the very draws that bound it.
    """
    falls = world.falls(rule.looks, trials, seed)
    chosen = np.zeros(trials, dtype=np.int64) if label is None else label
    proved, evidence = np.zeros(trials), np.zeros(trials)
    draws = np.zeros(trials, dtype=np.int64)
    alive = np.arange(trials)
    for at, look in enumerate(rule.looks):
        if same_draws:
            chosen = falls[:, at].argmax(axis=1)
        states = np.column_stack([falls[alive, at], chosen[alive], proved[alive], evidence[alive]])
        distinct, which = np.unique(states, axis=0, return_inverse=True)
        after = np.empty((len(distinct), 3))
        for row, (*fell, number, most, seen) in enumerate(distinct.tolist()):
            one = world.drawn(np.array(fell, dtype=np.int64), int(number))
            one.proved, one.evidence = most, seen
            ended = look == rule.looks[-1] or rule.done(one)
            if ended or adversary:
                rule.settle(one)
            after[row] = one.proved, one.evidence, ended
        proved[alive], evidence[alive], ended_at = after[which.ravel()].T
        draws[alive] = look
        alive = alive[ended_at == 0]
    return Ended(proved=proved, evidence=evidence, draws=draws)


def refuted(false: Marks, level: float = ALPHA) -> bool:
    """Whether a binomial test rejects that what is false has at most that probability."""
    test = stats.binomtest(int(false.sum()), len(false), level, alternative="greater")
    return bool(test.pvalue < 1e-3)


@pytest.fixture(autouse=True)
def _each_bound_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bound of the same draws is needed by many simulated inputs."""
    known: dict[tuple[object, ...], float] = {}

    def cached(drawn: Drawn, kind: str, bound: str, level: float, *, misses: bool = False) -> float:
        total = round(drawn.of_label(kind)[0], 9)
        key = (drawn.draws, total, drawn.label, kind, bound, level, misses)
        if key not in known:
            known[key] = lower_bound(drawn, kind, bound, level, misses=misses)
        return known[key]

    monkeypatch.setattr("pixeldp.stopping.lower_bound", cached)


TARGETS = (0.6, 0.7, 0.8, 0.9)


@pytest.mark.parametrize("level", [ALPHA, 0.2])
@pytest.mark.parametrize("targets", [TARGETS, (0.8,), (0.7, 0.8)], ids=str)
@pytest.mark.parametrize("p", [0.8 * JUST_BELOW, 0.75, 0.6 * JUST_BELOW])
def test_a_ladder_rarely_climbs_beyond_the_expectation(
    p: float, targets: tuple[float, ...], level: float
) -> None:
    ended = drive(Ladder(targets, LOOKS, level), coin(p))
    assert not refuted(ended.proved > p, level)
    assert set(ended.proved.tolist()) <= {0.0, *targets}
    # Where a target is just out of reach, much of the level is spent: the test is not idle.
    if any(0 < target - p < 1e-6 for target in targets):
        assert (ended.proved > p).mean() > 0.7 * level
    # What lies well below the expectation is nearly always proved.
    low = [target for target in targets if target < p - 0.09]
    if low:
        assert (ended.proved >= max(low)).mean() > 0.95


@pytest.mark.parametrize("p", [0.8 * JUST_BELOW, 0.65])
@pytest.mark.parametrize("bound", ["beta-binomial", "betting"])
def test_evidence_on_argmax_scores_rarely_proves_too_much(bound: str, p: float) -> None:
    ended = drive(Evidence(TARGETS, FEW, ALPHA, "argmax", bound), coin(p))
    assert not refuted(ended.proved > p)
    assert (ended.proved > p).any()
    assert (ended.proved >= 0.6).mean() > (0.99 if p > 0.7 else 0.1)


# Soft scores of the label, and what is left to the other: some variance, next to none, extremes.
SOFT = {
    "broad": World(((0.9, 0.1), (0.35, 0.65)), (0.6, 0.4), kind="softmax"),
    "narrow": World(((0.83, 0.17), (0.77, 0.23)), (0.5, 0.5), kind="softmax"),
    "rare zeros": World(((0.85, 0.15), (0.0, 1.0)), (0.95, 0.05), kind="softmax"),
}


@pytest.mark.parametrize("name", SOFT)
def test_evidence_on_soft_scores_rarely_proves_too_much(name: str) -> None:
    """At an expectation just below a target, and with the bound that is settled at the end."""
    mean = float(SOFT[name].expected[0])
    rule = Evidence((mean - 0.1, mean + 1e-9, 0.95), FEW, ALPHA, "softmax", "betting")
    ended = drive(rule, SOFT[name])
    assert not refuted(ended.proved > mean)
    assert (ended.proved >= mean - 0.1).mean() > 0.5


def tight(score: float) -> float:
    noise = Gaussian(scale=0.5, norm=2)
    return radius_of(score, noise=noise, certificate="tight", sensitivity=1.0)


@pytest.mark.parametrize(("p", "tolerance"), [(0.6, 0.12), (0.93, 0.25)])
@pytest.mark.parametrize("bound", ["beta-binomial", "betting"])
def test_drawing_until_the_radius_hardly_grows_rarely_proves_too_much(
    bound: str, p: float, tolerance: float
) -> None:
    rule = Within(tolerance, tight, FEW, ALPHA, "argmax", bound)
    ended = drive(rule, coin(p))
    assert not refuted(ended.proved > p)
    assert len(np.unique(ended.draws)) > 1  # some stop early, others do not


@pytest.mark.parametrize(("bound", "p"), [("beta-binomial", 0.8), ("betting", 0.95)])
def test_whoever_stops_a_budget_when_it_suits_rarely_proves_too_much(bound: str, p: float) -> None:
    """With a tolerance of 0 nothing but the clock stops: here, at the look that proves most."""
    ended = drive(Within(0.0, tight, FEW, ALPHA, "argmax", bound), coin(p), adversary=True)
    assert not refuted(ended.proved > p)
    assert (ended.proved > p).any()


DUELS = {
    "two tie": (0.45, 0.45, 0.1),
    "a little behind": (0.444, 0.456, 0.1),
    "all tie": (1 / 3, 1 / 3, 1 / 3),
    "between two": (0.33, 0.30, 0.37),
}


@pytest.mark.parametrize("name", DUELS)
def test_a_duel_rarely_names_a_label_that_is_not_ahead(name: str) -> None:
    rule = Duel(FEW, ALPHA, "argmax")
    ended = drive(rule, World(rows=tuple(map(tuple, np.eye(3))), shares=DUELS[name]), trials=4000)
    for level in (ALPHA, 0.02, 0.2):  # any chance that is told, not the one asked for alone
        assert not refuted(ended.evidence > -math.log(level), level)
    if name == "two tie":
        assert (ended.evidence > -math.log(ALPHA)).any()


def test_a_duel_after_choosing_the_label_rarely_names_a_wrong_one() -> None:
    """Sixteen draws choose; a wrong choice must then win against the right one."""
    world = World(rows=tuple(map(tuple, np.eye(3))), shares=(0.38, 0.42, 0.2))
    label = world.falls((16,), 4000, seed=8)[:, 0].argmax(axis=1)
    ended = drive(Duel(FEW, 0.3, "argmax"), world, trials=4000, label=label)
    named = ended.evidence > -math.log(0.3)
    assert not refuted(named & (label != 1), 0.3)
    assert named[label == 1].mean() > 3 * named[label != 1].mean()


SOFT_DUELS = {
    "two tie": ((0.7, 0.2, 0.1), (0.2, 0.7, 0.1), (0.1, 0.1, 0.8)),
    "a tie of small variance": ((0.55, 0.35, 0.1), (0.35, 0.55, 0.1), (0.3, 0.3, 0.4)),
    "a tie of extremes": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.45, 0.45, 0.1)),
}


@pytest.mark.parametrize("name", SOFT_DUELS)
def test_a_duel_of_soft_scores_rarely_names_a_label_that_is_not_ahead(name: str) -> None:
    shares = (0.15, 0.15, 0.7) if name == "a tie of extremes" else (0.4, 0.4, 0.2)
    world = World(rows=SOFT_DUELS[name], shares=shares, kind="leads")
    assert world.expected[0] == pytest.approx(world.expected[1], abs=1e-12)
    ended = drive(Duel((32, 64, 160, 300), ALPHA, "softmax"), world, trials=2000)
    assert not refuted(ended.evidence > -math.log(ALPHA))
    ahead = World(rows=SOFT_DUELS[name], shares=(0.6, 0.2, 0.2), kind="leads")
    sure = drive(Duel((32, 64, 160, 300), ALPHA, "softmax"), ahead, trials=300)
    assert (sure.evidence > -math.log(ALPHA)).mean() > 0.9


# What is broken on purpose is refuted by the same simulations: they see.


def binomial_test(counts: Array, draws: Array, p: Array, *, level: float) -> Marks:
    """The test of one fixed number of draws."""
    return np.asarray(stats.binom.sf(counts - 1, draws, p) <= level)


def test_a_ladder_of_tests_for_one_look_is_seen_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def fixed(p: float, looks: tuple[int, ...], level: float) -> Whole:
        return np.array([int(stats.binom.isf(level, look, p)) + 1 for look in looks])

    monkeypatch.setattr("pixeldp.stopping.boundaries", fixed)
    assert refuted(drive(Ladder((0.8,), LOOKS, ALPHA), coin(0.8 * JUST_BELOW)).proved > 0.79)


def test_a_label_chosen_by_the_draws_that_bound_it_is_seen_to_fail() -> None:
    """Two labels tie; whichever leads is followed, and has two chances to be wrong."""
    rule, tie = Ladder((0.5 + 2.0**-30,), LOOKS, ALPHA), coin(0.5)
    assert not refuted(drive(rule, tie).proved > 0)
    assert refuted(drive(rule, tie, same_draws=True).proved > 0)


def test_targets_and_bounds_for_a_fixed_number_are_seen_to_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(methods.METHODS, "beta-binomial", methods.METHODS["clopper-pearson"])
    within = Within(0.0, tight, FEW, ALPHA, "argmax", "beta-binomial")
    assert refuted(drive(within, coin(0.8), adversary=True).proved > 0.8)
    monkeypatch.setattr("pixeldp.stopping.refuted", binomial_test)
    evidence = Evidence((0.8,), LOOKS, ALPHA, "argmax", "beta-binomial")
    assert refuted(drive(evidence, coin(0.8 * JUST_BELOW)).proved > 0.8 * JUST_BELOW)


@pytest.mark.parametrize("name", ["broad", "rare zeros"])
def test_soft_scores_by_the_normal_test_of_each_look_are_seen_to_fail(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def normal_test(weights: Array, m: Array) -> Array:
        draws, total = weights.sum(axis=-1), weights @ PLACES
        variance = weights @ PLACES**2 / draws - (total / draws) ** 2
        with np.errstate(divide="ignore"):
            away = (total / draws - m) * np.sqrt(draws / variance)
        return np.asarray(-stats.norm.logsf(away))

    monkeypatch.setattr("pixeldp.stopping.log_capital", normal_test)
    target = float(SOFT[name].expected[0]) + 1e-9
    ended = drive(Evidence((target,), LOOKS, ALPHA, "softmax", "betting"), SOFT[name])
    assert refuted(ended.proved >= target)


def test_a_duel_by_the_sign_test_of_each_look_is_seen_to_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def sign_test(counts: Array, draws: Array, p: Array) -> Array:
        return np.asarray(-stats.binom.logsf(counts - 1, draws, p))

    monkeypatch.setattr("pixeldp.stopping.log_evidence", sign_test)
    ended = drive(Duel(LOOKS, ALPHA, "argmax"), coin(0.5), trials=2000)
    assert refuted(ended.evidence > -math.log(ALPHA))


# What stopping is for.

CLIMBS: dict[str, Callable[[float], Rule]] = {
    "planned": lambda target: Ladder((target,), LOOKS, ALPHA),
    "beta-binomial": lambda target: Evidence((target,), LOOKS, ALPHA, "argmax", "beta-binomial"),
    "betting": lambda target: Evidence((target,), FEW, ALPHA, "argmax", "betting"),
}


@pytest.mark.parametrize("name", CLIMBS)
def test_an_input_far_from_its_target_is_soon_decided(name: str) -> None:
    """Far above it is proved early; far below it is given up early; near it takes what there is."""
    rule = CLIMBS[name](0.7)
    above, below, near = (drive(rule, coin(p), trials=300) for p in (0.97, 0.3, 0.73))
    last = rule.looks[-1]
    assert (above.proved >= 0.7).mean() > 0.99
    assert (below.proved < 0.7).all()
    assert above.draws.mean() < last / 5
    assert below.draws.mean() < last / 10
    assert near.draws.mean() > last / 4
    for ended in (above, below, near):
        assert ended.draws.max() <= last
        assert set(ended.draws.tolist()) <= set(rule.looks)


def test_giving_up_costs_few_inputs_that_would_have_made_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rule, world = Ladder((0.7,), LOOKS, ALPHA), coin(0.75)
    given_up, forlorn = drive(rule, world), stopping.FORLORN
    monkeypatch.setattr("pixeldp.stopping.FORLORN", 0.0)
    patient = drive(rule, world)
    lost = (patient.proved > given_up.proved).mean()
    assert 0.0 < lost < 2 * forlorn  # near the target, and looked at many times
    assert given_up.draws.mean() < patient.draws.mean()


@pytest.mark.parametrize(("draws", "last"), [(64, 1000), (300, 1000), (32, 200), (900, 1000)])
@pytest.mark.parametrize("share", [0.4, 0.8, 0.97])
def test_the_forecast_agrees_with_simulated_futures(draws: int, last: int, share: float) -> None:
    """Futures of an expectation as uncertain as it is after those draws (Jeffreys' prior)."""
    rng, count = np.random.default_rng(6), round(share * draws)
    expectation = rng.beta(count + 0.5, draws - count + 0.5, 20_000)
    totals = count + rng.binomial(last - draws, expectation)
    for needed in np.round(np.quantile(totals, [0.03, 0.3, 0.5, 0.8, 0.97])) - 0.5:
        made = forecast(count, count, draws, last, needed / last)
        assert made == pytest.approx((totals >= needed).mean(), abs=0.11)


def test_the_forecast_is_certain_where_nothing_is_left() -> None:
    assert forecast(70, 70, 100, 100, 0.7) == 1.0
    assert forecast(69, 69, 100, 100, 0.7) == 0.0


@pytest.mark.parametrize("bound", ["beta-binomial", "betting"])
def test_what_is_settled_is_the_bound_at_the_level_of_the_rule(bound: str) -> None:
    for rule in (
        Within(0.0, tight, FEW, 0.01, "argmax", bound),
        Evidence((0.5,), FEW, 0.01, "argmax", bound),
    ):
        drawn = coin(0.5).drawn(np.array([300, 100]), 0)
        rule.settle(drawn)
        assert drawn.proved == lower_bound(drawn, "argmax", bound, 0.01) > 0.6


def test_a_fixed_number_of_draws_looks_at_nothing() -> None:
    rule, drawn = Exactly(77), coin(0.5).drawn(np.array([77, 0]), 0)
    assert rule.looks == (77,)
    assert not rule.done(drawn)
    rule.settle(drawn)
    assert drawn.proved == drawn.evidence == 0.0


def test_a_duel_of_soft_scores_without_a_sketch_is_refused() -> None:
    with pytest.raises(ValueError, match="needs the sketch of its leads"):
        Duel((32,), ALPHA, "softmax").done(coin(0.5).drawn(np.array([20, 12]), 0))
