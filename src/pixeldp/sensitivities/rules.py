"""One rule for each operation that may stand before the noise; everything else is refused.

A rule turns a captured operation into its Δ_{p,q} for every supported pair. The arguments of the
operation that do not depend on the input, such as its weights, are given as values.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from pixeldp.errors import UnsupportedLayer
from pixeldp.graphs import describe
from pixeldp.sensitivities.geometry import Convolution
from pixeldp.sensitivities.operators import PAIRS, convolution_norm, dense_norm

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx

aten = torch.ops.aten

Bounds = dict[tuple[int, int], float]

# Operators are bounded in float64; this covers the rounding of sums, FFT and eigenvalues there.
_ROUND_UP = 1 + 1e-10

# Every coordinate moves to at most one place, or changes by no more than it did: 1 for p ≤ q.
_ISOMETRY: Bounds = dict.fromkeys(PAIRS, 1.0)

# Operations that only rearrange or copy the coordinates of each row.
_REARRANGING = {
    aten.view.default,
    aten.reshape.default,
    aten.flatten.using_ints,
    aten.clone.default,
    aten.contiguous.default,
}

# Elementwise functions with |f(u) − f(v)| ≤ |u − v|.
_CONTRACTIONS = {aten.relu.default, aten.tanh.default, aten.sigmoid.default}


def bounds_of(node: fx.Node, constants: dict[fx.Node, Any], *, seeing: set[fx.Node]) -> Bounds:
    """Return the sensitivities of one operation, or refuse it by name."""
    if [arg for arg in node.all_input_nodes if arg in seeing] != [node.args[0]]:
        raise UnsupportedLayer(
            f"no proven sensitivity for {describe(node)}, which combines several values that "
            "depend on the input; place the noise before it"
        )
    if node.target in _REARRANGING:
        return _rearranging(node)
    if node.target in _CONTRACTIONS:
        return dict(_ISOMETRY)
    rule = _LINEAR.get(node.target)
    if rule is None:
        raise UnsupportedLayer(
            f"no proven sensitivity for {describe(node)}; place the noise before it, or on the "
            "input (after=None)"
        )
    return {pair: bound * _ROUND_UP for pair, bound in rule(node, constants).items()}


def _rearranging(node: fx.Node) -> Bounds:
    """A view keeps each row's coordinates only if it keeps the rows."""
    before, after = node.args[0].meta["val"].shape, node.meta["val"].shape  # type: ignore[union-attr]
    if str(before[0]) != str(after[0]):
        raise UnsupportedLayer(
            f"{describe(node)} moves coordinates between the inputs of a batch, which voids the "
            "bound for each of them; keep the first dimension"
        )
    return dict(_ISOMETRY)


def _dense(node: fx.Node, constants: dict[fx.Node, Any]) -> Bounds:
    if len(node.args[0].meta["val"].shape) != 2:  # type: ignore[union-attr]
        raise UnsupportedLayer(
            f"{describe(node)} is applied to several vectors of each input; flatten it first"
        )
    weight = constants[node.args[1]]  # type: ignore[index]
    return {(p, q): float(dense_norm(weight, p=p, q=q)) for p, q in PAIRS}


def _convolution(node: fx.Node, constants: dict[fx.Node, Any]) -> Bounds:
    arguments = _named_arguments(node)
    weight = constants[arguments["weight"]]
    image = tuple(node.args[0].meta["val"].shape[2:])  # type: ignore[union-attr]
    dilation = _pair(arguments.get("dilation", (1, 1)))
    convolution = Convolution(
        image=(int(image[0]), int(image[1])),
        stride=_pair(arguments.get("stride", (1, 1))),
        padding=_padding(arguments.get("padding", (0, 0)), tuple(weight.shape[2:]), dilation),
        dilation=dilation,
        groups=int(arguments.get("groups", 1)),
    )
    return {(p, q): float(convolution_norm(weight, convolution, p=p, q=q)) for p, q in PAIRS}


def _named_arguments(node: fx.Node) -> dict[str, Any]:
    schema = node.target._schema  # type: ignore[union-attr]  # noqa: SLF001 - how torch names arguments
    named = dict(zip((argument.name for argument in schema.arguments), node.args, strict=False))
    return {**named, **node.kwargs}


def _pair(value: int | list[int]) -> tuple[int, int]:
    sizes = [value] if isinstance(value, int) else list(value)
    return (int(sizes[0]), int(sizes[-1]))


def _padding(
    padding: str | int | list[int], kernel: tuple[int, ...], dilation: tuple[int, int]
) -> tuple[tuple[int, int], tuple[int, int]]:
    if padding == "valid":
        return ((0, 0), (0, 0))
    if padding == "same":
        totals = [(size - 1) * step for size, step in zip(kernel, dilation, strict=True)]
        return (_halves(totals[0]), _halves(totals[1]))
    height, width = _pair(padding)  # type: ignore[arg-type]
    return ((height, height), (width, width))


def _halves(total: int) -> tuple[int, int]:
    return (total // 2, total - total // 2)


_LINEAR: dict[Any, Callable[[fx.Node, dict[fx.Node, Any]], Bounds]] = {
    aten.linear.default: _dense,
    aten.conv2d.default: _convolution,
    aten.conv2d.padding: _convolution,
}


def compose(first: Bounds, then: Bounds) -> Bounds:
    """Return the best ``Δ_{p,r} Δ_{r,q}`` over the norms r in between (§3.2, option 3)."""
    return {
        (p, q): min(
            (first[p, r] * then[r, q] for r in (1, 2) if (p, r) in first and (r, q) in then),
            default=math.inf,
        )
        for p, q in PAIRS
    }


def identity() -> Bounds:
    """Return the sensitivities of doing nothing: noise on the input (§3.2, option 1)."""
    return dict(_ISOMETRY)
