"""What a layer of a network is as a linear operator: a matrix, or a convolution of an image."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from pixeldp.errors import InvalidArgument, UnknownLayer, UnsupportedLayer
from pixeldp.graphs import evaluating, find_layer
from pixeldp.sensitivities.geometry import Convolution

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LinearLayer = nn.Linear | nn.Conv1d | nn.Conv2d


def linear_layer(network: nn.Module, layer: str) -> LinearLayer:
    """Return the layer of that name if its matrix is known, or refuse it."""
    module = find_layer(network, layer, argument="layer")
    zeros = getattr(module, "padding_mode", "zeros") == "zeros"
    if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d) and zeros:
        return module
    kind = type(module).__name__ + ("" if zeros else f" with padding_mode={module.padding_mode!r}")
    raise UnsupportedLayer(
        "only a dense layer, or a one- or two-dimensional convolution with padding_mode='zeros', "
        f"can be held to a sensitivity, got {kind} for layer={layer!r}"
    )


def input_of(
    network: nn.Module, layer: str, module: LinearLayer, input_shape: Sequence[int]
) -> tuple[int, ...]:
    """Return the shape of what reaches the layer for one input to the network."""
    seen: list[torch.Size] = []
    example = torch.zeros(1, *input_shape, dtype=module.weight.dtype, device=module.weight.device)
    with (
        module.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0].shape)),
        evaluating(network),
        torch.no_grad(),
    ):
        try:
            network(example)
        except Exception as error:
            raise InvalidArgument(
                f"the network rejects inputs of shape {tuple(input_shape)}: {error}; input_shape "
                "is the shape of one input without the batch"
            ) from error
    if len(seen) != 1:
        raise UnknownLayer(
            f"layer={layer!r} must run once in the network, but it ran {len(seen)} times"
        )
    return tuple(int(size) for size in seen[0][1:])


def convolution_of(module: nn.Conv1d | nn.Conv2d, image: Sequence[int]) -> Convolution:
    """Return the geometry of a convolution of an image of that height and width.

    In one dimension it is that of an image of height 1.
    """
    kernel, dilation = module.kernel_size, module.dilation
    if module.padding == "valid":
        padding = [(0, 0)] * len(kernel)
    elif module.padding == "same":
        totals = [(size - 1) * step for size, step in zip(kernel, dilation, strict=True)]
        padding = [(total // 2, total - total // 2) for total in totals]
    else:
        padding = [(int(size), int(size)) for size in module.padding]
    return Convolution(
        image=_pair(image, fill=1),
        stride=_pair(module.stride, fill=1),
        padding=((0, 0), padding[0]) if len(padding) == 1 else (padding[0], padding[1]),
        dilation=_pair(dilation, fill=1),
        groups=module.groups,
    )


def _pair(sizes: Iterable[int], *, fill: int) -> tuple[int, int]:
    *before, last = sizes
    return (int(before[-1]) if before else fill, int(last))


def as_kernel(weight: torch.Tensor) -> torch.Tensor:
    """Return a layer's weight as ``[out, in/groups, kh, kw]``; absent sides are 1."""
    missing = 4 - weight.dim()
    if not missing:
        return weight
    return weight.reshape(*weight.shape[:2], *(1,) * missing, *weight.shape[2:])
