"""What holding a layer costs in training, what measuring a large one costs, what Parseval leaves.

Costs are measured in one run, the contestants in turn, and stated as ratios of medians.

    bound           the weight of a held first layer, 3×3×3×16 on 32×32, with its gradient
    full transform  the same, by the Fourier transform of the whole kernel and all its norms
    layer step      forward, backward and SGD step of that layer alone, on 128 images
    network step    the same of the whole WRN-28-10, on 4 images: the more images, the smaller
                    the ratio
    large bound     the norm of a 7×7×3×64 layer with stride 2 on 224×224
    sensitivity     the same from the beginning: capturing the layer, and every norm that is needed
    stem            one image through that layer, batch normalisation, ReLU and max pooling

What Parseval leaves is the norm of a convolution whose reshaped kernel is a tight frame, and both
norms after training on the digits with it.

Times are those of the processor, so that a busy machine does not count; memory is what the peak of
a process of its own grows by. All of it runs on one thread, unless asked otherwise: then the times
of all threads add up.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the usual name

import pixeldp
from pixeldp.constraints import Parseval, hold_sensitivity
from pixeldp.datasets import load_dataset
from pixeldp.networks import build_network
from pixeldp.records import record
from pixeldp.sensitivities.geometry import Convolution
from pixeldp.sensitivities.operators import convolution_norm

if TYPE_CHECKING:
    from collections.abc import Callable

SEED = 1
IMAGES, NETWORK_IMAGES = 128, 4
FIRST = Convolution(image=(32, 32), padding=((1, 1), (1, 1)))
LARGE = Convolution(image=(224, 224), stride=(2, 2), padding=((3, 3), (3, 3)))
FIVE = Convolution(image=(28, 28), stride=(2, 2), padding=((2, 2), (2, 2)))
STEPS = 500
LARGE_KERNEL = (64, 3, 7, 7)


class Block(nn.Module):
    """Two 3×3 convolutions, each after batch normalisation and ReLU, and a way around them."""

    def __init__(self, entering: int, width: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(entering), nn.BatchNorm2d(width)
        self.conv1 = nn.Conv2d(entering, width, 3, stride=stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.around = (
            None
            if entering == width and stride == 1
            else nn.Conv2d(entering, width, 1, stride=stride, bias=False)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the images after the block."""
        y = F.relu(self.norm1(x))
        around = x if self.around is None else self.around(y)
        z: torch.Tensor = self.conv2(F.relu(self.norm2(self.conv1(y)))) + around
        return z


def wide_resnet(depth: int = 28, factor: int = 10, labels: int = 10) -> nn.Sequential:
    """Return WRN-28-10 (Zagoruyko and Komodakis 2016) for images of 32×32."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False)]
    entering = 16
    for group, width in enumerate((16 * factor, 32 * factor, 64 * factor)):
        for block in range((depth - 4) // 6):
            layers.append(Block(entering, width, stride=2 if group and not block else 1))
            entering = width
    pooled = [nn.BatchNorm2d(entering), nn.ReLU(), nn.AvgPool2d(8), nn.Flatten()]
    return nn.Sequential(*layers, *pooled, nn.Linear(entering, labels))


def full_transform(kernel: torch.Tensor, convolution: Convolution) -> torch.Tensor:
    """Return the norm with nothing spared: every alias of every frequency, and all their norms."""
    step_h, step_w = convolution.stride
    sides = [
        -(-(image + sum(padding)) // step) * step
        for image, padding, step in zip(
            convolution.image, convolution.padding, convolution.stride, strict=True
        )
    ]
    spectrum = torch.fft.fft2(kernel, s=sides)
    aliases = spectrum.unflatten(3, (step_w, -1)).unflatten(2, (step_h, -1))
    blocks = aliases.permute(3, 5, 0, 1, 2, 4).flatten(3).flatten(0, 1)
    wide = blocks.shape[1] < blocks.shape[2]
    grams = blocks @ blocks.mH if wide else blocks.mH @ blocks
    norm: torch.Tensor = torch.linalg.eigvalsh(grams).amax().sqrt() / (step_h * step_w) ** 0.5
    return norm


def step_of(network: nn.Module, images: int) -> Callable[[], object]:
    """Return one step of training on as many images."""
    inputs = torch.randn(images, 3, 32, 32)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        outputs = network(inputs)
        outputs.backward(torch.ones_like(outputs))
        optimizer.step()

    return step


def first_layer(*, held: bool) -> nn.Sequential:
    """Return the first layer of the network alone."""
    layer = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False))
    if held:
        hold_sensitivity(layer, "0", (3, 32, 32), p=2, q=2)
    return layer


def weight_of(layer: nn.Sequential) -> Callable[[], object]:
    """Return the work of using a layer's weight in a step: it, and its gradient."""

    def work() -> None:
        weight: Any = layer[0].weight
        weight.backward(torch.ones_like(weight))

    return work


def by_full_transform() -> Callable[[], object]:
    """Return the same work by the full transform."""
    weight = nn.Parameter(torch.randn(16, 3, 3, 3))

    def work() -> None:
        held: Any = (weight.double() / full_transform(weight.double(), FIRST)).float()
        held.backward(torch.ones_like(held))

    return work


def large_kernel() -> torch.Tensor:
    """Return the kernel of the large layer."""
    return torch.randn(LARGE_KERNEL, generator=torch.Generator().manual_seed(SEED)).double()


def large_sensitivity() -> float:
    """Measure the large layer as a user does."""
    layer = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
    layer.weight.data = large_kernel().float()
    return pixeldp.sensitivity(layer, (3, *LARGE.image))


def stem() -> Callable[[], object]:
    """Return one image's way through the first layers of an ImageNet network."""
    layers = nn.Sequential(
        nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
    ).eval()
    image = torch.randn(1, 3, 224, 224)
    return torch.no_grad()(lambda: layers(image))


def measure(contestants: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the seconds of each: the median over rounds, taken in turn, after one to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, work in contestants.items():
            began = time.process_time()
            work()
            if number:
                seconds[name].append(time.process_time() - began)
    return {name: statistics.median(values) for name, values in seconds.items()}


def in_training(rounds: int) -> dict[str, Any]:
    """Return what the bound costs next to steps of training."""
    small = measure(
        {
            "bound": weight_of(first_layer(held=True)),
            "full transform": by_full_transform(),
            "layer step": step_of(first_layer(held=False), IMAGES),
            "held layer step": step_of(first_layer(held=True), IMAGES),
        },
        rounds * 20,
    )
    steps = {"network step": step_of(wide_resnet(), NETWORK_IMAGES)}
    network = measure(steps, rounds)["network step"]
    bound, layer = small["bound"], small["layer step"]
    return {
        "milliseconds": {
            name: round(1000 * took, 3) for name, took in {**small, "network step": network}.items()
        },
        f"bound / layer step of {IMAGES} images": round(bound / layer, 4),
        f"held layer step / layer step of {IMAGES} images": round(
            small["held layer step"] / layer, 4
        ),
        f"bound / network step of {NETWORK_IMAGES} images": round(bound / network, 5),
        "bound / full transform": round(bound / small["full transform"], 4),
    }


def of_a_large_layer(rounds: int) -> dict[str, Any]:
    """Return what measuring the large layer costs in time and memory."""
    kernel = large_kernel()
    with torch.no_grad():
        took = measure(
            {
                "large bound": lambda: convolution_norm(kernel, LARGE, p=2, q=2),
                "full transform": lambda: full_transform(kernel, LARGE),
                "sensitivity": large_sensitivity,
                "stem": stem(),
            },
            rounds * 3,
        )
    memory = {name: peak_of(name) for name in LARGE_WAYS}
    return {
        "milliseconds": {name: round(1000 * value, 1) for name, value in took.items()},
        "megabytes": {name: round(value) for name, value in memory.items()},
        "large bound / stem of one image": round(took["large bound"] / took["stem"], 3),
        "large bound / full transform": round(took["large bound"] / took["full transform"], 4),
        "memory of large bound / full transform": round(
            memory["large bound"] / memory["full transform"], 3
        ),
    }


def peak_of(name: str) -> float:
    """Return by how many megabytes a process of its own grows when it measures the large layer."""
    done = subprocess.run(
        [sys.executable, __file__, "--memory-of", name], capture_output=True, text=True, check=True
    )
    return float(json.loads(done.stdout))


@torch.no_grad()
def growth(name: str) -> float:
    """Measure the large layer once, after a small one has loaded what torch loads when needed."""
    small, kernel = torch.randn(2, 3, 3, 3).double(), large_kernel()
    pixeldp.sensitivity(nn.Conv2d(3, 2, 3), (3, 8, 8))
    for norm in (_bound, full_transform):
        norm(small, FIRST)
    before = peak()
    LARGE_WAYS[name](kernel)
    return peak() - before


def peak() -> float:
    """Return the most memory that this process has held, in megabytes.

    Linux counts in ``ru_maxrss`` what the process that started this one held, so it is asked
    otherwise.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        lines = dict(line.split(":", 1) for line in status.read_text("utf-8").splitlines())
        return float(lines["VmHWM"].split()[0]) / 2**10
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def _bound(kernel: torch.Tensor, convolution: Convolution) -> torch.Tensor:
    return convolution_norm(kernel, convolution, p=2, q=2)


LARGE_WAYS: dict[str, Callable[[torch.Tensor], object]] = {
    "large bound": lambda kernel: _bound(kernel, LARGE),
    "full transform": lambda kernel: full_transform(kernel, LARGE),
    "sensitivity": lambda _: large_sensitivity(),
}


def left_by_parseval() -> dict[str, Any]:
    """Return norms of layers whose singular values Parseval has drawn towards 1."""
    frames = {}
    for name, layer, convolution in (
        ("3×3×3×16, 32×32", nn.Conv2d(3, 16, 3), FIRST),
        ("5×5×1×32, stride 2, 28×28", nn.Conv2d(1, 32, 5), FIVE),
        ("7×7×3×64, stride 2, 224×224", nn.Conv2d(3, 64, 7), LARGE),
    ):
        Parseval(nn.Sequential(layer), "0", beta=0.3, loops=300).step()
        frames[name] = round(
            float(convolution_norm(layer.weight.detach(), convolution, p=2, q=2)), 3
        )
    trained = {
        f"beta {beta}, {loops} loops": after_training(beta, loops)
        for beta, loops in ((0.0003, 10), (0.0003, 100), (0.05, 10))
    }
    return {"norm of a tight frame": frames, f"after {STEPS} steps on the digits": trained}


def after_training(beta: float, loops: int) -> dict[str, float]:
    """Return the singular values of the reshaped first kernel, and the norm of its layer."""
    data = load_dataset("digits")
    torch.manual_seed(SEED)
    network = build_network("small-cnn", input_shape=data.input_shape, labels=10)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, weight_decay=2e-4)
    Parseval(network, "conv1", beta=beta, loops=loops).attach(optimizer)
    for _ in range(STEPS):
        rows = torch.randint(len(data.train_inputs), (IMAGES,))
        loss: Any = F.cross_entropy(network(data.train_inputs[rows]), data.train_labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    weight = network.get_parameter("conv1.weight").detach().double()
    values = torch.linalg.svdvals(weight.flatten(1))
    norm = convolution_norm(weight, Convolution((8, 8), padding=((1, 1), (1, 1))), p=2, q=2)
    found = {"largest": values[0], "smallest": values[-1], "norm of the layer": norm}
    return {name: round(float(value), 3) for name, value in found.items()}


def main() -> None:
    """Measure and print; with --json, as one object that can be kept."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.memory_of:
        print(json.dumps(growth(options.memory_of)))
        return
    torch.manual_seed(SEED)
    numbers = {
        "in training": in_training(options.rounds),
        "a large layer": of_a_large_layer(options.rounds),
        "parseval": left_by_parseval(),
    }
    if options.json:
        how = f"--rounds {options.rounds} --threads {options.threads} --json"
        command = f"python benchmarks/constraints.py {how}"
        print(record(command=command, seed=SEED, numbers=numbers), end="")
        return
    for title, rows in numbers.items():
        print(title)
        for name, row in rows.items():
            print(f"  {name:48}", row)


if __name__ == "__main__":
    main()
