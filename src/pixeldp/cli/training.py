"""``pixeldp demo`` and ``pixeldp train``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pixeldp import files, records, workflow
from pixeldp.cli.application import DELTA, EPSILON, Draws, app
from pixeldp.cli.certifying import certify_shown
from pixeldp.cli.console import print_results, progress, say
from pixeldp.datasets import load_dataset
from pixeldp.errors import InvalidArgument
from pixeldp.mechanisms import Gaussian, Laplace
from pixeldp.runs import NoiseConfig, RunConfig
from pixeldp.tasks import Task
from pixeldp.training import Recipe

if TYPE_CHECKING:
    from pixeldp.training import Epoch

# Fixed, so that what the documentation says of the demo can be seen.
_DEMO_SEED = 1


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
    results = certify_shown(out_folder, Task(draws=draws), seed=_DEMO_SEED, restart=True)
    page = workflow.write_report(out_folder)
    if results is None:  # another process of several has them
        return
    print_results(results)
    if record is not None:
        command = f"pixeldp demo --draws {draws} --epochs {epochs}"
        text = records.record(command=command, seed=_DEMO_SEED, numbers=results.numbers())
        files.write(record, text.encode())
    say(f"report: {page}")


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
            help=f"Noise for attacks of this size: the paper's L, with epsilon {EPSILON:g} and, "
            f"for gaussian, delta {DELTA:g}. [default: 0.15]",
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
    say(f"next: pixeldp certify {out_folder}")


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
            Gaussian.for_attack(size=size, epsilon=EPSILON, delta=DELTA, norm=norm)
            if scale is None
            else Gaussian(scale=scale, norm=norm)
        )
    elif mechanism == Laplace.name:
        made = (
            Laplace.for_attack(size=size, epsilon=EPSILON, norm=norm)
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
    with progress("training", config.recipe.epochs, "epochs") as advance:

        def show(epoch: Epoch) -> None:
            advance(epoch.epoch, f"accuracy under noise {100 * epoch.accuracy:.1f} %")

        workflow.train_run(config, folder, overwrite=overwrite, progress=show)
