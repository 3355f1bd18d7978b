"""How neighbouring linear pieces become one operator before it is bounded.

The norm of a product is at most the product of the norms, and often much less: a normalisation
after a convolution undoes what the convolution stretched. So neighbours become one wherever one
formula covers them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F  # noqa: N812 - the usual name

from pixeldp.sensitivities import tables
from pixeldp.sensitivities.geometry import Convolution
from pixeldp.sensitivities.linear import (
    Convolved,
    Dense,
    Diagonal,
    Operator,
    Padded,
    Rearranged,
    Separable,
    Transposed,
    ungrouped,
)

if TYPE_CHECKING:
    from pixeldp.sensitivities.tables import Table, Wanted

# Folding two convolutions makes a kernel of every input channel with every output channel.
_KERNEL_SIZE = 2**22


@dataclass(frozen=True, eq=False)
class Chained(Operator):
    """Two operators of which one only moves coordinates: the other goes on folding behind it."""

    first: Operator
    then: Operator

    def table(self, wanted: Wanted) -> Table:
        """Return the best product: to move coordinates makes no difference larger."""
        return tables.compose(self.first.table(wanted), self.then.table(wanted))


def fold(first: Operator, then: Operator) -> Operator | None:
    """Return one operator for two, or None where no formula covers both together."""
    if isinstance(first, Chained):
        last = fold(first.then, then)
        return None if last is None else Chained(first.inputs, then.outputs, first.first, last)
    folded = _fold(first, then)
    if folded is None and (isinstance(first, Rearranged) or isinstance(then, Rearranged)):
        return Chained(first.inputs, then.outputs, first, then)
    return folded


def _fold(first: Operator, then: Operator) -> Operator | None:
    if isinstance(first, Rearranged) and isinstance(then, Rearranged):
        return Rearranged(first.inputs, then.outputs, lambda x: then.apply(first.apply(x)))
    if isinstance(first, Diagonal) or isinstance(then, Diagonal):
        return _fold_scale(first, then)
    if isinstance(first, Dense) and isinstance(then, Dense):
        return Dense(first.inputs, then.outputs, then.matrix @ first.matrix)
    if isinstance(first, Padded) and isinstance(then, Convolved) and then.maps is None:
        return _fold_padding(first, then)
    if isinstance(then, Separable):
        then = then.as_convolution() or then
    if isinstance(first, Separable):
        first = first.as_convolution() or first
    if isinstance(first, Convolved) and isinstance(then, Convolved):
        return _fold_convolutions(first, then)
    return None


def _fold_scale(first: Operator, then: Operator) -> Operator | None:
    if isinstance(first, Diagonal) and isinstance(then, Diagonal):
        return Diagonal(first.inputs, then.outputs, first.scale * then.scale)
    if isinstance(first, Diagonal):
        return _scaled_inputs(first, then)
    return _scaled_outputs(first, then) if isinstance(then, Diagonal) else None


def _scaled_inputs(scale: Diagonal, then: Operator) -> Operator | None:
    if isinstance(then, Dense):
        factors = scale.by_feature()
        return None if factors is None else replace(then, matrix=then.matrix * factors)
    factors = scale.by_channel()
    if factors is None:
        return None
    if isinstance(then, Convolved):
        grouped = then.weight.reshape(then.geometry.groups, -1, *then.weight.shape[1:])
        grouped = grouped * factors.reshape(then.geometry.groups, 1, -1, 1, 1)
        return replace(then, weight=grouped.reshape(then.weight.shape))
    if isinstance(then, Transposed):
        turned = _scaled_outputs(then.adjoint, replace(scale, outputs=scale.inputs))
        return replace(then, adjoint=turned) if isinstance(turned, Convolved) else None
    return None


def _scaled_outputs(first: Operator, scale: Diagonal) -> Operator | None:
    if isinstance(first, Dense):
        factors = scale.by_feature()
        return None if factors is None else replace(first, matrix=first.matrix * factors[:, None])
    factors = scale.by_channel()
    if factors is None:
        return None
    if isinstance(first, Convolved):
        return replace(first, weight=first.weight * factors.reshape(-1, 1, 1, 1))
    if isinstance(first, Transposed):
        turned = _scaled_inputs(scale, first.adjoint)
        return replace(first, adjoint=turned) if isinstance(turned, Convolved) else None
    return None


def _fold_padding(first: Padded, then: Convolved) -> Operator | None:
    zeros = first.as_zeros()
    if zeros is None:
        return replace(then, inputs=first.inputs, maps=first.maps)
    padding = tuple(
        (before + own[0], after + own[1])
        for (before, after), own in zip(zeros, then.geometry.padding, strict=True)
    )
    image = (math.prod(first.inputs[1:-1]), first.inputs[-1])
    geometry = replace(then.geometry, image=image, padding=(padding[0], padding[1]))
    return replace(then, inputs=first.inputs, geometry=geometry)


def _fold_convolutions(first: Convolved, then: Convolved) -> Operator | None:
    """Fold two convolutions, unless zeros are added between them.

    Tap t of the second reads output ``s₂ j + d₂ t`` of the first, whose tap u reads
    ``s₁ (s₂ j + d₂ t) + d₁ u − padding``: a kernel with its taps at ``s₁ d₂ t + d₁ u`` and stride
    ``s₁ s₂``. Padding between the two would need zeros where this reads the image.
    """
    one, two = first.geometry, then.geometry
    if _mixes_channels(first):  # padding and copies come to the same before and after it
        mixing = ungrouped(first.weight, one.groups)[:, :, 0, 0]
        kernel = torch.einsum("ochw,ci->oihw", ungrouped(then.weight, two.groups), mixing)
        geometry = replace(two, groups=1)
        return Convolved(first.inputs, then.outputs, kernel, geometry, then.maps)
    if then.maps is not None or two.padding != ((0, 0), (0, 0)):
        return None
    inner, outer = first.inputs[0], then.outputs[0]
    spread_of_two = (one.stride[0] * two.dilation[0], one.stride[1] * two.dilation[1])
    kernel_one = _spread(ungrouped(first.weight, one.groups), one.dilation)
    kernel_two = _spread(ungrouped(then.weight, two.groups), spread_of_two)
    sides = [a + b - 1 for a, b in zip(kernel_one.shape[2:], kernel_two.shape[2:], strict=True)]
    if inner * outer * math.prod(sides) > _KERNEL_SIZE:
        return None
    high, wide = kernel_two.shape[2:]
    padded = F.pad(kernel_one.transpose(0, 1), (wide - 1, wide - 1, high - 1, high - 1))
    kernel = F.conv2d(padded, kernel_two.flip(2, 3)).transpose(0, 1)
    geometry = Convolution(
        image=one.image,
        stride=(one.stride[0] * two.stride[0], one.stride[1] * two.stride[1]),
        padding=_trimmed(first, then, kernel.shape),
    )
    return Convolved(first.inputs, then.outputs, kernel.contiguous(), geometry, first.maps)


def _mixes_channels(first: Convolved) -> bool:
    alone = first.weight.shape[2:] == (1, 1) and first.maps is None
    return alone and first.geometry == Convolution(
        first.geometry.image, groups=first.geometry.groups
    )


def _trimmed(
    first: Convolved, then: Convolved, kernel: torch.Size
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the folded padding; at the far end, only as much as the last output reads.

    The second leaves out outputs of the first that fill no window: the folded one must not see
    them either, or it would have an output more.
    """
    one, two = first.geometry, then.geometry
    sides = []
    for axis in (0, 1):
        middle = len(one.reads(axis, first.weight.shape[2 + axis]))
        outputs = len(replace(two, image=(middle, middle)).reads(axis, then.weight.shape[2 + axis]))
        stride = one.stride[axis] * two.stride[axis]
        needed = stride * (outputs - 1) + kernel[2 + axis] - one.image[axis]
        sides.append((one.padding[axis][0], needed - one.padding[axis][0]))
    return (sides[0], sides[1])


def _spread(kernel: torch.Tensor, steps: tuple[int, int]) -> torch.Tensor:
    out_channels, in_channels, height, width = kernel.shape
    spread = kernel.new_zeros(
        out_channels, in_channels, (height - 1) * steps[0] + 1, (width - 1) * steps[1] + 1
    )
    spread[:, :, :: steps[0], :: steps[1]] = kernel
    return spread
