"""From bounds on expected scores to a radius: one file a certificate.

A certificate is a function ``shift(lower, upper, mechanism)`` that returns the largest shift r, in
noise scales, inside which the label cannot change. The radius is ``r · scale / Δ``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from pixeldp._checks import one_of, open_unit, positive, whole
from pixeldp.certificates import analytic, dp, renyi, tight
from pixeldp.errors import InvalidArgument

if TYPE_CHECKING:
    import numpy.typing as npt

    from pixeldp.mechanisms import Mechanism

    Array = npt.NDArray[np.float64]

Shift = Callable[["Array", "Array", "Mechanism"], "Array"]

CERTIFICATES: dict[str, Shift] = {
    "dp": dp.shift,
    "analytic": analytic.shift,
    "renyi": renyi.shift,
    "tight": tight.shift,
}

# Those that bound single scores, so that any two of them may be compared.
SEPARATE = ("dp", "analytic", "tight")

_AT_ONCE = 16_384

# Scaling a shift to a radius rounds twice.
_ROUNDING = 4 * float(np.finfo(np.float64).eps)


def certified_radius(
    lower: npt.ArrayLike,
    upper: npt.ArrayLike,
    noise: Mechanism,
    *,
    certificate: str = "tight",
    sensitivity: float = 1.0,
    delta: float | None = None,
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
        ``dp`` (Propositions 1 and 2 of the paper), ``analytic`` (the same with the exact privacy
        profile), ``renyi`` (Li et al. 2019; scores must sum to at most 1) or ``tight`` (the best
        there is).
    sensitivity:
        Δ_{p,q} of what precedes the noise.
    delta:
        For ``dp`` with Gaussian noise: the one δ to use, as the original code does, instead of
        the best.

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
    shift = _shift_of(certificate, delta, noise)
    stretch = positive("sensitivity", sensitivity)
    try:
        low, up = np.broadcast_arrays(low, up)
    except ValueError:
        raise InvalidArgument(
            f"lower and upper must have shapes that fit, got {low.shape} and {up.shape}"
        ) from None
    leads = low > up
    # Where the label does not lead, any pair that leads stands in for it; the result is 0 there.
    shifts = _in_parts(shift, np.where(leads, low, 0.75), np.where(leads, up, 0.25), noise)
    radius = shifts * (noise.scale / stretch) * (1 - _ROUNDING)
    return np.asarray(np.where(leads, np.maximum(radius, 0.0), 0.0))


def top_k_radius(
    lower: npt.ArrayLike,
    others: npt.ArrayLike,
    noise: Mechanism,
    *,
    k: int,
    certificate: str = "tight",
    sensitivity: float = 1.0,
) -> Array:
    """Return the radius inside which a label stays among the k largest expected scores.

    Label l stays while fewer than k others can rise to what it can fall to. What a score can rise
    to grows with its bound, so the one that matters is the k-th largest; and since scores sum to
    at most 1, the k-th largest of the others is at most ``(1 − lower) / k``.

    Parameters
    ----------
    lower:
        ``[...]``, a lower bound on the label's expected score.
    others:
        ``[..., K − 1]``, upper bounds on those of all other labels, valid together with it.
    k:
        From 1 to K − 1; k = 1 is the usual certificate.

    >>> from pixeldp import Gaussian
    >>> noise = Gaussian(scale=1.0, norm=2)
    >>> [round(float(top_k_radius(0.3, [0.5, 0.1, 0.05], noise, k=k)), 3) for k in (1, 2)]
    [0.0, 0.379]
    """
    one_of("certificate", certificate, SEPARATE)
    bounds = _probabilities("others", others)
    count = bounds.shape[-1] if bounds.ndim else 0
    if whole("k", k, least=1) > count:
        raise InvalidArgument(
            f"k must be from 1 to {count}, the number of other labels, got k={k!r}"
        )
    k = int(k)
    low = _probabilities("lower", lower)
    if low.shape != bounds.shape[:-1]:
        raise InvalidArgument(
            f"lower and others must be [...] and [..., K − 1], got {low.shape} and {bounds.shape}"
        )
    largest = np.partition(bounds, count - k, axis=-1)[..., count - k]
    cap = np.nextafter((1 - low) / k, 1.0)
    return certified_radius(
        low, np.minimum(largest, cap), noise, certificate=certificate, sensitivity=sensitivity
    )


def _in_parts(shift: Shift, low: Array, up: Array, noise: Mechanism) -> Array:
    """Compute a few thousand shifts at a time: what a certificate needs meanwhile stays small."""
    flat_low, flat_up = low.ravel(), up.ravel()
    parts = [
        shift(flat_low[start : start + _AT_ONCE], flat_up[start : start + _AT_ONCE], noise)
        for start in range(0, max(flat_low.size, 1), _AT_ONCE)
    ]
    return np.concatenate(parts).reshape(low.shape)


def _shift_of(certificate: str, delta: float | None, noise: Mechanism) -> Shift:
    one_of("certificate", certificate, CERTIFICATES)
    if delta is None:
        return CERTIFICATES[certificate]
    if certificate != "dp" or noise.name == "laplace":
        raise InvalidArgument(
            "delta is for certificate='dp' with Gaussian noise only, got "
            f"delta={delta!r} with {certificate!r} and {noise.name} noise"
        )
    return partial(dp.shift_at_fixed_delta, delta=open_unit("delta", delta))


def _probabilities(name: str, values: npt.ArrayLike) -> Array:
    array = np.asarray(values, dtype=np.float64)
    outside = ~((array >= 0) & (array <= 1))
    if outside.any():
        raise InvalidArgument(
            f"{name} must lie in [0, 1], got {name}={float(array[outside].flat[0])!r}"
        )
    return array
