"""Where the windows of convolutions and pools meet the places of an image."""

from __future__ import annotations

from dataclasses import dataclass


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
