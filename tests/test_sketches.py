from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from pixeldp.sketches import PLACES, sketch_of, sketch_of_counts

scores = npst.arrays(
    float, st.tuples(st.integers(1, 20), st.integers(1, 3)), elements=st.floats(0, 1)
)


def test_places_are_sorted_symmetric_and_reach_both_ends() -> None:
    assert (np.diff(PLACES) > 0).all()
    assert np.allclose(PLACES + PLACES[::-1], 1.0)
    assert PLACES[0] == 0.0
    assert PLACES[-1] == 1.0


@given(values=scores)
def test_number_and_sum_are_kept(values: np.ndarray) -> None:
    weights = sketch_of(values)
    assert (weights >= 0).all()
    assert np.allclose(weights.sum(axis=-1), len(values))
    assert np.allclose(weights @ PLACES, values.sum(axis=0), atol=1e-9)


@given(values=scores, bet=st.floats(-0.99, 0.99), mean=st.floats(0.05, 0.95))
def test_a_capital_is_never_overstated(values: np.ndarray, bet: float, mean: float) -> None:
    """Jensen: the logarithm of a bet's payoff is concave in the score."""
    stake = bet / max(mean, 1 - mean)
    exact = np.log1p(stake * (values - mean)).sum(axis=0)
    kept = sketch_of(values) @ np.log1p(stake * (PLACES - mean))
    assert (kept <= exact + 1e-9).all()


@given(values=scores)
def test_the_order_of_draws_does_not_matter_and_parts_add_up(values: np.ndarray) -> None:
    weights = sketch_of(values)
    assert np.allclose(sketch_of(values[::-1]), weights)
    half = len(values) // 2
    if half:
        assert np.allclose(sketch_of(values[:half]) + sketch_of(values[half:]), weights)


def test_counts_have_a_sketch_of_two_places() -> None:
    weights = sketch_of_counts(np.array([3.0, 0.0]), np.array([5.0, 5.0]))
    assert weights[:, 0].tolist() == [2.0, 5.0]
    assert weights[:, -1].tolist() == [3.0, 0.0]
    assert weights.sum() == 10.0
