"""``pixeldp import``: what other code has certified."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated

import numpy as np
import typer
from rich.table import Table

from pixeldp import files, logs
from pixeldp.cli.application import app
from pixeldp.cli.console import out, say, tell
from pixeldp.runs import CERTIFICATES

# The table shows these shares of the largest radius that is there.
_SHARES = np.linspace(0, 1, 9)[:-1]


@app.command(
    name="import",
    epilog="Example: pixeldp import cohen.tsv --sigma 0.25 --alpha 0.001 --draws 100000 "
    "--out runs/cohen",
)
def import_log(
    log: Annotated[Path, typer.Argument(help="A certification log.", show_default=False)],
    sigma: Annotated[
        float, typer.Option(help="The standard deviation of its noise.", show_default=False)
    ],
    out_folder: Annotated[
        Path, typer.Option("--out", help="A new folder for the import.", show_default=False)
    ],
    alpha: Annotated[float, typer.Option(help="What each certificate may fail with.")] = 0.001,
    draws: Annotated[int, typer.Option(help="Draws for each input.")] = 100_000,
    at: Annotated[
        list[float] | None, typer.Option(help="Show certified accuracy at this radius.")
    ] = None,
    overwrite: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--overwrite", help="Replace an earlier import in the folder.")
    ] = False,
) -> None:
    """Import a log of randomized smoothing: radii rounded down, what looks wrong told."""
    found = logs.read_log(log, sigma=sigma, alpha=alpha, draws=draws)
    folder = logs.write_import(found, out_folder, overwrite=overwrite)
    sizes = np.array(at or _SHARES * found.radius.max())
    table = Table(title=f"{found.source}: certified accuracy at T", title_justify="left")
    table.add_column("T =")
    for size in sizes:
        table.add_column(files.rounded_down(float(size), 3), justify="right")
    shares = (f"{100 * share:.1f} %" for share in found.certified_accuracy(sizes))
    table.add_row("as imported", *shares)
    out.print(table)
    say(f"{len(found.idx)} inputs, {int(found.abstained.sum())} abstentions (counted as wrong)")
    for note in found.notes:
        tell(f"note: {note}")
    say(f"certificates: {folder / CERTIFICATES}")
