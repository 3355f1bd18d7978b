"""Pictures of what is certified."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

import numpy as np

from pixeldp.errors import MissingExtra
from pixeldp.metrics import certified_accuracy, certified_accuracy_interval, conventional_accuracy

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Array = npt.NDArray[np.float64]

# Colours that differ in lightness as well, so that a grey print can be read.
COLOURS = {"dp": "#c25b1a", "analytic": "#8a6d00", "renyi": "#7a3b8f", "tight": "#1c5d99"}
MEASURED = "#2e8b57"
ATTACKED = "#c0392b"

_POINTS = 400


def new_figure(width: float, height: float) -> tuple[Figure, Axes]:
    """Return a figure of that many inches, with one plot in it."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra(
            "pictures need matplotlib, which is not installed; "
            "install it with: pip install 'pixeldp[demo]'"
        ) from error
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="none")
    axes = figure.subplots()
    axes.set_facecolor("none")
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def certified_accuracy_curve(
    predicted: npt.ArrayLike,
    radii: Mapping[str, Array],
    labels: npt.ArrayLike,
    *,
    scale: float,
    norm: str,
) -> Figure:
    """Draw certified accuracy against the threshold T, one curve for each certificate."""
    figure, axes = new_figure(6.4, 3.8)
    finite = [r[np.isfinite(r)].max(initial=0.0) for r in radii.values()]
    thresholds = np.linspace(0.0, max(scale, 1.05 * max(finite)), _POINTS)
    for name, radius in radii.items():
        accuracy = 100 * certified_accuracy(predicted, radius, labels, thresholds)
        low, up = certified_accuracy_interval(predicted, radius, labels, thresholds)
        axes.fill_between(
            thresholds, 100 * low, 100 * up, color=COLOURS.get(name), alpha=0.12, linewidth=0
        )
        axes.plot(thresholds, accuracy, label=name, color=COLOURS.get(name), linewidth=2)
    clean = 100 * conventional_accuracy(predicted, labels)
    axes.axhline(clean, color="#888888", linewidth=1, linestyle=":", label="conventional accuracy")
    axes.set(
        xlabel=f"attack size T ({norm}, in the input's units)",
        ylabel="certified accuracy (%)",
        xlim=(0, thresholds[-1]),
        ylim=(0, 101),
    )
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    return figure


def robustness_test(
    means: Array,
    bounds: tuple[Array, Array],
    attacked: tuple[Array, Array],
    label_names: tuple[str, ...],
) -> Figure:
    """Draw every label's score with its bounds, as in the robustness-test figure of the paper.

    A dot for the mean over the draws; green for the confidence bounds; red for how far an attack
    can move the expected score. The label is certified against that attack if its red bar stands
    clear above all others.
    """
    figure, axes = new_figure(2.9, 1.75)
    places = np.arange(len(means))
    lines = [(*attacked, ATTACKED, 1.6), (*bounds, MEASURED, 4.5)]
    for low, high, colour, width in lines:
        axes.vlines(places, low, high, color=colour, linewidth=width)
    axes.plot(places, means, "o", color="black", markersize=2.5)
    axes.set(ylim=(-0.02, 1.02), yticks=(0, 0.5, 1))
    axes.set_xticks(places, label_names)
    axes.tick_params(labelsize=7, length=2)
    return figure


def svg(figure: Figure) -> str:
    """Return a figure as SVG text that can stand inside a page, the same for the same figure."""
    import matplotlib as mpl

    buffer = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "pixeldp"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    return re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)


def png(figure: Figure) -> bytes:
    """Return a figure as the bytes of a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150, facecolor="white")
    return buffer.getvalue()
