"""Logs of the field, made here: what is imported from them, and what is refused."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import math
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

import pixeldp
from pixeldp import files, metrics, runs
from pixeldp.errors import (
    InvalidArgument,
    NotARun,
    PixelDPError,
    RunCorrupt,
    RunExists,
    RunInaccessible,
    RunMissing,
    TooFewDraws,
)
from pixeldp.logs import COLUMNS, Log, lowered, read_log, write_import

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

HEADER = "idx\tlabel\tpredict\tradius\tcorrect\ttime"

# Right, wrong, abstained, right.
ROWS = (
    "0\t3\t3\t0.378\t1\t15.4",
    "20\t7\t1\t0.0831\t0\t15.6",
    "40\t4\t-1\t0.0\t0\t15.7",
    "60\t7\t7\t0.5\t1\t15.8",
)


def write(path: Path, rows: Iterable[str] = ROWS, *, header: str = HEADER, end: str = "\n") -> Path:
    path.write_text("\n".join((header, *rows)) + end, encoding="utf-8")
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "sigma_0.25")


def community_log(
    path: Path, counts: Iterable[int], *, sigma: float, alpha: float, draws: int
) -> Path:
    """What the code of the field would print, from the counts of the label that it chose."""
    rows = []
    for number, count in enumerate(counts):
        bound = stats.beta.ppf(alpha, count, draws - count + 1)
        radius = max(sigma * float(stats.norm.ppf(bound)), 0.0)
        label, predict = number % 10, -1 if bound < 0.5 else (number % 10 + (number % 7 == 3)) % 10
        spent = dt.timedelta(seconds=15 + number / 7)
        rows.append(
            f"{20 * number}\t{label}\t{predict}\t{radius:.3}\t{int(label == predict)}\t{spent}"
        )
    return write(path, rows)


def counts(draws: int) -> list[int]:
    shares = [0.2, 0.49, 0.51, 0.6, 0.75, 0.9, 0.99, 0.999, 1.0]
    return [round(share * draws) for share in shares]


class Community:
    """How the field reads a table: the share that is correct with at least this radius."""

    def __init__(self, path: Path) -> None:
        table = np.genfromtxt(path, delimiter="\t", names=True)
        self.correct = table["correct"].astype(int) == 1
        self.radius = table["radius"]

    def at_radius(self, radius: float) -> float:
        return float((self.correct & (self.radius >= radius)).mean())


def test_what_a_log_holds(file: Path) -> None:
    log = read_log(file, sigma=0.25, alpha=0.01, draws=1000)
    assert log.idx.tolist() == [0, 20, 40, 60]
    assert log.label.tolist() == [3, 7, 4, 7]
    assert log.predict.tolist() == [3, 1, -1, 7]
    assert log.radius.tolist() == [0.3775, 0.08305, 0.0, 0.4995]
    assert log.correct.tolist() == [True, False, False, True]
    assert log.abstained.tolist() == [False, False, True, False]
    assert log.seconds.tolist() == [15.4, 15.6, 15.7, 15.8]
    assert (log.sigma, log.alpha, log.draws) == (0.25, 0.01, 1000)
    assert (log.notes, log.source, log.ours) == ((), "sigma_0.25", False)
    assert log.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()


def test_the_settings_are_those_of_the_authors_code_unless_given(file: Path) -> None:
    log = read_log(str(file), sigma=1)
    assert (log.sigma, log.alpha, log.draws) == (1.0, 0.001, 100_000)


def test_an_abstention_counts_as_wrong(file: Path) -> None:
    log = read_log(file, sigma=0.25)
    assert log.conventional_accuracy() == 0.5
    assert log.certified_accuracy([0.0, 0.3775, 0.378, 0.4995, 0.5]).tolist() == [
        0.5,
        0.5,
        0.25,
        0.25,
        0.0,
    ]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0:00:15.123456", 15.123456),
        ("0:02:31", 151.0),
        ("10:00:00", 36000.0),
        ("1 day, 0:00:15", 86415.0),
        ("2 days, 1:00:00.5", 176400.5),
        ("16.9", 16.9),
        ("17", 17.0),
        ("1e-05", 1e-5),
    ],
)
def test_both_formats_of_time(tmp_path: Path, text: str, seconds: float) -> None:
    file = write(tmp_path / "log", [f"0\t3\t3\t0.378\t1\t{text}"])
    assert read_log(file, sigma=0.25).seconds.tolist() == [pytest.approx(seconds, rel=1e-15)]


@given(st.timedeltas(min_value=dt.timedelta(0), max_value=dt.timedelta(days=99999)))
def test_any_span_that_python_prints_is_read(
    tmp_path_factory: pytest.TempPathFactory, span: dt.timedelta
) -> None:
    file = write(tmp_path_factory.mktemp("log") / "log", [f"0\t3\t3\t0.378\t1\t{span}"])
    assert read_log(file, sigma=0.25).seconds[0] == pytest.approx(span.total_seconds(), rel=1e-12)


@pytest.mark.parametrize("change", [lambda t: "﻿" + t, lambda t: t.replace("\n", "\r\n")])
def test_what_editors_do_to_a_file_does_no_harm(file: Path, change: Callable[[str], str]) -> None:
    before = read_log(file, sigma=0.25)
    file.write_bytes(change(file.read_text()).encode())
    after = read_log(file, sigma=0.25)
    assert (after.radius == before.radius).all()
    assert after.notes == ()


# Radii are rounded down.


def printed(radii: Iterable[float], pattern: str) -> list[Decimal]:
    return [Decimal(pattern.format(radius)) for radius in radii]


def test_half_a_unit_of_the_last_place() -> None:
    assert lowered([Decimal("1.96")]) == [1.955]
    assert lowered([Decimal("1.96"), Decimal("1.955312")]) == [1.955, 1.955311]
    assert lowered([Decimal("0.0"), Decimal("0.00")]) == [0.0, 0.0]
    assert lowered([]) == []


def test_zeros_that_the_format_leaves_out_are_known_from_the_other_radii() -> None:
    assert lowered(printed([2.1, 1.0, 0.0831], "{:.3}")) == [2.095, 0.995, 0.08305]
    # Three decimals, not three digits: 0.032 may stand for 0.0315.
    assert lowered(printed([0.0315, 1.955], "{:.3f}")) == [0.0315, 1.9545]
    # From a radius alone there is no telling, and the safe side is taken.
    assert lowered([Decimal("2.1")]) == [2.05]


radii = st.one_of(
    st.floats(min_value=0, max_value=10),
    st.floats(min_value=0, max_value=2000),
    # Near ties, where the last digit decides.
    st.integers(0, 10**5).flatmap(
        lambda n: st.sampled_from([n / 2000, math.nextafter(n / 2000, 0), n / 2000 + 1e-12])
    ),
)


@given(st.lists(radii, min_size=1, max_size=8))
def test_no_radius_is_larger_than_it_was_before_it_was_printed(true: list[float]) -> None:
    for low, radius in zip(lowered(printed(true, "{:.3}")), true, strict=True):
        assert 0 <= low <= radius


@given(
    st.lists(radii, min_size=1, max_size=8),
    st.sampled_from(["{:.2}", "{:.4}", "{:.6g}", "{:.17}", "{:.1f}", "{:.3f}", "{:.6f}", "{}"]),
)
def test_nor_in_another_format(true: list[float], pattern: str) -> None:
    for low, radius in zip(lowered(printed(true, pattern)), true, strict=True):
        assert 0 <= low <= radius


@given(st.lists(radii, min_size=1, max_size=8), st.integers(1, 4))
def test_nor_if_it_was_rounded_to_decimals_and_printed_short(
    true: list[float], decimals: int
) -> None:
    short = [round(radius, decimals) for radius in true]
    for low, radius in zip(lowered(printed(short, "{}")), true, strict=True):
        assert 0 <= low <= radius


@given(st.lists(st.floats(min_value=0.01, max_value=10), min_size=2, max_size=8))
def test_the_price_is_one_unit_of_the_third_digit(true: list[float]) -> None:
    # One radius that shows that digits were rounded, and not decimals.
    texts = printed([0.00123, *true], "{:.3}")
    for text, low, radius in zip(texts[1:], lowered(texts)[1:], true, strict=True):
        assert radius - low <= 10.0 ** (text.adjusted() - 2) + 1e-6


# The stated alpha.


@pytest.mark.parametrize("sigma", [0.12, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("draws", [1000, 100_000])
def test_a_log_made_at_another_alpha_gives_a_note(tmp_path: Path, sigma: float, draws: int) -> None:
    made = community_log(tmp_path / "a", counts(draws), sigma=sigma, alpha=0.01, draws=draws)
    assert read_log(made, sigma=sigma, alpha=0.01, draws=draws).notes == ()
    (note,) = read_log(made, sigma=sigma, alpha=0.001, draws=draws).notes
    assert note.startswith("line 10: radius=")
    assert "at least about alpha=0.0" in note
    honest = community_log(tmp_path / "b", counts(draws), sigma=sigma, alpha=0.001, draws=draws)
    assert read_log(honest, sigma=sigma, alpha=0.001, draws=draws).notes == ()


def test_the_note_says_what_would_fit(tmp_path: Path) -> None:
    file = write(tmp_path / "log", [*ROWS, "80\t1\t1\t0.978\t1\t16.8"])
    (note,) = read_log(file, sigma=0.25).notes
    assert note == (
        "line 6: radius=0.978 is above 0.952864, the most that draws=100000, alpha=0.001 and "
        "sigma=0.25 can give; it needs at least about alpha=0.0099 or draws=149684 or "
        "sigma=0.2565: import the log again with what it was made with"
    )
    assert read_log(file, sigma=0.25, alpha=0.00991).notes == ()
    assert read_log(file, sigma=0.25, draws=149_684).notes == ()
    assert read_log(file, sigma=0.2566).notes == ()
    assert read_log(file, sigma=0.25, draws=149_000).notes != ()


def test_where_only_another_sigma_would_fit_the_note_says_only_that(tmp_path: Path) -> None:
    file = write(tmp_path / "log", ["0\t1\t1\t97.8\t1\t16.8"])
    (note,) = read_log(file, sigma=0.25).notes
    assert "it needs at least about sigma=25.65: import the log again" in note


def test_a_radius_at_the_limit_is_none_of_its_own(tmp_path: Path) -> None:
    limit = 0.25 * float(special.ndtri(0.001 ** (1 / 100_000)))
    file = write(tmp_path / "log", [f"0\t1\t1\t{limit:.3}\t1\t16.8"])
    assert read_log(file, sigma=0.25).notes == ()


# The column correct.


def cumulative(pattern: Callable[[int, int], str]) -> list[str]:
    rows, right = [], 0
    for number, (label, predict) in enumerate([(3, 3), (7, 1), (4, -1), (7, 7)], start=1):
        right += label == predict
        radius = "0.0" if predict < 0 else "0.123"
        rows.append(f"{number}\t{label}\t{predict}\t{radius}\t{pattern(right, number)}\t1.0")
    return rows


@pytest.mark.parametrize(
    ("pattern", "odd", "first"),
    [
        (lambda right, _: str(right), 3, "line 3, correct='1'"),
        (lambda right, seen: f"{right / seen}", 3, "line 2, correct='1.0'"),
        (lambda right, seen: f"{100 * right / seen:.1f}%", 4, "line 2, correct='100.0%'"),
    ],
)
def test_a_running_count_or_share_is_computed_again(
    tmp_path: Path, pattern: Callable[[int, int], str], odd: int, first: str
) -> None:
    log = read_log(write(tmp_path / "log", cumulative(pattern)), sigma=0.25)
    assert log.correct.tolist() == [True, False, False, True]
    (note,) = log.notes
    odd = sum(
        row.split("\t")[4] != str(int(truth))
        for row, truth in zip(cumulative(pattern), log.correct, strict=True)
    )
    assert f"in {odd} of 4 rows, first on {first}" in note
    assert note.endswith("it was computed again from predict and label")


def test_true_and_false_are_plain(tmp_path: Path) -> None:
    rows = cumulative(lambda right, seen: str((right, seen) in {(1, 1), (2, 4)}))
    assert read_log(write(tmp_path / "log", rows), sigma=0.25).notes == ()


# What is refused.


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("x\t3\t3\t0.3\t1\t1.0", "idx must be a whole number of at least 0, got idx='x'"),
        ("-2\t3\t3\t0.3\t1\t1.0", "idx must be a whole number of at least 0, got idx='-2'"),
        ("1_0\t3\t3\t0.3\t1\t1.0", "idx must be a whole number of at least 0, got idx='1_0'"),
        ("9\t3.0\t3\t0.3\t1\t1.0", "label must be a whole number of at least 0, got label='3.0'"),
        ("9\t-1\t-1\t0.0\t0\t1.0", "label must be a whole number of at least 0, got label='-1'"),
        (
            "9\t3\t-2\t0.0\t0\t1.0",
            "predict must be a whole number of at least -1, got predict='-2'",
        ),
        ("9\t3\t\t0.0\t0\t1.0", "predict must be a whole number of at least -1, got predict=''"),
        ("9\t3\t3\tnan\t1\t1.0", "radius must be a number of at least 0 and below 1e+09, got rad"),
        (
            "9\t3\t3\t-0.3\t1\t1.0",
            "below 1e+09, got radius='-0.3'; correct the line or take it out",
        ),
        ("9\t3\t3\tinf\t1\t1.0", "below 1e+09, got radius='inf'"),
        ("9\t3\t3\t1e9\t1\t1.0", "below 1e+09, got radius='1e9'"),
        ("9\t3\t3\t0,3\t1\t1.0", "below 1e+09, got radius='0,3'"),
        ("9\t3\t-1\t0.3\t0\t1.0", "radius must be 0.0 where predict is -1, an abstention, got rad"),
        ("9\t3\t3\t0.3\tyes\t1.0", "correct must be 0 or 1, or a running count or share, got corr"),
        ("9\t3\t3\t0.3\tnan\t1.0", "correct must be 0 or 1, or a running count or share, got corr"),
        ("9\t3\t3\t0.3\t1\tnan", "seconds, or a span like 0:00:15.4, got time='nan'"),
        ("9\t3\t3\t0.3\t1\t-1.5", "seconds, or a span like 0:00:15.4, got time='-1.5'"),
        ("9\t3\t3\t0.3\t1\t-1 day, 23:59:59", "got time='-1 day, 23:59:59'"),
        ("9\t3\t3\t0.3\t1\t0:75:00", "got time='0:75:00'"),
        ("9\t3\t3\t0.3\t1", "there must be 6 columns, got 5 in '9\\t3\\t3\\t0.3\\t1'; correct or"),
        ("9 3 3 0.3 1 1.0", "there must be 6 columns, got 1 in '9 3 3 0.3 1 1.0'; correct or take"),
        ("", "there must be 6 columns, got 1 in ''; correct or take out the line"),
        ("9" * 100, f"there must be 6 columns, got 1 in '{'9' * 60}…'"),
        ("20\t3\t3\t0.3\t1\t1.0", "idx must not come twice, got idx=20 as on line 3; take out one"),
    ],
)
def test_a_line_that_cannot_be_is_refused(tmp_path: Path, row: str, message: str) -> None:
    file = write(tmp_path / "log", [*ROWS[:2], row, *ROWS[2:]])
    with pytest.raises(RunCorrupt) as refusal:
        read_log(file, sigma=0.25)
    assert str(refusal.value).startswith(f"{str(file)!r}, line 4: ")
    assert message in str(refusal.value)


def test_a_file_that_is_cut_off_is_refused(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(
        RunCorrupt, match=r"line 5: there must be 6 columns, got 4 in .* is cut off"
    ):
        read_log(file, sigma=0.25)


def test_a_whole_last_line_without_an_end_is_read(file: Path) -> None:
    file.write_bytes(file.read_bytes().rstrip(b"\n"))
    assert len(read_log(file, sigma=0.25).idx) == 4


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"", NotARun, "separated by tabs, and name none twice, got an empty file"),
        (b"\n\n", NotARun, "got an empty file"),
        (HEADER.encode(), RunCorrupt, "has a header and no rows; give a log that was written to"),
        (ROWS[0].encode(), NotARun, r"line 1 must begin with the columns idx label predict radius"),
        (
            HEADER.replace("\t", ",").encode(),
            NotARun,
            "got 'idx,label,predict,radius,correct,time'",
        ),
        (HEADER.replace("time", "sigma\ttime").encode(), NotARun, "line 1 must begin with"),
        (f"{HEADER}\tidx\n".encode(), NotARun, "name none twice"),
        (b"idx\tlab", NotARun, r"got 'idx\\tlab'"),
        (
            b"PK\x03\x04\xff\xfe",
            NotARun,
            "byte 4 is not UTF-8 text; give the table itself, unpacked",
        ),
        (b"\x00\x01\x02", NotARun, r"got '\\x00\\x01\\x02'"),
    ],
)
def test_what_is_no_log_is_refused(
    tmp_path: Path, content: bytes, error: type[PixelDPError], message: str
) -> None:
    file = tmp_path / "log"
    file.write_bytes(content)
    with pytest.raises(error) as refusal:
        read_log(file, sigma=0.25)
    assert message.replace("\\\\", "\\") in str(refusal.value)
    assert str(refusal.value).startswith(repr(str(file)))


def test_a_file_that_is_not_there_or_cannot_be_read(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RunMissing, match=r"there is no log '.*none'; give the path of a table"):
        read_log(tmp_path / "none", sigma=0.25)
    with pytest.raises(NotARun, match="is a folder, not a log; give the path of a file in it"):
        read_log(tmp_path, sigma=0.25)

    def denied(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.read_bytes", denied)
    with pytest.raises(RunInaccessible, match=r"cannot read '.*': Permission denied"):
        read_log(file, sigma=0.25)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"sigma": 0.0}, InvalidArgument, "sigma must be a finite number above 0, got sigma=0.0"),
        ({"sigma": math.nan}, InvalidArgument, "sigma must be a finite number above 0"),
        ({"alpha": 0.0}, InvalidArgument, r"alpha must be in \(0, 1\), got alpha=0.0"),
        ({"alpha": 1.0}, InvalidArgument, r"alpha must be in \(0, 1\), got alpha=1.0"),
        ({"draws": 0}, InvalidArgument, "draws must be a whole number of at least 1, got draws=0"),
        ({"draws": 9.5}, InvalidArgument, "draws must be a whole number of at least 1"),
        (
            {"draws": 9},
            TooFewDraws,
            "draws must be at least 10 to certify anything at alpha=0.001, got draws=9",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(
    file: Path, settings: dict[str, float], error: type[PixelDPError], message: str
) -> None:
    with pytest.raises(error, match=message):
        read_log(file, **{"sigma": 0.25, **settings})  # type: ignore[arg-type]


def test_the_least_draws_are_those_that_can_certify(tmp_path: Path) -> None:
    file = write(tmp_path / "log", ["0\t3\t-1\t0.0\t0\t1.0"])
    for alpha, least in ((0.001, 10), (0.5, 2), (0.25, 3)):
        assert read_log(file, sigma=1, alpha=alpha, draws=least).notes == ()
        assert alpha ** (1 / least) > 0.5 >= alpha ** (1 / (least - 1))
        with pytest.raises(TooFewDraws):
            read_log(file, sigma=1, alpha=alpha, draws=least - 1)


# The folder of an import.


def test_the_table_of_an_import_begins_as_ours_do(file: Path, tmp_path: Path) -> None:
    folder = write_import(read_log(file, sigma=0.25), tmp_path / "deep" / "import")
    lines = (folder / runs.CERTIFICATES).read_text().splitlines()
    assert lines[0].split("\t") == [*COLUMNS, "top", "lower"]
    assert lines[1] == "0\t3\t3\t0.377500\t1\t15.400000\t3\t0.934478287"
    assert lines[3].split("\t")[:7] == ["40", "4", "-1", "0.000000", "0", "15.700000", "-1"]
    assert float(lines[3].split("\t")[7]) == 0


def test_the_record_of_an_import(file: Path, tmp_path: Path) -> None:
    write(file, [*ROWS, "80\t1\t1\t0.978\t5\t16.8"])
    log = read_log(file, sigma=0.25, alpha=0.001, draws=100_000)
    record = json.loads((write_import(log, tmp_path / "import") / "import.json").read_text())
    assert record.pop("versions")["pixeldp"] == pixeldp.__version__
    assert record == {
        "format": "pixeldp-import",
        "version": 1,
        "source": "sigma_0.25",
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "sigma": 0.25,
        "alpha": 0.001,
        "draws": 100_000,
        "notes": list(log.notes),
        "rows": 5,
        "abstained": 1,
    }
    assert len(log.notes) == 2


def test_the_analysis_of_the_field_finds_the_same_in_our_table(tmp_path: Path) -> None:
    made = community_log(tmp_path / "log", counts(1000) * 3, sigma=0.5, alpha=0.001, draws=1000)
    log = read_log(made, sigma=0.5, alpha=0.001, draws=1000)
    table = Community(write_import(log, tmp_path / "import") / runs.CERTIFICATES)
    thresholds = np.unique([0.0, 0.25, 0.5, *log.radius, *(log.radius + 1e-9)])
    found = [table.at_radius(threshold) for threshold in thresholds]
    assert (
        found == metrics.certified_accuracy(log.predict, log.radius, log.label, thresholds).tolist()
    )
    assert found == log.certified_accuracy(thresholds).tolist()
    assert table.at_radius(0.0) == log.conventional_accuracy()
    # Of the radii as they were printed it finds at least as much, for none was made larger.
    before = Community(made)
    assert all(
        table.at_radius(threshold) <= before.at_radius(threshold) for threshold in thresholds
    )


def test_lower_is_at_most_the_bound_that_the_log_was_made_with(tmp_path: Path) -> None:
    draws, alpha = 1000, 0.001
    made = community_log(tmp_path / "log", counts(draws), sigma=0.5, alpha=alpha, draws=draws)
    log = read_log(made, sigma=0.5, alpha=alpha, draws=draws)
    table = np.genfromtxt(
        write_import(log, tmp_path / "import") / runs.CERTIFICATES, delimiter="\t", names=True
    )
    chosen = np.array(counts(draws), dtype=np.float64)
    bounds = np.asarray(stats.beta.ppf(alpha, chosen, draws - chosen + 1))
    assert (table["lower"] <= bounds).all()
    assert (table["lower"][~log.abstained] >= bounds[~log.abstained] - 0.01).all()
    assert (table["lower"][log.abstained] == 0).all()


@given(st.lists(radii, min_size=1, max_size=8))
def test_what_is_written_is_what_is_held(
    tmp_path_factory: pytest.TempPathFactory, true: list[float]
) -> None:
    folder = tmp_path_factory.mktemp("import")
    rows = [f"{n}\t1\t1\t{radius:.3}\t1\t{n}.25" for n, radius in enumerate(true)]
    log = read_log(write(folder / "log", rows), sigma=0.5)
    table = write_import(log, folder / "out") / runs.CERTIFICATES
    again = read_log(table, sigma=0.5)
    for name in ("idx", "label", "predict", "radius", "seconds"):
        assert (getattr(again, name) == getattr(log, name)).all()


# Our own tables.

OURS = f"{HEADER}\ttop\tlower\tupper\tdraws\tradius_dp\tradius_tight"


def test_our_own_table_is_taken_as_it_is(tmp_path: Path) -> None:
    rows = [
        "0\t3\t3\t0.378123\t1\t0.004\t3\t0.9\t0.1\t1000\t0.1\t0.378123",
        "1\t4\t-1\t0.000000\t0\t0.004\t4\t0.4\t0.4\t1000\t0.0\t0.000000",
        "2\t4\t4\t0.5\t1\t0.004\t4\t0.9\t0.1\t1000\t0.1\t0.5",
    ]
    log = read_log(write(tmp_path / "certificates.tsv", rows, header=OURS), sigma=0.5)
    assert log.ours
    # The third is not as we write it: somebody did, and rounded it in a way unknown.
    assert log.radius.tolist() == [0.378123, 0.0, 0.4995]
    assert log.notes == (
        (
            "left out: top, lower, upper, draws, radius_dp, radius_tight; only the first 6 columns "
            "are imported"
        ),
    )
    table = (write_import(log, tmp_path / "import") / runs.CERTIFICATES).read_text()
    # Its radius may rest on two bounds, and would say too much of one.
    assert table.splitlines()[0].split("\t") == [*COLUMNS, "top"]


def test_further_columns_of_others_are_left_out_with_a_note(tmp_path: Path) -> None:
    rows = [f"{row}\t0.5" for row in ROWS]
    log = read_log(write(tmp_path / "log", rows, header=f"{HEADER}\tpABar"), sigma=0.25)
    assert not log.ours
    assert log.radius[0] == 0.3775
    assert log.notes == ("left out: pABar; only the first 6 columns are imported",)


# Where an import may be written.


@pytest.fixture
def log(file: Path) -> Log:
    return read_log(file, sigma=0.25)


def test_an_import_is_replaced_only_when_asked(log: Log, file: Path, tmp_path: Path) -> None:
    folder = write_import(log, tmp_path / "import")
    (folder / "notes.txt").write_text("mine")
    other = read_log(write(file, ROWS[:1]), sigma=0.25)
    with pytest.raises(RunExists, match=r"there is an import in '.*'; give another --out, or --o"):
        write_import(other, folder)
    write_import(other, folder, overwrite=True)
    assert json.loads((folder / "import.json").read_text())["rows"] == 1
    assert len((folder / runs.CERTIFICATES).read_text().splitlines()) == 2
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_half_written_import_may_be_replaced(log: Log, tmp_path: Path) -> None:
    folder = write_import(log, tmp_path / "import")
    (folder / "import.json").unlink()
    with pytest.raises(RunExists):
        write_import(log, folder)
    write_import(log, folder, overwrite=True)
    assert (folder / "import.json").exists()


def test_the_record_comes_last(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_import(log, tmp_path / "import")

    def full(*_: object) -> None:
        raise RunInaccessible("cannot write: no space")

    monkeypatch.setattr(files, "write_table", full)
    with pytest.raises(RunInaccessible):
        write_import(log, folder, overwrite=True)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("names", [["config.json", "certificates.tsv"], ["other.txt"]])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_run_and_other_files_stay(
    log: Log, tmp_path: Path, names: list[str], overwrite: bool
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    for name in names:
        (folder / name).write_text("kept")
    with pytest.raises(NotARun, match="holds a run or other files; give an empty or a new folder"):
        write_import(log, folder, overwrite=overwrite)
    assert {path.name: path.read_text() for path in folder.iterdir()} == dict.fromkeys(
        names, "kept"
    )


def test_a_place_that_cannot_be_written_to(
    log: Log, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotARun, match="is a file; give another --out"):
        write_import(log, file)
    folder = tmp_path / "empty"
    folder.mkdir()
    write_import(log, folder)

    def denied(_: Path) -> list[Path]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.iterdir", denied)
    with pytest.raises(RunInaccessible, match=r"cannot write to '.*empty': Permission denied"):
        write_import(log, folder)
