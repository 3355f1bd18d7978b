"""One page that shows a run: it holds everything that it shows, and opens without a network."""

from __future__ import annotations

import base64
import html
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pixeldp import plots
from pixeldp._version import __version__
from pixeldp.certificates import CERTIFICATES, tight
from pixeldp.files import rounded_down
from pixeldp.metrics import (
    accuracy_interval,
    average_certified_radius,
    certified_accuracy,
    conventional_accuracy,
    precision_on_certified,
)
from pixeldp.norms import attack_norm

if TYPE_CHECKING:
    import numpy.typing as npt
    from matplotlib.figure import Figure

    from pixeldp.certification import Certification

    Array = npt.NDArray[np.float64]

# Thresholds of the table, in noise scales: a reader's eye needs few.
_FRACTIONS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5)

_CARDS = 12


@dataclass(frozen=True, eq=False)
class Results:
    """What a report or a table is made of: a certified test set, and what is known of it."""

    certification: Certification
    labels: npt.NDArray[np.int64]
    images: Array
    label_names: tuple[str, ...]
    input_range: tuple[float, float]
    placement: str
    title: str
    targets: tuple[float, ...] = ()
    arithmetic: str = "fp32"

    @property
    def norm(self) -> str:
        """The name of the attack's norm."""
        return attack_norm(self.certification.noise.norm).name

    def radii(self) -> dict[str, Array]:
        """The radii under every certificate, on the same draws."""
        return {name: self.certification.with_certificate(name) for name in CERTIFICATES}

    def thresholds(self) -> Array:
        """The attack sizes of the table, in the input's units: the targets, where there are."""
        if self.targets:
            return np.array([0.0, *(target for target in self.targets if target > 0)])
        scale = self.certification.noise.scale / self.certification.sensitivity
        return np.array([float(f"{fraction * scale:.3g}") for fraction in _FRACTIONS])

    def test_size(self) -> float:
        """The attack size that the pictures of scores show: one of the middle of the table."""
        return float(self.thresholds()[self.middle()])

    def middle(self) -> int:
        """The place of ``test_size`` in the table: half a noise scale, or the middle target."""
        return len(self.thresholds()) // 2 if self.targets else _FRACTIONS.index(0.5)

    def accuracy(self) -> float:
        """Conventional accuracy."""
        return conventional_accuracy(self.certification.label, self.labels)

    def certified(self) -> dict[str, Array]:
        """Certified accuracy at the thresholds of the table, for every certificate."""
        label, thresholds = self.certification.label, self.thresholds()
        return {
            name: certified_accuracy(label, radius, self.labels, thresholds)
            for name, radius in self.radii().items()
        }

    def precision(self) -> Array:
        """Precision on certified examples at the thresholds, for the run's own certificate."""
        made = self.certification
        return precision_on_certified(made.label, made.radius, self.labels, self.thresholds())

    def numbers(self) -> dict[str, Any]:
        """The numbers of the page, to be kept: thresholds, accuracies, and how they were made."""
        return {
            "conventional_accuracy": self.accuracy(),
            "thresholds": self.thresholds().tolist(),
            "certified_accuracy": {name: v.tolist() for name, v in self.certified().items()},
            "average_certified_radius": average_certified_radius(
                self.certification.label, self.certification.radius, self.labels
            ),
            "images": len(self.labels),
            "abstained": int(self.certification.abstained.sum()),
            **dict(self.facts()[:6]),
        }

    def curve(self) -> Figure:
        """The certified-accuracy curve."""
        made = self.certification
        return plots.certified_accuracy_curve(
            made.label, self.radii(), self.labels, scale=made.noise.scale, norm=self.norm
        )

    def _units(self) -> str:
        low, high = self.input_range
        if self.certification.noise.norm == 0:
            return f"in changed coordinates, each in [{low:g}, {high:g}]"
        return f"in units of inputs in [{low:g}, {high:g}]"

    def facts(self) -> list[tuple[str, str]]:
        """What a reader must know to judge the numbers, in few words."""
        made = self.certification
        seconds = made.scores.seconds
        scale_name = "standard deviation" if made.noise.name == "gaussian" else "b"
        return [
            ("noise", f"{made.noise.name}, {scale_name} {made.noise.scale:.4g}, {self.placement}"),
            (
                "sensitivity before it",
                f"{made.sensitivity:.6g} ({self.norm} to {made.noise.q}-norm, measured)",
            ),
            ("attack", f"{self.norm}, {self._units()}"),
            (
                "confidence",
                f"{made.confidence:g} for {_each(made)} ({made.bounds.method}, {made.kind} scores)",
            ),
            (
                "spent on",
                _PLANS[made.bounds.spending.plan],
            ),
            ("conventional accuracy", f"{_percent(self.accuracy())} ({_interval(self)})"),
            ("draws a prediction", _draws(made)),
            ("seconds a prediction", f"{seconds.mean():.3g}"),
            ("precision", self.arithmetic),
            ("images", f"{len(self.labels)}, {int(made.abstained.sum())} abstained"),
            ("seed", f"{made.scores.seed}"),
        ]


_PLANS = {
    "union": "all labels bounded",
    "rest": "label chosen first, against the rest",
    "all": "label chosen first, all labels bounded",
}


def _draws(made: Certification) -> str:
    draws = made.scores.draws
    if draws.min() == draws.max():
        return f"{draws[0]}"
    middle = f"half of them at most {np.median(draws):.0f}"
    return f"{draws.mean():.0f} on average, {middle}, all at most {draws.max()}"


def _each(made: Certification) -> str:
    return "all inputs together" if made.bounds.simultaneous else "each input"


def _interval(results: Results) -> str:
    low, up = accuracy_interval(results.certification.label, results.labels)
    return f"95 % interval over test sets: {_percent(float(low))} to {_percent(float(up))}"


def render(results: Results) -> str:
    """Return the page."""
    body = [
        f"<h1>{html.escape(results.title)}</h1>",
        _headline(results),
        _facts(results),
        "<h2>Certified accuracy</h2>",
        f'<div class="figure">{plots.svg(results.curve())}</div>',
        _table(results),
        _explanation(results),
        "<h2>Predictions</h2>",
        _gallery_legend(results),
        '<div class="gallery">',
        *(_card(results, index) for index in gallery(results)),
        "</div>",
        f"<footer>pixeldp {__version__}</footer>",
    ]
    return _PAGE.format(title=html.escape(results.title), body="\n".join(body))


def gallery(results: Results) -> list[int]:
    """Choose inputs that show the whole range, from the largest radius down to errors."""
    made = results.certification
    by_radius = np.argsort(-made.radius, kind="stable")
    wrong = [int(i) for i in by_radius if made.label[i] != results.labels[i]]
    right = [int(i) for i in by_radius if made.label[i] == results.labels[i]]
    shown = wrong[: _CARDS // 4]
    room = min(_CARDS - len(shown), len(right))
    steps = np.linspace(0, max(len(right) - 1, 0), room).round().astype(int)
    return [right[step] for step in dict.fromkeys(steps.tolist())] + shown


def _headline(results: Results) -> str:
    middle, size = results.middle(), results.test_size()
    shares = {name: values[middle] for name, values in results.certified().items()}
    return (
        f"<p class='lead'>Of {len(results.labels)} test images, "
        f"<b>{_percent(results.accuracy())}</b> are classified correctly, and "
        f"<b>{_percent(shares['tight'])}</b> provably stay so under every change of "
        f"{results.norm} up to {size:g}. The paper's own certificate proves it for "
        f"{_percent(shares['dp'])}, on the same draws.</p>"
    )


def _facts(results: Results) -> str:
    rows = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>"
        for name, value in results.facts()
    )
    return f"<table class='facts'>{rows}</table>"


def _table(results: Results) -> str:
    thresholds = results.thresholds()
    head = "".join(f"<th>{size:g}</th>" for size in thresholds)
    rows = "".join(
        f"<tr><th>{name}</th>" + "".join(f"<td>{_percent(v)}</td>" for v in values) + "</tr>"
        for name, values in results.certified().items()
    )
    precision = "".join(
        f"<td>{'–' if np.isnan(value) else _percent(value)}</td>" for value in results.precision()
    )
    certificate = results.certification.certificate
    return (
        "<div class='wide'><table class='numbers'>"
        f"<tr><th>certified accuracy at T =</th>{head}</tr>{rows}"
        f"<tr><th>precision on certified ({certificate})</th>{precision}</tr></table></div>"
    )


def _explanation(results: Results) -> str:
    made = results.certification
    expected = (1 - made.confidence) * len(results.labels)
    confidence = (
        f"All {len(results.labels)} certificates hold together with probability "
        f"{made.confidence:g}."
        if made.bounds.simultaneous
        else f"The confidence of {made.confidence:g} is for each image by itself: "
        f"of {len(results.labels)} certificates, about {expected:.0f} may be wrong."
    )
    return (
        "<p>Certified accuracy at T is the share of images that are classified correctly "
        "<i>and</i> whose label no change of size T or less can alter. <b>dp</b> is the "
        "certificate of the paper, from differential privacy; <b>analytic</b> is the same with "
        "the exact privacy profile, <b>renyi</b> comes from Rényi divergence, and <b>tight</b> is "
        "the best that these scores and this noise allow. All are from the same draws; at T = 0 "
        "all equal conventional accuracy. Shaded: 95 % intervals over test sets of this size. "
        f"{confidence}</p>"
    )


def _gallery_legend(results: Results) -> str:
    return (
        "<p>The dot is the mean score over the draws, "
        "<span class='measured'>green</span> where the expected score lies at the stated "
        "confidence, <span class='attacked'>red</span> how far an attack of "
        f"{results.norm} {results.test_size():g} could move it (tight bounds). If the label's red "
        "bar stands clear above all the others, no such attack can change the prediction.</p>"
    )


def _card(results: Results, index: int) -> str:
    made = results.certification
    label, true = int(made.label[index]), int(results.labels[index])
    names = results.label_names
    shift = results.test_size() * made.sensitivity / made.noise.scale
    low = made.bounds.lower[index]
    # No other label can have more than what the label leaves: the certificate uses it too.
    high = np.minimum(made.bounds.upper[index], 1 - low[label])
    high[label] = made.bounds.upper[index, label]
    figure = plots.robustness_test(
        made.scores.means(made.kind)[index],
        (low, high),
        tight.extremes(low, high, shift, made.noise),
        names,
    )
    verdict = "right" if label == true else "wrong"
    if made.abstained[index]:
        radius = "abstained: the draws could not tell the label"
    else:
        size = results.test_size()
        holds = "certified" if made.radius[index] >= size else "not certified"
        radius = f"radius {rounded_down(float(made.radius[index]), 4)}, {holds} at {size:g}"
    true_name, label_name = html.escape(names[true]), html.escape(names[label])
    return (
        f"<figure class='{verdict}'>"
        f"<div class='pair'><img alt='image {index}' src='{_data_uri(results, index)}'>"
        f"{plots.svg(figure)}</div>"
        f"<figcaption>image {index}: label <b>{true_name}</b>, "
        f"predicted <b>{label_name}</b><br>{radius}</figcaption></figure>"
    )


def _data_uri(results: Results, index: int) -> str:
    import matplotlib.image as mpl_image

    image = results.images[index]
    pixels = image[0] if image.shape[0] == 1 else np.moveaxis(image, 0, -1)
    low, high = results.input_range
    buffer = io.BytesIO()
    mpl_image.imsave(
        buffer, (pixels - low) / (high - low), cmap="gray", vmin=0, vmax=1, format="png"
    )
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light; }}
body {{ font: 16px/1.5 system-ui, sans-serif; color: #1b1b1b; background: #fff;
       max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.7rem; margin-bottom: .3rem; }}
h2 {{ font-size: 1.25rem; margin-top: 2.2rem; }}
.lead {{ font-size: 1.1rem; }}
table {{ border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .25rem .7rem; border-bottom: 1px solid #ddd; }}
.facts th {{ text-align: left; font-weight: 600; }}
.numbers th:first-child {{ text-align: left; }}
.numbers td, .numbers th {{ text-align: right; white-space: nowrap; }}
.wide {{ overflow-x: auto; }}
.figure svg {{ max-width: 100%; height: auto; }}
.gallery {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(19rem, 1fr));
            gap: 1rem; }}
figure {{ margin: 0; padding: .6rem; border: 1px solid #ddd; border-radius: .4rem; }}
figure.wrong {{ border-color: #c0392b; background: #fdf3f2; }}
.pair {{ display: flex; align-items: center; gap: .6rem; }}
.pair img {{ width: 5rem; height: 5rem; image-rendering: pixelated; border: 1px solid #ccc; }}
.pair svg {{ flex: 1; min-width: 0; height: auto; }}
figcaption {{ font-size: .85rem; margin-top: .3rem; }}
.measured {{ color: #2e8b57; font-weight: 600; }}
.attacked {{ color: #c0392b; font-weight: 600; }}
footer {{ margin-top: 2.5rem; color: #777; font-size: .8rem; }}
</style>
</head>
<body>
{body}
</body>
</html>
"""
