"""What confidence bounds are computed from: sums over draws, checked when they come in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pixeldp.errors import InvalidArgument
from pixeldp.sketches import PLACES, sketch_of_counts

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

# Relative error of a sum of squares, with room.
_SLACK = 1e-12


@dataclass(frozen=True, eq=False)
class Sums:
    """What the bounds are computed from: sums over draws, broadcast against each other.

    ``totals`` of the scores; ``draws``, their number; ``squares``, the sums of their squares, and
    ``sketch``, their weights on the places of ``sketches``, where a method needs them.
    """

    totals: Array
    draws: Array
    squares: Array | None = None
    sketch: Array | None = None

    @property
    def binary(self) -> bool:
        """Whether the totals can be counts of scores that are 0 or 1."""
        return bool((self.totals == np.floor(self.totals)).all())

    def weights(self) -> Array:
        """Return the sketch; counts of argmax scores have one without it being kept."""
        if self.sketch is not None:
            return self.sketch
        if self.binary and self.squares is None:
            return sketch_of_counts(self.totals, self.draws)
        raise InvalidArgument(
            "method='betting' needs a sketch of softmax scores, got sums alone; draw again with "
            "bound='betting', or take 'bernstein'"
        )

    def variance(self) -> Array:
        """Return the sample variance, with n − 1 in its denominator; infinite for one draw."""
        squares = self.totals if self.squares is None and self.binary else self.squares
        if squares is None:
            raise InvalidArgument(
                "method='bernstein' needs the sums of squared scores: give squares=…"
            )
        excess = np.maximum(squares - self.totals**2 / self.draws, 0.0) + _SLACK * self.draws
        return np.where(self.draws > 1, excess / np.maximum(self.draws - 1, 1), np.inf)


def checked_sums(
    counts: npt.ArrayLike,
    draws: npt.ArrayLike,
    *,
    squares: npt.ArrayLike | None = None,
    sketch: npt.ArrayLike | None = None,
) -> Sums:
    """Return the sums if some draws can have left them."""
    totals = np.asarray(counts, dtype=np.float64)
    number = np.asarray(draws, dtype=np.float64)
    if totals.ndim == 0 or totals.shape[-1] < 2:
        raise InvalidArgument(
            f"counts must have at least two labels on the last axis, got shape {totals.shape}"
        )
    if not np.isfinite(number).all() or (number < 1).any() or (number != np.floor(number)).any():
        raise InvalidArgument(f"draws must be whole numbers of at least 1, got draws={draws!r}")
    number = np.broadcast_to(number, totals.shape[:-1])[..., None]
    if not ((totals >= 0) & (totals <= number)).all():
        raise InvalidArgument(
            "counts must lie between 0 and draws, got counts from "
            f"{totals.min():g} to {totals.max():g} for draws={draws!r}"
        )
    second = None if squares is None else np.asarray(squares, dtype=np.float64)
    if second is not None:
        _check_squares(second, totals, number)
    weights = None if sketch is None else np.asarray(sketch, dtype=np.float64)
    if weights is not None:
        _check_sketch(weights, totals, number)
    return Sums(totals=totals, draws=number, squares=second, sketch=weights)


def _check_squares(squares: Array, totals: Array, draws: Array) -> None:
    room = 1e-6 * draws
    if (
        squares.shape != totals.shape
        or not ((squares <= totals + room) & (squares >= totals**2 / draws - room)).all()
    ):
        raise InvalidArgument(
            "squares must be sums of squares of the same scores, between counts²/draws and counts"
        )


def _check_sketch(weights: Array, totals: Array, draws: Array) -> None:
    room = 1e-6 * draws
    if (
        weights.shape != (*totals.shape, len(PLACES))
        or not (weights >= 0).all()
        or not (np.abs(weights.sum(axis=-1) - draws) <= room).all()
        or not (np.abs(weights @ PLACES - totals) <= room).all()
    ):
        raise InvalidArgument(
            f"sketch must have {len(PLACES)} weights for each label that add up to draws and to "
            f"counts, got shape {weights.shape}"
        )
