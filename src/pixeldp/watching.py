"""What can be told of a certification while it runs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pixeldp.certification import certify_scores
from pixeldp.scores import Drawn, Scores

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from pixeldp.drawing import Progress, Work

# Radii of what is done are computed no more often than this.
_EVERY_SECONDS = 0.5


@dataclass(frozen=True)
class Seen:
    """How far a certification is.

    Attributes
    ----------
    done, total:
        Inputs of this process, with those that were drawn before it was interrupted.
    draws_a_second:
        Since the process began.
    certified, size:
        The share of the inputs drawn since then that is right and certified at that attack size.
    """

    done: int
    total: int
    draws_a_second: float
    certified: float
    size: float

    def __str__(self) -> str:
        if not self.draws_a_second:
            return ""
        return (
            f"{self.draws_a_second:,.0f} draws a second, "
            f"{100 * self.certified:.1f} % certified at {self.size:g}"
        )


class Watch:
    """Follows the progress of one process."""

    def __init__(
        self,
        work: Work,
        labels: torch.Tensor,
        tell: Callable[[Seen], object],
    ) -> None:
        self._work, self._labels, self._tell = work, labels, tell
        targets, scale = work.task.targets, work.model.noise.scale / work.model.sensitivity
        self._size = targets[len(targets) // 2] if targets else float(f"{scale / 2:.3g}")
        self._began = time.monotonic()
        self._looked = self._began
        self._pending: list[Drawn] = []
        self._judged = self._right = self._draws = 0

    def __call__(self, progress: Progress) -> None:
        """Take one more input into account and tell how far it is."""
        now = time.monotonic()
        if progress.drawn is not None:
            self._pending.append(progress.drawn)
            self._draws += progress.drawn.draws + self._work.task.selected
        if now - self._looked > _EVERY_SECONDS or progress.done == progress.total:
            self._judge()
            self._looked = now
        self._tell(
            Seen(
                done=progress.done,
                total=progress.total,
                draws_a_second=self._draws / max(now - self._began, 1e-9),
                certified=self._right / max(self._judged, 1),
                size=self._size,
            )
        )

    def _judge(self) -> None:
        """Certify what came since the last look."""
        if not self._pending:
            return
        task = self._work.task
        rows = sorted(self._pending, key=lambda one: one.number)
        inputs = len(self._work.inputs)
        made = certify_scores(
            Scores.of(rows, seed=0, stopped=task.stopped(inputs)),
            noise=self._work.model.noise,
            sensitivity=self._work.model.sensitivity,
            confidence=1 - task.alpha(inputs),
            scores=task.scores,
            certificate=task.certificate,
            bound=task.bound,
            plan=task.plan,
        )
        labels = self._labels[[one.number for one in rows]].numpy()
        self._right += int(((made.label == labels) & (made.radius >= self._size)).sum())
        self._judged += len(rows)
        self._pending.clear()
