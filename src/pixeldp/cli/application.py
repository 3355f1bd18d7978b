"""The application that every command belongs to, and what several of them ask."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pixeldp._version import __version__
from pixeldp.cli.console import say

app = typer.Typer(
    name="pixeldp",
    help="Certified robustness: a radius with every prediction, inside which no input changes it.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

# The paper's usual (epsilon, delta), in which an attack size stands for a noise scale.
EPSILON, DELTA = 1.0, 0.05

Run = Annotated[Path, typer.Argument(help="A run folder.", show_default=False)]
Draws = Annotated[int, typer.Option(help="Noisy draws for each image; the most, if stopped.")]


def _version(asked: bool) -> None:  # noqa: FBT001 - how typer calls it
    if asked:
        say(f"pixeldp {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
