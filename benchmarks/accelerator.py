"""The engine on a GPU: draws a second, and what deciding eight thresholds takes.

python benchmarks/accelerator.py [--record docs/results/accelerator.json]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from deciding import CONFIDENCE, CURVE, DRAWS, KEPT, model_of
from engine import back_rate, engine_rate
from pixeldp import Gaussian, PixelDP, certify, records
from pixeldp.sampling import layout_for
from pixeldp.teams import device_named
from subjects import SIGMA, PaperCNN, mnist, small_resnet, trained_cnn


def rates(network: torch.nn.Module, shape: tuple[int, ...], rounds: int) -> dict[str, int]:
    """Return draws a second in each precision, and of the back alone."""
    device = device_named("auto")
    x = torch.rand(20, *shape, device=device)
    found: dict[str, list[float]] = {}
    for precision in ("fp32", "bf16"):
        noise = Gaussian(scale=SIGMA, norm=2)
        model = PixelDP(network, noise, precision=precision).to(device).eval()
        layout = layout_for(model, x, draws=10**9)
        for _ in range(rounds):
            for shared in (False, True):
                way = f"{precision}{', shared noise' if shared else ''}"
                rate = engine_rate(model, x, layout, shared=shared, draws=20_000)
                found.setdefault(way, []).append(rate)
            alone = back_rate(model, x, layout, draws=400_000)
            found.setdefault(f"back alone: {precision}", []).append(alone)
    return {way: round(float(np.median(values))) for way, values in found.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    numbers: dict[str, Any] = {
        "draws a second": {
            "CNN": rates(PaperCNN(), (1, 28, 28), options.rounds),
            "residual": rates(small_resnet(), (3, 32, 32), options.rounds),
        }
    }
    device = device_named("auto")
    images, _ = mnist("test")
    chosen = np.random.default_rng(0).permutation(len(images))[:500]
    model = model_of(trained_cnn(KEPT / "mnist-cnn.pt"), "bf16").to(device)
    seconds = []
    for number in range(options.rounds):
        began = time.perf_counter()
        made = certify(
            model,
            images[chosen].to(device),
            draws=DRAWS,
            confidence=CONFIDENCE,
            target=CURVE,
            shared_noise=True,
            seed=number,
        )
        seconds.append(time.perf_counter() - began)
    numbers["eight thresholds, 500 images"] = {
        "seconds": round(float(np.median(seconds)), 2),
        "draws an input": round(float(made.scores.draws.mean()), 1),
    }
    command = f"python benchmarks/accelerator.py --rounds {options.rounds}"
    text = records.record(command=command, seed=0, numbers=numbers)
    if options.record:
        options.record.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
