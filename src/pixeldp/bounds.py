"""Confidence bounds on expected scores, from sums over draws (§3.4).

Every method bounds one expectation in [0, 1] from one side at failure probability ``beta``. For
all K labels from both sides at once, each of the 2K bounds is given ``beta = alpha / 2K``: then
all hold together with probability at least ``1 − alpha``, and the label may be chosen by the same
draws that bound it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

from pixeldp._checks import one_of, open_unit
from pixeldp.errors import InvalidArgument, TooFewDraws

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

# Relative error of the incomplete beta inverse and of sums, with room; bounds move outwards by it.
_SLACK = 1e-12

# Beyond this many draws, "too few" is no longer the problem.
_MOST_DRAWS = 2**40


@dataclass(frozen=True, eq=False)
class Bounds:
    """``lower ≤ E A_k(x) ≤ upper`` for every label of each input, all labels together.

    Attributes
    ----------
    lower, upper:
        ``[N, K]``.
    confidence:
        ``1 − alpha``: the probability that all 2K bounds of one input hold, for each input.
    method:
        The bound used.
    """

    lower: Array
    upper: Array
    confidence: float
    method: str


def clopper_pearson(totals: Array, draws: Array, beta: float) -> tuple[Array, Array]:
    """Return exact one-sided binomial bounds for counts of successes, each failing at ``beta``.

    Lower: the p with ``P(Bin(n, p) ≥ c) = beta``, the ``beta`` quantile of Beta(c, n − c + 1).
    Upper: the p with ``P(Bin(n, p) ≤ c) = beta``, the ``1 − beta`` quantile of Beta(c + 1, n − c).
    """
    if (totals != np.floor(totals)).any():
        raise InvalidArgument(
            "clopper-pearson needs whole counts of argmax scores, got fractions; "
            "take method='hoeffding' for softmax scores"
        )
    none, every = totals == 0, totals == draws
    lower = special.betaincinv(np.where(none, 1, totals), draws - totals + 1, beta)
    upper = special.betainccinv(totals + 1, np.where(every, 1, draws - totals), beta)
    lower = np.where(none, 0.0, lower * (1 - _SLACK))
    upper = np.where(every, 1.0, np.minimum(upper * (1 + _SLACK), 1.0))
    return lower.astype(np.float64), upper.astype(np.float64)


def hoeffding(totals: Array, draws: Array, beta: float) -> tuple[Array, Array]:
    """Return ``mean ∓ sqrt(ln(1/beta) / 2n)``, for any scores in [0, 1]."""
    mean = totals / draws
    width = np.sqrt(math.log(1 / beta) / (2 * draws)) + _SLACK
    return np.clip(mean - width, 0.0, 1.0), np.clip(mean + width, 0.0, 1.0)


Method = Callable[["Array", "Array", float], tuple["Array", "Array"]]

METHODS: dict[str, Method] = {"clopper-pearson": clopper_pearson, "hoeffding": hoeffding}

# The tightest method for each kind of score that does not depend on what was drawn.
DEFAULT_METHOD = {"argmax": "clopper-pearson", "softmax": "hoeffding"}


def confidence_bounds(
    counts: npt.ArrayLike,
    draws: npt.ArrayLike,
    *,
    confidence: float = 0.95,
    method: str = "clopper-pearson",
) -> tuple[Array, Array]:
    """Return ``(lower, upper)`` for every label, valid together at ``confidence``.

    Parameters
    ----------
    counts:
        ``[..., K]``: for each label, the sum of its scores over the draws.
    draws:
        The number of draws, one number or ``[...]``.
    confidence:
        ``1 − alpha``. Each of the 2K one-sided bounds is given ``alpha / 2K``.
    method:
        ``clopper-pearson`` for counts of argmax scores, ``hoeffding`` for any scores in [0, 1].

    >>> lower, upper = confidence_bounds([970, 20, 10], 1000, confidence=0.95)
    >>> lower.round(3), upper.round(3)
    (array([0.954, 0.011, 0.004]), array([0.981, 0.033, 0.02 ]))
    """
    alpha = 1 - open_unit("confidence", confidence)
    bound = METHODS[one_of("method", method, METHODS)]
    totals = np.asarray(counts, dtype=np.float64)
    number = np.asarray(draws, dtype=np.float64)
    if totals.ndim == 0 or totals.shape[-1] < 2:
        raise InvalidArgument(
            f"counts must have at least two labels on the last axis, got shape {totals.shape}"
        )
    if not np.isfinite(number).all() or (number < 1).any() or (number != np.floor(number)).any():
        raise InvalidArgument(f"draws must be whole numbers of at least 1, got draws={draws!r}")
    number = np.broadcast_to(number, totals.shape[:-1])[..., None]
    if not np.isfinite(totals).all() or (totals < 0).any() or (totals > number).any():
        raise InvalidArgument(
            "counts must lie between 0 and draws, got counts from "
            f"{totals.min():g} to {totals.max():g} for draws={draws!r}"
        )
    lower, upper = bound(totals, number, alpha / (2 * totals.shape[-1]))
    return lower, upper


def least_draws(*, labels: int, confidence: float, method: str) -> int:
    """Return the least number of draws that could certify anything, were they unanimous."""

    def certifies(draws: int) -> bool:
        counts = np.zeros(labels)
        counts[0] = draws
        lower, upper = confidence_bounds(counts, draws, confidence=confidence, method=method)
        return bool(lower[0] > min(upper[1], 1 - lower[0]))

    most = 1
    while not certifies(most):
        most *= 2
        if most > _MOST_DRAWS:
            raise InvalidArgument(
                f"confidence={confidence!r} is so close to 1 that no number of draws reaches it"
            )
    least = most // 2 + 1
    while least < most:
        middle = (least + most) // 2
        least, most = (least, middle) if certifies(middle) else (middle + 1, most)
    return most


def check_draws(draws: int, *, labels: int, confidence: float, method: str) -> None:
    """Refuse, before the first draw, what could not certify anything."""
    needed = least_draws(labels=labels, confidence=confidence, method=method)
    if draws < needed:
        raise TooFewDraws(
            f"draws must be at least {needed} to certify anything with {labels} labels at "
            f"confidence={confidence:g} ({method}), got draws={draws}"
        )
