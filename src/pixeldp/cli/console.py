"""What the commands print: results, and how far the work is."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pixeldp.report import Results
    from pixeldp.workflow import Predictions

out = Console()
err = Console(stderr=True)

# Lines of progress where there is no terminal to draw a bar on.
_LINES = 5

# Where the work takes long, a line after so many seconds at least.
_SECONDS = 30


def say(text: str) -> None:
    """Print a line as it is: not wrapped, not coloured."""
    out.print(text, soft_wrap=True, highlight=False, markup=False)


def tell(text: str) -> None:
    """Print a remark beside the results: on the error stream, as it is."""
    err.print(text, soft_wrap=True, highlight=False, markup=False)


def print_results(results: Results) -> None:
    """Print certified accuracy by threshold, and what the numbers depend on."""
    table = Table(title=f"{results.title}: certified accuracy at T", title_justify="left")
    table.add_column("T =")
    for size in results.thresholds():
        table.add_column(f"{size:g}", justify="right")
    for name, values in results.certified().items():
        table.add_row(name, *(f"{100 * value:.1f} %" for value in values))
    out.print(table)
    facts = Table(show_header=False, box=None)
    for name, value in results.facts():
        facts.add_row(name, value)
    out.print(facts)


def print_prediction(made: Predictions) -> None:
    """Print what was predicted, and with how many draws."""
    facts = Table(show_header=False, box=None)
    for name, value in made.facts():
        facts.add_row(name, value)
    out.print(facts)


@contextmanager
def progress(what: str, total: int, unit: str) -> Iterator[Callable[..., None]]:
    """Show how far the work is: a bar on a terminal, a few lines elsewhere."""
    if not err.is_terminal:
        yield _line_progress(what, total, unit)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=err) as bars:
        task = bars.add_task(what, total=total, note="")

        def advance(done: int, note: str = "", total: int = total) -> None:
            bars.update(task, completed=done, note=note, total=total)

        yield advance


def _line_progress(what: str, total: int, unit: str) -> Callable[..., None]:
    """Print a line for each fifth of the work, and one now and then if that takes long."""
    began = told = time.monotonic()
    shown, first = 0, -1

    def advance(done: int, note: str = "", total: int = total) -> None:
        nonlocal shown, told, first
        if first < 0:
            first = done if not note else 0
        now = time.monotonic()
        if done * _LINES // total <= shown and done < total and now - told < _SECONDS:
            return
        if done == first:
            return
        shown, told = done * _LINES // total, now
        seconds = now - began
        left = seconds / (done - first) * (total - done)
        parts = [f"{what}: {done} of {total} {unit}", f"{seconds:.0f} s", note]
        if left >= _SECONDS:
            parts.append(f"{left:.0f} s left")
        print(", ".join(part for part in parts if part), file=sys.stderr, flush=True)  # noqa: T201

    return advance
