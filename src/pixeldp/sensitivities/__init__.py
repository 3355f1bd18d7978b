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
)
from pixeldp.norms import attack_norm
from pixeldp.sensitivities import tables
from pixeldp.sensitivities.account import Account, Step, Value
from pixeldp.sensitivities.joins import join
from pixeldp.sensitivities.measured import Wanted
from pixeldp.sensitivities.modes import check_modes
from pixeldp.sensitivities.pieces import Nonlinear, shape_of
from pixeldp.sensitivities.rules import piece_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import fx, nn


def sensitivity(
    module: nn.Module,
    input_shape: Sequence[int],
    *,
    p: float = 2,
    q: float = 2,
    value_range: tuple[float, float] | None = None,
) -> float:
    """Return a proven upper bound on Δ_{p,q} of a module on today's weights.

    ``Δ_{p,q} = max ‖g(x) − g(x')‖_q / ‖x − x'‖_p`` over inputs of ``input_shape``, which is the
    shape of one input, without the batch. p is 0, 1, 2 or ∞, q is 1 or 2. For p = 0, the number
    of changed coordinates, ``value_range`` says the lowest and highest value of a coordinate.

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
    graph = capture(module, input_shape)
    return front_account(graph, module, graph.result, p=p, q=q, value_range=value_range).bound


def identity_account(
    input_shape: Sequence[int] | None,
    *,
    p: float,
    q: float,
    value_range: tuple[float, float] | None = None,
) -> Account:
    """Return the account of doing nothing: noise on the input (§3.2, option 1)."""
    check_norms(p, q)
    if input_shape is None and p > q:
        raise InvalidArgument(
            f"input_shape must be given for the {attack_norm(p).name} with noise on the input, got "
            "input_shape=None; the bound grows with the number of coordinates"
        )
    shape = tuple(input_shape or (1,))
    start = Value(shape, tables.source(math.prod(shape), _width(p, value_range)), Wanted(p, q))
    steps = (Step("input", "", start, start.product, "noise on the input", "§3.2, option 1"),)
    return _checked(Account(p=p, q=q, steps=steps), ranged=value_range is not None)


def front_account(
    graph: Graph,
    network: nn.Module,
    at: fx.Node,
    *,
    p: float,
    q: float,
    value_range: tuple[float, float] | None = None,
) -> Account:
    """Return what is proved of a captured network from its input up to the value ``at``."""
    check_norms(p, q)
    seeing = graph.depending_on([graph.source])
    if at not in seeing:
        raise UnsupportedLayer(
            "the output does not depend on the input, so there is nothing to bound"
        )
    path = ancestors([at])
    chain = [node for node in graph.nodes if node in seeing and node in path]
    check_modes(network, chain)
    constants = {
        node: _in_double(value) for node, value in constant_values(graph, network, chain).items()
    }
    shape = shape_of(graph.source)
    start = Value(shape, tables.source(math.prod(shape), _width(p, value_range)), Wanted(p, q))
    values = {graph.source: start}
    steps = [Step("input", "", start, start.product, "the input itself", "")]
    for node in chain:
        if node is not graph.source:
            step = _followed(node, values, constants)
            values[node] = step.value
            steps.append(step)
    account = Account(p=p, q=q, steps=tuple(steps))
    return _checked(account, ranged=value_range is not None)


def check_norms(p: float, q: float) -> None:
    """Refuse norms between which nothing is defined here."""
    one_of("p", p, tables.NORMS)
    one_of("q", q, (1, 2))


def _followed(node: fx.Node, values: dict[fx.Node, Value], constants: dict[fx.Node, Any]) -> Step:
    """Return what one operation makes of values that are known, and the rule it is known by."""
    name, layer = str(node.target), layer_of(node)
    together = join(node, values)
    if together is not None:
        value, rule = together
        return Step(name, layer, value, None, rule, "triangle inequality")
    seen = [arg for arg in _arguments(node) if arg in values]
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


def _width(p: float, value_range: tuple[float, float] | None) -> float | None:
    if p != 0 or value_range is None:
        return None
    low, high = value_range
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InvalidArgument(
            f"value_range must be (lowest, highest), got value_range={value_range!r}"
        )
    return (high - low) * tables.ROUND_UP


def _in_double(value: object) -> object:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        return value.double() if value.is_floating_point() else value
    return value


def _checked(account: Account, *, ranged: bool) -> Account:
    if math.isfinite(account.bound):
        return account
    if math.isnan(account.bound):
        raise UnsupportedLayer(
            "the weights before the noise hold NaN, so that nothing bounds them; train them again "
            "with a lower learning rate"
        )
    if account.p == 0 and not ranged:
        raise InvalidArgument(
            "the range of the input must be given for norm=0, got none; give input_range (or "
            "value_range) as (lowest, highest): it bounds what one changed coordinate can do"
        )
    raise UnsupportedLayer(
        f"no finite sensitivity from the {account.p:g}-norm to the {account.q}-norm is proven for "
        "what precedes the noise; place the noise further forward, or mend infinite weights"
    )
