"""Confidence bounds on expected scores, from sums over draws (§3.4).

A *plan* says how the alpha of one input is spent over its labels:

``union``
    All K labels, both sides: each label is given ``alpha / K``. The label may be chosen by the
    draws that bound it.
``rest``
    The label was chosen by draws of its own, and only its lower bound is needed: all of alpha.
    The other labels have at most what it leaves.
``all``
    The label was chosen by draws of its own; its lower bound and every other label's upper bound
    are K one-sided bounds at ``alpha / K`` each.

``methods`` has the bounds themselves, ``sums`` what they are computed from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pixeldp._checks import one_of, open_unit
from pixeldp.bounds.methods import METHODS
from pixeldp.bounds.sums import Sums, checked_sums
from pixeldp.errors import InvalidArgument, TooFewDraws

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

PLANS = ("union", "rest", "all")

# What is taken for each kind of scores unless another is asked for, before any draw.
DEFAULT_METHOD = {"argmax": "clopper-pearson", "softmax": "betting"}

# Beyond this many draws, "too few" is no longer the problem.
_MOST_DRAWS = 2**40


@dataclass(frozen=True)
class Spending:
    """How the alpha of one input is spent: ``alpha = labels · level`` (or ``level``, for rest)."""

    alpha: float
    plan: str
    labels: int

    @property
    def level(self) -> float:
        """What one label's bounds may fail with: both sides for ``union``, else one side."""
        return self.alpha if self.plan == "rest" else self.alpha / self.labels

    @property
    def two_sided(self) -> bool:
        """Whether a label's level pays for both its sides."""
        return self.plan == "union"


@dataclass(frozen=True, eq=False)
class Bounds:
    """``lower ≤ E A_k(x) ≤ upper`` for every label of each input, all labels together.

    Attributes
    ----------
    lower, upper:
        ``[N, K]``; 0 and 1 where the plan leaves a side unbounded.
    confidence:
        ``1 − alpha``: the probability that all bounds of one input hold, for each input; for all
        inputs together if they are ``simultaneous``.
    method, spending:
        The bound used, and how alpha was spent.
    simultaneous:
        Whether alpha was divided by the number of inputs.
    """

    lower: Array
    upper: Array
    confidence: float
    method: str
    spending: Spending
    simultaneous: bool = False


def confidence_bounds(
    counts: npt.ArrayLike,
    draws: npt.ArrayLike,
    *,
    confidence: float = 0.95,
    method: str = "clopper-pearson",
    squares: npt.ArrayLike | None = None,
    sketch: npt.ArrayLike | None = None,
) -> tuple[Array, Array]:
    """Return ``(lower, upper)`` for every label, valid together at ``confidence``.

    Parameters
    ----------
    counts:
        ``[..., K]``: for each label, the sum of its scores over the draws.
    draws:
        The number of draws, one number or ``[...]``.
    confidence:
        ``1 − alpha``. Each of the K labels is given ``alpha / K`` for its two sides.
    method:
        For counts of argmax scores ``clopper-pearson``, or ``beta-binomial``, which holds at every
        number of draws at once. For any scores in [0, 1] ``hoeffding``, ``bernstein`` (needs
        ``squares``), or ``betting`` (needs ``sketch``; holds at every number of draws at once).
    squares:
        ``[..., K]``: the sums of the squared scores.
    sketch:
        ``[..., K, places]``: ``pixeldp.sketches.sketch_of`` the scores.

    >>> lower, upper = confidence_bounds([970, 20, 10], 1000, confidence=0.95)
    >>> lower.round(3), upper.round(3)
    (array([0.954, 0.011, 0.004]), array([0.981, 0.033, 0.02 ]))
    """
    alpha = 1 - open_unit("confidence", confidence)
    sums = checked_sums(counts, draws, squares=squares, sketch=sketch)
    spending = Spending(alpha=alpha, plan="union", labels=sums.totals.shape[-1])
    return spend(sums, spending, method=method)


def spend(sums: Sums, spending: Spending, *, method: str) -> tuple[Array, Array]:
    """Return the bounds of every label at its level."""
    bound = METHODS[one_of("method", method, METHODS)].bound
    return bound(sums, spending.level, two_sided=spending.two_sided)


def bounds_for(
    sums: Sums,
    *,
    confidence: float,
    method: str,
    plan: str = "union",
    label: npt.NDArray[np.int64] | None = None,
    simultaneous: bool = False,
) -> Bounds:
    """Return the bounds of N inputs under a plan, with what was spent.

    ``label`` is the label of each input, chosen by draws of its own, for ``rest`` and ``all``.
    With ``simultaneous`` all bounds of all N inputs hold together: alpha is divided by N.
    """
    one_of("plan", plan, PLANS)
    inputs, labels = sums.totals.shape
    alpha = (1 - open_unit("confidence", confidence)) / (inputs if simultaneous else 1)
    spending = Spending(alpha=alpha, plan=plan, labels=labels)
    lower, upper = spend(sums, spending, method=method)
    if plan != "union":
        if label is None:
            raise InvalidArgument(
                f"plan={plan!r} needs a label chosen by draws of its own, got label=None"
            )
        own = np.arange(labels) == label[:, None]
        lower = np.where(own, lower, 0.0)
        rest = np.nextafter(1 - lower[own], 1.0)[:, None] if plan == "rest" else upper
        upper = np.where(own, 1.0, rest)
    return Bounds(
        lower=lower,
        upper=upper,
        confidence=confidence,
        method=method,
        spending=spending,
        simultaneous=simultaneous,
    )


def least_draws(*, labels: int, confidence: float, method: str, plan: str = "union") -> int:
    """Return the least number of draws that could certify anything, were they unanimous."""

    def certifies(draws: int) -> bool:
        counts = np.zeros((1, labels))
        counts[0, 0] = draws
        made = bounds_for(
            checked_sums(counts, draws),
            confidence=confidence,
            method=method,
            plan=plan,
            label=np.zeros(1, dtype=np.int64),
        )
        return bool(made.lower[0, 0] > min(made.upper[0, 1], 1 - made.lower[0, 0]))

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


def check_draws(
    draws: int, *, labels: int, confidence: float, method: str, plan: str = "union"
) -> None:
    """Refuse, before the first draw, what could not certify anything."""
    needed = least_draws(labels=labels, confidence=confidence, method=method, plan=plan)
    if draws < needed:
        raise TooFewDraws(
            f"draws must be at least {needed} to certify anything with {labels} labels at "
            f"confidence={confidence:g} ({method}), got draws={draws}"
        )
