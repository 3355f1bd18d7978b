from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from pixeldp import cli, runs, workflow
from pixeldp.cli import console
from pixeldp.metrics import certified_accuracy

if TYPE_CHECKING:
    from pathlib import Path

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}


def pixeldp(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: object
) -> tuple[int, str, str]:
    """Run the command line in this process; returns its exit status, output and errors."""
    monkeypatch.setattr(sys, "argv", ["pixeldp", *map(str, arguments)])
    try:
        cli.main()
        status = 0
    except SystemExit as stop:
        status = int(stop.code or 0)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


class Line:
    """The command line, run in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys, self._monkeypatch = capsys, monkeypatch

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        return pixeldp(self._capsys, self._monkeypatch, *arguments)

    def refuses(self, *arguments: object) -> str:
        """Run what must be refused: status 2, one sentence, no traceback."""
        status, _, error = self(*arguments)
        assert status == 2, error
        assert error.startswith("pixeldp: ")
        assert error.count("\n") == 1, error
        assert "Traceback" not in error
        return error


@pytest.fixture
def line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Line:
    return Line(capsys, monkeypatch)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "digits"
    command = ["train", "digits", "--out", str(folder), "--epochs", "3", "--scale", "0.2"]
    subprocess.run(
        [sys.executable, "-m", "pixeldp", *command], check=True, env=ENVIRONMENT, timeout=300
    )
    return folder


def test_the_whole_line_by_commands(line: Line, trained: Path) -> None:
    status, out, err = line("certify", trained, "--draws", 100, "--images", 20, "--seed", 1)
    assert status == 0
    assert "tight" in out
    assert "conventional accuracy" in out
    assert "certifying: 20 of 20 images" in err
    status, out, _ = line("report", trained)
    assert status == 0
    assert (trained / runs.REPORT).exists()
    status, out, _ = line("info", trained)
    assert status == 0
    for expected in ("small-cnn", "gaussian", "(1, 0.05)-DP", "measured now", "certified", "torch"):
        assert expected in out


def test_demo_goes_from_nothing_to_a_report_worth_reading(line: Line, tmp_path: Path) -> None:
    folder, kept = tmp_path / "demo", tmp_path / "kept.json"
    status, out, err = line("demo", "--out", folder, "--record", kept)
    assert status == 0
    assert "training: 80 of 80 epochs" in err
    assert "seconds a prediction" in out
    assert (folder / runs.REPORT).exists()
    numbers = json.loads(kept.read_text())["numbers"]
    assert numbers["conventional_accuracy"] >= 0.95
    tight, dp = (numbers["certified_accuracy"][name] for name in ("tight", "dp"))
    assert all(best >= paper for best, paper in zip(tight, dp, strict=True))
    results = workflow.read_results(folder)
    half = results.certification.noise.scale / 2
    assert results.test_size() == pytest.approx(half, rel=2e-3)
    made = results.certification
    assert certified_accuracy(made.label, made.radius, results.labels, half) >= 0.85
    # A second demo in the same folder replaces the first.
    status, _, _ = line("demo", "--out", folder, "--epochs", 1, "--draws", 60)
    assert status == 0


@pytest.mark.parametrize(
    ("mechanism", "norm", "after"), [("laplace", 1, "conv1"), ("gaussian", 1, "input")]
)
def test_other_noise_layers_can_be_trained(
    line: Line, tmp_path: Path, mechanism: str, norm: int, after: str
) -> None:
    folder = tmp_path / "run"
    options = ["--noise", mechanism, "--norm", norm, "--after", after, "--size", 0.1]
    status, out, _ = line("train", "digits", "--out", folder, "--epochs", 1, *options)
    assert status == 0
    assert "next: pixeldp certify" in out
    status, out, _ = line("info", folder)
    assert f"{norm}-norm attacks of size 0.1" in out


def test_bad_input_is_one_sentence_and_status_2(line: Line, trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "new"
    assert "there is no run folder" in line.refuses("certify", tmp_path / "none")
    assert "is not a run folder" in line.refuses("info", tmp_path)
    assert "dataset must be one of 'digits'" in line.refuses("train", "mnist7", "--out", out)
    assert "there is a run in" in line.refuses("train", "digits", "--out", trained)
    assert "noise must be" in line.refuses("train", "digits", "--out", out, "--noise", "x")
    assert "not both" in line.refuses("train", "digits", "--out", out, "--size", 1, "--scale", 1)
    assert "norm must be" in line.refuses("train", "digits", "--out", out, "--norm", 7)
    assert "epochs must be" in line.refuses("train", "digits", "--out", out, "--epochs", 0)
    assert "did you mean 'conv" in line.refuses("train", "digits", "--out", out, "--after", "conv")
    laplace = ("--noise", "laplace", "--norm", 2)
    assert "2-norm to the 1-norm" in line.refuses("train", "digits", "--out", out, *laplace)
    assert "draws must be at least 9" in line.refuses("certify", trained, "--draws", 8)
    assert "confidence must be" in line.refuses("certify", trained, "--confidence", 1)
    assert "at most 450" in line.refuses("certify", trained, "--images", 9999)
    assert "seed must be" in line.refuses("certify", trained, "--seed", -1)
    wrong = ("--scores", "softmax", "--bound", "clopper-pearson")
    assert "does not hold for" in line.refuses("certify", trained, *wrong)
    assert not out.exists()


def test_an_uncertified_run_has_no_report(line: Line, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    line("train", "digits", "--out", folder, "--epochs", 1)
    assert "has no certificates yet" in line.refuses("report", folder)


def test_every_command_shows_a_working_example(line: Line) -> None:
    for command in ("demo", "train", "certify", "report", "info"):
        status, out, _ = line(command, "--help")
        assert status == 0
        assert f"Example: pixeldp {command}" in out
    assert line("--help")[0] == 0
    assert line()[0] == 2
    assert line("certify")[0] == 2


def test_a_run_that_is_killed_is_known_to_be_half_written(line: Line, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    command = ["train", "digits", "--out", str(folder), "--epochs", "500"]
    process = subprocess.Popen(
        [sys.executable, "-m", "pixeldp", *command], env=ENVIRONMENT, stderr=subprocess.DEVNULL
    )
    log = folder / runs.TRAINING_LOG
    deadline = time.monotonic() + 120
    while not (log.exists() and log.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert log.stat().st_size
    assert "half written" in line.refuses("certify", folder)
    status, _, _ = line("train", "digits", "--out", folder, "--epochs", 1, "--overwrite")
    assert status == 0


def test_progress_is_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    from rich.console import Console

    screen = io.StringIO()
    monkeypatch.setattr(console, "err", Console(file=screen, force_terminal=True, width=120))
    with console.progress("training", 3, "epochs") as advance:
        advance(1, "accuracy 50 %")
        advance(3, "accuracy 90 %")
    text = screen.getvalue()
    assert "training" in text
    assert "3/3" in text
    assert "accuracy 90 %" in text


def test_long_work_tells_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter(range(0, 10_000, 20))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    with console.progress("certifying", 1000, "images") as advance:
        advance(100)  # drawn before
        for done in range(101, 109):
            advance(done, "9 draws a second")
    lines = capsys.readouterr().err.splitlines()
    assert 3 <= len(lines) <= 5
    assert all("draws a second" in line and "s left" in line for line in lines)


def test_radii_are_decided_and_certified_again(line: Line, trained: Path) -> None:
    options = ("--draws", 4000, "--images", 20, "--target", 0.1, "--target", 0.05, "--restart")
    status, out, err = line("certify", trained, *options)
    assert status == 0
    assert "planned" in out
    assert "on average" in out
    assert "draws a second" in err
    assert "certified at 0.1" in err
    status, _, err = line("certify", trained, *options[:-1])
    assert status == 0
    assert "all images were drawn before" in err
    status, out, _ = line("certify", trained, "--from-scores", "--bound", "beta-binomial")
    assert status == 0
    assert "beta-binomial" in out
    assert "stopped by what they show" in line.refuses(
        "certify", trained, "--from-scores", "--bound", "hoeffding"
    )
    assert "--target is about drawing" in line.refuses(
        "certify", trained, "--from-scores", "--target", 0.1
    )
    status, _, _ = line("report", trained)
    assert status == 0


def test_predictions_take_few_draws(line: Line, trained: Path) -> None:
    status, out, err = line("predict", trained, "--images", 30, "--draws", 500, "--seed", 4)
    assert status == 0
    assert "predicting: 30 of 30 images" in err
    assert "of not naming a wrong label" in out
    assert "draws must be at least" in line.refuses("predict", trained, "--draws", 2)


def test_bad_questions_are_one_sentence(line: Line, trained: Path) -> None:
    def refuses(*options: object) -> str:
        return line.refuses("certify", trained, *options)

    assert "target must be a radius" in refuses("--target", -1)
    assert "target or tolerance, not both" in refuses("--target", 0.1, "--tolerance", 0.1)
    assert "draws must be at least" in refuses("--target", 0.3, "--draws", 40)
    assert "seconds must be" in refuses("--seconds", 0)
    assert "precision must be one of" in refuses("--precision", "fp8")
    assert "device must be" in refuses("--device", "tpu")
    assert "batch must be" in refuses("--batch", 0, "--restart")
    assert "does not hold for softmax" in refuses(
        "--scores", "softmax", "--target", 0.1, "--bound", "beta-binomial"
    )


def test_a_log_of_others_is_imported(line: Line, tmp_path: Path) -> None:
    log = tmp_path / "cohen.tsv"
    rows = ["0\t3\t3\t0.789\t1\t0:00:15.5", "1\t5\t-1\t0.0\t0\t0:00:14.1"]
    log.write_text("\n".join(["idx\tlabel\tpredict\tradius\tcorrect\ttime", *rows]) + "\n")
    asked = ("import", log, "--sigma", 0.25, "--out", tmp_path / "imported", "--at", 0.5)
    status, out, _ = line(*asked)
    assert status == 0
    assert "50.0 %" in out
    assert "2 inputs, 1 abstentions" in out
    assert "there is" in line.refuses(*asked)
    status, _, err = line(*asked, "--overwrite", "--draws", 100)
    assert "note:" in err
    assert "there is no" in line.refuses("import", tmp_path / "none", *asked[2:])


def test_an_interrupted_certification_is_told(
    line: Line, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pixeldp.journals import Journal

    real, kept = Journal.append, 0

    def append(self: Journal, drawn: object) -> None:
        nonlocal kept
        real(self, drawn)  # type: ignore[arg-type]
        kept += 1
        if kept == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", append)
        status, _, err = line("certify", trained, "--draws", 90, "--images", 12, "--restart")
    assert status == 130
    assert "Traceback" not in err
    assert "the same command goes on" in err
    assert "is not finished" in line.refuses("certify", trained, "--draws", 91, "--images", 12)
    status, _, err = line("certify", trained, "--draws", 90, "--images", 12)
    assert status == 0
    assert "going on: 4 of 12 images were drawn before" in err
