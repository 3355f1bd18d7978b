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
    plus_low, plus_up = (np.asarray(v, dtype=np.float64)[..., None] for v in positive)
    minus_low, minus_up = (np.asarray(v, dtype=np.float64)[..., None] for v in negative)
    epsilon = np.append(_EPSILONS, max(shift, 0.0))
    delta = mechanism.profile(epsilon, np.full_like(epsilon, shift))
    grow, shrink = np.exp(epsilon), np.exp(-epsilon)
    most = grow * plus_up - shrink * minus_low + b * delta - shrink * a * delta
    least = shrink * plus_low - grow * minus_up - shrink * b * delta + a * delta
    return np.maximum(least.max(axis=-1), a), np.minimum(most.min(axis=-1), b)


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
    low, up = (np.asarray(v, dtype=np.float64) for v in mean)
    least = mechanism.least_after(np.clip((low - a) / (b - a), 0.0, 1.0), shift)
    most = 1 - mechanism.least_after(np.clip((b - up) / (b - a), 0.0, 1.0), shift)
    # Outwards by what the scaling may have rounded.
    slack = 16 * float(np.finfo(np.float64).eps) * max(abs(a), abs(b))
    return a + (b - a) * least - slack, a + (b - a) * most + slack


def checked_range(output_range: tuple[float, float]) -> tuple[float, float]:
    """Return the range of the output if it is one with ``a ≤ 0 ≤ b``."""
    a, b = (float(end) for end in output_range)
    if not (np.isfinite([a, b]).all() and a <= 0 <= b and a < b):
        raise InvalidArgument(
            "output_range must be (a, b) with a ≤ 0 ≤ b, finite and not both 0, got "
            f"output_range={output_range!r}; shift the output so that 0 lies inside"
        )
    return a, b
