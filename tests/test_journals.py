"""What was drawn is kept input by input, and nothing that is damaged or foreign is ever used."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

from pixeldp.errors import RunCorrupt, RunInaccessible
from pixeldp.journals import Journal, merged, packed, read_journal, unpacked
from pixeldp.scores import Drawn
from pixeldp.sketches import PLACES

if TYPE_CHECKING:
    from pathlib import Path

PLAN = "plan-a"


def drawn(number: int, *, sketch: bool = False) -> Drawn:
    rng = np.random.default_rng(number)
    return Drawn(
        number=number,
        label=int(rng.integers(3)),
        draws=int(rng.integers(1, 1000)),
        seconds=float(rng.random()),
        proved=float(rng.random()),
        counts=rng.integers(0, 50, 3),
        sums=rng.random(3) / 3,
        squares=rng.random(3) / 7,
        sketch=rng.random((3, len(PLACES))) if sketch else None,
    )


def same(first: Drawn, second: Drawn) -> bool:
    plain = ("number", "label", "draws", "seconds", "proved")
    arrays = ("counts", "sums", "squares", "sketch")
    return all(getattr(first, name) == getattr(second, name) for name in plain) and all(
        np.array_equal(getattr(first, name), getattr(second, name)) for name in arrays
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "scores" / "journal-0.jsonl"
    with Journal(path, plan=PLAN) as journal:
        for number in range(4):
            journal.append(drawn(number, sketch=number % 2 == 0))
    return path


def test_what_is_kept_comes_back_to_the_bit(path: Path) -> None:
    back = read_journal(path, plan=PLAN)
    assert list(back) == [0, 1, 2, 3]
    assert all(same(back[n], drawn(n, sketch=n % 2 == 0)) for n in back)


@pytest.mark.parametrize("values", [[0.1, -0.0, 1e-300, np.pi], [], [np.nextafter(1, 2)]])
def test_packed_numbers_are_those_numbers(values: list[float]) -> None:
    array = np.array(values)
    assert unpacked(packed(array), "<f8").tobytes() == array.tobytes()


def test_a_line_is_there_as_soon_as_it_is_appended(path: Path) -> None:
    with Journal(path, plan=PLAN) as journal:
        journal.append(drawn(9))
        assert 9 in read_journal(path, plan=PLAN)


def test_cut_anywhere_it_goes_on_with_the_whole_lines(path: Path) -> None:
    """At every byte: a kill or a power cut leaves a beginning of the file."""
    content = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(content) if byte == ord("\n")]
    for size in range(0, len(content) + 1, 7):
        path.write_bytes(content[:size])
        whole = max(sum(end <= size for end in ends) - 1, 0)
        assert list(read_journal(path, plan=PLAN)) == list(range(whole))
        with Journal(path, plan=PLAN) as journal:
            assert list(journal.known) == list(range(whole))
            journal.append(drawn(whole))
        assert list(read_journal(path, plan=PLAN)) == list(range(whole + 1))


def test_a_last_line_of_rubbish_is_dropped(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\0\0\0\0\n\0\0")
    assert list(read_journal(path, plan=PLAN)) == [0, 1, 2, 3]


def test_damage_before_whole_lines_is_refused_and_named(path: Path) -> None:
    lines = path.read_bytes().split(b"\n")
    for number in range(4):
        broken = list(lines)
        broken[number] = broken[number][:40] + b"x" + broken[number][41:]
        path.write_bytes(b"\n".join(broken))
        with pytest.raises(RunCorrupt, match=f"line {number + 1} of .* is damaged"):
            read_journal(path, plan=PLAN)
        with pytest.raises(RunCorrupt, match="--restart"):
            Journal(path, plan=PLAN)


def test_every_changed_byte_of_a_line_is_noticed(path: Path) -> None:
    lines = path.read_bytes().split(b"\n")
    for place in range(0, len(lines[2]), 11):
        broken = bytearray(lines[2])
        broken[place] ^= 1
        path.write_bytes(b"\n".join([*lines[:2], bytes(broken), *lines[3:]]))
        with pytest.raises(RunCorrupt):
            read_journal(path, plan=PLAN)


def test_another_plan_is_refused(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(RunCorrupt, match="drawn by another plan"):
        Journal(path, plan="plan-b")
    assert path.read_bytes() == before


def test_something_else_with_a_right_checksum_is_refused(path: Path) -> None:
    import json
    import zlib

    def line(data: object) -> bytes:
        text = json.dumps(data).encode()
        return f"{zlib.crc32(text):08x} ".encode() + text + b"\n"

    path.write_bytes(line({"format": "other"}))
    with pytest.raises(RunCorrupt, match="not a journal that this version reads"):
        read_journal(path, plan=PLAN)
    head = line({"format": "pixeldp-journal", "version": 1, "plan": PLAN})
    path.write_bytes(head + line({"number": 3}))
    with pytest.raises(RunCorrupt, match="no record of an input"):
        read_journal(path, plan=PLAN)


@pytest.mark.parametrize("half", [False, True])
def test_a_full_disk_is_told_and_loses_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, half: bool
) -> None:
    real = os.write

    def full(file: int, line: bytes) -> int:
        if half:
            return real(file, line[: len(line) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    with Journal(path, plan=PLAN) as journal:
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(RunInaccessible, match="No space left on device") as told:
            journal.append(drawn(4))
        assert told.value.exit_status == 1
        monkeypatch.setattr(os, "write", real)
        journal.append(drawn(4))  # there is room again
    assert list(read_journal(path, plan=PLAN)) == [0, 1, 2, 3, 4]


def test_a_folder_that_may_not_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "scores").write_text("a file in the folder's place")
    with pytest.raises(RunInaccessible, match="cannot write"):
        Journal(tmp_path / "scores" / "journal-0.jsonl", plan=PLAN)


def test_the_same_input_twice_must_be_the_same() -> None:
    slower = drawn(1)
    slower.seconds += 1.0
    assert list(merged([{0: drawn(0), 1: drawn(1)}, {1: slower}])) == [0, 1]
    other = drawn(1)
    other.counts = other.counts + 1
    with pytest.raises(RunCorrupt, match="hold input 1 with different scores"):
        merged([{1: drawn(1)}, {1: other}])
