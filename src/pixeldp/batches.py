"""The loop that draws: batches of blocks of several inputs, until all of them are done.

An input that is done leaves, and the next one takes its place.
"""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from pixeldp._checks import one_of, positive, whole
from pixeldp.errors import InvalidScores
from pixeldp.layouts import back_of
from pixeldp.probing import check_logits, probe_labels
from pixeldp.scores import KINDS, Drawn
from pixeldp.sketches import sketch_of
from pixeldp.streams import BOUNDING, LANES, SELECTION, Noise, Own, Shared

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pixeldp.layouts import Layout
    from pixeldp.model import PixelDP
    from pixeldp.stopping import Rule

    Inputs = Callable[[int], torch.Tensor]
    Pending = tuple[Noise, torch.Tensor, torch.Tensor, int]

# Numbers of a block from which on it pays to hand it to another thread.
_WORTH_A_THREAD = 2**16


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


class _Live:
    """An input that is being drawn: first to choose its label, then to bound it."""

    def __init__(self, drawn: Drawn, value: torch.Tensor, stages: deque[_Stage]) -> None:
        self.drawn = drawn
        self.value = value
        self.stages = stages

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


def _fill_lane(lane: list[Pending]) -> None:
    with torch.no_grad():  # which is each thread's own setting
        for noise, place, value, block in lane:
            noise.add(place, value, block)


class Batches:
    """Draws inputs in batches of blocks, until all are done.

    Parameters
    ----------
    model, inputs, numbers, sampling:
        As in ``sampling.draw``.
    layout:
        How draws go through the network.
    """

    def __init__(
        self,
        model: PixelDP,
        inputs: Inputs,
        numbers: Sequence[int],
        sampling: Sampling,
        layout: Layout,
    ) -> None:
        self._model, self._inputs, self._sampling = model, inputs, sampling
        self._waiting: deque[int] = deque(numbers)
        self._total = len(numbers)
        self._begun = 0
        self._began = time.monotonic()
        first = inputs(numbers[0])[None]
        value = model.front(first)
        self._layout = layout
        self._back = back_of(model, self._layout)
        self._buffer = self._layout.buffer(value)
        self._shared = Shared(model.noise, sampling.seed, first.device) if sampling.shared else None
        self._labels: int | None = None
        self._live: deque[_Live] = deque()
        self._pending: list[Pending] = []
        # Noise is drawn by several threads at once, where there is enough of it, and of them.
        threads = torch.get_num_threads() if first.device.type == "cpu" else 1
        enough = self._buffer[0].numel() >= _WORTH_A_THREAD and not sampling.shared
        self._pool = ThreadPoolExecutor(min(threads, 2 * LANES)) if enough and threads > 1 else None

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

    def close(self) -> None:
        """Let the threads go."""
        if self._pool is not None:
            self._pool.shutdown()

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
        self._fill()
        return cells

    def _hand_out(self, live: _Live, cells: list[_Cell]) -> None:
        stage = live.stage
        while len(cells) < self._layout.blocks and stage.room() > 0:
            draws = min(self._layout.draws, stage.room())
            value = self._layout.inside(live.value)
            self._pending.append((stage.noise, self._buffer[len(cells)], value, stage.block))
            stage.block += 1
            stage.handed += draws
            cells.append(_Cell(live, draws))

    def _fill(self) -> None:
        """Write noisy values into the places that were handed out: lane by lane, in their order."""
        lanes: dict[tuple[int, int], list[Pending]] = {}
        for one in self._pending:
            lanes.setdefault((id(one[0]), one[3] % LANES), []).append(one)
        self._pending = []
        if self._pool is None:
            for lane in lanes.values():
                _fill_lane(lane)
        else:
            list(self._pool.map(_fill_lane, lanes.values()))

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
        # Rows that are not counted weigh nothing.
        unused = np.arange(draws) >= np.array([[cell.draws] for cell in cells])
        softmax, top = softmax[: len(cells)], top[: len(cells)]
        softmax[unused], top[unused] = 0.0, labels
        places = (labels + 1) * np.arange(len(cells))[:, None] + top
        counts = np.bincount(places.ravel(), minlength=(labels + 1) * len(cells))
        counts = counts.reshape(len(cells), labels + 1)[:, :labels]
        sums, squares = softmax.sum(axis=1), np.square(softmax).sum(axis=1)
        reached: dict[int, _Live] = {}
        for number, cell in enumerate(cells):
            drawn = cell.live.drawn
            drawn.counts += counts[number]
            drawn.sums += sums[number]
            drawn.squares += squares[number]
            drawn.draws += cell.draws
            if self._sampling.sketch is not None and len(cell.live.stages) == 1:
                scores = softmax[number, : cell.draws]
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
