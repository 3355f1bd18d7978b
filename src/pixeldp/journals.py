"""What a process has drawn, kept input by input as it goes: an append-only file that survives.

One line an input: a checksum, and what was drawn of it as JSON. A line is written by one call and
is there as soon as the input is done, so that a process killed at any moment loses no more than
the inputs under way. What a power cut may take besides is the last quarter of a second, since
telling the disk to write after every line would cost more than many inputs do.

A line that was cut off can only be at the end; it is dropped, and its input is drawn again. Damage
anywhere else, or a file that belongs to another plan, is refused: nothing is ever mixed.
"""

from __future__ import annotations

import base64
import json
import os
import time
import zlib
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from pixeldp.errors import RunCorrupt
from pixeldp.files import cannot
from pixeldp.scores import Drawn
from pixeldp.sketches import PLACES

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from types import TracebackType

    import numpy.typing as npt

_FORMAT, _VERSION = "pixeldp-journal", 1

# At most so many seconds of work are not yet on the disk.
_UNWRITTEN_SECONDS = 0.25


class Journal:
    """A journal that is being written; ``known`` is what it held already.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "journal-0.jsonl"
    >>> with Journal(path, plan="abc") as journal:
    ...     journal.append(Drawn.nothing(7, labels=3, label=1))
    >>> list(read_journal(path, plan="abc"))
    [7]
    """

    def __init__(self, path: Path, *, plan: str) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise cannot("write", path, error) from error
        try:
            self.known, self._size = _parsed(path, plan)
            os.ftruncate(self._file, self._size)  # without the line that was cut off
            if not self._size:
                self._write(_line({"format": _FORMAT, "version": _VERSION, "plan": plan}))
        except BaseException:
            os.close(self._file)
            raise
        self._synced = time.monotonic()

    def append(self, drawn: Drawn) -> None:
        """Keep what was drawn of one input."""
        self._write(_line(_as_json(drawn)))
        if time.monotonic() - self._synced > _UNWRITTEN_SECONDS:
            self._sync()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._sync()
        finally:
            os.close(self._file)

    def _write(self, line: bytes) -> None:
        try:
            written = os.write(self._file, line)
            if written != len(line):
                raise OSError(28, "No space left on device")
        except OSError as error:
            # Half a line would be dropped when it is read, but why leave it there.
            os.ftruncate(self._file, self._size)
            raise cannot("write", self.path, error) from error
        self._size += written

    def _sync(self) -> None:
        try:
            os.fsync(self._file)
        except OSError as error:
            raise cannot("write", self.path, error) from error
        self._synced = time.monotonic()


def read_journal(path: Path, *, plan: str) -> dict[int, Drawn]:
    """Return what a journal of that plan holds, by the numbers of the inputs."""
    return _parsed(path, plan)[0]


def merged(parts: Iterable[dict[int, Drawn]]) -> dict[int, Drawn]:
    """Put together what several processes have drawn; the same input twice must be the same."""
    together: dict[int, Drawn] = {}
    for part in parts:
        for number, drawn in part.items():
            other = together.setdefault(number, drawn)
            if other is not drawn and _deterministic(other) != _deterministic(drawn):
                raise RunCorrupt(
                    f"two journals hold input {number} with different scores, so they were not "
                    "drawn by the same plan on machines of one kind; draw again with --restart"
                )
    return together


def packed(array: npt.NDArray[Any]) -> str:
    """Return an array of numbers as text: all bits, compressed."""
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return base64.b64encode(zlib.compress(little.tobytes(), 1)).decode("ascii")


def unpacked(text: str, kind: str) -> npt.NDArray[Any]:
    """Return the array that ``packed`` made text of."""
    content = zlib.decompress(base64.b64decode(text, validate=True))
    return np.frombuffer(content, dtype=kind).astype(kind.lstrip("<"))


def _as_json(drawn: Drawn) -> dict[str, Any]:
    return {
        "number": drawn.number,
        "label": drawn.label,
        "draws": drawn.draws,
        "seconds": drawn.seconds,
        "proved": drawn.proved,
        "counts": packed(drawn.counts),
        "sums": packed(drawn.sums),
        "squares": packed(drawn.squares),
        "sketch": None if drawn.sketch is None else packed(drawn.sketch),
    }


def _from_json(data: dict[str, Any]) -> Drawn:
    sketch = data["sketch"]
    return Drawn(
        number=int(data["number"]),
        label=None if data["label"] is None else int(data["label"]),
        draws=int(data["draws"]),
        seconds=float(data["seconds"]),
        proved=float(data["proved"]),
        counts=unpacked(data["counts"], "<i8"),
        sums=unpacked(data["sums"], "<f8"),
        squares=unpacked(data["squares"], "<f8"),
        sketch=None if sketch is None else unpacked(sketch, "<f8").reshape(-1, len(PLACES)),
    )


def _deterministic(drawn: Drawn) -> dict[str, Any]:
    return {**_as_json(drawn), "seconds": 0}


def _line(data: dict[str, Any]) -> bytes:
    text = json.dumps(data, separators=(",", ":"))
    return f"{zlib.crc32(text.encode()):08x} {text}\n".encode()


def _data_of(line: bytes) -> dict[str, Any] | None:
    """Return what a line says, or None if its checksum does not fit."""
    checksum, _, text = line.partition(b" ")
    if checksum != f"{zlib.crc32(text):08x}".encode():
        return None
    data = json.loads(text)
    return data if isinstance(data, dict) else None


def _parsed(path: Path, plan: str) -> tuple[dict[int, Drawn], int]:
    """Return what the journal holds, and the number of bytes up to where it is whole."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise cannot("read", path, error) from error
    lines = content.split(b"\n")
    said = [_data_of(line) for line in lines[:-1]]  # what follows the last end of line is cut off
    while said and said[-1] is None:
        said.pop()
    if None in said:
        raise RunCorrupt(
            f"line {said.index(None) + 1} of {str(path)!r} is damaged, and whole lines follow it; "
            "restore the file, or draw again with --restart"
        )
    whole = [data for data in said if data is not None]
    if whole:
        _check_header(whole[0], path, plan)
    try:
        drawn = merged({one.number: one} for one in map(_from_json, whole[1:]))
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise RunCorrupt(
            f"{str(path)!r} holds a line that is no record of an input ({error}); draw again with "
            "--restart"
        ) from error
    return drawn, sum(len(line) + 1 for line in lines[: len(said)])


def _check_header(data: dict[str, Any], path: Path, plan: str) -> None:
    if data.get("format") != _FORMAT or data.get("version") != _VERSION:
        raise RunCorrupt(
            f"{str(path)!r} is not a journal that this version reads; draw again with --restart"
        )
    if data.get("plan") != plan:
        raise RunCorrupt(
            f"{str(path)!r} was drawn by another plan than the run's, and draws of two plans are "
            "never mixed; draw again with --restart"
        )
