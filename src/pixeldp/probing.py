"""Whether a network's outputs can be scores at all: looked at before, and at every draw."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pixeldp.errors import InvalidScores
from pixeldp.streams import generator

if TYPE_CHECKING:
    from pixeldp.model import PixelDP

# How far a row's logits may move, as a share of their spread, when it stands beside another.
_SAME = 1e-3


@torch.no_grad()
def probe_labels(model: PixelDP, x: torch.Tensor) -> int:
    """Return K, from two draws that also show whether the network treats its rows apart.

    Draws share a batch. Were they to influence each other (through batch statistics, say), they
    would not be independent, and no bound on their mean would hold. The same noise must also give
    the same logits: a network that is random by itself is no function of what it is given.
    """
    value = model.front(x[:1]).repeat_interleave(2, dim=0)
    noisy = model.noise.sample(value, generator((0, 0), x.device)).add_(value)
    together, again, alone = (
        model.back(noisy.clone()),
        model.back(noisy.clone()),
        model.back(noisy[:1].clone()),
    )
    check_logits(together, rows=2)
    # Sums may be taken in another order. What is left is compared with the spread of the logits,
    # since that decides the label, however small they are.
    spread = float(alone.max() - alone.min())
    eps = torch.finfo(torch.bfloat16 if model.precision == "bf16" else alone.dtype).eps
    room = _SAME * spread + 64 * eps * float(alone.abs().max())
    if not float((together - again).abs().max()) <= room:
        raise InvalidScores(
            "the network's output changes when the same noisy value is evaluated again; it must "
            "not be random by itself: remove the randomness behind the noise"
        )
    if not float((together[0] - alone[0]).abs().max()) <= room:
        raise InvalidScores(
            "the network's output for one input changes with the inputs beside it, or is random "
            "by itself; it must treat each row of a batch alone when it is evaluated"
        )
    return int(together.shape[1])


def check_logits(logits: torch.Tensor, *, rows: int) -> None:
    """Refuse what is not one row of at least two finite logits for each of so many rows."""
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
