"""Certification logs of the field, imported: their radii rounded down, their alpha checked.

The code of Cohen et al., "Certified Adversarial Robustness via Randomized Smoothing" (ICML 2019),
and what descends from it, write one line an input, separated by tabs::

    idx  label  predict  radius  correct  time

``predict`` is −1 for an abstention; the radius is rounded to the nearest number of three digits,
so half of the printed radii are larger than the certified ones; whether ``correct`` is a verdict
on the line or a running count differs from code to code; the noise, the number of draws and the
failure probability are not in the file. An import is a folder::

    certificates.tsv   the table, radii rounded down, with the columns that our tables begin with
    import.json        where it came from, what it was said to be made with, what was noticed
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
import re
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from scipy import special

from pixeldp import metrics, runs
from pixeldp._checks import open_unit, positive, whole
from pixeldp._version import __version__
from pixeldp.errors import (
    NotARun,
    RunCorrupt,
    RunExists,
    RunInaccessible,
    RunMissing,
    RunTooNew,
    TooFewDraws,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    Array = npt.NDArray[np.float64]
    Whole = npt.NDArray[np.int64]
    Truth = npt.NDArray[np.bool_]

FORMAT_VERSION = 1

IMPORT = "import.json"

COLUMNS = ("idx", "label", "predict", "radius", "correct", "time")

# The seventh column of a table that pixeldp wrote; the tables of the field end before it.
_OUR_NEXT = "top"

ABSTAINED = -1

# Our tables have radii rounded down to so many decimals.
_DECIMALS = 6

# What the format of the field, {:.3}, leaves of a radius; it leaves out zeros at the end.
_DIGITS = 3

# Beyond this the columns are surely mixed up, and six decimals no longer fit a double.
_MOST = 10**9

_WHOLE = re.compile(r"-?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_SPAN = re.compile(r"(?:([0-9]{1,9}) days?, )?([0-9]{1,9}):([0-5][0-9]):([0-5][0-9](?:\.[0-9]+)?)")
_TRUTHS = {"True": "1", "False": "0"}

# Room for the rounding of the special functions, so that a radius at the limit is not above it.
_ROOM = 1e-9

# A remedy beyond these is none.
_MOST_ALPHA, _MOST_DRAWS = 0.5, 10**12

# Of the normal distribution function, with room.
_ROUNDING = 1e-15

# Characters of a cell or a line that a message shows.
_SHOWN = 60


@dataclass(frozen=True, eq=False, kw_only=True)
class Log:
    """A certification log: one entry an input, with what it was said to be made with.

    Attributes
    ----------
    idx, label, predict:
        ``[N]``; ``predict`` is −1 for an abstention.
    radius:
        ``[N]``: in the 2-norm, at most what was certified; 0 for an abstention.
    seconds:
        ``[N]``: the column ``time``.
    sigma, alpha, draws:
        The noise, the failure probability for each input, and the number of draws, as stated.
    notes:
        What a reader must know: each a sentence.
    source, sha256:
        Name, without folders, and digest of the file.
    ours:
        Whether pixeldp wrote the table: then its radii were rounded down already.
    """

    idx: Whole
    label: Whole
    predict: Whole
    radius: Array
    seconds: Array
    sigma: float
    alpha: float
    draws: int
    notes: tuple[str, ...]
    source: str
    sha256: str
    ours: bool = False

    @property
    def abstained(self) -> Truth:
        """Where nothing was predicted."""
        return self.predict == ABSTAINED

    @property
    def correct(self) -> Truth:
        """Where the prediction is the label; an abstention never is."""
        return self.predict == self.label

    def conventional_accuracy(self) -> float:
        """Return the fraction that is right, an abstention counted as wrong, as the field does."""
        return metrics.conventional_accuracy(self.predict, self.label)

    def certified_accuracy(self, thresholds: npt.ArrayLike) -> Array:
        """Return, for each threshold T, the fraction that is right and has ``radius ≥ T``."""
        return metrics.certified_accuracy(self.predict, self.radius, self.label, thresholds)

    def average_certified_radius(self) -> float:
        """Return the mean radius, counting 0 where the prediction is wrong or missing."""
        return metrics.average_certified_radius(self.predict, self.radius, self.label)


class ImportRecord(BaseModel):
    """``import.json``: where a table came from and what it was said to be made with."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    format: Literal["pixeldp-import"] = "pixeldp-import"
    version: int = FORMAT_VERSION
    source: str
    sha256: str
    sigma: Annotated[float, Field(gt=0)]
    alpha: Annotated[float, Field(gt=0, lt=1)]
    draws: Annotated[int, Field(ge=1)]
    rows: int
    abstained: int
    ours: bool
    notes: tuple[str, ...]
    certificates_sha256: str
    versions: dict[str, str]


def read_log(
    path: str | os.PathLike[str], *, sigma: float, alpha: float = 0.001, draws: int = 100_000
) -> Log:
    """Return a certification log, its radii rounded down, with notes on what looks wrong.

    ``sigma``, ``alpha`` and ``draws`` are not in the file; the defaults are those of its authors'
    code. Radii that cannot come from them give a note.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "sigma_0.50"
    >>> head = "idx label predict radius correct time"
    >>> lines = (head, "0 3 3 1.76 1 0:00:15.4", "20 7 -1 0.0 0 0:00:15.6")
    >>> _ = file.write_text("".join(line.replace(" ", "\\t") + "\\n" for line in lines))
    >>> log = read_log(file, sigma=0.5)
    >>> log.radius, log.conventional_accuracy(), log.notes
    (array([1.755, 0.   ]), 0.5, ())

    Raises
    ------
    PixelDPError
        A sentence with file, line, column and value, where anything in the log is in doubt.
    """
    _check_settings(sigma=sigma, alpha=alpha, draws=draws)
    file = Path(path)
    content = _content(file, "certification log")
    header, rows = _table(content, str(file))
    ours = header[len(COLUMNS) : len(COLUMNS) + 1] == [_OUR_NEXT]
    radii = lowered([row.radius for row in rows], ours=ours)
    return Log(
        **_arrays(rows, radii),
        sigma=float(sigma),
        alpha=float(alpha),
        draws=int(draws),
        notes=(
            *_note_limit(rows, radii, sigma=sigma, alpha=alpha, draws=draws),
            *_note_correct(rows),
            *_note_columns(header),
        ),
        source=file.name,
        sha256=hashlib.sha256(content).hexdigest(),
        ours=ours,
    )


def write_import(log: Log, folder: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write an import folder; ``import.json`` comes last, so without it the rest is unfinished."""
    root = Path(folder)
    _check_may_write(root, overwrite=overwrite)
    runs.remove(root, IMPORT, runs.CERTIFICATES)
    runs.write_table(root / runs.CERTIFICATES, _columns(log))
    record = ImportRecord(
        source=log.source,
        sha256=log.sha256,
        sigma=log.sigma,
        alpha=log.alpha,
        draws=log.draws,
        rows=len(log.idx),
        abstained=int(log.abstained.sum()),
        ours=log.ours,
        notes=log.notes,
        certificates_sha256=hashlib.sha256(_content(root / runs.CERTIFICATES, "table")).hexdigest(),
        versions={"pixeldp": __version__, "python": platform.python_version()},
    )
    runs.write(root / IMPORT, (record.model_dump_json(indent=2) + "\n").encode())
    return root


def read_import(folder: str | os.PathLike[str]) -> Log:
    """Return what ``write_import`` wrote, or say what is wrong with the folder."""
    record, path = _record(Path(folder)), Path(folder) / runs.CERTIFICATES
    content = _content(path, "table of the import")
    if hashlib.sha256(content).hexdigest() != record.certificates_sha256:
        raise RunCorrupt(
            f"{str(path)!r} is damaged or belongs to another import: its digest is not the one in "
            f"{IMPORT}; import the log again with --overwrite"
        )
    _, rows = _table(content, str(path))
    return Log(
        **_arrays(rows, lowered([row.radius for row in rows], ours=True)),
        **record.model_dump(include={"sigma", "alpha", "draws", "notes", "source", "sha256"}),
        ours=record.ours,
    )


def lowered(printed: Sequence[Decimal], *, ours: bool = False) -> list[float]:
    """Return radii that the certified ones surely reached, in six decimals, from the printed ones.

    A radius was rounded at its third digit, or at its last if it has more; and, whatever its
    digits, no further than to the most decimals that the file shows. It is lowered by half a unit
    of that place. This is right for any one format of all radii, of digits or of decimals, and
    spares the zeros that a format leaves out: among radii like 0.378, a 0.5 stands for 0.500.

    With ``ours``, a radius of six decimals stays as it is: it was rounded down when written.

    >>> lowered([Decimal("1.96"), Decimal("0.5"), Decimal("0.0312")])
    [1.955, 0.4995, 0.03115]
    """
    shown = [radius.as_tuple() for radius in printed if radius]
    places = [int(radius.exponent) for radius in shown]
    finest = min(places, default=0)
    digits = min(_DIGITS, max((len(radius.digits) for radius in shown), default=0))

    def below(radius: Decimal) -> Decimal:
        place = int(radius.as_tuple().exponent)
        if not radius or (ours and place == -_DECIMALS):
            return radius
        if len(radius.as_tuple().digits) <= _DIGITS:
            place = max(radius.adjusted() - digits + 1, finest)
        return radius - Decimal(5).scaleb(place - 1)

    step = Decimal(1).scaleb(-_DECIMALS)
    return [float(below(radius).quantize(step, rounding=ROUND_FLOOR)) for radius in printed]


def largest_radius(*, sigma: float, alpha: float, draws: int) -> float:
    """Return the radius of draws that all fall on one label, which no log can exceed.

    The Clopper-Pearson bound of n in n is ``alpha^(1/n)``, the radius ``sigma Φ⁻¹`` of it (Cohen et
    al. 2019, Theorem 1, with one minus the bound for the other labels).

    >>> round(largest_radius(sigma=0.25, alpha=0.001, draws=100_000), 4)
    0.9529
    """
    return sigma * float(special.ndtri_exp(math.log(alpha) / draws))


class _Row(NamedTuple):
    line: int
    idx: int
    label: int
    predict: int
    radius: Decimal
    correct: str
    seconds: float

    def plain(self) -> bool:
        """Whether ``correct`` says of this line alone, in 0 or 1, what its labels say."""
        return _TRUTHS.get(self.correct, self.correct) == str(int(self.predict == self.label))


@dataclass(frozen=True)
class _Line:
    file: str
    number: int
    cells: dict[str, str]

    def row(self) -> _Row:
        row = _Row(
            line=self.number,
            idx=self.whole("idx", least=0),
            label=self.whole("label", least=0),
            predict=self.whole("predict", least=ABSTAINED),
            radius=self.decimal("radius"),
            correct=self.cells["correct"],
            seconds=self.seconds(),
        )
        if row.correct not in _TRUTHS and not _NUMBER.fullmatch(row.correct.removesuffix("%")):
            raise self.wrong("correct", "0 or 1, or a running count or share")
        if row.radius and row.predict == ABSTAINED:
            raise self.wrong("radius", f"0.0 where predict is {ABSTAINED}, an abstention")
        return row

    def whole(self, column: str, *, least: int) -> int:
        text = self.cells[column]
        if not _WHOLE.fullmatch(text) or int(text) < least:
            raise self.wrong(column, f"a whole number of at least {least}")
        return int(text)

    def decimal(self, column: str) -> Decimal:
        text = self.cells[column]
        if not _NUMBER.fullmatch(text) or not 0 <= Decimal(text) < _MOST:
            raise self.wrong(column, f"a number of at least 0 and below {float(_MOST):g}")
        return Decimal(text)

    def seconds(self) -> float:
        text = self.cells["time"]
        span = _SPAN.fullmatch(text)
        if span is not None:
            days, hours, minutes, seconds = (float(part or 0) for part in span.groups())
            return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
        if not _NUMBER.fullmatch(text) or not 0 <= float(text) < _MOST:
            raise self.wrong("time", "seconds, or a span like 0:00:15.4,")
        return float(text)

    def wrong(self, column: str, rule: str) -> RunCorrupt:
        return RunCorrupt(
            f"{self.file!r}, line {self.number}: {column} must be {rule}, got "
            f"{column}={_short(self.cells[column])}; correct the line or take it out"
        )


def _check_settings(*, sigma: float, alpha: float, draws: int) -> None:
    positive("sigma", sigma)
    needed = math.floor(-math.log2(open_unit("alpha", alpha))) + 1
    if whole("draws", draws, least=1) < needed:
        raise TooFewDraws(
            f"draws must be at least {needed} to certify anything at alpha={alpha:g}, "
            f"got draws={draws}"
        )


def _content(file: Path, what: str) -> bytes:
    if not file.exists():
        raise RunMissing(f"there is no {what} {str(file)!r}; give the path of one")
    if file.is_dir():
        raise NotARun(f"{str(file)!r} is a folder, not a {what}; give the path of the file")
    try:
        return file.read_bytes()
    except OSError as error:
        raise _cannot("read", file, error) from error


def _cannot(verb: str, path: Path, error: OSError) -> RunInaccessible:
    return RunInaccessible(f"cannot {verb} {str(path)!r}: {error.strerror or error}")


def _table(content: bytes, file: str) -> tuple[list[str], list[_Row]]:
    """Split a log into its header and its rows, and refuse what is not one."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise NotARun(
            f"{file!r} is not a certification log: byte {error.start} is not UTF-8 text; give the "
            "table itself, unpacked"
        ) from error
    first, *lines = text.rstrip("\r\n").split("\n")
    header = first.removesuffix("\r").split("\t")
    if tuple(header[: len(COLUMNS)]) != COLUMNS or len(set(header)) < len(header):
        raise NotARun(
            f"{file!r} is not a certification log: line 1 must name the columns "
            f"{' '.join(COLUMNS)}, separated by tabs, got {_short(first)}"
        )
    if not lines:
        raise RunCorrupt(f"{file!r} has a header and no rows; give a log that was written to")
    rows: list[_Row] = []
    seen: dict[int, int] = {}
    for number, line in enumerate(lines, start=2):
        cells = line.removesuffix("\r").split("\t")
        if len(cells) != len(header):
            cut = number == len(lines) + 1 and not text.endswith("\n")
            raise RunCorrupt(
                f"{file!r}, line {number}: there must be {len(header)} columns, got {len(cells)} "
                f"in {_short(line)}; "
                + ("the file is cut off, copy it again" if cut else "correct the line")
                + " or take the line out"
            )
        row = _Line(file, number, dict(zip(header, cells, strict=True))).row()
        if row.idx in seen:
            raise RunCorrupt(
                f"{file!r}, line {number}: idx must not come twice, got idx={row.idx} as on line "
                f"{seen[row.idx]}; take one of the lines out, or import two logs one by one"
            )
        seen[row.idx] = number
        rows.append(row)
    return header, rows


def _arrays(rows: Sequence[_Row], radii: Sequence[float]) -> dict[str, Any]:
    return {
        "idx": np.array([row.idx for row in rows], dtype=np.int64),
        "label": np.array([row.label for row in rows], dtype=np.int64),
        "predict": np.array([row.predict for row in rows], dtype=np.int64),
        "radius": np.array(radii, dtype=np.float64),
        "seconds": np.array([row.seconds for row in rows], dtype=np.float64),
    }


def _note_limit(
    rows: Sequence[_Row], radii: Sequence[float], *, sigma: float, alpha: float, draws: int
) -> Iterator[str]:
    """Say so if the largest radius, even rounded down, is more than unanimous draws can give."""
    limit = largest_radius(sigma=sigma, alpha=alpha, draws=draws)
    largest = max(radii)
    if largest <= limit * (1 + _ROOM):
        return
    row = rows[radii.index(largest)]
    log_bound = float(special.log_ndtr(largest / sigma))  # of the score that the radius stands for
    fits = [f"sigma of at least {sigma * largest / limit:.4g}"]
    if log_bound * _MOST_DRAWS < math.log(alpha):
        fits.insert(0, f"at least {math.ceil(math.log(alpha) / log_bound)} draws")
    if (needed := math.exp(draws * log_bound)) < _MOST_ALPHA:
        fits.insert(0, f"alpha of at least {needed:.2g}")
    yield (
        f"line {row.line}: radius={row.radius} is above {limit:.6g}, the most that draws={draws} at "
        f"alpha={alpha:g} and sigma={sigma:g} can give; it needs {', or '.join(fits)}; import the "
        "log again with what it was made with"
    )


def _note_correct(rows: Sequence[_Row]) -> Iterator[str]:
    odd = [row for row in rows if not row.plain()]
    if odd:
        yield (
            f"correct is not 1 where predict is label and 0 elsewhere in {len(odd)} of {len(rows)} "
            f"rows, the first on line {odd[0].line}, correct={_short(odd[0].correct)}, so it may be "
            "a running count or share; it was computed again from predict and label"
        )


def _note_columns(header: Sequence[str]) -> Iterator[str]:
    if more := header[len(COLUMNS) :]:
        yield f"left out: {', '.join(more)}; only the first {len(COLUMNS)} columns are imported"


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")


def _columns(log: Log) -> dict[str, Iterable[object]]:
    """Lay out the table as our own, without what the log does not know."""
    columns: dict[str, Iterable[object]] = {
        "idx": log.idx,
        "label": log.label,
        "predict": log.predict,
        # The double next to a decimal may lie below it, and would lose a whole unit.
        "radius": [runs.rounded_down(math.nextafter(radius, math.inf)) for radius in log.radius],
        "correct": log.correct.astype(int),
        "time": [f"{seconds:.6f}" for seconds in log.seconds],
        _OUR_NEXT: log.predict,
    }
    if not log.ours:
        # Theorem 1 the other way round; of an abstention nothing is known but that it is not below
        # 0. Our own radii may rest on bounds for two labels, which the radius does not give back.
        bound = special.ndtr(log.radius / log.sigma) * (1 - _ROUNDING)
        bound = np.where(log.abstained, 0.0, bound)
        columns["lower"] = [runs.rounded_down(float(value), 9) for value in bound]
    return columns


def _check_may_write(root: Path, *, overwrite: bool) -> None:
    try:
        if not root.exists():
            return
        if not root.is_dir():
            raise NotARun(f"{str(root)!r} is a file; give another --out")
        there = {path.name for path in root.iterdir()}
    except OSError as error:
        raise _cannot("write to", root, error) from error
    if not there:
        return
    # A run has certificates of its own, which must not be taken for those of an import.
    if runs.CONFIG in there or not (IMPORT in there or there == {runs.CERTIFICATES}):
        what = "a run" if runs.CONFIG in there else "other files and no import"
        raise NotARun(f"{str(root)!r} holds {what}; give an empty or a new folder as --out")
    if not overwrite:
        raise RunExists(
            f"there is an import in {str(root)!r} already; give another --out, or --overwrite to "
            "replace it"
        )


def _record(root: Path) -> ImportRecord:
    if not root.exists():
        raise RunMissing(f"there is no folder {str(root)!r}; make one with: pixeldp import")
    if not root.is_dir():
        raise NotARun(f"{str(root)!r} is a file, not the folder of an import")
    path = root / IMPORT
    if not path.exists():
        raise NotARun(f"{str(root)!r} is not the folder of an import: it has no {IMPORT}")
    try:
        data = json.loads(_content(path, "record of an import"))
    except ValueError as error:
        raise RunCorrupt(f"{str(path)!r} is not readable JSON ({error}); import again") from error
    if not isinstance(data, dict) or data.get("format") != "pixeldp-import":
        raise NotARun(f"{str(path)!r} is not the record of an import")
    version = data.get("version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise RunTooNew(
            f"{str(root)!r} was written in import format {version}, but this pixeldp {__version__} "
            f"reads up to {FORMAT_VERSION}; install a newer pixeldp"
        )
    try:
        return ImportRecord.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise RunCorrupt(f"{str(path)!r} is damaged: {place}: {first['msg']}") from error
