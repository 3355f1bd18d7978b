"""Rules for operations on images ``[C, H, W]`` and series ``[C, L]``: convolution, pools, padding.

A series is an image of height 1.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812 - the usual name

from pixeldp.errors import UnsupportedLayer
from pixeldp.graphs import describe, named_arguments
from pixeldp.sensitivities import tables
from pixeldp.sensitivities.geometry import NOTHING, Convolution, most_windows, windows
from pixeldp.sensitivities.linear import Convolved, Padded, Rearranged, Separable, Transposed
from pixeldp.sensitivities.pieces import Nonlinear, shape_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import fx

    from pixeldp.sensitivities.geometry import Reads
    from pixeldp.sensitivities.linear import Shape
    from pixeldp.sensitivities.pieces import Constants, Piece

aten = torch.ops.aten

Pair = tuple[int, int]

_IMAGE, _SERIES = 3, 2


def _size(node: fx.Node, shape: Shape) -> Pair:
    """Return height and width, of an image or of a series."""
    # Without a batch of its own, an operation would take the batch for channels.
    needed = {"1d": (_SERIES,), "2d": (_IMAGE,)}
    fits = next((dims for kind, dims in needed.items() if kind in str(node.target)), None)
    if len(shape) not in (fits or (_IMAGE, _SERIES)):
        raise UnsupportedLayer(
            f"{describe(node)} is supported for inputs of shape [C, H, W] or [C, L] only, got "
            f"{list(shape)} without the batch"
        )
    return (shape[1], shape[2]) if len(shape) == _IMAGE else (1, shape[1])


def _pair(value: int | Sequence[int], shape: Shape, *, alone: int) -> Pair:
    """Return an argument for both axes; ``alone`` stands for the height of a series."""
    sizes = [value] if isinstance(value, int) else [int(size) for size in value]
    return (alone, sizes[-1]) if len(shape) == _SERIES else (sizes[0], sizes[-1])


def _flat(weight: torch.Tensor) -> torch.Tensor:
    return weight.unsqueeze(2) if weight.dim() == _IMAGE else weight


def _convolution(node: fx.Node, value: fx.Node, constants: Constants) -> Piece:
    given, shape = named_arguments(node), shape_of(value)
    weight = _flat(constants[given["weight"]])
    dilation = _pair(given.get("dilation", 1), shape, alone=1)
    geometry = Convolution(
        image=_size(node, shape),
        stride=_pair(given.get("stride", 1), shape, alone=1),
        padding=_padding(given.get("padding", 0), weight.shape[2:], dilation, shape),
        dilation=dilation,
        groups=int(given.get("groups", 1)),
    )
    return Convolved(shape, shape_of(node), weight, geometry)


def _padding(
    padding: str | int | Sequence[int], kernel: Sequence[int], dilation: Pair, shape: Shape
) -> tuple[Pair, Pair]:
    if padding == "valid":
        return ((0, 0), (0, 0))
    if padding == "same":
        totals = [(size - 1) * step for size, step in zip(kernel, dilation, strict=True)]
        first, second = ((total // 2, total - total // 2) for total in totals)
        return (first, second)
    height, width = _pair(padding, shape, alone=0)  # type: ignore[arg-type]
    return ((height, height), (width, width))


def _transposed(node: fx.Node, value: fx.Node, constants: Constants) -> Piece:
    """A transposed convolution: the adjoint of the convolution with the same weights."""
    given, small, large = named_arguments(node), shape_of(value), shape_of(node)
    weight = _flat(constants[given["weight"]])
    stride = _pair(given.get("stride", 1), small, alone=1)
    before = _pair(given.get("padding", 0), small, alone=0)
    dilation = _pair(given.get("dilation", 1), small, alone=1)
    sides = []
    for axis in (0, 1):
        # As much beyond the far end as the last output reads, whatever output_padding says.
        extent = (weight.shape[2 + axis] - 1) * dilation[axis] + 1
        read = stride[axis] * (_size(node, small)[axis] - 1) + extent
        sides.append((before[axis], read - _size(node, large)[axis] - before[axis]))
    geometry = Convolution(
        image=_size(node, large),
        stride=stride,
        padding=(sides[0], sides[1]),
        dilation=dilation,
        groups=int(given.get("groups", 1)),
    )
    return Transposed(small, large, Convolved(large, small, weight, geometry))


def _average_pool(node: fx.Node, value: fx.Node, _: Constants) -> Piece:
    given, shape = named_arguments(node), shape_of(value)
    size = _size(node, shape)
    kernel = _pair(given["kernel_size"], shape, alone=1)
    stride = _pair(given.get("stride") or kernel, shape, alone=1)
    padding = _pair(given.get("padding", 0), shape, alone=0)
    override = given.get("divisor_override")
    matrices, complete = [], padding == (0, 0)
    for axis in (0, 1):
        places = torch.eye(size[axis], dtype=torch.float64)[:, None, :, None]
        pooled = F.avg_pool2d(
            places,
            (kernel[axis], 1),
            stride=(stride[axis], 1),
            padding=(padding[axis], 0),
            ceil_mode=bool(given.get("ceil_mode", False)),
            count_include_pad=bool(given.get("count_include_pad", True)),
            divisor_override=None if override is None else 1,
        )
        matrix = pooled[:, 0, :, 0].mT
        matrices.append(matrix if override is None or axis else matrix / int(override))
        complete &= (len(matrix) - 1) * stride[axis] + kernel[axis] <= size[axis]
    box = (kernel, stride) if complete else None
    return Separable(shape, shape_of(node), matrices[0], matrices[1], box)


def _adaptive_average_pool(node: fx.Node, value: fx.Node, _: Constants) -> Piece:
    shape, pooled = shape_of(value), shape_of(node)
    matrices = [
        F.adaptive_avg_pool1d(torch.eye(size, dtype=torch.float64)[:, None], outputs)[:, 0].mT
        for size, outputs in zip(_size(node, shape), _size(node, pooled), strict=True)
    ]
    return Separable(shape, pooled, matrices[0], matrices[1])


def _max_pool(node: fx.Node, value: fx.Node, _: Constants) -> Piece:
    given, shape = named_arguments(node), shape_of(value)
    kernel = _pair(given["kernel_size"], shape, alone=1)
    stride = _pair(given.get("stride") or kernel, shape, alone=1)
    padding = _pair(given.get("padding", 0), shape, alone=0)
    dilation = _pair(given.get("dilation", 1), shape, alone=1)
    reads = [
        windows(
            _size(node, shape)[axis],
            kernel[axis],
            stride=stride[axis],
            padding=(padding[axis], padding[axis]),
            dilation=dilation[axis],
            outputs=_size(node, shape_of(node))[axis],
        )
        for axis in (0, 1)
    ]
    return _maxima(node, value, reads)


def _adaptive_max_pool(node: fx.Node, value: fx.Node, _: Constants) -> Piece:
    reads = []
    for size, outputs in zip(
        _size(node, shape_of(value)), _size(node, shape_of(node)), strict=True
    ):
        window = np.full((outputs, size), NOTHING, dtype=np.int64)
        for output in range(outputs):
            start, end = output * size // outputs, -(-(output + 1) * size // outputs)
            window[output, start:end] = np.arange(start, end)
        reads.append(window)
    return _maxima(node, value, reads)


def _maxima(node: fx.Node, value: fx.Node, reads: list[Reads]) -> Piece:
    """A maximum moves by no more than what it is taken over, once in every window that sees it."""
    seen = math.prod(most_windows(one) for one in reads)
    table = tables.table_of(
        {(0, 0): seen, (1, 1): seen, (2, 2): math.sqrt(seen), (math.inf, math.inf): 1.0}
    )
    inputs, outputs = math.prod(shape_of(value)), math.prod(shape_of(node))
    proven = tables.complete(table, inputs, outputs)
    return Nonlinear(
        proven, f"maxima: a place is seen by {seen} windows at most", "§5, max pooling"
    )


def _pad(node: fx.Node, value: fx.Node, _: Constants) -> Piece:
    given, shape = named_arguments(node), shape_of(value)
    pad = [int(side) for side in given["pad"]]
    mode = str(given.get("mode", "constant"))
    before_after = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)]  # the last axis first
    if len(before_after) > len(shape):
        raise UnsupportedLayer(f"{describe(node)} pads the batch; keep the first dimension")
    if len(shape) not in (_IMAGE, _SERIES) or len(before_after) >= len(shape):
        if mode != "constant":
            raise UnsupportedLayer(
                f"{describe(node)} with mode={mode!r} is supported for images and series only"
            )
        return Rearranged(shape, shape_of(node), lambda x: F.pad(x, pad))
    sides = {axis: before_after[axis] for axis in range(len(before_after))}
    size = _size(node, shape)
    maps = [_index_map(size[axis], sides.get(1 - axis, (0, 0)), mode, node) for axis in (0, 1)]
    return Padded(shape, shape_of(node), (maps[0], maps[1]))


def _index_map(size: int, sides: Pair, mode: str, node: fx.Node) -> np.ndarray:
    places = np.arange(-sides[0], size + sides[1])
    inside = (places >= 0) & (places < size)
    if mode == "constant":
        return np.where(inside, places, NOTHING)
    if mode == "replicate":
        return np.clip(places, 0, size - 1)
    if mode == "circular":
        return places % size
    if mode == "reflect":
        turned = np.abs(places)
        return np.where(turned < size, turned, 2 * (size - 1) - turned)
    raise UnsupportedLayer(f"no proven sensitivity for {describe(node)} with mode={mode!r}")


IMAGE_RULES: dict[Any, Callable[[fx.Node, fx.Node, Constants], Piece]] = {
    aten._adaptive_avg_pool2d.default: _adaptive_average_pool,  # noqa: SLF001
    aten.adaptive_avg_pool1d.default: _adaptive_average_pool,
    aten.adaptive_avg_pool2d.default: _adaptive_average_pool,
    aten.adaptive_max_pool1d.default: _adaptive_max_pool,
    aten.adaptive_max_pool2d.default: _adaptive_max_pool,
    aten.avg_pool1d.default: _average_pool,
    aten.avg_pool2d.default: _average_pool,
    aten.constant_pad_nd.default: _pad,
    aten.conv1d.default: _convolution,
    aten.conv1d.padding: _convolution,
    aten.conv2d.default: _convolution,
    aten.conv2d.padding: _convolution,
    aten.conv_transpose1d.default: _transposed,
    aten.conv_transpose2d.input: _transposed,
    aten.max_pool1d.default: _max_pool,
    aten.max_pool1d_with_indices.default: _max_pool,
    aten.max_pool2d.default: _max_pool,
    aten.max_pool2d_with_indices.default: _max_pool,
    aten.pad.default: _pad,
}
