"""The few checks that many functions share, so that the same mistake gets the same sentence."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

from pixeldp.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable

Choice = TypeVar("Choice")


def positive(name: str, value: float) -> float:
    """Return ``value`` as a float if it is finite and above 0."""
    if isinstance(value, bool) or not (math.isfinite(value) and value > 0):
        raise InvalidArgument(f"{name} must be a finite number above 0, got {name}={value!r}")
    return float(value)


def open_unit(name: str, value: float) -> float:
    """Return ``value`` as a float if it lies strictly between 0 and 1."""
    if isinstance(value, bool) or not 0 < value < 1:
        raise InvalidArgument(f"{name} must be in (0, 1), got {name}={value!r}")
    return float(value)


def whole(name: str, value: int, *, least: int) -> int:
    """Return ``value`` if it is a whole number of at least ``least``."""
    if isinstance(value, bool) or not float(value).is_integer() or value < least:
        raise InvalidArgument(
            f"{name} must be a whole number of at least {least}, got {name}={value!r}"
        )
    return int(value)


def one_of(name: str, value: Choice, choices: Iterable[Choice]) -> Choice:
    """Return ``value`` if it is one of ``choices``."""
    known = list(choices)
    if value not in known:
        listed = ", ".join(repr(choice) for choice in known)
        raise InvalidArgument(f"{name} must be one of {listed}, got {name}={value!r}")
    return value
