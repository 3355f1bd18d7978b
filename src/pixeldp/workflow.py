"""The steps between a run folder and its files: train, certify, report; what the commands do."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from pixeldp import files, plots, report, runs, teams
from pixeldp._checks import one_of, whole
from pixeldp.certificates import CERTIFICATES
from pixeldp.certification import Certification, certify_scores
from pixeldp.datasets import Dataset, load_dataset
from pixeldp.drawing import Work, draw_run, locked
from pixeldp.errors import InvalidArgument, RunCorrupt
from pixeldp.files import rounded_down, rounded_up
from pixeldp.layouts import block_draws
from pixeldp.precisions import PRECISIONS
from pixeldp.prediction import Prediction, predict
from pixeldp.report import Results
from pixeldp.runs import CertificationSettings, RunConfig
from pixeldp.streams import checked_seed
from pixeldp.tasks import Task
from pixeldp.teams import Team
from pixeldp.training import train
from pixeldp.watching import Watch

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable

    import numpy as np
    import numpy.typing as npt

    from pixeldp.scores import Scores
    from pixeldp.training import Epoch
    from pixeldp.watching import Seen


def train_run(
    config: RunConfig,
    folder: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    progress: Callable[[Epoch], object] | None = None,
) -> RunConfig:
    """Train what ``config`` describes and leave it in ``folder``."""
    dataset = load_dataset(config.dataset)
    with torch.random.fork_rng():
        torch.manual_seed(config.recipe.seed)
        model = config.build()
        root = runs.begin(folder, overwrite=overwrite)
        for epoch in train(model, dataset, config.recipe):
            runs.append_log(root, asdict(epoch))
            if progress is not None:
                progress(epoch)
    return runs.finish(root, config, model)


def certify_run(
    folder: str | os.PathLike[str],
    *,
    task: Task | None = None,
    images: int | None = None,
    seed: int | None = None,
    precision: str = "fp32",
    device: str = "cpu",
    compiled: bool = False,
    batch: int | None = None,
    restart: bool = False,
    progress: Callable[[Seen], object] | None = None,
    **asked: Any,  # noqa: ANN401 - the fields of Task, checked by it
) -> Results | None:
    """Certify the first ``images`` of the run's test split and keep scores and certificates.

    What is asked is a ``task``, or the fields of one. An interrupted certification goes on where
    it was. Under ``torchrun`` the processes share the images, and all but process 0 return None.
    """
    root, task = Path(folder), Task(**asked) if task is None else task
    with teams.team() as team:
        config, model = runs.read_config(root), runs.load(root)
        model.precision = one_of("precision", precision, PRECISIONS)
        where = teams.device_named(device)
        dataset = load_dataset(config.dataset)
        inputs, labels = _first(dataset, images)
        work = Work(
            folder=root,
            config=config,
            model=model.to(where),
            task=replace(task, step=block_draws(where)),
            inputs=inputs.to(where),
            seed=None if seed is None else checked_seed(seed),
            compiled=compiled,
            batch=batch,
            restart=restart,
        )

        def use(scores: Scores) -> Results:
            settings = _settings(work, scores)
            return _keep_certificates(root, config, dataset, scores, settings)

        watch = None if progress is None or team.rank else Watch(work, labels, progress)
        return draw_run(work, team, use, progress=watch)


@dataclass(frozen=True, eq=False)
class Predictions:
    """What was predicted of a run's test images without certificates, and what is true."""

    prediction: Prediction
    labels: npt.NDArray[np.int64]
    seconds: float

    def facts(self) -> list[tuple[str, str]]:
        """What was predicted, and with how many draws, in few words."""
        made, draws = self.prediction, self.prediction.draws
        right, decided = made.label == self.labels, ~made.abstained
        return [
            ("images", f"{len(right)}, {int(made.abstained.sum())} abstained"),
            ("accuracy", f"{100 * right.mean():.1f} %, abstentions by the label they lean to"),
            (
                "accuracy where decided",
                f"{100 * right[decided].mean():.1f} %" if decided.any() else "–",
            ),
            ("confidence", f"{made.confidence:g} of not naming a wrong label, for each image"),
            ("draws a prediction", f"{draws.mean():.0f} on average, {draws.max()} at most"),
            ("seconds", f"{self.seconds:.3g}"),
            ("seed", f"{made.seed}"),
        ]


def predict_run(
    folder: str | os.PathLike[str],
    *,
    images: int | None = None,
    precision: str = "fp32",
    device: str = "cpu",
    progress: Callable[[int], object] | None = None,
    **asked: Any,  # noqa: ANN401 - the arguments of predict, checked by it
) -> Predictions:
    """Predict the first ``images`` of the run's test split, without certificates."""
    config, model = runs.read_config(folder), runs.load(folder)
    model.precision = one_of("precision", precision, PRECISIONS)
    where = teams.device_named(device)
    inputs, labels = _first(load_dataset(config.dataset), images)
    began = time.perf_counter()
    made = predict(model.to(where), inputs.to(where), progress=progress, **asked)
    return Predictions(made, labels.numpy(), time.perf_counter() - began)


def certify_again(
    folder: str | os.PathLike[str],
    *,
    confidence: float | None = None,
    scores: str | None = None,
    certificate: str | None = None,
    bound: str | None = None,
    plan: str | None = None,
    simultaneous: bool | None = None,
) -> Results:
    """Certify a run once more from the draws that it keeps; the network is not needed.

    What is left out stays as it was. A bound that does not hold for how the draws were made is
    refused.
    """
    root, config = Path(folder), runs.read_config(folder)
    with locked(root, Team()):
        before = runs.read_settings(root)
        drawn = _scores_that_belong(root, config, before)
        kind = before.scores if scores is None else scores
        # Another kind of scores wants another bound.
        kept = before.bound if kind == before.scores else None
        made = certify_scores(
            drawn,
            noise=config.noise.build(),
            sensitivity=before.sensitivity,
            confidence=before.confidence if confidence is None else confidence,
            scores=kind,
            certificate=before.certificate if certificate is None else certificate,
            bound=kept if bound is None else bound,
            plan=before.plan if plan is None else plan,
            simultaneous=before.simultaneous if simultaneous is None else simultaneous,
        )
        changed = {
            "confidence": made.confidence,
            "scores": kind,
            "certificate": made.certificate,
            "bound": made.bounds.method,
            "plan": made.bounds.spending.plan,
            "simultaneous": made.bounds.simultaneous,
        }
        settings = before.model_copy(update=changed)
        return _keep_certificates(root, config, load_dataset(config.dataset), drawn, settings)


def _settings(work: Work, scores: Scores) -> CertificationSettings:
    task = work.task
    return CertificationSettings(
        confidence=task.confidence,
        scores=task.scores,
        certificate=task.certificate,
        bound=task.method,
        plan=task.way,
        selection=task.selected,
        simultaneous=task.simultaneous,
        sensitivity=work.model.sensitivity,
        images=len(work.inputs),
        draws=task.draws,
        seed=scores.seed,
        targets=task.targets,
        tolerance=task.tolerance,
        seconds=task.seconds,
        shared_noise=task.shared_noise,
        precision=work.model.precision,
        device=work.inputs.device.type,
    )


def _keep_certificates(
    root: Path,
    config: RunConfig,
    dataset: Dataset,
    drawn: Scores,
    settings: CertificationSettings,
) -> Results:
    """Certify from scores, and write down how and what."""
    results = _results(config, _certified(config, drawn, settings), dataset, settings)
    files.remove(root, runs.REPORT, runs.CURVE)  # they show the earlier certificates
    files.write(root / runs.SETTINGS, (settings.model_dump_json(indent=2) + "\n").encode())
    files.write_table(root / runs.CERTIFICATES, _columns(results))
    return results


def _certified(config: RunConfig, drawn: Scores, settings: CertificationSettings) -> Certification:
    return certify_scores(
        drawn,
        noise=config.noise.build(),
        sensitivity=settings.sensitivity,
        confidence=settings.confidence,
        scores=settings.scores,
        certificate=settings.certificate,
        bound=settings.bound,
        plan=settings.plan,
        simultaneous=settings.simultaneous,
    )


def _scores_that_belong(root: Path, config: RunConfig, settings: CertificationSettings) -> Scores:
    """Return the kept scores, if they are those that the settings tell of."""
    drawn = runs.read_scores(root, config)
    most = int(drawn.draws.max(initial=0))
    # The most draws that an input may take, where they are stopped.
    draws = settings.draws if drawn.stopped and most <= settings.draws else most
    said = (settings.images, settings.draws, settings.seed)
    kept = (len(drawn.draws), draws, drawn.seed)
    if said != kept:
        raise RunCorrupt(
            f"the scores in {str(root)!r} are not those that its {runs.SETTINGS} tells of: images, "
            f"draws and seed are {kept}, not {said}; certify the run again"
        )
    return drawn


def read_results(folder: str | os.PathLike[str]) -> Results:
    """Return what was certified in a run, from its scores; the network is not needed."""
    root, config = Path(folder), runs.read_config(folder)
    settings = runs.read_settings(root)
    drawn = _scores_that_belong(root, config, settings)
    dataset = load_dataset(config.dataset)
    return _results(config, _certified(config, drawn, settings), dataset, settings)


def write_report(folder: str | os.PathLike[str]) -> Path:
    """Write ``report.html`` and ``plots/`` of a certified run; return the page's path."""
    root, results = Path(folder), read_results(folder)
    files.write(root / runs.CURVE, plots.png(results.curve()))
    page = root / runs.REPORT
    files.write(page, report.render(results).encode())
    return page


def _first(dataset: Dataset, images: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    available = len(dataset.test_labels)
    count = available if images is None else whole("images", images, least=1)
    if count > available:
        raise InvalidArgument(
            f"images must be at most {available}, the test images of {dataset.name}, "
            f"got images={count}"
        )
    return dataset.test_inputs[:count], dataset.test_labels[:count]


def _results(
    config: RunConfig, made: Certification, dataset: Dataset, settings: CertificationSettings
) -> Results:
    inputs, labels = _first(dataset, len(made.label))
    after = config.noise.after
    return Results(
        certification=made,
        labels=labels.numpy(),
        images=inputs.double().numpy(),
        label_names=config.label_names,
        input_range=config.input_range,
        placement="on the input" if after is None else f"after {after}",
        title=f"{config.network} on {config.dataset}",
        targets=settings.targets,
        arithmetic=settings.precision,
    )


def _columns(results: Results) -> dict[str, Iterable[object]]:
    """Lay out the certificates: first the columns that the field's scripts read, then ours."""
    made, labels = results.certification, results.labels
    predict = [
        -1 if no else int(label) for label, no in zip(made.label, made.abstained, strict=True)
    ]
    return {
        "idx": range(len(labels)),
        "label": labels,
        "predict": predict,
        "radius": [rounded_down(float(radius)) for radius in made.radius],
        "correct": [int(p == label) for p, label in zip(predict, labels, strict=True)],
        "time": [f"{seconds:.6f}" for seconds in made.scores.seconds],
        "top": made.label,
        "lower": [rounded_down(float(value), 9) for value in made.lower],
        "upper": [rounded_up(float(value), 9) for value in made.upper],
        "draws": made.scores.draws,
        **{
            f"radius_{name}": [rounded_down(float(radius)) for radius in results.radii()[name]]
            for name in CERTIFICATES
        },
    }
