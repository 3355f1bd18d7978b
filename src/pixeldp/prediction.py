"""Prediction without a certificate: which label has the highest expected score, in few draws.

Where an application must answer for every input, the certificate is not needed, and far fewer
draws are enough (§3.4, §4.5). A few draws choose a label; the rest are drawn until it is ahead of
every other label at the stated confidence, or until there are no more draws, which is an
abstention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pixeldp._checks import one_of, open_unit, whole
from pixeldp.bounds.planned import planned_looks
from pixeldp.errors import TooFewDraws
from pixeldp.scores import KINDS
from pixeldp.stopping import EXCESS, Duel, unanimous_evidence

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt
    import torch

    from pixeldp.model import PixelDP

# Draws that choose the label.
_SELECTION = 16

# Looks may be closer together than for certificates: what is looked at is cheap.
_GROWTH = 1.1

# The least chance of an error that is told: evidence beyond it is no clearer.
_LEAST_CHANCE = 1e-300


@dataclass(frozen=True, eq=False)
class Prediction:
    """What is predicted for N inputs; every array has one entry an input.

    Attributes
    ----------
    label:
        The label that a few draws chose.
    abstained:
        Whether the draws could not tell that it has the highest expected score.
    chance:
        An upper bound on the chance, over the draws, of being told a label that does not have the
        highest expected score with evidence like this. At most ``1 − confidence`` where the
        prediction does not abstain.
    draws:
        How many were made, those that chose the label included.
    confidence:
        What was asked for, for each input by itself.
    seed:
        What the noise was drawn from.
    """

    label: npt.NDArray[np.int64]
    abstained: npt.NDArray[np.bool_]
    chance: npt.NDArray[np.float64]
    draws: npt.NDArray[np.int64]
    confidence: float
    seed: int


def predict(
    model: PixelDP,
    x: torch.Tensor,
    *,
    draws: int = 1000,
    confidence: float = 0.95,
    scores: str = "argmax",
    selection: int = _SELECTION,
    shared_noise: bool = False,
    seed: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> Prediction:
    """Predict the labels with the highest expected scores, with as few draws as are needed.

    Parameters
    ----------
    draws:
        The most for each input, besides those that choose the label; then it abstains.
    confidence:
        The probability, for each input, of not being told a wrong label. It is about the label of
        the expected scores, not about the truth, and says nothing of an attack.
    scores:
        ``argmax`` or ``softmax``: of which scores the expectation is meant.
    selection:
        Draws that choose the label.

    >>> import torch
    >>> from pixeldp import Gaussian, PixelDP
    >>> network = torch.nn.Linear(2, 2, bias=False)
    >>> network.weight.data = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    >>> model = PixelDP(network, Gaussian(scale=0.5, norm=2))
    >>> made = predict(model, torch.tensor([[1.0, 0.0], [0.0, 0.0]]), draws=200, seed=3)
    >>> made.label[0], made.abstained.tolist(), bool(made.draws[0] < made.draws[1])
    (np.int64(0), [False, True], True)
    """
    from pixeldp.batches import Sampling
    from pixeldp.layouts import block_draws
    from pixeldp.sampling import draw_all
    from pixeldp.streams import checked_seed

    level = 1 - open_unit("confidence", confidence)
    last = whole("draws", draws, least=1)
    whole("selection", selection, least=1)
    one_of("scores", scores, KINDS)
    _check_draws(last, level, "beta-binomial" if scores == "argmax" else "betting")
    model.check_inputs(x)
    looks = planned_looks(last, step=block_draws(x.device), growth=_GROWTH)
    seed = checked_seed(seed)
    sampling = Sampling(
        rule=Duel(looks, level, scores),
        seed=seed,
        selection=selection,
        kind=scores,
        sketch="leads" if scores == "softmax" else None,
        shared=shared_noise,
    )
    rows = draw_all(model, x, sampling, progress=progress)
    evidence = np.array([one.evidence for one in rows])
    return Prediction(
        label=np.array([one.label for one in rows], dtype=np.int64),
        abstained=evidence <= -np.log(level) + EXCESS,
        chance=np.clip(np.exp(-evidence), _LEAST_CHANCE, 1.0),
        draws=np.array([one.draws + selection for one in rows], dtype=np.int64),
        confidence=confidence,
        seed=seed,
    )


def _check_draws(draws: int, level: float, bound: str) -> None:
    """Refuse so few draws that unanimous ones could not decide."""
    needed = 1
    while unanimous_evidence(bound, needed, 0.5) <= -np.log(level) + EXCESS:
        needed += 1
    if draws < needed:
        raise TooFewDraws(
            f"draws must be at least {needed} to decide anything at confidence={1 - level:g}, "
            f"got draws={draws}"
        )
