"""The field's fixed number of draws, 100,000 for one input: this engine and ART's certify.

The paper's network for MNIST, the same input, the same number of draws, interleaved. ART holds
all noisy copies of the input at once; its memory is in ``benchmarks/memory.py``.

    python benchmarks/against_art.py [--record docs/results/against-art.json]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from engine import art_rate, engine_rate
from pixeldp import Gaussian, PixelDP, records
from pixeldp.sampling import layout_for
from subjects import SIGMA, PaperCNN

DRAWS = 100_000
WAYS = ("fp32, shared noise", "bf16", "bf16, shared noise")
BATCHES = (32, 500)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    torch.manual_seed(1)
    network, x = PaperCNN().eval(), torch.rand(1, 1, 28, 28)
    found: dict[str, list[float]] = {}
    for number in range(options.rounds):
        for way in WAYS:
            precision = way.partition(",")[0]
            model = PixelDP(network, Gaussian(scale=SIGMA, norm=2), precision=precision).eval()
            layout = layout_for(model, x, draws=10**9)
            rate = engine_rate(model, x, layout, shared="shared" in way, draws=DRAWS)
            found.setdefault(f"engine: {way}", []).append(rate)
        for batch in BATCHES:
            rate = art_rate(network, x, batch=batch, draws=DRAWS)
            found.setdefault(f"ART, {batch} at once", []).append(rate)
        print(f"round {number + 1}: {[round(rates[-1]) for rates in found.values()]}", flush=True)
    numbers = {
        "draws a second": {way: round(float(np.median(rates))) for way, rates in found.items()},
        "ratios": {
            f"engine: {way} / ART, {batch} at once": round(
                float(
                    np.median(
                        np.array(found[f"engine: {way}"]) / np.array(found[f"ART, {batch} at once"])
                    )
                ),
                2,
            )
            for way in WAYS
            for batch in BATCHES
        },
    }
    command = f"python benchmarks/against_art.py --rounds {options.rounds}"
    text = records.record(command=command, seed=1, numbers=numbers)
    if options.record:
        options.record.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
