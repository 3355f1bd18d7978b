"""Where noise comes from: streams of random numbers, named by whole numbers.

Noise is drawn in blocks of a fixed number of draws. What a block holds depends on the seed and on
the block alone, not on how many blocks go through the network together, or on which machine of
several does it.
"""

from __future__ import annotations

import functools
import hashlib
import secrets
from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from pixeldp.errors import InvalidArgument

if TYPE_CHECKING:
    import numpy.typing as npt

    from pixeldp.mechanisms import Mechanism

_MAX_SEED = 2**63 - 1

# The streams of one seed: the draws that bound an input, those that choose its label, and the
# same two where all inputs share them.
BOUNDING, SELECTION = 0, 1
_SHARED = 2

# Shared blocks that are kept to be used again by the next inputs.
_KEPT_BYTES = 128 * 2**20


def fresh_seed() -> int:
    """Return a seed from the operating system, so that nobody can foresee the noise."""
    return secrets.randbelow(_MAX_SEED)


def checked_seed(seed: int | None) -> int:
    """Return a usable seed: the one that was given, or a fresh one."""
    if seed is None:
        return fresh_seed()
    if isinstance(seed, bool) or seed != int(seed) or not 0 <= seed <= _MAX_SEED:
        raise InvalidArgument(f"seed must be a whole number in [0, 2**63), got seed={seed!r}")
    return int(seed)


def generator(name: tuple[int, ...], device: torch.device) -> torch.Generator:
    """Return the generator of the stream with that name; other names, other streams.

    The name goes through a cryptographic hash, so that no two names are the same seed, and no
    stream tells of another. On a processor all 624 words of the generator's state come from it:
    ``manual_seed`` would use 32 bits, of which one in a few thousand streams shares all.
    """
    digest = hashlib.sha256(",".join(map(str, name)).encode()).digest()
    seeds = np.random.SeedSequence(int.from_bytes(digest))
    if device.type != "cpu":
        return torch.Generator(device=device).manual_seed(
            int(seeds.generate_state(1, np.uint64)[0])
        )
    state = _state_of_twister().copy()
    state[_WORDS] = seeds.generate_state(624, np.uint32)
    made = torch.Generator()
    made.set_state(torch.from_numpy(state.view(np.uint8)))
    return made


# Where the words of the Mersenne twister lie in the state of torch's generator, as 64-bit numbers.
_WORDS = slice(3, 3 + 624)


@functools.cache
def _state_of_twister() -> npt.NDArray[np.uint64]:
    """Return the state of a generator before its first number, seen to lie as it is read here."""
    first = 20_190_520
    state = torch.Generator().manual_seed(first).get_state().numpy().view(np.uint64)
    # The first two words that the twister makes of a seed (Matsumoto and Nishimura 1998).
    second = (1_812_433_253 * (first ^ first >> 30) + 1) % 2**32
    if state[_WORDS][:2].tolist() != [first, second]:
        raise RuntimeError(
            "the state of torch.Generator is not laid out as in the versions that pixeldp knows; "
            "install a version of torch within the range of pyproject.toml"
        )
    return state


class Noise(Protocol):
    """Adds the noise of an input's blocks, which are asked for in their order."""

    def add(self, out: torch.Tensor, value: torch.Tensor, block: int) -> None:
        """Overwrite ``out`` with ``value`` plus the noise of that block."""


# An input's blocks take turns at so many streams, which can be read at the same time.
LANES = 2


class Own:
    """Noise of one input's own, independent of that of all others.

    A lane is read from its beginning: its blocks must be asked for in their order.
    """

    def __init__(
        self, mechanism: Mechanism, seed: int, number: int, purpose: int, device: torch.device
    ) -> None:
        self._mechanism = mechanism
        self._lanes = [generator((seed, number, purpose, lane), device) for lane in range(LANES)]

    def add(self, out: torch.Tensor, value: torch.Tensor, block: int) -> None:
        """Draw the next block of its lane; ``block`` is its number."""
        self._mechanism.fill(out, self._lanes[block % LANES]).add_(value)


class Shared:
    """One sequence of noise for all inputs: each input's guarantee holds by itself all the same.

    What is lost is independence between inputs: unlucky noise is unlucky for several at once.
    """

    def __init__(self, mechanism: Mechanism, seed: int, device: torch.device) -> None:
        self._mechanism = mechanism
        self._seed = seed
        self._device = device
        self._kept: OrderedDict[tuple[int, int], torch.Tensor] = OrderedDict()
        self._bytes = 0

    def purpose(self, purpose: int) -> _SharedFor:
        """Return the noise for one purpose."""
        return _SharedFor(self, purpose)

    def block(self, like: torch.Tensor, purpose: int, block: int) -> torch.Tensor:
        """Return the noise of a block, from memory if it was asked for not long ago."""
        key = (purpose, block)
        found = self._kept.pop(key, None)
        if found is None:
            source = generator((self._seed, _SHARED, purpose, block), self._device)
            found = self._mechanism.fill(torch.empty_like(like), source)
            self._bytes += found.nbytes
        self._kept[key] = found
        while self._bytes > _KEPT_BYTES and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= oldest.nbytes
        return found


class _SharedFor:
    def __init__(self, shared: Shared, purpose: int) -> None:
        self._shared = shared
        self._purpose = purpose

    def add(self, out: torch.Tensor, value: torch.Tensor, block: int) -> None:
        """Add the shared noise of that block."""
        torch.add(self._shared.block(out, self._purpose, block), value, out=out)
