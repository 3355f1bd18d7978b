from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from pixeldp.errors import InvalidArgument
from pixeldp.norms import L0, L1, L2, Linf, Norm, attack_norm

finite = st.floats(-1e3, 1e3)


@given(x=npst.arrays(float, 5, elements=finite), y=npst.arrays(float, 5, elements=finite))
def test_distance_is_the_norm_of_the_difference(x: np.ndarray, y: np.ndarray) -> None:
    moved = np.abs(x - y)
    assert L1.distance(x, y) == pytest.approx(moved.sum())
    assert L2.distance(x, y) == pytest.approx(np.sqrt((moved**2).sum()))
    assert Linf.distance(x, y) == moved.max()


@pytest.mark.parametrize("one", [L1, L2, Linf])
@pytest.mark.parametrize("other", [L1, L2, Linf])
@given(direction=npst.arrays(float, 7, elements=st.floats(-1, 1)))
def test_a_translated_ball_lies_inside(one: Norm, other: Norm, direction: np.ndarray) -> None:
    translated = float(one.radius_in(other, 1.0, coordinates=7))
    length = other.distance(direction, np.zeros(7))
    if length > 1e-9:
        on_the_sphere = direction * (translated / length)
        assert one.distance(on_the_sphere, np.zeros(7)) <= 1 + 1e-12


def test_translated_balls_are_as_large_as_they_can_be() -> None:
    n = 9
    assert float(L2.radius_in(Linf, 3.0, coordinates=n)) == pytest.approx(1.0)
    assert float(L1.radius_in(Linf, 9.0, coordinates=n)) == pytest.approx(1.0)
    assert float(L1.radius_in(L2, 3.0, coordinates=n)) == pytest.approx(1.0)
    assert float(L2.radius_in(L1, 3.0, coordinates=n)) == 3.0


@pytest.mark.parametrize("norm", [L1, L2, Linf])
@given(radius=st.floats(0, 6), value_range=st.floats(0.1, 3))
def test_changed_coordinates_stay_inside_and_one_more_does_not(
    norm: Norm, radius: float, value_range: float
) -> None:
    n = 9
    k = int(norm.radius_in(L0, radius, coordinates=n, value_range=value_range))
    for changed in range(n + 1):
        worst = np.zeros(n)
        worst[:changed] = value_range
        inside = norm.distance(worst, np.zeros(n)) <= radius
        if changed <= k:
            assert inside
        elif abs(norm.distance(worst, np.zeros(n)) - radius) > 1e-9:
            assert not inside
    assert L0.distance([0.0, 1.0, 2.0], [0.0, 5.0, 2.0]) == 1.0


def test_refusals_name_the_value() -> None:
    with pytest.raises(InvalidArgument, match=r"norm must be one of 0, 1, 2, inf, got norm=3"):
        attack_norm(3)
    with pytest.raises(InvalidArgument, match="0-norm bounds no other"):
        L0.radius_in(L2, 1.0, coordinates=3)
    with pytest.raises(InvalidArgument, match="value_range must be given"):
        L2.radius_in(L0, 1.0, coordinates=3)
    with pytest.raises(InvalidArgument, match="radius must be at least 0"):
        L2.radius_in(L1, -1.0, coordinates=3)
    with pytest.raises(InvalidArgument, match=r"one shape, got \(2,\) and \(3,\)"):
        L1.distance([0, 0], [0, 0, 0])
    with pytest.raises(InvalidArgument, match="coordinates must be a whole number of at least 1"):
        L2.radius_in(Linf, 1.0, coordinates=0)


def test_names() -> None:
    assert [norm.name for norm in (L1, L2, Linf)] == ["1-norm", "2-norm", "∞-norm"]
