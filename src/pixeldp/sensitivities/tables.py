"""Tables of sensitivities: what a piece of a network can do to a distance, for pairs of norms.

A table T is 4 × 4; ``T[p, q]`` bounds ``‖f(x) − f(x')‖_q / ‖x − x'‖_p``, for p and q among 0, 1, 2
and ∞ (in this order). The 0-norm counts changed coordinates. What is not bounded is infinite.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pixeldp._checks import one_of
from pixeldp.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

    Table = npt.NDArray[np.float64]

NORMS = (0, 1, 2, math.inf)

# Operators are bounded in float64; this covers the rounding of sums, FFT and eigenvalues there.
ROUND_UP = 1 + 1e-10


@dataclass(frozen=True)
class Wanted:
    """The sensitivity that is asked for; it decides which of the costly bounds are computed.

    Attributes
    ----------
    p, q:
        The norms of the input and of the output.
    value_range:
        The lowest and the highest value of a coordinate of the input; needed for p = 0.
    pixels:
        Whether p = 0 counts pixels, all channels of a place as one change, and not coordinates.
    """

    p: float
    q: float
    value_range: tuple[float, float] | None = None
    pixels: bool = False

    def __post_init__(self) -> None:
        """Refuse norms between which nothing is defined here, and a range that is none."""
        one_of("p", self.p, NORMS)
        one_of("q", self.q, NORMS[1:])
        if self.value_range is not None:
            low, high = self.value_range
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise InvalidArgument(
                    f"value_range must be (lowest, highest), got value_range={self.value_range!r}"
                )

    @property
    def from_infinity(self) -> bool:
        """Whether ``(∞, q)`` matters."""
        return self.p == math.inf

    @property
    def to_one(self) -> bool:
        """Whether ``(2, 1)`` matters."""
        return self.q == 1 and self.p in (2, math.inf)

    @property
    def width(self) -> float | None:
        """The most that one coordinate can change, where changes are counted."""
        if self.p != 0 or self.value_range is None:
            return None
        return (self.value_range[1] - self.value_range[0]) * ROUND_UP


def at(p: float, q: float) -> tuple[int, int]:
    """Return the place of a pair of norms in a table."""
    return NORMS.index(p), NORMS.index(q)


def table_of(entries: Mapping[tuple[float, float], float]) -> Table:
    """Return the table with these entries, rounded up, and nothing else bounded."""
    table = np.full((4, 4), math.inf)
    for (p, q), bound in entries.items():
        table[at(p, q)] = bound * ROUND_UP
    return table


def isometry(coordinates: int) -> Table:
    """Return what holds where no coordinate's change grows: ReLU, a reshape, doing nothing.

    ``‖x‖_q ≤ ‖x‖_p`` for p ≤ q, and ``‖x‖_q ≤ n^(1/q − 1/p) ‖x‖_p`` for p > q. That the factor is 1
    for p ≤ q only is what the paper's remark on ReLU (§3.2, option 3) leaves out.
    """
    table = np.full((4, 4), math.inf)
    table[at(0, 0)] = 1.0
    for p in NORMS[1:]:
        for q in NORMS[1:]:
            grows = max(0.0, 1 / q - 1 / p)
            table[at(p, q)] = float(coordinates) ** grows * (ROUND_UP if grows else 1.0)
    return table


def source(coordinates: int, value_range: float | None, *, together: int = 1) -> Table:
    """Return the table of the input itself: a changed coordinate moves by ``value_range`` at most.

    For the 0-norm: ``Δ_{0,q} = range · Δ_{1,q}``, since k coordinates have a 1-norm of k ranges.
    Where ``together`` coordinates count as one change (the channels of a pixel), q-norms of that
    many ranges.
    """
    table = isometry(coordinates)
    table[at(0, 0)] = together
    if value_range is not None:
        for q in NORMS[1:]:
            table[at(0, q)] = value_range * together ** (1 / q) * ROUND_UP
    return table


def compose(first: Table, then: Table) -> Table:
    """Return the best ``Δ_{p,r} Δ_{r,q}`` over the norms r in between (§3.2, option 3)."""
    with np.errstate(invalid="ignore"):  # 0 · ∞: nothing moves, so nothing is moved further
        products = first[:, :, None] * then[None, :, :]
    known = np.where(np.isnan(products), _nan_or_zero(first, then), products)
    return np.asarray(known.min(axis=1))


def _nan_or_zero(first: Table, then: Table) -> Table:
    """0 where a product is 0 · ∞; NaN, to be refused, where a bound itself is NaN."""
    lost = np.isnan(first)[:, :, None] | np.isnan(then)[None, :, :]
    return np.where(lost, np.nan, 0.0)


def complete(table: Table, inputs: int, outputs: int) -> Table:
    """Return the table with every pair bounded that the equivalence of norms bounds."""
    through = compose(compose(isometry(inputs), table), isometry(outputs))
    # NaN comes from weights that are no numbers: it must not be replaced by a bound.
    return np.asarray(np.minimum(table, through))


def linear(entries: Mapping[tuple[float, float], float], inputs: int, outputs: int) -> Table:
    """Return the table of a linear operator from some of its entries.

    Besides the equivalence of norms: ``‖W‖²_{2,2} ≤ ‖W‖_{1,1} ‖W‖_{∞,∞}`` (Schur's test).
    """
    table = table_of(entries)
    schur = math.sqrt(table[at(1, 1)] * table[at(math.inf, math.inf)]) * ROUND_UP
    table[at(2, 2)] = np.minimum(table[at(2, 2)], schur)
    return complete(table, inputs, outputs)


def contraction(constant: float, coordinates: int) -> Table:
    """Return the table of an elementwise function with ``|f(u) − f(v)| ≤ constant |u − v|``."""
    table = isometry(coordinates)
    table[1:, 1:] *= constant * (ROUND_UP if constant != 1 else 1.0)
    return table


def dual(table: Table) -> Table:
    """Return the table of the adjoint: ``‖Wᵀ‖_{p,q} = ‖W‖_{q*,p*}``, 1 and ∞ exchanged."""
    turned = np.full((4, 4), math.inf)
    turned[1:, 1:] = table[1:, 1:][::-1, ::-1].T
    return turned


def total(tables: Iterable[Table]) -> Table:
    """Return the table of a sum: the parts' bounds together."""
    return np.asarray(np.sum(list(tables), axis=0) * ROUND_UP)


def side_by_side(tables: Iterable[Table]) -> Table:
    """Return the table of a concatenation: the q-norm of the parts' bounds."""
    parts = np.stack(list(tables))
    joined = parts.sum(axis=0)  # q = 0 and q = 1
    joined[:, 2] = np.sqrt((parts[:, :, 2] ** 2).sum(axis=0))
    joined[:, 3] = parts[:, :, 3].max(axis=0)
    return np.asarray(joined * ROUND_UP)


def repeated(table: Table, times: int) -> Table:
    """Return the table of the same operator on ``times`` parts of the input, each by itself.

    For p ≤ q the worst is one part alone; for p > q, all of them: ``times^(1/q − 1/p)``.
    """
    return np.asarray(table * np.where(np.isfinite(isometry(times)), isometry(times), 1.0))
