"""Planned tests against what they promise, computed one draw at a time and by simulation."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from pixeldp.bounds.planned import boundaries, planned_looks

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Whole = npt.NDArray[np.int64]

PATHS = 10_000
LEVELS = (0.2, 0.05, 1e-3)

by_level = pytest.mark.parametrize("level", LEVELS)
by_last = pytest.mark.parametrize("last", [50, 1000, 4000])


def chance_of_ever_reaching(p: float, looks: Sequence[int], ends: Sequence[int] | Whole) -> float:
    """The exact probability that a count reaches the boundary at any look: draw by draw.

    Nothing is left out and nothing is convolved; what reaches a boundary is taken away.
    """
    boundary = dict(zip(looks, ends, strict=True))
    alive, reached = np.zeros(looks[-1] + 1), 0.0
    alive[0] = 1.0
    for n in range(1, looks[-1] + 1):
        moved = p * alive[:n]
        alive[: n + 1] *= 1 - p
        alive[1 : n + 1] += moved
        if n in boundary:
            reached += float(alive[boundary[n] : n + 1].sum())
            alive[boundary[n] : n + 1] = 0.0
    return reached


def fixed_boundaries(p: float, looks: Sequence[int], level: float) -> list[int]:
    """Broken on purpose: at every look the binomial test as if it were the only one."""
    return [int(stats.binom.isf(level, look, p)) + 1 for look in looks]


def paths_that_reach(p: float, looks: tuple[int, ...], ends: Sequence[int] | Whole) -> int:
    """How many of simulated paths ever reach the boundary."""
    rng = np.random.default_rng(4)
    steps = np.diff(np.array([0, *looks]))
    counts = rng.binomial(steps, p, (PATHS, len(looks))).cumsum(axis=1)
    return int((counts >= np.array(ends)).any(axis=1).sum())


def refuted(reached: int, level: float) -> bool:
    """Whether a binomial test rejects that paths reach it with at most that probability."""
    test = stats.binomtest(reached, PATHS, level, alternative="greater")
    return bool(test.pvalue < 1e-3)


@by_last
@by_level
@pytest.mark.parametrize("p", [0.03, 0.5, 0.8413, 0.95, 0.99, 0.9999])
def test_a_planned_test_spends_its_level_and_never_more(p: float, last: int, level: float) -> None:
    """At p the chance of ever reaching is the level or a little less; below p it is less still."""
    looks = planned_looks(last, step=32)
    planned = boundaries(p, looks, level)
    spent = chance_of_ever_reaching(p, looks, planned)
    assert spent <= level
    below = [chance_of_ever_reaching(q, looks, planned) for q in (0.5 * p, 0.95 * p, 0.999 * p)]
    assert sorted([*below, spent]) == [*below, spent]
    # Counts are whole numbers: what they leave is little where there are many of them.
    if last == 1000 and p <= 0.95:
        assert spent > 0.95 * level
    if last * min(p, 1 - p) > 30:
        assert spent > 0.9 * level
    # Where no count can refute p, nothing is spent.
    if p**last > level:
        assert spent == 0.0
        assert (planned > np.array(looks)).all()
    else:
        assert spent > 0.0


@pytest.mark.parametrize("growth", [1.05, 1.15, 1.3, 2.0])
@pytest.mark.parametrize("step", [1, 8, 32])
def test_the_level_is_kept_however_close_the_looks_are(step: int, growth: float) -> None:
    looks = planned_looks(700, step=step, growth=growth)
    for p, level in itertools.product((0.5, 0.9), (0.05, 1e-3)):
        spent = chance_of_ever_reaching(p, looks, boundaries(p, looks, level))
        assert 0.5 * level < spent <= level


@given(
    p=st.floats(0.01, 0.999),
    steps=st.lists(st.integers(1, 90), min_size=1, max_size=8),
    level=st.floats(1e-6, 0.5),
)
def test_the_level_is_kept_for_any_looks(p: float, steps: list[int], level: float) -> None:
    looks = tuple(np.cumsum(steps).tolist())
    assert chance_of_ever_reaching(p, looks, boundaries(p, looks, level)) <= level


@by_level
@pytest.mark.parametrize("p", [0.5, 0.9])
def test_simulated_paths_agree_with_what_is_computed(p: float, level: float) -> None:
    looks = planned_looks(2000, step=32)
    planned = boundaries(p, looks, level)
    reached = paths_that_reach(p, looks, planned)
    exact = chance_of_ever_reaching(p, looks, planned)
    assert stats.binomtest(reached, PATHS, exact).pvalue > 1e-3
    assert not refuted(reached, level)


@by_level
@pytest.mark.parametrize("p", [0.5, 0.9])
def test_a_test_for_one_look_fails_at_many_looks_and_both_checks_see_it(
    p: float, level: float
) -> None:
    looks = planned_looks(2000, step=32)
    fixed = fixed_boundaries(p, looks, level)
    assert chance_of_ever_reaching(p, looks, fixed) > 2 * level
    assert refuted(paths_that_reach(p, looks, fixed), level)
    # At the last look alone it is what it says, and the planned test is not far from it.
    alone = chance_of_ever_reaching(p, looks[-1:], fixed[-1:])
    assert 0.5 * level < alone <= level
    price = boundaries(p, looks, level)[-1] - fixed[-1]
    assert 0 < price < 1.2 * np.sqrt(2000 * p * (1 - p))


@pytest.mark.parametrize("p", [0.5, 0.9])
def test_shifting_the_planned_boundary_by_one_count_overspends(p: float) -> None:
    """The boundary is the least there is: the check is sharp to one count at every look."""
    looks = planned_looks(1000, step=32)
    planned = boundaries(p, looks, 0.05)
    assert chance_of_ever_reaching(p, looks, planned - 1) > 0.05


@by_last
@by_level
def test_boundaries_grow_with_the_expectation_and_never_exceed_all_draws_and_one(
    last: int, level: float
) -> None:
    looks = planned_looks(last, step=32)
    expectations = (0.03, 0.2, 0.5, 0.7, 0.85, 0.94, 0.98, 0.995, 0.9999)
    rows = np.array([boundaries(p, looks, level) for p in expectations])
    assert (np.diff(rows, axis=0) >= 0).all()
    assert (rows <= np.array(looks) + 1).all()
    assert (np.diff(rows, axis=1) >= 0).all()
    # A count that refutes p lies above it.
    assert (rows > np.array(expectations)[:, None] * np.array(looks)).all()


def test_less_level_never_lowers_the_boundary_of_a_look() -> None:
    looks = planned_looks(1500, step=32)
    rows = np.array([boundaries(0.8, looks, level) for level in (0.3, 0.05, 0.01, 1e-4, 1e-8)])
    assert (np.diff(rows, axis=0) >= 0).all()


@given(
    last=st.integers(1, 20_000),
    step=st.integers(1, 200),
    growth=st.floats(1.0, 3.0),
)
def test_looks_ascend_in_steps_and_end_in_the_last(last: int, step: int, growth: float) -> None:
    looks = planned_looks(last, step=step, growth=growth)
    assert looks[-1] == last
    assert all(look % step == 0 for look in looks[:-1])
    assert all(one < other for one, other in itertools.pairwise(looks))
    # Each is further by the growth, or by one step where that is more; the last may be nearer.
    for one, other in itertools.pairwise(looks[:-1]):
        assert growth * one <= other + 1e-6 * one
        assert other <= max(growth * one + step + 1e-6 * one, one + step)


def test_looks_grow_fast_enough_to_be_few() -> None:
    assert planned_looks(10, step=32) == (10,)
    assert planned_looks(32, step=32) == (32,)
    assert planned_looks(33, step=32) == (32, 33)
    assert len(planned_looks(100_000, step=32)) < 60


def full_boundaries(p: float, looks: tuple[int, ...], level: float) -> list[int]:
    """The same plan by another way: whole arrays, nothing left out, chances of paths enumerated.

    What may be spent up to a share t of the last look is ``level · t^(1/3)``.
    """
    ends: list[int] = []
    for at, look in enumerate(looks):
        room = level * (look / looks[-1]) ** (1 / 3)
        before = chance_of_ever_reaching(p, looks[:at], ends) if at else 0.0
        # The least count with which no more than that is spent.
        fits = [
            end
            for end in range(look + 2)
            if chance_of_ever_reaching(p, looks[: at + 1], [*ends, end]) <= room + 1e-15
        ]
        assert before <= room
        ends.append(fits[0])
    return ends


@by_level
@pytest.mark.parametrize("p", [0.2, 0.5, 0.9])
def test_windows_lose_nothing(p: float, level: float) -> None:
    """Boundaries from windows of counts are those from all counts, look by look."""
    looks = (8, 16, 32, 48, 70)
    assert boundaries(p, looks, level).tolist() == full_boundaries(p, looks, level)


def test_windows_lose_nothing_over_many_draws() -> None:
    """The last boundary from full convolutions of whole binomials, in logarithms' accuracy."""
    p, looks, level = 0.7, (500, 1000, 2000), 0.01
    planned = boundaries(p, looks, level)
    alive, draws, spent = np.ones(1), 0, 0.0
    for look, end in zip(looks, planned, strict=True):
        counts = np.arange(look - draws + 1)
        chances = np.exp(
            special.gammaln(look - draws + 1)
            - special.gammaln(counts + 1)
            - special.gammaln(look - draws - counts + 1)
            + special.xlogy(counts, p)
            + special.xlog1py(look - draws - counts, -p)
        )
        alive, draws = np.convolve(alive, chances), look
        room = level * (look / looks[-1]) ** (1 / 3)
        assert spent + alive[end:].sum() <= room
        assert spent + alive[end - 1 :].sum() > room
        spent += float(alive[end:].sum())
        alive[end:] = 0.0


def test_boundaries_are_shared_and_cannot_be_written() -> None:
    looks = planned_looks(300, step=32)
    once = boundaries(0.6, looks, 0.05)
    assert boundaries(0.6, looks, 0.05) is once
    with pytest.raises(ValueError, match="read-only"):
        once[0] = 0


@pytest.mark.parametrize("level", [0.05, 1e-6, 1e-12])
def test_an_expectation_that_no_draws_can_exceed_is_never_refuted(level: float) -> None:
    looks = planned_looks(3000, step=32)
    assert boundaries(1 - 1e-9, looks, level).tolist() == [look + 1 for look in looks]
    # The least there is to refute: draws that all agree, as often as needed.
    needed = int(np.ceil(np.log(level) / np.log(0.99)))
    for last, reachable in ((needed - 1, False), (needed + 1, True)):
        only = boundaries(0.99, (last,), level)
        assert bool(only[0] <= last) is reachable


def test_every_boundary_is_reached_by_some_draws_or_none() -> None:
    """A count that never suffices is one above the number of draws, and no more."""
    looks = planned_looks(200, step=8, growth=1.1)
    for p in (0.5, 0.9, 0.97):
        planned = boundaries(p, looks, 1e-3)
        never = planned > np.array(looks)
        assert (planned[never] == np.array(looks)[never] + 1).all()
        # Once draws suffice, more of them do too.
        assert (np.diff(never.astype(int)) <= 0).all()
