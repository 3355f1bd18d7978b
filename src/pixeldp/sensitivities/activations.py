"""Elementwise functions and their Lipschitz constants: the largest slope there is."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from pixeldp.errors import UnsupportedLayer
from pixeldp.graphs import describe, named_arguments

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx

aten = torch.ops.aten

# Slopes that are largest at one place, rounded up in the last digit shown.
_GELU = 1.128905  # Φ(x) + x φ(x), at x = √2
_GELU_TANH = 1.128994  # its tanh approximation
_SILU = 1.099840  # σ(x) (1 + x (1 − σ(x)))
_MISH = 1.088499
_SELU_SCALE, _SELU_ALPHA = 1.0507009873554805, 1.6732632423543772

# Softplus is the identity beyond its threshold; the step there must vanish in float32.
_LEAST_THRESHOLD = 20.0

CONSTANTS: dict[Any, float] = {
    aten.abs.default: 1.0,
    aten.atan.default: 1.0,
    aten.clamp.default: 1.0,
    aten.clamp_max.default: 1.0,
    aten.clamp_min.default: 1.0,
    aten.cos.default: 1.0,
    aten.erf.default: 2 / math.sqrt(math.pi) * (1 + 1e-15),
    aten.hardsigmoid.default: 1 / 6 * (1 + 1e-15),
    aten.hardswish.default: 1.5,
    aten.hardtanh.default: 1.0,
    aten.log_sigmoid.default: 1.0,
    aten.log_sigmoid_forward.default: 1.0,
    aten.mish.default: _MISH,
    aten.relu.default: 1.0,
    aten.relu6.default: 1.0,
    aten.selu.default: _SELU_SCALE * _SELU_ALPHA * (1 + 1e-15),
    aten.sigmoid.default: 0.25,
    aten.silu.default: _SILU,
    aten.sin.default: 1.0,
    aten.softshrink.default: 1.0,
    aten.tanh.default: 1.0,
}


def constant_of(node: fx.Node, constants: dict[fx.Node, Any]) -> float | None:
    """Return ``max |f(u) − f(v)| / |u − v|`` of an elementwise operation, if it is known."""
    if node.target in CONSTANTS:
        return CONSTANTS[node.target]
    rule = _WITH_PARAMETERS.get(node.target)
    return None if rule is None else rule(node, constants)


def is_softsign(node: fx.Node) -> bool:
    """Whether a division is ``x / (|x| + 1)``, which is written out when it is captured."""
    if node.target is not aten.div.Tensor:
        return False
    value, divisor = node.args[:2]
    if not isinstance(divisor, torch.fx.Node) or divisor.target is not aten.add.Tensor:
        return False
    magnitude, one = divisor.args[:2]
    if not isinstance(magnitude, torch.fx.Node) or magnitude.target is not aten.abs.default:
        return False
    return bool(one == 1) and not divisor.kwargs and magnitude.args[0] is value


def _leaky(node: fx.Node, _: dict[fx.Node, Any]) -> float:
    slope = named_arguments(node).get("negative_slope", 0.01)
    return max(1.0, abs(float(slope)))


def _prelu(node: fx.Node, constants: dict[fx.Node, Any]) -> float:
    slopes = constants[named_arguments(node)["weight"]]
    return max(1.0, float(slopes.abs().amax()))


def _elu(node: fx.Node, _: dict[fx.Node, Any]) -> float:
    """Slopes: ``scale`` above 0; ``scale · alpha · input_scale · e^…`` below."""
    given = named_arguments(node)
    alpha, scale, inner = (
        float(given.get(name, 1.0)) for name in ("alpha", "scale", "input_scale")
    )
    if inner < 0:
        raise UnsupportedLayer(f"{describe(node)} grows without bound for input_scale={inner:g}")
    return max(abs(scale), abs(scale * alpha * inner))


def _celu(node: fx.Node, _: dict[fx.Node, Any]) -> float:
    alpha = float(named_arguments(node).get("alpha", 1.0))
    if alpha < 0:
        raise UnsupportedLayer(f"{describe(node)} grows without bound for alpha={alpha:g}")
    return 1.0


def _gelu(node: fx.Node, _: dict[fx.Node, Any]) -> float:
    return _GELU_TANH if named_arguments(node).get("approximate") == "tanh" else _GELU


def _softplus(node: fx.Node, _: dict[fx.Node, Any]) -> float:
    threshold = float(named_arguments(node).get("threshold", _LEAST_THRESHOLD))
    if threshold < _LEAST_THRESHOLD:
        raise UnsupportedLayer(
            f"{describe(node)} jumps at its threshold={threshold:g}; take one of at least "
            f"{_LEAST_THRESHOLD:g}"
        )
    return 1.0


_WITH_PARAMETERS: dict[Any, Callable[[fx.Node, dict[fx.Node, Any]], float]] = {
    aten.celu.default: _celu,
    aten.elu.default: _elu,
    aten.gelu.default: _gelu,
    aten.leaky_relu.default: _leaky,
    aten.prelu.default: _prelu,
    aten._prelu_kernel.default: _prelu,  # noqa: SLF001 - the name of the operation
    aten.softplus.default: _softplus,
}
