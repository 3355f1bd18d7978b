"""What is drawn at the noise layer, and how its scale relates to an attack size (§3.2).

A mechanism fixes ``q``, the output norm in which it needs the sensitivity of what precedes it:
Laplace needs Δ_{p,1}, Gaussian needs Δ_{p,2}. It is an attribute of the class, so that pairing a
mechanism with the wrong sensitivity cannot be written down.

It also knows how much an attack can change a probability. An attack of size L moves what the
noise is added to by at most ``Δ L`` in the q-norm; ``r = Δ L / scale``, the *shift*, is that in
noise scales, and everything depends on L through r alone.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from scipy import special

from pixeldp._checks import open_unit, positive
from pixeldp.errors import InvalidArgument
from pixeldp.norms import attack_norm
from pixeldp.roots import last_holding, reaching

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt
    import torch

    Array = npt.NDArray[np.float64]

# Shifts beyond this leave nothing of any probability: a bracket need not reach further.
_FAR = 1e9

_NEWTON_STEPS = 12

_TINY = float(np.finfo(np.float64).tiny)

# Sixteen units in the last place: the error of the special functions here, with room.
_ROUNDING = 16 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True, kw_only=True)
class Mechanism(ABC):
    """Independent zero-mean noise of one scale on every coordinate.

    Attributes
    ----------
    scale:
        sigma, the standard deviation, for Gaussian; b for Laplace (whose standard deviation is
        ``sqrt(2) b``). In the units of what the noise is added to.
    norm:
        p, the norm of the attack that is certified against.
    """

    scale: float
    norm: float

    name: ClassVar[str]
    q: ClassVar[int]

    def __post_init__(self) -> None:
        """Refuse a scale or a norm that cannot be."""
        object.__setattr__(self, "scale", positive("scale", self.scale))
        attack_norm(self.norm)

    @abstractmethod
    def fill(self, out: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        """Overwrite ``out`` with noise, and return it; memory that is used again costs less."""

    def sample(self, like: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        """Draw noise of the shape, type and device of ``like``."""
        return self.fill(like.new_empty(like.shape), generator)

    @abstractmethod
    def least_after(self, probability: npt.ArrayLike, shift: npt.ArrayLike) -> Array:
        """Return the least that an expected score of at least ``probability`` can become.

        This is the trade-off function of the mechanism, seen from the test's power: by the lemma
        of Neyman and Pearson nothing is attained below it, and for scores in [0, 1] nothing
        changes. The most that a score of at most p can become is ``1 − least_after(1 − p, r)``.
        """

    def largest_shift(self, lower: Array, upper: Array) -> Array:
        """Return the supremum of the shifts r that keep the label, for 0 ≤ upper < lower ≤ 1.

        That is, with ``least_after(lower, r) > 1 − least_after(1 − upper, r)``; rounded down. A
        bracketed root, unless a mechanism knows a closed form.
        """

        def keeps(shift: Array) -> npt.NDArray[np.bool_]:
            least = self.least_after(lower, shift)
            return least > 1 - self.least_after(1 - upper, shift) + _ROUNDING

        end = reaching(keeps, np.ones_like(lower))
        return np.where(np.isinf(end), np.inf, last_holding(keeps, 0 * end, np.minimum(end, _FAR)))

    def classical_shift(self, epsilon: Array, delta: Array) -> Array:
        """Return the shift for which the paper's formula (§3.2) makes the mechanism (ε, δ)-DP."""
        raise self._has_no("'dp'", epsilon, delta)

    def profile(self, epsilon: npt.ArrayLike, shift: npt.ArrayLike) -> Array:
        """Return the least δ for which the mechanism is (ε, δ)-DP for attacks of that shift.

        The privacy profile, ``sup over events of P(before) − e^ε P(after)``.
        """
        raise self._has_no("'analytic'", epsilon, shift)

    def exact_shift(self, epsilon: Array, delta: Array) -> Array:
        """Return the largest shift whose profile at ε stays at or below δ; rounded down."""

        def covered(shift: Array) -> npt.NDArray[np.bool_]:
            return self.profile(epsilon, shift) <= delta

        end = reaching(covered, np.ones(np.broadcast_shapes(np.shape(epsilon), np.shape(delta))))
        return np.where(
            np.isinf(end), np.inf, last_holding(covered, 0 * end, np.minimum(end, _FAR))
        )

    def renyi(self, order: npt.ArrayLike, shift: npt.ArrayLike) -> Array:
        """Return the Rényi divergence of that order (above 1) between the noise and its shift."""
        raise self._has_no("'renyi'", order, shift)

    def renyi_shift(self, order: Array, divergence: Array) -> Array:
        """Return the largest shift whose divergence stays below the given one; rounded down."""

        def below(shift: Array) -> npt.NDArray[np.bool_]:
            return self.renyi(order, shift) < divergence

        end = reaching(below, np.ones(np.broadcast_shapes(np.shape(order), np.shape(divergence))))
        return np.where(np.isinf(end), np.inf, last_holding(below, 0 * end, np.minimum(end, _FAR)))

    def _has_no(self, certificate: str, *_: object) -> InvalidArgument:
        return InvalidArgument(
            f"certificate={certificate} is not available for {self.name} noise; take 'tight'"
        )


@dataclass(frozen=True, kw_only=True)
class Gaussian(Mechanism):
    """The Gaussian mechanism: needs Δ_{p,2} and gives (ε, δ)-DP for ε ≤ 1.

    >>> round(Gaussian.for_attack(size=0.3, epsilon=1.0, delta=0.05, norm=2).scale, 4)
    0.7612
    """

    name: ClassVar[str] = "gaussian"
    q: ClassVar[int] = 2

    @classmethod
    def for_attack(
        cls, *, size: float, epsilon: float, delta: float, norm: float, sensitivity: float = 1.0
    ) -> Self:
        """Build the paper's noise for attacks up to ``size``: the construction attack bound L.

        ``sigma = sqrt(2 ln(1.25/δ)) Δ_{p,2} L / ε`` (§3.2), for ε in (0, 1] only: above 1 the
        true δ is larger than the claimed one.
        """
        if positive("epsilon", epsilon) > 1:
            raise InvalidArgument(
                f"epsilon must be in (0, 1] for the Gaussian mechanism, got epsilon={epsilon!r}; "
                "take a larger delta, or give the scale itself: Gaussian(scale=…, norm=…)"
            )
        factor = math.sqrt(2 * math.log(1.25 / open_unit("delta", delta)))
        size = positive("size", size)
        return cls(scale=factor * positive("sensitivity", sensitivity) * size / epsilon, norm=norm)

    def size(self, *, epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
        """Return the attack size L that this noise is (ε, δ)-DP for."""
        unit = Gaussian.for_attack(
            size=1.0, epsilon=epsilon, delta=delta, norm=self.norm, sensitivity=sensitivity
        )
        return self.scale / unit.scale

    def epsilon(self, *, size: float, delta: float, sensitivity: float = 1.0) -> float:
        """Return the ε of this noise for attacks of that size, with that δ; refused above 1."""
        factor = math.sqrt(2 * math.log(1.25 / open_unit("delta", delta)))
        spread = positive("sensitivity", sensitivity) * positive("size", size)
        epsilon = factor * spread / self.scale
        if epsilon > 1:
            raise InvalidArgument(
                f"the classical formula holds for epsilon up to 1, got epsilon={epsilon:.4g} for "
                f"size={size!r}; take a smaller size, a larger delta, or the exact profile()"
            )
        return epsilon

    def fill(self, out: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        """Draw ``N(0, scale²)`` on every coordinate."""
        return out.normal_(0.0, self.scale, generator=generator)

    def least_after(self, probability: npt.ArrayLike, shift: npt.ArrayLike) -> Array:
        """Return ``Φ(Φ⁻¹(p) − r)``."""
        quantile = special.ndtri(np.asarray(probability, dtype=np.float64))
        return np.asarray(special.ndtr(quantile - np.asarray(shift, dtype=np.float64)))

    def largest_shift(self, lower: Array, upper: Array) -> Array:
        """Return ``(Φ⁻¹(lower) − Φ⁻¹(upper)) / 2``."""
        first, second = special.ndtri(lower), special.ndtri(upper)
        slack = _ROUNDING * (np.abs(first) + np.abs(second))
        with np.errstate(invalid="ignore"):  # ∞ − ∞ in the slack of an infinite shift
            shift = (first - second - slack) / 2
        return np.where(np.isinf(first - second), np.inf, shift)

    def classical_shift(self, epsilon: Array, delta: Array) -> Array:
        """Return ``ε / sqrt(2 ln(1.25/δ))``, for ε in (0, 1]."""
        if np.any(np.asarray(epsilon) > 1):
            raise InvalidArgument(
                "epsilon must be in (0, 1] for the classical Gaussian mechanism, got "
                f"epsilon={float(np.max(epsilon))!r}"
            )
        with np.errstate(divide="ignore", invalid="ignore"):
            shift = epsilon / np.sqrt(2 * (math.log(1.25) - np.log(delta)))
        return np.where(np.asarray(delta) > 0, shift, 0.0)

    def profile(self, epsilon: npt.ArrayLike, shift: npt.ArrayLike) -> Array:
        """Return ``Φ(r/2 − ε/r) − e^ε Φ(−r/2 − ε/r)`` (Balle and Wang 2018, Theorem 8)."""
        eps, r = np.broadcast_arrays(np.asarray(epsilon, float), np.asarray(shift, float))
        with np.errstate(divide="ignore", invalid="ignore"):
            first = special.log_ndtr(r / 2 - eps / r)
            second = eps + special.log_ndtr(-r / 2 - eps / r)
            # Through logarithms: the two are close, and tiny where δ is tiny.
            delta = -np.exp(first) * np.expm1(np.minimum(second - first, 0.0))
        return np.where(r > 0, np.where(np.isneginf(first), 0.0, delta), 0.0)

    def exact_shift(self, epsilon: Array, delta: Array) -> Array:
        """Solve the profile for r by Newton's method, then step back to where it surely holds."""
        return _gaussian_exact_shift(self, np.asarray(epsilon, float), np.asarray(delta, float))

    def renyi(self, order: npt.ArrayLike, shift: npt.ArrayLike) -> Array:
        """Return ``a r² / 2``."""
        return np.asarray(order, dtype=np.float64) * np.square(shift) / 2

    def renyi_shift(self, order: Array, divergence: Array) -> Array:
        """Return ``sqrt(2 D / a)``."""
        return np.sqrt(2 * np.maximum(divergence, 0.0) / order) * (1 - _ROUNDING)


@dataclass(frozen=True, kw_only=True)
class Laplace(Mechanism):
    """The Laplace mechanism: needs Δ_{p,1} and gives (ε, 0)-DP.

    >>> Laplace.for_attack(size=0.3, epsilon=1.0, norm=1).scale
    0.3
    """

    name: ClassVar[str] = "laplace"
    q: ClassVar[int] = 1

    @classmethod
    def for_attack(
        cls, *, size: float, epsilon: float, norm: float, sensitivity: float = 1.0
    ) -> Self:
        """Build the paper's noise for attacks up to ``size``: ``b = Δ_{p,1} L / ε`` (§3.2)."""
        return cls(
            scale=positive("sensitivity", sensitivity)
            * positive("size", size)
            / positive("epsilon", epsilon),
            norm=norm,
        )

    def size(self, *, epsilon: float, sensitivity: float = 1.0) -> float:
        """Return the attack size L that this noise is (ε, 0)-DP for."""
        return self.scale * positive("epsilon", epsilon) / positive("sensitivity", sensitivity)

    def epsilon(self, *, size: float, sensitivity: float = 1.0) -> float:
        """Return the ε of this noise for attacks of that size: ``Δ L / b``."""
        return positive("sensitivity", sensitivity) * positive("size", size) / self.scale

    def fill(self, out: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        """Draw ``exp(−|z|/b) / 2b`` on every coordinate.

        As the difference of two exponentials: the inverse of the distribution function, in
        float32, would cut the tails off at about 16 b.
        """
        out.exponential_(generator=generator)
        other = out.new_empty(out.shape).exponential_(generator=generator)
        return out.sub_(other).mul_(self.scale)

    def least_after(self, probability: npt.ArrayLike, shift: npt.ArrayLike) -> Array:
        """Return the least power, in three pieces of the miss ``a = 1 − p``.

        ``1 − eʳ a`` if ``a < e⁻ʳ/2``; ``e⁻ʳ / 4a`` if ``e⁻ʳ/2 ≤ a ≤ 1/2``; ``e⁻ʳ (1 − a)`` above.
        The worst shift of a given 1-norm is along one coordinate.
        """
        p, r = np.broadcast_arrays(np.asarray(probability, float), np.asarray(shift, float))
        miss, shrink = 1 - p, np.exp(-r)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # in pieces not taken
            least = np.select(
                [miss == 0, miss > 0.5, miss >= shrink / 2],
                [np.ones_like(p), shrink * p, shrink / (4 * miss)],
                1 - np.exp(r) * miss,
            )
        return np.asarray(least)

    def largest_shift(self, lower: Array, upper: Array) -> Array:
        """Return where the two curves meet, in closed form.

        ``½ ln(lower / upper)`` if ``lower < ½``; ``½ ln((1 − upper) / (1 − lower))`` if
        ``upper > ½``; else ``−½ ln(4 (1 − lower) upper)``.
        """
        pieces = [lower < 0.5, upper > 0.5]
        above = np.select(pieces, [lower, 1 - upper], 0.25)
        below = np.select(pieces, [upper, 1 - lower], (1 - lower) * upper)
        return half_log_ratio(above, below)

    def classical_shift(self, epsilon: Array, delta: Array) -> Array:
        """Return ``ε``: the mechanism is (ε, 0)-DP for ``r = ε``, and δ is not used."""
        return np.broadcast_arrays(np.asarray(epsilon, dtype=np.float64), delta)[0]

    def profile(self, epsilon: npt.ArrayLike, shift: npt.ArrayLike) -> Array:
        """Return ``max(0, 1 − e^{(ε − r)/2})``."""
        eps, r = np.asarray(epsilon, dtype=np.float64), np.asarray(shift, dtype=np.float64)
        return np.abs(np.expm1(np.minimum(eps - r, 0.0) / 2))

    def exact_shift(self, epsilon: Array, delta: Array) -> Array:
        """Return ``ε − 2 ln(1 − δ)``."""
        with np.errstate(divide="ignore"):
            shift = epsilon - 2 * np.log1p(-np.asarray(delta, dtype=np.float64))
        return np.asarray(shift * (1 - _ROUNDING))

    def renyi(self, order: npt.ArrayLike, shift: npt.ArrayLike) -> Array:
        """Return ``ln(a/(2a−1) e^{(a−1) r} + (a−1)/(2a−1) e^{−a r}) / (a − 1)`` (Mironov 2017)."""
        a, r = np.asarray(order, dtype=np.float64), np.asarray(shift, dtype=np.float64)
        first = np.log(a / (2 * a - 1)) + (a - 1) * r
        second = np.log((a - 1) / (2 * a - 1)) - a * r  # the two together are 1 at r = 0
        return np.asarray(np.logaddexp(first, second) / (a - 1))

    def renyi_shift(self, order: Array, divergence: Array) -> Array:
        """Solve for r by Newton's method: from above, where the convex curve leads down to it."""
        a, target = np.broadcast_arrays(order, np.maximum(divergence, 0.0))
        shift = target + np.log((2 * a - 1) / a) / (a - 1)
        for _ in range(_NEWTON_STEPS):
            # The share of the falling exponential, and with it the slope of the divergence.
            falling = special.expit(np.log((a - 1) / a) - (2 * a - 1) * shift)
            slope = ((a - 1) - (2 * a - 1) * falling) / (a - 1)
            step = (self.renyi(a, shift) - target) / np.maximum(slope, _TINY)
            shift = np.maximum(shift - step, shift / 4)
        return _settled(shift, lambda r: self.renyi(a, r) <= target)


def _gaussian_exact_shift(mechanism: Gaussian, epsilon: Array, delta: Array) -> Array:
    """Return the largest r with ``profile(ε, r) ≤ δ``, to nine digits, never above it."""
    epsilon, delta = np.broadcast_arrays(epsilon, delta)
    usable = (delta > 0) & (delta < 1)
    # Where no δ is allowed the answer is 0; any other pair stands in for it meanwhile.
    target = np.log(np.where(usable, delta, 0.5))
    # Start where the first term alone is δ: the shift there is too small.
    quantile = special.ndtri_exp(target)
    shift = quantile + np.sqrt(quantile * quantile + 2 * epsilon)
    shift = np.maximum(shift, 1e-12)
    for _ in range(_NEWTON_STEPS):
        value = np.maximum(mechanism.profile(epsilon, shift), _TINY)
        centre = shift / 2 - epsilon / shift
        slope = np.exp(-centre * centre / 2) / (math.sqrt(2 * math.pi) * value)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            step = (target - np.log(value)) / slope
        step = np.where(np.isfinite(step), step, 0.0)
        shift = np.clip(shift + step, shift / 4, shift * 4)

    def surely(r: Array) -> npt.NDArray[np.bool_]:
        # The profile is a difference: what rounding may hide of it is taken against it.
        first = special.log_ndtr(r / 2 - epsilon / r)
        hidden = _ROUNDING * (1 + np.abs(first) + epsilon) * np.exp(first)
        return np.asarray(mechanism.profile(epsilon, r) + hidden <= delta * (1 - 1e-12))

    settled = _settled(shift, surely)
    return np.where(usable, settled, np.where(delta >= 1, np.inf, 0.0))


def _settled(found: Array, holds: Callable[[Array], npt.NDArray[np.bool_]]) -> Array:
    """Step back from what Newton's method found until the condition surely holds.

    What that does not settle is 0: left out rather than trusted.
    """
    settled = np.zeros_like(found)
    for margin in (0.1, 1e-3, 1e-6, 1e-9):
        safe = found * (1 - margin)
        settled = np.where(holds(safe), safe, settled)
    return settled


def half_log_ratio(above: Array, below: Array) -> Array:
    """Return ``½ ln(above / below)`` rounded down; infinite where ``below`` is 0.

    Through the difference of the logarithms, since the quotient itself may overflow.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        first, second = np.log(above), np.log(below)
        slack = _ROUNDING * (1 + np.abs(first) + np.abs(second))
        return np.where(below == 0, np.inf, np.maximum(first - second - slack, 0.0) / 2)


MECHANISMS: dict[str, type[Gaussian | Laplace]] = {
    mechanism.name: mechanism for mechanism in (Gaussian, Laplace)
}
