"""What a rule makes of an operation: a linear operator, or the table of one that is not linear."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pixeldp.errors import UnsupportedLayer
from pixeldp.graphs import describe
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
    sizes = value.shape[1:]
    if not all(isinstance(size, int) for size in sizes):
        raise UnsupportedLayer(
            f"{describe(node)} makes a value whose shape {tuple(sizes)} depends on the number of "
            "inputs; keep that to the first dimension"
        )
    return tuple(sizes)
