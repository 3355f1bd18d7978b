"""Linear pieces of a front, and how neighbours are folded into one operator before it is bounded.

The norm of a product is at most the product of the norms, and often much less: a normalisation
after a convolution undoes what the convolution stretched. So neighbouring linear pieces become one
wherever one formula covers them. Biases and shifts move no difference and are left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812 - the usual name

from pixeldp.sensitivities import tables
from pixeldp.sensitivities.geometry import NOTHING, Convolution
from pixeldp.sensitivities.measured import (
    Wanted,
    convolution_entries,
    dense_entries,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pixeldp.sensitivities.measured import Maps
    from pixeldp.sensitivities.tables import Table

Shape = tuple[int, ...]

# Folding two convolutions makes a kernel of every input channel with every output channel.
_KERNEL_SIZE = 2**22


@dataclass(frozen=True, eq=False)
class Operator:
    """A linear map from inputs of one shape to outputs of another, both without the batch."""

    inputs: Shape
    outputs: Shape

    rule: ClassVar[str]
    source: ClassVar[str]

    @property
    def changes_nothing(self) -> bool:
        """Whether the values behind it are those before it."""
        return False

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """Return the images of a batch of float64 inputs."""
        raise NotImplementedError

    def table(self, wanted: Wanted) -> Table:
        """Return the proven bounds."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Rearranged(Operator):
    """Coordinates moved to other places, each to at most one: views, permutations, slices."""

    move: Callable[[torch.Tensor], torch.Tensor] | None

    rule: ClassVar[str] = "coordinates kept, moved or dropped"
    source: ClassVar[str] = "definition of a norm"

    @property
    def changes_nothing(self) -> bool:
        """Whether the values behind it are those before it."""
        return self.move is None

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """Return the images of a batch."""
        return x if self.move is None else self.move(x)

    def table(self, wanted: Wanted) -> Table:
        """Return 1 for p ≤ q."""
        del wanted
        return tables.isometry(max(math.prod(self.inputs), math.prod(self.outputs)))


@dataclass(frozen=True, eq=False)
class Diagonal(Operator):
    """Every coordinate times a constant: ``scale`` broadcasts to the shape of the input."""

    scale: torch.Tensor

    rule: ClassVar[str] = "scale: the largest factor"
    source: ClassVar[str] = "norm of a diagonal matrix"

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """Return the images of a batch."""
        return x * self.scale

    def table(self, wanted: Wanted) -> Table:
        """Return the largest magnitude for p ≤ q."""
        del wanted
        return tables.contraction(float(self.scale.abs().amax()), math.prod(self.inputs))

    def by_channel(self) -> torch.Tensor | None:
        """Return one factor for each channel, if places of a channel share it."""
        shape = (1,) * (len(self.inputs) - self.scale.dim()) + tuple(self.scale.shape)
        if any(size != 1 for size in shape[1:]):
            return None
        return self.scale.reshape(-1).expand(self.inputs[0])

    def by_feature(self) -> torch.Tensor | None:
        """Return one factor for each coordinate of the last axis, if other axes share it."""
        shape = (1,) * (len(self.inputs) - self.scale.dim()) + tuple(self.scale.shape)
        if any(size != 1 for size in shape[:-1]):
            return None
        return self.scale.reshape(-1).expand(self.inputs[-1])


@dataclass(frozen=True, eq=False)
class Dense(Operator):
    """A matrix on the last axis, for each of the vectors along the other axes by itself."""

    matrix: torch.Tensor

    rule: ClassVar[str] = "dense: columns, rows, largest singular value"
    source: ClassVar[str] = "paper §3.2, option 2"

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """Return the images of a batch."""
        return x @ self.matrix.mT

    def table(self, wanted: Wanted) -> Table:
        """Return the norms of the matrix, repeated for each vector."""
        outputs, inputs = self.matrix.shape
        one = tables.linear(dense_entries(self.matrix, wanted), inputs, outputs)
        return tables.repeated(one, math.prod(self.inputs[:-1]))


@dataclass(frozen=True, eq=False)
class Convolved(Operator):
    """A convolution, of one dimension (height 1) or two; ``maps`` as in ``measured``."""

    weight: torch.Tensor
    geometry: Convolution
    maps: Maps | None = None

    rule: ClassVar[str] = "convolution: taps by phase, frequencies of a torus"
    source: ClassVar[str] = "paper §3.2, option 2; Sedghi et al. 2019, with strides"

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """Return the images of a batch."""
        image = x.reshape(len(x), self.inputs[0], -1, self.inputs[-1])
        if self.maps is not None:
            image = gathered(gathered(image, self.maps[0], dim=2), self.maps[1], dim=3)
        (top, bottom), (left, right) = self.geometry.padding
        out = F.conv2d(
            F.pad(image, (left, right, top, bottom)),
            self.weight,
            stride=self.geometry.stride,
            dilation=self.geometry.dilation,
            groups=self.geometry.groups,
        )
        return out.reshape(len(x), *self.outputs)

    def table(self, wanted: Wanted) -> Table:
        """Return the norms of the convolution."""
        entries = convolution_entries(self.weight, self.geometry, wanted, self.maps)
        return tables.linear(entries, math.prod(self.inputs), math.prod(self.outputs))


@dataclass(frozen=True, eq=False)
class Transposed(Operator):
    """The adjoint of a convolution, which takes this one's outputs to its inputs."""

    adjoint: Convolved

    rule: ClassVar[str] = "transposed convolution: the adjoint's norms, p and q exchanged"
    source: ClassVar[str] = "duality of norms"

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """Return the images of a batch."""
        shape = (len(x), *self.outputs)
        with torch.enable_grad():  # the adjoint of a linear map is its derivative, transposed
            probe = torch.zeros(shape, dtype=x.dtype, device=x.device, requires_grad=True)
            (image,) = torch.autograd.grad(self.adjoint.apply(probe), probe, x)
        return image

    def table(self, wanted: Wanted) -> Table:
        """Return the adjoint's table, turned: (p, q) becomes (q*, p*)."""
        turned = {1: math.inf, math.inf: 1, 2: 2}
        p, q = turned.get(wanted.q, 2), turned.get(wanted.p, 2)
        return tables.dual(self.adjoint.table(Wanted(p, q)))


@dataclass(frozen=True, eq=False)
class Separable(Operator):
    """A matrix for each axis of the image, alike for every channel: average pools.

    ``box`` is the size and stride of the windows where all are alike and none reaches padding.
    """

    height: torch.Tensor
    width: torch.Tensor
    box: tuple[tuple[int, int], tuple[int, int]] | None = None

    rule: ClassVar[str] = "average pool: the product of the two axes' norms"
    source: ClassVar[str] = "norm of a Kronecker product"

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """Return the images of a batch."""
        image = x.reshape(len(x), self.inputs[0], -1, self.inputs[-1])
        out = torch.einsum("bchw,ah,dw->bcad", image, self.height, self.width)
        return out.reshape(len(x), *self.outputs)

    def table(self, wanted: Wanted) -> Table:
        """Return the products of the norms; each entry is multiplicative."""
        axes = [dense_entries(axis, Wanted(math.inf, 1)) for axis in (self.height, self.width)]
        entries = {pair: axes[0][pair] * axes[1][pair] for pair in axes[0]}
        del wanted
        inputs, outputs = (len(m) for m in (self.height.mT, self.height))
        inputs, outputs = inputs * self.width.shape[1], outputs * len(self.width)
        return tables.repeated(tables.linear(entries, inputs, outputs), self.inputs[0])

    def as_convolution(self) -> Convolved | None:
        """Return the same as a convolution, where all windows are alike."""
        channels = self.inputs[0]
        if self.box is None:
            return None
        (high, wide), stride = self.box
        weight = self.height.new_full((channels, 1, high, wide), 0.0)
        # Windows are alike, so the first one's weights are everybody's.
        weight[:] = self.height[0, :high, None] * self.width[0, None, :wide]
        image = (self.height.shape[1], self.width.shape[1])
        geometry = Convolution(image=image, stride=stride, groups=channels)
        return Convolved(self.inputs, self.outputs, weight, geometry)


@dataclass(frozen=True, eq=False)
class Padded(Operator):
    """Places copied by an index map on each axis: every kind of padding; nothing is a zero."""

    maps: Maps

    rule: ClassVar[str] = "padding: the copies of a place"
    source: ClassVar[str] = "norm of a 0-1 matrix with one 1 a row"

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """Return the images of a batch."""
        image = x.reshape(len(x), self.inputs[0], -1, self.inputs[-1])
        image = gathered(gathered(image, self.maps[0], dim=2), self.maps[1], dim=3)
        return image.reshape(len(x), *self.outputs)

    def table(self, wanted: Wanted) -> Table:
        """Return the number of copies, and its root for the 2-norm."""
        del wanted
        copies = math.prod(
            int(np.bincount(mapped[mapped != NOTHING]).max(initial=0)) for mapped in self.maps
        )
        entries = {
            (1, 1): copies,
            (1, 2): math.sqrt(copies),
            (1, math.inf): 1.0,
            (2, 2): math.sqrt(copies),
            (2, math.inf): 1.0,
            (math.inf, math.inf): 1.0,
        }
        return tables.linear(entries, math.prod(self.inputs), math.prod(self.outputs))

    def as_zeros(self) -> tuple[tuple[int, int], tuple[int, int]] | None:
        """Return the zeros before and after each axis, if that is all the padding is."""
        sides = []
        for mapped in self.maps:
            inside = np.flatnonzero(mapped != NOTHING)
            if (mapped[inside] != np.arange(mapped.max() + 1)).any():
                return None
            sides.append((int(inside[0]), len(mapped) - 1 - int(inside[-1])))
        return (sides[0], sides[1])


def gathered(image: torch.Tensor, mapped: np.ndarray, *, dim: int) -> torch.Tensor:
    """Return the image with its places along ``dim`` copied as the map says."""
    index = torch.from_numpy(np.where(mapped == NOTHING, 0, mapped)).to(image.device)
    kept = torch.from_numpy(mapped != NOTHING).to(image)
    shape = [1] * image.dim()
    shape[dim] = len(mapped)
    return image.index_select(dim, index) * kept.reshape(shape)


def fold(first: Operator, then: Operator) -> Operator | None:
    """Return one operator for two, or None where no formula covers both together."""
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
    image = tuple(int(mapped.max()) + 1 for mapped in first.maps)
    geometry = replace(then.geometry, image=(image[0], image[1]), padding=(padding[0], padding[1]))
    return replace(then, inputs=first.inputs, geometry=geometry)


def _fold_convolutions(first: Convolved, then: Convolved) -> Operator | None:
    """Fold two convolutions, unless zeros are added between them.

    Tap t of the second reads output ``s₂ j + d₂ t`` of the first, whose tap u reads
    ``s₁ (s₂ j + d₂ t) + d₁ u − padding``: a kernel with its taps at ``s₁ d₂ t + d₁ u`` and stride
    ``s₁ s₂``. Padding between the two would need zeros where this reads the image.
    """
    one, two = first.geometry, then.geometry
    if then.maps is not None or two.padding != ((0, 0), (0, 0)):
        return None
    inner, outer = first.inputs[0], then.outputs[0]
    spread_of_two = (one.stride[0] * two.dilation[0], one.stride[1] * two.dilation[1])
    kernel_one = _spread(_ungrouped(first.weight, one.groups), one.dilation)
    kernel_two = _spread(_ungrouped(then.weight, two.groups), spread_of_two)
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


def _ungrouped(weight: torch.Tensor, groups: int) -> torch.Tensor:
    """Return the kernel of a convolution with groups as one without: zeros between the groups."""
    if groups == 1:
        return weight
    out_channels, inner = weight.shape[:2]
    full = weight.new_zeros(out_channels, inner * groups, *weight.shape[2:])
    for group, part in enumerate(weight.reshape(groups, -1, *weight.shape[1:])):
        rows = slice(group * len(part), (group + 1) * len(part))
        full[rows, group * inner : (group + 1) * inner] = part
    return full


def _spread(kernel: torch.Tensor, steps: tuple[int, int]) -> torch.Tensor:
    out_channels, in_channels, height, width = kernel.shape
    spread = kernel.new_zeros(
        out_channels, in_channels, (height - 1) * steps[0] + 1, (width - 1) * steps[1] + 1
    )
    spread[:, :, :: steps[0], :: steps[1]] = kernel
    return spread
