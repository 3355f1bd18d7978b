from __future__ import annotations

import math

import numpy as np
import pytest

from pixeldp.errors import InvalidArgument
from pixeldp.metrics import certified_accuracy, conventional_accuracy, precision_on_certified

PREDICTED = np.array([0, 1, 2, 1, 0])
LABELS = np.array([0, 1, 1, 1, 2])
RADIUS = np.array([0.0, 0.4, 0.9, 0.2, 0.3])


def test_against_counting_by_hand() -> None:
    assert conventional_accuracy(PREDICTED, LABELS) == 3 / 5
    assert certified_accuracy(PREDICTED, RADIUS, LABELS, [0.0, 0.2, 0.3, 1.0]).tolist() == [
        3 / 5,
        2 / 5,
        1 / 5,
        0.0,
    ]
    precision = precision_on_certified(PREDICTED, RADIUS, LABELS, [0.0, 0.2, 0.5])
    assert precision.tolist() == [3 / 5, 2 / 4, 0.0]
    assert math.isnan(precision_on_certified(PREDICTED, RADIUS, LABELS, 1.0))


def test_a_radius_that_equals_the_threshold_counts() -> None:
    assert float(certified_accuracy([1], [0.25], [1], 0.25)) == 1.0


def test_impossible_arguments_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="one label for each"):
        conventional_accuracy([1, 2], [1])
    with pytest.raises(InvalidArgument, match="at least one input"):
        conventional_accuracy([], [])
    with pytest.raises(InvalidArgument, match="thresholds must be at least 0"):
        certified_accuracy([1], [0.2], [1], -0.1)
