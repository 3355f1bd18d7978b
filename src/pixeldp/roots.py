"""Roots of monotone conditions over whole arrays, erring to the side that is asked for.

A certificate's radius is the end of the shifts for which a condition holds. What is returned here
is a point at which the condition was seen to hold, so that the error is never in the wrong
direction, however coarse the search.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    Array = npt.NDArray[np.float64]
    Condition = Callable[[Array], npt.NDArray[np.bool_]]

# Halvings: they leave 2^-60 of a bracket, less than rounding does.
_HALVINGS = 60

# Doublings before a bracket is taken to be endless.
_DOUBLINGS = 40

_GOLDEN = (5**0.5 - 1) / 2


def last_holding(condition: Condition, low: Array, high: Array, halvings: int = _HALVINGS) -> Array:
    """Return, between ``low`` and ``high``, the last point found at which ``condition`` holds.

    The condition holds up to some point and not beyond it. Where it does not hold at ``low``
    itself, ``low`` is returned: the caller knows what that means.
    """
    low, high = (np.array(end, dtype=np.float64) for end in np.broadcast_arrays(low, high))
    low = np.where(condition(high), high, low)
    for _ in range(halvings):
        middle = low + (high - low) / 2
        holds = condition(middle)
        low, high = np.where(holds, middle, low), np.where(holds, high, middle)
    return low


def reaching(condition: Condition, start: Array) -> Array:
    """Return an end, by doubling from ``start``, at which ``condition`` no longer holds.

    Infinite where it still holds after forty doublings.
    """
    high = np.array(start, dtype=np.float64)
    for _ in range(_DOUBLINGS):
        holds = condition(high)
        if not holds.any():
            return high
        high = np.where(holds, 2 * high, high)
    return np.where(condition(high), np.inf, high)


def largest_value(
    function: Callable[[Array], Array], low: Array, high: Array, *, points: int, steps: int
) -> Array:
    """Return the largest value of ``function`` found between ``low`` and ``high``.

    First on a grid that is finer near ``low``, then by golden section around its best point. For
    a function of one maximum it finds it; for any other it finds some value that is attained,
    which is all that soundness needs.
    """
    low, high = np.broadcast_arrays(np.asarray(low, float), np.asarray(high, float))
    places = (np.linspace(0, 1, points) ** 2)[1:]
    best = np.full(low.shape, -np.inf)
    at = np.zeros(low.shape)
    for number, place in enumerate(places):
        value = function(low + place * (high - low))
        better = value > best
        best, at = np.where(better, value, best), np.where(better, number, at)
    padded = np.concatenate([[0.0], places, [1.0]])
    index = at.astype(np.int64) + 1
    left = low + padded[index - 1] * (high - low)
    right = low + padded[index + 1] * (high - low)
    x1, x2 = right - _GOLDEN * (right - left), left + _GOLDEN * (right - left)
    f1, f2 = function(x1), function(x2)
    for _ in range(steps):
        best = np.maximum(best, np.maximum(f1, f2))
        rising = f1 < f2
        left, right = np.where(rising, x1, left), np.where(rising, right, x2)
        # One of the two inner points, and its value, serves again.
        kept, value = np.where(rising, x2, x1), np.where(rising, f2, f1)
        x1 = np.where(rising, kept, right - _GOLDEN * (right - left))
        x2 = np.where(rising, left + _GOLDEN * (right - left), kept)
        fresh = function(np.where(rising, x2, x1))
        f1, f2 = np.where(rising, value, fresh), np.where(rising, fresh, value)
    return np.asarray(np.maximum(best, np.maximum(f1, f2)))
