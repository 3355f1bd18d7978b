"""The tight certificate: no larger radius holds for this noise and these scores alone.

By the lemma of Neyman and Pearson, the least that a score of at least ``lower`` can become under a
shift, and the most that one of at most ``upper`` can, are attained; the mechanism knows both (its
trade-off function). For Gaussian noise this is the bound of Cohen et al. 2019.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from pixeldp.mechanisms import Mechanism

    Array = npt.NDArray[np.float64]


def shift(lower: Array, upper: Array, mechanism: Mechanism) -> Array:
    """Return the largest shift that keeps the label; rounded down. For 0 ≤ upper < lower ≤ 1."""
    return np.maximum(mechanism.largest_shift(lower, upper), 0.0)


def extremes(lower: Array, upper: Array, shift: float, mechanism: Mechanism) -> tuple[Array, Array]:
    """Return how low scores of at least ``lower`` can get, and how high those of at most ``upper``.

    These are the bars of the paper's robustness-test figure, with the tight bound.
    """
    return mechanism.least_after(lower, shift), 1 - mechanism.least_after(1 - upper, shift)
