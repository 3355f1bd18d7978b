"""What no sensitivity can cover, refused before the noise: randomness, and training mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from pixeldp.errors import UnsupportedLayer
from pixeldp.graphs import ancestors, describe

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import fx, nn

    from pixeldp.graphs import Graph


def check_modes(network: nn.Module, nodes: Iterable[fx.Node]) -> None:
    """Refuse batch normalisation in training mode, and dropout, among what ran these operations."""
    for node in nodes:
        stack: dict[str, tuple[str, Any]] = node.meta.get("nn_module_stack") or {}
        for name, _ in stack.values():
            module = _found(network, name)
            if isinstance(module, _BatchNorm) and module.training:
                raise UnsupportedLayer(
                    f"the batch normalisation {name!r} stands before the noise in training mode, "
                    "where its output depends on the other inputs of the batch, so that no "
                    "sensitivity holds; call .eval() first, or place the noise before it"
                )
            if isinstance(module, _DropoutNd) and module.p > 0:
                raise UnsupportedLayer(
                    f"the dropout {name!r} stands before the noise, and randomness before the "
                    "noise is not supported; remove it (p=0), or place the noise before it"
                )


def check_deterministic(graph: Graph, at: fx.Node) -> None:
    """Refuse randomness before the value ``at``, also in what does not see the input."""
    before = ancestors([at])
    for node in graph.nodes:
        tags = getattr(node.target, "tags", ())
        if node in before and torch.Tag.nondeterministic_seeded in tags:
            raise UnsupportedLayer(
                f"randomness before the noise is not supported: {describe(node)}; remove it, or "
                "place the noise before it"
            )


def _found(network: nn.Module, name: str) -> nn.Module | None:
    try:
        return network.get_submodule(name)
    except AttributeError:  # named by the capture, not by the network
        return None
