"""The tables of docs/engine.md, from what the benchmarks of the engine kept.

python benchmarks/engine_page.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent.parent / "docs/results"

WAYS = (
    "fp32",
    "fp32, shared noise",
    "bf16",
    "bf16, shared noise",
    "bf16, shared noise, compiled",
)
PLACES = (
    "CNN, noise on the input",
    "CNN, noise after conv1",
    "residual, noise on the input",
    "residual, noise after conv1",
)
OTHERS = (
    "classical, 1000 at once",
    "classical, 200 at once",
    "ART, 32 at once",
    "ART, 500 at once",
)


def numbers(name: str) -> dict[str, Any]:
    """Return what a benchmark kept."""
    kept: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    found: dict[str, Any] = kept["numbers"]
    return found


def rows(*cells: tuple[object, ...]) -> str:
    """Return rows of a table."""
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in cells)


def rates() -> str:
    """Return draws a second, by network, place and way."""
    kept = numbers("engine")
    head = [("", *PLACES), ("---",) * 5]
    body = []
    for way in WAYS:
        made = [kept[place]["draws a second"][f"engine: {way}"] for place in PLACES]
        body.append((way, *(f"{value:,}" for value in made)))
    for other in OTHERS:
        made = [kept[place]["draws a second"].get(other) for place in PLACES]
        body.append((f"*{other}*", *("" if value is None else f"{value:,}" for value in made)))
    return rows(*head, *body)


def ratios() -> str:
    """Return the ratios within each round, by network, place and way."""
    kept = numbers("engine")
    columns = ("back alone", *OTHERS)
    head = [("network and noise", "engine", *(f"to {name}" for name in columns)), ("---",) * 7]
    body = []
    for place in PLACES:
        for way in WAYS:
            made = [kept[place]["ratios"].get(f"engine: {way} / {name}") for name in columns]
            if place.endswith("conv1"):
                made[1:] = []
            cells = ["" if value is None else f"{value:.2f}" for value in made]
            body.append((place, way, *cells, *[""] * (len(columns) - len(cells))))
    return rows(*head, *body)


def deciding() -> str:
    """Return what deciding radii costs."""
    kept = numbers("deciding")
    head = [
        (
            "asked",
            "seconds",
            "times less",
            "draws an image",
            "half of them at most",
            "points below",
        ),
        ("---",) * 6,
    ]
    body = [
        (
            name,
            row["seconds"],
            row["times less than classical"],
            f"{row['draws an input']:,.0f}",
            f"{row['median draws']:.0f}",
            row["points below, at most"],
        )
        for name, row in kept.items()
        if isinstance(row, dict)
    ]
    return rows(*head, *body)


def curve() -> str:
    """Return certified accuracy at the eight thresholds."""
    row = numbers("deciding")["eight thresholds"]
    percent = [
        [f"{100 * v:.1f}" for v in row[name]] for name in ("certified accuracy", "classical")
    ]
    return rows(
        ("T", *(f"{target:.4g}" for target in row["targets"])),
        ("---",) * 9,
        ("eight thresholds", *percent[0]),
        ("classical", *percent[1]),
    )


def memory() -> str:
    """Return the most memory, by draws and by inputs."""
    kept = numbers("memory")
    made = []
    for name, row in kept.items():
        made.append(rows((name, *row), ("---",) * (len(row) + 1), ("", *row.values())))
    return "\n\n".join(made)


def growth() -> str:
    """Return seconds, by what they grow with."""
    made = []
    for name, row in numbers("engine")["seconds"].items():
        made.append(rows((name, *row), ("---",) * (len(row) + 1), ("seconds", *row.values())))
    return "\n\n".join(made)


def gpu() -> str:
    """Return thousands of draws a second on a GPU."""
    kept = numbers("accelerator")["draws a second"]
    head = [("", *kept), ("---",) * (len(kept) + 1)]
    ways = list(next(iter(kept.values())))
    body = [(way, *(f"{row[way] / 1000:,.0f}" for row in kept.values())) for way in ways]
    return rows(*head, *body)


TABLES = {
    "rates": rates,
    "ratios": ratios,
    "deciding": deciding,
    "curve": curve,
    "memory": memory,
    "growth": growth,
    "gpu": gpu,
}

if __name__ == "__main__":
    for title, table in TABLES.items():
        print(f"{title}\n\n{table()}\n")
