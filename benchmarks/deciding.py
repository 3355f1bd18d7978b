"""What it costs to decide radii, against the classical procedure of 100,000 draws an input.

The paper's network for MNIST with noise on the input, 500 test images chosen at random. The
classical procedure is Cohen et al. 2019: 100 draws choose the label, 100,000 bound it, at alpha
0.001. Its certified accuracy is computed from as many draws (fixed beforehand, kept between runs);
its time is 100,100 draws at the rate of the classical loop, which is measured between the others
in the same run.

    python benchmarks/deciding.py [--rounds 3] [--record docs/results/deciding.json]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pixeldp import Gaussian, PixelDP, certify, records
from pixeldp.metrics import certified_accuracy
from pixeldp.teams import device_named
from subjects import SIGMA, classical, mnist, trained_cnn

if TYPE_CHECKING:
    import torch

KEPT = Path("runs/benchmarks")
DRAWS, SELECTION, CONFIDENCE = 100_000, 100, 0.999
BATCH = 1000

# Eight thresholds up to two noise scales.
CURVE = tuple(SIGMA * k / 4 for k in range(1, 9))

TASKS: dict[str, dict[str, Any]] = {
    "one threshold, 0.5": {"target": 0.5},
    "eight thresholds": {"target": CURVE},
    "eight thresholds, at most 30,000 draws": {"target": CURVE, "draws": 30_000},
    "eight thresholds, beta-binomial": {"target": CURVE, "bound": "beta-binomial"},
}


def model_of(network: torch.nn.Module, precision: str) -> PixelDP:
    """Return the network with noise on its input."""
    noise = Gaussian(scale=SIGMA, norm=2)
    return PixelDP(network, noise, input_shape=(1, 28, 28), precision=precision).eval()


def reference(network: torch.nn.Module, x: torch.Tensor) -> dict[str, np.ndarray]:
    """Return the classical certificates, in float32; drawn once and kept.

    Fifty million draws: a minute on a large GPU, most of an hour on two cores.
    """
    path = KEPT / "classical.npz"
    if not path.is_file():
        device = device_named("auto")
        made = certify(
            model_of(network, "fp32").to(device),
            x.to(device),
            draws=DRAWS,
            selection=SELECTION,
            confidence=CONFIDENCE,
            seed=11,
        )
        np.savez(path, label=made.label, radius=made.radius, machine=records.machine())
        network.cpu()
    with np.load(path) as kept:
        return dict(kept)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--reference-only", action="store_true")
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    network = trained_cnn(KEPT / "mnist-cnn.pt")
    images, truth = mnist("test")
    chosen = np.random.default_rng(0).permutation(len(images))[: options.images]
    x, labels = images[chosen], truth[chosen].numpy()
    kept = reference(network, x)
    if options.reference_only:
        return
    seconds: dict[str, list[float]] = {name: [] for name in ("classical", *TASKS)}
    made: dict[str, Any] = {}
    for number in range(options.rounds):
        seconds["classical"].append(classical_seconds(network, x))
        for name, task in TASKS.items():
            began = time.perf_counter()
            made[name] = certify(
                model_of(network, "bf16"),
                x,
                **{"draws": DRAWS, "confidence": CONFIDENCE, **task},
                shared_noise=True,
                seed=number,
            )
            seconds[name].append(time.perf_counter() - began)
            print(f"{name}: {seconds[name][-1]:.2f} s", flush=True)
    numbers = {
        "images": len(x),
        "classical certificates drawn on": str(kept["machine"]),
        "classical seconds": round(float(np.median(seconds["classical"])), 1),
        **{name: row(made[name], labels, seconds, name, kept) for name in TASKS},
    }
    command = f"python benchmarks/deciding.py --rounds {options.rounds}"
    text = records.record(command=command, seed=0, numbers=numbers)
    if options.record:
        options.record.write_text(text, encoding="utf-8")
    print(text)


def classical_seconds(network: torch.nn.Module, x: torch.Tensor) -> float:
    """Return the seconds that the classical procedure takes for all inputs, from a few of them."""
    few, draws = x[:4], 10 * BATCH
    began = time.perf_counter()
    for one in few:
        classical(network, one[None], draws=draws, batch=BATCH, sigma=SIGMA)
    rate = len(few) * draws / (time.perf_counter() - began)
    print(f"classical: {rate:,.0f} draws a second", flush=True)
    return len(x) * (DRAWS + SELECTION) / rate


def row(
    made: Any,  # noqa: ANN401 - a Certification
    labels: np.ndarray,
    seconds: dict[str, list[float]],
    name: str,
    kept: dict[str, np.ndarray],
) -> dict[str, Any]:
    """Return what a task cost, and how its certified accuracy compares with the classical one."""
    targets = np.atleast_1d(TASKS[name]["target"])
    ours = certified_accuracy(made.label, made.radius, labels, targets)
    theirs = certified_accuracy(kept["label"], kept["radius"], labels, targets)
    times = np.array(seconds["classical"]) / np.array(seconds[name])
    return {
        "seconds": round(float(np.median(seconds[name])), 2),
        "times less than classical": round(float(np.median(times)), 1),
        "draws an input": round(float(made.scores.draws.mean()), 1),
        "median draws": float(np.median(made.scores.draws)),
        "targets": [round(float(target), 4) for target in targets],
        "certified accuracy": ours.round(4).tolist(),
        "classical": theirs.round(4).tolist(),
        "points below, at most": round(float(100 * (theirs - ours).max()), 2),
    }


if __name__ == "__main__":
    main()
