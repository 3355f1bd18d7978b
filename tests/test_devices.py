"""The same on an accelerator as on a processor; skipped, visibly, where there is none."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from scipy import stats
from torch import nn

from pixeldp import Gaussian, Laplace, PixelDP, certify, predict
from pixeldp.batches import Sampling
from pixeldp.layouts import block_draws, tried_layout
from pixeldp.sampling import draw_all, sample_scores
from pixeldp.stopping import Exactly
from pixeldp.teams import device_named

if TYPE_CHECKING:
    from pixeldp.layouts import Layout
    from pixeldp.scores import Drawn

DEVICES = [
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU of NVIDIA here"),
    ),
    pytest.param(
        "mps", marks=pytest.mark.skipif(not torch.mps.is_available(), reason="no GPU of Apple here")
    ),
    "cpu",
]
on_each_device = pytest.mark.parametrize("name", DEVICES)


class Sign(nn.Module):
    """Two labels, by the sign of the first coordinate."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = x[:, 0] * self.weight
        return torch.stack([first, -first], dim=1)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 36, 5),
    ).eval()


def model_on(name: str, *, after: str | None = "0", precision: str = "fp32") -> PixelDP:
    noise = Gaussian(scale=0.5, norm=2)
    made = PixelDP(network(), noise, after=after, input_shape=(1, 14, 14), precision=precision)
    return made.to(device_named(name))


def images(name: str, count: int = 4) -> torch.Tensor:
    x = torch.rand(count, 1, 14, 14, generator=torch.Generator().manual_seed(2))
    return x.to(device_named(name))


@on_each_device
@pytest.mark.parametrize(
    ("noise", "law"),
    [(Gaussian(scale=0.8, norm=2), stats.norm), (Laplace(scale=0.8, norm=1), stats.laplace)],
)
def test_counts_follow_the_known_probability(
    name: str, noise: Gaussian | Laplace, law: object
) -> None:
    device = device_named(name)
    model = PixelDP(Sign(), noise).to(device)
    scores = sample_scores(model, torch.tensor([[0.5, 3.0]], device=device), draws=40_000, seed=1)
    count = int(scores.counts[0, 0])
    p, wrong = (law.cdf(0.5, scale=scale) for scale in (0.8, 0.88))  # type: ignore[attr-defined]
    assert stats.binomtest(count, 40_000, p).pvalue > 1e-4
    assert stats.binomtest(count, 40_000, wrong).pvalue < 1e-4


@on_each_device
@pytest.mark.parametrize("after", [None, "0"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_layout_changes_the_speed_and_nothing_else(
    name: str, after: str | None, precision: str
) -> None:
    model, x = model_on(name, after=after, precision=precision), images(name)
    with torch.no_grad():
        found = tried_layout(model, model.front(x[:1]))

    def drawn(layout: Layout, count: int) -> list[Drawn]:
        return draw_all(model, x[:count], Sampling(rule=Exactly(1000), seed=3, layout=layout))

    together = drawn(found, len(x))
    # Where batches must be whole, one of another size has other bits, but not its places.
    others = [drawn(found, 1)] if found.whole else [drawn(replace(found, blocks=1), len(x))]
    for other in others:
        for one, two in zip(together, other, strict=False):
            assert (one.counts == two.counts).all()
            assert (one.sums == two.sums).all()


@on_each_device
def test_the_same_seed_gives_the_same_certificates(name: str) -> None:
    model, x = model_on(name), images(name)
    first, again = (certify(model, x, draws=500, seed=7) for _ in range(2))
    assert (first.scores.sums == again.scores.sums).all()
    assert first.radius.tolist() == again.radius.tolist()


@on_each_device
def test_devices_agree_within_the_error_of_the_draws(name: str) -> None:
    draws = 4000
    here = certify(model_on(name), images(name), draws=draws, seed=1)
    there = certify(model_on("cpu"), images("cpu"), draws=draws, seed=1)
    error = 6 * (0.25 / draws) ** 0.5
    assert abs(here.scores.means("softmax") - there.scores.means("softmax")).max() < error


@on_each_device
@pytest.mark.parametrize("shared", [False, True])
def test_radii_are_decided_below_the_true_one(name: str, shared: bool) -> None:
    device = device_named(name)
    model = PixelDP(Sign(), Gaussian(scale=0.5, norm=2)).to(device)
    x = torch.tensor([[distance, 0.0] for distance in (0.2, 0.6, 1.0)], device=device)
    made = certify(
        model, x, draws=20_000, target=(0.3, 0.5), confidence=0.999, seed=2, shared_noise=shared
    )
    assert made.radius[0] < 0.2
    assert made.radius[1:].min() >= 0.5
    assert (made.radius < x[:, 0].cpu().numpy()).all()
    assert (made.scores.draws % block_draws(device) == 0).all() or made.scores.draws.max() == 20_000


@on_each_device
def test_predictions_are_made(name: str) -> None:
    model = PixelDP(Sign(), Gaussian(scale=0.5, norm=2)).to(device_named(name))
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], device=device_named(name))
    for scores in ("argmax", "softmax"):
        made = predict(model, x, draws=1000, scores=scores, seed=1)
        assert made.label.tolist() == [0, 1]
        assert not made.abstained.any()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU of NVIDIA here")
def test_float32_is_not_shortened_on_a_gpu() -> None:
    """TF32 keeps ten bits; the front must be evaluated as its sensitivity was proved."""
    torch.backends.cudnn.allow_tf32 = True
    torch.set_float32_matmul_precision("medium")
    try:
        torch.manual_seed(0)
        layer = nn.Sequential(nn.Conv2d(64, 64, 3), nn.Flatten(), nn.Linear(64 * 144, 4)).cuda()
        model = PixelDP(layer, Gaussian(scale=1.0, norm=2), after="0", input_shape=(64, 14, 14))
        x = torch.rand(8, 64, 14, 14, device="cuda")
        with torch.no_grad():
            exact = layer[0].double()(x.double())
            layer.float()
            error = float((model.front(x).double() - exact).abs().max() / exact.abs().max())
            assert error < 1e-5
            logits = model.back(model.front(x))
            wide = layer.double()(x.double())
            layer.float()
            assert float((logits.double() - wide).abs().max() / wide.abs().max()) < 1e-5
    finally:
        torch.backends.cudnn.allow_tf32 = True
        torch.set_float32_matmul_precision("highest")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU of NVIDIA here")
def test_memory_on_a_gpu_does_not_grow_with_the_draws() -> None:
    model, x = model_on("cuda"), images("cuda")
    peaks = []
    for draws in (10_000, 200_000):
        torch.cuda.reset_peak_memory_stats()
        sample_scores(model, x, draws=draws, seed=1, batch_size=4096)
        peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[1] <= 1.1 * peaks[0]
