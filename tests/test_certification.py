from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from pixeldp import Gaussian, PixelDP, certified_radius, certify, confidence_bounds
from pixeldp.certification import certify_scores
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
    monkeypatch.setattr("pixeldp.sampling.sample_scores", lambda *_, **__: pytest.fail("drawn"))
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
