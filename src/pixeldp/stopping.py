"""When to stop drawing: rules that look at the draws of one input and say whether it is done.

A rule has planned *looks*, numbers of draws at which it is asked; the last one is the most that
an input may take. It follows a label that was chosen by draws of its own. What it proves is a
lower bound on that label's expected score that holds whatever the stopping: the chance that the
bound is ever wrong, at any look, is at most ``level``. Giving an input up proves nothing and
costs nothing, so that side needs no guarantee: it is a forecast of whether more draws would help.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from pixeldp.bounds.methods import METHODS, log_capital, log_evidence, refuted
from pixeldp.bounds.planned import boundaries
from pixeldp.bounds.sums import Sums

if TYPE_CHECKING:
    from collections.abc import Callable

    from pixeldp.scores import Drawn

# An input is given up when the forecast chance that it still reaches its next target is less.
FORLORN = 0.05

# Evidence must exceed what is asked by this, so that rounding never decides.
EXCESS = 1e-9

# For the forecast alone: how many standard deviations above a target the mean must end.
_DEVIATIONS = 3.5


class Rule(Protocol):
    """What the drawing of scores asks at each look."""

    @property
    def looks(self) -> tuple[int, ...]:
        """The numbers of draws at which ``done`` is asked, ascending."""

    def done(self, drawn: Drawn) -> bool:
        """Whether the input needs no more draws; called at each look before the last."""

    def settle(self, drawn: Drawn) -> None:
        """Write down what the draws prove; called once, when the input is left."""


@dataclass(frozen=True)
class Exactly:
    """A number of draws that is fixed beforehand."""

    draws: int

    @property
    def looks(self) -> tuple[int, ...]:
        """The number itself."""
        return (self.draws,)

    def done(self, drawn: Drawn) -> bool:
        """Return False: nothing is looked at before the end."""
        del drawn
        return False

    def settle(self, drawn: Drawn) -> None:
        """Leave the draws as they are."""


@dataclass(frozen=True, eq=False)
class Ladder:
    """Climb targets, scores to be exceeded, in ascending order, each by a planned test.

    Every target has a test of its own at the full level, and a target counts only when all below
    it are reached. That spends the level once: to claim too much one must reach the lowest target
    that is not exceeded in truth, and only its own test can say so.
    For counts of argmax scores.
    """

    targets: tuple[float, ...]
    looks: tuple[int, ...]
    level: float
    boundaries: tuple[tuple[int, ...], ...] = field(init=False)

    def __post_init__(self) -> None:
        """Compute the boundary of every target at every look."""
        made = (boundaries(target, self.looks, self.level) for target in self.targets)
        object.__setattr__(self, "boundaries", tuple(tuple(row.tolist()) for row in made))

    def done(self, drawn: Drawn) -> bool:
        """Climb as far as the count allows; stop at the top, or where the next is out of reach."""
        count, at = int(drawn.of_label("argmax")[0]), self.looks.index(drawn.draws)
        reached = self._reached(drawn)
        while reached < len(self.targets) and count >= self.boundaries[reached][at]:
            drawn.proved = self.targets[reached]
            reached += 1
        if reached == len(self.targets):
            return True
        needed = self.boundaries[reached][-1] / self.looks[-1]
        return forecast(count, count, drawn.draws, self.looks[-1], needed) < FORLORN

    def settle(self, drawn: Drawn) -> None:
        """Climb once more: the last look is a look too."""
        if drawn.draws in self.looks:
            self.done(drawn)

    def _reached(self, drawn: Drawn) -> int:
        return sum(target <= drawn.proved for target in self.targets)


@dataclass(frozen=True, eq=False)
class Evidence:
    """Climb targets by an anytime bound: ``beta-binomial`` for argmax, ``betting`` for either."""

    targets: tuple[float, ...]
    looks: tuple[int, ...]
    level: float
    kind: str
    bound: str

    def done(self, drawn: Drawn) -> bool:
        """Climb as far as the evidence allows; stop at the top, or where there is no hope."""
        for target in self.targets:
            if target > drawn.proved:
                if not self._exceeds(drawn, target):
                    break
                drawn.proved = target
        else:
            return True
        total, square = drawn.of_label(self.kind)
        last = self.looks[-1]
        spread = math.sqrt(max(target * (1 - target), 1e-12) / last)
        if self.kind == "softmax":
            mean = total / drawn.draws
            spread = math.sqrt(max(square / drawn.draws - mean**2, 1e-12) / last)
        needed = min(target + _DEVIATIONS * spread, 1.0)
        return forecast(total, square, drawn.draws, last, needed) < FORLORN

    def settle(self, drawn: Drawn) -> None:
        """Prove what the draws prove: the same anytime bound covers every target and its root."""
        drawn.proved = max(drawn.proved, lower_bound(drawn, self.kind, self.bound, self.level))

    def _exceeds(self, drawn: Drawn, target: float) -> bool:
        if self.bound == "beta-binomial":
            count = drawn.of_label("argmax")[0]
            p = np.array(target)
            return bool(refuted(np.array(count), np.array(float(drawn.draws)), p, level=self.level))
        weights = _sums(drawn, self.kind).weights().reshape(1, -1)
        return bool(log_capital(weights, np.array([target]))[0] > -math.log(self.level) + EXCESS)


@dataclass(frozen=True, eq=False)
class Within:
    """Draw until the radius can grow by less than a tolerance, or to the last look.

    ``radius`` gives the radius of a lower bound on the score. How far it may still grow is
    judged by the upper end of an interval at 95 %; that is a forecast, and proves nothing.
    With a tolerance of 0 every draw is made, and the bound holds wherever one is stopped.
    """

    tolerance: float
    radius: Callable[[float], float]
    looks: tuple[int, ...]
    level: float
    kind: str
    bound: str

    def done(self, drawn: Drawn) -> bool:
        """Compare the radius that is proved with what it may become."""
        if not self.tolerance or self._far(drawn):
            return False
        most = 1 - lower_bound(drawn, self.kind, self.bound, FORLORN, misses=True)
        low = lower_bound(drawn, self.kind, self.bound, self.level)
        drawn.proved = max(drawn.proved, low)
        return self.radius(most) - self.radius(drawn.proved) < self.tolerance

    def _far(self, drawn: Drawn) -> bool:
        """Whether it is plain, without the bounds' roots, that more draws are needed."""
        total, square = drawn.of_label(self.kind)
        mean = total / drawn.draws
        error = math.sqrt(max(square / drawn.draws - mean**2, 0.0) / drawn.draws)
        ends = (min(max(mean + way * error, 0.0), 1.0) for way in (1.0, -2.0))
        high, low = (self.radius(end) for end in ends)
        return high - low > self.tolerance

    def settle(self, drawn: Drawn) -> None:
        """Prove what the draws prove."""
        drawn.proved = max(drawn.proved, lower_bound(drawn, self.kind, self.bound, self.level))


@dataclass(frozen=True, eq=False)
class Duel:
    """Draw until the label is ahead of every other one, at a level for the label as a whole.

    The label is fixed before. If it is not the one with the highest expected score, then that one
    is among the others, and to name the label the evidence against "it is not ahead" must reach
    ``1/level`` for each of them, that one too: a single test can fail.
    Argmax scores: of the draws that fell on one of two labels, more than half on ours. Softmax:
    the mean of ``(1 + lead)/2`` above one half, by betting on a sketch of it.
    """

    looks: tuple[int, ...]
    level: float
    kind: str

    def done(self, drawn: Drawn) -> bool:
        """Whether the label is ahead of every other."""
        drawn.evidence = max(drawn.evidence, self._least(drawn))
        return drawn.evidence > -math.log(self.level) + EXCESS

    def settle(self, drawn: Drawn) -> None:
        """Look once more."""
        self.done(drawn)

    def _least(self, drawn: Drawn) -> float:
        others = np.arange(len(drawn.counts)) != drawn.label
        if self.kind == "argmax":
            ours, theirs = drawn.counts[drawn.label], drawn.counts[others]
            half = np.full(len(theirs), 0.5)
            return float(log_evidence(np.full(len(theirs), ours), ours + theirs, half).min())
        sketch = drawn.sketch
        if sketch is None:
            raise ValueError("a duel of softmax scores needs the sketch of its leads")
        return float(log_capital(sketch[others], np.full(int(others.sum()), 0.5)).min())


def unanimous_evidence(bound: str, draws: int, p: float) -> float:
    """Return the logarithm of the most evidence that so many draws can give of a score above p.

    By the anytime bound ``beta-binomial`` or ``betting``, when all of them are 1.
    """
    count, limit = np.array([float(draws)]), np.array([p])
    if bound == "beta-binomial":
        return float(log_evidence(count, count, limit)[0])
    return float(log_capital(Sums(totals=count, draws=count).weights(), limit)[0])


def lower_bound(
    drawn: Drawn, kind: str, bound: str, level: float, *, misses: bool = False
) -> float:
    """Return the anytime lower bound on the label's expected score, or on what it leaves."""
    low, high = METHODS[bound].bound(_sums(drawn, kind), level, two_sided=False)
    return float(1 - high[0] if misses else low[0])


def _sums(drawn: Drawn, kind: str) -> Sums:
    """Return the sums of the label alone."""
    total, _ = drawn.of_label(kind)
    draws = np.array([float(drawn.draws)])
    if kind == "argmax":
        return Sums(totals=np.array([total]), draws=draws)
    own = np.array([drawn.label])
    sketch = None if drawn.sketch is None else drawn.sketch[own]
    return Sums(totals=np.array([total]), draws=draws, squares=drawn.squares[own], sketch=sketch)


def forecast(total: float, square: float, draws: int, last: int, needed: float) -> float:
    """Return the chance that the mean of all ``last`` draws will be at least ``needed``.

    From the mean and the variance of those made, both as uncertain as they are: a normal
    approximation, by which no confidence is spent.
    """
    left = last - draws
    if total + left < needed * last:
        return 0.0
    mean = (total + 0.5) / (draws + 1)
    variance = max((square + 0.5) / (draws + 1) - mean**2, 1.0 / (draws + 1) ** 2)
    spread = math.sqrt(left * variance * (1 + left / draws)) if left else 0.0
    short = needed * last - (total + left * mean)
    if spread == 0.0:
        return float(short <= 0)
    return 0.5 * math.erfc(short / spread / math.sqrt(2))
