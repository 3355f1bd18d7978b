"""Prediction in few draws, from the network to the answer: rarely wrong, and silent at ties."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats
from torch import nn

from pixeldp import Gaussian, Laplace, PixelDP
from pixeldp.errors import InvalidArgument, InvalidInput, TooFewDraws
from pixeldp.prediction import Prediction, predict

if TYPE_CHECKING:
    import numpy.typing as npt

    Marks = npt.NDArray[np.bool_]

SCALE = 0.5
NOISE = Gaussian(scale=SCALE, norm=2)


def linear(rows: list[list[float]], noise: Gaussian | Laplace = NOISE) -> PixelDP:
    """A network whose logits are linear in its noisy input."""
    weight = torch.tensor(rows)
    network = nn.Linear(weight.shape[1], len(rows), bias=False)
    network.weight.data = weight
    return PixelDP(network, noise)


SIGN = [[1.0, 0.0], [-1.0, 0.0]]
# Three labels, one for each direction of a regular triangle: none is favoured at the origin.
TRIANGLE = [[1.0, 0.0], [-0.5, 0.75**0.5], [-0.5, -(0.75**0.5)]]

by_scores = pytest.mark.parametrize("scores", ["argmax", "softmax"])


def refuted(false: Marks, level: float) -> bool:
    """Whether a binomial test rejects that what is false has at most that probability."""
    test = stats.binomtest(int(false.sum()), len(false), level, alternative="greater")
    return bool(test.pvalue < 1e-3)


@by_scores
@pytest.mark.parametrize("shared_noise", [False, True], ids=["own noise", "shared noise"])
def test_it_names_the_label_in_front_and_abstains_at_ties(scores: str, shared_noise: bool) -> None:
    model = linear(TRIANGLE)
    directions = torch.tensor(TRIANGLE)
    tie = -directions[0] * 3  # labels 1 and 2 are equally far, and label 0 is behind
    x = torch.stack([*(2 * directions), tie])
    made = predict(model, x, draws=300, scores=scores, shared_noise=shared_noise, seed=2)
    assert made.label[:3].tolist() == [0, 1, 2]
    assert made.abstained.tolist() == [False, False, False, True]
    assert made.label[3] in (1, 2)
    assert (made.confidence, made.seed) == (0.95, 2)


@by_scores
def test_easy_inputs_take_fewer_draws_than_hard_ones(scores: str) -> None:
    distances = [1.5, 0.3, 0.1, 0.0]
    x = torch.tensor([[distance, 0.0] for distance in distances]).repeat(30, 1)
    made = predict(linear(SIGN), x, draws=1000, scores=scores, seed=1)
    means = made.draws.reshape(30, 4).mean(axis=0)
    assert (np.diff(means) > 0).all()
    assert means[0] == 16 + 32  # those that choose the label, and one block
    assert means[-1] > 800
    # Never more than was asked for.
    assert made.draws.max() == 16 + 1000
    easy = ~made.abstained.reshape(30, 4)[:, 0]
    assert easy.all()
    assert (made.label.reshape(30, 4)[:, 0] == 0).all()


@by_scores
def test_the_chance_is_below_alpha_exactly_where_it_does_not_abstain(scores: str) -> None:
    x = torch.linspace(-0.4, 0.4, 60)[:, None] * torch.tensor([[1.0, 0.0]])
    for confidence in (0.8, 0.95, 0.999):
        made = predict(linear(SIGN), x, draws=200, confidence=confidence, scores=scores, seed=3)
        assert (made.chance[~made.abstained] <= 1 - confidence).all()
        assert (made.chance[made.abstained] >= 1 - confidence).all()
        assert ((made.chance > 0) & (made.chance <= 1)).all()
        assert 0 < made.abstained.sum() < 60
        # Abstaining has cost all the draws there were.
        assert (made.draws[made.abstained] == 216).all()


def test_more_confidence_takes_more_draws_and_abstains_more_often() -> None:
    x = torch.linspace(0.02, 0.5, 80)[:, None] * torch.tensor([[1.0, 0.0]])
    made = [
        predict(linear(SIGN), x, draws=500, confidence=confidence, seed=3)
        for confidence in (0.8, 0.99, 0.9999)
    ]
    for less, more in itertools.pairwise(made):
        assert less.draws.sum() < more.draws.sum()
        assert (more.abstained | ~less.abstained).all()


# At a near tie the label is often chosen wrong, and then it must not be named.
NEAR = 0.012


def near_tie(draws: int, confidence: float, scores: str = "argmax") -> tuple[Prediction, Marks]:
    """Two thousand equal inputs, each with noise of its own; which of them are named wrong."""
    x = torch.tensor([[NEAR, 0.0]]).repeat(2000, 1)
    made = predict(linear(SIGN), x, draws=draws, confidence=confidence, scores=scores, seed=11)
    return made, ~made.abstained & (made.label != 0)


@by_scores
@pytest.mark.parametrize("confidence", [0.7, 0.95])
def test_wrong_labels_are_rarely_named_at_a_near_tie(scores: str, confidence: float) -> None:
    made, wrong = near_tie(draws=128, confidence=confidence, scores=scores)
    assert not refuted(wrong, 1 - confidence)
    assert 0.3 < (made.label != 0).mean() < 0.55  # though they are often chosen
    if confidence == 0.7:
        assert wrong.any()
    # The chance that is told holds at every level.
    for level in (0.3, 0.1, 0.02):
        assert not refuted((made.chance <= level) & (made.label != 0), level)


def test_a_label_named_as_if_nothing_were_looked_at_before_is_seen_to_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Broken on purpose: the sign test of each look, and the label that these draws prefer."""

    def sign_test(
        counts: npt.NDArray[np.float64], draws: npt.NDArray[np.float64], p: object
    ) -> npt.NDArray[np.float64]:
        del p
        return np.asarray(-stats.binom.logsf(np.maximum(counts, draws - counts) - 1, draws, 0.5))

    monkeypatch.setattr("pixeldp.stopping.log_evidence", sign_test)
    _, wrong = near_tie(draws=256, confidence=0.95)
    assert refuted(wrong, 0.05)


@pytest.mark.parametrize("noise", [NOISE, Laplace(scale=SCALE, norm=1)], ids=["normal", "laplace"])
def test_what_is_named_is_the_label_of_the_expected_scores(noise: Gaussian | Laplace) -> None:
    """Argmax and softmax scores may prefer different labels: each is told of its own.

    Label 0 wins by a little on most draws and label 1 by much on the others.
    """

    class Lopsided(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            often = torch.where(x[:, 0] > -0.2, 0.05, -6.0)
            return torch.stack([often, torch.zeros_like(often)], dim=1)

    law = stats.norm if isinstance(noise, Gaussian) else stats.laplace
    share = float(law.sf(-0.2, scale=SCALE))
    soft = share * special.expit(0.05) + (1 - share) * special.expit(-6.0)
    assert share > 0.6
    assert soft < 0.4
    model, x = PixelDP(Lopsided(), noise), torch.zeros(20, 1)
    hard = predict(model, x, draws=3000, scores="argmax", confidence=0.999, seed=5)
    of_means = predict(model, x, draws=3000, scores="softmax", confidence=0.999, seed=5)
    assert (hard.label[~hard.abstained] == 0).all()
    assert (of_means.label[~of_means.abstained] == 1).all()
    assert min((~hard.abstained).mean(), (~of_means.abstained).mean()) > 0.5


def test_abstentions_at_a_given_distance_follow_from_the_number_of_draws() -> None:
    """More draws decide what fewer could not, and what is decided stays the same."""
    x = torch.linspace(-0.3, 0.3, 100)[:, None] * torch.tensor([[1.0, 0.0]])
    few, many = (predict(linear(SIGN), x, draws=draws, seed=6) for draws in (64, 2000))
    assert few.abstained.sum() > 1.5 * many.abstained.sum()
    assert (few.label == many.label).all()  # chosen by the same draws


def test_a_prediction_repeats_with_its_seed_and_not_without() -> None:
    x = torch.linspace(-0.3, 0.3, 30)[:, None] * torch.tensor([[1.0, 0.0]])
    first = predict(linear(SIGN), x, draws=200)
    again = predict(linear(SIGN), x, draws=200, seed=first.seed)
    assert (first.chance == again.chance).all()
    assert (first.draws == again.draws).all()
    other = predict(linear(SIGN), x, draws=200)
    assert other.seed != first.seed
    assert (other.chance != first.chance).any()
    done: list[int] = []
    predict(linear(SIGN), x, draws=200, progress=done.append)
    assert done == list(range(1, 31))


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.99, 0.999, 0.999999])
def test_too_few_draws_name_the_least_that_could_decide(confidence: float) -> None:
    """Draws that all agree: evidence ``∫ (1 + u)^n du``, which must exceed ``1/alpha``."""
    with pytest.raises(TooFewDraws, match="draws must be at least") as refused:
        predict(linear(SIGN), torch.ones(1, 2), draws=1, confidence=confidence)
    message = str(refused.value)
    assert message.endswith(f"to decide anything at confidence={confidence:g}, got draws=1")
    least = int(re.findall(r"at least (\d+)", message)[0])
    far = torch.tensor([[50.0, 0.0]])
    made = predict(linear(SIGN), far, draws=least, confidence=confidence)
    assert not made.abstained[0]
    evidence, _ = integrate.quad(lambda u: (1 + u) ** least, 0, 1)
    assert made.chance[0] == pytest.approx(1 / evidence)
    if least > 2:
        with pytest.raises(TooFewDraws, match=f"at least {least} "):
            predict(linear(SIGN), far, draws=least - 1, confidence=confidence)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"selection": 0}, "selection must be a whole number of at least 1, got selection=0"),
        ({"selection": 1.5}, "selection must be a whole number of at least 1"),
        ({"draws": 0}, "draws must be a whole number of at least 1, got draws=0"),
        ({"confidence": 0.0}, r"confidence must be in \(0, 1\), got confidence=0.0"),
        ({"confidence": 1.0}, r"confidence must be in \(0, 1\)"),
        ({"confidence": float("nan")}, r"confidence must be in \(0, 1\)"),
        ({"scores": "logits"}, "scores must be one of 'argmax', 'softmax', got scores='logits'"),
        ({"seed": -1}, "seed must be a whole number"),
    ],
)
def test_impossible_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        predict(linear(SIGN), torch.ones(1, 2), **options)


def test_inputs_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InvalidInput, match="x must be finite"):
        predict(linear(SIGN), torch.full((1, 2), torch.nan))
    with pytest.raises(InvalidInput, match="at least one input"):
        predict(linear(SIGN), torch.empty(0, 2))
