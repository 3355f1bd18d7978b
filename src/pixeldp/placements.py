"""Where the noise stands (§3.2): on the input, behind a layer, or between two parts given by hand.

A placement knows what is evaluated before and behind the noise, and what is proved of the part
before it. Noise inside an autoencoder that is stacked before another network (option 4 of the
paper) is noise behind a layer of the stack.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from pixeldp.graphs import Piece, ancestors, capture, evaluating, live_values
from pixeldp.sensitivities import front_account, identity_account
from pixeldp.sensitivities.modes import check_modes
from pixeldp.tracing import Cut, check_deterministic, cut, operations_before

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import fx

    from pixeldp.graphs import Graph
    from pixeldp.sensitivities.account import Account
    from pixeldp.sensitivities.tables import Wanted

    Noise = Callable[[torch.Tensor], torch.Tensor]


class Placement(Protocol):
    """What a model asks of the place of its noise."""

    def noisy(self, x: torch.Tensor, noise: Noise) -> torch.Tensor:
        """Return the logits with noise drawn once for each input, as in training."""

    def front(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the noise is added to, as evaluated."""

    def back(self, value: torch.Tensor) -> torch.Tensor:
        """Return the logits for noisy values, as evaluated."""

    def frozen_back(self) -> nn.Module:
        """Return the back with today's weights, as a module that is never trained."""

    def account(self, wanted: Wanted) -> Account:
        """Return what is proved of the front, on today's weights."""

    def input_dtype(self) -> torch.dtype | None:
        """Return the type that inputs must have, if it is not that of the weights."""


class OnInput:
    """Noise on the input: nothing needs to be captured, and the network may be anything."""

    def __init__(self, network: nn.Module, input_shape: Sequence[int] | None) -> None:
        self._network = network
        self._shape = input_shape

    def noisy(self, x: torch.Tensor, noise: Noise) -> torch.Tensor:
        """Return the logits of noisy inputs."""
        logits: torch.Tensor = self._network(x + noise(x))
        return logits

    def front(self, x: torch.Tensor) -> torch.Tensor:
        """Return the input."""
        return x

    def back(self, value: torch.Tensor) -> torch.Tensor:
        """Return the network's logits in evaluation mode."""
        with evaluating(self._network):
            logits: torch.Tensor = self._network(value)
            return logits

    def frozen_back(self) -> nn.Module:
        """Return a copy of the network."""
        return _frozen(self._network)

    def account(self, wanted: Wanted) -> Account:
        """Return the account of the identity."""
        return identity_account(self._shape, wanted)

    def input_dtype(self) -> torch.dtype | None:
        """Return None: that of the weights."""
        return None


class Behind:
    """Noise behind a named layer of a network that is captured as a graph and cut there."""

    def __init__(self, network: nn.Module, after: str, input_shape: Sequence[int]) -> None:
        self._network = network
        self._after = after
        self._shape = tuple(input_shape)
        self._cut: Cut | None = None
        self._cut_for: object = None
        self._accounts = _Accounts()
        self._current()

    def noisy(self, x: torch.Tensor, noise: Noise) -> torch.Tensor:
        """Run the network itself, with a hook that adds the noise behind the layer."""
        layer = self._network.get_submodule(self._after)
        with layer.register_forward_hook(lambda _module, _inputs, output: output + noise(output)):
            logits: torch.Tensor = self._network(x)
        return logits

    def front(self, x: torch.Tensor) -> torch.Tensor:
        """Run the captured part before the noise."""
        return self._current().front(x)

    def back(self, value: torch.Tensor) -> torch.Tensor:
        """Run the captured part behind the noise."""
        return self._current().back(value)

    def frozen_back(self) -> nn.Module:
        """Return the captured part behind the noise, with its weights."""
        return self._current().back.frozen()

    def account(self, wanted: Wanted) -> Account:
        """Return the account of the captured front."""
        now = self._current()
        return self._accounts.of(now.graph, self._network, now.at, wanted)

    def input_dtype(self) -> torch.dtype | None:
        """Return the type of the input in the captured graph."""
        dtype: torch.dtype = self._current().graph.source.meta["val"].dtype
        return dtype

    def __getstate__(self) -> dict[str, Any]:
        """Leave the captured graph out of copies: a copy captures its own network again."""
        return {**self.__dict__, "_cut": None, "_cut_for": None, "_accounts": _Accounts()}

    def _current(self) -> Cut:
        """Return the cut for the network as it is now: captured again when its weights are others.

        Other names, types, devices or shapes, that is; their values are looked up at every use.
        """
        kind = _kind_of(self._network)
        if self._cut is None or self._cut_for != kind:
            self._cut = cut(self._network, self._after, self._shape)
            self._cut_for = kind
        return self._cut


class Halves(nn.Module):
    """A front and a back given by hand, run one after the other."""

    def __init__(self, front: nn.Module, back: nn.Module) -> None:
        super().__init__()
        self.front = front
        self.back = back

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the back's output for the front's."""
        logits: torch.Tensor = self.back(self.front(x))
        return logits


class Between:
    """Noise between a front, which is captured and bounded, and a back, which may be anything.

    The back is called with noisy values alone, so nothing can walk around the noise.
    """

    def __init__(self, halves: Halves, input_shape: Sequence[int]) -> None:
        self._halves = halves
        self._shape = tuple(input_shape)
        self._graph: Graph | None = None
        self._piece: Piece | None = None
        self._captured_for: object = None
        self._accounts = _Accounts()
        self._current()

    def noisy(self, x: torch.Tensor, noise: Noise) -> torch.Tensor:
        """Run the two parts with noise between them."""
        value = self._halves.front(x)
        logits: torch.Tensor = self._halves.back(value + noise(value))
        return logits

    def front(self, x: torch.Tensor) -> torch.Tensor:
        """Run the captured front."""
        return self._current()[1](x)

    def back(self, value: torch.Tensor) -> torch.Tensor:
        """Run the back in evaluation mode."""
        with evaluating(self._halves.back):
            logits: torch.Tensor = self._halves.back(value)
            return logits

    def frozen_back(self) -> nn.Module:
        """Return a copy of the back."""
        return _frozen(self._halves.back)

    def account(self, wanted: Wanted) -> Account:
        """Return the account of the captured front."""
        graph, _ = self._current()
        return self._accounts.of(graph, self._halves.front, graph.result, wanted)

    def input_dtype(self) -> torch.dtype | None:
        """Return the type of the input in the captured graph."""
        dtype: torch.dtype = self._current()[0].source.meta["val"].dtype
        return dtype

    def __getstate__(self) -> dict[str, Any]:
        """Leave the captured graph out of copies: a copy captures its own front again."""
        gone = {"_graph": None, "_piece": None, "_captured_for": None, "_accounts": _Accounts()}
        return {**self.__dict__, **gone}

    def _current(self) -> tuple[Graph, Piece]:
        kind = _kind_of(self._halves.front)
        if self._graph is None or self._piece is None or self._captured_for != kind:
            graph = capture(self._halves.front, self._shape)
            check_deterministic(graph, graph.result)
            self._graph, self._captured_for = graph, kind
            self._piece = Piece(graph, self._halves.front, source=graph.source, result=graph.result)
        return self._graph, self._piece


def _frozen(network: nn.Module) -> nn.Module:
    return copy.deepcopy(network).eval().requires_grad_(requires_grad=False)


def _kind_of(network: nn.Module) -> object:
    held = [*network.named_parameters(), *network.named_buffers()]
    return [(name, tensor.dtype, tensor.device, tensor.shape) for name, tensor in held]


class _Accounts:
    """The last account, kept until a weight before the noise changes.

    Values are compared, not versions: a write through ``.data`` leaves no other trace.
    """

    def __init__(self) -> None:
        self._asked: object = None
        self._weights: list[torch.Tensor] = []
        self._account: Account | None = None

    def of(self, graph: Graph, network: nn.Module, at: fx.Node, wanted: Wanted) -> Account:
        """Return the account of the captured network up to ``at``."""
        check_modes(network, operations_before(graph, at))
        held, needed = live_values(graph, network), ancestors([at])
        weights = [tensor.detach() for node, tensor in held.items() if node in needed]
        asked = (graph, at, wanted)
        if self._account is None or self._asked != asked or not _same(weights, self._weights):
            self._account = front_account(graph, network, at, wanted)
            self._asked, self._weights = asked, [tensor.clone() for tensor in weights]
        return self._account


def _same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return len(first) == len(second) and all(
        one.device == two.device and one.dtype == two.dtype and torch.equal(one, two)
        for one, two in zip(first, second, strict=True)
    )
