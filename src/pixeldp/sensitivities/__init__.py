"""Proven sensitivities of what precedes the noise: Δ_{p,q} of a front (§3.2).

``rules`` and ``images`` have one rule for each operation, ``linear`` the pieces that fold,
``measured`` their norms, ``tables`` the arithmetic of bounds, ``account`` the walk along a front.
``operators`` has the norms with a gradient, which hold a layer in training.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from pixeldp._checks import one_of
from pixeldp.errors import InvalidArgument, UnsupportedLayer
from pixeldp.graphs import (
    Graph,
    ancestors,
    capture,
    constant_values,
    describe,
    layer_of,
    name_of,
)
from pixeldp.norms import attack_norm
from pixeldp.sensitivities import tables
from pixeldp.sensitivities.account import Account, Step, Value
from pixeldp.sensitivities.activations import is_softsign
from pixeldp.sensitivities.joins import join
from pixeldp.sensitivities.modes import check_deterministic, check_modes
from pixeldp.sensitivities.pieces import Nonlinear, shape_of
from pixeldp.sensitivities.rules import piece_of
from pixeldp.sensitivities.tables import Wanted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import fx, nn

_IMAGE = 3


def sensitivity(
    module: nn.Module,
    input_shape: Sequence[int],
    *,
    p: float = 2,
    q: float = 2,
    value_range: tuple[float, float] | None = None,
    pixels: bool = False,
) -> float:
    """Return a proven upper bound on Δ_{p,q} of a module on today's weights.

    ``Δ_{p,q} = max ‖g(x) − g(x')‖_q / ‖x − x'‖_p`` over inputs of ``input_shape``, which is the
    shape of one input, without the batch. p is 0, 1, 2 or ∞, q is 1 or 2. For p = 0, the number
    of changed coordinates, ``value_range`` says the lowest and highest value of a coordinate;
    with ``pixels``, all channels of a place count as one change.

    Raises
    ------
    UnsupportedLayer
        If some operation in the module has no proven bound.

    >>> import torch
    >>> layer = torch.nn.Linear(2, 2, bias=False)
    >>> layer.weight.data = torch.tensor([[3.0, 0.0], [4.0, 1.0]])
    >>> round(sensitivity(layer, (2,), p=1, q=1), 6), round(sensitivity(layer, (2,), p=1, q=2), 6)
    (7.0, 5.0)
    """
    wanted = Wanted(p, one_of("q", q, (1, 2)), value_range, pixels)
    graph = capture(module, input_shape)
    return front_account(graph, module, graph.result, wanted).bound


def identity_account(input_shape: Sequence[int] | None, wanted: Wanted) -> Account:
    """Return the account of doing nothing: noise on the input (§3.2, option 1)."""
    if input_shape is None and (wanted.p > wanted.q or wanted.pixels):
        raise InvalidArgument(
            f"input_shape must be given for the {attack_norm(wanted.p).name} with noise on the "
            "input, got input_shape=None; the bound grows with the number of coordinates"
        )
    start = _start(tuple(input_shape or (1,)), wanted)
    steps = (Step("input", "", start, start.product, "noise on the input", "§3.2, option 1"),)
    return _checked(Account(wanted, steps))


def _start(shape: tuple[int, ...], wanted: Wanted) -> Value:
    """Return the input as a value."""
    pixels = wanted.pixels and wanted.p == 0
    if pixels and len(shape) < _IMAGE:
        raise InvalidArgument(
            "pixels=True is for inputs of shape (channels, height, width), got an input of shape "
            f"{shape}"
        )
    together = shape[0] if pixels else 1
    table = tables.source(math.prod(shape), wanted.width, together=together)
    return Value(shape, table, wanted, pixel_width=wanted.width if pixels else None)


def front_account(graph: Graph, network: nn.Module, at: fx.Node, wanted: Wanted) -> Account:
    """Return what is proved of a captured network from its input up to the value ``at``."""
    seeing = graph.depending_on([graph.source])
    if at not in seeing:
        raise UnsupportedLayer(
            "the output does not depend on the input, so there is nothing to bound"
        )
    path = ancestors([at])
    chain = [node for node in graph.nodes if node in seeing and node in path]
    check_modes(network, chain)
    check_deterministic(graph, at)
    constants = {
        node: _in_double(value) for node, value in constant_values(graph, network, chain).items()
    }
    start = _start(shape_of(graph.source), wanted)
    values = {graph.source: start}
    steps = [Step("input", "", start, start.product, "the input itself", "")]
    for node in chain:
        if node is not graph.source:
            step = _followed(node, values, constants)
            values[node] = step.value
            steps.append(step)
    return _checked(Account(wanted, tuple(steps)))


def _followed(node: fx.Node, values: dict[fx.Node, Value], constants: dict[fx.Node, Any]) -> Step:
    """Return what one operation makes of values that are known, and the rule it is known by."""
    name, layer = name_of(node), layer_of(node)
    together = join(node, values)
    if together is not None:
        value, rule = together
        return Step(name, layer, value, None, rule, "triangle inequality")
    seen = [arg for arg in _arguments(node) if arg in values]
    if is_softsign(node):
        shape = shape_of(node)
        bend = Nonlinear(tables.contraction(1.0, math.prod(shape)), "softsign: slopes up to 1", "")
        return Step(name, layer, values[seen[0]].behind(bend, shape), None, bend.rule, bend.source)
    if len(seen) != 1:
        raise UnsupportedLayer(
            f"no proven sensitivity for {describe(node)}, which combines several values that "
            "depend on the input; place the noise before it"
        )
    piece, before = piece_of(node, seen[0], constants), values[seen[0]]
    if isinstance(piece, Nonlinear):
        after, own = before.behind(piece, shape_of(node)), piece.proven
    else:
        own = piece.table(before.wanted)
        after = before if piece.changes_nothing else before.then(piece, own)
    return Step(name, layer, after, own, piece.rule, piece.source)


def _arguments(node: fx.Node) -> list[fx.Node]:
    """Return the values that an operation is given, as often as it is given them."""
    found: list[fx.Node] = []
    torch.fx.node.map_arg((node.args, node.kwargs), found.append)
    return found


def _in_double(value: object) -> object:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        return value.double() if value.is_floating_point() else value
    return value


def _checked(account: Account) -> Account:
    if math.isfinite(account.bound):
        return account
    if math.isnan(account.bound):
        raise UnsupportedLayer(
            "the weights before the noise hold NaN, so that nothing bounds them; train them again "
            "with a lower learning rate"
        )
    if account.p == 0 and account.wanted.value_range is None:
        raise InvalidArgument(
            "the range of the input must be given for norm=0, got none; give input_range (or "
            "value_range) as (lowest, highest): it bounds what one changed coordinate can do"
        )
    raise UnsupportedLayer(
        f"no finite sensitivity from the {account.p:g}-norm to the {account.q}-norm is proven for "
        "what precedes the noise; place the noise further forward, or mend infinite weights"
    )
