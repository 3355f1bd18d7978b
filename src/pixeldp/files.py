"""Files of a run: there whole or not at all, with numbers rounded to the safe side."""

from __future__ import annotations

import json
import math
import os
import tempfile
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pixeldp.errors import NotARun, RunCorrupt, RunInaccessible

if TYPE_CHECKING:
    from collections.abc import Iterable


def remove(folder: Path, *names: str) -> None:
    """Remove files that no longer say the truth, if they are there."""
    try:
        for name in names:
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise cannot("write to", folder, error) from error


def rounded_up(value: float, digits: int) -> str:
    """Return an upper bound for a file: rounding it down would claim too much."""
    return f"{Decimal(value).quantize(Decimal(1).scaleb(-digits), rounding=ROUND_CEILING):f}"


def rounded_down(value: float, digits: int = 6) -> str:
    """Return a radius for a file or a page: rounding it up would make a false certificate.

    >>> rounded_down(1.9999999)
    '1.999999'
    """
    if math.isinf(value):
        return "inf"
    return f"{Decimal(value).quantize(Decimal(1).scaleb(-digits), rounding=ROUND_FLOOR):f}"


def write_table(path: Path, columns: dict[str, Iterable[object]]) -> None:
    """Write a tab-separated table."""
    rows = zip(*columns.values(), strict=True)
    lines = ["\t".join(columns), *("\t".join(str(cell) for cell in row) for row in rows)]
    write(path, ("\n".join(lines) + "\n").encode())


def write(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all, whatever happens meanwhile."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).chmod(0o644)
            Path(temporary).replace(path)
        finally:
            Path(temporary).unlink(missing_ok=True)
    except OSError as error:
        raise cannot("write", path, error) from error


def read(path: Path) -> bytes:
    """Return what a file holds."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise cannot("read", path, error) from error


def cannot(verb: str, path: Path, error: OSError) -> RunInaccessible:
    """Return the refusal of what the operating system would not do."""
    return RunInaccessible(f"cannot {verb} {str(path)!r}: {error.strerror or error}")


def json_object(path: Path) -> dict[str, Any]:
    """Return what a JSON file of a run holds."""
    try:
        data = json.loads(read(path))
    except ValueError as error:
        raise RunCorrupt(
            f"{str(path)!r} is not readable JSON ({error}); it may be cut off"
        ) from error
    if not isinstance(data, dict):
        raise NotARun(f"{str(path)!r} is not part of a run")
    return data
