"""Several processes at one piece of work, as ``torchrun`` starts them; or one by itself.

There is no scheduler here: ``torchrun`` starts the processes, on one machine or many, tells each
its number, and starts them again when one dies. What is left to do is agreed on at every start.
"""

from __future__ import annotations

import datetime as dt
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import distributed

from pixeldp.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Value = TypeVar("Value")

# To meet takes no longer than this. After a restart some may wait for others where these do not
# look (torchrun numbers the restarts of each machine by itself); then they start once more.
_MEETING = dt.timedelta(seconds=60)

# Whoever is done early waits for the others, however long they take; who dies is noticed.
_PATIENCE = dt.timedelta(days=30)


class Team:
    """One process by itself: number 0 of 1."""

    rank = 0
    size = 1

    def told(self, find: Callable[[], Value]) -> Value:
        """Return what ``find`` gives in process 0, in every process; its error is raised in all."""
        return find()

    def shared(self, value: Value) -> list[Value]:
        """Return the values of all processes, in every process."""
        return [value]


class _Torchrun(Team):
    def __init__(self) -> None:
        self.rank = distributed.get_rank()
        self.size = distributed.get_world_size()
        self._group = distributed.new_group(timeout=_PATIENCE, backend="gloo")

    def told(self, find: Callable[[], Value]) -> Value:
        """Let process 0 find it and tell the others."""
        answer: list[Any] = [None, None]
        if self.rank == 0:
            try:
                answer[0] = find()
            except Exception as error:  # noqa: BLE001 - raised again in every process
                answer[1] = error
        distributed.broadcast_object_list(answer, group=self._group)
        if answer[1] is not None:
            raise answer[1]
        found: Value = answer[0]
        return found

    def shared(self, value: Value) -> list[Value]:
        """Exchange values."""
        values: list[Any] = [None] * self.size
        distributed.all_gather_object(values, value, group=self._group)
        return values


@contextmanager
def team() -> Iterator[Team]:
    """Join the processes that ``torchrun`` started, or work alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Team()
        return
    distributed.init_process_group("gloo", timeout=_MEETING)
    try:
        yield _Torchrun()
    finally:
        distributed.destroy_process_group()


def device_named(name: str) -> torch.device:
    """Return the device to compute on: ``cpu``, ``cuda``, ``mps``, or the best there is.

    Where ``torchrun`` started several processes on a machine, each takes a GPU of its own.

    >>> device_named("cpu")
    device(type='cpu')
    """
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.mps.is_available()}
    best = next(kind for kind in ("cuda", "mps", "cpu") if there[kind])
    kind = best if name == "auto" else name
    if not there.get(kind, False):
        known = ", ".join(repr(one) for one, is_there in there.items() if is_there)
        raise InvalidArgument(
            f"device must be 'auto' or one that is here ({known}), got device={name!r}"
        )
    if kind == "cuda":
        local = int(os.environ.get("LOCAL_RANK", "0"))
        return torch.device("cuda", local % torch.cuda.device_count())
    return torch.device(kind)
