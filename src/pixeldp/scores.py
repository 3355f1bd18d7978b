"""What many noisy draws of a network leave behind: enough for any bound and certificate later."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from pixeldp._checks import one_of
from pixeldp.bounds.sums import Sums, checked_sums
from pixeldp.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

KINDS = ("argmax", "softmax")


@dataclass(eq=False, kw_only=True)
class Drawn:
    """What the draws of one input have come to: sums that grow while it is drawn.

    Attributes
    ----------
    number:
        The input's, which its noise is drawn by.
    label:
        The label that draws of its own chose; None while none is.
    counts, sums, squares, sketch:
        As in ``Scores``, for this input: ``[K]``, and ``[K, places]`` where it is kept.
    draws, seconds:
        How many, and how long they took.
    proved:
        A lower bound on the label's expected score, where draws are stopped by what they show.
    evidence:
        The logarithm of the most evidence seen that the label leads, where only it is wanted.
    """

    number: int
    counts: npt.NDArray[np.int64]
    sums: npt.NDArray[np.float64]
    squares: npt.NDArray[np.float64]
    draws: int = 0
    seconds: float = 0.0
    label: int | None = None
    sketch: npt.NDArray[np.float64] | None = None
    proved: float = 0.0
    evidence: float = 0.0

    @classmethod
    def nothing(cls, number: int, labels: int, *, label: int | None = None) -> Drawn:
        """Return an input before its first draw."""
        return cls(
            number=number,
            counts=np.zeros(labels, dtype=np.int64),
            sums=np.zeros(labels),
            squares=np.zeros(labels),
            label=label,
        )

    def of_label(self, kind: str) -> tuple[float, float]:
        """Return the sum of the label's scores and of their squares."""
        if kind == "argmax":
            count = float(self.counts[self.label])
            return count, count
        return float(self.sums[self.label]), float(self.squares[self.label])


@dataclass(frozen=True)
class Stopped:
    """How draws were stopped by what they showed, and what that proved.

    Attributes
    ----------
    bound:
        The bound that was followed while drawing: ``planned``, ``beta-binomial`` or ``betting``.
    kind:
        The scores that it bounds: ``argmax`` or ``softmax``.
    alpha:
        What the lower bound of one input may fail with.
    proved:
        ``[N]``, the lower bounds on the expected scores of the selected labels.
    """

    bound: str
    kind: str
    alpha: float
    proved: npt.NDArray[np.float64] = field(repr=False)


@dataclass(frozen=True, eq=False)
class Scores:
    """Sums over the draws of N inputs with K labels.

    Each draw of input i gives K scores that sum to 1: softmax, or argmax (one 1, else 0).

    Attributes
    ----------
    counts:
        ``[N, K]``, how often each label had the largest logit: the sums of the argmax scores,
        and of their squares.
    sums, squares:
        ``[N, K]``, sums of the softmax scores and of their squares.
    draws:
        ``[N]``, draws made for each input.
    seconds:
        ``[N]``, time spent on each input.
    seed:
        What the noise was drawn from: input number i uses the stream (seed, i).
    sketch:
        ``[N, K, places]``, the sketches of the softmax scores, where they were kept: what betting
        bounds need.
    selected:
        ``[N]``, the label of each input, where it was chosen by draws of its own.
    stopped:
        How the draws were stopped by what they showed; None if their number was fixed beforehand.
        Bounds for a fixed number of draws do not hold for those that were stopped.
    """

    counts: npt.NDArray[np.int64]
    sums: npt.NDArray[np.float64]
    squares: npt.NDArray[np.float64]
    draws: npt.NDArray[np.int64]
    seconds: npt.NDArray[np.float64]
    seed: int
    sketch: npt.NDArray[np.float64] | None = None
    selected: npt.NDArray[np.int64] | None = None
    stopped: Stopped | None = None

    @classmethod
    def of(
        cls, drawn: Sequence[Drawn], *, seed: int, stopped: tuple[str, str, float] | None = None
    ) -> Scores:
        """Put together what was drawn of several inputs, in the order of their numbers.

        ``stopped``: the bound, the kind of scores and the alpha, if draws were stopped.
        """
        rows = sorted(drawn, key=lambda one: one.number)
        sketches = [one.sketch for one in rows if one.sketch is not None]
        labels = [one.label for one in rows if one.label is not None]
        proved = np.array([one.proved for one in rows])
        return cls(
            counts=np.stack([one.counts for one in rows]),
            sums=np.stack([one.sums for one in rows]),
            squares=np.stack([one.squares for one in rows]),
            draws=np.array([one.draws for one in rows], dtype=np.int64),
            seconds=np.array([one.seconds for one in rows]),
            seed=seed,
            sketch=np.stack(sketches) if sketches else None,
            selected=np.array(labels, dtype=np.int64) if labels else None,
            stopped=None if stopped is None else Stopped(*stopped, proved=proved),
        )

    def __post_init__(self) -> None:
        """Refuse sums that no draws could have left."""
        shape = self.counts.shape
        if len(shape) != 2 or self.sums.shape != shape or self.squares.shape != shape:
            raise InvalidArgument(
                f"counts, sums and squares must be [inputs, labels], got {shape}, "
                f"{self.sums.shape} and {self.squares.shape}"
            )
        if self.draws.shape != shape[:1] or self.seconds.shape != shape[:1]:
            raise InvalidArgument(
                f"draws and seconds must have one entry for each of {shape[0]} inputs, got "
                f"{self.draws.shape} and {self.seconds.shape}"
            )
        if (self.counts < 0).any() or (self.counts.sum(axis=1) != self.draws).any():
            raise InvalidArgument("counts must be at least 0 and add up to the draws of each input")
        # Softmax rows add up to 1 only up to float32 rounding in the network.
        slack = 1e-4 * np.maximum(self.draws, 1)
        wrong = np.abs(self.sums.sum(axis=1) - self.draws) > slack
        if not np.isfinite(self.sums).all() or (self.sums < 0).any() or wrong.any():
            raise InvalidArgument("sums must be at least 0 and add up to the draws of each input")
        if self.selected is not None and (
            self.selected.shape != shape[:1]
            or not ((self.selected >= 0) & (self.selected < shape[1])).all()
        ):
            raise InvalidArgument(f"selected must name one of {shape[1]} labels for each input")
        if self.stopped is not None and (
            self.selected is None
            or self.stopped.proved.shape != shape[:1]
            or not ((self.stopped.proved >= 0) & (self.stopped.proved < 1)).all()
        ):
            raise InvalidArgument(
                "draws that were stopped need a selected label and a proved bound in [0, 1) for "
                "each input"
            )
        self.sums_of("softmax")  # refuses squares and a sketch that do not belong to the sums

    @property
    def labels(self) -> int:
        """K, the number of labels."""
        return int(self.counts.shape[1])

    def totals(self, kind: str) -> npt.NDArray[np.float64]:
        """Return the sums of the ``argmax`` or ``softmax`` scores, ``[N, K]``."""
        return (
            self.counts.astype(np.float64)
            if one_of("scores", kind, KINDS) == "argmax"
            else self.sums
        )

    def sums_of(self, kind: str) -> Sums:
        """Return what bounds on the ``argmax`` or ``softmax`` scores are computed from."""
        if one_of("scores", kind, KINDS) == "argmax":
            return checked_sums(self.counts, self.draws)
        return checked_sums(self.sums, self.draws, squares=self.squares, sketch=self.sketch)

    def means(self, kind: str) -> npt.NDArray[np.float64]:
        """Return the mean scores, the estimate of ``E A_k(x)``."""
        return self.totals(kind) / self.draws[:, None]
