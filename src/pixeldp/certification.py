"""The procedure (§3.4): draw, choose the label, bound its score and the others', certify."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pixeldp._checks import open_unit
from pixeldp.bounds import Bounds, Spending, bounds_for
from pixeldp.certificates import certified_radius
from pixeldp.errors import InvalidArgument
from pixeldp.scores import Scores
from pixeldp.tasks import PLANNED, Task, method_for, plan_for, stopping_bound, targets_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt
    import torch

    from pixeldp.mechanisms import Mechanism
    from pixeldp.model import PixelDP
    from pixeldp.scores import Stopped


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
    target: float | Sequence[float] | None = None,
    tolerance: float | None = None,
    seconds: float | None = None,
    selection: int | None = None,
    plan: str | None = None,
    simultaneous: bool = False,
    shared_noise: bool = False,
    seed: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> Certification:
    """Certify the predictions of ``model`` on a batch of inputs.

    Parameters
    ----------
    x:
        ``(batch, ...)``.
    draws:
        Noisy scores for each input; the most, where draws are stopped by what they show. Too few
        for this confidence is an error before the first.
    confidence:
        The probability, for each input, that its certificate holds.
    scores:
        ``argmax`` (usually certifies more) or ``softmax``.
    certificate:
        ``tight``, ``renyi``, ``analytic`` or ``dp``.
    bound:
        ``clopper-pearson`` or ``beta-binomial`` (argmax scores only), ``hoeffding``,
        ``bernstein`` or ``betting``; by default Clopper-Pearson for argmax scores and betting for
        softmax. Where draws are stopped, one that allows it: ``planned`` (argmax, with targets),
        ``beta-binomial`` (argmax) or ``betting``.
    target:
        A radius to decide, or several: draw until the radius is known to be at least that, or
        not likely ever to be. What is certified is the largest target that was reached.
    tolerance:
        Draw until the radius can grow by less than this.
    seconds:
        A budget for the whole call, spread evenly over the inputs. Every input is looked at once
        at least.
    selection:
        So many draws more, first, choose the label; then the others only bound it (Cohen et al.
        2019). 0: the label is chosen by the draws that bound it, and alpha is spent on all labels.
        By default 0, or 64 where draws are stopped, which needs a label chosen beforehand.
    plan:
        With a selection, ``rest`` (bound the label against all others together) or ``all`` (bound
        every label by itself).
    simultaneous:
        Whether all certificates of the batch are to hold together at the stated confidence.
    shared_noise:
        Whether one sequence of noise serves all inputs: faster, and each certificate holds at its
        confidence all the same; but unlucky noise is unlucky for several inputs at once.
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
    >>> stopped = certify(model, torch.tensor([[1.0, 0.0]]), draws=10_000, target=0.5, seed=7)
    >>> bool(stopped.radius[0] >= 0.5), bool(stopped.scores.draws[0] < 1000)
    (True, True)
    """
    from pixeldp.layouts import block_draws
    from pixeldp.probing import probe_labels
    from pixeldp.sampling import draw_all
    from pixeldp.streams import checked_seed

    model.check_inputs(x)
    task = Task(
        draws=draws,
        confidence=confidence,
        scores=scores,
        certificate=certificate,
        bound=bound,
        targets=targets_of(target),
        tolerance=tolerance,
        seconds=seconds,
        selection=selection,
        plan=plan,
        simultaneous=simultaneous,
        shared_noise=shared_noise,
        step=block_draws(x.device),
    )
    seed = checked_seed(seed)
    sensitivity = model.sensitivity
    task.check_draws(probe_labels(model, x), inputs=len(x))
    sampling = task.sampling(seed=seed, noise=model.noise, sensitivity=sensitivity, inputs=len(x))
    done = draw_all(model, x, sampling, progress=progress)
    return certify_scores(
        Scores.of(done, seed=seed, stopped=task.stopped(len(x))),
        noise=model.noise,
        sensitivity=sensitivity,
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
    """Certify from draws that were made before; the network is not needed.

    Draws that were stopped by what they showed keep the bound that was followed, at the
    confidence that was asked for then or a lower one; any anytime bound serves at any confidence.
    Bounds for a fixed number of draws are refused for them.
    """
    way = plan_for(plan, selected=drawn.selected is not None)
    alpha = (1 - open_unit("confidence", confidence)) / (len(drawn.draws) if simultaneous else 1)
    followed = _followed(drawn, scores=scores, bound=bound, alpha=alpha, plan=way)
    if followed is None:
        made = bounds_for(
            drawn.sums_of(scores),
            confidence=confidence,
            method=_method_of(drawn, scores=scores, bound=bound),
            plan=way,
            label=drawn.selected,
            simultaneous=simultaneous,
        )
    else:
        made = _bounds_followed(
            followed, drawn, alpha=alpha, confidence=confidence, simultaneous=simultaneous
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


def _method_of(drawn: Scores, *, scores: str, bound: str | None) -> str:
    if drawn.stopped is None:
        return method_for(scores, bound)
    return stopping_bound(scores, bound, targets=False)


def _followed(
    drawn: Scores, *, scores: str, bound: str | None, alpha: float, plan: str
) -> Stopped | None:
    """Return the bound that stopped the draws, if it is the one that is asked for."""
    stopped = drawn.stopped
    if stopped is None:
        return None
    if plan != "rest":
        raise InvalidArgument(
            f"plan={plan!r} is for a number of draws that was fixed beforehand; these draws were "
            "stopped by what they showed of one label: take plan='rest'"
        )
    fits = stopped.kind == scores and stopped.alpha <= alpha * (1 + 1e-12)
    if bound == PLANNED and not (stopped.bound == PLANNED and fits):
        raise InvalidArgument(
            f"bound='planned' holds for what was planned before the draws: {stopped.kind} scores "
            f"by {stopped.bound!r} at alpha={stopped.alpha:g}, got scores={scores!r} at "
            f"alpha={alpha:g}; take 'beta-binomial' or 'betting', or draw again"
        )
    return stopped if fits and bound in (None, stopped.bound) else None


def _bounds_followed(
    stopped: Stopped, drawn: Scores, *, alpha: float, confidence: float, simultaneous: bool
) -> Bounds:
    """Return what was proved while drawing as bounds on all labels."""
    own = (
        np.arange(drawn.labels)
        == (np.zeros(0) if drawn.selected is None else drawn.selected)[:, None]
    )
    proved = stopped.proved[:, None]
    return Bounds(
        lower=np.where(own, proved, 0.0),
        upper=np.where(own, 1.0, np.nextafter(1 - proved, 1.0)),
        confidence=confidence,
        method=stopped.bound,
        spending=Spending(alpha=alpha, plan="rest", labels=drawn.labels),
        simultaneous=simultaneous,
    )
