"""What the benchmarks of the engine are made on: two networks, real images, the classical loop."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the usual name

# The scale of the paper's L = 0.3, rounded: "sigma about 0.75".
SIGMA = 0.75

MNIST_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


class PaperCNN(nn.Module):
    """The paper's network for MNIST: two 5×5 convolutions of stride 2, and 1024 hidden nodes."""

    def __init__(self, labels: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 5, stride=2, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, stride=2, padding=2)
        self.dense = nn.Linear(64 * 49, 1024)
        self.output = nn.Linear(1024, labels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        x = self.conv2(self.conv1(x).relu()).relu()
        logits: torch.Tensor = self.output(self.dense(x.flatten(1)).relu())
        return logits


class Block(nn.Module):
    """Two 3×3 convolutions with batch normalisation, and the input added again."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        same = inputs == outputs and stride == 1
        self.short = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        inner = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        summed: torch.Tensor = inner + self.short(x)
        return summed.relu()


def small_resnet(labels: int = 10, width: int = 32) -> nn.Module:
    """Return a residual network of three blocks for 32×32 colour images."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 1, 1),
        nn.ReLU(),
        Block(width, width, 1),
        Block(width, 2 * width, 2),
        Block(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, labels),
    )


def data_root() -> Path:
    """Return where torchvision's MNIST lies."""
    default = Path.home() / ".cache/pixeldp/datasets"
    return Path(os.environ.get("PIXELDP_DATA", default)) / "MNIST/raw"


def mnist(split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return MNIST's images in [0, 1] and their labels."""
    images, labels = (
        np.frombuffer((data_root() / name).read_bytes(), np.uint8, offset=offset)
        for name, offset in zip(MNIST_FILES[split], (16, 8), strict=True)
    )
    pixels = images.reshape(-1, 1, 28, 28).astype(np.float32) / 255
    return torch.from_numpy(pixels), torch.from_numpy(labels.astype(np.int64))


def trained_cnn(path: Path, *, epochs: int = 10, seed: int = 1) -> PaperCNN:
    """Return the network of ``path``, trained first if it is not there: two minutes, two cores."""
    torch.manual_seed(seed)
    network = PaperCNN()
    if path.is_file():
        network.load_state_dict(torch.load(path, weights_only=True))
        return network.eval()
    images, labels = mnist("train")
    optimizer = torch.optim.SGD(
        network.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    steps = epochs * (len(images) // 128)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)
    for _ in range(epochs):
        order = torch.randperm(len(images))[: steps // epochs * 128]
        for batch in order.reshape(-1, 128):
            noisy = images[batch] + SIGMA * torch.randn_like(images[batch])
            with torch.autocast("cpu", torch.bfloat16):
                logits = network(noisy)
            loss = F.cross_entropy(logits.float(), labels[batch])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(network.state_dict(), path)
    return network.eval()


@torch.no_grad()
def classical(network: nn.Module, x: torch.Tensor, *, draws: int, batch: int, sigma: float) -> int:
    """Draw for one input as the field's scripts do; return the count of its most frequent label.

    The input is repeated, noise added, the whole network called in float32, votes counted.
    """
    counts = np.zeros(0, dtype=np.int64)
    left = draws
    while left:
        size = min(batch, left)
        repeated = x.repeat((size, *[1] * (x.dim() - 1)))
        logits = network(repeated + sigma * torch.randn_like(repeated))
        found = np.bincount(logits.argmax(1).numpy(), minlength=logits.shape[1])
        counts = found if not counts.size else counts + found
        left -= size
    return int(counts.max())
