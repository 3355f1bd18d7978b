from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixeldp import Gaussian, Laplace
from pixeldp.certificates.regression import lemma_interval, tight_interval
from pixeldp.errors import InvalidArgument

if TYPE_CHECKING:
    from pixeldp.mechanisms import Mechanism

MECHANISMS: list[Mechanism] = [Gaussian(scale=1.0, norm=2), Laplace(scale=1.0, norm=1)]
by_name = pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: m.name)

GRID = np.linspace(-14, 14, 4001)


def density(mechanism: Mechanism, centre: float) -> np.ndarray:
    """The noise around a point, as masses on a grid."""
    z = GRID - centre
    raw = np.exp(-z * z / 2) if mechanism.name == "gaussian" else np.exp(-np.abs(z))
    masses: np.ndarray = raw / raw.sum()
    return masses


@by_name
@given(
    seed=st.integers(0, 10**6),
    shift=st.floats(0.05, 2.0),
    a=st.floats(-3, 0),
    b=st.floats(0.5, 3),
)
def test_no_function_leaves_either_interval(
    mechanism: Mechanism, seed: int, shift: float, a: float, b: float
) -> None:
    """For random outputs in [a, b], smooth and stepped, in both directions of attack."""
    rng = np.random.default_rng(seed)
    steps = rng.uniform(a, b, size=rng.integers(2, 30))
    output = np.repeat(steps, -(-len(GRID) // len(steps)))[: len(GRID)]
    before = density(mechanism, 0.0)
    positive, negative = before @ np.maximum(output, 0), before @ np.maximum(-output, 0)
    mean = float(positive - negative)
    lemma = lemma_interval(
        positive=(positive, positive),
        negative=(negative, negative),
        output_range=(a, b),
        shift=shift,
        mechanism=mechanism,
    )
    best = tight_interval(mean=(mean, mean), output_range=(a, b), shift=shift, mechanism=mechanism)
    for moved in (-shift, -shift / 2, shift / 3, shift):
        after = float(density(mechanism, moved) @ output)
        for low, up in (lemma, best):
            assert float(low) - 1e-3 <= after <= float(up) + 1e-3


@by_name
@pytest.mark.parametrize("shift", [0.2, 1.0])
def test_the_tight_interval_is_attained_by_a_step(mechanism: Mechanism, shift: float) -> None:
    a, b = -1.0, 2.0
    for place in (-1.0, 0.0, 0.7):
        output = np.where(place >= GRID, b, a)
        mean = float(density(mechanism, 0.0) @ output)
        low, up = tight_interval(
            mean=(mean, mean), output_range=(a, b), shift=shift, mechanism=mechanism
        )
        assert float(density(mechanism, shift) @ output) == pytest.approx(float(low), abs=0.02)
        assert float(density(mechanism, -shift) @ output) == pytest.approx(float(up), abs=0.02)


def test_neither_interval_is_always_the_narrower() -> None:
    mechanism = Laplace(scale=1.0, norm=1)

    def widths(positive: float, negative: float) -> tuple[float, float]:
        lemma = lemma_interval(
            positive=(positive, positive),
            negative=(negative, negative),
            output_range=(-1.0, 1.0),
            shift=0.1,
            mechanism=mechanism,
        )
        mean = positive - negative
        best = tight_interval(
            mean=(mean, mean), output_range=(-1.0, 1.0), shift=0.1, mechanism=mechanism
        )
        return float(lemma[1] - lemma[0]), float(best[1] - best[0])

    lemma, best = widths(0.01, 0.0)
    assert lemma < best
    lemma, best = widths(0.5, 0.45)
    assert best < lemma


@by_name
def test_intervals_grow_with_the_shift_and_stay_in_the_range(mechanism: Mechanism) -> None:
    before: tuple[float, float] | None = None
    for shift in (0.0, 0.3, 1.0, 4.0, 40.0):
        low, up = lemma_interval(
            positive=([0.4, 0.1], [0.5, 0.2]),
            negative=([0.0, 0.2], [0.1, 0.3]),
            output_range=(-1.0, 2.0),
            shift=shift,
            mechanism=mechanism,
        )
        assert low.shape == (2,)
        assert (low >= -1).all()
        assert (up <= 2).all()
        if before is not None:
            assert low[0] <= before[0] + 1e-9
            assert up[0] >= before[1] - 1e-9
        before = (float(low[0]), float(up[0]))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"shift": -1.0}, "shift must be a finite number of at least 0, got shift=-1.0"),
        ({"shift": float("nan")}, "shift must be"),
        ({"mean": (0.6, 0.4)}, "mean must be"),
        ({"mean": (0.5, 3.0)}, "upper ≤ 1, got mean="),
        ({"output_range": (-1.0, 0.5, 1.0)}, "output_range must be"),
    ],
)
def test_impossible_arguments_are_refused(changed: dict[str, Any], message: str) -> None:
    arguments = {"mean": (0.4, 0.6), "output_range": (-1.0, 1.0), "shift": 0.1, **changed}
    with pytest.raises(InvalidArgument, match=message):
        tight_interval(**arguments, mechanism=MECHANISMS[0])


def test_the_parts_must_fit_their_ranges() -> None:
    with pytest.raises(InvalidArgument, match=r"negative must be .* upper ≤ 1"):
        lemma_interval(
            positive=(0.1, 0.2),
            negative=(0.1, 1.2),
            output_range=(-1.0, 2.0),
            shift=0.1,
            mechanism=MECHANISMS[0],
        )


@by_name
def test_a_shift_beyond_all_measure_leaves_the_whole_range(mechanism: Mechanism) -> None:
    low, up = lemma_interval(
        positive=(0.4, 0.5),
        negative=(0.1, 0.2),
        output_range=(-1.0, 2.0),
        shift=1e5,
        mechanism=mechanism,
    )
    assert (float(low), float(up)) == (-1.0, 2.0)


@pytest.mark.parametrize("output_range", [(0.5, 1.0), (-1.0, -0.5), (0.0, 0.0), (0.0, np.inf)])
def test_ranges_without_zero_are_refused(output_range: tuple[float, float]) -> None:
    with pytest.raises(InvalidArgument, match="output_range must be"):
        tight_interval(
            mean=(0.5, 0.5), output_range=output_range, shift=0.1, mechanism=MECHANISMS[0]
        )
