"""Many noisy scores for every input: the Monte Carlo estimate of ``E A(x)`` (§3.4).

The front runs once for each input. Its draws come in blocks, and blocks of several inputs go
through the back together. An input that is done leaves, and the next one takes its place.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from pixeldp._checks import one_of, positive, whole
from pixeldp.errors import InvalidScores
from pixeldp.layouts import Layout, back_of, seconds_of, tried_layout, usable_layout
from pixeldp.precisions import arithmetic
from pixeldp.probing import check_logits, probe_labels
from pixeldp.scores import KINDS, Drawn, Scores
from pixeldp.sketches import sketch_of
from pixeldp.stopping import Exactly, Rule
from pixeldp.streams import BOUNDING, SELECTION, Noise, Own, Shared, checked_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pixeldp.model import PixelDP

    Inputs = Callable[[int], torch.Tensor]

# Seconds of work from which on it pays to look for the best layout.
_WORTH_A_TRIAL = 3.0

# What betting needs of softmax scores: a sketch of the scores, or of the label's leads.
SKETCHES = ("scores", "leads")


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """What is drawn, apart from the inputs.

    Attributes
    ----------
    rule:
        How many draws an input takes.
    seed:
        Input number i draws its noise from the stream (seed, i).
    selection:
        Draws that choose the label first, from a stream of their own; 0 for none.
    kind:
        The scores by which the label is chosen.
    sketch:
        What a sketch is kept of: ``scores``, ``leads``, or nothing.
    shared:
        Whether one sequence of noise serves all inputs.
    layout:
        How draws go through the network; found out if it is not given.
    compiled:
        Whether to try ``torch.compile`` when it is found out.
    seconds:
        A budget for all inputs together, spread evenly; none if it is not given.
    """

    rule: Rule
    seed: int
    selection: int = 0
    kind: str = "argmax"
    sketch: str | None = None
    shared: bool = False
    layout: Layout | None = None
    compiled: bool = False
    seconds: float | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        object.__setattr__(self, "selection", whole("selection", self.selection, least=0))
        one_of("scores", self.kind, KINDS)
        one_of("sketch", self.sketch, (None, *SKETCHES))
        if self.seconds is not None:
            positive("seconds", self.seconds)


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
    with arithmetic(model.precision, inputs(numbers[0]).device):
        _Sampler(model, inputs, numbers, sampling).run(keep)


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


class _Live:
    """An input that is being drawn: first to choose its label, then to bound it."""

    def __init__(self, drawn: Drawn, value: torch.Tensor, stages: deque[_Stage]) -> None:
        self.drawn = drawn
        self.value = value
        self.stages = stages
        self.began = time.perf_counter()

    @property
    def stage(self) -> _Stage:
        return self.stages[0]


class _Stage:
    """A part of an input's draws: its noise, the draws handed out, and the next look."""

    def __init__(self, noise: Noise, looks: tuple[int, ...]) -> None:
        self.noise = noise
        self.looks = deque(looks)
        self.block = 0
        self.handed = 0

    def room(self) -> int:
        """Return the draws that are left before the next look."""
        return self.looks[0] - self.handed


@dataclass(frozen=True)
class _Cell:
    """One block of one input: its first ``draws`` rows count."""

    live: _Live
    draws: int


class _Sampler:
    def __init__(
        self, model: PixelDP, inputs: Inputs, numbers: Sequence[int], sampling: Sampling
    ) -> None:
        self._model, self._inputs, self._sampling = model, inputs, sampling
        self._waiting: deque[int] = deque(numbers)
        self._total = len(numbers)
        self._begun = 0
        self._began = time.monotonic()
        first = inputs(numbers[0])[None]
        model.check_inputs(first)
        value = model.front(first)
        layout = sampling.layout
        self._layout = layout or layout_for(
            model, first, draws=self._total * sampling.rule.looks[-1], compiled=sampling.compiled
        )
        self._back = back_of(model, self._layout)
        self._buffer = self._layout.buffer(value)
        self._shared = Shared(model.noise, sampling.seed, first.device) if sampling.shared else None
        self._labels: int | None = None
        self._live: deque[_Live] = deque()

    def run(self, keep: Callable[[Drawn], object]) -> None:
        """Fill a batch with blocks, evaluate it, count; until all inputs are done."""
        while cells := self._cells():
            began = time.perf_counter()
            counted = self._count(self._evaluate(cells), cells)
            seconds = (time.perf_counter() - began) / len(cells)
            for cell in cells:
                cell.live.drawn.seconds += seconds
            for live in counted:
                if self._look(live):
                    self._live.remove(live)
                    keep(live.drawn)

    def _cells(self) -> list[_Cell]:
        """Choose the blocks of the next batch: of the inputs under way, then of new ones."""
        cells: list[_Cell] = []
        for live in self._live:
            self._hand_out(live, cells)
        while self._waiting and len(cells) < self._layout.blocks:
            live = self._begin(self._waiting.popleft())
            self._live.append(live)
            self._hand_out(live, cells)
        # Whoever came first is served first, and the others stand in line.
        self._live.rotate(-1)
        return cells

    def _hand_out(self, live: _Live, cells: list[_Cell]) -> None:
        stage = live.stage
        while len(cells) < self._layout.blocks and stage.room() > 0:
            draws = min(self._layout.draws, stage.room())
            place = self._buffer[len(cells)]
            stage.noise.add(place, self._layout.inside(live.value), stage.block)
            stage.block += 1
            stage.handed += draws
            cells.append(_Cell(live, draws))

    def _begin(self, number: int) -> _Live:
        began = time.perf_counter()
        one = self._inputs(number)[None]
        self._model.check_inputs(one)
        self._begun += 1
        if self._labels is None:
            self._labels = probe_labels(self._model, one)
        rule, selection = self._sampling.rule, self._sampling.selection
        stages = deque([_Stage(self._noise(number, BOUNDING, one.device), rule.looks)])
        if selection:
            first = _Stage(self._noise(number, SELECTION, one.device), (selection,))
            stages.appendleft(first)
        live = _Live(Drawn.nothing(number, self._labels), self._model.front(one), stages)
        live.drawn.seconds = time.perf_counter() - began
        return live

    def _noise(self, number: int, purpose: int, device: torch.device) -> Noise:
        if self._shared is not None:
            return self._shared.purpose(purpose)
        return Own(self._model.noise, self._sampling.seed, number, purpose, device)

    def _evaluate(self, cells: list[_Cell]) -> torch.Tensor:
        """Return the logits of the blocks; the batch is as small as it can be in whole powers."""
        blocks = min(size for size in self._layout.sizes() if size >= len(cells))
        # What is left in unused places is computed and not counted.
        used = self._buffer[:blocks]
        if len(cells) < blocks:
            # With noisy values too: what a network makes of other values is not its business here.
            used[len(cells) :].copy_(used[:1].expand_as(used[len(cells) :]))
        logits = self._back(self._layout.outside(used.flatten(0, 1)))
        check_logits(logits, rows=blocks * self._layout.draws)
        if logits.shape[1] != self._labels:
            raise InvalidScores(
                f"the network returned {logits.shape[1]} scores for a draw, and {self._labels} "
                "before; the number of labels must not change"
            )
        return logits

    def _count(self, logits: torch.Tensor, cells: list[_Cell]) -> list[_Live]:
        """Add up the scores of every block; return the inputs that have reached a look."""
        draws, labels = self._layout.draws, logits.shape[1]
        # MPS has no float64; there the exponentials are float32.
        wide = logits if logits.device.type == "mps" else logits.double()
        softmax = wide.softmax(dim=1).cpu().double().numpy().reshape(-1, draws, labels)
        top = logits.argmax(dim=1).cpu().numpy().reshape(-1, draws)
        reached: dict[int, _Live] = {}
        for number, cell in enumerate(cells):
            drawn, scores = cell.live.drawn, softmax[number, : cell.draws]
            drawn.counts += np.bincount(top[number, : cell.draws], minlength=labels)
            drawn.sums += scores.sum(axis=0)
            drawn.squares += np.square(scores).sum(axis=0)
            drawn.draws += cell.draws
            if self._sampling.sketch is not None and len(cell.live.stages) == 1:
                weights = sketch_of(self._sketched(scores, drawn.label))
                drawn.sketch = weights if drawn.sketch is None else drawn.sketch + weights
            if drawn.draws == cell.live.stage.looks[0]:
                reached[id(cell.live)] = cell.live
        return list(reached.values())

    def _sketched(self, scores: np.ndarray, label: int | None) -> np.ndarray:
        if self._sampling.sketch == "leads":
            leads = (1 + scores[:, np.array([label])] - scores) / 2
            return np.asarray(np.clip(leads, 0.0, 1.0))
        return scores

    def _look(self, live: _Live) -> bool:
        """Ask the rule at a look; return whether the input is done."""
        drawn = live.drawn
        if len(live.stages) > 1:  # these draws chose the label, and do nothing else
            live.stages.popleft()
            totals = drawn.counts if self._sampling.kind == "argmax" else drawn.sums
            fresh = Drawn.nothing(drawn.number, len(totals), label=int(totals.argmax()))
            fresh.seconds = drawn.seconds
            live.drawn = fresh
            return False
        rule = self._sampling.rule
        live.stage.looks.popleft()
        if live.stage.looks and not rule.done(drawn) and not self._late():
            return False
        rule.settle(drawn)
        return True

    def _late(self) -> bool:
        """Whether the inputs that were begun have had their share of the seconds."""
        budget = self._sampling.seconds
        if budget is None:
            return False
        return time.monotonic() - self._began > budget * self._begun / self._total
