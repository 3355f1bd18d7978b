"""``pixeldp certify`` and ``pixeldp predict``: what is drawn of a run's images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pixeldp import runs, workflow
from pixeldp.cli.application import Draws, Run, app
from pixeldp.cli.console import print_prediction, print_results, progress, say, tell
from pixeldp.datasets import load_dataset
from pixeldp.errors import InvalidArgument
from pixeldp.tasks import Task, targets_of

if TYPE_CHECKING:
    from pathlib import Path

    from pixeldp.report import Results
    from pixeldp.watching import Seen

Images = Annotated[
    int | None,
    typer.Option(help="The first so many test images. [default: all]", show_default=False),
]
Seed = Annotated[
    int | None,
    typer.Option(help="For repeatable noise. [default: from the system]", show_default=False),
]
Precision = Annotated[str, typer.Option(help="fp32 or bf16, behind the noise.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, mps or auto.")]
Shared = Annotated[
    bool, typer.Option("--shared-noise", help="One sequence of noise for all images: faster.")
]


@app.command(
    epilog="Example: pixeldp certify runs/digits --draws 1000 --images 300. "
    "On several processes: torchrun --nproc-per-node 2 -m pixeldp certify runs/digits"
)
def certify(
    run: Run,
    draws: Draws = 1000,
    images: Images = None,
    confidence: Annotated[
        float | None, typer.Option(help="For each image by itself. [default: 0.95]")
    ] = None,
    scores: Annotated[str | None, typer.Option(help="argmax or softmax. [default: argmax]")] = None,
    certificate: Annotated[
        str | None, typer.Option(help="tight, renyi, analytic or dp. [default: tight]")
    ] = None,
    bound: Annotated[
        str | None,
        typer.Option(
            help="clopper-pearson, beta-binomial, hoeffding, bernstein or betting; with --target "
            "also planned. [default: clopper-pearson for argmax, betting for softmax, planned or "
            "else beta-binomial where draws are stopped]",
            show_default=False,
        ),
    ] = None,
    target: Annotated[
        list[float] | None,
        typer.Option(help="Decide whether the radius is that large, and stop; may be repeated."),
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Stop when the radius can grow by less than this.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Stop after so many seconds, spread over the images.")
    ] = None,
    selection: Annotated[
        int | None,
        typer.Option(
            help="So many draws more choose the label, which the others then bound. "
            "[default: 64 where draws are stopped, else 0]",
            show_default=False,
        ),
    ] = None,
    simultaneous: Annotated[
        bool | None,
        typer.Option("--simultaneous", help="All certificates hold together at the confidence."),
    ] = None,
    shared_noise: Shared = False,  # noqa: FBT002 - a flag
    precision: Precision = "fp32",
    device: Device = "cpu",
    compiled: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--compile", help="Compile the network first, if that is faster.")
    ] = False,
    batch: Annotated[
        int | None,
        typer.Option(help="Draws at once through the network. [default: found by trying]"),
    ] = None,
    seed: Seed = None,
    restart: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--restart", help="Drop what was drawn before, and draw again.")
    ] = False,
    from_scores: Annotated[  # noqa: FBT002 - a flag
        bool,
        typer.Option("--from-scores", help="Certify again from the kept draws, without drawing."),
    ] = False,
) -> None:
    """Certify the test images of a run; keeps the scores and certificates.tsv in it.

    What is drawn is kept image by image: the same command after an interruption goes on where it
    was.
    """
    how = {
        "confidence": confidence,
        "scores": scores,
        "certificate": certificate,
        "bound": bound,
        "simultaneous": simultaneous,
    }
    if from_scores:
        drawing = {"--target": target, "--tolerance": tolerance, "--seconds": seconds}
        _refuse_drawing({**drawing, "--images": images, "--seed": seed, "--selection": selection})
        results: Results | None = workflow.certify_again(run, **how)  # type: ignore[arg-type]
    else:
        task = Task(
            draws=draws,
            targets=targets_of(target or None),
            tolerance=tolerance,
            seconds=seconds,
            selection=selection,
            shared_noise=shared_noise,
            **{name: value for name, value in how.items() if value is not None},  # type: ignore[arg-type]
        )
        results = certify_shown(
            run,
            task,
            images=images,
            seed=seed,
            precision=precision,
            device=device,
            compiled=compiled,
            batch=batch,
            restart=restart,
        )
    if results is not None:
        print_results(results)
        say(f"certificates: {run / runs.CERTIFICATES}")


@app.command(epilog="Example: pixeldp predict runs/digits --draws 500 --images 300")
def predict(
    run: Run,
    draws: Draws = 1000,
    images: Images = None,
    confidence: Annotated[
        float, typer.Option(help="Of not naming a wrong label, for each image.")
    ] = 0.95,
    scores: Annotated[str, typer.Option(help="argmax or softmax.")] = "argmax",
    shared_noise: Shared = False,  # noqa: FBT002 - a flag
    precision: Precision = "fp32",
    device: Device = "cpu",
    seed: Seed = None,
) -> None:
    """Predict the test images of a run without certificates, in as few draws as are needed."""
    total = _total(run, images)
    with progress("predicting", total, "images") as advance:
        made = workflow.predict_run(
            run,
            images=images,
            precision=precision,
            device=device,
            progress=advance,
            draws=draws,
            confidence=confidence,
            scores=scores,
            shared_noise=shared_noise,
            seed=seed,
        )
    print_prediction(made)


def certify_shown(folder: Path, task: Task, **options: Any) -> Results | None:  # noqa: ANN401
    """Certify a run and show how far it is; say what was found of an earlier attempt."""
    with progress("certifying", _total(folder, options.get("images")), "images") as advance:
        began = False

        def show(seen: Seen) -> None:
            nonlocal began
            if not began and 0 < seen.done < seen.total:
                tell(f"going on: {seen.done} of {seen.total} images were drawn before")
            began = True
            advance(seen.done, str(seen), total=seen.total)

        results = workflow.certify_run(folder, task=task, progress=show, **options)
    if results is not None and not began:
        tell("all images were drawn before, with these settings; --restart draws them again")
    return results


def _total(folder: Path, images: int | None) -> int:
    return images or len(load_dataset(runs.read_config(folder).dataset).test_labels)


def _refuse_drawing(options: dict[str, object]) -> None:
    """Refuse what is about drawing where nothing is drawn."""
    given = [name for name, value in options.items() if value]
    if given:
        raise InvalidArgument(
            f"{given[0]} is about drawing, and --from-scores draws nothing; leave out one of them"
        )
