"""Cutting a network at a layer into front | noise | back, with the proof that it may be cut there.

The certificate rests on post-processing: the back must see the input only through the noisy
output of the front (§3.1: no skip connection from pre-noise to post-noise layers). Here that is
proved on the captured graph: starting at the input, everything that depends on it is followed,
but not beyond the noise; if the network's output is among what is reached, some path misses the
noise, and the network is refused with the names of the operations on that path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pixeldp.errors import NoiseBypassed, UnknownLayer
from pixeldp.graphs import Graph, Piece, ancestors, capture, describe, find_layer, runs_within
from pixeldp.sensitivities import modes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import fx, nn

check_deterministic = modes.check_deterministic

# How many operations of an offending path a message names.
_NAMED = 4


@dataclass(frozen=True)
class Cut:
    """A network cut at the value to which the noise is added: ``back(front(x) + Z)``."""

    graph: Graph
    at: fx.Node
    front: Piece
    back: Piece

    @property
    def front_nodes(self) -> list[fx.Node]:
        """The operations before the noise that see the input, in the order in which they run."""
        return operations_before(self.graph, self.at)


def operations_before(graph: Graph, at: fx.Node) -> list[fx.Node]:
    """Return the operations up to ``at`` that see the input, in the order in which they run."""
    before, seeing = ancestors([at]), graph.depending_on([graph.source])
    return [node for node in graph.nodes if node in before and node in seeing]


def cut(network: nn.Module, after: str, input_shape: Sequence[int]) -> Cut:
    """Cut ``network`` behind the layer named ``after``; refuse if anything walks around it."""
    find_layer(network, after, argument="after")
    graph = capture(network, input_shape)
    at = _only_exit(graph, after)
    _check_used_once(graph, network, after)
    _check_nothing_bypasses(graph, at, after)
    check_deterministic(graph, at)
    return Cut(
        graph=graph,
        at=at,
        front=Piece(graph, network, source=graph.source, result=at),
        back=Piece(graph, network, source=at, result=graph.result),
    )


def _only_exit(graph: Graph, after: str) -> fx.Node:
    """Find the one value that the layer hands to the rest of the network."""
    seeing = graph.depending_on([graph.source])
    inside = {node for node in graph.nodes if node in seeing and runs_within(node, after)}
    exits = [
        node
        for node in graph.nodes
        if node in inside and (node is graph.result or not inside.issuperset(node.users))
    ]
    if not exits:
        raise UnknownLayer(
            f"the layer {after!r} does not see the input when the network is evaluated; "
            "name a layer that the input passes"
        )
    if len(exits) > 1:
        raise UnknownLayer(
            f"the layer {after!r} hands {len(exits)} values to the rest of the network (it is used "
            "more than once, or returns several), so noise after it is not one noise layer; "
            "name a layer that is used once"
        )
    if not graph.rows_first(exits[0]):
        raise UnknownLayer(
            f"the output of the layer {after!r} does not have one row for each input of the batch"
        )
    return exits[0]


def _check_used_once(graph: Graph, network: nn.Module, after: str) -> None:
    """Refuse a layer that is called twice in a row, or again by another name."""
    layer = network.get_submodule(after)
    names = {
        name for name, module in network.named_modules(remove_duplicate=False) if module is layer
    }
    stacks: list[dict[str, tuple[str, Any]]] = [
        node.meta.get("nn_module_stack") or {} for node in graph.nodes
    ]
    calls = {call for stack in stacks for call, (name, _) in stack.items() if name in names}
    if len(calls) > 1:
        raise UnknownLayer(
            f"the layer {after!r} is used {len(calls)} times (as {', '.join(sorted(names))}), so "
            "noise after it is not one noise layer; name a layer that is used once"
        )


def _check_nothing_bypasses(graph: Graph, at: fx.Node, after: str) -> None:
    seen = {graph.source}
    queries = graph.batch_size_queries()
    for node in graph.nodes:
        if node is not at and node not in queries and not seen.isdisjoint(node.all_input_nodes):
            seen.add(node)
    if graph.result not in seen:
        return
    behind = graph.depending_on([at])
    joins = [
        node for node in graph.nodes if node in seen and (node in behind or node is graph.result)
    ]
    named = ", ".join(describe(node) for node in joins[:_NAMED])
    raise NoiseBypassed(
        f"noise after {after!r} would be bypassed: the input reaches the output around it, through "
        f"{named}; place the noise before the paths divide, or on the input (after=None)"
    )
