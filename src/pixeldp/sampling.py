"""Many noisy scores for every input: the Monte Carlo estimate of ``E A(x)`` (§3.4).

The front runs once for each input. Its draws come in blocks, and blocks of several inputs go
through the back together. An input that is done leaves, and the next one takes its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pixeldp._checks import whole
from pixeldp.batches import Batches, Sampling
from pixeldp.layouts import seconds_of, tried_layout, usable_layout
from pixeldp.precisions import arithmetic
from pixeldp.scores import Drawn, Scores
from pixeldp.stopping import Exactly
from pixeldp.streams import checked_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pixeldp.batches import Inputs
    from pixeldp.layouts import Layout
    from pixeldp.model import PixelDP

# Seconds of work from which on it pays to look for the best layout.
_WORTH_A_TRIAL = 3.0


@torch.no_grad()
def sample_scores(
    model: PixelDP,
    x: torch.Tensor,
    *,
    draws: int,
    seed: int | None = None,
    batch_size: int | None = None,
    sketch: bool = False,
    shared: bool = False,
    progress: Callable[[int], object] | None = None,
) -> Scores:
    """Draw ``draws`` noisy scores for every input of ``x``, argmax and softmax at once.

    Input number i draws its noise from a stream of its own, derived from ``(seed, i)``, so that
    its scores do not depend on the inputs beside it, unless the noise is ``shared``. With
    ``sketch``, the sketches of the softmax scores are kept, which betting bounds need.
    ``batch_size`` is how many draws go through the network at once; left out, it is found out.
    ``progress`` is called with the number of inputs done, after each.
    """
    model.check_inputs(x)
    rule, seed = Exactly(whole("draws", draws, least=1)), checked_seed(seed)
    layout = None
    if batch_size is not None:
        layout = usable_layout(model, model.front(x[:1]), batch=batch_size)
    sampling = Sampling(
        rule=rule, seed=seed, sketch="scores" if sketch else None, shared=shared, layout=layout
    )
    return Scores.of(draw_all(model, x, sampling, progress=progress), seed=seed)


def draw_all(
    model: PixelDP,
    x: torch.Tensor,
    sampling: Sampling,
    *,
    progress: Callable[[int], object] | None = None,
) -> list[Drawn]:
    """Draw the scores of every input of a batch; return them in the order of the inputs."""
    done: list[Drawn] = []

    def keep(drawn: Drawn) -> None:
        done.append(drawn)
        if progress is not None:
            progress(len(done))

    draw(model, x.__getitem__, range(len(x)), sampling, keep)
    return sorted(done, key=lambda drawn: drawn.number)


@torch.no_grad()
def draw(
    model: PixelDP,
    inputs: Inputs,
    numbers: Sequence[int],
    sampling: Sampling,
    keep: Callable[[Drawn], object],
) -> None:
    """Draw the scores of the inputs with these numbers; ``keep`` each as soon as it is done.

    ``inputs(number)`` is one input without a batch dimension. What is drawn of an input depends
    on its number, the seed and the rule, not on the other inputs.
    """
    if not len(numbers):
        return
    # Around all of it, so that weights are converted to a shorter type only once.
    first = inputs(numbers[0])[None]
    model.check_inputs(first)
    with arithmetic(model.precision, first.device):
        most = len(numbers) * sampling.rule.looks[-1]
        layout = sampling.layout or layout_for(model, first, draws=most, compiled=sampling.compiled)
        batches = Batches(model, inputs, numbers, sampling, layout)
        try:
            batches.run(keep)
        finally:
            batches.close()


def layout_for(
    model: PixelDP,
    x: torch.Tensor,
    *,
    draws: int,
    compiled: bool = False,
    batch: int | None = None,
) -> Layout:
    """Return the layout for so many draws in all, of inputs like ``x``: tried, if it is worth it.

    The trial takes about a second; what it finds changes the speed and nothing else.
    """
    with torch.no_grad(), arithmetic(model.precision, x.device):
        value = model.front(x[:1])
        usable = usable_layout(model, value, batch=batch)
        if batch is not None:
            return usable
        seconds = seconds_of(model.back, usable, value, usable.blocks) / layout_rows(usable)
        if seconds * draws < _WORTH_A_TRIAL and not compiled:
            return usable
        return tried_layout(model, value, compiled=compiled)


def layout_rows(layout: Layout) -> int:
    """Return how many draws go through the network at once."""
    return layout.blocks * layout.draws
