"""Holding a layer to a known sensitivity while it trains (§3.3).

The layer's weight is divided by its norm inside every forward pass, as a parametrisation, so that
any training loop works untouched. The norm is the one that measures the layer afterwards.
``model.sensitivity`` still measures today's weights and trusts nothing that is said here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.utils import parametrize

from pixeldp._checks import positive
from pixeldp.errors import UnknownLayer, UnsupportedLayer
from pixeldp.graphs import evaluating, find_layer
from pixeldp.sensitivities.geometry import Convolution
from pixeldp.sensitivities.operators import convolution_norm, dense_norm

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# The quotient is rounded to float32: aim this much lower, so that it never ends above the bound.
_AIM = 1 - 2.0**-20


class HeldNorm(nn.Module):
    """A weight divided by its norm and multiplied by the bound: a parametrisation."""

    def __init__(self, norm: Callable[[torch.Tensor], torch.Tensor], bound: float) -> None:
        super().__init__()
        self._norm = norm
        self._bound = positive("bound", bound)

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the weight with the norm ``bound``."""
        return (weight.double() * (self._bound * _AIM / self._norm(weight))).to(weight.dtype)

    def right_inverse(self, weight: torch.Tensor) -> torch.Tensor:
        """Accept any weight: it is divided when it is used."""
        return weight


def hold_sensitivity(
    network: nn.Module,
    layer: str,
    input_shape: Sequence[int],
    *,
    p: int,
    q: int,
    bound: float = 1.0,
) -> None:
    """Hold Δ_{p,q} of a dense or convolution layer of ``network`` at ``bound``, from now on.

    The norm of a convolution depends on the size of its image, so the shape of one input to the
    network is needed.
    """
    module = find_layer(network, layer, argument="layer")
    norm: Callable[[torch.Tensor], torch.Tensor]
    if isinstance(module, nn.Linear):

        def norm(weight: torch.Tensor) -> torch.Tensor:
            return dense_norm(weight, p=p, q=q)

    elif isinstance(module, nn.Conv2d) and module.padding_mode == "zeros":
        shape = _convolution_of(network, layer, module, input_shape)

        def norm(weight: torch.Tensor) -> torch.Tensor:
            return convolution_norm(weight, shape, p=p, q=q)

    else:
        raise UnsupportedLayer(
            f"only a dense or a zero-padded two-dimensional convolution layer can be held to a "
            f"sensitivity, got {type(module).__name__} for layer={layer!r}"
        )
    parametrize.register_parametrization(module, "weight", HeldNorm(norm, bound))


def _convolution_of(
    network: nn.Module, layer: str, module: nn.Conv2d, input_shape: Sequence[int]
) -> Convolution:
    seen: list[torch.Size] = []
    example = torch.zeros(1, *input_shape, dtype=module.weight.dtype, device=module.weight.device)
    with (
        module.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0].shape)),
        evaluating(network),
        torch.no_grad(),
    ):
        network(example)
    if len(seen) != 1:
        raise UnknownLayer(
            f"layer={layer!r} must run once in the network, but it ran {len(seen)} times"
        )
    kernel, dilation = module.weight.shape[2:], module.dilation
    if module.padding == "valid":
        padding = ((0, 0), (0, 0))
    elif module.padding == "same":
        totals = [(size - 1) * step for size, step in zip(kernel, dilation, strict=True)]
        padding = tuple((total // 2, total - total // 2) for total in totals)  # type: ignore[assignment]
    else:
        padding = tuple((int(size), int(size)) for size in module.padding)  # type: ignore[assignment]
    return Convolution(
        image=(int(seen[0][2]), int(seen[0][3])),
        stride=(module.stride[0], module.stride[1]),
        padding=padding,
        dilation=(dilation[0], dilation[1]),
        groups=module.groups,
    )
