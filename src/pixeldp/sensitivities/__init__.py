"""Proven sensitivities of what precedes the noise: Δ_{p,q} of a front (§3.2).

``rules`` has one rule for each operation, ``operators`` the norms of linear ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pixeldp.errors import UnsupportedLayer
from pixeldp.graphs import Graph, ancestors, capture, constant_values
from pixeldp.sensitivities.operators import check_pair
from pixeldp.sensitivities.rules import Bounds, bounds_of, compose, identity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import fx, nn


def sensitivity(module: nn.Module, input_shape: Sequence[int], *, p: int = 2, q: int = 2) -> float:
    """Return a proven upper bound on Δ_{p,q} of a module on today's weights.

    ``Δ_{p,q} = max ‖g(x) − g(x')‖_q / ‖x − x'‖_p`` over inputs of ``input_shape``, which is the
    shape of one input, without the batch.

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
    return front_sensitivity(graph, module, graph.result, p=p, q=q)


def front_sensitivity(graph: Graph, network: nn.Module, at: fx.Node, *, p: float, q: int) -> float:
    """Return the bound for the part of a captured network from its input up to the value ``at``."""
    check_pair(p, q)
    seeing = graph.depending_on([graph.source])
    if at not in seeing:
        raise UnsupportedLayer(
            "the output does not depend on the input, so there is nothing to bound"
        )
    path = ancestors([at])
    chain = [node for node in graph.nodes if node in seeing and node in path][1:]
    constants = constant_values(graph, network, chain)
    total: Bounds = identity()
    with torch.no_grad():
        for node in chain:
            total = compose(total, bounds_of(node, constants, seeing=seeing))
    return total[int(p), q]
