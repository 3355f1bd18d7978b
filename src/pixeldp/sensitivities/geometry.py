"""Where the windows of convolutions and pools meet the places of an image.

Convolutions and pools treat the two axes of an image apart, so everything is said for one axis:
which place each tap of each output reads. Places that are read in the same way, up to a shift, form
a class; a bound needs one place of each class, and there are few.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    import numpy.typing as npt

    Reads = npt.NDArray[np.int64]

# What a tap reads that falls on padding.
NOTHING = -1


@dataclass(frozen=True)
class Convolution:
    """A two-dimensional convolution with zero padding, without its weights.

    ``image`` is the height and width of its input, ``padding`` the zeros added before and after
    each of them.
    """

    image: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    def reads(self, axis: int, taps: int) -> Reads:
        """Return ``[outputs, taps]``: the place that each tap of each output reads on an axis."""
        return windows(
            self.image[axis],
            taps,
            stride=self.stride[axis],
            padding=self.padding[axis],
            dilation=self.dilation[axis],
        )


def windows(
    size: int,
    taps: int,
    *,
    stride: int,
    padding: tuple[int, int],
    dilation: int,
    outputs: int | None = None,
) -> Reads:
    """Return ``[outputs, taps]``: place ``stride · output + dilation · tap − padding``, or nothing.

    The number of outputs is that of complete windows, unless it is given.
    """
    extent = (taps - 1) * dilation + 1
    count = (size + sum(padding) - extent) // stride + 1 if outputs is None else outputs
    places = stride * np.arange(count)[:, None] + dilation * np.arange(taps)[None, :] - padding[0]
    return np.where((places >= 0) & (places < size), places, NOTHING)


@dataclass(frozen=True)
class Classes:
    """Places of one axis, or pairs of them, by the way in which they are read.

    ``patterns`` has a 0-1 tensor for each class, ``members`` the number of places in it.
    """

    patterns: list[torch.Tensor]
    members: torch.Tensor


def place_classes(reads: Reads) -> Classes:
    """Return the classes of input places: patterns ``[taps, outputs that see the place]``."""
    return _by_pattern(_seen_by(reads), reads.shape[1])


def output_classes(reads: Reads) -> Classes:
    """Return the classes of outputs: patterns ``[taps, places that the output sees]``."""
    rows = [
        [(int(place), tap) for tap, place in enumerate(row) if place != NOTHING] for row in reads
    ]
    return _by_pattern(rows, reads.shape[1])


def most_windows(reads: Reads) -> int:
    """Return the largest number of windows that see one place."""
    places = reads[reads != NOTHING]
    return int(np.bincount(places).max(initial=0))


def place_pair_classes(reads: Reads) -> Classes:
    """Return the classes of pairs of places that some output sees both: ``[taps, taps]`` counts.

    Entry (t, t') says how many outputs read the one with tap t and the other with tap t'.
    """
    return _pairs(_seen_by(reads), reads.shape[1])


def output_pair_classes(reads: Reads) -> Classes:
    """Return the same for pairs of outputs that see a place together."""
    rows = [
        [(int(place), tap) for tap, place in enumerate(row) if place != NOTHING] for row in reads
    ]
    return _pairs(rows, reads.shape[1])


def _seen_by(reads: Reads) -> list[list[tuple[int, int]]]:
    """For each place, the (output, tap) pairs that read it."""
    places: dict[int, list[tuple[int, int]]] = {}
    for output, tap in np.argwhere(reads != NOTHING):
        places.setdefault(int(reads[output, tap]), []).append((int(output), int(tap)))
    return list(places.values())


def _by_pattern(seen: list[list[tuple[int, int]]], taps: int) -> Classes:
    counted: dict[tuple[tuple[int, int], ...], int] = {}
    for pairs in seen:
        if pairs:
            first = min(other for other, _ in pairs)
            key = tuple(sorted((other - first, tap) for other, tap in pairs))
            counted[key] = counted.get(key, 0) + 1
    patterns = []
    for key in counted:
        pattern = torch.zeros(taps, key[-1][0] + 1, dtype=torch.float64)
        for other, tap in key:
            pattern[tap, other] = 1.0
        patterns.append(pattern)
    return Classes(patterns, torch.tensor(list(counted.values()), dtype=torch.float64))


def _pairs(seen: list[list[tuple[int, int]]], taps: int) -> Classes:
    by_other: dict[int, list[tuple[int, int]]] = {}
    for place, pairs in enumerate(seen):
        for other, tap in pairs:
            by_other.setdefault(other, []).append((place, tap))
    together: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for readers in by_other.values():
        for one, tap in readers:
            for two, tap_of_two in readers:
                together.setdefault((one, two), []).append((tap, tap_of_two))
    counted: dict[tuple[tuple[int, int], ...], int] = {}
    for meetings in together.values():
        key = tuple(sorted(meetings))
        counted[key] = counted.get(key, 0) + 1
    patterns = []
    for key in counted:
        pattern = torch.zeros(taps, taps, dtype=torch.float64)
        for tap, tap_of_two in key:
            pattern[tap, tap_of_two] += 1.0
        patterns.append(pattern)
    return Classes(patterns, torch.tensor(list(counted.values()), dtype=torch.float64))
