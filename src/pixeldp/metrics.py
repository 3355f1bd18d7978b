"""What a test set says of a certified classifier (§4.1).

Each share has its own confidence interval over the test set: a test set is a sample too. The
intervals take the certificates as they are; that some of them may be wrong is what their own
confidence is about.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pixeldp._checks import open_unit
from pixeldp.bounds.methods import clopper_pearson
from pixeldp.bounds.sums import Sums
from pixeldp.errors import InvalidArgument

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]


def conventional_accuracy(predicted: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Return the fraction of inputs whose predicted label is right.

    >>> conventional_accuracy([1, 2, 3, 4], [1, 2, 3, 0])
    0.75
    """
    return float(_correct(predicted, labels).mean())


def certified_accuracy(
    predicted: npt.ArrayLike,
    radius: npt.ArrayLike,
    labels: npt.ArrayLike,
    thresholds: npt.ArrayLike,
) -> Array:
    """Return, for each threshold T, the fraction that is right and has ``radius ≥ T``.

    At T = 0 this is conventional accuracy, as in the paper.

    >>> certified_accuracy([1, 2], [0.5, 0.1], [1, 2], [0.0, 0.2, 0.6])
    array([1. , 0.5, 0. ])
    """
    correct, robust = _correct(predicted, labels), _robust(radius, thresholds)
    return np.asarray((correct & robust).mean(axis=-1))


def precision_on_certified(
    predicted: npt.ArrayLike,
    radius: npt.ArrayLike,
    labels: npt.ArrayLike,
    thresholds: npt.ArrayLike,
) -> Array:
    """Return, for each threshold T, the fraction right among those with ``radius ≥ T``.

    NaN where none has: a precision of nothing is not 0 and not 1.

    >>> precision_on_certified([1, 2], [0.5, 0.1], [1, 3], [0.0, 0.2, 0.6])
    array([0.5, 1. , nan])
    """
    correct, robust = _correct(predicted, labels), _robust(radius, thresholds)
    certified = robust.sum(axis=-1)
    return np.where(
        certified > 0, (correct & robust).sum(axis=-1) / np.maximum(certified, 1), np.nan
    )


def accuracy_interval(
    predicted: npt.ArrayLike, labels: npt.ArrayLike, *, confidence: float = 0.95
) -> tuple[Array, Array]:
    """Return the interval of conventional accuracy over inputs like these.

    >>> lower, upper = accuracy_interval([1] * 98 + [0] * 2, [1] * 100)
    >>> float(lower.round(3)), float(upper.round(3))
    (0.93, 0.998)
    """
    correct = _correct(predicted, labels)
    return proportion_interval(correct.sum(), correct.size, confidence=confidence)


def certified_accuracy_interval(
    predicted: npt.ArrayLike,
    radius: npt.ArrayLike,
    labels: npt.ArrayLike,
    thresholds: npt.ArrayLike,
    *,
    confidence: float = 0.95,
) -> tuple[Array, Array]:
    """Return the interval of certified accuracy, for each threshold by itself."""
    correct, robust = _correct(predicted, labels), _robust(radius, thresholds)
    successes = (correct & robust).sum(axis=-1)
    return proportion_interval(successes, correct.size, confidence=confidence)


def precision_interval(
    predicted: npt.ArrayLike,
    radius: npt.ArrayLike,
    labels: npt.ArrayLike,
    thresholds: npt.ArrayLike,
    *,
    confidence: float = 0.95,
) -> tuple[Array, Array]:
    """Return the interval of precision on certified examples, for each threshold by itself.

    From 0 to 1 where none is certified.
    """
    correct, robust = _correct(predicted, labels), _robust(radius, thresholds)
    return proportion_interval(
        (correct & robust).sum(axis=-1), robust.sum(axis=-1), confidence=confidence
    )


def average_certified_radius(
    predicted: npt.ArrayLike, radius: npt.ArrayLike, labels: npt.ArrayLike
) -> float:
    """Return the mean radius, counting 0 where the label is wrong.

    To compare with the literature, not to choose a model by: a few inputs with very large radii
    outweigh many that are not certified at all, and more draws alone make it grow. Certified
    accuracy at the sizes that matter says more.

    >>> average_certified_radius([1, 2, 3], [0.6, 0.3, 0.9], [1, 2, 0])
    0.3
    """
    correct, size = _correct(predicted, labels), np.asarray(radius, dtype=np.float64)
    if size.shape != correct.shape or not (size >= 0).all():
        raise InvalidArgument(
            f"radius must hold one number of at least 0 for each input, got shape {size.shape}"
        )
    return float(np.where(correct, size, 0.0).mean())


def proportion_interval(
    successes: npt.ArrayLike, total: npt.ArrayLike, *, confidence: float = 0.95
) -> tuple[Array, Array]:
    """Return the two-sided Clopper-Pearson interval of a share; from 0 to 1 for none of none."""
    level = 1 - open_unit("confidence", confidence)
    count, number = np.broadcast_arrays(
        np.asarray(successes, dtype=np.float64), np.asarray(total, dtype=np.float64)
    )
    if not ((count >= 0) & (count <= number)).all():
        raise InvalidArgument(
            f"successes must lie between 0 and total, got {successes!r} of {total!r}"
        )
    some = number > 0
    sums = Sums(totals=np.where(some, count, 0.0), draws=np.where(some, number, 1.0))
    lower, upper = clopper_pearson(sums, level, two_sided=True)
    return np.where(some, lower, 0.0), np.where(some, upper, 1.0)


def _correct(predicted: npt.ArrayLike, labels: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    first, second = np.asarray(predicted), np.asarray(labels)
    if first.shape != second.shape or first.ndim != 1 or not first.size:
        raise InvalidArgument(
            "predicted and labels must hold one label for each of at least one input, got shapes "
            f"{first.shape} and {second.shape}"
        )
    return np.asarray(first == second)


def _robust(radius: npt.ArrayLike, thresholds: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    limits = np.asarray(thresholds, dtype=np.float64)
    if (limits < 0).any() or np.isnan(limits).any():
        raise InvalidArgument(f"thresholds must be at least 0, got thresholds={thresholds!r}")
    return np.asarray(np.asarray(radius, dtype=np.float64) >= limits[..., None])
