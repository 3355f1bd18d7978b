from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from pixeldp import Gaussian, PixelDP, certified_radius, certify, confidence_bounds
from pixeldp.bounds.methods import METHODS
from pixeldp.bounds.sums import Sums
from pixeldp.certification import Certification, certify_scores
from pixeldp.errors import InvalidArgument, InvalidInput, InvalidScores, TooFewDraws
from pixeldp.scores import Scores
from pixeldp.sketches import PLACES

NOISE = Gaussian(scale=1.0, norm=2)


def made_of(counts: list[list[int]], sums: list[list[float]] | None = None) -> Scores:
    array = np.array(counts)
    soft = array.astype(float) if sums is None else np.array(sums)
    draws = array.sum(axis=1)
    return Scores(counts=array, sums=soft, squares=soft, draws=draws, seconds=draws / 1e4, seed=0)


def test_it_is_draw_choose_bound_certify() -> None:
    drawn = made_of([[70, 900, 30], [340, 330, 330]])
    result = certify_scores(drawn, noise=NOISE, sensitivity=2.0, confidence=0.99)
    lower, upper = confidence_bounds(drawn.counts, drawn.draws, confidence=0.99)
    assert result.label.tolist() == [1, 0]
    assert result.lower.tolist() == [lower[0, 1], lower[1, 0]]
    assert result.upper[0] == upper[0, 0]
    expected = certified_radius(lower[0, 1], upper[0, 0], NOISE, sensitivity=2.0)
    assert result.radius.tolist() == [float(expected), 0.0]
    assert result.abstained.tolist() == [False, True]
    assert result.confidence == 0.99
    assert result.certificate == "tight"


def test_other_labels_never_exceed_what_the_label_leaves() -> None:
    drawn = made_of([[990] + [1] * 10])
    result = certify_scores(drawn, noise=NOISE, sensitivity=1.0)
    lower, upper = confidence_bounds(drawn.counts, drawn.draws)
    assert result.upper[0] <= upper[0, 1:].max()
    assert result.upper[0] == min(upper[0, 1:].max(), np.nextafter(1 - lower[0, 0], 1))


def test_the_largest_upper_bound_counts_wherever_it_is() -> None:
    """The maximum is over all other labels, in whatever order they come."""
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        counts = np.array([600, 250, 150])[order]
        result = certify_scores(made_of([counts.tolist()]), noise=NOISE, sensitivity=1.0)
        _, upper = confidence_bounds([600, 250, 150], 1000)
        assert int(result.label[0]) == order.index(0)
        assert result.upper[0] == pytest.approx(upper[1], rel=1e-12)


def test_two_certificates_on_the_same_draws() -> None:
    result = certify_scores(made_of([[950, 30, 20]]), noise=NOISE, sensitivity=1.0)
    assert result.with_certificate("tight").tolist() == result.radius.tolist()
    dp = certify_scores(made_of([[950, 30, 20]]), noise=NOISE, sensitivity=1.0, certificate="dp")
    assert result.with_certificate("dp").tolist() == dp.radius.tolist()
    assert dp.radius[0] < result.radius[0]


def test_softmax_scores_are_bounded_by_hoeffding() -> None:
    drawn = made_of([[600, 400]], [[800.5, 199.5]])
    result = certify_scores(
        drawn, noise=NOISE, sensitivity=1.0, scores="softmax", bound="hoeffding"
    )
    lower, _ = confidence_bounds([800.5, 199.5], 1000, method="hoeffding")
    assert result.bounds.method == "hoeffding"
    assert result.kind == "softmax"
    assert result.lower[0] == lower[0]
    with pytest.raises(InvalidArgument, match="does not hold for scores='softmax'"):
        certify_scores(
            drawn, noise=NOISE, sensitivity=1.0, scores="softmax", bound="clopper-pearson"
        )


def test_two_stages_choose_on_draws_of_their_own(model: PixelDP) -> None:
    x = torch.rand(3, 1, 6, 6)
    once = certify(model, x, draws=300, seed=5)
    twice = certify(model, x, draws=300, seed=5, selection=40)
    assert (twice.scores.counts == once.scores.counts).all()  # the bounding draws are the same
    assert twice.scores.selected is not None
    assert twice.bounds.spending.plan == "rest"
    assert twice.label.tolist() == twice.scores.selected.tolist()
    agree = twice.label == once.label
    assert (twice.lower[agree] >= once.lower[agree]).all()
    every = certify(model, x, draws=300, seed=5, selection=40, plan="all")
    assert every.bounds.spending.plan == "all"
    with pytest.raises(InvalidArgument, match="plan='union' is for labels chosen by the same"):
        certify(model, x, draws=300, selection=40, plan="union")
    with pytest.raises(InvalidArgument, match="plan='rest' is for labels chosen by other draws"):
        certify(model, x, draws=300, plan="rest")


def test_a_label_chosen_beforehand_may_be_a_bad_choice() -> None:
    """Then it abstains: it never certifies the label that the bounding draws prefer instead."""
    drawn = replace(made_of([[100, 900, 0]]), selected=np.array([0]))
    result = certify_scores(drawn, noise=NOISE, sensitivity=1.0)
    assert result.label.tolist() == [0]
    assert result.abstained.tolist() == [True]
    assert result.radius.tolist() == [0.0]


def test_betting_on_softmax_scores_keeps_a_sketch(model: PixelDP) -> None:
    x = torch.rand(2, 1, 6, 6)
    betting = certify(model, x, draws=300, seed=5, scores="softmax")
    assert betting.bounds.method == "betting"
    assert betting.scores.sketch is not None
    assert np.allclose(betting.scores.sketch @ PLACES, betting.scores.sums)
    hoeffding = certify(model, x, draws=300, seed=5, scores="softmax", bound="hoeffding")
    assert hoeffding.scores.sketch is None
    assert (betting.lower > hoeffding.lower).all()


def test_simultaneous_certificates_are_smaller(model: PixelDP) -> None:
    x = torch.rand(4, 1, 6, 6)
    alone = certify(model, x, draws=400, seed=1)
    together = certify(model, x, draws=400, seed=1, simultaneous=True)
    assert (together.lower < alone.lower).all()
    assert together.confidence == alone.confidence == 0.95


def test_more_confidence_never_gives_a_larger_radius(model: PixelDP) -> None:
    x = torch.rand(4, 1, 6, 6)
    radii = [
        certify(model, x, draws=400, confidence=confidence, seed=1).radius
        for confidence in (0.9, 0.99, 0.999)
    ]
    assert (radii[0] >= radii[1]).all()
    assert (radii[1] >= radii[2]).all()


def test_a_linear_classifier_is_certified_up_to_its_boundary_and_not_beyond() -> None:
    """After a layer of sensitivity 3 with noise of scale 1.5: the unit is 0.5."""
    network = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    network[0].weight.data = torch.tensor([[3.0, 0.0], [0.0, 1.0]])
    network[1].weight.data = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    model = PixelDP(network, Gaussian(scale=1.5, norm=2), after="0", input_shape=(2,))
    assert model.sensitivity == pytest.approx(3.0)
    distance = 0.6
    result = certify(model, torch.tensor([[distance, 5.0]]), draws=20_000, seed=2)
    assert 0.9 * distance < result.radius[0] < distance


@pytest.mark.parametrize("scores", ["argmax", "softmax"])
def test_too_few_draws_are_refused_before_the_first(
    model: PixelDP, scores: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pixeldp.sampling.draw_all", lambda *_, **__: pytest.fail("drawn"))
    with pytest.raises(TooFewDraws, match="draws must be at least"):
        certify(model, torch.rand(1, 1, 6, 6), draws=3, scores=scores)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"certificate": "x"}, "certificate must be one of"),
        ({"scores": "x"}, "scores must be one of"),
        ({"bound": "x"}, "bound must be one of"),
        ({"confidence": 1.0}, r"confidence must be in \(0, 1\)"),
        ({"draws": 2.5}, "draws must be a whole number"),
        ({"draws": float("nan")}, "draws must be a whole number"),
        ({"draws": float("inf")}, "draws must be a whole number"),
        ({"seed": -3}, "seed must be"),
    ],
)
def test_impossible_arguments_are_refused(
    model: PixelDP, options: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        certify(model, torch.rand(1, 1, 6, 6), **{"draws": 100, **options})  # type: ignore[arg-type]


class _BatchStatistics(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = 1e-6 * x.mean(dim=0, keepdim=True) + 0 * x  # the label does not depend on the scale
        return torch.cat([h, -h], dim=1)


class _Random(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(())


def test_the_global_generator_is_left_alone(model: PixelDP) -> None:
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    certify(model, torch.rand(1, 1, 6, 6, generator=torch.Generator()), draws=50, seed=1)
    assert torch.equal(torch.rand(3), expected)


def test_one_logit_is_refused() -> None:
    with pytest.raises(InvalidScores, match="at least two logits"):
        certify(PixelDP(nn.Linear(3, 1), NOISE), torch.rand(1, 3), draws=100)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (_BatchStatistics(), "changes with the inputs beside it"),
        (_Random(), "changes when the same noisy value is evaluated again"),
    ],
)
def test_draws_that_are_not_independent_are_refused(network: nn.Module, message: str) -> None:
    model = PixelDP(network, NOISE)
    with pytest.raises(InvalidScores, match=message):
        certify(model, torch.rand(1, 3), draws=100)


def test_inputs_that_do_not_fit_are_refused(model: PixelDP) -> None:
    with pytest.raises(InvalidInput, match=r"x must have shape \(batch, 1, 6, 6\)"):
        certify(model, torch.rand(1, 6, 6), draws=100)


# Draws that are stopped by what they show, before a network whose true radius is the distance.

TRUE = 0.4  # the expected score of the label is Φ(0.8) = 0.788


def linear() -> PixelDP:
    network = nn.Linear(2, 2, bias=False)
    network.weight.data = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    return PixelDP(network, Gaussian(scale=0.5, norm=2))


def at_distance(inputs: int, distance: float = TRUE) -> torch.Tensor:
    return torch.tensor([[distance, 3.0]]).repeat(inputs, 1)


def refuted(false: np.ndarray, level: float = 0.05) -> bool:
    """Whether a binomial test rejects that what is false has at most that probability."""
    test = stats.binomtest(int(false.sum()), len(false), level, alternative="greater")
    return bool(test.pvalue < 1e-3)


@pytest.mark.parametrize(
    ("options", "inputs"),
    [
        ({"draws": 640, "target": TRUE * (1 + 1e-7)}, 2000),
        ({"draws": 640, "target": [0.1, 0.2, 0.3, TRUE * (1 + 1e-7)]}, 2000),
        ({"draws": 640, "target": [0.2, TRUE * (1 + 1e-7)], "bound": "beta-binomial"}, 400),
        ({"draws": 320, "target": 0.05, "scores": "softmax"}, 150),
        ({"draws": 256, "tolerance": 0.15}, 100),
        ({"draws": 10_000, "seconds": 0.2}, 100),
    ],
    ids=["target", "targets", "beta-binomial", "softmax", "tolerance", "seconds"],
)
def test_stopped_draws_rarely_certify_more_than_the_true_radius(
    options: dict[str, Any], inputs: int
) -> None:
    result = certify(linear(), at_distance(inputs), seed=3, **options)
    assert not refuted(result.radius > TRUE)
    assert (result.radius > 0).mean() > 0.5
    assert (result.label == 0).mean() > 0.99
    assert ((result.scores.draws >= 32) & (result.scores.draws <= options["draws"])).all()
    stopped = result.scores.stopped
    assert stopped is not None
    assert (stopped.bound, stopped.kind) == (result.bounds.method, options.get("scores", "argmax"))
    assert stopped.alpha == pytest.approx(0.05)
    assert (result.lower == stopped.proved).all()
    assert result.bounds.spending.plan == "rest"


def test_a_target_that_is_reached_is_certified_in_full() -> None:
    """What is certified is the largest target that was reached, and no bit less."""
    targets = [0.1, 0.2, 0.3, 0.5]
    result = certify(linear(), at_distance(150), draws=3000, target=targets, seed=4)
    assert (result.radius >= 0.2).all()
    assert (result.radius >= TRUE).mean() <= 0.05  # as many as alpha allows
    assert ((result.radius >= 0.3) & (result.radius < TRUE)).mean() > 0.9
    for radius in result.radius:
        reached = max(target for target in targets if target <= radius)
        assert reached <= radius <= reached * (1 + 1e-6)
    assert result.scores.draws.mean() < 1500  # the next is out of reach, and given up


def test_less_tolerance_and_more_seconds_take_more_draws_for_larger_radii() -> None:
    x = at_distance(10)
    loose, close = (
        certify(linear(), x, draws=1500, tolerance=tolerance, seed=4) for tolerance in (0.3, 0.12)
    )
    hurried, patient = (
        certify(linear(), x, draws=500, seconds=seconds, seed=4) for seconds in (1e-6, 1e6)
    )
    assert hurried.scores.draws.tolist() == [32] * 10  # every input is looked at once
    assert patient.scores.draws.tolist() == [500] * 10
    for less, more in ((loose, close), (hurried, patient)):
        assert less.scores.draws.mean() < 0.5 * more.scores.draws.mean()
        assert less.radius.mean() < more.radius.mean() < TRUE


@pytest.mark.parametrize("options", [{}, {"target": 0.2}, {"selection": 20}], ids=str)
def test_shared_noise_certifies_equal_inputs_equally(options: dict[str, Any]) -> None:
    """Over many seeds it is as rarely wrong as noise of one's own."""
    result = certify(linear(), at_distance(5), draws=400, shared_noise=True, seed=4, **options)
    assert (result.scores.sums == result.scores.sums[0]).all()
    assert (result.radius == result.radius[0]).all()
    options = {"draws": 320, "shared_noise": True, **options}
    found = [certify(linear(), at_distance(1), seed=s, **options).radius[0] for s in range(60)]
    assert not refuted(np.array(found) > TRUE)


def test_certificates_that_hold_together_pay_for_it_with_draws() -> None:
    x = at_distance(100)
    each = certify(linear(), x, draws=2000, target=0.25, seed=4)
    together = certify(linear(), x, draws=2000, target=0.25, seed=4, simultaneous=True)
    assert together.scores.draws.mean() > 1.3 * each.scores.draws.mean()
    assert together.bounds.simultaneous
    assert together.scores.stopped is not None
    assert together.scores.stopped.alpha == together.bounds.spending.alpha
    assert together.bounds.spending.alpha == pytest.approx(0.05 / 100)


def test_targets_out_of_reach_are_refused_before_the_first_draw(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pixeldp.sampling.draw_all", lambda *_, **__: pytest.fail("drawn"))
    few: list[dict[str, Any]] = [{"draws": 50, "target": 1.0}, {"draws": 3, "tolerance": 0.1}]
    for options in (*few, {"draws": 12, "simultaneous": True, "target": 0.1}):
        with pytest.raises(TooFewDraws, match="draws must be at least"):
            certify(linear(), at_distance(100), **options)


@pytest.fixture(scope="module")
def stopped() -> Certification:
    x = torch.cat([at_distance(3, 0.2), at_distance(3, 0.4), at_distance(3, 0.8)])
    return certify(linear(), x, draws=3000, target=[0.1, 0.3, 0.6], seed=4, confidence=0.95)


def again(stopped: Certification, **options: object) -> Certification:
    return certify_scores(stopped.scores, noise=stopped.noise, sensitivity=1.0, **options)  # type: ignore[arg-type]


def test_what_was_proved_while_drawing_is_kept(stopped: Certification) -> None:
    for options in ({}, {"confidence": 0.9}, {"bound": "planned"}):
        kept = again(stopped, **options)
        assert kept.lower.tolist() == stopped.lower.tolist()
        assert kept.bounds.method == "planned"
        assert kept.confidence == options.get("confidence", 0.95)


FIXED = "does not hold for argmax scores whose draws are stopped by what they show; take 'beta-bin"
PLANNED = (
    "holds for what was planned before the draws: argmax scores by 'planned' at alpha=0.05, got"
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({"bound": bound}, FIXED) for bound in ("clopper-pearson", "hoeffding", "bernstein")),
        ({"bound": "planned", "confidence": 0.99}, f"{PLANNED} scores='argmax' at alpha=0.01"),
        ({"bound": "planned", "simultaneous": True}, "scores='argmax' at alpha=0.00555556"),
        ({"bound": "planned", "scores": "softmax"}, f"{PLANNED} scores='softmax' at alpha=0.05"),
        ({"plan": "all"}, "plan='all' is for a number of draws that was fixed beforehand"),
        ({"plan": "union"}, "plan='union' is for labels chosen by the same"),
        ({"scores": "softmax"}, "method='betting' needs a sketch of softmax scores"),
    ],
)
def test_what_does_not_hold_for_stopped_draws_is_refused(
    stopped: Certification, options: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        again(stopped, **options)


@pytest.mark.parametrize("bound", ["beta-binomial", "betting"])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.999])
def test_anytime_bounds_serve_at_any_confidence(
    stopped: Certification, bound: str, confidence: float
) -> None:
    made = again(stopped, bound=bound, confidence=confidence)
    counts, draws = stopped.scores.counts[:, 0], stopped.scores.draws
    sums = Sums(totals=counts.astype(float), draws=draws.astype(float))
    expected, _ = METHODS[bound].bound(sums, 1 - confidence, two_sided=False)
    assert made.lower == pytest.approx(expected)
    assert (made.bounds.method, made.confidence) == (bound, confidence)
    if confidence > 0.95:  # what was planned no longer holds: left to itself, it takes what does
        assert again(stopped, confidence=confidence).bounds.method == "beta-binomial"


def test_other_certificates_on_the_same_stopped_draws(stopped: Certification) -> None:
    for certificate in ("dp", "analytic", "renyi"):
        other = again(stopped, certificate=certificate)
        assert other.lower.tolist() == stopped.lower.tolist()
        assert other.radius.tolist() == stopped.with_certificate(certificate).tolist()
        assert (other.radius <= stopped.radius).all()
        assert other.radius[-1] > 0
