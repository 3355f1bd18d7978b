"""Where noise comes from, and how draws go through the network: speed changes, bits do not."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from pixeldp import Gaussian, Laplace, PixelDP
from pixeldp.batches import Sampling
from pixeldp.errors import InvalidArgument
from pixeldp.layouts import (
    Layout,
    back_of,
    block_draws,
    tried_layout,
    usable_layout,
    usual_layout,
)
from pixeldp.sampling import draw_all, layout_for, layout_rows, sample_scores
from pixeldp.stopping import Exactly
from pixeldp.streams import BOUNDING, SELECTION, Own, Shared, checked_seed, generator

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from pixeldp.mechanisms import Mechanism
    from pixeldp.streams import Noise

CPU = torch.device("cpu")
NOISES: dict[str, Mechanism] = {
    "gaussian": Gaussian(scale=0.7, norm=2),
    "laplace": Laplace(scale=0.7, norm=1),
}
LAWS = {"gaussian": stats.norm(scale=0.7), "laplace": stats.laplace(scale=0.7)}

by_noise = pytest.mark.parametrize("noise", NOISES.values(), ids=list(NOISES))


def block(noise: Noise, number: int = 0, value: float = 0.0, size: int = 40) -> torch.Tensor:
    """One block of noise around a value."""
    out = torch.full((32, size), torch.nan)
    noise.add(out, torch.full((1, size), value), number)
    return out


def own(
    noise: Mechanism, seed: int = 5, number: int = 0, purpose: int = BOUNDING, blocks: int = 2
) -> torch.Tensor:
    """The first blocks of an input's own noise."""
    source = Own(noise, seed, number, purpose, CPU)
    return torch.stack([block(source, at) for at in range(blocks)])


@by_noise
def test_the_same_seed_gives_the_same_noise_and_no_two_streams_are_alike(
    noise: Mechanism,
) -> None:
    names = [(5, 0, BOUNDING), (5, 0, SELECTION), (5, 1, BOUNDING), (5, 1, SELECTION)]
    names += [(6, 0, BOUNDING), (5, 10_000, BOUNDING), (2**62, 0, BOUNDING)]
    streams = [own(noise, *name) for name in names]
    assert all(
        torch.equal(stream, own(noise, *name)) for stream, name in zip(streams, names, strict=True)
    )
    blocks = torch.cat(streams).flatten(1)
    # All blocks of all streams differ, and nothing in one tells of another.
    for one in range(len(blocks)):
        for other in range(one):
            assert not torch.equal(blocks[one], blocks[other])
    correlations = np.corrcoef(blocks.numpy()) - np.eye(len(blocks))
    assert np.abs(correlations).max() < 5 / np.sqrt(blocks.shape[1])


@by_noise
@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
def test_noise_has_the_scale_that_is_certified(noise: Mechanism, shared: bool) -> None:
    """Kolmogorov and Smirnov accept the law, and reject the same with a scale of a tenth more."""
    source = Shared(noise, 3, CPU).purpose(BOUNDING) if shared else Own(noise, 3, 1, BOUNDING, CPU)
    drawn = torch.cat([block(source, at) for at in range(16)]).flatten().numpy()
    law = LAWS[noise.name]
    assert stats.kstest(drawn, law.cdf).pvalue > 1e-3
    assert stats.kstest(drawn / 1.1, law.cdf).pvalue < 1e-5
    assert stats.kstest(drawn - 0.1, law.cdf).pvalue < 1e-6


@by_noise
@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
def test_noise_is_added_to_the_value(noise: Mechanism, shared: bool) -> None:
    def source() -> Noise:
        return Shared(noise, 3, CPU).purpose(0) if shared else Own(noise, 3, 1, 0, CPU)

    assert torch.allclose(block(source(), value=2.5) - 2.5, block(source()), atol=1e-6)


@by_noise
def test_shared_noise_is_the_same_for_all_and_different_for_every_block(noise: Mechanism) -> None:
    shared = Shared(noise, 5, CPU)
    first, other = shared.purpose(BOUNDING), shared.purpose(SELECTION)
    blocks = [block(first, 0), block(first, 1), block(other, 0), block(other, 1)]
    # Other inputs, asking again in another order, or in another run.
    again = Shared(noise, 5, CPU)
    for purpose, number, expected in (
        (SELECTION, 1, blocks[3]),
        (BOUNDING, 1, blocks[1]),
        (SELECTION, 0, blocks[2]),
        (BOUNDING, 0, blocks[0]),
    ):
        assert torch.equal(block(again.purpose(purpose), number), expected)
        assert torch.equal(block(shared.purpose(purpose), number), expected)
    flat = torch.stack(blocks).flatten(1).numpy()
    assert np.abs(np.corrcoef(flat) - np.eye(4)).max() < 5 / np.sqrt(flat.shape[1])
    assert not torch.equal(block(Shared(noise, 6, CPU).purpose(BOUNDING)), blocks[0])


@pytest.mark.parametrize("kept", [0, 10_000, 2**30])
def test_shared_noise_does_not_depend_on_what_is_still_in_memory(
    kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise, asked = NOISES["gaussian"], [0, 1, 2, 0, 3, 3, 1, 4, 0, 2]
    fresh = [block(Shared(noise, 9, CPU).purpose(BOUNDING), number) for number in asked]
    monkeypatch.setattr("pixeldp.streams._KEPT_BYTES", kept)
    shared = Shared(noise, 9, CPU)
    source = shared.purpose(BOUNDING)
    assert all(
        torch.equal(block(source, number), one) for number, one in zip(asked, fresh, strict=True)
    )
    one = fresh[0].nbytes
    assert len(shared._kept) == min(max(kept // one, 1), 5)
    assert shared._bytes == one * len(shared._kept)


def test_seeds_are_whole_numbers_of_63_bits_or_come_from_the_system() -> None:
    assert checked_seed(7) == 7
    assert checked_seed(0) == 0
    drawn = {checked_seed(None) for _ in range(20)}
    assert len(drawn) == 20
    assert all(0 <= seed < 2**63 for seed in drawn)
    for seed in (-1, 2**63, 1.5, True):
        with pytest.raises(InvalidArgument, match=r"seed must be a whole number in \[0, 2\*\*63\)"):
            checked_seed(seed)  # type: ignore[arg-type]


def test_a_generator_is_named_by_all_of_its_words() -> None:
    names = [(1, 2, 0), (1, 2, 1), (2, 1, 0), (1, 3, 0), (1, 2, 0, 1), (2**40, 2, 0)]
    drawn = [torch.rand(4, generator=generator(name, CPU)) for name in names]
    assert len({tuple(one.tolist()) for one in drawn}) == len(names)
    assert torch.equal(torch.rand(4, generator=generator(names[0], CPU)), drawn[0])


# Layouts.


def test_batches_are_halved_while_that_is_whole_unless_they_must_be_whole() -> None:
    sizes = {1: [1], 5: [5], 8: [8, 4, 2, 1], 24: [24, 12, 6, 3]}
    for blocks, expected in sizes.items():
        assert Layout(draws=32, blocks=blocks).sizes() == expected
        assert Layout(draws=32, blocks=blocks, whole=True).sizes() == [blocks]


def test_large_values_go_through_in_smaller_blocks_and_fewer_at_once() -> None:
    def usual(numbers: int, batch: int | None = None) -> tuple[int, int]:
        layout = usual_layout(torch.empty(1, numbers), batch=batch)
        return layout.draws, layout.blocks

    assert block_draws(CPU) == 32
    assert usual(100) == (32, 4)
    assert usual(2**18) == (32, 4)  # a block of 32 MiB
    assert usual(2**19) == (16, 4)
    assert usual(2**20) == (8, 4)
    assert usual(2**21) == (8, 2)  # blocks become no smaller, but fewer
    assert usual(2**24) == (8, 1)
    # So many draws at once as were asked for, up to whole blocks.
    assert usual(100, batch=1) == (32, 1)
    assert usual(100, batch=32) == (32, 1)
    assert usual(100, batch=33) == (32, 2)
    assert usual(2**24, batch=20) == (8, 3)
    assert layout_rows(Layout(draws=8, blocks=3)) == 24
    with pytest.raises(InvalidArgument, match="batch must be a whole number of at least 1"):
        usual(100, batch=0)


def test_images_lie_with_their_channels_together() -> None:
    shapes = {(1, 3, 8, 8): True, (1, 3, 1, 8): False, (1, 24): False, (1, 3, 8): False}
    for shape, together in shapes.items():
        value = torch.randn(shape)
        layout = usual_layout(value)
        assert layout.channels_last is together
        # Memory for the blocks, and the same values seen from outside.
        assert layout.buffer(value).shape[:2] == (4, 32)
        assert torch.equal(layout.outside(layout.inside(value)), value)
        if together:
            seen = layout.outside(layout.buffer(value).flatten(0, 1))
            assert seen.shape == (128, *shape[1:])
            assert seen.is_contiguous(memory_format=torch.channels_last)


def test_a_layout_is_recorded_as_what_json_can_hold() -> None:
    layout = Layout(draws=32, blocks=4, channels_last=True)
    assert layout.as_dict() == {
        "draws": 32,
        "blocks": 4,
        "channels_last": True,
        "whole": False,
        "compiled": False,
    }
    assert Layout(**layout.as_dict()) == layout


class Images(nn.Module):
    """A small convolutional network; ``order`` is how it flattens what it sees first."""

    def __init__(self, order: str = "none") -> None:
        super().__init__()
        torch.manual_seed(2)
        self.order = order
        self.layers = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 64, 4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.order == "view":
            x = x.view(len(x), -1).view(len(x), 3, 8, 8)
        out: torch.Tensor = self.layers(x)
        return out


def test_a_network_that_insists_on_the_usual_order_gets_it() -> None:
    x = torch.rand(3, 3, 8, 8)
    for order, together in (("none", True), ("view", False)):
        model = PixelDP(Images(order), Gaussian(scale=0.4, norm=2))
        assert usable_layout(model, x[:1]).channels_last is together
        assert tried_layout(model, x[:1]).channels_last is together
    viewed = sample_scores(model, x, draws=100, seed=1)
    assert viewed.draws.tolist() == [100] * 3


class Rounding(nn.Module):
    """Rounds some rows of some batches otherwise, by so little that the probes let it pass.

    ``otherwise(rows)``: the factor of all rows, or of each, in a batch of so many.
    """

    def __init__(self, otherwise: Callable[[int], torch.Tensor]) -> None:
        super().__init__()
        self.otherwise = otherwise

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = torch.cat([x[:, :1], -x[:, :1]], dim=1)
        return logits * torch.where(self.otherwise(len(x)), 1 + 2e-7, 1.0)[:, None]


def rounding(otherwise: Callable[[int], torch.Tensor]) -> PixelDP:
    return PixelDP(Rounding(otherwise), Gaussian(scale=1.0, norm=2))


EVEN = rounding(lambda rows: torch.zeros(rows, dtype=torch.bool))
BY_BATCH = {
    "above one block": rounding(lambda rows: torch.full((rows,), rows > 32)),
    "at two blocks": rounding(lambda rows: torch.full((rows,), rows == 64)),
    "at four blocks": rounding(lambda rows: torch.full((rows,), rows == 128)),
}
BY_PLACE = {
    "every other block": rounding(lambda rows: torch.arange(rows) // 32 % 2 == 1),
    "the last row": rounding(lambda rows: torch.arange(rows) == 127),
}


@pytest.mark.parametrize("name", BY_BATCH)
def test_bits_that_depend_on_the_size_of_the_batch_are_computed_in_whole_batches(name: str) -> None:
    """Then the company of an input changes nothing: every batch is of one size."""
    model, x = BY_BATCH[name], torch.randn(5, 4)
    usable = usable_layout(model, x[:1])
    assert (usable.blocks, usable.whole) == (4, True)
    assert tried_layout(model, x[:1]) == usable
    together = sample_scores(model, x, draws=70, seed=4)
    for few in (1, 2, 3):
        alone = sample_scores(model, x[:few], draws=70, seed=4)
        assert (alone.sums == together.sums[:few]).all()


@pytest.mark.parametrize("name", BY_PLACE)
def test_bits_that_depend_on_the_place_in_the_batch_go_through_one_block_at_a_time(
    name: str,
) -> None:
    model, x = BY_PLACE[name], torch.randn(3, 4)
    assert usable_layout(model, x[:1]).blocks == 1
    assert tried_layout(model, x[:1]).blocks in ((1,) if name == "every other block" else (1, 2))
    # Seen from the outside: what is drawn does not depend on how many draws were asked for at once.
    alone, many = (sample_scores(model, x, draws=300, seed=4, batch_size=n) for n in (1, 128))
    assert (alone.sums == many.sums).all()


def test_a_network_that_treats_rows_alike_keeps_its_blocks() -> None:
    assert usable_layout(EVEN, torch.randn(1, 5)) == Layout(draws=32, blocks=4)
    assert usable_layout(EVEN, torch.randn(1, 5), batch=96) == Layout(draws=32, blocks=3)


def sums(model: PixelDP, x: torch.Tensor, layout: Layout) -> npt.NDArray[np.float64]:
    rows = draw_all(model, x, Sampling(rule=Exactly(150), seed=8, layout=layout))
    return np.stack([one.sums for one in rows])


def test_the_layout_that_is_tried_gives_the_bits_of_one_block_alone() -> None:
    model = PixelDP(Images(), Gaussian(scale=0.4, norm=2))
    x = torch.rand(3, 3, 8, 8)
    tried = tried_layout(model, x[:1])
    assert tried.draws == 32
    alone = Layout(draws=32, blocks=1, channels_last=tried.channels_last)
    assert (sums(model, x, tried) == sums(model, x, alone)).all()


def test_a_trial_grows_while_that_pays_and_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the clock in hand: the fastest number of blocks is taken."""
    model, value = EVEN, torch.randn(1, 5)
    for best in (1, 4, 16):
        monkeypatch.setattr(
            "pixeldp.layouts.seconds_of",
            lambda *at, best=best: at[-1] * (1 + abs(np.log2(at[-1] / best))),
        )
        assert tried_layout(model, value).blocks == best
    # Were it ever faster, memory still says where to stop.
    monkeypatch.setattr("pixeldp.layouts.seconds_of", lambda *_: 1.0)
    assert tried_layout(model, value).blocks == 16_384 // 32
    monkeypatch.setattr("pixeldp.layouts._BATCH_BYTES", 40 * 32 * value.nbytes)
    assert tried_layout(model, value).blocks == 32


def test_a_trial_is_made_where_it_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = EVEN
    found = Layout(draws=32, blocks=7)
    monkeypatch.setattr("pixeldp.sampling.tried_layout", lambda *_, **__: found)
    x = torch.randn(1, 5)
    assert layout_for(model, x, draws=100).blocks == 4
    assert layout_for(model, x, draws=10**12) is found
    assert layout_for(model, x, draws=100, compiled=True) is found


def test_the_back_is_that_of_the_model_unless_it_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = EVEN
    noisy = torch.randn(32, 5)
    assert torch.equal(back_of(model, Layout(draws=32, blocks=1))(noisy), model.back(noisy))
    monkeypatch.setattr(PixelDP, "compiled_back", lambda _: torch.negative)
    compiled = back_of(model, Layout(draws=32, blocks=1, compiled=True))
    assert torch.equal(compiled(noisy), -noisy)


def test_a_compiled_back_is_kept_only_if_it_works_and_is_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the clock in hand. Its bits are its own, so that its batches are whole."""
    value, faster = torch.randn(1, 5), True
    monkeypatch.setattr(
        "pixeldp.layouts.seconds_of",
        lambda *at: at[3] ** 0.9 * (0.5 if at[1].compiled is faster else 1.0),
    )
    monkeypatch.setattr("pixeldp.layouts._MOST_DRAWS", 128)
    monkeypatch.setattr(PixelDP, "compiled_back", lambda model: model.back)
    kept = tried_layout(EVEN, value, compiled=True)
    assert (kept.compiled, kept.whole) == (True, True)
    faster = False
    assert not tried_layout(EVEN, value, compiled=True).compiled
    faster = True
    monkeypatch.setattr(PixelDP, "compiled_back", lambda _: BY_PLACE["every other block"].back)
    assert not tried_layout(EVEN, value, compiled=True).compiled
    monkeypatch.setattr(PixelDP, "compiled_back", lambda _: 1 / 0)
    assert not tried_layout(EVEN, value, compiled=True).compiled


def test_a_stream_is_the_mersenne_twister_with_all_of_its_words() -> None:
    """Against NumPy's: torch's 64-bit numbers are made of two of its words each."""
    name = (1, 5, 0)
    seeds = np.random.SeedSequence(int.from_bytes(hashlib.sha256(b"1,5,0").digest()))
    twister = np.random.MT19937()
    state = twister.state
    key = seeds.generate_state(624, np.uint32).astype(np.uint32)
    state["state"] = {"key": key, "pos": 624}
    twister.state = state
    words = twister.random_raw(2000)
    drawn = torch.empty(1000, dtype=torch.int64).random_(generator=generator(name, CPU))
    assert (drawn.numpy() & 0xFFFFFFFF == words[1::2]).all()


def test_streams_that_differ_in_their_name_are_not_the_same() -> None:
    """Neither beyond 32 bits, nor by zeros at the end, nor by a number split in two."""
    names = [(1,), (1 + 2**32,), (1, 0), (1, 0, 0), (0, 1), (2**32 + 1, 0), (1, 1), (11,)]
    firsts = {
        int(torch.empty(1, dtype=torch.int64).random_(generator=generator(name, CPU)))
        for name in names
    }
    assert len(firsts) == len(names)
