"""Linear pieces of a front. Biases and shifts move no difference and are left out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812 - the usual name

from pixeldp.sensitivities import tables
from pixeldp.sensitivities.geometry import NOTHING, Convolution
from pixeldp.sensitivities.measured import (
    convolution_entries,
    dense_entries,
    pixel_norm,
    through,
)
from pixeldp.sensitivities.tables import Wanted

if TYPE_CHECKING:
    from collections.abc import Callable

    from pixeldp.sensitivities.measured import Maps
    from pixeldp.sensitivities.tables import Table

Shape = tuple[int, ...]


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
    by_place: bool = False
    """Whether only channels are moved, alike at every place of an image."""

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

    def pixel(self, q: float) -> float:
        """Return the most that one changed place of the image moves the output, in the q-norm."""
        kernel = ungrouped(self.weight, self.geometry.groups)
        reads = [self.geometry.reads(axis, kernel.shape[2 + axis]) for axis in (0, 1)]
        if self.maps is not None:
            reads = [through(one, mapped) for one, mapped in zip(reads, self.maps, strict=True)]
        return pixel_norm(kernel, reads, q)

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
        image = (math.prod(self.inputs[1:-1]), self.inputs[-1])
        for mapped, size in zip(self.maps, image, strict=True):
            inside = np.flatnonzero(mapped != NOTHING)
            if not np.array_equal(mapped[inside], np.arange(size)):
                return None  # copies, or places cut off
            sides.append((int(inside[0]), len(mapped) - 1 - int(inside[-1])))
        return (sides[0], sides[1])


def gathered(image: torch.Tensor, mapped: np.ndarray, *, dim: int) -> torch.Tensor:
    """Return the image with its places along ``dim`` copied as the map says."""
    index = torch.from_numpy(np.where(mapped == NOTHING, 0, mapped)).to(image.device)
    kept = torch.from_numpy(mapped != NOTHING).to(image)
    shape = [1] * image.dim()
    shape[dim] = len(mapped)
    return image.index_select(dim, index) * kept.reshape(shape)


def ungrouped(weight: torch.Tensor, groups: int) -> torch.Tensor:
    """Return the kernel of a convolution with groups as one without: zeros between the groups."""
    if groups == 1:
        return weight
    out_channels, inner = weight.shape[:2]
    full = weight.new_zeros(out_channels, inner * groups, *weight.shape[2:])
    for group, part in enumerate(weight.reshape(groups, -1, *weight.shape[1:])):
        rows = slice(group * len(part), (group + 1) * len(part))
        full[rows, group * inner : (group + 1) * inner] = part
    return full
