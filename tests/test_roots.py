from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pixeldp.roots import largest_value, last_holding, reaching


@given(edges=st.lists(st.floats(0, 10), min_size=1, max_size=5))
def test_the_point_found_holds_and_is_the_last(edges: list[float]) -> None:
    edge = np.array(edges)
    found = last_holding(lambda x: x <= edge, np.zeros_like(edge), np.full_like(edge, 10.0))
    assert (found <= edge).all()
    assert (edge - found <= 10 * 2.0**-55).all()


def test_ends_that_hold_are_returned() -> None:
    low, high = np.zeros(2), np.ones(2)
    assert last_holding(lambda x: x >= 0, low, high).tolist() == [1.0, 1.0]
    assert last_holding(lambda x: x < 0, low, high).tolist() == [0.0, 0.0]


def test_doubling_finds_an_end_or_says_that_there_is_none() -> None:
    edges = np.array([0.5, 100.0, np.inf])
    end = reaching(lambda x: x <= edges, np.ones(3))
    assert end[0] == 1.0
    assert 100.0 < end[1] <= 256.0
    assert np.isinf(end[2])


@given(peaks=st.lists(st.floats(0, 3), min_size=1, max_size=6))
def test_the_largest_value_of_one_peak_is_found(peaks: list[float]) -> None:
    peak = np.array(peaks)
    found = largest_value(
        lambda x: -((x - peak) ** 2),
        np.zeros_like(peak),
        np.full_like(peak, 3.0),
        points=8,
        steps=30,
    )
    assert (found <= 0).all()
    assert (found > -1e-8).all()


def test_what_is_found_is_always_attained() -> None:
    """Soundness: never more than the supremum, whatever the function."""
    found = largest_value(
        lambda x: np.sin(40 * x), np.zeros(3), np.array([1.0, 2.0, 5.0]), points=9, steps=12
    )
    assert (found <= 1.0).all()
