from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from pixeldp import Gaussian, Laplace, PixelDP
from pixeldp.errors import InvalidArgument, InvalidScores
from pixeldp.sampling import sample_scores


class Threshold(nn.Module):
    """Two labels, decided by the sign of the first coordinate; softmax is the logistic function."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x[:, 0], -x[:, 0]], dim=1)


@pytest.mark.parametrize(
    ("noise", "law"),
    [(Gaussian(scale=0.8, norm=2), stats.norm), (Laplace(scale=0.8, norm=1), stats.laplace)],
)
def test_counts_follow_the_known_probability(noise: Gaussian | Laplace, law: object) -> None:
    model = PixelDP(Threshold(), noise)
    points = torch.tensor([[0.0, 0.0], [0.5, 9.0], [-1.0, 2.0]])
    draws = 20_000
    scores = sample_scores(model, points, draws=draws, seed=11)
    for row, point in enumerate(points[:, 0].tolist()):
        p = law.cdf(point, scale=0.8)  # type: ignore[attr-defined]
        assert stats.binomtest(int(scores.counts[row, 0]), draws, p).pvalue > 1e-4
        # The test would see noise of a tenth more, except at 0 where it makes no difference.
        wrong = law.cdf(point, scale=0.88)  # type: ignore[attr-defined]
        if point:
            assert stats.binomtest(int(scores.counts[row, 0]), draws, wrong).pvalue < 1e-4


def test_softmax_sums_follow_the_known_expectation() -> None:
    model = PixelDP(Threshold(), Gaussian(scale=0.8, norm=2))
    draws, point = 20_000, 0.4
    scores = sample_scores(model, torch.tensor([[point, 0.0]]), draws=draws, seed=3)
    grid = np.linspace(-8, 8, 100_001)
    soft = 1 / (1 + np.exp(-2 * (point + 0.8 * grid)))
    weights = stats.norm.pdf(grid) * (grid[1] - grid[0])
    mean, square = float(soft @ weights), float(soft**2 @ weights)
    error = 5 * np.sqrt((square - mean**2) / draws)
    assert scores.means("softmax")[0, 0] == pytest.approx(mean, abs=error)
    assert scores.squares[0, 0] / draws == pytest.approx(square, abs=error)
    assert scores.means("softmax").sum(axis=1) == pytest.approx(1.0)


def test_the_same_seed_gives_the_same_scores_and_another_does_not(model: PixelDP) -> None:
    x = torch.rand(3, 1, 6, 6)
    first, again = (sample_scores(model, x, draws=300, seed=5) for _ in range(2))
    assert (first.counts == again.counts).all()
    assert (first.sums == again.sums).all()
    other = sample_scores(model, x, draws=300, seed=6)
    assert (first.sums != other.sums).any()


def test_an_inputs_scores_do_not_depend_on_those_beside_it(model: PixelDP) -> None:
    x = torch.rand(3, 1, 6, 6)
    together = sample_scores(model, x, draws=300, seed=5)
    alone = sample_scores(model, x[:1], draws=300, seed=5)
    assert (together.sums[0] == alone.sums[0]).all()
    # Two equal inputs have independent noise.
    twins = sample_scores(model, x[:1].repeat(2, 1, 1, 1), draws=300, seed=5)
    assert (twins.sums[0] != twins.sums[1]).any()


def test_seeds_come_from_the_operating_system_and_are_recorded(model: PixelDP) -> None:
    x = torch.rand(1, 1, 6, 6)
    first, second = (sample_scores(model, x, draws=50) for _ in range(2))
    assert first.seed != second.seed
    again = sample_scores(model, x, draws=50, seed=first.seed)
    assert (again.sums == first.sums).all()


def test_the_front_runs_once_an_input_and_the_back_once_a_draw(
    model: PixelDP, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: dict[str, list[int]] = {"front": [], "back": []}
    for name in ("front", "back"):
        inner = getattr(PixelDP, name)

        def counted(
            self: PixelDP, value: torch.Tensor, inner: object = inner, name: str = name
        ) -> torch.Tensor:
            rows[name].append(len(value))
            return inner(self, value)  # type: ignore[operator,no-any-return]

        monkeypatch.setattr(PixelDP, name, counted)
    done: list[int] = []
    x = torch.rand(2, 1, 6, 6)
    scores = sample_scores(model, x, draws=25, batch_size=10, progress=done.append)
    assert rows == {"front": [1, 1], "back": [10, 10, 5, 10, 10, 5]}
    assert scores.draws.tolist() == [25, 25]
    assert scores.counts.sum(axis=1).tolist() == [25, 25]
    assert done == [1, 2]


class Broken(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "nan":
            return x * torch.nan
        if self.kind == "one label":
            return x[:, :1]
        return x[:1]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("nan", "returned NaN or infinity under noise"),
        ("one label", r"at least two logits for each input, got shape \(50, 1\)"),
        ("one row", r"got shape \(1, 3\) for 50 inputs"),
    ],
)
def test_outputs_that_are_no_scores_are_refused(kind: str, message: str) -> None:
    broken = PixelDP(Broken(kind), Gaussian(scale=1.0, norm=2))
    with pytest.raises(InvalidScores, match=message):
        sample_scores(broken, torch.rand(1, 3), draws=50)


@pytest.mark.parametrize(
    "arguments", [{"draws": 0}, {"draws": 10, "batch_size": 0}, {"draws": 10, "seed": -1}]
)
def test_impossible_arguments_are_refused(model: PixelDP, arguments: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument, match="must be a whole number"):
        sample_scores(model, torch.rand(1, 1, 6, 6), **arguments)  # type: ignore[arg-type]
