from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from pixeldp import Gaussian, Laplace, PixelDP
from pixeldp.batches import Sampling
from pixeldp.errors import InvalidArgument, InvalidScores
from pixeldp.layouts import Layout
from pixeldp.sampling import draw, draw_all, sample_scores
from pixeldp.sketches import PLACES, sketch_of
from pixeldp.stopping import Exactly, Ladder, Within
from pixeldp.streams import BOUNDING, SELECTION, Own

if TYPE_CHECKING:
    from collections.abc import Callable

    from pixeldp.scores import Drawn, Scores

SMALL = Layout(draws=8, blocks=2)


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


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """The rows of every call of the front and of the back."""
    seen: dict[str, list[int]] = {"front": [], "back": []}
    for name in ("front", "back"):
        inner = getattr(PixelDP, name)

        def counted(
            self: PixelDP, value: torch.Tensor, inner: object = inner, name: str = name
        ) -> torch.Tensor:
            seen[name].append(len(value))
            return inner(self, value)  # type: ignore[operator,no-any-return]

        monkeypatch.setattr(PixelDP, name, counted)
    return seen


PROBES = [2, 2, 1]


@pytest.mark.parametrize(
    ("inputs", "draws", "expected"),
    [
        (2, 25, [16, 16, 16, 16]),  # four blocks of eight each, the last with one draw that counts
        (1, 17, [16, 8]),  # a batch is as small as it can be
        (3, 8, [16, 8]),  # blocks of several inputs go through together
        (1, 3, [8]),
    ],
)
def test_the_front_runs_once_an_input_and_the_back_once_a_block(
    model: PixelDP,
    rows: dict[str, list[int]],
    inputs: int,
    draws: int,
    expected: list[int],
) -> None:
    done: list[int] = []
    sampling = Sampling(rule=Exactly(draws), seed=1, layout=SMALL)
    made = draw_all(model, torch.rand(inputs, 1, 6, 6), sampling, progress=done.append)
    assert rows["back"] == [*PROBES, *expected]
    assert rows["front"] == [1] * (inputs + 2)  # and once to look at its shape, once to probe
    assert [one.draws for one in made] == [draws] * inputs
    assert [int(one.counts.sum()) for one in made] == [draws] * inputs
    assert done == list(range(1, inputs + 1))


def test_a_partial_block_counts_exactly_the_draws_that_are_asked_for(model: PixelDP) -> None:
    """Fewer draws are the beginning of more: what is beyond them is not counted."""
    x = torch.rand(2, 1, 6, 6)
    made = {n: sample_scores(model, x, draws=n, seed=3, sketch=True) for n in (1, 31, 32, 33, 100)}
    for fewer, more in zip(list(made)[:-1], list(made)[1:], strict=True):
        left = made[more].counts - made[fewer].counts
        assert (left >= 0).all()
        assert left.sum(axis=1).tolist() == [more - fewer] * 2
        assert (made[more].sums > made[fewer].sums).all()
        kept = made[fewer].sketch
        assert kept is not None
        assert np.allclose(kept.sum(axis=-1), fewer)
        assert np.allclose(kept @ PLACES, made[fewer].sums)


def test_scores_are_those_of_the_noise_of_the_stream_one_by_one() -> None:
    """All at once, with blocks and looks: what a loop over the same noise gives."""
    noise, draws = Gaussian(scale=0.8, norm=2), 75
    x = torch.tensor([[0.3, 0.0], [-0.2, 1.0]])
    scores = sample_scores(PixelDP(Threshold(), noise), x, draws=draws, seed=7, sketch=True)
    for number, one in enumerate(x):
        source = Own(noise, 7, number, BOUNDING, x.device)
        blocks = torch.empty(3, 32, 2)
        for at, out in enumerate(blocks):
            source.add(out, one[None], at)
        logits = Threshold()(blocks.flatten(0, 1)[:draws])
        softmax = logits.double().softmax(dim=1).numpy()
        assert scores.counts[number].tolist() == np.bincount(logits.argmax(dim=1)).tolist()
        assert scores.sums[number] == pytest.approx(softmax.sum(axis=0), rel=1e-12)
        assert scores.squares[number] == pytest.approx((softmax**2).sum(axis=0), rel=1e-12)
        assert scores.sketch is not None
        assert scores.sketch[number] == pytest.approx(sketch_of(softmax), rel=1e-9, abs=1e-12)


def same(one: Scores, other: Scores) -> bool:
    """Whether two hold the very same bits."""
    names = ("counts", "sums", "squares", "sketch")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("shared", [False, True], ids=["own noise", "shared noise"])
def test_bits_depend_neither_on_the_batch_nor_on_the_inputs_beside(
    network: nn.Module, precision: str, shared: bool
) -> None:
    """However many go through together, in whatever company: argmax and softmax scores alike."""
    noise = Gaussian(scale=0.5, norm=2)
    model = PixelDP(network, noise, after="0", input_shape=(1, 6, 6), precision=precision)
    x = torch.rand(5, 1, 6, 6)

    def sampled(x: torch.Tensor, batch: int | None = None) -> Scores:
        return sample_scores(
            model, x, draws=70, seed=5, batch_size=batch, sketch=True, shared=shared
        )

    expected = sampled(x)
    for batch in (1, 64, 96, 500):
        assert same(sampled(x, batch), expected)
    for few in (1, 3):
        alone = sampled(x[:few])
        assert (alone.counts == expected.counts[:few]).all()
        assert (alone.sums == expected.sums[:few]).all()
    if shared:
        twins = sampled(x[:1].repeat(3, 1, 1, 1))
        assert (twins.sums == twins.sums[0]).all()
        assert (twins.counts == twins.counts[0]).all()


def test_an_input_is_known_by_its_number() -> None:
    """Some of the inputs, in another order: each is drawn as among all."""
    model, x = PixelDP(Threshold(), Gaussian(scale=0.8, norm=2)), torch.randn(6, 2)
    sampling = Sampling(rule=Exactly(40), seed=1, selection=10, layout=SMALL)
    every = draw_all(model, x, sampling)
    assert [one.number for one in every] == list(range(6))
    some: list[Drawn] = []
    draw(model, x.__getitem__, [4, 1], sampling, some.append)
    assert sorted(one.number for one in some) == [1, 4]
    for one in some:
        assert (one.sums == every[one.number].sums).all()
        assert one.label == every[one.number].label
    draw(model, x.__getitem__, [], sampling, lambda _: pytest.fail("drawn"))


class OneIsHard:
    """Number 7 takes all draws there are, every other input those up to the first look."""

    looks = (32, 64, 128, 512, 4000)

    def done(self, drawn: Drawn) -> bool:
        return drawn.number != 7

    def settle(self, drawn: Drawn) -> None:
        drawn.proved = 0.5


def test_whoever_is_done_leaves_and_the_next_takes_its_place(rows: dict[str, list[int]]) -> None:
    model = PixelDP(Threshold(), Gaussian(scale=0.5, norm=2))
    x, layout = torch.randn(60, 2), Layout(draws=32, blocks=4)
    sampling = Sampling(rule=OneIsHard(), seed=2, selection=20, layout=layout)
    made = draw_all(model, x, sampling)
    assert [one.draws for one in made] == [32] * 7 + [4000] + [32] * 52
    assert {one.proved for one in made} == {0.5}
    # Blocks of 32 for the label and for each look, and next to nothing that is left unused.
    counted = sum(one.draws + 32 for one in made)
    drawn = sum(rows["back"]) - sum(PROBES)
    assert counted <= drawn <= counted + 2 * 128
    assert drawn < 60 * 4000 / 20


LADDER = Ladder((0.6, 0.9), (32, 64, 128, 512, 4000), 0.05)


def test_what_is_drawn_under_a_rule_depends_on_neither_layout_nor_company() -> None:
    model = PixelDP(Threshold(), Gaussian(scale=0.5, norm=2))
    x = torch.randn(20, 2) * 0.6
    expected = None
    for blocks in (1, 2, 3, 8):
        layout = Layout(draws=32, blocks=blocks)
        made = draw_all(model, x, Sampling(rule=LADDER, seed=3, selection=40, layout=layout))
        found = [(one.draws, one.proved, one.label, one.sums.tolist()) for one in made]
        expected = found if expected is None else expected
        assert found == expected
    few = draw_all(model, x[:3], Sampling(rule=LADDER, seed=3, selection=40, layout=layout))
    assert expected is not None
    assert [one.draws for one in few] == [draws for draws, *_ in expected[:3]]
    assert len({draws for draws, *_ in expected}) > 2


@pytest.mark.parametrize("kind", ["argmax", "softmax"])
def test_the_label_is_chosen_by_draws_of_its_own(kind: str) -> None:
    """Of the scores that are asked for, from the stream of the selection, which bounds nothing."""

    class Lopsided(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            often = torch.where(x[:, 0] > -0.4, 0.05, -6.0)
            return torch.stack([often, torch.zeros_like(often)], dim=1)

    noise = Gaussian(scale=1.0, norm=2)
    model, x = PixelDP(Lopsided(), noise), torch.zeros(40, 1)
    with_label = draw_all(model, x, Sampling(rule=Exactly(50), seed=1, selection=37, kind=kind))
    without = draw_all(model, x, Sampling(rule=Exactly(50), seed=1))
    for one, other in zip(with_label, without, strict=True):
        assert (one.sums == other.sums).all()
        assert other.label is None
        source, out = Own(noise, 1, one.number, SELECTION, x.device), torch.empty(2, 32, 1)
        source.add(out[0], x[:1], 0)
        source.add(out[1], x[:1], 1)
        logits = Lopsided()(out.flatten(0, 1)[:37])
        votes = torch.bincount(logits.argmax(dim=1), minlength=2)
        assert one.label == int((votes if kind == "argmax" else logits.softmax(1).sum(0)).argmax())
    labels = [one.label for one in with_label]
    assert labels.count(0) > 30 if kind == "argmax" else labels.count(1) > 30


def test_the_sketch_of_the_leads_is_that_of_the_label_over_each_other(model: PixelDP) -> None:
    x = torch.rand(2, 1, 6, 6)
    sampling = Sampling(rule=Exactly(50), seed=1, selection=20, kind="softmax", sketch="leads")
    for one in draw_all(model, x, sampling):
        assert one.sketch is not None
        own = one.sums[one.label]
        assert np.allclose(one.sketch @ PLACES, (50 + own - one.sums) / 2)


def test_a_budget_of_seconds_looks_at_every_input_once_and_at_few_again() -> None:
    model = PixelDP(Threshold(), Gaussian(scale=0.5, norm=2))
    looks = tuple(32 * 2**power for power in range(12))
    rule = Within(0.0, float, looks, 0.05, "argmax", "beta-binomial")
    x = torch.full((12, 2), 0.2)
    for seconds, most in ((1e-9, looks[0]), (0.3, looks[-1])):
        made = draw_all(
            model, x, Sampling(rule=rule, seed=1, selection=20, seconds=seconds, layout=SMALL)
        )
        assert min(one.draws for one in made) >= looks[0]
        assert max(one.draws for one in made) <= most
        assert all(one.proved > 0 for one in made)
        assert all(one.draws in looks for one in made)
    assert max(one.draws for one in made) > looks[0]


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
        ("one label", r"at least two logits for each input, got shape \(\d+, 1\)"),
        ("one row", r"got shape \(1, 3\) for \d+ inputs"),
    ],
)
def test_outputs_that_are_no_scores_are_refused(kind: str, message: str) -> None:
    broken = PixelDP(Broken(kind), Gaussian(scale=1.0, norm=2))
    with pytest.raises(InvalidScores, match=message):
        sample_scores(broken, torch.rand(1, 3), draws=50)


class Later(nn.Module):
    """Does well until it is called once more."""

    def __init__(self, calls: int, then: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.calls, self.then = calls, then

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls -= 1
        return self.then(x) if self.calls < 0 else x


@pytest.mark.parametrize(
    ("then", "message"),
    [
        (lambda x: x * torch.nan, "returned NaN or infinity under noise"),
        (lambda x: torch.where(x > x.max() - 1e-6, torch.inf, x), "returned NaN or infinity"),
        (lambda x: x[:, :2], "returned 2 scores for a draw, and 3 before"),
        (lambda x: torch.cat([x, x], 1), "returned 6 scores for a draw, and 3 before"),
        (lambda x: x[1:], r"got shape \(15, 3\) for 16 inputs"),
        (lambda x: x[:, 0], r"got shape \(16,\) for 16 inputs"),
    ],
    ids=["nan", "one infinity", "fewer labels", "more labels", "a row less", "no labels"],
)
@pytest.mark.parametrize("calls", [3, 7])
def test_outputs_that_stop_being_scores_are_refused(
    then: Callable[[torch.Tensor], torch.Tensor], message: str, calls: int
) -> None:
    """After the probes, at the first batch or at a later one."""
    model = PixelDP(Later(calls, then), Gaussian(scale=1.0, norm=2))
    sampling = Sampling(rule=Exactly(160), seed=1, layout=SMALL)
    with pytest.raises(InvalidScores, match=message):
        draw_all(model, torch.rand(1, 3), sampling)


@pytest.mark.parametrize(
    "arguments", [{"draws": 0}, {"draws": 10, "batch_size": 0}, {"draws": 10, "seed": -1}]
)
def test_impossible_arguments_are_refused(model: PixelDP, arguments: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument, match="must be a whole number"):
        sample_scores(model, torch.rand(1, 1, 6, 6), **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"selection": -1}, "selection must be a whole number of at least 0, got selection=-1"),
        ({"kind": "logits"}, "scores must be one of 'argmax', 'softmax', got scores='logits'"),
        ({"sketch": "all"}, "sketch must be one of None, 'scores', 'leads', got sketch='all'"),
        ({"seconds": 0.0}, "seconds must be a finite number above 0, got seconds=0.0"),
    ],
)
def test_what_cannot_be_drawn_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        Sampling(rule=Exactly(10), seed=1, **options)  # type: ignore[arg-type]
