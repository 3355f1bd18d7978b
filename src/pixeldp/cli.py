"""The command line. Exit status: 0 done, 1 failed, 2 misused."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from pixeldp import records, runs, workflow
from pixeldp._version import __version__
from pixeldp.datasets import load_dataset
from pixeldp.errors import InvalidArgument, PixelDPError
from pixeldp.mechanisms import Gaussian, Laplace
from pixeldp.norms import attack_norm
from pixeldp.runs import NoiseConfig, RunConfig
from pixeldp.training import Recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pixeldp.report import Results
    from pixeldp.training import Epoch

app = typer.Typer(
    name="pixeldp",
    help="Certified robustness: a radius with every prediction, inside which no input changes it.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
out = Console()
err = Console(stderr=True)

# The paper's usual (epsilon, delta), in which an attack size stands for a noise scale.
_EPSILON, _DELTA = 1.0, 0.05

# Fixed, so that what the documentation says of the demo can be seen.
_DEMO_SEED = 1

# Lines of progress where there is no terminal to draw a bar on.
_LINES = 5

Run = Annotated[Path, typer.Argument(help="A run folder.", show_default=False)]
Draws = Annotated[int, typer.Option(help="Noisy draws for each image.")]
Confidence = Annotated[float, typer.Option(help="For each image by itself.")]


@app.command(epilog="Example: pixeldp demo --out runs/demo")
def demo(
    out_folder: Annotated[Path, typer.Option("--out", help="Where to leave the run.")] = Path(
        "runs/demo"
    ),
    draws: Draws = 1000,
    epochs: Annotated[int, typer.Option(help="Passes over the training data.")] = 80,
    record: Annotated[
        Path | None,
        typer.Option(help="Also keep the numbers in this JSON file.", show_default=False),
    ] = None,
) -> None:
    """Train, certify and report on handwritten digits: the whole line, in under a minute.

    The noise is Gaussian, after the first convolution, for 2-norm attacks. Seeds are fixed, so
    that two runs on one machine agree; an earlier demo in the same folder is replaced.
    """
    config = _config(
        "digits",
        Recipe(epochs=epochs, seed=_DEMO_SEED),
        _noise(Gaussian.name, 2, None, 0.15, "conv1"),
    )
    _train(config, out_folder, overwrite=True)
    results = _certify(out_folder, draws=draws, seed=_DEMO_SEED)
    page = workflow.write_report(out_folder)
    _print_results(results)
    if record is not None:
        command = f"pixeldp demo --draws {draws} --epochs {epochs}"
        text = records.record(command=command, seed=_DEMO_SEED, numbers=results.numbers())
        runs.write(record, text.encode())
    out.print(f"report: {page}", soft_wrap=True, highlight=False, markup=False)


@app.command(epilog="Example: pixeldp train digits --out runs/digits --size 0.15")
def train(
    dataset: Annotated[str, typer.Argument(help="digits.", show_default=False)],
    out_folder: Annotated[
        Path, typer.Option("--out", help="A new folder for the run.", show_default=False)
    ],
    noise: Annotated[str, typer.Option(help="gaussian or laplace.")] = "gaussian",
    norm: Annotated[float, typer.Option(help="The attack's norm: 0, 1, 2 or inf.")] = 2,
    size: Annotated[
        float | None,
        typer.Option(
            help=f"Noise for attacks of this size: the paper's L, with epsilon {_EPSILON:g} and, "
            f"for gaussian, delta {_DELTA:g}. [default: 0.15]",
            show_default=False,
        ),
    ] = None,
    scale: Annotated[
        float | None,
        typer.Option(
            help="Instead of --size: the noise scale itself, sigma (gaussian) or b (laplace).",
            show_default=False,
        ),
    ] = None,
    after: Annotated[
        str, typer.Option(help="The layer that the noise comes after, or 'input'.")
    ] = "conv1",
    epochs: Annotated[int, typer.Option(help="Passes over the training data.")] = 80,
    seed: Annotated[int, typer.Option(help="For weights, order and noise of training.")] = 1,
    overwrite: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--overwrite", help="Replace an earlier run in the folder.")
    ] = False,
) -> None:
    """Train a network with noise in it, its layer before the noise held to sensitivity 1."""
    if scale is not None and size is not None:
        raise InvalidArgument(f"give --size or --scale, not both: got {size:g} and {scale:g}")
    layer = _noise(noise, norm, scale, 0.15 if size is None else size, after)
    _train(_config(dataset, _recipe(epochs, seed), layer), out_folder, overwrite=overwrite)
    out.print(f"next: pixeldp certify {out_folder}", soft_wrap=True, highlight=False, markup=False)


@app.command(epilog="Example: pixeldp certify runs/digits --draws 1000 --images 300")
def certify(
    run: Run,
    draws: Draws = 1000,
    images: Annotated[
        int | None,
        typer.Option(help="The first so many test images. [default: all]", show_default=False),
    ] = None,
    confidence: Confidence = 0.95,
    scores: Annotated[str, typer.Option(help="argmax or softmax.")] = "argmax",
    certificate: Annotated[str, typer.Option(help="tight, renyi, analytic or dp.")] = "tight",
    bound: Annotated[
        str | None,
        typer.Option(
            help="clopper-pearson, beta-binomial, hoeffding, bernstein or betting. "
            "[default: clopper-pearson for argmax, betting for softmax]",
            show_default=False,
        ),
    ] = None,
    selection: Annotated[
        int, typer.Option(help="So many draws more choose the label, which the others then bound.")
    ] = 0,
    simultaneous: Annotated[  # noqa: FBT002 - a flag
        bool,
        typer.Option("--simultaneous", help="All certificates hold together at the confidence."),
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(
            help="For repeatable noise. [default: from the operating system]", show_default=False
        ),
    ] = None,
) -> None:
    """Certify the test images of a run; keeps the scores and certificates.tsv in it."""
    results = _certify(
        run,
        draws=draws,
        images=images,
        confidence=confidence,
        scores=scores,
        certificate=certificate,
        bound=bound,
        selection=selection,
        simultaneous=simultaneous,
        seed=seed,
    )
    _print_results(results)
    out.print(
        f"certificates: {run / runs.CERTIFICATES}", soft_wrap=True, highlight=False, markup=False
    )


@app.command(epilog="Example: pixeldp report runs/digits")
def report(run: Run) -> None:
    """Write report.html of a certified run: one page that opens without a network."""
    out.print(
        f"report: {workflow.write_report(run)}", soft_wrap=True, highlight=False, markup=False
    )


@app.command(epilog="Example: pixeldp info runs/digits")
def info(run: Run) -> None:
    """Say what a run is: network, noise, measured sensitivity, data, recipe, versions."""
    config, model = runs.read_config(run), runs.load(run)
    noise, attacks = model.noise, attack_norm(model.noise.norm).name
    covered = (
        noise.size(epsilon=_EPSILON, delta=_DELTA, sensitivity=model.sensitivity)
        if isinstance(noise, Gaussian)
        else noise.size(epsilon=_EPSILON, sensitivity=model.sensitivity)
    )
    dp = f"({_EPSILON:g}, {_DELTA if isinstance(noise, Gaussian) else 0:g})-DP"
    certified = "yes" if (run / runs.CERTIFICATES).exists() else f"no: pixeldp certify {run}"
    weights = sum(parameter.numel() for parameter in model.parameters())
    table = Table(show_header=False, box=None)
    for name, value in (
        ("data", f"{config.dataset}, inputs {config.input_shape} in {list(config.input_range)}"),
        ("network", f"{config.network}, {weights:,} weights, {len(config.label_names)} labels"),
        (
            "noise",
            f"{noise.name}, scale {noise.scale:.6g}, after {config.noise.after or 'the input'}",
        ),
        ("", f"{dp} for {attacks} attacks of size {covered:.6g}"),
        (
            "sensitivity",
            f"{model.sensitivity:.9g} ({attacks} to {noise.q}-norm, measured now)",
        ),
        (
            "recipe",
            ", ".join(f"{key} {value}" for key, value in config.recipe.model_dump().items()),
        ),
        ("certified", certified),
        ("versions", ", ".join(f"{key} {value}" for key, value in config.versions.items())),
    ):
        table.add_row(f"[bold]{name}", value)
    out.print(table)
    out.print("what is proved of the part before the noise:")
    out.print(str(model.account()), soft_wrap=True, highlight=False, markup=False)


def _version(asked: bool) -> None:  # noqa: FBT001 - how typer calls it
    if asked:
        out.print(f"pixeldp {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; a refusal is one sentence on the error stream, never a traceback."""
    try:
        app()
    except PixelDPError as error:
        print(f"pixeldp: {error}", file=sys.stderr)  # noqa: T201 - must not be wrapped or coloured
        sys.exit(error.exit_status)


def _recipe(epochs: int, seed: int) -> Recipe:
    if epochs < 1 or seed < 0:
        raise InvalidArgument(
            f"epochs must be at least 1 and seed at least 0, got epochs={epochs} and seed={seed}"
        )
    return Recipe(epochs=epochs, seed=seed)


def _noise(
    mechanism: str, norm: float, scale: float | None, size: float, after: str
) -> NoiseConfig:
    if mechanism == Gaussian.name:
        made: Gaussian | Laplace = (
            Gaussian.for_attack(size=size, epsilon=_EPSILON, delta=_DELTA, norm=norm)
            if scale is None
            else Gaussian(scale=scale, norm=norm)
        )
    elif mechanism == Laplace.name:
        made = (
            Laplace.for_attack(size=size, epsilon=_EPSILON, norm=norm)
            if scale is None
            else Laplace(scale=scale, norm=norm)
        )
    else:
        raise InvalidArgument(f"noise must be 'gaussian' or 'laplace', got noise={mechanism!r}")
    return NoiseConfig(
        mechanism=mechanism,
        scale=made.scale,
        norm=norm,
        after=None if after == "input" else after,
    )


def _config(dataset: str, recipe: Recipe, noise: NoiseConfig) -> RunConfig:
    data = load_dataset(dataset)
    return RunConfig(
        dataset=dataset,
        network="small-cnn",
        input_shape=data.input_shape,
        input_range=data.input_range,
        label_names=data.label_names,
        noise=noise,
        held_sensitivity=None if noise.after is None else 1.0,
        recipe=recipe,
    )


def _train(config: RunConfig, folder: Path, *, overwrite: bool) -> None:
    with _progress("training", config.recipe.epochs, "epochs") as advance:

        def show(epoch: Epoch) -> None:
            advance(epoch.epoch, f"accuracy under noise {100 * epoch.accuracy:.1f} %")

        workflow.train_run(config, folder, overwrite=overwrite, progress=show)


def _certify(folder: Path, *, images: int | None = None, **settings: Any) -> Results:  # noqa: ANN401
    config = runs.read_config(folder)
    total = images or len(load_dataset(config.dataset).test_labels)
    with _progress("certifying", total, "images") as advance:
        return workflow.certify_run(folder, images=images, progress=advance, **settings)


def _print_results(results: Results) -> None:
    table = Table(title=f"{results.title}: certified accuracy at T", title_justify="left")
    table.add_column("T =")
    for size in results.thresholds():
        table.add_column(f"{size:g}", justify="right")
    for name, values in results.certified().items():
        table.add_row(name, *(f"{100 * value:.1f} %" for value in values))
    out.print(table)
    facts = Table(show_header=False, box=None)
    for name, value in results.facts():
        facts.add_row(name, value)
    out.print(facts)


@contextmanager
def _progress(what: str, total: int, unit: str) -> Iterator[Callable[..., None]]:
    """Show how far the work is: a bar on a terminal, a few lines elsewhere."""
    if not err.is_terminal:
        yield _line_progress(what, total, unit)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=err) as bars:
        task = bars.add_task(what, total=total, note="")

        def advance(done: int, note: str = "") -> None:
            bars.update(task, completed=done, note=note)

        yield advance


def _line_progress(what: str, total: int, unit: str) -> Callable[..., None]:
    began, shown = time.monotonic(), 0

    def advance(done: int, note: str = "") -> None:
        nonlocal shown
        if done * _LINES // total > shown or done == total:
            shown = done * _LINES // total
            seconds = time.monotonic() - began
            line = f"{what}: {done} of {total} {unit}, {seconds:.0f} s"
            print(f"{line}, {note}" if note else line, file=sys.stderr, flush=True)  # noqa: T201

    return advance
