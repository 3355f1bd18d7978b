"""The command line. Exit status: 0 done, 1 failed, 2 misused."""

from __future__ import annotations

import sys

from pixeldp.cli import certifying, showing, training
from pixeldp.cli.application import app
from pixeldp.errors import PixelDPError

__all__ = ["app", "certifying", "main", "showing", "training"]


def main() -> None:
    """Run the command line; a refusal is one sentence on the error stream, never a traceback."""
    try:
        app()
    except PixelDPError as error:
        print(f"pixeldp: {error}", file=sys.stderr)  # noqa: T201 - must not be wrapped or coloured
        sys.exit(error.exit_status)
