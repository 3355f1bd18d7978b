"""Networks that were not written for this library: where noise may stand in them, and where not.

The networks and placements are those of the page ``docs/gallery.md``, on small inputs.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import pixeldp
from pixeldp import PixelDP, graphs, tracing
from pixeldp.errors import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

ROOT = Path(__file__).parents[1]


def load_gallery() -> Any:  # noqa: ANN401 - a module that lies outside the package
    spec = importlib.util.spec_from_file_location("gallery", ROOT / "benchmarks" / "gallery.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look for their module
    spec.loader.exec_module(module)
    return module


gallery = load_gallery()
QUICK = [placement for placement in gallery.PLACEMENTS if placement.quick]
# What rounding in float32 may add to the ratio of two distances.
ROUNDING = 1 + 1e-4


def built(name: str) -> nn.Module:
    try:
        fresh: nn.Module = gallery.build(name, shape_of(name))
    except MissingExtra as missing:
        pytest.skip(str(missing))
    return fresh


def shape_of(name: str) -> tuple[int, ...]:
    shape: tuple[int, ...] = gallery.NETWORKS[name].small
    return shape


def wrapped(network: nn.Module, name: str, after: str) -> PixelDP:
    return PixelDP(network, gallery.NOISES[0], after=after, input_shape=shape_of(name))


@torch.no_grad()
def largest_of_random_pairs(model: PixelDP, shape: tuple[int, ...]) -> float:
    """Over 64 pairs: a third far apart, a third close, a third that differ in one coordinate."""
    x = torch.rand(64, *shape)
    other = torch.rand(64, *shape)
    other[20:40] = x[20:40] + 0.1 * torch.randn(20, *shape)
    other[40:] = x[40:]
    coordinates = torch.randint(0, x[0].numel(), (24, 1))
    other[40:].view(24, -1).scatter_add_(1, coordinates, torch.full((24, 1), 0.5))
    before = (x - other).flatten(1).norm(p=model.noise.norm, dim=1)
    behind = (model.front(x) - model.front(other)).flatten(1).norm(p=model.noise.q, dim=1)
    return float((behind / before).amax())


def assert_computes_the_same(model: PixelDP, shape: tuple[int, ...]) -> None:
    """Without noise, the two pieces are the network: up to rounding, against the logits' spread."""
    x = torch.rand(3, *shape)
    with torch.no_grad():
        expected = model.network.eval()(x)
        spread = float(expected.amax() - expected.amin())
        assert float((expected[0] - expected[1]).abs().amax()) > 1e-2 * spread > 0
        computed = model.back(model.front(x))
    torch.testing.assert_close(computed, expected, rtol=0.0, atol=1e-4 * spread)


def assert_no_pair_exceeds_the_bound(model: PixelDP, shape: tuple[int, ...]) -> None:
    for noise in gallery.NOISES:
        model.noise = noise  # the cut is the same for every noise
        bound = model.sensitivity
        assert 0 < bound < math.inf
        assert largest_of_random_pairs(model, shape) <= bound * ROUNDING
        assert gallery.largest_found(model, shape) <= bound * ROUNDING


@functools.lru_cache(maxsize=1)
def the_network(name: str) -> nn.Module:
    """Built once for placements that follow each other, and so captured once."""
    return built(name)


@pytest.fixture(scope="module", autouse=True)
def captured_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tracing, "capture", functools.lru_cache(maxsize=1)(graphs.capture))
        yield
    the_network.cache_clear()


@pytest.mark.parametrize("placement", QUICK, ids=lambda at: f"{at.network}-{at.after}")
def test_noise_is_bounded_and_changes_nothing_else_or_its_refusal_names_why(
    placement: Any,  # noqa: ANN401 - of a module loaded by its path
) -> None:
    torch.manual_seed(0)
    network, shape = the_network(placement.network), shape_of(placement.network)
    if placement.refused is not None:
        with pytest.raises(placement.refused, match=placement.naming):
            wrapped(network, placement.network, placement.after)
        return
    model = wrapped(network, placement.network, placement.after)
    assert_no_pair_exceeds_the_bound(model, shape)
    assert_computes_the_same(model, shape)


def test_the_search_would_catch_a_bound_that_is_a_fifth_too_small() -> None:
    for name, after in (("MLP", "dense1"), ("CNN", "conv1"), ("word counts", "hidden")):
        model = wrapped(built(name), name, after)
        for noise in gallery.NOISES:
            model.noise = noise
            found = gallery.largest_found(model, shape_of(name), starts=16)
            assert found > 0.8 * model.sensitivity, (name, noise)


def test_an_autoencoder_before_an_untouched_network_costs_its_first_convolution() -> None:
    """The fourth place of §3.2: the rest of the autoencoder and the network stand behind it."""
    name = "autoencoder, resnet18"
    model = wrapped(built(name), name, "autoencoder.conv1")
    stack: Any = model.network
    before = {key: value.clone() for key, value in stack.classifier.state_dict().items()}
    for noise in gallery.NOISES:
        model.noise = noise
        alone = pixeldp.sensitivity(
            stack.autoencoder.conv1, shape_of(name), p=int(noise.norm), q=noise.q
        )
        assert model.sensitivity == alone
    x = torch.rand(2, *shape_of(name))
    with torch.no_grad():
        expected = stack.classifier.eval()(stack.autoencoder(x))
        torch.testing.assert_close(model.back(model.front(x)), expected)
    after = stack.classifier.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_the_running_statistics_of_today_are_bounded() -> None:
    """Four times the variance, ε included: half the scale of each channel, half the bound."""
    model = wrapped(built("CNN"), "CNN", "norm1")
    network: Any = model.network
    before = model.sensitivity
    norm = network.norm1
    norm.running_var.copy_(4 * (norm.running_var + norm.eps) - norm.eps)
    assert model.sensitivity == pytest.approx(before / 2, rel=1e-6)
    assert_computes_the_same(model, shape_of("CNN"))


def test_the_page_shows_what_was_measured_of_every_placement() -> None:
    kept = json.loads((ROOT / "docs" / "results" / "gallery.json").read_text(encoding="utf-8"))
    rows = kept["numbers"]["rows"]
    assert gallery.table(rows) in (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    assert [(row["network"], row["after"], row.get("error")) for row in rows] == [
        (placement.network, placement.after, getattr(placement.refused, "__name__", None))
        for placement in gallery.PLACEMENTS
    ]
    for row in rows:
        if row["accepted"]:
            assert row["found (2, 2)"] <= row["(2, 2)"] * ROUNDING
            assert row["found (1, 1)"] <= row["(1, 1)"] * ROUNDING
