"""The steps between a run folder and its files: train, certify, report; what the commands do."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from pixeldp import plots, report, runs
from pixeldp._checks import whole
from pixeldp.certificates import CERTIFICATES
from pixeldp.certification import Certification, certify, certify_scores
from pixeldp.datasets import Dataset, load_dataset
from pixeldp.errors import InvalidArgument, RunCorrupt
from pixeldp.report import Results
from pixeldp.runs import CertificationSettings, RunConfig, rounded_down, rounded_up
from pixeldp.training import train

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable

    from pixeldp.training import Epoch


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
    draws: int,
    images: int | None = None,
    confidence: float = 0.95,
    scores: str = "argmax",
    certificate: str = "tight",
    bound: str | None = None,
    selection: int = 0,
    plan: str | None = None,
    simultaneous: bool = False,
    seed: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> Results:
    """Certify the first ``images`` of the run's test split and keep scores and certificates."""
    config, model = runs.read_config(folder), runs.load(folder)
    dataset = load_dataset(config.dataset)
    inputs, labels = _first(dataset, images)
    made = certify(
        model,
        inputs,
        draws=draws,
        confidence=confidence,
        scores=scores,
        certificate=certificate,
        bound=bound,
        selection=selection,
        plan=plan,
        simultaneous=simultaneous,
        seed=seed,
        progress=progress,
    )
    results = _results(config, made, dataset)
    root = Path(folder)
    runs.remove(root, runs.REPORT, runs.CURVE)  # they show the earlier certificates
    runs.write_scores(root, config, made.scores)
    settings = CertificationSettings(
        confidence=made.confidence,
        scores=made.kind,
        certificate=made.certificate,
        bound=made.bounds.method,
        plan=made.bounds.spending.plan,
        selection=selection,
        simultaneous=simultaneous,
        sensitivity=made.sensitivity,
        images=len(labels),
        draws=draws,
        seed=made.scores.seed,
    )
    runs.write(root / runs.SETTINGS, (settings.model_dump_json(indent=2) + "\n").encode())
    runs.write_table(root / runs.CERTIFICATES, _columns(results))
    return results


def read_results(folder: str | os.PathLike[str]) -> Results:
    """Return what was certified in a run, from its scores; the network is not needed."""
    root, config = Path(folder), runs.read_config(folder)
    drawn = runs.read_scores(root, config)
    settings = runs.read_settings(root)
    dataset = load_dataset(config.dataset)
    said = (settings.images, settings.draws, settings.seed)
    kept = (len(drawn.draws), int(drawn.draws.max(initial=0)), drawn.seed)
    if said != kept or settings.images > len(dataset.test_labels):
        raise RunCorrupt(
            f"the scores in {str(root)!r} are not those that its {runs.SETTINGS} tells of: images, "
            f"draws and seed are {kept}, not {said}; certify the run again"
        )
    made = certify_scores(
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
    return _results(config, made, dataset)


def write_report(folder: str | os.PathLike[str]) -> Path:
    """Write ``report.html`` and ``plots/`` of a certified run; return the page's path."""
    root, results = Path(folder), read_results(folder)
    runs.write(root / runs.CURVE, plots.png(results.curve()))
    page = root / runs.REPORT
    runs.write(page, report.render(results).encode())
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


def _results(config: RunConfig, made: Certification, dataset: Dataset) -> Results:
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
