"""Coverage of every confidence bound: exact where it can be enumerated, by simulation else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from scipy import special, stats

from pixeldp.bounds.methods import _FRACTIONS, METHODS
from pixeldp.bounds.sums import Sums
from pixeldp.sketches import sketch_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

SOFT = ("bernstein", "betting", "hoeffding")
ANYTIME = tuple(name for name, method in METHODS.items() if method.anytime)

by_method = pytest.mark.parametrize("method", sorted(METHODS))
by_soft = pytest.mark.parametrize("method", SOFT)
by_sides = pytest.mark.parametrize("two_sided", [False, True], ids=["one side", "two sides"])


def two_values(values: tuple[float, float], highs: Array, draws: Array) -> Sums:
    """What draws leave behind that are ``values[1]`` so many times and else ``values[0]``."""
    low, high = values
    highs, draws = np.broadcast_arrays(highs, draws)
    if values == (0.0, 1.0):
        return Sums(totals=highs, draws=draws)
    places = sketch_of(np.array([values]))
    return Sums(
        totals=(draws - highs) * low + highs * high,
        draws=draws,
        squares=(draws - highs) * low**2 + highs * high**2,
        sketch=(draws - highs)[..., None] * places[0] + highs[..., None] * places[1],
    )


def of_draws(x: Array) -> Sums:
    """What draws ``[draws, ...]`` leave behind."""
    return Sums(
        totals=x.sum(axis=0),
        draws=np.full(x.shape[1:], float(len(x))),
        squares=(x**2).sum(axis=0),
        sketch=sketch_of(x),
    )


def refuted(failures: int, trials: int, level: float) -> bool:
    """Whether a binomial test rejects that failures have at most the probability ``level``."""
    test = stats.binomtest(failures, trials, level, alternative="greater")
    return bool(test.pvalue < 1e-3)


def chances_of_failing(
    method: str, values: tuple[float, float], p: float, draws: int, level: float, *, two_sided: bool
) -> tuple[float, float]:
    """The exact probabilities that the lower bound, and that the upper bound, is wrong."""
    highs = np.arange(draws + 1.0)
    sums = two_values(values, highs, np.array(float(draws)))
    lower, upper = METHODS[method].bound(sums, level, two_sided=two_sided)
    weight = stats.binom.pmf(highs, draws, p)
    mean = values[0] + (values[1] - values[0]) * p
    return float(weight @ (lower > mean + 1e-15)), float(weight @ (upper < mean - 1e-15))


CASES = [(method, (0.0, 1.0)) for method in sorted(METHODS)] + [
    (method, values)
    for method in SOFT
    for values in ((0.2, 0.3), (0.0, 0.037), (0.5, 1.0), (0.9991, 0.99995))
]


@by_sides
@pytest.mark.parametrize(("method", "values"), CASES)
@pytest.mark.parametrize("level", [0.2, 0.01])
def test_coverage_is_exact_where_it_can_be_enumerated(
    method: str, values: tuple[float, float], level: float, two_sided: bool
) -> None:
    """One-sided: each side fails with at most the level; two-sided: the two together."""
    for draws in (1, 2, 7, 40, 250):
        for p in (1e-4, 0.003, 0.03, 0.2, 0.5, 0.96, 0.999):
            low, high = chances_of_failing(method, values, p, draws, level, two_sided=two_sided)
            spent = low + high if two_sided else max(low, high)
            assert spent <= level * (1 + 1e-9)


@pytest.mark.parametrize("level", [0.2, 0.05, 1e-3])
@pytest.mark.parametrize("draws", [5, 60])
def test_clopper_pearson_spends_its_level_at_the_worst_probability(
    draws: int, level: float
) -> None:
    """Just below each bound that it can return, the failures reach the level, and never exceed."""
    counts = np.arange(1.0, draws + 1)
    sums = two_values((0.0, 1.0), counts, np.array(float(draws)))
    lower, _ = METHODS["clopper-pearson"].bound(sums, level, two_sided=False)
    for p in lower:
        inside = p * (1 - 1e-6)
        one = chances_of_failing("clopper-pearson", (0, 1), inside, draws, level, two_sided=False)
        other = chances_of_failing(
            "clopper-pearson", (0, 1), 1 - inside, draws, level, two_sided=False
        )
        for chance in (one[0], other[1]):
            assert level * (1 - 1e-3) <= chance <= level * (1 + 1e-9)


# Scores that are hard on a bound: rare extremes, two heaps, and next to no variance.
DRAWN: dict[str, Callable[[np.random.Generator, tuple[int, int]], Array]] = {
    "uniform": lambda rng, shape: rng.random(shape),
    "narrow": lambda rng, shape: rng.beta(200, 300, shape),
    "two heaps": lambda rng, shape: rng.beta(0.05, 0.1, shape),
    "confident": lambda rng, shape: rng.beta(60, 0.3, shape),
    "rare ones": lambda rng, shape: np.where(rng.random(shape) < 0.02, 1.0, 0.01),
    "rare zeros": lambda rng, shape: np.where(rng.random(shape) < 0.02, 0.0, 0.97),
}
MEANS = {
    "uniform": 0.5,
    "narrow": 0.4,
    "two heaps": 1 / 3,
    "confident": 60 / 60.3,
    "rare ones": 0.02 + 0.98 * 0.01,
    "rare zeros": 0.98 * 0.97,
}


@by_soft
@pytest.mark.parametrize("name", DRAWN)
def test_coverage_on_soft_scores(method: str, name: str) -> None:
    """Each side of a one-sided bound fails with at most its level, and two together with one."""
    trials, level = 2000, 0.1
    for draws in (8, 100):
        sums = of_draws(DRAWN[name](np.random.default_rng(draws), (draws, trials)))
        for two_sided in (False, True):
            lower, upper = METHODS[method].bound(sums, level, two_sided=two_sided)
            over, under = (lower > MEANS[name]), (upper < MEANS[name])
            for failed in (over | under,) if two_sided else (over, under):
                assert not refuted(int(failed.sum()), trials, level)


@pytest.mark.parametrize("name", ["rare ones", "rare zeros"])
def test_the_coverage_test_sees_the_normal_approximation(name: str) -> None:
    """``mean ∓ z s/√n`` fails far more often than it says on rare extremes."""
    trials, level, draws = 2000, 0.1, 100
    x = DRAWN[name](np.random.default_rng(draws), (draws, trials))
    width = -special.ndtri(level) * x.std(axis=0, ddof=1) / np.sqrt(draws)
    failed = ((x.mean(axis=0) - width) > MEANS[name], (x.mean(axis=0) + width) < MEANS[name])
    assert any(refuted(int(side.sum()), trials, level) for side in failed)


# Adversarially chosen stopping times: a bound fails if it fails at any number of draws at all.


def failing_counts(
    method: str, values: tuple[float, float], p: float, level: float, ns: Array
) -> tuple[Array, Array]:
    """For each n, the least count whose lower bound is wrong, the largest whose upper bound is.

    By bisection: bounds grow with the count. ``n + 1`` and −1 where there is none.
    """
    mean = values[0] + (values[1] - values[0]) * p

    def wrong(counts: Array) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        sums = two_values(values, np.clip(counts, 0, ns), ns)
        lower, upper = METHODS[method].bound(sums, level, two_sided=True)
        return lower > mean, upper < mean

    # From the mean outwards, where neither is wrong.
    near, far = np.floor(ns * p), ns + 1
    below, under = np.ceil(ns * p), np.full_like(ns, -1.0)
    for _ in range(int(np.log2(ns.max())) + 2):
        middle = np.floor((near + far) / 2)
        over = wrong(middle)[0] & (middle > near)
        near, far = np.where(over, near, middle), np.where(over, middle, far)
        middle = np.ceil((below + under) / 2)
        short = wrong(middle)[1] & (middle < below)
        below, under = np.where(short, below, middle), np.where(short, middle, under)
    return far, under


def chance_of_ever_failing(p: float, ns: Array, far: Array, under: Array) -> float:
    """The exact probability that a path's count ever reaches a failing one: no simulation."""
    last, failed = int(ns[-1]), 0.0
    ends = {int(n): (int(f), int(u)) for n, f, u in zip(ns, far, under, strict=True)}
    alive = np.zeros(last + 1)
    alive[0] = 1.0
    for n in range(1, last + 1):
        moved = p * alive[:n]
        alive[: n + 1] *= 1 - p
        alive[1 : n + 1] += moved
        if n in ends:
            high, low = ends[n]
            for part in (alive[high : n + 1], alive[: low + 1]):
                failed += float(part.sum())
                part[:] = 0.0
    return failed


def share_of_paths_that_fail(p: float, ns: Array, far: Array, under: Array) -> float:
    """The same from 5,000 simulated paths."""
    rng, last = np.random.default_rng(9), int(ns[-1])
    paths = (rng.random((5000, last)) < p).cumsum(axis=1, dtype=np.int32)
    at = paths[:, ns.astype(np.int64) - 1]
    return float(((at >= far) | (at <= under)).any(axis=1).mean())


LAST = 2000
EVERY = np.concatenate([np.arange(1.0, 101), np.arange(110.0, LAST + 1, 10)])


@pytest.mark.parametrize(("p", "level"), [(0.02, 0.05), (0.5, 0.2), (0.9, 0.05)])
@pytest.mark.parametrize(
    ("method", "values"),
    [(method, (0.0, 1.0)) for method in ANYTIME] + [("betting", (0.41, 0.47))],
)
def test_anytime_bounds_hold_at_every_number_of_draws_at_once(
    method: str, values: tuple[float, float], p: float, level: float
) -> None:
    """The probability that either bound EVER fails, up to 2,000 draws, is at most the level."""
    far, under = failing_counts(method, values, p, level, EVERY)
    exact = chance_of_ever_failing(p, EVERY, far, under)
    assert exact <= level
    simulated = share_of_paths_that_fail(p, EVERY, far, under)
    spread = np.sqrt(max(exact, 1e-4) / 5000)
    assert simulated == pytest.approx(exact, abs=5 * spread)


@pytest.mark.parametrize(
    ("method", "level", "far_beyond"),
    [("clopper-pearson", 0.05, 5.0), ("clopper-pearson", 0.2, 2.5), ("hoeffding", 0.2, 1.1)],
)
def test_bounds_for_one_number_of_draws_fail_under_the_same_adversary(
    method: str, level: float, far_beyond: float
) -> None:
    """Whoever stops when it suits fails more often than the level: the test above sees."""
    far, under = failing_counts(method, (0.0, 1.0), 0.5, level, EVERY)
    assert chance_of_ever_failing(0.5, EVERY, far, under) > far_beyond * level
    simulated = share_of_paths_that_fail(0.5, EVERY, far, under)
    assert refuted(round(simulated * 5000), 5000, level)


def capital(x: Array, mean: float) -> Array:
    """The capital of the mixed bets that the mean is larger, after each draw of ``[n, draws]``."""
    ratio = x / mean - 1
    return np.asarray(sum(np.cumprod(1 + c * ratio, axis=1) for c in _FRACTIONS) / len(_FRACTIONS))


@pytest.mark.parametrize("name", ["two heaps", "narrow", "rare ones"])
def test_betting_holds_where_an_adversary_stops_soft_scores(name: str) -> None:
    """5,000 paths, each stopped where the capital against the true mean is the largest.

    That is where a bound fails if it ever does. Of the paths, those with the most capital are
    bounded; were there more failures than those, all of them would fail.
    """
    paths, level, mean = 5000, 0.1, MEANS[name]
    rng, most = np.random.default_rng(12), {"lower": 800, "upper": 800}
    best = {side: np.empty(paths) for side in most}
    stop = {side: np.empty(paths, dtype=np.int64) for side in most}
    x = DRAWN[name](rng, (paths, 1000))
    for start in range(0, paths, 250):
        part = slice(start, start + 250)
        for side, scores, truth in (("lower", x, mean), ("upper", 1 - x, 1 - mean)):
            held = capital(scores[part], truth)
            stop[side][part], best[side][part] = held.argmax(axis=1) + 1, held.max(axis=1)
    failed = np.zeros(paths, dtype=bool)
    for side, number in most.items():
        richest = np.argsort(best[side])[-number:]
        prefixes = [x[i, : stop[side][i]] for i in richest]
        sums = Sums(
            totals=np.array([prefix.sum() for prefix in prefixes]),
            draws=np.array([float(len(prefix)) for prefix in prefixes]),
            sketch=np.stack([sketch_of(prefix) for prefix in prefixes]),
        )
        lower, upper = METHODS["betting"].bound(sums, level, two_sided=True)
        wrong = lower > mean if side == "lower" else upper < mean
        assert wrong.sum() < number / 2
        # No bound fails that the draws themselves, unsketched, do not refute.
        assert (best[side][richest][wrong] >= 2 / level * (1 - 1e-9)).all()
        failed[richest[wrong]] = True
    assert not refuted(int(failed.sum()), paths, level)
    assert any((held >= 2 / level).any() for held in best.values())  # the adversary is one


def exact_betting(x: Array, beta: float) -> Array:
    """The betting lower bound from the draws ``[draws, rows]`` themselves, by bisection."""
    low, high = np.zeros(x.shape[1]), x.mean(axis=0)
    goal = np.log(len(_FRACTIONS) / beta)
    for _ in range(45):
        middle = (low + high) / 2
        ratio = x / np.maximum(middle, 1e-300) - 1
        logs = np.stack([np.log1p(c * ratio).sum(axis=0) for c in _FRACTIONS])
        out = special.logsumexp(logs, axis=0) > goal
        low, high = np.where(out, middle, low), np.where(out, high, middle)
    return low


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("draws", [3, 50, 400])
def test_a_sketch_is_never_tighter_than_its_scores(name: str, draws: int) -> None:
    """Jensen: what a sketch says of the capital is never too much, on either side."""
    x = DRAWN[name](np.random.default_rng(1), (draws, 25))
    lower, upper = METHODS["betting"].bound(of_draws(x), 0.05, two_sided=False)
    best_lower, best_upper = exact_betting(x, 0.05), 1 - exact_betting(1 - x, 0.05)
    assert (lower <= best_lower + 1e-11).all()
    assert (upper >= best_upper - 1e-11).all()
    # And little is lost: the interval is at most so much wider.
    assert (upper - lower <= 1.6 * (best_upper - best_lower) + 1e-9).all()


@by_soft
def test_bounds_do_not_depend_on_the_order_of_the_draws(method: str) -> None:
    rng = np.random.default_rng(2)
    x = rng.beta(0.5, 0.9, (300, 8))
    ascending, mixed = np.sort(x, axis=0), rng.permuted(x, axis=0)
    bounds = [METHODS[method].bound(of_draws(y), 0.05, two_sided=True) for y in (ascending, mixed)]
    for one, other in zip(*bounds, strict=True):
        assert one == pytest.approx(other, abs=1e-10)


@pytest.mark.parametrize("name", ["narrow", "confident", "rare ones"])
def test_widths_on_scores_of_small_variance(name: str) -> None:
    """From some n on: betting below empirical Bernstein below Hoeffding."""
    x = DRAWN[name](np.random.default_rng(3), (10_000, 4))
    widths: dict[str, list[float]] = {method: [] for method in SOFT}
    for draws in (300, 1000, 3000, 10_000):
        for method in SOFT:
            lower, upper = METHODS[method].bound(of_draws(x[:draws]), 0.05, two_sided=True)
            widths[method].append(float((upper - lower).max()))
    for betting, bernstein, hoeffding in zip(
        *(widths[m] for m in ("betting", "bernstein", "hoeffding")), strict=True
    ):
        assert betting < bernstein < hoeffding


def test_all_bounds_along_a_path_contain_the_probability() -> None:
    """Running maximum of the lower and minimum of the upper bounds: they still enclose p."""
    rng, p, level, paths = np.random.default_rng(7), 0.7, 0.1, 2000
    ns = np.unique(np.geomspace(1, 1500, 60).astype(np.int64))
    counts = (rng.random((paths, 1500)) < p).cumsum(axis=1)[:, ns - 1].astype(np.float64)
    sums = two_values((0.0, 1.0), counts, np.broadcast_to(ns.astype(np.float64), counts.shape))
    lower, upper = METHODS["beta-binomial"].bound(sums, level, two_sided=True)
    missed = (lower.max(axis=1) > p) | (upper.min(axis=1) < p)
    assert not refuted(int(missed.sum()), paths, level)
    assert missed.any()
