"""What certificates and bounds cost, next to the cheapest of each in the same run.

Certificates turn pairs (lower, upper) into radii; each is stated in units of the tight closed form
for Gaussian noise on as many pairs, with the exponent of its growth over three sizes: 1 is linear.
Bounds are those of 10,000 inputs with 10 labels and 1000 argmax draws, in units of Hoeffding's.
Contestants take turns, and what counts is the fastest of the rounds.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from pixeldp import Gaussian, Laplace, certified_radius, confidence_bounds
from pixeldp.bounds.methods import METHODS
from pixeldp.certificates import CERTIFICATES
from pixeldp.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from pixeldp.mechanisms import Mechanism

    Array = npt.NDArray[np.float64]

SEED = 1
SIZES = (62_500, 250_000, 1_000_000)
NOISES: tuple[Mechanism, ...] = (Gaussian(scale=1, norm=2), Laplace(scale=1, norm=1))
REFERENCE = "gaussian tight"

INPUTS, LABELS, DRAWS = 10_000, 10, 1000


def pairs(size: int) -> tuple[Array, Array]:
    """Return leading lower bounds with upper bounds below what they leave."""
    rng = np.random.default_rng(SEED)
    lower = rng.uniform(0.5, 1, size)
    return lower, rng.uniform(0, 1, size) * (1 - lower)


def certificates(sizes: tuple[int, ...]) -> Iterator[tuple[str, int, Callable[[], object]]]:
    """Yield the name, the size and the work of each contestant."""
    for size in sizes:
        lower, upper = pairs(size)
        for noise in NOISES:
            for name in CERTIFICATES:

                def work(
                    low: Array = lower, up: Array = upper, z: Mechanism = noise, by: str = name
                ) -> object:
                    return certified_radius(low, up, z, certificate=by)

                yield f"{noise.name} {name}", size, work


def bounds(inputs: int) -> Iterator[tuple[str, int, Callable[[], object]]]:
    """Yield the same for the bounds, on counts that argmax draws may leave."""
    rng = np.random.default_rng(SEED)
    counts = np.stack([rng.multinomial(DRAWS, p) for p in rng.dirichlet(np.ones(LABELS), inputs)])
    for method in METHODS:

        def work(by: str = method) -> object:
            return confidence_bounds(counts, DRAWS, method=by)

        yield method, inputs, work


def measure(
    contestants: list[tuple[str, int, Callable[[], object]]], rounds: int
) -> dict[tuple[str, int], float]:
    """Return the seconds of each, the least over rounds in which all take turns."""
    seconds: dict[tuple[str, int], float] = {}
    for _ in range(rounds):
        for name, size, work in contestants:
            began = time.perf_counter()
            work()
            took = time.perf_counter() - began
            seconds[name, size] = min(took, seconds.get((name, size), np.inf))
    return seconds


def exponent(seconds: dict[int, float]) -> float:
    """Return the slope of ln(seconds) against ln(size)."""
    sizes, times = np.log(list(seconds)), np.log(list(seconds.values()))
    return float(np.polyfit(sizes, times, 1)[0])


def summary(rounds: int, sizes: tuple[int, ...], inputs: int) -> dict[str, Any]:
    """Measure everything and return it as ratios, exponents and, at the largest size, seconds."""
    by_size = measure(list(certificates(sizes)), rounds)
    most = max(sizes)
    radii = {
        name: {
            "seconds": round(by_size[name, most], 3),
            f"/ {REFERENCE}": round(by_size[name, most] / by_size[REFERENCE, most], 2),
            "growth": round(exponent({size: by_size[name, size] for size in sizes}), 2),
        }
        for name in dict.fromkeys(name for name, _ in by_size)
    }
    by_method = measure(list(bounds(inputs)), rounds)
    cheapest = by_method["hoeffding", inputs]
    intervals = {
        name: {"seconds": round(took, 3), "/ hoeffding": round(took / cheapest, 1)}
        for (name, _), took in by_method.items()
    }
    return {
        f"radii of {most:,} pairs": radii,
        f"bounds of {inputs:,} inputs, {LABELS} labels": intervals,
    }


def main() -> None:
    """Measure and print; with --json, as one object that can be kept."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shrink", type=int, default=1, help="divide all sizes by this")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sizes = tuple(size // options.shrink for size in SIZES)
    numbers = summary(options.rounds, sizes, INPUTS // options.shrink)
    if options.json:
        shrink = f" --shrink {options.shrink}" if options.shrink > 1 else ""
        command = f"python benchmarks/mathematics.py --rounds {options.rounds}{shrink} --json"
        print(record(command=command, seed=SEED, numbers=numbers), end="")
        return
    for title, rows in numbers.items():
        print(title)
        for name, row in rows.items():
            print(f"  {name:18}", "  ".join(f"{key} {value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
