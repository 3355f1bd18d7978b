"""How many draws a second: this engine, the classical loop, the back alone, and ART.

All of it interleaved in one run: each round measures everything once, and the ratios of each round
are what counts. ART (``pip install adversarial-robustness-toolbox``) is left out if it is missing.

    python benchmarks/engine.py [--rounds 5] [--record docs/results/engine.json]
"""

from __future__ import annotations

import argparse
import importlib.util
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pixeldp import Gaussian, PixelDP, records
from pixeldp.batches import Sampling
from pixeldp.layouts import back_of
from pixeldp.precisions import arithmetic
from pixeldp.sampling import draw, layout_for, layout_rows
from pixeldp.stopping import Exactly
from subjects import SIGMA, PaperCNN, classical, small_resnet

if TYPE_CHECKING:
    from torch import nn

    from pixeldp.layouts import Layout
    from pixeldp.scores import Drawn

Rate = Callable[[], float]

# The batches of the classical loop: the default of Cohen et al., and one that suits a processor.
BATCHES = (1000, 200)

WAYS: dict[str, dict[str, Any]] = {
    "fp32": {"precision": "fp32"},
    "fp32, shared noise": {"precision": "fp32", "shared": True},
    "bf16": {"precision": "bf16"},
    "bf16, shared noise": {"precision": "bf16", "shared": True},
    "bf16, shared noise, compiled": {"precision": "bf16", "shared": True, "compiled": True},
}


def engine_rate(
    model: PixelDP, x: torch.Tensor, layout: Layout, *, shared: bool, draws: int
) -> float:
    """Return the engine's draws a second."""
    done: list[Drawn] = []
    sampling = Sampling(rule=Exactly(draws), seed=1, shared=shared, layout=layout)
    began = time.perf_counter()
    draw(model, x.__getitem__, range(len(x)), sampling, done.append)
    return sum(one.draws for one in done) / (time.perf_counter() - began)


@torch.no_grad()
def back_rate(model: PixelDP, x: torch.Tensor, layout: Layout, *, draws: int) -> float:
    """Return the draws a second of the back alone: the same values again and again, no noise."""
    value = layout.inside(model.front(x[:1]))
    rows = layout_rows(layout)
    batch = layout.outside(value.repeat((rows, *[1] * (value.dim() - 1))))
    back, rounds = back_of(model, layout), max(draws // rows, 1)
    with arithmetic(model.precision, x.device):
        back(batch)
        began = time.perf_counter()
        for _ in range(rounds):
            logits = back(batch)
        logits.cpu()  # a GPU is asked, and computes when it comes to it
        return rounds * rows / (time.perf_counter() - began)


def classical_rate(network: nn.Module, x: torch.Tensor, *, batch: int, draws: int) -> float:
    """Return the draws a second of the classical loop."""
    began = time.perf_counter()
    for one in x:
        classical(network, one[None], draws=draws, batch=batch, sigma=SIGMA)
    return len(x) * draws / (time.perf_counter() - began)


def art_rate(network: nn.Module, x: torch.Tensor, *, batch: int, draws: int) -> float:
    """Return the draws a second of ART's certify."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from art.estimators.certification.randomized_smoothing import PyTorchRandomizedSmoothing

        smoothed = PyTorchRandomizedSmoothing(
            network,
            loss=torch.nn.CrossEntropyLoss(),
            input_shape=tuple(x.shape[1:]),
            nb_classes=10,
            device_type="cpu",
            sample_size=100,
            scale=SIGMA,
            alpha=0.001,
        )
        images = x.numpy()
        began = time.perf_counter()
        smoothed.certify(images, n=draws, batch_size=batch)
        return len(x) * (draws + 100) / (time.perf_counter() - began)


def measure(
    name: str, network: nn.Module, shape: tuple[int, ...], after: str | None, size: tuple[int, int]
) -> dict[str, Any]:
    """Measure one network with its noise in one place; ``size`` is the rounds and the draws."""
    rounds, draws = size
    x = torch.rand(8, *shape)
    ways, layouts = engine_ways(network, x, after, draws)
    if after is None:
        ways |= other_ways(network, x[:4], max(draws // 2, 500))
    found: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(rounds + 1):
        for way, rate in ways.items():
            value = rate()
            if number:  # the first round warms up
                found[way].append(value)
    rates = {way: float(np.median(values)) for way, values in found.items()}
    for way, value in rates.items():
        print(f"{name}: {way}: {value:,.0f} draws a second", flush=True)
    return {
        "draws a second": {way: round(value) for way, value in rates.items()},
        "ratios": ratios(found),
        "layouts": layouts,
    }


def engine_ways(
    network: nn.Module, x: torch.Tensor, after: str | None, draws: int
) -> tuple[dict[str, Rate], dict[str, Any]]:
    """Return the engine's ways to draw, and the back alone for each."""
    ways: dict[str, Rate] = {}
    layouts = {}
    for way, options in WAYS.items():
        model = PixelDP(
            network,
            Gaussian(scale=SIGMA, norm=2),
            after=after,
            input_shape=x.shape[1:],
            precision=options["precision"],
        ).eval()
        layout = layout_for(model, x, draws=10**9, compiled=bool(options.get("compiled")))
        layouts[way] = layout.as_dict()
        shared = bool(options.get("shared"))
        ways[f"engine: {way}"] = partial(engine_rate, model, x, layout, shared=shared, draws=draws)
        ways[f"back alone: {way}"] = partial(back_rate, model, x, layout, draws=len(x) * draws)
    return ways, layouts


def other_ways(network: nn.Module, x: torch.Tensor, draws: int) -> dict[str, Rate]:
    """Return the classical loop, and ART's if it is installed."""
    ways: dict[str, Rate] = {
        f"classical, {batch} at once": partial(classical_rate, network, x, batch=batch, draws=draws)
        for batch in BATCHES
    }
    if importlib.util.find_spec("art") is not None:
        for batch in (32, 500):
            ways[f"ART, {batch} at once"] = partial(art_rate, network, x, batch=batch, draws=draws)
    return ways


def ratios(found: dict[str, list[float]]) -> dict[str, float]:
    """Return what the rates mean: the median over the rounds of the ratio within each."""
    rounds = {way: np.array(values) for way, values in found.items()}
    made = {}
    for way, rate in rounds.items():
        if not way.startswith("engine"):
            continue
        alone = rounds[way.replace("engine", "back alone")]
        made[f"{way} / back alone"] = float(np.median(rate / alone))
        for other, theirs in rounds.items():
            if other.startswith(("classical", "ART")):
                made[f"{way} / {other}"] = float(np.median(rate / theirs))
    return {name: round(value, 2) for name, value in made.items()}


def growth(rounds: int) -> dict[str, dict[str, float]]:
    """Return seconds for an input, by what they grow with: draws, inputs, classes, network."""
    noise, made = Gaussian(scale=SIGMA, norm=2), {}

    def seconds(network: nn.Module, shape: tuple[int, ...], inputs: int, draws: int) -> float:
        model = PixelDP(network.eval(), noise, precision="bf16")
        x = torch.rand(inputs, *shape)
        layout = layout_for(model, x, draws=10**9)
        rates = [engine_rate(model, x, layout, shared=False, draws=draws) for _ in range(rounds)]
        return inputs * draws / float(np.median(rates))

    image, colour = (1, 28, 28), (3, 32, 32)
    made["draws, one input"] = {
        str(n): seconds(PaperCNN(), image, 1, n) for n in (100, 1000, 10_000, 100_000)
    }
    made["inputs, 1000 draws each"] = {
        str(n): seconds(PaperCNN(), image, n, 1000) for n in (1, 10, 100)
    }
    made["classes, 20 inputs, 1000 draws each"] = {
        str(n): seconds(PaperCNN(labels=n), image, 20, 1000) for n in (10, 100, 1000)
    }
    made["width of the residual network, 4 inputs, 1000 draws each"] = {
        str(n): seconds(small_resnet(width=n), colour, 4, 1000) for n in (8, 16, 32, 64)
    }
    return {name: {k: float(f"{v:.3g}") for k, v in row.items()} for name, row in made.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    torch.manual_seed(1)
    cnn, resnet = PaperCNN().eval(), small_resnet().eval()
    image, colour = (1, 28, 28), (3, 32, 32)
    fast, slow = (options.rounds, 4000), (options.rounds, 1000)
    numbers: dict[str, Any] = {
        "CNN, noise on the input": measure("CNN", cnn, image, None, fast),
        "CNN, noise after conv1": measure("CNN, conv1", cnn, image, "conv1", fast),
        "residual, noise on the input": measure("residual", resnet, colour, None, slow),
        "residual, noise after conv1": measure("residual, conv1", resnet, colour, "0", slow),
        "seconds": growth(options.rounds),
    }
    command = f"python benchmarks/engine.py --rounds {options.rounds}"
    text = records.record(command=command, seed=1, numbers=numbers)
    if options.record:
        options.record.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
