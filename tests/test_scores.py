from __future__ import annotations

import numpy as np
import pytest

from pixeldp.errors import InvalidArgument
from pixeldp.scores import Scores


def scores(**changed: object) -> Scores:
    fields: dict[str, object] = {
        "counts": np.array([[7, 3]]),
        "sums": np.array([[6.0, 4.0]]),
        "squares": np.array([[4.0, 2.0]]),
        "draws": np.array([10]),
        "seconds": np.array([0.1]),
        "seed": 1,
    }
    return Scores(**{**fields, **changed})  # type: ignore[arg-type]


def test_totals_and_means() -> None:
    made = scores()
    assert made.labels == 2
    assert made.totals("argmax").tolist() == [[7.0, 3.0]]
    assert made.means("softmax").tolist() == [[0.6, 0.4]]
    with pytest.raises(InvalidArgument, match="scores must be one of 'argmax', 'softmax'"):
        made.totals("logits")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"counts": np.array([[7, 4]])}, "counts must be at least 0 and add up"),
        ({"counts": np.array([[11, -1]])}, "counts must be at least 0 and add up"),
        ({"counts": np.array([7, 3])}, r"must be \[inputs, labels\]"),
        ({"sums": np.array([[6.0, 3.0]])}, "sums must be at least 0 and add up"),
        ({"sums": np.array([[np.nan, 3.0]])}, "sums must be at least 0 and add up"),
        ({"squares": np.array([[6.0]])}, r"must be \[inputs, labels\]"),
        ({"draws": np.array([10, 10])}, "one entry for each of 1 inputs"),
    ],
)
def test_sums_that_no_draws_could_leave_are_refused(
    changed: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        scores(**changed)
