"""What a test set says of a certified classifier (§4.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

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
