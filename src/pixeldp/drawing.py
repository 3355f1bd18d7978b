"""The draws of a run: planned, made by one process or many, kept as they go, put together.

::

    scores/plan.json         what is drawn, with the seed and the layout; written first
    scores/journal-N.jsonl   what process N has drawn so far, input by input
    scores/test.safetensors  all of it, once it is complete; the journals go then
    scores/lock              held while a process works

The same command after an interruption finds the plan and the journals and makes what is missing.
Every input is drawn by its own stream of the plan's seed, so it does not matter who draws it, nor
when: the result is that of an uninterrupted run.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from pixeldp import files, runs
from pixeldp.errors import RunBusy, RunCorrupt, RunTooNew, RunUnfinished
from pixeldp.journals import Journal, merged, read_journal
from pixeldp.layouts import Layout
from pixeldp.probing import probe_labels
from pixeldp.sampling import draw, layout_for
from pixeldp.scores import Drawn, Scores
from pixeldp.streams import fresh_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import torch

    from pixeldp.batches import Sampling
    from pixeldp.model import PixelDP
    from pixeldp.runs import RunConfig
    from pixeldp.tasks import Task
    from pixeldp.teams import Team

Result = TypeVar("Result")

_FORMAT, _VERSION = "pixeldp-plan", 1


@dataclass(frozen=True)
class Plan:
    """What is drawn, the seed, and the layout that it goes through the network by."""

    what: dict[str, Any]
    seed: int
    layout: Layout

    @property
    def digest(self) -> str:
        """What a journal is known by."""
        return hashlib.sha256(self.as_json().encode()).hexdigest()

    def as_json(self) -> str:
        """Return the text of the plan's file."""
        content = {
            "format": _FORMAT,
            "version": _VERSION,
            "what": self.what,
            "seed": self.seed,
            "layout": self.layout.as_dict(),
        }
        return json.dumps(content, indent=2, sort_keys=True) + "\n"


@dataclass(frozen=True, kw_only=True)
class Work:
    """A run whose test inputs are to be drawn, and everything that says how.

    Attributes
    ----------
    folder, config, model, task:
        The run, its configuration, its model, and what is asked.
    inputs:
        ``[N, ...]``, on the device of the model.
    seed:
        None for the plan's, or for one from the operating system.
    compiled:
        Whether to try ``torch.compile`` when the layout is found out.
    batch:
        Draws that go through the network at once; found out if it is not given.
    restart:
        Whether to drop what was drawn before.
    """

    folder: Path
    config: RunConfig
    model: PixelDP
    task: Task
    inputs: torch.Tensor
    seed: int | None = None
    compiled: bool = False
    batch: int | None = None
    restart: bool = False

    def what(self) -> dict[str, Any]:
        """Return all that decides what is drawn, apart from seed and layout."""
        noise = self.model.noise
        return {
            "weights_sha256": self.config.weights_sha256,
            "dataset": self.config.dataset,
            "images": len(self.inputs),
            "noise": [noise.name, noise.scale, str(noise.norm), self.config.noise.after],
            "precision": self.model.precision,
            "device": self.inputs.device.type,
            "task": self.task.drawing(),
        }


@dataclass(frozen=True)
class Progress:
    """What a process tells of its work: all its inputs, those done, and the last one."""

    total: int
    done: int
    drawn: Drawn | None


def draw_run(
    work: Work,
    team: Team,
    use: Callable[[Scores], Result],
    *,
    progress: Callable[[Progress], object] | None = None,
) -> Result | None:
    """Draw what is missing of a run's scores, and use all of them, in process 0 alone.

    The journals go when ``use`` is done, so that whatever interrupts it can be repeated.
    """
    with locked(work.folder, team):
        scores = _drawn(work, team, progress)
        if scores is None:
            return None
        used = use(scores)
        _discard_journals(work.folder)
        return used


def _drawn(work: Work, team: Team, progress: Callable[[Progress], object] | None) -> Scores | None:
    plan, finished = team.told(lambda: _agreed(work))
    if finished is not None:
        return finished if team.rank == 0 else None
    with Journal(_journal(work.folder, team.rank), plan=plan.digest) as journal:
        known = _known(work.folder, plan, journal, team)
        before = set().union(*team.shared(set(known)))
        missing = [n for n in range(len(work.inputs)) if n not in before]
        mine = missing[team.rank :: team.size]
        fresh = _draw(work, plan, journal, mine, progress, len(before) if not team.rank else 0)
    every = team.shared({**known, **fresh})
    if team.rank:
        return None
    return _scores(work, plan, merged(every))


def _discard_journals(folder: Path) -> None:
    """Remove the journals of a run whose scores are complete and kept."""
    files.remove(folder, *(str(path.relative_to(folder)) for path in _journals(folder)))


def _agreed(work: Work) -> tuple[Plan, Scores | None]:
    """Return the plan to follow: the one that is there, if it is the same; and finished scores."""
    path, what = work.folder / runs.PLAN, work.what()
    found = read_plan(work.folder)
    if found is not None and not work.restart:
        same = found.what == what and work.seed in (None, found.seed)
        if same:
            kept = runs.read_scores(work.folder, work.config) if _finished(work, found) else None
            return found, kept
        if any(read_journal(p, plan=found.digest) for p in _journals(work.folder)):
            raise RunUnfinished(
                f"the run {str(work.folder)!r} holds draws of another certification that is not "
                f"finished ({_difference(found, what, work.seed)}); finish it by the same command "
                "as before, or drop its draws with --restart"
            )
    # Refuse a network whose scores mean nothing, and too few draws, before anything is written.
    work.model.check_inputs(work.inputs)
    labels = probe_labels(work.model, work.inputs)
    work.task.check_draws(labels, inputs=len(work.inputs))
    _sampling(work, seed=0)
    plan = Plan(what, fresh_seed() if work.seed is None else work.seed, _layout(work))
    _discard_journals(work.folder)
    files.write(path, plan.as_json().encode())
    return plan, None


def _layout(work: Work) -> Layout:
    total = len(work.inputs) * work.task.draws
    # Draws that are stopped are a fraction of what they might be.
    expected = total // 20 if work.task.adaptive else total
    return layout_for(
        work.model, work.inputs[:1], draws=expected, compiled=work.compiled, batch=work.batch
    )


def _finished(work: Work, plan: Plan) -> bool:
    """Whether the kept scores are those of the plan."""
    return runs.plan_of_scores(work.folder) == plan.digest


def _known(folder: Path, plan: Plan, journal: Journal, team: Team) -> dict[int, Drawn]:
    """Return what this process can see: its own journal, and those of others beside it."""
    parts = [journal.known]
    # Others may be writing theirs; what they had when all had opened them is enough.
    team.shared(None)
    parts += [
        read_journal(path, plan=plan.digest) for path in _journals(folder) if path != journal.path
    ]
    return merged(parts)


def _draw(
    work: Work,
    plan: Plan,
    journal: Journal,
    numbers: list[int],
    progress: Callable[[Progress], object] | None,
    before: int,
) -> dict[int, Drawn]:
    fresh: dict[int, Drawn] = {}

    def keep(drawn: Drawn) -> None:
        journal.append(drawn)
        fresh[drawn.number] = drawn
        if progress is not None:
            progress(Progress(before + len(numbers), before + len(fresh), drawn))

    if progress is not None:
        progress(Progress(before + len(numbers), before, None))
    sampling = replace(_sampling(work, seed=plan.seed), layout=plan.layout)
    draw(work.model, work.inputs.__getitem__, numbers, sampling, keep)
    return fresh


def _sampling(work: Work, *, seed: int) -> Sampling:
    return work.task.sampling(
        seed=seed,
        noise=work.model.noise,
        sensitivity=work.model.sensitivity,
        inputs=len(work.inputs),
    )


def _scores(work: Work, plan: Plan, drawn: dict[int, Drawn]) -> Scores:
    scores = Scores.of(
        list(drawn.values()), seed=plan.seed, stopped=work.task.stopped(len(work.inputs))
    )
    runs.write_scores(work.folder, work.config, scores, plan=plan.digest)
    return scores


def read_plan(folder: Path) -> Plan | None:
    """Return the plan of a run's draws, if there is one."""
    path = folder / runs.PLAN
    if not path.is_file():
        return None
    data = files.json_object(path)
    if data.get("format") != _FORMAT:
        raise RunCorrupt(f"{str(path)!r} is not the plan of a run's draws; restore or remove it")
    if data.get("version") != _VERSION:
        raise RunTooNew(
            f"{str(path)!r} is a plan of version {data.get('version')}; install a newer pixeldp"
        )
    try:
        return Plan(data["what"], int(data["seed"]), Layout(**data["layout"]))
    except (KeyError, TypeError, ValueError) as error:
        raise RunCorrupt(
            f"{str(path)!r} is damaged ({error}); draw again with --restart"
        ) from error


def _difference(plan: Plan, what: dict[str, Any], seed: int | None) -> str:
    """Name what another certification had otherwise."""
    flat = [{**found, **found["task"]} for found in (plan.what, what)]
    names = sorted({name for one in flat for name in one} - {"task"})
    told = [
        f"{name}={flat[0].get(name)!r} instead of {flat[1].get(name)!r}"
        for name in names
        if flat[0].get(name) != flat[1].get(name)
    ]
    if seed not in (None, plan.seed):
        told.append(f"seed={plan.seed} instead of {seed}")
    return ", ".join(told)


def _journal(folder: Path, rank: int) -> Path:
    return folder / "scores" / f"journal-{rank}.jsonl"


def _journals(folder: Path) -> list[Path]:
    return sorted((folder / "scores").glob("journal-*.jsonl"))


@contextmanager
def locked(folder: Path, team: Team) -> Iterator[None]:
    """Keep others away from the run: a single process alone, a team's members beside each other.

    The lock is the operating system's and goes with the process, however that ends.
    """
    paths = [(folder / runs.LOCK, fcntl.LOCK_SH if team.size > 1 else fcntl.LOCK_EX)]
    if team.size > 1:
        paths.append((folder / f"{runs.LOCK}-{team.rank}", fcntl.LOCK_EX))
    held = []
    try:
        for path, kind in paths:
            held.append(_opened(path))
            try:
                fcntl.flock(held[-1], kind | fcntl.LOCK_NB)
            except OSError as error:
                raise RunBusy(
                    f"another process is working on the run {str(folder)!r}; wait for it, or stop "
                    "it: what it has drawn is kept"
                ) from error
        yield
    finally:
        for file in held:
            os.close(file)


def _opened(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise files.cannot("write", path, error) from error
