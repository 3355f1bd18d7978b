"""From bounds on expected scores to a radius: one file a certificate.

A certificate is a function ``shift(lower, upper, mechanism)`` that returns the largest shift r, in
noise scales, inside which the label cannot change. The radius is ``r · scale / Δ``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from pixeldp._checks import one_of, positive
from pixeldp.certificates import dp, tight
from pixeldp.errors import InvalidArgument

if TYPE_CHECKING:
    import numpy.typing as npt

    from pixeldp.mechanisms import Mechanism

    Array = npt.NDArray[np.float64]

Shift = Callable[["Array", "Array", "Mechanism"], "Array"]

CERTIFICATES: dict[str, Shift] = {"dp": dp.shift, "tight": tight.shift}

# Scaling a shift to a radius rounds twice.
_ROUNDING = 4 * float(np.finfo(np.float64).eps)


def certified_radius(
    lower: npt.ArrayLike,
    upper: npt.ArrayLike,
    noise: Mechanism,
    *,
    certificate: str = "tight",
    sensitivity: float = 1.0,
) -> Array:
    """Return the radius inside which the label cannot change; 0.0 where none is certified.

    Parameters
    ----------
    lower:
        A lower bound on the label's expected score.
    upper:
        The largest upper bound among the other labels. Where scores sum to at most 1,
        ``min(upper, 1 − lower)`` may be given instead, and is often much better.
    noise:
        What was drawn; the radius is in its attack norm and in the units of the input.
    certificate:
        ``dp`` (Propositions 1 and 2 of the paper) or ``tight`` (the best there is).
    sensitivity:
        Δ_{p,q} of what precedes the noise.

    The condition is strict at the radius itself, so the result is rounded down: an attack of
    exactly the returned size cannot change the label.

    >>> from pixeldp import Gaussian
    >>> noise = Gaussian(scale=1.0, norm=2)
    >>> certified_radius([0.9, 0.5], [0.1, 0.5], noise).round(3)
    array([1.282, 0.   ])
    >>> certified_radius([0.9, 0.5], [0.1, 0.5], noise, certificate="dp").round(3)
    array([0.39, 0.  ])
    """
    low, up = (_probabilities(name, v) for name, v in (("lower", lower), ("upper", upper)))
    shift = CERTIFICATES[one_of("certificate", certificate, CERTIFICATES)]
    delta = positive("sensitivity", sensitivity)
    try:
        low, up = np.broadcast_arrays(low, up)
    except ValueError:
        raise InvalidArgument(
            f"lower and upper must have shapes that fit, got {low.shape} and {up.shape}"
        ) from None
    leads = low > up
    # Where the label does not lead, any pair that leads stands in for it; the result is 0 there.
    shifts = shift(np.where(leads, low, 0.75), np.where(leads, up, 0.25), noise)
    radius = shifts * (noise.scale / delta) * (1 - _ROUNDING)
    return np.asarray(np.where(leads, np.maximum(radius, 0.0), 0.0))


def _probabilities(name: str, values: npt.ArrayLike) -> Array:
    array = np.asarray(values, dtype=np.float64)
    outside = ~((array >= 0) & (array <= 1))
    if outside.any():
        raise InvalidArgument(
            f"{name} must lie in [0, 1], got {name}={float(array[outside].flat[0])!r}"
        )
    return array
