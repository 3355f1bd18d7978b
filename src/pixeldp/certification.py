"""The procedure (§3.4): draw, choose the label, bound its score and the others', certify."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pixeldp._checks import one_of, open_unit, whole
from pixeldp.bounds import DEFAULT_METHOD, PLANS, Bounds, bounds_for, check_draws
from pixeldp.bounds.methods import METHODS
from pixeldp.certificates import CERTIFICATES, certified_radius
from pixeldp.errors import InvalidArgument
from pixeldp.scores import KINDS, Scores

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt
    import torch

    from pixeldp.mechanisms import Mechanism
    from pixeldp.model import PixelDP


@dataclass(frozen=True, eq=False)
class Certification:
    """What is certified of N inputs; every array has one entry an input.

    Attributes
    ----------
    label:
        The label with the highest mean score.
    radius:
        No input within this distance (in the norm of ``noise``, in the units of the input)
        changes the label of the expected scores; with probability at least ``confidence``, for
        each input. 0.0 where nothing is certified.
    abstained:
        Whether the draws could not tell the label from the others at this confidence.
    lower, upper:
        The label's lower bound, and the largest that another label's expected score can be.
    certificate, kind:
        Which certificate, on which scores (``argmax`` or ``softmax``).
    noise, sensitivity:
        What the radius was computed with.
    bounds, scores:
        All labels' bounds, and the sums over draws that they come from.
    """

    label: npt.NDArray[np.int64]
    radius: npt.NDArray[np.float64]
    abstained: npt.NDArray[np.bool_]
    lower: npt.NDArray[np.float64]
    upper: npt.NDArray[np.float64]
    certificate: str
    kind: str
    noise: Mechanism
    sensitivity: float
    bounds: Bounds
    scores: Scores

    @property
    def confidence(self) -> float:
        """``1 − alpha``, for each input by itself."""
        return self.bounds.confidence

    def with_certificate(self, certificate: str) -> npt.NDArray[np.float64]:
        """Return the radii under another certificate: same draws, same bounds, no cost in alpha."""
        return certified_radius(
            self.lower,
            self.upper,
            self.noise,
            certificate=certificate,
            sensitivity=self.sensitivity,
        )


def certify(
    model: PixelDP,
    x: torch.Tensor,
    *,
    draws: int,
    confidence: float = 0.95,
    scores: str = "argmax",
    certificate: str = "tight",
    bound: str | None = None,
    selection: int = 0,
    plan: str | None = None,
    simultaneous: bool = False,
    seed: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> Certification:
    """Certify the predictions of ``model`` on a batch of inputs.

    Parameters
    ----------
    x:
        ``(batch, ...)``.
    draws:
        Noisy scores for each input. Too few for this confidence is an error before the first.
    confidence:
        The probability, for each input, that its certificate holds.
    scores:
        ``argmax`` (usually certifies more) or ``softmax``.
    certificate:
        ``tight``, ``renyi``, ``analytic`` or ``dp``.
    bound:
        ``clopper-pearson`` or ``beta-binomial`` (argmax scores only), ``hoeffding``,
        ``bernstein`` or ``betting``; by default Clopper-Pearson for argmax scores and betting for
        softmax.
    selection:
        So many draws more, first, choose the label; then the others only bound it (Cohen et al.
        2019). 0: the label is chosen by the draws that bound it, and alpha is spent on all labels.
    plan:
        With a selection, ``rest`` (bound the label against all others together) or ``all`` (bound
        every label by itself).
    simultaneous:
        Whether all certificates of the batch are to hold together at the stated confidence.
    seed:
        For a repeatable result on one machine; drawn from the operating system unless given.
        Whoever can foresee the noise can attack it: leave it out where that matters.
    progress:
        Called with the number of inputs done.

    >>> import torch
    >>> from pixeldp import Gaussian, PixelDP
    >>> network = torch.nn.Linear(2, 2, bias=False)
    >>> network.weight.data = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    >>> model = PixelDP(network, Gaussian(scale=0.5, norm=2))
    >>> result = certify(model, torch.tensor([[1.0, 0.0]]), draws=1000, seed=7)
    >>> result.label, bool(result.radius[0] < 1.0)  # 1.0 is this input's true robust radius
    (array([0]), True)
    """
    from pixeldp.sampling import checked_seed, probe_labels, sample_scores

    one_of("certificate", certificate, CERTIFICATES)
    method, way = method_for(scores, bound), plan_for(plan, selected=selection > 0)
    open_unit("confidence", confidence)
    whole("draws", draws, least=1)
    whole("selection", selection, least=0)
    model.check_inputs(x)
    seed = checked_seed(seed)
    each = 1 - (1 - confidence) / (len(x) if simultaneous else 1)
    labels = probe_labels(model, x)
    check_draws(draws, labels=labels, confidence=each, method=method, plan=way)
    chosen = None
    if selection:
        first = sample_scores(model, x, draws=selection, seed=seed, selection=True)
        chosen = first.totals(scores).argmax(axis=1)
    sketch = method == "betting" and scores == "softmax"
    drawn = sample_scores(model, x, draws=draws, seed=seed, sketch=sketch, progress=progress)
    return certify_scores(
        replace(drawn, selected=chosen),
        noise=model.noise,
        sensitivity=model.sensitivity,
        confidence=confidence,
        scores=scores,
        certificate=certificate,
        bound=bound,
        plan=plan,
        simultaneous=simultaneous,
    )


def certify_scores(
    drawn: Scores,
    *,
    noise: Mechanism,
    sensitivity: float,
    confidence: float = 0.95,
    scores: str = "argmax",
    certificate: str = "tight",
    bound: str | None = None,
    plan: str | None = None,
    simultaneous: bool = False,
) -> Certification:
    """Certify from draws that were made before; the network is not needed."""
    method, way = method_for(scores, bound), plan_for(plan, selected=drawn.selected is not None)
    made = bounds_for(
        drawn.sums_of(scores),
        confidence=confidence,
        method=method,
        plan=way,
        label=drawn.selected,
        simultaneous=simultaneous,
    )
    label = drawn.totals(scores).argmax(axis=1) if drawn.selected is None else drawn.selected
    rows = np.arange(len(label))
    lower = made.lower[rows, label]
    # The maximum over every other label's upper bound: with soft scores, the runner-up by mean
    # need not have it.
    others = made.upper.copy()
    others[rows, label] = -np.inf
    # Scores sum to 1, so no other label can have more than what the label leaves.
    upper = np.minimum(others.max(axis=1), np.nextafter(1 - lower, 1.0))
    return Certification(
        label=label.astype(np.int64),
        radius=certified_radius(
            lower, upper, noise, certificate=certificate, sensitivity=sensitivity
        ),
        abstained=lower <= upper,
        lower=lower,
        upper=upper,
        certificate=certificate,
        kind=scores,
        noise=noise,
        sensitivity=sensitivity,
        bounds=made,
        scores=drawn,
    )


def method_for(scores: str, bound: str | None) -> str:
    """Return the bound to use for that kind of scores; refuse one that does not hold for it."""
    one_of("scores", scores, KINDS)
    method = DEFAULT_METHOD[scores] if bound is None else one_of("bound", bound, METHODS)
    if scores not in METHODS[method].kinds:
        raise InvalidArgument(
            f"bound={method!r} counts argmax scores and does not hold for scores={scores!r}; "
            "take 'betting', 'bernstein' or 'hoeffding', or scores='argmax'"
        )
    return method


def plan_for(plan: str | None, *, selected: bool) -> str:
    """Return how alpha is spent: on all labels, unless the label was chosen by other draws."""
    if plan is None:
        return "rest" if selected else "union"
    if (one_of("plan", plan, PLANS) == "union") is selected:
        raise InvalidArgument(
            f"plan={plan!r} is for labels chosen by {'the same' if selected else 'other'} draws; "
            f"give selection={'0' if selected else 'a number of draws'} or another plan"
        )
    return plan
