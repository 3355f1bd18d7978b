"""The certificate of Li, Chen, Wang and Carin (2019), from Rényi divergence.

It tests the two largest scores jointly, so it has no bound on a single score: no top-k and no
regression come from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pixeldp.roots import largest_value

if TYPE_CHECKING:
    import numpy.typing as npt

    from pixeldp.mechanisms import Mechanism

    Array = npt.NDArray[np.float64]

# ln(a − 1) for the orders a that are tried.
_LEAST, _MOST = float(np.log(1e-4)), float(np.log(1e4))
_POINTS, _STEPS = 28, 20

_ROUNDING = 64 * float(np.finfo(np.float64).eps)


def shift(lower: Array, upper: Array, mechanism: Mechanism) -> Array:
    """Return the largest shift whose divergence is too small to exchange the two largest scores.

    If two distributions over labels rank different labels first, then for every order a > 1 their
    divergence is at least ``−ln(1 − p1 − p2 + 2 (½ (p1^{1−a} + p2^{1−a}))^{1/(1−a)})``, with p1
    and p2 the two largest probabilities of one of them (their Lemma 1). Scores must sum to at
    most 1. Any order that is tried is sound.
    """
    # The two may not exceed 1 together; a lower bound may always be lowered.
    first = np.minimum(lower, 1 - upper)
    leads = first > upper
    first, second = np.where(leads, first, 0.75), np.where(leads, upper, 0.25)

    def covered(log_order: Array) -> Array:
        order = 1 + np.exp(log_order)
        return mechanism.renyi_shift(order, _divergence(order, first, second))

    low = np.full_like(lower, _LEAST)
    found = largest_value(covered, low, np.full_like(lower, _MOST), points=_POINTS, steps=_STEPS)
    return np.where(leads, found, 0.0)


def _divergence(order: Array, p1: Array, p2: Array) -> Array:
    """Return the least divergence of an exchange, without cancellation; rounded down.

    With ``c = ½ ln(p1/p2)`` the power mean is ``sqrt(p1 p2) e^{−w}``, ``w = ln cosh((a−1) c) /
    (a−1)``, so that what is subtracted from 1 inside the logarithm is
    ``(√p1 − √p2)² + 2 sqrt(p1 p2) (1 − e^{−w})``: two terms of one sign.
    """
    roots = np.sqrt(p1), np.sqrt(p2)
    apart = ((p1 - p2) / (roots[0] + roots[1])) ** 2
    with np.errstate(divide="ignore", invalid="ignore"):
        t = (order - 1) * (np.log(p1) - np.log(p2)) / 2
        short = np.minimum(t, 1.0)
        log_cosh = np.where(
            t < 1, np.log1p(2 * np.sinh(short / 2) ** 2), t + np.log1p(np.exp(-2 * t)) - np.log(2)
        )
        lost = -2 * roots[0] * roots[1] * np.expm1(-log_cosh / (order - 1))
    lost = np.where(p2 > 0, lost, 0.0)
    taken = np.minimum((apart + lost) * (1 - _ROUNDING), 1 - _ROUNDING)
    return np.asarray(-np.log1p(-taken) * (1 - _ROUNDING))
