"""Tests of one expectation at planned numbers of draws, together at one level.

Whoever looks at the draws now and then and stops when they are convincing must pay for every
look. An anytime bound pays for all numbers of draws there are. If the looks are few and planned,
and there is a last one, less is enough: the chance that a count ever reaches its boundary is
computed exactly, look by look, and the boundaries are set so that all of it is the level
(Lan and DeMets 1983, for binomial counts without the normal approximation).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]
    Whole = npt.NDArray[np.int64]

# Each look is this much further than the one before.
GROWTH = 1.15

# The part of the level that may be spent up to a share t of the last look is t to this power:
# enough early to let easy inputs go, most of it late, where the close ones are decided.
_SPENDING = 1 / 3

# Probability that a window of counts leaves out, counted as if the boundary were reached there.
_OUTSIDE = 1e-18

# Relative error of a sum of products of probabilities, with room.
_ROUNDING = 1e-9


def planned_looks(last: int, *, step: int, growth: float = GROWTH) -> tuple[int, ...]:
    """Return the numbers of draws to look at: multiples of ``step`` that grow, and the last one.

    >>> planned_looks(1000, step=32, growth=2.0)
    (32, 64, 128, 256, 512, 1000)
    """
    looks = [step]
    while looks[-1] < last:
        further = int(np.ceil(looks[-1] * growth / step)) * step
        looks.append(max(further, looks[-1] + step))
    return (*looks[:-1], last)


@functools.lru_cache(maxsize=256)
def boundaries(p: float, looks: tuple[int, ...], level: float) -> Whole:
    """Return, for each look, the least count that refutes "the expectation is at most ``p``".

    A count that never suffices is one above the number of draws. The chance that independent
    draws of an expectation of at most p reach the boundary at ANY look is at most the level: it
    grows with the expectation (draws of a larger one can be coupled to be larger), so that p
    itself is the worst case.

    >>> boundaries(0.5, (32, 64), 0.05)
    array([22, 40])
    """
    spent, draws, first = 0.0, 0, 0
    alive = np.ones(1)  # the chance of each count, from ``first`` on, and of no boundary so far
    made = []
    for look in looks:
        low, chances = _fallen(look - draws, p)
        alive, first, draws = np.convolve(alive, chances), first + low, look
        spent += 2 * _OUTSIDE
        reaching = np.append(np.cumsum(alive[::-1])[::-1], 0.0) * (1 + _ROUNDING)
        room = level * (look / looks[-1]) ** _SPENDING - spent
        # The last entry, of no count at all, always fits.
        at = int(np.argmax(reaching <= max(room, 0.0)))
        made.append(min(first + at, look + 1) if room > 0 else look + 1)
        spent += float(reaching[at])
        alive = alive[:at]
        kept = int(np.searchsorted(np.cumsum(alive), _OUTSIDE))
        spent += _OUTSIDE
        alive, first = alive[kept:], first + kept
    result = np.array(made, dtype=np.int64)
    result.setflags(write=False)  # it is shared by all who ask
    return result


def _fallen(draws: int, p: float) -> tuple[int, Array]:
    """Return the counts of so many draws that are not negligible: the first, and their chances."""
    low = max(int(stats.binom.ppf(_OUTSIDE, draws, p)), 0)
    high = min(int(stats.binom.isf(_OUTSIDE, draws, p)) + 1, draws)
    return low, np.asarray(stats.binom.pmf(np.arange(low, high + 1), draws, p), dtype=np.float64)
