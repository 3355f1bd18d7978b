"""A compact sketch of many scores in [0, 1], from which betting bounds are computed later.

Every score x between two neighbouring places ``a ≤ x ≤ b`` of a fixed grid is split between them:
a part ``(b − x)/(b − a)`` to a, the rest to b. So a sketch of n scores is a vector of weights that
add up to n and whose weighted mean is the mean of the scores. For a concave function f the
weighted sum of f over the places is at most the sum of f over the scores (Jensen), and the
logarithm of a bet's capital is a sum of concave functions of the scores: what a sketch says of the
capital is never too much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

# Finer towards 0 and 1, where the scores of a confident network lie.
_HALF = (0.0, 1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.02, 0.04, 0.08, 0.14, 0.22, 0.3, 0.4)

PLACES: Array = np.array([*_HALF, 0.5, *(1 - place for place in reversed(_HALF))])


def sketch_of(scores: npt.ArrayLike) -> Array:
    """Return the sketch of scores ``[draws, ...]``: weights ``[..., places]``.

    >>> weights = sketch_of([0.25, 0.25, 1.0])
    >>> float(weights.sum()), round(float(weights @ PLACES), 12)
    (3.0, 1.5)
    """
    values = np.asarray(scores, dtype=np.float64)
    below = np.clip(np.searchsorted(PLACES, values, side="right") - 1, 0, len(PLACES) - 2)
    share = np.clip((values - PLACES[below]) / (PLACES[below + 1] - PLACES[below]), 0.0, 1.0)
    rows = np.arange(int(np.prod(values.shape[1:]))).reshape(values.shape[1:]) * len(PLACES)
    at, size = (rows + below).ravel(), rows.size * len(PLACES)
    kept = np.bincount(at, weights=(1 - share).ravel(), minlength=size)
    moved = np.bincount(at + 1, weights=share.ravel(), minlength=size)
    return np.asarray(kept + moved, dtype=np.float64).reshape(*values.shape[1:], len(PLACES))


def sketch_of_counts(counts: Array, draws: Array) -> Array:
    """Return the sketch of argmax scores: all weight at 0 and at 1."""
    weights = np.zeros((*np.broadcast_shapes(counts.shape, draws.shape), len(PLACES)))
    weights[..., 0], weights[..., -1] = draws - counts, counts
    return weights
