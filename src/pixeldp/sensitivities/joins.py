"""Sums and concatenations of values that depend on the input: residual blocks, branches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pixeldp.errors import UnsupportedLayer
from pixeldp.graphs import describe, named_arguments
from pixeldp.sensitivities import tables
from pixeldp.sensitivities.account import Value, joined
from pixeldp.sensitivities.pieces import shape_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import fx

    from pixeldp.sensitivities.tables import Table

aten = torch.ops.aten

_SUMS = {aten.add.Tensor, aten.sub.Tensor}
_STACKS = {aten.cat.default, aten.stack.default}

_BATCH_OF_IMAGES = 4

SUM = "sum of branches: the bounds together"
STACK = "branches side by side: the q-norm of the bounds"


def join(node: fx.Node, values: Mapping[fx.Node, Value]) -> tuple[Value, str] | None:
    """Return the value of a sum or concatenation of several values, and the rule; else None."""
    if node.target in _SUMS:
        parts = [arg for arg in node.args[:2] if arg in values]
        if len(parts) > 1:
            return _sum(node, parts, values), SUM  # type: ignore[arg-type]
    if node.target in _STACKS:
        return _stack(node, values), STACK
    return None


def _sum(node: fx.Node, parts: list[fx.Node], values: Mapping[fx.Node, Value]) -> Value:
    shape = shape_of(node)
    if any(shape_of(part) != shape for part in parts):
        raise UnsupportedLayer(
            f"{describe(node)} repeats a value to a larger shape; give both the same shape"
        )
    alpha = named_arguments(node).get("alpha", 1)
    if not isinstance(alpha, int | float):
        raise UnsupportedLayer(
            f"no proven sensitivity for {describe(node)}, which depends on the number of inputs"
        )
    weight = float(alpha)
    weight = -weight if node.target is aten.sub.Tensor else weight

    def bounds(found: list[Table]) -> Table:
        return tables.total([found[0], _scaled(found[1], abs(weight))])

    return joined(
        [values[part] for part in parts],
        shape,
        tables_of=bounds,
        act=lambda xs: xs[0] + weight * xs[1],
        by_place=True,
    )


def _scaled(table: Table, factor: float) -> Table:
    scaled = table.copy()
    scaled[:, 1:] *= factor  # how many coordinates change is not scaled
    return np.where(np.isnan(scaled) & np.isinf(table), np.inf, scaled)


def _stack(node: fx.Node, values: Mapping[fx.Node, Value]) -> Value:
    given: dict[str, Any] = named_arguments(node)
    parts, dim = list(given["tensors"]), int(given.get("dim", 0))
    dims = node.meta["val"].dim()
    rows = str(node.meta["val"].shape[0]) == str(parts[0].meta["val"].shape[0])
    if dim % dims == 0 or not rows:
        raise UnsupportedLayer(
            f"{describe(node)} joins inputs of the batch; join along another dimension"
        )
    varying = [values[part] for part in parts if part in values]
    if len(varying) < len(parts):  # constants beside them move no difference
        found = tables.side_by_side([value.reach for value in varying])
        return Value(shape_of(node), found, varying[0].wanted)

    def act(xs: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat(xs, dim) if node.target is aten.cat.default else torch.stack(xs, dim)

    # Places of an image are its last two dimensions; channels are put side by side before them.
    apart = dim % dims == 1 and dims >= _BATCH_OF_IMAGES
    return joined(varying, shape_of(node), tables_of=tables.side_by_side, act=act, by_place=apart)
