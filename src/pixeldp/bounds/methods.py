"""The bounds themselves: each on one expectation in [0, 1], at a level that it may fail with.

The level pays for one side, or for both together.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

from pixeldp.errors import InvalidArgument
from pixeldp.roots import last_holding
from pixeldp.sketches import PLACES

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from pixeldp.bounds.sums import Sums

    Array = npt.NDArray[np.float64]

# Relative error of the incomplete beta inverse and of sums, with room; bounds move outwards by it.
_SLACK = 1e-12

# More than any finite log-likelihood of one draw.
_FAR = 1e4


def hoeffding(sums: Sums, level: float, *, two_sided: bool) -> tuple[Array, Array]:
    """Return ``mean ∓ sqrt(ln(1/beta) / 2n)``, for any scores in [0, 1]."""
    beta = level / 2 if two_sided else level
    width = np.sqrt(math.log(1 / beta) / (2 * sums.draws)) + _SLACK
    return _around(sums, width)


def bernstein(sums: Sums, level: float, *, two_sided: bool) -> tuple[Array, Array]:
    """Return ``mean ∓ (sqrt(2 V ln(2/beta)/n) + 7 ln(2/beta)/(3 (n − 1)))``.

    Maurer and Pontil 2009, Theorem 4; V is the sample variance. For scores of small variance.
    """
    beta = level / 2 if two_sided else level
    log, n = math.log(2 / beta), sums.draws
    with np.errstate(invalid="ignore", divide="ignore"):
        width = np.sqrt(2 * sums.variance() * log / n) + 7 * log / (3 * (n - 1)) + _SLACK
    return _around(sums, np.where(n > 1, width, 1.0))


def clopper_pearson(sums: Sums, level: float, *, two_sided: bool) -> tuple[Array, Array]:
    """Return exact binomial bounds for counts of successes.

    Lower: the p with ``P(Bin(n, p) ≥ c) = beta``, the ``beta`` quantile of Beta(c, n − c + 1).
    Upper: the p with ``P(Bin(n, p) ≤ c) = beta``, the ``1 − beta`` quantile of Beta(c + 1, n − c).
    """
    _check_binary(sums, "clopper-pearson")
    beta = level / 2 if two_sided else level
    counts, draws = np.broadcast_arrays(sums.totals, sums.draws)
    none, every = counts == 0, counts == draws
    lower = special.betaincinv(np.where(none, 1, counts), draws - counts + 1, beta)
    upper = special.betainccinv(counts + 1, np.where(every, 1, draws - counts), beta)
    lower = np.where(none, 0.0, lower * (1 - _SLACK))
    upper = np.where(every, 1.0, np.minimum(upper * (1 + _SLACK), 1.0))
    return lower.astype(np.float64), upper.astype(np.float64)


def beta_binomial(sums: Sums, level: float, *, two_sided: bool) -> tuple[Array, Array]:
    """Return anytime-valid binomial bounds: they hold at every number of draws at once.

    Mixing the likelihood over p with the uniform prior makes ``B(1 + c, 1 + n − c) / (p^c
    (1 − p)^{n−c})`` a martingale under p; by Ville's inequality it ever exceeds ``1/level`` with
    probability at most ``level``, for both sides together. What p leaves is an interval.
    For one side the prior is uniform above p alone, which refutes sooner: see ``log_evidence``.
    """
    _check_binary(sums, "beta-binomial")
    counts, draws = np.broadcast_arrays(sums.totals, sums.draws)
    misses = draws - counts
    mean = counts / draws
    if two_sided:
        # The least log-likelihood that p may have and stay.
        least = special.betaln(1 + counts, 1 + misses) + math.log(level)
        room = _SLACK * (1 + np.abs(least))

        def excluded(p: Array) -> npt.NDArray[np.bool_]:
            likelihood = special.xlogy(counts, p) + special.xlog1py(misses, -p)
            return np.asarray(likelihood < least - room)

        lower = last_holding(excluded, np.zeros_like(mean), mean)
        miss = last_holding(lambda q: excluded(1 - q), np.zeros_like(mean), 1 - mean)
    else:
        lower, miss = (
            last_holding(functools.partial(refuted, c, draws, level=level), np.zeros_like(c), top)
            for c, top in ((counts, mean), (misses, 1 - mean))
        )
    return np.where(counts > 0, lower, 0.0), np.where(misses > 0, 1 - miss, 1.0)


def refuted(counts: Array, draws: Array, p: Array, *, level: float) -> npt.NDArray[np.bool_]:
    """Whether so many successes refute "the expectation is at most p", at every n at once."""
    evidence = log_evidence(counts, draws, p)
    room = _SLACK * (draws + np.minimum(np.abs(evidence), draws * _FAR))
    return np.asarray(evidence > -math.log(level) + room)


def log_evidence(counts: Array, draws: Array, p: Array) -> Array:
    """Return the logarithm of the evidence of c in n draws that their expectation exceeds p.

    ``M_n = ∫_0^1 (1 + u (1/p − 1))^c (1 − u)^{n−c} du``: the likelihood ratio of ``q = p +
    u (1 − p)`` to p, over q uniform above p. For each q it is a supermartingale under every
    expectation of at most p, and so is their mean; by Ville's inequality it ever reaches
    ``1/level`` with probability at most ``level``. It falls as p grows. In closed form it is
    ``B(1 + c, 1 + n − c) (1 − I_p(1 + c, 1 + n − c)) / ((1 − p) p^c (1 − p)^{n−c})``.
    """
    misses = draws - counts
    with np.errstate(divide="ignore"):
        above = np.log(special.betaincc(1 + counts, 1 + misses, p))
    likelihood = special.xlogy(counts, p) + special.xlog1py(misses + 1, -p)
    with np.errstate(invalid="ignore"):  # p = 1, where nothing lies above
        evidence = special.betaln(1 + counts, 1 + misses) + above - likelihood
    return np.where(np.isneginf(above), -np.inf, evidence)


def betting(sums: Sums, level: float, *, two_sided: bool) -> tuple[Array, Array]:
    """Return anytime-valid bounds from the capital of bets against a mean (hedged capital).

    Against "the mean is at most m" one bets the fraction c of what may be bet, and after n draws
    holds ``Π (1 + c (x_i/m − 1))``; if the mean is m, this is a martingale, and by Ville's
    inequality it ever reaches ``1/beta`` with probability at most ``beta``. The mean of the
    capitals for several c, chosen beforehand, is one too (Waudby-Smith and Ramdas 2024, diversified
    bets); it does not depend on the order of the draws, so that sums suffice. The other side bets
    on ``1 − x``.
    """
    beta = level / 2 if two_sided else level
    weights = sums.weights()
    shape = np.broadcast_shapes(np.shape(sums.totals), np.shape(sums.draws))
    if 0 in shape:
        return np.zeros(shape), np.zeros(shape)
    flat = np.broadcast_to(weights, (*shape, len(PLACES))).reshape(-1, len(PLACES))
    parts = [flat[start : start + _ROWS] for start in range(0, len(flat), _ROWS)]
    lower = np.concatenate([_out_bet(part, beta) for part in parts])
    upper = 1 - np.concatenate([_out_bet(part[:, ::-1], beta) for part in parts])
    return lower.reshape(shape), np.minimum(upper.reshape(shape) + _SLACK, 1.0)


# Fractions of the largest bet that are mixed: small ones for many draws, large for small variance.
_FRACTIONS = np.concatenate([2.0 ** -np.arange(11, 0, -1), [0.75, 0.9, 0.999]])

# Rows whose capitals are computed at once, to bound memory.
_ROWS = 256

# Halvings of a bracket in [0, 1]: an error of 2e-12, on the safe side.
_BET_HALVINGS = 39


def log_capital(weights: Array, m: Array) -> Array:
    """Return, for each row of a sketch, the logarithm of the capital of bets against a mean of m.

    Under any mean of at most m the capital is a supermartingale that starts at 1.
    """
    with np.errstate(divide="ignore", over="ignore"):
        ratio = PLACES / np.maximum(m, 1e-300)[:, None] - 1
    logs = np.stack(
        [(weights * np.log1p(fraction * ratio)).sum(axis=-1) for fraction in _FRACTIONS]
    )
    return np.asarray(special.logsumexp(logs, axis=0) - math.log(len(_FRACTIONS)))


def _out_bet(weights: Array, beta: float) -> Array:
    """Return, for each row of a sketch, the largest m against which the capital reached 1/beta."""
    mean = (weights @ PLACES) / weights.sum(axis=-1)
    goal = -math.log(beta)

    def excluded(m: Array) -> npt.NDArray[np.bool_]:
        room = _SLACK * (1 + goal + math.log(len(_FRACTIONS)))
        return np.asarray(log_capital(weights, m) > goal + room)

    return last_holding(excluded, np.zeros_like(mean), mean, _BET_HALVINGS) * (1 - _SLACK)


def _around(sums: Sums, width: Array) -> tuple[Array, Array]:
    mean = sums.totals / sums.draws
    return np.clip(mean - width, 0.0, 1.0), np.clip(mean + width, 0.0, 1.0)


def _check_binary(sums: Sums, method: str) -> None:
    if not sums.binary:
        raise InvalidArgument(
            f"{method} needs whole counts of argmax scores, got fractions; "
            "take 'hoeffding', 'bernstein' or 'betting' for softmax scores"
        )


@dataclass(frozen=True)
class Method:
    """A bound: what computes it, for which scores, and whether draws may be stopped at any time."""

    bound: Callable[..., tuple[Array, Array]]
    kinds: tuple[str, ...]
    anytime: bool


METHODS: dict[str, Method] = {
    "clopper-pearson": Method(clopper_pearson, ("argmax",), anytime=False),
    "hoeffding": Method(hoeffding, ("argmax", "softmax"), anytime=False),
    "bernstein": Method(bernstein, ("argmax", "softmax"), anytime=False),
    "betting": Method(betting, ("argmax", "softmax"), anytime=True),
    "beta-binomial": Method(beta_binomial, ("argmax",), anytime=True),
}
