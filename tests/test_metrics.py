from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from pixeldp.errors import InvalidArgument
from pixeldp.metrics import (
    accuracy_interval,
    average_certified_radius,
    certified_accuracy,
    certified_accuracy_interval,
    conventional_accuracy,
    precision_interval,
    precision_on_certified,
    proportion_interval,
)

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


def test_intervals_hold_their_shares_at_the_stated_confidence() -> None:
    """Exactly, by the binomial: over all outcomes the interval misses with at most 5 %."""
    total, counts = 60, np.arange(61)
    lower, upper = proportion_interval(counts, total)
    for share in np.linspace(0.01, 0.99, 99):
        missed = (share < lower) | (share > upper)
        assert float(stats.binom.pmf(counts, total, share) @ missed) <= 0.05 + 1e-12
    narrow = proportion_interval(counts, total, confidence=0.5)
    assert (
        max(
            float(stats.binom.pmf(counts, total, p) @ ((p < narrow[0]) | (p > narrow[1])))
            for p in (0.2, 0.5, 0.8)
        )
        > 0.05
    )


def test_every_share_lies_in_its_interval() -> None:
    thresholds = [0.0, 0.2, 0.5]
    low, up = accuracy_interval(PREDICTED, LABELS)
    assert low <= conventional_accuracy(PREDICTED, LABELS) <= up
    pairs = [
        (certified_accuracy, certified_accuracy_interval),
        (precision_on_certified, precision_interval),
    ]
    for share, interval in pairs:
        value = share(PREDICTED, RADIUS, LABELS, thresholds)
        lower, upper = interval(PREDICTED, RADIUS, LABELS, thresholds)
        assert ((lower <= value) & (value <= upper)).all()
    none = precision_interval(PREDICTED, RADIUS, LABELS, 5.0)
    assert [float(end) for end in none] == [0.0, 1.0]


def test_average_radius_counts_errors_as_zero() -> None:
    assert average_certified_radius(PREDICTED, RADIUS, LABELS) == pytest.approx(0.6 / 5)


def test_impossible_arguments_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="one label for each"):
        conventional_accuracy([1, 2], [1])
    with pytest.raises(InvalidArgument, match="at least one input"):
        conventional_accuracy([], [])
    with pytest.raises(InvalidArgument, match="radius must hold one number"):
        average_certified_radius([1, 2], [0.5, float("nan")], [1, 2])
    with pytest.raises(InvalidArgument, match="between 0 and total, got 3 of 2"):
        proportion_interval(3, 2)
    with pytest.raises(InvalidArgument, match="thresholds must be at least 0"):
        certified_accuracy([1], [0.2], [1], -0.1)
