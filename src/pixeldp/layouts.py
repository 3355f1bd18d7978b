"""How draws go through the network: how many at once, and in which order in memory.

The draws of an input come in *blocks* of a fixed size, and a few blocks, of one input or of
several, go through the back together. On a processor, how many suits it best is found by trying; a
number counts only if it gives the very bits that one block alone gives, so that results do not
depend on what else was computed beside them, nor on how fast the machine happened to be. A GPU
computes a batch of another size by other code, in other bits: there the number is fixed by the size
of the values alone, whole batches are always computed, and what is asked is that every place in the
batch gives the same bits.
"""

from __future__ import annotations

import resource
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from pixeldp._checks import whole
from pixeldp.streams import generator

if TYPE_CHECKING:
    from collections.abc import Callable

    from pixeldp.model import PixelDP

    Back = Callable[[torch.Tensor], torch.Tensor]

# Draws of a block: few, so that easy inputs are soon decided; more where starting an operation
# costs more than running it.
_DRAWS = {"cpu": 32, "mps": 64, "cuda": 128}

# A block's noisy values take no more than this.
_BLOCK_BYTES = 32 * 2**20

# What all blocks that go through the network at once may take, and what the network may need
# beyond what it has already.
_BATCH_BYTES = 128 * 2**20
_GROWTH_BYTES = 1536 * 2**20
_MOST_DRAWS = 16_384

# Trying takes so many seconds for each size; a larger size must be so much faster.
_TRIAL_SECONDS = 0.1
_WORTH = 1.03

# Without a trial, so many blocks at once.
_USUAL = {"cpu": 4, "mps": 16, "cuda": 64}


@dataclass(frozen=True)
class Layout:
    """How draws go through the network.

    Attributes
    ----------
    draws:
        Draws of a block.
    blocks:
        Blocks that go through the back at once.
    channels_last:
        Whether images lie in memory with their channels together, which most processors prefer.
    whole:
        Whether a batch is always computed whole, its unused places too.
    compiled:
        Whether the back is compiled first (``torch.compile``).
    """

    draws: int
    blocks: int
    channels_last: bool = False
    whole: bool = False
    compiled: bool = False

    def sizes(self) -> list[int]:
        """Return the numbers of blocks that go through the back: all, or half of it, and so on.

        >>> Layout(draws=32, blocks=12).sizes(), Layout(draws=32, blocks=12, whole=True).sizes()
        ([12, 6, 3], [12])
        """
        sizes = [self.blocks]
        while sizes[-1] % 2 == 0 and not self.whole:
            sizes.append(sizes[-1] // 2)
        return sizes

    def as_dict(self) -> dict[str, Any]:
        """Return it as what JSON can hold."""
        return asdict(self)

    def buffer(self, value: torch.Tensor) -> torch.Tensor:
        """Return memory for the noisy values, ``[blocks, draws, ...]`` as they lie there."""
        shape = self.inside(value).shape[1:]
        return value.new_empty((self.blocks, self.draws, *shape))

    def inside(self, value: torch.Tensor) -> torch.Tensor:
        """Return a batch of values in the order in which they lie in memory."""
        return value.permute(0, 2, 3, 1) if self.channels_last else value

    def outside(self, value: torch.Tensor) -> torch.Tensor:
        """Return noisy values ``[rows, ...]`` of the memory as the back wants to see them."""
        return value.permute(0, 3, 1, 2) if self.channels_last else value


def block_draws(device: torch.device) -> int:
    """Return the draws of a block on that device; fewer where one draw is very large."""
    return _DRAWS.get(device.type, _DRAWS["cpu"])


def usual_layout(value: torch.Tensor, *, batch: int | None = None) -> Layout:
    """Return the layout that is taken without a trial, for one value of the front.

    ``batch``: how many draws at once; the next whole number of blocks is taken.
    """
    row = max(value[0].numel() * value.element_size(), 1)
    draws = block_draws(value.device)
    while draws > 8 and draws * row > _BLOCK_BYTES:
        draws //= 2
    usual = _USUAL.get(value.device.type, _USUAL["cpu"])
    blocks = usual if batch is None else -(-whole("batch", batch, least=1) // draws)
    while batch is None and blocks > 1 and blocks * draws * row > _BATCH_BYTES:
        blocks //= 2
    # Only where there are channels, places in two directions, and more than one of each.
    channels_last = value.dim() == 4 and min(value.shape[2:]) > 1
    return Layout(draws=draws, blocks=blocks, channels_last=channels_last)


def usable_layout(model: PixelDP, value: torch.Tensor, *, batch: int | None = None) -> Layout:
    """Return the usual layout, changed as far as the same bits require."""
    usual = usual_layout(value, batch=batch)
    if usual.channels_last:
        try:
            _trial_logits(model.back, usual, value, 1)
        except RuntimeError:  # the network insists on the other order (a view of its memory)
            usual = replace(usual, channels_last=False)
    if value.device.type == "cpu":
        reference = _trial_logits(model.back, usual, value, 1)
        if all(_same_bits(model.back, usual, value, n, reference) for n in usual.sizes()):
            return usual
    if _same_places(model.back, usual, value):
        return replace(usual, whole=True)
    return replace(usual, blocks=1)


def tried_layout(model: PixelDP, value: torch.Tensor, *, compiled: bool = False) -> Layout:
    """Return the layout with the most draws a second, found by trying a few.

    The number of blocks is doubled while that pays, memory allows, and the bits stay the same.
    Where batches must be whole, it is left as it is.
    """
    usual = usable_layout(model, value)
    if usual.whole:
        return _compiled_if_faster(model, usual, value) if compiled else usual
    best, speed = 1, 0.0
    reference = _trial_logits(model.back, usual, value, 1)
    blocks, before = 1, _peak_bytes(value.device)
    while True:
        seconds = seconds_of(model.back, usual, value, blocks)
        rate = blocks * usual.draws / seconds
        if rate > speed * _WORTH:
            best, speed = blocks, rate
        grown = _peak_bytes(value.device) - before
        blocks *= 2
        row = value[0].numel() * value.element_size()
        too_large = (
            blocks * usual.draws > _MOST_DRAWS
            or blocks * usual.draws * row > _BATCH_BYTES
            or 2 * grown > _GROWTH_BYTES
        )
        if too_large or rate < 0.8 * speed or blocks > 4 * best:
            break
        if not _same_bits(model.back, usual, value, blocks, reference):
            break
    found = replace(usual, blocks=best)
    return _compiled_if_faster(model, found, value) if compiled else found


def back_of(model: PixelDP, layout: Layout) -> Back:
    """Return the back as the layout evaluates it."""
    return model.compiled_back() if layout.compiled else model.back


def _compiled_if_faster(model: PixelDP, layout: Layout, value: torch.Tensor) -> Layout:
    """Compile the back, for whole batches, and keep that if it is faster; its bits are others."""
    plain = seconds_of(model.back, layout, value, layout.blocks) / layout.blocks
    found, least = layout, plain / _WORTH
    # Fused operations need less memory meanwhile, so that more may go through at once.
    for blocks in (layout.blocks, 2 * layout.blocks, 4 * layout.blocks):
        candidate = replace(layout, blocks=blocks, whole=True, compiled=True)
        # Without a compiler, or for an operation that it does not know, the network runs as it is.
        with suppress(Exception):
            back = back_of(model, candidate)
            if _same_places(back, candidate, value):
                took = seconds_of(back, candidate, value, blocks) / blocks
                if took < least:
                    found, least = candidate, took
    return found


def seconds_of(back: Back, layout: Layout, value: torch.Tensor, blocks: int) -> float:
    """Return the least time that the back takes for so many blocks."""
    noisy = layout.outside(_inside(layout, value, blocks))
    back(noisy)
    _wait_for(value.device)
    least, spent, rounds = float("inf"), 0.0, 0
    while spent < _TRIAL_SECONDS or rounds < 2:
        began = time.perf_counter()
        back(noisy)
        _wait_for(value.device)
        took = time.perf_counter() - began
        least, spent, rounds = min(least, took), spent + took, rounds + 1
        if spent > 4 * _TRIAL_SECONDS:
            break
    return max(least, 1e-9)


def _same_bits(
    back: Back, layout: Layout, value: torch.Tensor, blocks: int, reference: torch.Tensor
) -> bool:
    """Whether a block's logits are the same bits in every place among so many blocks."""
    logits = _trial_logits(back, layout, value, blocks)
    expected = reference.repeat(blocks, 1)
    return bool(torch.equal(logits, expected))


def _same_places(back: Back, layout: Layout, value: torch.Tensor) -> bool:
    """Whether the same block gives the same bits in every place of a whole batch."""
    logits = _trial_logits(back, layout, value, layout.blocks)
    return bool(torch.equal(logits, logits[: layout.draws].repeat(layout.blocks, 1)))


def _trial_logits(back: Back, layout: Layout, value: torch.Tensor, blocks: int) -> torch.Tensor:
    """Return the logits of the same block in every place."""
    one = _inside(layout, value, 1)
    return back(layout.outside(one.repeat((blocks, *[1] * (one.dim() - 1)))))


def _inside(layout: Layout, value: torch.Tensor, blocks: int) -> torch.Tensor:
    """Return some noisy values as they lie in memory; what they are does not matter."""
    shape = (blocks * layout.draws, *layout.inside(value).shape[1:])
    spread = value.new_empty(shape).normal_(generator=generator((0,), value.device))
    return spread.mul_(0.1).add_(layout.inside(value))


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _peak_bytes(device: torch.device) -> int:
    """Return the most memory that was ever in use, on the device that computes."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # In bytes on macOS, in kilobytes elsewhere.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
