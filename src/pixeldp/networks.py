"""Networks to train, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from pixeldp._checks import one_of
from pixeldp.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor


def build_network(name: str, *, input_shape: Sequence[int], labels: int) -> nn.Module:
    """Return a fresh network of that name, for inputs of that shape."""
    return _NETWORKS[one_of("network", name, _NETWORKS)](tuple(input_shape), labels)


class SmallCNN(nn.Module):
    """Two 3×3 convolutions, the second with stride 2, and two dense layers: for small images."""

    def __init__(self, input_shape: tuple[int, ...], labels: int) -> None:
        super().__init__()
        if len(input_shape) != 3:
            raise InvalidArgument(
                f"small-cnn needs inputs of shape (channels, height, width), got {input_shape}"
            )
        channels, height, width = input_shape
        self.conv1 = nn.Conv2d(channels, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, stride=2, padding=1)
        self.dense = nn.Linear(64 * ((height + 1) // 2) * ((width + 1) // 2), 128)
        self.output = nn.Linear(128, labels)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, ``[batch, labels]``."""
        x = self.conv2(self.conv1(x).relu()).relu()
        logits: Tensor = self.output(self.dense(x.flatten(1)).relu())
        return logits


_NETWORKS: dict[str, Callable[[tuple[int, ...], int], nn.Module]] = {"small-cnn": SmallCNN}
