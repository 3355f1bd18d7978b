"""How much cheaper draws are than calling the network whole, one draw at a time in small batches.

Everything is measured in one run, the contestants in turn, and stated as a ratio: how many draws a
second each makes on the digits network with noise after its first convolution.

    classical   the whole network on every noisy draw: front and back, in batches of 100
    ours        front once for each image, back in larger batches, argmax and softmax both kept
    back alone  the back with no noise at all: what nothing can beat that runs the network
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING

import torch

from pixeldp import Gaussian, PixelDP
from pixeldp.datasets import load_dataset
from pixeldp.networks import build_network
from pixeldp.records import record
from pixeldp.sampling import DEFAULT_BATCH, sample_scores

if TYPE_CHECKING:
    from collections.abc import Callable

_CLASSICAL_BATCH = 100


def contestants(
    model: PixelDP, images: torch.Tensor, draws: int
) -> dict[str, Callable[[], object]]:
    """Return, by name, what makes ``draws`` draws of each image."""

    @torch.no_grad()
    def classical() -> None:
        for image in images:
            for _ in range(draws // _CLASSICAL_BATCH):
                batch = image.expand(_CLASSICAL_BATCH, *image.shape)
                torch.bincount(model(batch).argmax(dim=1), minlength=10)

    @torch.no_grad()
    def back_alone() -> None:
        for image in images:
            value = model.front(image[None])
            for _ in range(draws // DEFAULT_BATCH):
                model.back(value.expand(DEFAULT_BATCH, *value.shape[1:]))

    return {
        "classical": classical,
        "ours": lambda: sample_scores(model, images, draws=draws, seed=1),
        "back alone": back_alone,
    }


def measure(rounds: int, draws: int, images: int) -> dict[str, float]:
    """Return draws a second of each contestant: the median over rounds, taken in turn."""
    data = load_dataset("digits")
    torch.manual_seed(1)
    network = build_network("small-cnn", input_shape=data.input_shape, labels=10)
    noise = Gaussian(scale=0.38, norm=2)
    model = PixelDP(network, noise, after="conv1", input_shape=data.input_shape).eval()
    runners = contestants(model, data.test_inputs[:images], draws)
    rates: dict[str, list[float]] = {name: [] for name in runners}
    for number in range(rounds + 1):
        for name, run in runners.items():
            began = time.perf_counter()
            run()
            if number:  # the first round warms up
                rates[name].append(draws * images / (time.perf_counter() - began))
    return {name: statistics.median(values) for name, values in rates.items()}


def main() -> None:
    """Measure and print the ratios; with --json, as one object that can be kept."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--draws", type=int, default=2000, help="a multiple of 200")
    parser.add_argument("--images", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rates = measure(options.rounds, options.draws, options.images)
    ratios = {
        "ours / classical": rates["ours"] / rates["classical"],
        "ours / back alone": rates["ours"] / rates["back alone"],
    }
    if options.json:
        command = f"python benchmarks/sampling.py --rounds {options.rounds} --json"
        print(record(command=command, seed=1, numbers=ratios), end="")
        return
    for name, rate in rates.items():
        print(f"{name:12} {rate:10.0f} draws a second")
    for name, ratio in ratios.items():
        print(f"{name:18} {ratio:.2f}")


if __name__ == "__main__":
    main()
