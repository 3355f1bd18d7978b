"""The paper's condition with the exact privacy profile instead of the classical formula.

For Gaussian noise the classical ``sigma = sqrt(2 ln(1.25/δ)) Δ L / ε`` is not exact, and holds for
ε ≤ 1 only. Balle and Wang (2018) give the exact δ for every ε; the robustness condition of
Proposition 2 with it certifies more, and for any ε. For Laplace noise the profile also has pairs
with ε below r and δ above 0, which the paper leaves aside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pixeldp.certificates import dp
from pixeldp.mechanisms import half_log_ratio
from pixeldp.roots import largest_value

if TYPE_CHECKING:
    import numpy.typing as npt

    from pixeldp.mechanisms import Mechanism

    Array = npt.NDArray[np.float64]

_POINTS, _STEPS = 16, 16

_ROUNDING = 64 * float(np.finfo(np.float64).eps)


def shift(lower: Array, upper: Array, mechanism: Mechanism) -> Array:
    """Return the largest shift covered by some (ε, δ) of the exact profile that keeps the label.

    For each ε ≥ 0 the condition ``lower > e^{2ε} upper + (1 + e^ε) δ`` allows a largest δ, and the
    profile a largest shift for it. Any ε that is tried is sound; the best is searched for.
    """
    endless = upper == 0  # then ever larger ε cover ever larger shifts
    bound = np.where(endless, 0.25, upper)
    end = half_log_ratio(np.where(endless, 0.75, lower), bound)

    def covered(epsilon: Array) -> Array:
        delta = dp.largest_delta(epsilon, lower, bound)
        return np.where(delta > 0, mechanism.exact_shift(epsilon, np.maximum(delta, 0.0)), 0.0)

    at_ends = np.maximum(covered(np.zeros_like(end)), covered(end * (1 - 1e-12)))
    found = largest_value(covered, np.zeros_like(end), end, points=_POINTS, steps=_STEPS)
    best = np.maximum(found, at_ends) * (1 - _ROUNDING) - _ROUNDING
    # The classical pairs are among those of the exact profile; a search may just miss them.
    best = np.maximum(best, dp.shift(lower, bound, mechanism))
    return np.where(endless, np.inf, np.maximum(best, 0.0))
