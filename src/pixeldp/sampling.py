"""Many noisy scores for every input: the Monte Carlo estimate of ``E A(x)`` (§3.4)."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

import numpy as np
import torch

from pixeldp._checks import whole
from pixeldp.errors import InvalidArgument, InvalidScores
from pixeldp.scores import Scores
from pixeldp.sketches import sketch_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pixeldp.model import PixelDP

# Draws that go through the back at once: more no longer fit in a processor's cache.
DEFAULT_BATCH = 200

# How far a row's logits may move, as a share of their spread, when it stands beside another.
_SAME = 1e-3

# Marks the stream of an input that its label is chosen from.
_SELECTION = 1

_MAX_SEED = 2**63 - 1


def fresh_seed() -> int:
    """Return a seed from the operating system, so that nobody can foresee the noise."""
    return secrets.randbelow(_MAX_SEED)


def checked_seed(seed: int | None) -> int:
    """Return a usable seed: the one that was given, or a fresh one."""
    if seed is None:
        return fresh_seed()
    if isinstance(seed, bool) or not 0 <= seed <= _MAX_SEED:
        raise InvalidArgument(f"seed must be a whole number in [0, 2**63), got seed={seed!r}")
    return seed


@torch.no_grad()
def sample_scores(
    model: PixelDP,
    x: torch.Tensor,
    *,
    draws: int,
    seed: int | None = None,
    batch_size: int = DEFAULT_BATCH,
    sketch: bool = False,
    selection: bool = False,
    progress: Callable[[int], object] | None = None,
) -> Scores:
    """Draw ``draws`` noisy scores for every input of ``x``, argmax and softmax at once.

    The front runs once for all draws of an input. Input number i draws its noise from a stream of
    its own, derived from ``(seed, i)``, so that its scores do not depend on the inputs beside it;
    draws for the ``selection`` of labels come from yet another. With ``sketch``, the sketches of
    the softmax scores are kept, which betting bounds need.
    ``progress`` is called with the number of inputs done, after each.
    """
    draws = whole("draws", draws, least=1)
    batch_size = whole("batch_size", batch_size, least=1)
    seed = checked_seed(seed)
    model.check_inputs(x)
    rows = []
    for number, one in enumerate(x):
        began = time.perf_counter()
        generator = _stream((seed, number, _SELECTION) if selection else (seed, number), x.device)
        value = model.front(one[None])
        totals, weights = np.zeros(()), np.zeros(())
        for size in _batches(draws, batch_size):
            part, softmax = _scores_of(model, value.expand(size, *value.shape[1:]), generator)
            totals = totals + part
            if sketch:
                weights = weights + sketch_of(softmax.cpu().numpy())
        rows.append((totals, weights, time.perf_counter() - began))
        if progress is not None:
            progress(number + 1)
    sums = np.stack([totals for totals, _, _ in rows])
    return Scores(
        counts=sums[:, 0].astype(np.int64),
        sums=sums[:, 1],
        squares=sums[:, 2],
        draws=np.full(len(rows), draws, dtype=np.int64),
        seconds=np.array([seconds for _, _, seconds in rows]),
        seed=seed,
        sketch=np.stack([weights for _, weights, _ in rows]) if sketch else None,
    )


@torch.no_grad()
def probe_labels(model: PixelDP, x: torch.Tensor) -> int:
    """Return K, from two draws that also show whether the network treats its rows apart.

    Draws share a batch. Were they to influence each other (through batch statistics, say), they
    would not be independent, and no bound on their mean would hold.
    """
    value = model.front(x[:1]).repeat_interleave(2, dim=0)
    noisy = model.noise.sample(value, _stream((0, 0), x.device)).add_(value)
    together, alone = model.back(noisy), model.back(noisy[:1])
    _check_logits(together, rows=2)
    # Sums may be taken in another order. What is left is compared with the spread of the logits,
    # since that decides the label, however small they are.
    spread = float(alone.max() - alone.min())
    rounding = 64 * torch.finfo(alone.dtype).eps * float(alone.abs().max())
    if not float((together[0] - alone[0]).abs().max()) <= _SAME * spread + rounding:
        raise InvalidScores(
            "the network's output for one input changes with the inputs beside it, or is random "
            "by itself; it must treat each row of a batch alone when it is evaluated"
        )
    return int(together.shape[1])


def _check_logits(logits: torch.Tensor, *, rows: int) -> None:
    if logits.dim() != 2 or logits.shape[0] != rows or logits.shape[1] < 2:
        raise InvalidScores(
            "the network must return one row of at least two logits for each input, got shape "
            f"{tuple(logits.shape)} for {rows} inputs"
        )
    if not torch.isfinite(logits).all():
        raise InvalidScores(
            "the network returned NaN or infinity under noise; its scores would mean nothing: "
            "check its weights and the scale of its input"
        )


def _scores_of(
    model: PixelDP, value: torch.Tensor, generator: torch.Generator
) -> tuple[np.ndarray, torch.Tensor]:
    """Return one batch's argmax counts, softmax sums and sums of squares; and its softmax."""
    # In place: a fresh tensor of this size costs as much as the network.
    logits = model.back(model.noise.sample(value, generator).add_(value))
    _check_logits(logits, rows=value.shape[0])
    labels = logits.shape[1]
    softmax = logits.double().softmax(dim=1)
    counts = torch.bincount(logits.argmax(dim=1), minlength=labels).double()
    stacked = torch.stack([counts, softmax.sum(dim=0), softmax.square().sum(dim=0)])
    array: np.ndarray = stacked.cpu().numpy()
    return array, softmax


def _batches(draws: int, batch_size: int) -> list[int]:
    full, rest = divmod(draws, batch_size)
    return [batch_size] * full + ([rest] if rest else [])


def _stream(words_of_seed: tuple[int, ...], device: torch.device) -> torch.Generator:
    words = np.random.SeedSequence(words_of_seed).generate_state(1, np.uint64)
    return torch.Generator(device=device).manual_seed(int(words[0] >> np.uint64(1)))
