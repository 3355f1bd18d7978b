"""The norms in which an attack is measured.

A norm knows the distance between two inputs, and what a radius certified in it is worth in
another norm. Names: ``p`` for the attack's norm (the user's choice), ``q`` for the norm in which
a mechanism needs the sensitivity (the mechanism's).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pixeldp._checks import one_of, positive, whole
from pixeldp.errors import InvalidArgument

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True)
class Norm:
    """The p-norm ``(sum |x_i|^p)^(1/p)``; the largest ``|x_i|`` for p = inf.

    For p = 0, which is no norm, the number of coordinates that are not 0.

    >>> L2.distance([0.0, 0.0], [3.0, 4.0])
    5.0
    """

    p: float

    @property
    def name(self) -> str:
        """How people write it: ``1-norm``, ``2-norm``, ``∞-norm``."""
        return "∞-norm" if math.isinf(self.p) else f"{int(self.p)}-norm"

    def distance(self, x: npt.ArrayLike, y: npt.ArrayLike) -> float:
        """``‖x − y‖_p`` over all coordinates of two inputs of one shape; changed ones for p = 0."""
        a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
        if a.shape != b.shape:
            raise InvalidArgument(f"x and y must have one shape, got {a.shape} and {b.shape}")
        return float(np.linalg.norm((a - b).ravel(), ord=self.p))

    def radius_in(
        self,
        other: Norm,
        radius: npt.ArrayLike,
        *,
        coordinates: int,
        value_range: float | None = None,
    ) -> npt.NDArray[np.float64]:
        """Translate a radius certified in this norm to one that holds in ``other``.

        With n coordinates and ``‖x‖_p ≤ n^(1/p − 1/p') ‖x‖_p'`` for p < p' (Hölder), and
        ``‖x‖_p ≤ ‖x‖_p'`` for p ≥ p', the ball of the result lies inside this norm's ball.
        k changed coordinates, each within ``value_range``, are at most ``value_range · k^(1/p)``
        away: for the 0-norm the result is the largest such k, and a coordinate is a channel's
        value, not a pixel. The result is rounded down.

        >>> float(L2.radius_in(Linf, 1.4, coordinates=196).round(12))
        0.1
        >>> float(L2.radius_in(L0, 1.75, coordinates=196, value_range=1.0))
        3.0
        """
        n = whole("coordinates", coordinates, least=1)
        certified = np.asarray(radius, dtype=np.float64)
        if (certified < 0).any() or np.isnan(certified).any():
            raise InvalidArgument(f"radius must be at least 0, got radius={radius!r}")
        if self.p == 0:
            raise InvalidArgument("a radius in the 0-norm bounds no other norm's")
        if other.p == 0:
            return self._changed_coordinates(certified, n, value_range)
        exponent = max(0.0, 1 / self.p - 1 / other.p)
        if exponent == 0.0:
            return certified
        # Two roundings happen here; four units in the last place cover them.
        down = 1 - 4 * float(np.finfo(np.float64).eps)
        return np.asarray(np.maximum(certified / n**exponent * down, 0.0))

    def _changed_coordinates(
        self, radius: npt.NDArray[np.float64], n: int, value_range: float | None
    ) -> npt.NDArray[np.float64]:
        if value_range is None:
            raise InvalidArgument("value_range must be given for the 0-norm, got value_range=None")
        steps = radius / positive("value_range", value_range) * (1 - 1e-12)
        with np.errstate(over="ignore"):
            counted = np.where(steps >= 1, np.inf, 0.0) if math.isinf(self.p) else steps**self.p
        return np.asarray(np.floor(np.minimum(counted, n)))


L0 = Norm(0)
L1 = Norm(1)
L2 = Norm(2)
Linf = Norm(math.inf)

_ATTACK_NORMS: dict[float, Norm] = {0: L0, 1: L1, 2: L2, math.inf: Linf}


def attack_norm(p: float) -> Norm:
    """Return the norm that an attack may be measured in, from its number."""
    return _ATTACK_NORMS[one_of("norm", p, _ATTACK_NORMS)]
