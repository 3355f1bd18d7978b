"""Certification logs of the field, imported: their radii rounded down, their alpha checked.

The code of Cohen et al., "Certified Adversarial Robustness via Randomized Smoothing" (ICML 2019),
and what descends from it, write a table separated by tabs, one line an input::

    idx  label  predict  radius  correct  time

``predict`` is −1 for an abstention. The radius was rounded to the nearest number of three digits,
about half of them upwards. Noise, draws and failure probability are not in the file. An import is
a folder::

    certificates.tsv   the table, its radii rounded down, in the columns that ours begin with
    import.json        where it came from, what it was said to be made with, what was noticed
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
import re
from dataclasses import dataclass, replace
from decimal import ROUND_FLOOR, Decimal
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy import special

from pixeldp import files, metrics, runs
from pixeldp._checks import open_unit, positive, whole
from pixeldp._version import __version__
from pixeldp.errors import NotARun, RunCorrupt, RunExists, RunMissing, TooFewDraws

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    Array = npt.NDArray[np.float64]
    Whole = npt.NDArray[np.int64]

IMPORT = "import.json"
COLUMNS = ("idx", "label", "predict", "radius", "correct", "time")
ABSTAINED = -1

# What the record keeps of a log, besides how many rows it has.
_KEPT = ("source", "sha256", "sigma", "alpha", "draws", "notes")

# The seventh column of a table that pixeldp wrote, and the decimals of its radii.
_OUR_NEXT, _DECIMALS = "top", 6

# What the format of the field, {:.3}, leaves of a radius; it leaves out zeros at the end.
_DIGITS = 3

# Beyond this the columns are mixed up, and six decimals no longer fit a double.
_MOST = 10**9

_WHOLE = re.compile(r"-?[0-9]{1,18}")
_TRUTHS = {"True": "1", "False": "0"}
_NUMBER = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_SPAN = re.compile(r"(?:([0-9]{1,5}) days?, )?([0-9]{1,2}):([0-5][0-9]):([0-5][0-9](?:\.[0-9]+)?)")

# Room for the rounding of special functions: at a limit, and in the normal distribution function.
_ROOM, _ROUNDING = 1e-9, 1e-15

# A remedy beyond these is none.
_MOST_ALPHA, _MOST_DRAWS = 0.5, 10**12


@dataclass(frozen=True, eq=False, kw_only=True)
class Log:
    """A certification log: one entry an input, with what it was said to be made with.

    Attributes
    ----------
    idx, label, predict, radius, seconds:
        ``[N]``; ``predict`` is −1 for an abstention, ``radius`` at most what was certified.
    sigma, alpha, draws:
        The noise, the failure probability for each input, and the number of draws, as stated.
    notes:
        What a reader must know: each a sentence.
    source, sha256, ours:
        The file: its name without folders, its digest, and whether pixeldp wrote it.
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
    def abstained(self) -> npt.NDArray[np.bool_]:
        """Where nothing was predicted."""
        return np.asarray(self.predict == ABSTAINED)

    @property
    def correct(self) -> npt.NDArray[np.bool_]:
        """Where the prediction is the label; an abstention never is."""
        return np.asarray(self.predict == self.label)

    def conventional_accuracy(self) -> float:
        """Return the fraction that is right, an abstention counted as wrong, as the field does."""
        return metrics.conventional_accuracy(self.predict, self.label)

    def certified_accuracy(self, thresholds: npt.ArrayLike) -> Array:
        """Return, for each threshold T, the fraction that is right and has ``radius ≥ T``."""
        return metrics.certified_accuracy(self.predict, self.radius, self.label, thresholds)


def read_log(
    path: str | os.PathLike[str], *, sigma: float, alpha: float = 0.001, draws: int = 100_000
) -> Log:
    r"""Return a certification log, its radii rounded down, with notes on what looks wrong.

    ``sigma``, ``alpha`` and ``draws`` are not in the file; the defaults are those of its authors'
    code. Anything in the file that is in doubt is refused; radii that cannot come from the stated
    settings, and a column ``correct`` that says something else, give a note.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "sigma_0.50"
    >>> lines = (" ".join(COLUMNS), "0 3 3 1.76 1 0:00:15.4", "20 7 -1 0.0 0 0:00:15.6")
    >>> _ = file.write_text("".join(line.replace(" ", "\t") + "\n" for line in lines))
    >>> log = read_log(file, sigma=0.5)
    >>> log.radius, log.conventional_accuracy(), log.notes
    (array([1.755, 0.   ]), 0.5, ())
    """
    _check_settings(sigma=sigma, alpha=alpha, draws=draws)
    file = Path(path)
    content = _content(file)
    header, rows = _table(content, str(file))
    ours = header[len(COLUMNS) : len(COLUMNS) + 1] == [_OUR_NEXT]
    log = Log(
        idx=np.array([row.idx for row in rows], dtype=np.int64),
        label=np.array([row.label for row in rows], dtype=np.int64),
        predict=np.array([row.predict for row in rows], dtype=np.int64),
        radius=np.array(lowered([row.radius for row in rows], ours=ours)),
        seconds=np.array([row.seconds for row in rows], dtype=np.float64),
        sigma=float(sigma),
        alpha=float(alpha),
        draws=int(draws),
        notes=tuple(_notes_on_table(header, rows)),
        source=file.name,
        sha256=hashlib.sha256(content).hexdigest(),
        ours=ours,
    )
    return replace(log, notes=(*_notes_on_limit(log, rows), *log.notes))


def write_import(log: Log, folder: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write an import folder; ``import.json`` comes last, so without it the rest is unfinished."""
    root = Path(folder)
    _check_may_write(root, overwrite=overwrite)
    files.remove(root, IMPORT, runs.CERTIFICATES)
    files.write_table(root / runs.CERTIFICATES, _columns(log))
    record = {
        "format": "pixeldp-import",
        "version": 1,
        **{name: getattr(log, name) for name in _KEPT},
        "rows": len(log.idx),
        "abstained": int(log.abstained.sum()),
        "versions": {"pixeldp": __version__, "python": platform.python_version()},
    }
    files.write(root / IMPORT, (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode())
    return root


def lowered(printed: Sequence[Decimal], *, ours: bool = False) -> list[float]:
    """Return radii, in six decimals, that the certified ones reached before they were printed.

    A radius was rounded at its third digit, or at its last if it has more; but no further than to
    the most decimals in the file. It is lowered by half a unit of that place. This is safe for any
    one format of all radii, of digits or of decimals, and knows of the zeros that a format leaves
    out: among radii like 0.378, a 0.5 stands for 0.500.

    With ``ours``, a radius of six decimals stays as it is: it was rounded down when written.

    >>> lowered([Decimal("1.96"), Decimal("0.5"), Decimal("0.0312")])
    [1.955, 0.4995, 0.03115]
    """
    shown = [radius.as_tuple() for radius in printed if radius]
    finest = min((int(radius.exponent) for radius in shown), default=0)
    # A file that never shows three digits may have been printed with fewer.
    digits = min(_DIGITS, max((len(radius.digits) for radius in shown), default=0))

    def below(radius: Decimal) -> Decimal:
        own = radius.as_tuple()
        if not radius or (ours and own.exponent == -_DECIMALS):
            return radius
        third = max(radius.adjusted() - digits + 1, finest)
        place = third if len(own.digits) <= _DIGITS else int(own.exponent)
        return radius - Decimal(5).scaleb(place - 1)

    step = Decimal(1).scaleb(-_DECIMALS)
    return [float(below(radius).quantize(step, ROUND_FLOOR)) for radius in printed]


class _Row(NamedTuple):
    line: int
    idx: int
    label: int
    predict: int
    radius: Decimal
    correct: str
    seconds: float


class _Line(NamedTuple):
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
            correct=_TRUTHS.get(self.cells["correct"], self.cells["correct"]),
            seconds=self.seconds(),
        )
        if not _NUMBER.fullmatch(row.correct.removesuffix("%")):
            raise self.wrong("correct", "0 or 1, or a running count or share")
        if row.radius and row.predict == ABSTAINED:
            raise self.wrong("radius", f"0.0 where predict is {ABSTAINED}, an abstention")
        return row

    def whole(self, column: str, *, least: int) -> int:
        if not _WHOLE.fullmatch(self.cells[column]) or int(self.cells[column]) < least:
            raise self.wrong(column, f"a whole number of at least {least}")
        return int(self.cells[column])

    def decimal(self, column: str, unit: str = "") -> Decimal:
        text = self.cells[column]
        if not _NUMBER.fullmatch(text) or not 0 <= Decimal(text) < _MOST:
            raise self.wrong(column, f"a number of at least 0 and below {float(_MOST):g}{unit}")
        return Decimal(text)

    def seconds(self) -> float:
        if span := _SPAN.fullmatch(self.cells["time"]):
            days, hours, minutes, seconds = (float(part or 0) for part in span.groups())
            return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
        return float(self.decimal("time", " of seconds, or a span like 0:00:15.4"))

    def wrong(self, column: str, rule: str) -> RunCorrupt:
        return RunCorrupt(
            f"{self.file!r}, line {self.number}: {column} must be {rule}, got "
            f"{column}={_short(self.cells[column])}; correct the line or take it out"
        )


def _check_settings(*, sigma: float, alpha: float, draws: int) -> None:
    positive("sigma", sigma)
    # With n in n draws the bound is alpha^(1/n), which must be above 1/2.
    needed = math.floor(-math.log2(open_unit("alpha", alpha))) + 1
    if whole("draws", draws, least=1) < needed:
        raise TooFewDraws(
            f"draws must be at least {needed} to certify anything at alpha={alpha:g}, "
            f"got draws={draws}"
        )


def _content(file: Path) -> bytes:
    try:
        if not file.exists():
            raise RunMissing(f"there is no log {str(file)!r}; give the path of a table")
        if file.is_dir():
            raise NotARun(f"{str(file)!r} is a folder, not a log; give the path of a file in it")
        return file.read_bytes()
    except OSError as error:
        raise files.cannot("read", file, error) from error


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
        got = _short(first) if text.strip() else "an empty file"
        raise NotARun(
            f"{file!r} is not a certification log: line 1 must begin with the columns "
            f"{' '.join(COLUMNS)}, separated by tabs, and name none twice, got {got}"
        )
    if not lines:
        raise RunCorrupt(f"{file!r} has a header and no rows; give a log that was written to")
    rows: dict[int, _Row] = {}
    for number, line in enumerate(lines, start=2):
        cells = line.removesuffix("\r").split("\t")
        if len(cells) != len(header):
            cut = number == len(lines) + 1 and not text.endswith("\n")
            raise RunCorrupt(
                f"{file!r}, line {number}: there must be {len(header)} columns, got {len(cells)} "
                f"in {_short(line)}; {'the file is cut off: copy it again' if cut else 'correct'} "
                "or take out the line"
            )
        row = _Line(file, number, dict(zip(header, cells, strict=True))).row()
        if row.idx in rows:
            raise RunCorrupt(
                f"{file!r}, line {number}: idx must not come twice, got idx={row.idx} as on line "
                f"{rows[row.idx].line}; take out one of the lines, or import two logs one by one"
            )
        rows[row.idx] = row
    return header, list(rows.values())


def _notes_on_limit(log: Log, rows: Sequence[_Row]) -> Iterator[str]:
    """Say so if the largest radius, even lowered, is more than unanimous draws can give."""
    # The Clopper-Pearson bound of n in n is alpha^(1/n), the other labels' one minus that; the
    # radius of the two is sigma Φ⁻¹(alpha^(1/n)) (Cohen et al. 2019, Theorem 1).
    log_alpha = math.log(log.alpha)
    limit = log.sigma * float(special.ndtri_exp(log_alpha / log.draws))
    row, radius = rows[int(log.radius.argmax())], float(log.radius.max())
    if radius <= limit * (1 + _ROOM):
        return
    log_bound = float(special.log_ndtr(radius / log.sigma))  # of the score it stands for
    fits = [f"sigma={log.sigma * radius / limit:.4g}"]
    if log_bound * _MOST_DRAWS < log_alpha:
        fits.insert(0, f"draws={math.ceil(log_alpha / log_bound)}")
    if (needed := math.exp(log.draws * log_bound)) < _MOST_ALPHA:
        fits.insert(0, f"alpha={needed:.2g}")
    yield (
        f"line {row.line}: radius={row.radius} is above {limit:.6g}, the most that "
        f"draws={log.draws}, alpha={log.alpha:g} and sigma={log.sigma:g} can give; it needs at "
        f"least about {' or '.join(fits)}: import the log again with what it was made with"
    )


def _notes_on_table(header: Sequence[str], rows: Sequence[_Row]) -> Iterator[str]:
    odd = [row for row in rows if row.correct != str(int(row.predict == row.label))]
    if odd:
        yield (
            f"correct is not 1 where predict is label and 0 elsewhere in {len(odd)} of {len(rows)} "
            f"rows, first on line {odd[0].line}, correct={_short(odd[0].correct)}: a running "
            "count, a share, or damage; it was computed again from predict and label"
        )
    if more := header[len(COLUMNS) :]:
        yield f"left out: {', '.join(more)}; only the first {len(COLUMNS)} columns are imported"


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "…")


def _columns(log: Log) -> dict[str, Iterable[object]]:
    """Lay out the table as our own, without what the log does not know."""
    columns: dict[str, Iterable[object]] = {
        "idx": log.idx,
        "label": log.label,
        "predict": log.predict,
        # The double of a decimal may lie below it, and would lose a whole unit.
        "radius": [files.rounded_down(math.nextafter(radius, math.inf)) for radius in log.radius],
        "correct": log.correct.astype(int),
        "time": [f"{seconds:.6f}" for seconds in log.seconds],
        _OUR_NEXT: log.predict,
    }
    if not log.ours:
        # Theorem 1 the other way round; for an abstention only 0 is sure. Our own radii may rest
        # on bounds of two labels, which a radius does not give back.
        lower = special.ndtr(log.radius / log.sigma) * (1 - _ROUNDING) * ~log.abstained
        columns["lower"] = [files.rounded_down(float(bound), 9) for bound in lower]
    return columns


def _check_may_write(root: Path, *, overwrite: bool) -> None:
    if root.exists() and not root.is_dir():
        raise NotARun(f"{str(root)!r} is a file; give another --out")
    try:
        there = {path.name for path in root.iterdir()} if root.exists() else set()
    except OSError as error:
        raise files.cannot("write to", root, error) from error
    # A run has certificates too, which are not an import's to replace.
    if runs.CONFIG in there or not (IMPORT in there or there <= {runs.CERTIFICATES}):
        raise NotARun(f"{str(root)!r} holds a run or other files; give an empty or a new folder")
    if there and not overwrite:
        raise RunExists(
            f"there is an import in {str(root)!r}; give another --out, or --overwrite to replace it"
        )
