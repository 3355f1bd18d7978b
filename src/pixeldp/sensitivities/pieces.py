"""What a rule makes of an operation: a linear operator, or the table of one that is not linear."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pixeldp.sensitivities.linear import Operator, Shape

if TYPE_CHECKING:
    from torch import fx

    from pixeldp.sensitivities.tables import Table

# The values of what depends on no input, by the operations that make them.
Constants = dict["fx.Node", Any]


@dataclass(frozen=True, eq=False)
class Nonlinear:
    """A piece that is not linear: its table, and how it is known."""

    proven: Table
    rule: str
    source: str


Piece = Operator | Nonlinear


def shape_of(node: fx.Node) -> Shape:
    """Return the shape of a captured value, without the batch; of a tuple, that of its first."""
    value = node.meta["val"]
    if isinstance(value, (tuple, list)):
        value = value[0]
    return tuple(int(size) for size in value.shape[1:])
