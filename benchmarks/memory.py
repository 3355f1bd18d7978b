"""How much memory a certification takes, as draws and inputs grow; and ART's beside it.

Each row is a process of its own, and its number the most memory that it ever held.

    python benchmarks/memory.py [--record docs/results/memory.json]
"""

from __future__ import annotations

import argparse
import importlib.util
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from pixeldp import Gaussian, PixelDP, certify, records
from subjects import SIGMA, PaperCNN

DRAWS = (100, 1000, 10_000, 100_000, 1_000_000)
INPUTS = (10, 100, 1000, 10_000)


def engine(inputs: int, draws: int) -> None:
    """Certify so many inputs with so many draws."""
    torch.manual_seed(1)
    model = PixelDP(PaperCNN().eval(), Gaussian(scale=SIGMA, norm=2), precision="bf16")
    images = torch.rand(1, 1, 28, 28).expand(inputs, -1, -1, -1)  # no memory of their own
    certify(model, images, draws=draws, seed=1)


def art(inputs: int, draws: int) -> None:
    """Let ART do the same."""
    from art.estimators.certification.randomized_smoothing import PyTorchRandomizedSmoothing

    smoothed = PyTorchRandomizedSmoothing(
        PaperCNN().eval(),
        loss=torch.nn.CrossEntropyLoss(),
        input_shape=(1, 28, 28),
        nb_classes=10,
        device_type="cpu",
        sample_size=100,
        scale=SIGMA,
        alpha=0.001,
    )
    smoothed.certify(torch.rand(inputs, 1, 28, 28).numpy(), n=draws, batch_size=500)


def megabytes(way: str, inputs: int, draws: int) -> int:
    """Return the most memory of a process that does it, in millions of bytes."""
    command = [sys.executable, "-W", "ignore", __file__, "--way", way, str(inputs), str(draws)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    print(f"{way}: {inputs} inputs, {draws} draws: {done.stdout.strip()} MB", flush=True)
    return int(done.stdout)


def main() -> None:
    """Measure and print; or, in a process of its own, do the work."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--way", choices=("engine", "art"))
    parser.add_argument("size", type=int, nargs="*")
    options = parser.parse_args()
    if options.way:
        {"engine": engine, "art": art}[options.way](*options.size)
        unit = 1 if sys.platform == "darwin" else 1024
        print(round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6))
        return
    numbers: dict[str, Any] = {
        "MB, one input, by draws": {str(n): megabytes("engine", 1, n) for n in DRAWS},
        "MB, 100 draws each, by inputs": {str(n): megabytes("engine", n, 100) for n in INPUTS},
    }
    if importlib.util.find_spec("art") is not None:
        numbers["MB, ART, one input, by draws"] = {
            str(n): megabytes("art", 1, n) for n in DRAWS[:-1]
        }
    text = records.record(command="python benchmarks/memory.py", seed=1, numbers=numbers)
    if options.record:
        options.record.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
