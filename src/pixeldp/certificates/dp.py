"""The paper's own certificate: Propositions 1 and 2, and the L_max box of §3.4."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pixeldp.mechanisms import half_log_ratio
from pixeldp.roots import last_holding

if TYPE_CHECKING:
    import numpy.typing as npt

    from pixeldp.mechanisms import Mechanism

    Array = npt.NDArray[np.float64]

# Golden-section steps: sixty narrow the bracket to 3e-13 of the whole.
_STEPS = 60
_GOLDEN = (5**0.5 - 1) / 2

# Below the smallest normal number a relative error says nothing.
_TINY = float(np.finfo(np.float64).tiny)

_ROUNDING = 16 * float(np.finfo(np.float64).eps)


def shift(lower: Array, upper: Array, mechanism: Mechanism) -> Array:
    """Return the largest shift r for which the robustness condition holds (Proposition 2).

    ``lower > e^{2ε} upper + (1 + e^ε) δ``, where attacks of shift r are covered by every (ε, δ)
    that the mechanism's classical formula has for r; rounded down. For 0 ≤ upper < lower ≤ 1.

    Laplace: ``ε = r`` and ``δ = 0``, so ``r = ½ ln(lower / upper)``.

    Gaussian: maximise ``r = ε / sqrt(2 ln(1.25/δ))`` over ε in (0, 1], with the best δ for each ε.
    For a given ε the condition allows every δ below ``(lower − e^{2ε} upper) / (1 + e^ε)``, and r
    grows with δ. As a function of ε, r has one maximum: with ``g = ln(1.25/δ)``, ``sqrt(g)`` is
    convex, so every ``ε − c sqrt(g)`` is concave. A golden-section search therefore finds it; and
    since every ε within the range is allowed, whatever it finds is sound.
    """
    if mechanism.name == "laplace":
        return half_log_ratio(lower, upper)

    def covered(epsilon: Array) -> Array:
        return mechanism.classical_shift(epsilon, largest_delta(epsilon, lower, upper))

    left = np.zeros_like(lower)
    right = np.minimum(1.0, half_log_ratio(lower, upper))  # beyond it no δ above 0 is left
    ends = covered(right)  # the maximum may sit at ε = 1, which the search only approaches
    for _ in range(_STEPS):
        step = _GOLDEN * (right - left)
        first, second = right - step, left + step
        rising = covered(first) < covered(second)
        left, right = np.where(rising, first, left), np.where(rising, right, second)
    return np.maximum(covered(left), ends) * (1 - _ROUNDING)


def shift_at_fixed_delta(
    lower: Array, upper: Array, mechanism: Mechanism, *, delta: float
) -> Array:
    """Return the same for one δ that is stated beforehand, as the original code does it.

    The condition then bounds ε alone: it holds up to some ε and not beyond it.
    """
    end = np.minimum(1.0, half_log_ratio(lower, upper))
    epsilon = last_holding(
        lambda eps: largest_delta(eps, lower, upper) > delta, np.zeros_like(lower), end
    )
    covered = mechanism.classical_shift(epsilon, np.full_like(lower, delta))
    return np.where(epsilon > 0, covered * (1 - _ROUNDING), 0.0)


def largest_delta(epsilon: Array, lower: Array, upper: Array) -> Array:
    """Return the δ up to which the condition holds at ε; at most 0 where it does for none."""
    with np.errstate(divide="ignore"):
        # As one exponential: its two factors may be out of range where it is not.
        exponent = 2 * epsilon + np.log(upper)
    # What may have been rounded up: an exponential's error grows with its exponent.
    rounded = np.where(upper > 0, 1 + 2 * epsilon + np.abs(exponent - 2 * epsilon), 1.0)
    room = lower - np.exp(exponent) - _ROUNDING * lower * rounded
    return np.asarray(room / (1 + np.exp(epsilon)) - _TINY)
