"""``pixeldp report`` and ``pixeldp info``."""

from __future__ import annotations

from rich.table import Table

from pixeldp import runs, workflow
from pixeldp.cli.application import DELTA, EPSILON, Run, app
from pixeldp.cli.console import out, say
from pixeldp.mechanisms import Gaussian
from pixeldp.norms import attack_norm


@app.command(epilog="Example: pixeldp report runs/digits")
def report(run: Run) -> None:
    """Write report.html of a certified run: one page that opens without a network."""
    say(f"report: {workflow.write_report(run)}")


@app.command(epilog="Example: pixeldp info runs/digits")
def info(run: Run) -> None:
    """Say what a run is: network, noise, measured sensitivity, data, recipe, versions."""
    config, model = runs.read_config(run), runs.load(run)
    noise, attacks = model.noise, attack_norm(model.noise.norm).name
    covered = (
        noise.size(epsilon=EPSILON, delta=DELTA, sensitivity=model.sensitivity)
        if isinstance(noise, Gaussian)
        else noise.size(epsilon=EPSILON, sensitivity=model.sensitivity)
    )
    dp = f"({EPSILON:g}, {DELTA if isinstance(noise, Gaussian) else 0:g})-DP"
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
    say(str(model.account()))
