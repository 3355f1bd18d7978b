"""The paper's own certificate: Propositions 1 and 2, and the L_max box of §3.4."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from pixeldp.errors import InvalidArgument
from pixeldp.mechanisms import Gaussian, Laplace, half_log_ratio

if TYPE_CHECKING:
    import numpy.typing as npt

    from pixeldp.mechanisms import Mechanism

    Array = npt.NDArray[np.float64]

# Each step shrinks the bracket by 0.618: sixty narrow it to 3e-13 of the whole.
_STEPS = 60
_GOLDEN = (5**0.5 - 1) / 2

# Below the smallest normal number a relative error says nothing.
_TINY = float(np.finfo(np.float64).tiny)

_ROUNDING = 16 * float(np.finfo(np.float64).eps)


def shift(lower: Array, upper: Array, mechanism: Mechanism) -> Array:
    """Return the largest shift r for which the robustness condition holds (Proposition 2).

    ``lower > e^{2ε} upper + (1 + e^ε) δ``, where attacks of shift r are covered by every (ε, δ)
    that the mechanism has for r; rounded down. For 0 ≤ upper < lower ≤ 1.
    """
    if isinstance(mechanism, Laplace):
        return half_log_ratio(lower, upper)  # ε = r and δ = 0, so r = ½ ln(lower / upper)
    if isinstance(mechanism, Gaussian):
        return _gaussian(lower, upper)
    raise InvalidArgument(f"certificate='dp' does not know the mechanism {mechanism.name!r}")


def _gaussian(lower: Array, upper: Array) -> Array:
    """Maximise ``r = ε / sqrt(2 ln(1.25/δ))`` over ε in (0, 1], with the best δ for each ε.

    For a given ε the condition allows every δ below ``(lower − e^{2ε} upper) / (1 + e^ε)``, and r
    grows with δ. As a function of ε, r has one maximum: with ``g = ln(1.25/δ)``, ``sqrt(g)`` is
    convex, so every ``ε − c sqrt(g)`` is concave. A golden-section search therefore finds it; and
    since every ε within the range is allowed, whatever it finds is sound.
    """
    left = np.zeros_like(lower)
    right = np.minimum(1.0, half_log_ratio(lower, upper))  # beyond it no δ above 0 is left
    ends = right
    for _ in range(_STEPS):
        step = _GOLDEN * (right - left)
        first, second = right - step, left + step
        below = _covered(first, lower, upper) < _covered(second, lower, upper)
        left, right = np.where(below, first, left), np.where(below, right, second)
    # The maximum may sit at ε = 1, which the search only approaches.
    best = np.maximum(_covered(left, lower, upper), _covered(ends, lower, upper))
    return best * (1 - _ROUNDING)


def _covered(epsilon: Array, lower: Array, upper: Array) -> Array:
    """Return the shift covered at ε with the largest δ that the condition allows; 0 if none."""
    growth = np.exp(epsilon)
    room = (lower - growth * growth * upper) / (1 + growth)
    room = room - _ROUNDING * lower - _TINY  # what the operations may have rounded up
    with np.errstate(divide="ignore", invalid="ignore"):
        covered = epsilon / np.sqrt(2 * (math.log(1.25) - np.log(room)))
    return np.where(room > 0, covered, 0.0)
