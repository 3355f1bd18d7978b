"""Regression (appendix): an interval that the expected output cannot leave under attack.

The output lies in [a, b] with ``a ≤ 0 ≤ b`` and is split as ``A = A_+ − A_−``, both at least 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pixeldp.errors import InvalidArgument

if TYPE_CHECKING:
    import numpy.typing as npt

    from pixeldp.mechanisms import Mechanism

    Array = npt.NDArray[np.float64]

# Values of ε that the lemma is evaluated at for the exact profile; each of them is sound.
_ROUNDING = 64 * float(np.finfo(np.float64).eps)

_TWO = 2

_EPSILONS = np.concatenate([[0.0], np.geomspace(1e-3, 50.0, 80)])


def lemma_interval(
    *,
    positive: tuple[npt.ArrayLike, npt.ArrayLike],
    negative: tuple[npt.ArrayLike, npt.ArrayLike],
    output_range: tuple[float, float],
    shift: float,
    mechanism: Mechanism,
) -> tuple[Array, Array]:
    """Return the interval of the General Expected Output Stability Bound (appendix).

    ``positive`` and ``negative`` are bounds (lower, upper) on ``E A_+`` and ``E A_−`` that hold
    together. For every (ε, δ) of the mechanism at this shift,

    ``E A(x') ≤ e^ε E A_+ − e^{−ε} E A_− + b δ − e^{−ε} a δ`` and
    ``E A(x') ≥ e^{−ε} E A_+ − e^ε E A_− − e^{−ε} b δ + a δ``.

    (The last inequality in the paper's proof is about ``A_−``, not ``A_+``.) The pairs are those
    of the exact profile; the narrowest end on either side is taken.
    """
    a, b = checked_range(output_range)
    size = _checked_shift(shift)
    plus_low, plus_up = (v[..., None] for v in _checked_bounds("positive", positive, 0.0, b))
    minus_low, minus_up = (v[..., None] for v in _checked_bounds("negative", negative, 0.0, -a))
    epsilon = np.append(_EPSILONS, min(size, _EPSILONS[-1]))
    delta = mechanism.profile(epsilon, np.full_like(epsilon, size))
    grow, shrink = np.exp(epsilon), np.exp(-epsilon)
    most = grow * plus_up - shrink * minus_low + b * delta - shrink * a * delta
    least = shrink * plus_low - grow * minus_up - shrink * b * delta + a * delta
    slack = _ROUNDING * (np.abs(most) + np.abs(least) + b - a)
    low, up = (least - slack).max(axis=-1), (most + slack).min(axis=-1)
    return np.maximum(low, a), np.minimum(up, b)


def tight_interval(
    *,
    mean: tuple[npt.ArrayLike, npt.ArrayLike],
    output_range: tuple[float, float],
    shift: float,
    mechanism: Mechanism,
) -> tuple[Array, Array]:
    """Return the tight interval from bounds (lower, upper) on the mean.

    The output is rescaled to [0, 1], where the trade-off function applies; for these bounds alone
    nothing narrower holds. The lemma may still be narrower, since it knows ``A_+`` and ``A_−``
    apart: the two may be intersected where their bounds hold together.
    """
    a, b = checked_range(output_range)
    size = _checked_shift(shift)
    low, up = _checked_bounds("mean", mean, a, b)
    least = mechanism.least_after(np.clip((low - a) / (b - a), 0.0, 1.0), size)
    most = 1 - mechanism.least_after(np.clip((b - up) / (b - a), 0.0, 1.0), size)
    slack = _ROUNDING * (b - a)
    return np.maximum(a + (b - a) * least - slack, a), np.minimum(a + (b - a) * most + slack, b)


def checked_range(output_range: tuple[float, float]) -> tuple[float, float]:
    """Return the range of the output if it is one with ``a ≤ 0 ≤ b``."""
    ends = tuple(float(end) for end in output_range)
    a, b = ends if len(ends) == _TWO else (np.nan, np.nan)
    if not (np.isfinite([a, b]).all() and a <= 0 <= b and a < b):
        raise InvalidArgument(
            "output_range must be (a, b) with a ≤ 0 ≤ b, finite and not both 0, got "
            f"output_range={output_range!r}; shift the output so that 0 lies inside"
        )
    return a, b


def _checked_shift(shift: float) -> float:
    if not (np.isfinite(shift) and shift >= 0):
        raise InvalidArgument(f"shift must be a finite number of at least 0, got shift={shift!r}")
    return float(shift)


def _checked_bounds(
    name: str, bounds: tuple[npt.ArrayLike, npt.ArrayLike], least: float, most: float
) -> tuple[Array, Array]:
    low, up = (np.asarray(end, dtype=np.float64) for end in bounds)
    if not ((low >= least) & (low <= up) & (up <= most)).all():
        raise InvalidArgument(
            f"{name} must be (lower, upper) with {least:g} ≤ lower ≤ upper ≤ {most:g}, got "
            f"{name}={bounds!r}"
        )
    return low, up
