"""A certification that is killed, shared or disturbed ends as one that was left alone."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from pixeldp import errors, files, runs, workflow
from pixeldp.datasets import load_dataset
from pixeldp.drawing import read_plan
from pixeldp.runs import NoiseConfig, RunConfig
from pixeldp.scores import Scores
from pixeldp.training import Recipe

if TYPE_CHECKING:
    from collections.abc import Callable

    from pixeldp.watching import Seen

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
KILLS = 20

# Starts certifications of a run, one after the other, and kills each at a random moment.
KILLER = """
import os, pathlib, random, signal, sys, time
import torch
from pixeldp import workflow
torch.set_num_threads(1)

folder, kills, longest = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
options = eval(sys.argv[4])
random.seed(3)
killed = grown = before = 0
for attempt in range(kills):
    child = os.fork()
    if child == 0:
        workflow.certify_run(folder, **options)
        os._exit(0)
    time.sleep(random.uniform(0.0, longest))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    killed += os.WIFSIGNALED(status)
    held = sum(path.stat().st_size for path in pathlib.Path(folder).glob("scores/journal-*"))
    grown, before = grown + (held > before), held
print(killed, grown)
workflow.certify_run(folder, **options)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a network that has learnt a little; with noise on its input it is quickly loaded."""
    data = load_dataset("digits")
    config = RunConfig(
        dataset="digits",
        network="small-cnn",
        input_shape=data.input_shape,
        input_range=data.input_range,
        label_names=data.label_names,
        noise=NoiseConfig(mechanism="gaussian", scale=0.2, norm=2, after=None),
        held_sensitivity=None,
        recipe=Recipe(epochs=1, seed=1),
    )
    folder = tmp_path_factory.mktemp("drawing") / "run"
    workflow.train_run(config, folder)
    return folder


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Callable[[str], Path]:
    return lambda name: Path(shutil.copytree(run, tmp_path / name))


def deterministic(folder: Path) -> tuple[str, dict[str, bytes]]:
    """The columns and arrays that time has no part in."""
    lines = (folder / runs.CERTIFICATES).read_text(encoding="utf-8").splitlines()
    place = lines[0].split("\t").index("time")
    cells = (line.split("\t") for line in lines)
    table = "\n".join("\t".join(row[:place] + row[place + 1 :]) for row in cells)
    scores = runs.read_scores(folder, runs.read_config(folder))
    names = ("counts", "sums", "squares", "draws", "selected", "sketch")
    arrays = {name: getattr(scores, name) for name in names}
    return table, {name: array.tobytes() for name, array in arrays.items() if array is not None}


STOPPED = {"draws": 4000, "targets": (0.05, 0.1), "confidence": 0.999, "images": 300, "seed": 5}


@pytest.mark.parametrize(
    "options",
    [
        {"draws": 1500, "images": 60, "seed": 5, "scores": "softmax"},
        STOPPED,
    ],
    ids=["fixed number, softmax", "stopped, argmax"],
)
def test_killed_at_random_moments_it_ends_with_the_same_files(
    copy: Callable[[str], Path], options: dict[str, object]
) -> None:
    alone, killed = copy("alone"), copy("killed")
    began = time.monotonic()
    workflow.certify_run(alone, **options)  # type: ignore[arg-type]
    took = time.monotonic() - began
    longest = str(0.6 + took / 8)
    command = [sys.executable, "-c", KILLER, str(killed), str(KILLS), longest, repr(options)]
    done = subprocess.run(
        command, env=ENVIRONMENT, timeout=300, capture_output=True, text=True, check=True
    )
    times_killed, times_grown = map(int, done.stdout.split())
    assert times_killed >= KILLS // 2, done.stderr
    assert times_grown >= 3, done.stderr  # they were killed in the middle of their work
    assert deterministic(killed) == deterministic(alone)
    assert not list((killed / "scores").glob("journal-*"))


def stop_after(images: int) -> Callable[[Seen], None]:
    def stop(seen: Seen) -> None:
        if seen.done == images:
            raise KeyboardInterrupt

    return stop


def interrupted(folder: Path, after: int, **options: object) -> None:
    with pytest.raises(KeyboardInterrupt):
        workflow.certify_run(folder, progress=stop_after(after), **options)  # type: ignore[arg-type]


def test_it_repeats_only_the_input_in_flight(copy: Callable[[str], Path]) -> None:
    folder, seen = copy("run"), list[int]()
    interrupted(folder, 7, draws=200, images=20, seed=5)
    workflow.certify_run(
        folder, draws=200, images=20, seed=5, progress=lambda s: seen.append(s.done)
    )
    assert seen[:2] == [7, 8]
    assert seen[-1] == 20


def test_the_seed_of_an_interrupted_certification_is_kept(copy: Callable[[str], Path]) -> None:
    folder = copy("run")
    interrupted(folder, 3, draws=100, images=10)
    plan = read_plan(folder)
    assert plan is not None
    made = workflow.certify_run(folder, draws=100, images=10)
    assert made is not None
    assert made.certification.scores.seed == plan.seed


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        ({"draws": 300, "images": 10}, "draws=200 instead of 300"),
        ({"draws": 200, "images": 11}, "images=10 instead of 11"),
        ({"draws": 200, "images": 10, "seed": 6}, "seed=5 instead of 6"),
        ({"draws": 200, "images": 10, "precision": "bf16"}, "precision='fp32' instead of 'bf16'"),
        ({"draws": 200, "images": 10, "selection": 20}, "selection=0 instead of 20"),
    ],
)
def test_another_certification_is_refused_while_one_is_unfinished(
    copy: Callable[[str], Path], options: dict[str, object], difference: str
) -> None:
    folder = copy("run")
    interrupted(folder, 3, draws=200, images=10, seed=5)
    before = (folder / "scores" / "journal-0.jsonl").read_bytes()
    with pytest.raises(errors.RunUnfinished, match=difference):
        workflow.certify_run(folder, **options)  # type: ignore[arg-type]
    assert (folder / "scores" / "journal-0.jsonl").read_bytes() == before
    made = workflow.certify_run(folder, **options, restart=True)  # type: ignore[arg-type]
    assert made is not None


def test_the_draws_of_a_fixed_number_serve_another_confidence(copy: Callable[[str], Path]) -> None:
    folder = copy("run")
    interrupted(folder, 3, draws=200, images=10, seed=5)
    made = workflow.certify_run(folder, draws=200, images=10, confidence=0.99, certificate="dp")
    assert made is not None
    assert made.certification.confidence == 0.99
    assert made.certification.scores.seed == 5


def test_a_finished_certification_is_not_drawn_again(copy: Callable[[str], Path]) -> None:
    folder, seen = copy("run"), list[object]()
    first = workflow.certify_run(folder, draws=200, images=10)
    again = workflow.certify_run(folder, draws=200, images=10, progress=seen.append)
    fresh = workflow.certify_run(folder, draws=200, images=10, restart=True)
    assert first is not None
    assert again is not None
    assert fresh is not None
    seeds = [made.certification.scores.seed for made in (first, again, fresh)]
    assert seeds[0] == seeds[1] != seeds[2]
    assert not seen


def test_kept_draws_are_certified_again_without_the_network(
    copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy("run")
    first = workflow.certify_run(folder, draws=400, images=10, seed=1)
    monkeypatch.setattr(runs, "load", lambda _: pytest.fail("the network was loaded"))
    (folder / runs.WEIGHTS).unlink()
    again = workflow.certify_again(folder, confidence=0.999, certificate="dp", bound="hoeffding")
    assert first is not None
    assert (again.certification.lower < first.certification.lower).all()
    assert runs.read_settings(folder).bound == "hoeffding"
    soft = workflow.certify_again(folder, scores="softmax", bound="bernstein")
    assert soft.certification.kind == "softmax"
    with pytest.raises(errors.InvalidArgument, match="needs a sketch of softmax scores"):
        workflow.certify_again(folder, scores="softmax", bound="betting")


FEWER = {**STOPPED, "images": 60}


def test_draws_that_were_stopped_are_certified_again_by_anytime_bounds_alone(
    copy: Callable[[str], Path],
) -> None:
    folder = copy("run")
    workflow.certify_run(folder, **FEWER)  # type: ignore[arg-type]
    for bound in ("clopper-pearson", "hoeffding", "bernstein"):
        with pytest.raises(errors.InvalidArgument, match="stopped by what they show"):
            workflow.certify_again(folder, bound=bound)
    assert workflow.certify_again(folder, confidence=0.99).certification.bounds.method == "planned"
    with pytest.raises(errors.InvalidArgument, match="bound='planned' holds for what was planned"):
        workflow.certify_again(folder, confidence=0.9999)
    made = workflow.certify_again(folder, confidence=0.9999, bound="beta-binomial")
    assert (made.certification.radius >= 0).all()


def test_a_second_process_is_refused(copy: Callable[[str], Path]) -> None:
    folder = copy("run")
    (folder / "scores").mkdir()
    with (folder / runs.LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(errors.RunBusy, match="another process is working on the run"):
            workflow.certify_run(folder, draws=50, images=2)
    assert workflow.certify_run(folder, draws=50, images=2) is not None


def test_journals_of_another_plan_are_refused(copy: Callable[[str], Path]) -> None:
    one, other = copy("one"), copy("other")
    interrupted(one, 3, draws=200, images=10, seed=5)
    interrupted(other, 3, draws=200, images=10, seed=6)
    shutil.copy(one / "scores" / "journal-0.jsonl", other / "scores" / "journal-0.jsonl")
    with pytest.raises(errors.RunCorrupt, match="drawn by another plan"):
        workflow.certify_run(other, draws=200, images=10, seed=6)


def test_the_work_of_several_processes_is_put_together(copy: Callable[[str], Path]) -> None:
    """As it lies after a torchrun of two was stopped: two journals, continued by one process."""
    alone, shared = copy("alone"), copy("shared")
    options = {"draws": 200, "images": 12, "seed": 5}
    workflow.certify_run(alone, **options)  # type: ignore[arg-type]
    interrupted(shared, 5, **options)
    first = shared / "scores" / "journal-0.jsonl"
    first.rename(shared / "scores" / "journal-3.jsonl")
    seen: list[int] = []
    workflow.certify_run(shared, **options, progress=lambda s: seen.append(s.done))  # type: ignore[arg-type]
    assert seen[0] == 5
    assert deterministic(shared) == deterministic(alone)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_text("{"), "not readable JSON"),
        (lambda path: path.write_text('{"format": "x"}'), "is not the plan of a run's draws"),
        (
            lambda path: path.write_text(path.read_text().replace('"version": 1', '"version": 9')),
            "version 9; install a newer pixeldp",
        ),
        (lambda path: path.write_text(path.read_text().replace('"layout"', '"other"')), "damaged"),
    ],
)
def test_a_plan_that_cannot_be_read_is_refused(
    copy: Callable[[str], Path], damage: Callable[[Path], object], message: str
) -> None:
    folder = copy("run")
    interrupted(folder, 3, draws=200, images=10, seed=5)
    damage(folder / runs.PLAN)
    with pytest.raises(errors.RunError, match=message):
        workflow.certify_run(folder, draws=200, images=10, seed=5)


def test_alpha_and_draws_that_cannot_meet_leave_nothing_behind(copy: Callable[[str], Path]) -> None:
    folder = copy("run")
    with pytest.raises(errors.TooFewDraws, match="draws must be at least 9"):
        workflow.certify_run(folder, draws=8)
    with pytest.raises(errors.TooFewDraws, match=r"to certify target=0\.3"):
        workflow.certify_run(folder, draws=64, targets=(0.3,), confidence=0.999)
    assert not (folder / runs.PLAN).exists()


def test_what_broke_off_between_the_files_is_mended(
    copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scores are written, and the process dies before the certificates."""
    folder = copy("run")
    with monkeypatch.context() as patch:
        patch.setattr(files, "write_table", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            workflow.certify_run(folder, draws=100, images=5, seed=2)
    assert not (folder / runs.CERTIFICATES).exists()
    workflow.certify_run(folder, draws=100, images=5, seed=2)
    assert len((folder / runs.CERTIFICATES).read_text().splitlines()) == 6


def test_stopped_scores_come_back_from_the_disk(copy: Callable[[str], Path]) -> None:
    folder = copy("run")
    made = workflow.certify_run(folder, **FEWER)  # type: ignore[arg-type]
    assert made is not None
    kept = runs.read_scores(folder, runs.read_config(folder))
    before = made.certification.scores
    assert isinstance(kept, Scores)
    assert kept.stopped is not None
    assert before.stopped is not None
    assert kept.stopped.alpha == before.stopped.alpha
    assert np.array_equal(kept.stopped.proved, before.stopped.proved)
    assert workflow.read_results(folder).certification.radius.tolist() == (
        made.certification.radius.tolist()
    )


def _workers(agent: int) -> list[int]:
    return [int(n) for n in Path(f"/proc/{agent}/task/{agent}/children").read_text().split()]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes in /proc")
def test_two_processes_of_torchrun_one_killed_give_the_result_of_one_process(
    copy: Callable[[str], Path],
) -> None:
    alone, shared = copy("alone"), copy("shared")
    options = {"draws": 1500, "images": 150, "seed": 5}
    workflow.certify_run(alone, **options)  # type: ignore[arg-type]
    asked = [f"--{name}={value}" for name, value in options.items()]
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=5"]
    command = [sys.executable, "-m", *torchrun, "-m", "pixeldp", "certify", str(shared), *asked]
    with (shared.parent / "torchrun.log").open("w+") as log:
        agent = subprocess.Popen(command, env=ENVIRONMENT, stdout=log, stderr=log)
        try:
            killed = _kill_when_drawing(shared, agent.pid)
            assert agent.wait(timeout=120) == 0
        finally:
            agent.kill()
            agent.wait()
            log.seek(0)
            sys.stderr.write(log.read())  # shown if the test fails
    assert killed
    assert deterministic(shared) == deterministic(alone)


def _kill_when_drawing(folder: Path, agent: int) -> bool:
    """Kill one worker of an agent as soon as both journals hold a few inputs."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        journals = [folder / "scores" / f"journal-{rank}.jsonl" for rank in range(2)]
        held = [p.read_bytes().count(b"\n") if p.exists() else 0 for p in journals]
        if min(held) > 3:
            os.kill(_workers(agent)[-1], signal.SIGKILL)
            return True
        time.sleep(0.02)
    return False


def test_settings_of_before_still_read(copy: Callable[[str], Path]) -> None:
    """Runs that were certified before draws could be stopped have fewer settings."""
    folder = copy("run")
    workflow.certify_run(folder, draws=100, images=4, seed=1)
    path = folder / runs.SETTINGS
    data = json.loads(path.read_text())
    new = ("targets", "tolerance", "seconds", "shared_noise", "precision", "device")
    path.write_text(json.dumps({k: v for k, v in data.items() if k not in new}))
    assert len(workflow.read_results(folder).labels) == 4


def test_bf16_is_recorded_and_is_another_classifier(copy: Callable[[str], Path]) -> None:
    folder = copy("run")
    made = workflow.certify_run(folder, draws=300, images=6, seed=1, precision="bf16")
    assert made is not None
    assert runs.read_settings(folder).precision == "bf16"
    other = workflow.certify_run(folder, draws=300, images=6, seed=1)
    assert other is not None
    short, full = made.certification.scores.sums, other.certification.scores.sums
    assert not np.array_equal(short, full)
    assert np.allclose(short, full, atol=0.05 * 300)
    assert torch.get_float32_matmul_precision() == "highest"
