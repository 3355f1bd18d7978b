"""A network captured as a graph of aten operations, from its input to its output.

``torch.export`` runs the network symbolically and records every operation on tensors. What is
proved about the graph (``tracing``) and bounded on it (``sensitivities``) holds for the graph,
and the graph is what is evaluated at certification, so that proof and evaluation cannot differ.

The graph holds no weights: they are looked up in the live network whenever it is run, so that
training, ``load_state_dict`` and parametrisations are always seen.
"""

from __future__ import annotations

import difflib
import inspect
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import fx, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from pixeldp.errors import CannotTrace, InvalidArgument, UnknownLayer

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

# Captured with this many rows: neither 0 nor 1, which export would take for special cases.
_TRACE_ROWS = 2

# Some operations of GPUs promise no more, and capture asks for a promise.
_MOST_ROWS = 2**15


@dataclass(frozen=True)
class Graph:
    """A captured network.

    Attributes
    ----------
    nodes:
        The operations, in the order in which they run.
    source, result:
        The network's input and its output among them.
    state:
        For every placeholder of a weight or buffer, its name in the network; for constants that
        the network's code creates, the tensor itself.
    batch:
        The symbolic number of rows.
    """

    nodes: tuple[fx.Node, ...]
    source: fx.Node
    result: fx.Node
    state: dict[fx.Node, str | torch.Tensor]
    batch: Any

    def batch_size_queries(self) -> set[fx.Node]:
        """Return the operations that ask a tensor for its number of rows, and nothing else."""
        return {
            node
            for node in self.nodes
            if node.target is torch.ops.aten.sym_size.int and self._is_batch(node.meta.get("val"))
        }

    def rows_first(self, node: fx.Node) -> bool:
        """Whether the value of ``node`` is a tensor with one row for each row of the input."""
        value = node.meta.get("val")
        return (
            isinstance(value, torch.Tensor) and value.dim() > 0 and self._is_batch(value.shape[0])
        )

    def _is_batch(self, size: object) -> bool:
        return isinstance(size, torch.SymInt) and size.node.expr == self.batch.node.expr

    def depending_on(self, sources: Iterable[fx.Node]) -> set[fx.Node]:
        """Return ``sources`` and every operation that sees the content of one of them.

        Asking for the number of rows is not seeing the content: every row has it in common.
        """
        tainted, queries = set(sources), self.batch_size_queries()
        for node in self.nodes:
            if node not in queries and any(arg in tainted for arg in node.all_input_nodes):
                tainted.add(node)
        return tainted


def layer_of(node: fx.Node) -> str:
    """Return the name of the innermost module that ran this operation; empty for the network."""
    stack: dict[str, tuple[str, Any]] = node.meta.get("nn_module_stack") or {}
    return list(stack.values())[-1][0] if stack else ""


def runs_within(node: fx.Node, layer: str) -> bool:
    """Whether this operation belongs to the named module or to one inside it."""
    stack: dict[str, tuple[str, Any]] = node.meta.get("nn_module_stack") or {}
    return any(name == layer for name, _ in stack.values())


def find_layer(network: nn.Module, name: str, *, argument: str) -> nn.Module:
    """Return the layer of that name, or refuse the argument with the nearest names."""
    layers: dict[str, nn.Module] = {n: module for n, module in network.named_modules() if n}
    if name in layers:
        return layers[name]
    near = difflib.get_close_matches(name, layers, n=3)
    if near:
        hint = f"did you mean {' or '.join(map(repr, near))}?"
    elif layers:
        hint = f"its layers are {', '.join(map(repr, list(layers)[:8]))}"
    else:
        hint = "it has none"
    raise UnknownLayer(
        f"{argument} must name a layer of the network, got {argument}={name!r}; {hint}"
    )


def name_of(node: fx.Node) -> str:
    """Return the name of the operation: ``aten.add.Tensor``."""
    plain = not hasattr(node.target, "_schema")  # a function of Python, such as getitem
    return str(getattr(node.target, "__name__", node.target)) if plain else str(node.target)


def describe(node: fx.Node) -> str:
    """Return the operation as a message names it: ``aten.add.Tensor in 'block1'``."""
    layer = layer_of(node)
    return f"{name_of(node)} in {layer!r}" if layer else f"{name_of(node)} in the network's forward"


def named_arguments(node: fx.Node) -> dict[str, Any]:
    """Return the arguments of an operation by the names of its schema, without the defaults."""
    schema = node.target._schema  # type: ignore[union-attr]  # noqa: SLF001 - how torch names arguments
    named = dict(zip((argument.name for argument in schema.arguments), node.args, strict=False))
    return {**named, **node.kwargs}


def capture(network: nn.Module, input_shape: Sequence[int]) -> Graph:
    """Capture ``network``, as it behaves in evaluation, for inputs of ``input_shape``."""
    example = _example(network, input_shape)
    program = _export(network, example)
    signature = program.graph_signature
    by_name = {node.name: node for node in program.graph.nodes}
    state: dict[fx.Node, str | torch.Tensor] = {}
    sources: list[fx.Node] = []
    for spec in signature.input_specs:
        node = by_name[cast("Any", spec.arg).name]
        if spec.kind is InputKind.USER_INPUT:
            sources.append(node)
        elif spec.kind is InputKind.CONSTANT_TENSOR:
            state[node] = cast("torch.Tensor", program.constants[cast("str", spec.target)])
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            state[node] = cast("str", spec.target)
        else:
            raise CannotTrace(f"the network takes {spec.kind.name} as an input, which is unknown")
    written = [s.target for s in signature.output_specs if s.kind is not OutputKind.USER_OUTPUT]
    if written:
        raise CannotTrace(
            f"the network writes to {', '.join(map(repr, written))} when it is evaluated; what it "
            "remembers could carry the input past the noise: remove the write"
        )
    if mutable := [node for node in program.graph.nodes if _mutates(node)]:
        raise CannotTrace(f"the network changes a tensor in place: {describe(mutable[0])}")
    if any(node.op == "get_attr" for node in program.graph.nodes):  # a graph within the graph
        raise CannotTrace(
            "the network decides by its data which operations run (torch.cond and the like), which "
            "no path can be proved through; give the two parts by hand: "
            "PixelDP(front=…, back=…), of which only the front is captured"
        )
    output = next(node for node in program.graph.nodes if node.op == "output")
    results = output.args[0]
    if len(sources) != 1 or not isinstance(results, (list, tuple)) or len(results) != 1:
        raise CannotTrace(
            f"the network must take one tensor and return one, got {len(sources)} inputs and "
            f"{len(cast('Any', results))} outputs"
        )
    batch = sources[0].meta["val"].shape[0]
    if not isinstance(batch, torch.SymInt):
        raise CannotTrace(
            f"the network accepts batches of {batch} inputs only; it must accept any number"
        )
    return Graph(
        nodes=tuple(node for node in program.graph.nodes if node.op != "output"),
        source=sources[0],
        result=cast("fx.Node", results[0]),
        state=state,
        batch=batch,
    )


def _example(network: nn.Module, input_shape: Sequence[int]) -> torch.Tensor:
    """Return a batch that the network accepts: of the type of its weights, or of whole numbers."""
    shape = tuple(input_shape)
    if not shape or any(isinstance(n, bool) or n != int(n) or n < 1 for n in shape):
        raise InvalidArgument(
            "input_shape must be the shape of one input without the batch, all sizes at least 1, "
            f"got input_shape={input_shape!r}"
        )
    _check_takes_one(network)
    like = next((p for p in network.parameters() if p.is_floating_point()), torch.zeros(()))
    example = torch.zeros(_TRACE_ROWS, *shape, dtype=like.dtype, device=like.device)
    with evaluating(network), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # remarks on speed; a refusal is an error
        try:
            network(example)
        except Exception as error:
            # Categories are whole numbers: a network that begins with an embedding wants those.
            if any(isinstance(module, nn.Embedding) for module in network.modules()):
                try:
                    network(example.long())
                except Exception:  # noqa: BLE001, S110 - what the first refusal said is told
                    pass
                else:
                    return example.long()
            raise InvalidArgument(
                f"the network rejects inputs of shape {shape}: {_first_line(error)}"
            ) from error
    return example


def _check_takes_one(network: nn.Module) -> None:
    """Refuse a network that needs several inputs: a certificate is about one."""
    needed = [
        parameter.name
        for parameter in inspect.signature(network.forward).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    if len(needed) > 1:
        raise CannotTrace(
            f"the network takes {len(needed)} inputs ({', '.join(needed)}), and a certificate is "
            "about one; wrap it in a module that takes the attacked input alone"
        )


def _export(network: nn.Module, example: torch.Tensor) -> ExportedProgram:
    rows = Dim("rows", max=_MOST_ROWS)
    with evaluating(network), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # export's own remarks; its refusals are errors
        try:
            program = torch.export.export(
                network, (example,), dynamic_shapes=({0: rows},), strict=False
            )
            # Rewrites every in-place operation to one that returns a new value, so that the
            # arguments of an operation are all that it depends on; decomposes nothing else.
            functional: ExportedProgram = program.run_decompositions({})
            return functional
        except Exception as error:
            raise CannotTrace(
                "the network's computation cannot be captured as a graph, so no path around the "
                f"noise can be excluded ({_first_line(error)}); put the noise on the input "
                "(after=None), which needs no capture, or give the two parts by hand: "
                "PixelDP(front=…, back=…), of which only the front is captured"
            ) from error


def _mutates(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


class evaluating:  # noqa: N801 - reads as a phrase: with evaluating(network)
    """A context in which a network is in evaluation mode; each module's mode is put back after."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._modes: list[tuple[nn.Module, bool]] = []

    def __enter__(self) -> None:
        self._modes = [(module, module.training) for module in self._network.modules()]
        self._network.eval()

    def __exit__(self, *exc: object) -> None:
        for module, mode in self._modes:
            module.training = mode


def live_values(graph: Graph, network: nn.Module) -> dict[fx.Node, torch.Tensor]:
    """Return today's weights and buffers of ``network`` for the placeholders of ``graph``."""
    held: dict[str, torch.Tensor] = {
        **dict(network.named_parameters(remove_duplicate=False)),
        **dict(network.named_buffers(remove_duplicate=False)),
    }
    return {
        node: held[target] if isinstance(target, str) else target
        for node, target in graph.state.items()
    }


def constant_values(
    graph: Graph, network: nn.Module, nodes: Iterable[fx.Node]
) -> dict[fx.Node, Any]:
    """Return the value of all that ``nodes`` use and that depends on no input, not even its rows.

    This is where a parametrised layer's effective weight comes from.
    """
    varying = graph.depending_on([graph.source, *graph.batch_size_queries()])
    wanted = {arg for node in nodes for arg in ancestors(node.all_input_nodes)} - varying
    values: dict[fx.Node, Any] = dict(live_values(graph, network))
    with torch.no_grad():
        for node in graph.nodes:
            if node in wanted and node not in values:
                values[node] = run_node(node, values)
    return values


def ancestors(nodes: Iterable[fx.Node], *, stop: Container[fx.Node] = ()) -> set[fx.Node]:
    """Return ``nodes`` and all that they are computed from, not looking behind ``stop``."""
    found: set[fx.Node] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            if node not in stop:
                pending.extend(node.all_input_nodes)
    return found


def run_node(node: fx.Node, values: dict[fx.Node, Any]) -> Any:  # noqa: ANN401 - any operation
    """Run one operation on the values of its arguments."""
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
    return cast("Any", node.target)(*args, **kwargs)


class Piece:
    """The part of a captured network between two of its values, run on the live weights.

    It is compiled once to straight Python code; ``source`` is the value that it is given, and
    ``result`` the one that it returns.
    """

    def __init__(
        self, graph: Graph, network: nn.Module, *, source: fx.Node, result: fx.Node
    ) -> None:
        self._network = network
        self._graph = graph
        self._state, self._code = _extract(graph, source=source, result=result)

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        """Return the piece's result for a batch of values."""
        held = live_values(self._graph, self._network)
        weights = [held[node].to(value.device) for node in self._state]
        return cast("torch.Tensor", self._code(value, *weights))

    def frozen(self) -> nn.Module:
        """Return the piece as a module that holds the weights of today."""
        held = live_values(self._graph, self._network)
        return _Frozen(self._code, [held[node].detach().clone() for node in self._state])


class _Frozen(nn.Module):
    """A piece with its weights, as buffers: nothing to train."""

    def __init__(self, code: fx.GraphModule, weights: list[torch.Tensor]) -> None:
        super().__init__()
        self.code = code
        self._names = [f"weight{number}" for number in range(len(weights))]
        for name, weight in zip(self._names, weights, strict=True):
            self.register_buffer(name, weight)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Return the piece's result for a batch of values."""
        weights = [getattr(self, name) for name in self._names]
        return cast("torch.Tensor", self.code(value, *weights))


def _extract(
    graph: Graph, *, source: fx.Node, result: fx.Node
) -> tuple[list[fx.Node], fx.GraphModule]:
    """Copy what ``result`` needs, stopping at ``source``, into a graph of its own."""
    queries = graph.batch_size_queries()
    needed = ancestors([result], stop={source, *queries})
    code = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {source: code.placeholder("value")}
    state = [node for node in graph.state if node in needed]
    for node in state:
        copies[node] = code.placeholder(node.name)
    for node in graph.nodes:
        if node not in needed or node in copies:
            continue
        if node in queries:  # the rows of the piece's own input, whatever tensor was asked
            copies[node] = code.call_function(
                cast("Any", torch.ops.aten.sym_size.int), (copies[source], 0)
            )
        else:
            copies[node] = code.node_copy(node, copies.__getitem__)
            if node.target is torch.ops.aten.view.default:
                # The same, for values that lie otherwise in memory than those of the capture.
                copies[node].target = torch.ops.aten.reshape.default
    code.output(copies[result])
    return state, fx.GraphModule(nn.Module(), code)
