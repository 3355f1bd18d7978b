"""A front followed from the input to the noise: what is proved of it, piece by piece.

Every value of the front has a table of what the input's changes can become there. Neighbouring
linear pieces are bounded together: the value that such a stretch starts from is its *base*, and the
best of three bounds is taken, each of them proved: the product of the pieces, the bound of the one
operator into which they fold, and, where it is small, the explicit matrix.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from pixeldp.sensitivities import tables
from pixeldp.sensitivities.folding import fold
from pixeldp.sensitivities.geometry import Convolution
from pixeldp.sensitivities.linear import Convolved, Diagonal, Rearranged
from pixeldp.sensitivities.measured import dense_entries

if TYPE_CHECKING:
    from collections.abc import Callable

    from pixeldp.sensitivities.linear import Operator, Shape
    from pixeldp.sensitivities.pieces import Nonlinear
    from pixeldp.sensitivities.tables import Table, Wanted

# Explicit matrices are made up to this many entries, from at most so many basis vectors.
_ENTRIES = 2**21
_BASIS = 1024

_IMAGE = 3


@dataclass(eq=False)
class Value:
    """What is known of one value of the front.

    Attributes
    ----------
    shape:
        Without the batch.
    base:
        The value that this one is a linear function of, up to a constant; None where it is not.
    product:
        The bound from the base to here as a product of pieces; from the input, without a base.
    folded:
        One operator from the base to here, where the pieces fold.
    action:
        The linear function itself, on batches of float64 values of the base.
    pieces:
        How many linear pieces lie between.
    by_place:
        Whether those only mix the channels of each place of an image, alike everywhere.
    pixel_width:
        For the input, where the 0-norm counts pixels: the most that a channel of one can change.
    """

    shape: Shape
    product: Table
    wanted: Wanted
    base: Value | None = None
    folded: Operator | None = None
    action: Callable[[torch.Tensor], torch.Tensor] | None = None
    pieces: int = 0
    by_place: bool = False
    pixel_width: float | None = None

    @cached_property
    def reach(self) -> Table:
        """The table from the input to here: the best that is proved."""
        if self.base is None:
            return self.product
        reached = tables.compose(self.base.reach, self.stretch)
        if self.base.pixel_width is not None:
            for q in (1, 2):
                place = tables.at(0, q)
                bound = self.base.pixel_width * self._pixel(q) * tables.ROUND_UP
                reached[place] = np.minimum(reached[place], bound)
        return reached

    @cached_property
    def stretch(self) -> Table:
        """The table from the base to here: the least of what is proved of it."""
        return np.asarray(np.minimum.reduce(list(self._ways.values())))

    @property
    def way(self) -> str:
        """Which of the bounds decided, for the pair of norms that is wanted."""
        if self.base is None or len(self._ways) == 1:
            return ""
        place, before = tables.at(self.wanted.p, self.wanted.q), self.base.reach
        return min(self._ways, key=lambda way: tables.compose(before, self._ways[way])[place])

    @cached_property
    def _ways(self) -> dict[str, Table]:
        ways = {"product": self.product}
        if self.pieces > 1 and self.folded is not None:
            ways["folded"] = self.folded.table(self.wanted)
        matrix = self._matrix() if self.pieces > 1 else None
        if matrix is not None:
            outputs, inputs = matrix.shape
            entries = dense_entries(matrix, self.wanted)
            ways["explicit matrix"] = tables.linear(entries, inputs, outputs)
        return ways

    def then(self, operator: Operator, own: Table) -> Value:
        """Return the value behind one more linear piece, which has the table ``own``."""
        mixes = _by_place(operator)
        if self.base is None or self.action is None:
            start, act = self, operator.apply
            return Value(operator.outputs, own, self.wanted, start, operator, act, 1, mixes)
        before = self.action
        return Value(
            operator.outputs,
            tables.compose(self.product, own),
            self.wanted,
            self.base,
            None if self.folded is None else fold(self.folded, operator),
            lambda x: operator.apply(before(x)),
            self.pieces + 1,
            self.by_place and mixes,
        )

    def behind(self, piece: Nonlinear, shape: Shape) -> Value:
        """Return the value behind a piece that is not linear."""
        return Value(shape, tables.compose(self.reach, piece.proven), self.wanted)

    def _pixel(self, q: float) -> float:
        """Return the most that one changed pixel of the base, by 1 a channel, moves this value."""
        if isinstance(self.folded, Convolved):
            return self.folded.pixel(q)
        return math.inf

    def _matrix(self) -> torch.Tensor | None:
        """Return the explicit matrix from the base to here, if it is small."""
        if self.base is None or self.action is None:
            return None
        inputs, outputs = math.prod(self.base.shape), math.prod(self.shape)
        if inputs > _BASIS or inputs * outputs > _ENTRIES:
            return None
        basis = torch.eye(inputs, dtype=torch.float64).reshape(inputs, *self.base.shape)
        return self.action(basis).reshape(inputs, outputs).mT


def joined(
    values: list[Value],
    shape: Shape,
    *,
    tables_of: Callable[[list[Table]], Table],
    act: Callable[[list[torch.Tensor]], torch.Tensor],
    by_place: bool,
) -> Value:
    """Return a sum or a concatenation of values; linear if all are, of the same base.

    ``by_place`` says that it treats every place of an image alike and apart.
    """
    wanted = values[0].wanted
    bases = {value.base or value for value in values}
    if len(bases) > 1:
        return Value(shape, tables_of([value.reach for value in values]), wanted)
    (base,) = bases
    nothing = tables.isometry(math.prod(base.shape))
    actions = [value.action or _unchanged for value in values]

    def action(x: torch.Tensor) -> torch.Tensor:
        return act([one(x) for one in actions])

    mixes = by_place and all(value is base or value.by_place for value in values)
    return Value(
        shape,
        tables_of([nothing if value is base else value.stretch for value in values]),
        wanted,
        base,
        _channel_mixing(base.shape, shape, action) if mixes else None,
        action,
        pieces=2 + sum(value.pieces for value in values),
        by_place=mixes,
    )


def _unchanged(x: torch.Tensor) -> torch.Tensor:
    return x


def _by_place(operator: Operator) -> bool:
    if isinstance(operator, Diagonal):
        image = len(operator.inputs) >= _IMAGE and operator.by_channel() is not None
        return image or operator.scale.numel() == 1
    return isinstance(operator, Rearranged) and operator.by_place


def _channel_mixing(
    base: Shape, shape: Shape, action: Callable[[torch.Tensor], torch.Tensor]
) -> Operator | None:
    """Return what mixes the channels of each place alike as a 1×1 convolution."""
    if len(base) != _IMAGE or len(shape) != _IMAGE or base[1:] != shape[1:]:
        return None
    channels = torch.eye(base[0], dtype=torch.float64)[:, :, None, None]
    kernel = action(channels.expand(-1, -1, *base[1:]))[:, :, 0, 0].mT
    return Convolved(base, shape, kernel[:, :, None, None], Convolution(image=(base[1], base[2])))


@dataclass(frozen=True)
class Step:
    """One line of an account: an operation, its own table and rule, and the value it makes."""

    operation: str
    layer: str
    value: Value
    own: Table | None
    rule: str
    source: str


@dataclass(frozen=True)
class Account:
    """What is proved of a front, for one pair of norms: Δ_{p,q} and, step by step, why."""

    wanted: Wanted
    steps: tuple[Step, ...]

    @property
    def p(self) -> float:
        """The norm of the input."""
        return self.wanted.p

    @property
    def q(self) -> float:
        """The norm of the output."""
        return self.wanted.q

    @cached_property
    def bound(self) -> float:
        """Δ_{p,q} of the whole front."""
        return float(self.steps[-1].value.reach[tables.at(self.p, self.q)])

    def __str__(self) -> str:
        """Lay the steps out as a table."""
        place = tables.at(self.p, self.q)
        heads = ("operation", "layer", "output", "alone", "so far", "as", "rule", "source")
        rows = [
            (
                step.operation,
                step.layer,
                "×".join(map(str, step.value.shape)),
                "" if step.own is None else f"{step.own[place]:.6g}",
                f"{step.value.reach[place]:.6g}",
                step.value.way,
                step.rule,
                step.source,
            )
            for step in self.steps
        ]
        widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in [heads, tuple("-" * width for width in widths), *rows]
        ]
        return "\n".join([*lines, "", f"Δ_{{{_name(self.p)},{_name(self.q)}}} ≤ {self.bound:.9g}"])


def _name(norm: float) -> str:
    return "∞" if math.isinf(norm) else f"{norm:g}"
