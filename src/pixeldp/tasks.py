"""What a certification is asked to do: checked as a whole before the first draw."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from pixeldp._checks import one_of, open_unit, positive, whole
from pixeldp.bounds import DEFAULT_METHOD, PLANS, check_draws
from pixeldp.bounds.methods import METHODS
from pixeldp.bounds.planned import GROWTH, boundaries, planned_looks
from pixeldp.certificates import CERTIFICATES, certified_radius
from pixeldp.errors import InvalidArgument, TooFewDraws
from pixeldp.scores import KINDS
from pixeldp.stopping import (
    EXCESS,
    Evidence,
    Exactly,
    Ladder,
    Rule,
    Within,
    unanimous_evidence,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from pixeldp.batches import Sampling
    from pixeldp.layouts import Layout
    from pixeldp.mechanisms import Mechanism

    Array = npt.NDArray[np.float64]

# The bound that is planned for its targets and its looks.
PLANNED = "planned"

# Draws that choose the label where a rule is to follow one.
_SELECTION = 64

# Where the radius is followed, not a target, looks may be further apart.
_GROWTH = 1.3

# A label leads when its expected score exceeds one half, by what rounding cannot take away.
_LEADS = 0.5 + 2.0**-30

# Places of a bracket that are looked at together.
_PLACES = 513


@dataclass(frozen=True, kw_only=True)
class Task:
    """Everything that is asked of a certification; see ``certify`` for what each means.

    >>> Task(draws=1000, confidence=0.999, targets=(0.5,)).selected
    64
    """

    draws: int
    confidence: float = 0.95
    scores: str = "argmax"
    certificate: str = "tight"
    bound: str | None = None
    targets: tuple[float, ...] = ()
    tolerance: float | None = None
    seconds: float | None = None
    selection: int | None = None
    plan: str | None = None
    simultaneous: bool = False
    shared_noise: bool = False
    step: int = 32  # looks are at multiples of this: the draws of a block

    def __post_init__(self) -> None:
        """Refuse what cannot be, or what does not go together."""
        object.__setattr__(self, "draws", whole("draws", self.draws, least=1))
        open_unit("confidence", self.confidence)
        one_of("certificate", self.certificate, CERTIFICATES)
        one_of("scores", self.scores, KINDS)
        if self.selection is not None:
            object.__setattr__(self, "selection", whole("selection", self.selection, least=0))
        if self.targets and self.tolerance is not None:
            raise InvalidArgument(
                f"give target or tolerance, not both: got target={list(self.targets)} and "
                f"tolerance={self.tolerance:g}"
            )
        if self.tolerance is not None:
            positive("tolerance", self.tolerance)
        if self.seconds is not None:
            positive("seconds", self.seconds)
        if self.adaptive:
            self._check_adaptive()
        _ = self.way, self.method

    def _check_adaptive(self) -> None:
        if not self.selected:
            raise InvalidArgument(
                "draws that are stopped by what they show follow a label that other draws chose; "
                "got selection=0, give at least 1 or leave it out"
            )
        if self.plan not in (None, "rest"):
            raise InvalidArgument(
                f"plan={self.plan!r} bounds every label, and draws are stopped by what they show "
                "of one; take plan='rest'"
            )

    @property
    def adaptive(self) -> bool:
        """Whether draws are stopped by what they show."""
        return bool(self.targets) or self.tolerance is not None or self.seconds is not None

    @property
    def selected(self) -> int:
        """The draws that choose the label."""
        if self.selection is None:
            return _SELECTION if self.adaptive else 0
        return self.selection

    @property
    def method(self) -> str:
        """The bound."""
        if self.adaptive:
            return stopping_bound(self.scores, self.bound, targets=bool(self.targets))
        return method_for(self.scores, self.bound)

    @property
    def way(self) -> str:
        """How alpha is spent."""
        return plan_for(self.plan, selected=self.selected > 0)

    @property
    def sketched(self) -> bool:
        """Whether the bound needs a sketch of the softmax scores."""
        return self.method == "betting" and self.scores == "softmax"

    def drawing(self) -> dict[str, Any]:
        """Return all that decides what is drawn: how draws are bounded later need not.

        A rule that looks at the draws needs all of it. A number that is fixed beforehand serves
        any confidence, bound and certificate.
        """
        drawing: dict[str, Any] = {
            "draws": self.draws,
            "selection": self.selected,
            "scores": self.scores if self.selected else "both",
            "sketch": self.sketched,
            "shared_noise": self.shared_noise,
        }
        if self.adaptive:
            drawing |= {
                "confidence": self.confidence,
                "certificate": self.certificate,
                "bound": self.method,
                "targets": list(self.targets),
                "tolerance": self.tolerance,
                "seconds": self.seconds,
                "simultaneous": self.simultaneous,
                "step": self.step,
            }
        return drawing

    def alpha(self, inputs: int) -> float:
        """Return what one input's certificate may fail with."""
        return (1 - self.confidence) / (inputs if self.simultaneous else 1)

    def stopped(self, inputs: int) -> tuple[str, str, float] | None:
        """Return how draws are stopped: the bound, the scores and the alpha of one input."""
        return (self.method, self.scores, self.alpha(inputs)) if self.adaptive else None

    def looks(self) -> tuple[int, ...]:
        """Return the numbers of draws at which the rule is asked."""
        growth = GROWTH if self.targets else _GROWTH
        return planned_looks(self.draws, step=self.step, growth=growth)

    def check_draws(self, labels: int, *, inputs: int) -> None:
        """Refuse, before the first draw, what could not certify anything."""
        if self.method != PLANNED:
            check_draws(
                self.draws,
                labels=labels,
                confidence=1 - self.alpha(inputs),
                method=self.method,
                plan=self.way,
            )

    def sampling(
        self,
        *,
        seed: int,
        noise: Mechanism,
        sensitivity: float,
        inputs: int,
        layout: Layout | None = None,
        compiled: bool = False,
    ) -> Sampling:
        """Return what is to be drawn of each of so many inputs."""
        from pixeldp.batches import Sampling

        rule = self.rule(noise=noise, sensitivity=sensitivity, inputs=inputs)
        return Sampling(
            rule=rule,
            seed=seed,
            selection=self.selected,
            kind=self.scores,
            sketch="scores" if self.sketched else None,
            shared=self.shared_noise,
            seconds=self.seconds,
            layout=layout,
            compiled=compiled,
        )

    def rule(self, *, noise: Mechanism, sensitivity: float, inputs: int) -> Rule:
        """Return when an input is done."""
        if not self.adaptive:
            return Exactly(self.draws)
        level, looks = self.alpha(inputs), self.looks()
        if not self.targets:
            radius = functools.partial(
                radius_of, noise=noise, certificate=self.certificate, sensitivity=sensitivity
            )
            return Within(self.tolerance or 0.0, radius, looks, level, self.scores, self.method)
        # A radius is written down with six decimals, rounded down: it must still be the target.
        scores = tuple(
            score_for(
                _written(target), noise=noise, certificate=self.certificate, sensitivity=sensitivity
            )
            for target in self.targets
        )
        self._check_targets(scores, level)
        # That the label leads at all is a target below all others, and costs nothing beside them.
        ladder = (*(() if scores[0] <= _LEADS else (_LEADS,)), *scores)
        if self.method == PLANNED:
            return Ladder(ladder, looks, level)
        return Evidence(ladder, looks, level, self.scores, self.method)

    def _check_targets(self, scores: tuple[float, ...], level: float) -> None:
        """Refuse targets that not even unanimous draws could reach."""
        for target, score in zip(self.targets, scores, strict=True):
            if not self._reachable(score, self.draws, level):
                needed = self._least(score, level)
                raise TooFewDraws(
                    f"draws must be at least {needed} to certify target={target:g} at "
                    f"confidence={1 - level:g} ({self.method}), got draws={self.draws}"
                )

    def _least(self, score: float, level: float) -> int:
        most = self.draws
        while not self._reachable(score, most, level):
            most *= 2
            if most > 2**40:
                raise InvalidArgument(
                    f"no number of draws certifies a score above {score!r}; take a lower target, "
                    "or another certificate"
                )
        least = most // 2
        while most - least > 1:
            middle = (least + most) // 2
            least, most = (
                (least, middle) if self._reachable(score, middle, level) else (middle, most)
            )
        return most

    def _reachable(self, score: float, draws: int, level: float) -> bool:
        if self.method == PLANNED:
            looks = planned_looks(draws, step=self.step)
            return bool((boundaries(score, looks, level) <= np.array(looks)).any())
        return bool(unanimous_evidence(self.method, draws, score) > -np.log(level) + EXCESS)


def _written(target: float) -> float:
    """Return the least number of six decimals that is at least the target."""
    return float(Decimal(target).quantize(Decimal("1e-6"), rounding=ROUND_CEILING))


def targets_of(target: float | Sequence[float] | None) -> tuple[float, ...]:
    """Return the targets in ascending order, if they can be radii.

    >>> targets_of([0.5, 0.25])
    (0.25, 0.5)
    """
    if target is None:
        return ()
    found = np.unique(np.asarray(target, dtype=np.float64).ravel())
    if not found.size or not (np.isfinite(found) & (found >= 0)).all():
        raise InvalidArgument(
            f"target must be a radius of at least 0, or several, got target={target!r}"
        )
    return tuple(found.tolist())


def radius_of(score: float, *, noise: Mechanism, certificate: str, sensitivity: float) -> float:
    """Return the radius of a label whose expected score is at least ``score``, against the rest."""
    radii = _radii(np.array(score), noise, certificate, sensitivity)
    return float(radii)


def _radii(scores: Array, noise: Mechanism, certificate: str, sensitivity: float) -> Array:
    rest = np.nextafter(1 - scores, 1.0)
    return certified_radius(scores, rest, noise, certificate=certificate, sensitivity=sensitivity)


def score_for(target: float, *, noise: Mechanism, certificate: str, sensitivity: float) -> float:
    """Return the least score, against the rest, whose radius is at least ``target``.

    >>> from pixeldp import Gaussian
    >>> round(score_for(1.0, noise=Gaussian(scale=1.0, norm=2), certificate="tight",
    ...                 sensitivity=1.0), 6)
    0.841345
    """

    def reaches(scores: Array) -> npt.NDArray[np.bool_]:
        found = _radii(scores, noise, certificate, sensitivity)
        return np.asarray((found > 0) & (found >= target))

    low, high = _LEADS, float(np.nextafter(1.0, 0.0))
    ends = reaches(np.array([low, high]))
    if not ends[1]:
        raise InvalidArgument(
            f"no score certifies target={target:g} with certificate={certificate!r} at this noise; "
            "take a smaller target, more noise, or certificate='tight'"
        )
    if ends[0]:
        return low
    # Many places at once: some certificates take as long for one as for a thousand.
    while (places := np.unique(np.linspace(low, high, _PLACES))).size > 2:
        above = int(np.flatnonzero(~reaches(places))[-1]) + 1
        low, high = float(places[above - 1]), float(places[above])
    return high


def method_for(scores: str, bound: str | None) -> str:
    """Return the bound to use for that kind of scores; refuse one that does not hold for it."""
    one_of("scores", scores, KINDS)
    if bound == PLANNED:
        raise InvalidArgument(
            "bound='planned' is planned for targets; give target=…, or another bound"
        )
    method = DEFAULT_METHOD[scores] if bound is None else one_of("bound", bound, METHODS)
    if scores not in METHODS[method].kinds:
        raise InvalidArgument(
            f"bound={method!r} counts argmax scores and does not hold for scores={scores!r}; "
            "take 'betting', 'bernstein' or 'hoeffding', or scores='argmax'"
        )
    return method


def stopping_bound(scores: str, bound: str | None, *, targets: bool) -> str:
    """Return the bound to follow while drawing; refuse one that holds for a fixed number only."""
    one_of("scores", scores, KINDS)
    allowed = ["betting"]
    if scores == "argmax":
        allowed = [*([PLANNED] if targets else []), "beta-binomial", "betting"]
    if bound is None:
        return allowed[0]
    if bound not in allowed:
        one_of("bound", bound, (*METHODS, PLANNED))
        raise InvalidArgument(
            f"bound={bound!r} does not hold for {scores} scores whose draws are stopped by what "
            f"they show; take {' or '.join(map(repr, allowed))}"
        )
    return bound


def plan_for(plan: str | None, *, selected: bool) -> str:
    """Return how alpha is spent: on all labels, unless the label was chosen by other draws."""
    if plan is None:
        return "rest" if selected else "union"
    if (one_of("plan", plan, PLANS) == "union") is selected:
        raise InvalidArgument(
            f"plan={plan!r} is for labels chosen by {'the same' if selected else 'other'} draws; "
            f"give selection={'0' if selected else 'a number of draws'} or another plan"
        )
    return plan
