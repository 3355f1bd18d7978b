"""Draw the pictures of these pages and keep their numbers: python docs/figures/make_figures.py."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np

from pixeldp import Gaussian, Laplace, certified_radius
from pixeldp.bounds import Spending, spend
from pixeldp.bounds.sums import Sums
from pixeldp.records import record
from pixeldp.sketches import PLACES, sketch_of

mpl.use("Agg")
import matplotlib.pyplot as plt

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from pixeldp.mechanisms import Mechanism

    Array = np.ndarray[Any, np.dtype[np.float64]]

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
COMMAND = "python docs/figures/make_figures.py"
SEED = 1

# Okabe and Ito's colours, told apart by the colour-blind; and a dash pattern for each.
BLACK, ORANGE, SKY, GREEN, BLUE, RED = (
    "#000000",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#0072B2",
    "#D55E00",
)

FIXED_DELTA = 0.05
CURVES: dict[str, tuple[str, str]] = {
    "tight": (BLACK, "-"),
    "renyi": (SKY, "--"),
    "analytic": (BLUE, "-."),
    "dp": (RED, "-"),
    f"dp, δ = {FIXED_DELTA}": (ORANGE, ":"),
}

METHODS: dict[str, tuple[str, str]] = {
    "hoeffding": (BLACK, ":"),
    "bernstein": (ORANGE, "--"),
    "betting": (BLUE, "-"),
    "beta-binomial": (GREEN, "-."),
    "clopper-pearson": (RED, "-"),
}

# What one label may fail with at confidence 0.95 over 10 labels, both sides together.
SPENDING = Spending(alpha=0.05, plan="union", labels=10)
SEQUENCES, MOST_DRAWS = 8, 2_000_000


def radii(lower: Array, noise: Mechanism) -> dict[str, Array]:
    """Return the radius under each certificate, against everything the label leaves."""
    made = {
        name: certified_radius(lower, 1 - lower, noise, certificate=name)
        for name in ("tight", "renyi", "analytic", "dp")
    }
    if noise.name == Gaussian.name:
        made[f"dp, δ = {FIXED_DELTA}"] = certified_radius(
            lower, 1 - lower, noise, certificate="dp", delta=FIXED_DELTA
        )
    return made


def radius_picture() -> dict[str, Any]:
    """Draw radius against score, and return the table of the page."""
    misses = np.geomspace(0.5, 1e-4, 400)[1:]
    shown = np.array([0.6, 0.8, 0.9, 0.99, 0.999])
    table: dict[str, Any] = {"score": shown.tolist()}
    figure, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    for axis, noise in zip(
        axes, (Gaussian(scale=1, norm=2), Laplace(scale=1, norm=1)), strict=True
    ):
        for name, values in radii(1 - misses, noise).items():
            colour, dashes = CURVES[name]
            # Some curves coincide: the broken ones lie above the unbroken.
            order = 2 if dashes == "-" else 3
            axis.plot(misses, values, dashes, color=colour, label=name, linewidth=2, zorder=order)
        ticks = [0.5, 0.8, 0.9, 0.99, 0.999, 0.9999]
        axis.set_xscale("log")
        axis.set_xticks([1 - tick for tick in ticks], [f"{tick:g}" for tick in ticks])
        axis.minorticks_off()
        axis.set_xlim(0.5, 1e-4)
        axis.set_ylim(0)
        axis.set_title(f"{noise.name}, {noise.norm:g}-norm")
        axis.set_xlabel("lower bound lo on the label's expected score (up = 1 − lo)")
        axis.set_ylabel("radius, in units of scale / Δ")
        axis.grid(color="0.9")
        axis.legend(frameon=False)
        table[noise.name] = {
            name: [round(float(value), 3) for value in values]
            for name, values in radii(shown, noise).items()
        }
    figure.savefig(HERE / "radius.png", dpi=110)
    return table


def widths(sums: Sums, methods: tuple[str, ...]) -> dict[str, float]:
    """Return the mean width of the intervals under each method."""
    made = {}
    for method in methods:
        lower, upper = spend(sums, SPENDING, method=method)
        made[method] = float((upper - lower).mean())
    return made


def soft_widths(numbers: list[int]) -> dict[str, list[float]]:
    """Return widths for scores from Beta(50, 2), growing each sequence from n to n."""
    rng = np.random.default_rng(SEED)
    totals, squares = np.zeros((1, SEQUENCES)), np.zeros((1, SEQUENCES))
    sketch = np.zeros((1, SEQUENCES, len(PLACES)))
    made: dict[str, list[float]] = {}
    for before, number in zip([0, *numbers], numbers, strict=False):
        scores = rng.beta(50, 2, size=(number - before, SEQUENCES))
        totals = totals + scores.sum(axis=0)
        squares = squares + (scores**2).sum(axis=0)
        sketch = sketch + sketch_of(scores)
        draws = np.full((1, 1), float(number))
        sums = Sums(totals=totals, draws=draws, squares=squares, sketch=sketch)
        for name, width in widths(sums, ("hoeffding", "bernstein", "betting")).items():
            made.setdefault(name, []).append(width)
    return made


def variances() -> dict[str, float]:
    """Return the variance of a score from Beta(50, 2), and that on the places of a sketch."""
    scores = np.random.default_rng(SEED).beta(50, 2, size=1_000_000)
    shares = sketch_of(scores) / len(scores)
    spread = float(shares @ PLACES**2 - (shares @ PLACES) ** 2)
    return {"scores": float(f"{scores.var():.3g}"), "sketch": float(f"{spread:.3g}")}


def count_widths(numbers: list[int], probability: float) -> dict[str, list[float]]:
    """Return widths for counts of a label that is drawn with that probability."""
    rng = np.random.default_rng(SEED)
    counts = np.zeros((1, SEQUENCES))
    made: dict[str, list[float]] = {}
    for before, number in zip([0, *numbers], numbers, strict=False):
        counts = counts + rng.binomial(number - before, probability, size=SEQUENCES)
        draws = np.full((1, 1), float(number))
        sums = Sums(totals=counts, draws=draws)
        for name, width in widths(sums, tuple(METHODS)).items():
            made.setdefault(name, []).append(width)
    return made


def below_from(numbers: list[int], first: list[float], second: list[float]) -> int | None:
    """Return the least n of the grid from which on the first width stays below the second."""
    above = [n for n, one, two in zip(numbers, first, second, strict=True) if one >= two]
    later = [n for n in numbers if not above or n > above[-1]]
    return later[0] if later else None


def below_until(numbers: list[int], first: list[float], second: list[float]) -> int | None:
    """Return the last n of the grid at which the first width is below the second."""
    below = [n for n, one, two in zip(numbers, first, second, strict=True) if one < two]
    return below[-1] if below else None


def width_picture() -> dict[str, Any]:
    """Draw widths against n for soft scores and for counts, and return where they cross."""
    numbers = np.unique(np.rint(np.geomspace(10, MOST_DRAWS, 160))).astype(int).tolist()
    kept: dict[str, Any] = {"level of one label": SPENDING.level}
    kept["variance of Beta(50, 2)"] = variances()
    figure, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained", sharey=True)
    panels = {
        "soft scores from Beta(50, 2)": soft_widths(numbers),
        "argmax counts, probability 0.95": count_widths(numbers, 0.95),
        "argmax counts, probability 0.5": count_widths(numbers, 0.5),
    }
    for title, made in panels.items():
        kept[title] = crossings(numbers, made) | {
            f"width at n = {goal}": {
                name: float(f"{np.interp(np.log(goal), np.log(numbers), values):.3g}")
                for name, values in made.items()
            }
            for goal in (20, 100, 1000, 10_000, 100_000, 1_000_000)
        }
    for axis, (title, made) in zip(axes, panels.items(), strict=False):  # the third is not drawn
        draw_widths(axis, title, numbers, made)
    axes[0].set_ylabel("width of the interval, upper − lower")
    figure.savefig(HERE / "widths.png", dpi=110)
    return kept


def crossings(numbers: list[int], made: dict[str, list[float]]) -> dict[str, Any]:
    """Return where the widths cross; None where they do not."""
    return {
        "bernstein below hoeffding from n": below_from(
            numbers, made["bernstein"], made["hoeffding"]
        ),
        "betting below hoeffding from n": below_from(numbers, made["betting"], made["hoeffding"]),
        "betting below bernstein until n": below_until(numbers, made["betting"], made["bernstein"]),
    }


def draw_widths(axis: Axes, title: str, numbers: list[int], made: dict[str, list[float]]) -> None:
    """Draw one panel, and mark where empirical Bernstein passes Hoeffding."""
    for name, values in made.items():
        colour, dashes = METHODS[name]
        axis.loglog(numbers, values, dashes, color=colour, label=name, linewidth=2)
    crossing = below_from(numbers, made["bernstein"], made["hoeffding"])
    if crossing is not None:
        axis.axvline(crossing, color="0.6", linewidth=1)
        axis.annotate(
            f" bernstein passes hoeffding, n ≈ {float(f'{crossing:.2g}'):g}",
            (crossing, 1.0),
            va="bottom",
            color="0.3",
        )
    axis.set_title(title)
    axis.set_xlabel("draws n")
    axis.set_ylim(1e-4, 1.6)
    axis.grid(color="0.9")
    axis.legend(frameon=False, loc="lower left")


def main() -> None:
    """Write both pictures and both files of numbers."""
    for name, numbers in (("radii", radius_picture()), ("widths", width_picture())):
        text = record(command=COMMAND, seed=SEED if name == "widths" else None, numbers=numbers)
        (RESULTS / f"{name}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
