"""The command line. Exit status: 0 done, 1 failed, 2 misused."""

from __future__ import annotations

import sys

from pixeldp.cli import certifying, importing, showing, training
from pixeldp.cli.application import app
from pixeldp.cli.console import tell
from pixeldp.errors import PixelDPError

# What typer leaves with when the keyboard interrupts it.
_INTERRUPTED = 130

__all__ = ["app", "certifying", "importing", "main", "showing", "training"]


def main() -> None:
    """Run the command line; a refusal is one sentence on the error stream, never a traceback."""
    try:
        app()
    except SystemExit as stop:
        if stop.code == _INTERRUPTED:
            tell("pixeldp: interrupted; what certify has drawn is kept, the same command goes on")
        raise
    except PixelDPError as error:
        print(f"pixeldp: {error}", file=sys.stderr)  # noqa: T201 - must not be wrapped or coloured
        sys.exit(error.exit_status)
