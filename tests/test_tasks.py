"""What is asked of a certification: targets as scores, least draws, and every refusal."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pixeldp import Gaussian, Laplace
from pixeldp.bounds.planned import boundaries
from pixeldp.certificates import CERTIFICATES
from pixeldp.errors import InvalidArgument, TooFewDraws
from pixeldp.stopping import Evidence, Exactly, Ladder, Rule, Within
from pixeldp.tasks import Task, method_for, radius_of, score_for, stopping_bound, targets_of

if TYPE_CHECKING:
    from pixeldp.mechanisms import Mechanism

GAUSSIAN, LAPLACE = Gaussian(scale=0.5, norm=2), Laplace(scale=0.5, norm=1)
NOISES = {"gaussian": GAUSSIAN, "laplace": LAPLACE}

by_noise = pytest.mark.parametrize("noise", NOISES.values(), ids=list(NOISES))
by_certificate = pytest.mark.parametrize("certificate", sorted(CERTIFICATES))


def rule_of(task: Task, *, noise: Mechanism = GAUSSIAN, inputs: int = 1) -> Rule:
    """The rule, after every check that is made before the first draw."""
    task.check_draws(10, inputs=inputs)
    return task.rule(noise=noise, sensitivity=1.0, inputs=inputs)


@by_noise
@by_certificate
def test_the_score_for_a_target_is_the_least_that_reaches_it(
    certificate: str, noise: Mechanism
) -> None:
    """``score_for`` inverts ``radius_of`` to the last bit: just below it, the target is missed."""
    reaching = functools.partial(score_for, noise=noise, sensitivity=2.7)
    radius = functools.partial(radius_of, noise=noise, certificate=certificate, sensitivity=2.7)
    scores = []
    for target in (0.004, 0.04):
        score = reaching(target, certificate=certificate)
        assert 0.5 < score < 1
        assert radius(score) >= target
        assert radius(float(np.nextafter(score, 0))) < target
        # No certificate needs less than the tight one.
        assert score >= reaching(target, certificate="tight")
        scores.append(score)
    assert scores[0] < scores[1]


@by_noise
@by_certificate
def test_a_radius_of_nothing_asks_for_a_label_that_leads(
    certificate: str, noise: Mechanism
) -> None:
    score = score_for(0.0, noise=noise, certificate=certificate, sensitivity=1.0)
    assert 0.5 < score < 0.5 + 1e-6
    assert radius_of(score, noise=noise, certificate=certificate, sensitivity=1.0) > 0


@given(target=st.floats(1e-4, 2.5), scale=st.floats(0.5, 3.0))
def test_the_tight_score_for_gaussian_noise_is_the_normal_distribution(
    target: float, scale: float
) -> None:
    """Cohen et al. 2019, Theorem 1: the radius is ``sigma Φ⁻¹(p)``, so the score ``Φ(T/sigma)``."""
    noise = Gaussian(scale=scale, norm=2)
    score = score_for(target, noise=noise, certificate="tight", sensitivity=1.0)
    assert 1 - score == pytest.approx(stats.norm.sf(target / scale), rel=1e-6)


@pytest.mark.parametrize("certificate", ["dp", "analytic"])
def test_targets_that_no_score_certifies_are_refused(certificate: str) -> None:
    message = f"no score certifies target=3 with certificate={certificate!r} at this noise"
    with pytest.raises(InvalidArgument, match=message):
        score_for(3.0, noise=GAUSSIAN, certificate=certificate, sensitivity=1.0)


def test_targets_are_radii_in_ascending_order() -> None:
    assert targets_of(None) == ()
    assert targets_of(0.5) == (0.5,)
    assert targets_of([1.0, 0.25, 0.5, 0.25]) == (0.25, 0.5, 1.0)
    assert targets_of([0.0]) == (0.0,)


@pytest.mark.parametrize("target", [-0.1, float("nan"), float("inf"), [], [0.5, -1.0]])
def test_what_cannot_be_a_radius_is_no_target(target: float | list[float]) -> None:
    message = re.escape(f"target must be a radius of at least 0, or several, got target={target!r}")
    with pytest.raises(InvalidArgument, match=message):
        targets_of(target)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "target and tolerance": (
        {"targets": (0.5, 1.0), "tolerance": 0.1},
        "give target or tolerance, not both: got target=[0.5, 1.0] and tolerance=0.1",
    ),
    "no selection": (
        {"targets": (0.5,), "selection": 0},
        (
            "draws that are stopped by what they show follow a label that other draws chose; "
            "got selection=0, give at least 1 or leave it out"
        ),
    ),
    "no selection with a budget": ({"seconds": 1.0, "selection": 0}, "got selection=0"),
    "plan": (
        {"targets": (0.5,), "plan": "all"},
        (
            "plan='all' bounds every label, and draws are stopped by what they show of one; "
            "take plan='rest'"
        ),
    ),
    "plan of the same draws": ({"tolerance": 0.1, "plan": "union"}, "take plan='rest'"),
    "fixed bound": (
        {"targets": (0.5,), "bound": "clopper-pearson"},
        (
            "bound='clopper-pearson' does not hold for argmax scores whose draws are stopped by "
            "what they show; take 'planned' or 'beta-binomial' or 'betting'"
        ),
    ),
    "fixed bound of soft scores": (
        {"seconds": 2.0, "scores": "softmax", "bound": "bernstein"},
        (
            "bound='bernstein' does not hold for softmax scores whose draws are stopped by what "
            "they show; take 'betting'"
        ),
    ),
    "softmax by counts": (
        {"targets": (0.5,), "scores": "softmax", "bound": "beta-binomial"},
        "bound='beta-binomial' does not hold for softmax scores whose draws are stopped",
    ),
    "softmax planned": (
        {"targets": (0.5,), "scores": "softmax", "bound": "planned"},
        "bound='planned' does not hold for softmax scores whose draws are stopped",
    ),
    "planned for a tolerance": (
        {"tolerance": 0.1, "bound": "planned"},
        (
            "bound='planned' does not hold for argmax scores whose draws are stopped by what they "
            "show; take 'beta-binomial' or 'betting'"
        ),
    ),
    "planned for a fixed number": (
        {"bound": "planned"},
        "bound='planned' is planned for targets; give target=…, or another bound",
    ),
    "softmax by counts, fixed": (
        {"scores": "softmax", "bound": "beta-binomial"},
        "bound='beta-binomial' counts argmax scores and does not hold for scores='softmax'",
    ),
    "unknown bound": (
        {"targets": (0.5,), "bound": "wald"},
        (
            "bound must be one of 'clopper-pearson', 'hoeffding', 'bernstein', 'betting', "
            "'beta-binomial', 'planned', got bound='wald'"
        ),
    ),
    "plan without a selection": ({"plan": "rest"}, "plan='rest' is for labels chosen by other"),
    "unknown plan": ({"plan": "some"}, "plan must be one of 'union', 'rest', 'all'"),
    "no tolerance": (
        {"tolerance": 0.0},
        "tolerance must be a finite number above 0, got tolerance=0.0",
    ),
    "infinite tolerance": ({"tolerance": float("inf")}, "got tolerance=inf"),
    "no seconds": ({"seconds": -1.0}, "seconds must be a finite number above 0, got seconds=-1.0"),
    "nan seconds": ({"seconds": float("nan")}, "got seconds=nan"),
    "no draws": ({"draws": 0}, "draws must be a whole number of at least 1, got draws=0"),
    "half a selection": ({"selection": 2.5}, "selection must be a whole number of at least 0"),
    "certain": ({"confidence": 1.0}, "confidence must be in (0, 1), got confidence=1.0"),
    "scores": ({"scores": "logits"}, "scores must be one of 'argmax', 'softmax'"),
    "certificate": ({"certificate": "loose"}, "certificate must be one of"),
}


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=list(REFUSED))
def test_what_does_not_go_together_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        Task(**{"draws": 1000, **options})


def least_told(task: Task, noise: Mechanism, inputs: int = 1) -> int:
    """The least number of draws that the refusal of a target names."""
    with pytest.raises(TooFewDraws, match="draws must be at least") as refused:
        task.rule(noise=noise, sensitivity=1.0, inputs=inputs)
    message = str(refused.value)
    assert f"got draws={task.draws}" in message
    assert task.method in message
    return int(re.findall(r"at least (\d+)", message)[0])


def proves(task: Task, noise: Mechanism, inputs: int) -> bool:
    """Whether draws that all agree reach the last target, by the rule that is followed."""
    from pixeldp.scores import Drawn

    rule = rule_of(task, noise=noise, inputs=inputs)
    drawn = Drawn.nothing(0, 10, label=0)
    for look in rule.looks:
        drawn.counts[0], drawn.sums[0], drawn.squares[0], drawn.draws = look, look, look, look
        rule.done(drawn)
    rule.settle(drawn)
    return radius_of(drawn.proved, noise=noise, certificate="tight", sensitivity=1.0) >= max(
        task.targets
    )


@by_noise
@pytest.mark.parametrize("bound", ["planned", "beta-binomial"])
@pytest.mark.parametrize("confidence", [0.95, 0.999])
@pytest.mark.parametrize("simultaneous", [False, True], ids=["each", "together"])
def test_unreachable_targets_name_the_least_draws_that_reach_them(
    noise: Mechanism, bound: str, confidence: float, simultaneous: bool
) -> None:
    """With that many draws that all agree it is reached; with one less it is refused."""
    for target in (0.1, 0.6, 1.0):
        options: dict[str, Any] = {
            "targets": (target,),
            "confidence": confidence,
            "bound": bound,
            "simultaneous": simultaneous,
        }
        least = least_told(Task(draws=4, **options), noise, inputs=20)
        assert least_told(Task(draws=least - 1, **options), noise, inputs=20) == least
        assert proves(Task(draws=least, **options), noise, inputs=20)


def test_the_refusal_names_the_target_and_the_confidence() -> None:
    message = (
        r"draws must be at least \d+ to certify target=1 at confidence=0\.95 \(planned\), "
        r"got draws=100"
    )
    with pytest.raises(TooFewDraws, match=message):
        rule_of(Task(draws=100, targets=(0.25, 1.0)))


def test_unanimous_draws_are_as_many_as_the_level_says() -> None:
    """All of n draws agree under p with probability ``p^n``: the least n with ``p^n ≤ level``."""
    score = score_for(1.0, noise=GAUSSIAN, certificate="tight", sensitivity=1.0)
    least = least_told(Task(draws=50, targets=(1.0,)), GAUSSIAN)
    assert least == pytest.approx(np.log(0.05) / np.log(score), abs=2)


def test_targets_too_close_to_certainty_for_any_number_of_draws_are_refused() -> None:
    far = 0.5 * float(stats.norm.isf(3e-15))
    with pytest.raises(InvalidArgument, match="no number of draws certifies a score above"):
        rule_of(Task(draws=1000, targets=(far,), bound="beta-binomial"))


def test_without_targets_too_few_draws_are_refused_as_for_a_fixed_number() -> None:
    for bound, scores in (("beta-binomial", "argmax"), ("betting", "softmax")):
        message = rf"at least \d+ to certify anything with 10 labels .* \({bound}\)"
        for task in (
            Task(draws=3, tolerance=0.1, bound=bound, scores=scores),
            Task(draws=3, seconds=3.0, bound=bound, scores=scores),
        ):
            with pytest.raises(TooFewDraws, match=message):
                rule_of(task)


def test_what_is_asked_decides_the_rule_the_bound_and_the_selection() -> None:
    cases: list[tuple[dict[str, Any], type, str, int]] = [
        ({}, Exactly, "clopper-pearson", 0),
        ({"scores": "softmax"}, Exactly, "betting", 0),
        ({"selection": 30}, Exactly, "clopper-pearson", 30),
        ({"targets": (0.5,)}, Ladder, "planned", 64),
        ({"targets": (0.5,), "selection": 10, "plan": "rest"}, Ladder, "planned", 10),
        ({"targets": (0.5,), "bound": "betting"}, Evidence, "betting", 64),
        ({"targets": (0.2,), "scores": "softmax"}, Evidence, "betting", 64),
        ({"tolerance": 0.1}, Within, "beta-binomial", 64),
        ({"seconds": 1.0}, Within, "beta-binomial", 64),
        ({"seconds": 1.0, "targets": (0.5,)}, Ladder, "planned", 64),
        ({"seconds": 1.0, "tolerance": 0.1}, Within, "beta-binomial", 64),
    ]
    for options, kind, method, selected in cases:
        task = Task(draws=1000, **options)
        rule = rule_of(task)
        assert type(rule) is kind
        assert (task.method, task.selected) == (method, selected)
        assert task.adaptive is (kind is not Exactly)
        assert (task.stopped(4) is None) is (kind is Exactly)
        assert rule.looks[-1] == 1000
        sampling = task.sampling(seed=5, noise=GAUSSIAN, sensitivity=1.0, inputs=4)
        assert (sampling.selection, sampling.kind) == (selected, task.scores)
        assert sampling.sketch == ("scores" if task.scores == "softmax" else None)
        assert sampling.seconds == task.seconds


def test_all_inputs_together_share_one_alpha() -> None:
    each, together = (
        Task(draws=2000, confidence=0.9, targets=(0.5,), simultaneous=simultaneous)
        for simultaneous in (False, True)
    )
    assert each.alpha(50) == pytest.approx(0.1)
    assert together.alpha(50) == pytest.approx(0.002)
    assert together.stopped(50) == ("planned", "argmax", together.alpha(50))
    rule = rule_of(together, inputs=50)
    assert isinstance(rule, Ladder)
    assert rule.level == together.alpha(50)
    looks = rule.looks
    assert rule.boundaries[-1] == tuple(boundaries(rule.targets[-1], looks, 0.002).tolist())


def test_that_the_label_leads_is_the_first_rung_of_every_ladder() -> None:
    for targets in ((0.5,), (0.0, 0.5), (0.25, 0.5, 1.0)):
        rule = rule_of(Task(draws=5000, targets=targets))
        assert isinstance(rule, Ladder)
        radii = [
            radius_of(score, noise=GAUSSIAN, certificate="tight", sensitivity=1.0)
            for score in rule.targets
        ]
        assert 0 < radii[0] < 1e-8
        expected = [target for target in targets if target > 0]
        assert radii[1:] == pytest.approx(expected, rel=1e-9)
        assert all(radius >= target for radius, target in zip(radii[1:], expected, strict=True))


def test_looks_are_further_apart_where_no_target_is_followed() -> None:
    with_target = Task(draws=10_000, targets=(0.5,)).looks()
    without = Task(draws=10_000, tolerance=0.1).looks()
    assert with_target[-1] == without[-1] == 10_000
    assert len(without) < len(with_target)
    assert all(look % 128 == 0 for look in Task(draws=9000, step=128).looks()[:-1])


def test_every_kind_of_scores_has_a_default_bound() -> None:
    assert method_for("argmax", None) == "clopper-pearson"
    assert method_for("softmax", None) == "betting"
    assert stopping_bound("argmax", None, targets=True) == "planned"
    assert stopping_bound("argmax", None, targets=False) == "beta-binomial"
    assert stopping_bound("softmax", None, targets=True) == "betting"
