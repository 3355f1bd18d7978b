"""Weights that are divided when they are used, so that a layer never exceeds its sensitivity.

Each way is a parametrisation: any training loop works untouched, and gradients flow through the
division. The optimiser moves the undivided weight.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.utils import parametrize

from pixeldp._checks import one_of, positive
from pixeldp.constraints.layers import as_kernel, convolution_of, input_of, linear_layer
from pixeldp.errors import InvalidArgument
from pixeldp.sensitivities.geometry import Convolution
from pixeldp.sensitivities.operators import convolution_norm, dense_norm

if TYPE_CHECKING:
    from collections.abc import Sequence

# The quotient is rounded to the weight's own precision: aim this much lower, in units of it and
# at least by 2^-20, so that it never ends above the bound.
_ROUNDINGS, _LEAST_MARGIN = 8, 2.0**-20

# A norm below this counts as 0: squares of what it is made of would lose their digits.
_NOTHING = 1e-140

_PAIRS_OF_WAY = {
    "norm": None,  # whatever the norm is known for
    "columns": ((1, 1), (1, 2)),
    "rows": ((math.inf, math.inf),),
}


def hold_sensitivity(
    network: nn.Module,
    layer: str,
    input_shape: Sequence[int],
    *,
    p: float,
    q: float,
    bound: float = 1.0,
    way: str = "norm",
) -> None:
    """Hold Δ_{p,q} of a dense or convolution layer of ``network`` at ``bound``, from now on.

    ``way="norm"`` divides the whole weight by its norm. ``way="columns"`` divides every column by
    its own, for (1, 1) and (1, 2), and ``way="rows"`` every row, for (∞, ∞): then all of them have
    the norm ``bound``, where the first way leaves the smaller ones smaller.

    ``input_shape`` is the shape of one input to the network: the norm of a convolution depends on
    the size of its image. What is 0 stays 0.

    >>> network = nn.Sequential(nn.Linear(3, 2))
    >>> hold_sensitivity(network, "0", (3,), p=1, q=1, way="columns")
    >>> [round(norm, 4) for norm in network[0].weight.abs().sum(dim=0).tolist()]
    [1.0, 1.0, 1.0]
    """
    module = linear_layer(network, layer)
    pairs = _PAIRS_OF_WAY[one_of("way", way, _PAIRS_OF_WAY)]
    if pairs is not None and (p, q) not in pairs:
        listed = " or ".join(f"p={a:g}, q={b:g}" for a, b in pairs)
        raise InvalidArgument(f"way={way!r} holds {listed}, got p={p:g}, q={q:g}; use way='norm'")
    entering = input_of(network, layer, module, input_shape)
    convolution, vectors = None, 1
    if isinstance(module, nn.Linear):
        vectors = math.prod(entering[:-1])
    else:
        convolution = convolution_of(module, entering[1:])
    held: nn.Module
    if way == "columns":
        held = HeldColumns(convolution, q=int(q), bound=bound)
    elif way == "rows":
        held = HeldRows(bound=bound)
    else:
        held = HeldNorm(convolution, p=p, q=q, bound=bound, vectors=vectors)
    parametrize.register_parametrization(module, "weight", held)


class HeldNorm(nn.Module):
    """A weight divided by its norm and multiplied by the bound: a parametrisation.

    A dense layer may be applied to several ``vectors`` of an input, which are then one vector.
    """

    def __init__(
        self,
        convolution: Convolution | None,
        *,
        p: float,
        q: float,
        bound: float,
        vectors: int = 1,
    ) -> None:
        super().__init__()
        self._convolution, self._p, self._q = convolution, p, q
        self._bound = positive("bound", bound)
        # All of them can be as far off as one in the ∞-norm, and add up in the others.
        self._times = vectors ** (1 / q) if p == math.inf else 1.0

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the weight with the norm ``bound``."""
        double = weight.double()
        wanted = double
        if (self._p, self._q) == (1, 2):  # a root, which has no derivative at 0
            wanted = torch.where((double == 0).all(), torch.ones_like(double), double)
        if self._convolution is None:
            norm = dense_norm(wanted, p=self._p, q=self._q) * self._times
        else:
            norm = convolution_norm(as_kernel(wanted), self._convolution, p=self._p, q=self._q)
        return _divided(double, norm, bound=self._bound, like=weight)

    def right_inverse(self, weight: torch.Tensor) -> torch.Tensor:
        """Accept any weight: it is divided when it is used."""
        return weight


class HeldColumns(nn.Module):
    """A weight whose columns are divided each by its own q-norm: a parametrisation.

    A column is what one coordinate of the input reaches. For a convolution with stride s these are
    the taps t with ``t · dilation ≡ phase (mod s)`` along each axis, over all output channels of
    the group; there is one column for each input channel and phase.
    """

    def __init__(self, convolution: Convolution | None, *, q: int, bound: float) -> None:
        super().__init__()
        self._convolution, self._q = convolution or Convolution(image=(1, 1)), q
        self._bound = positive("bound", bound)

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the weight with columns of norm ``bound``."""
        kernel = as_kernel(weight).double()
        kernel = kernel.reshape(self._convolution.groups, -1, *kernel.shape[1:])
        powers = kernel.abs() if self._q == 1 else kernel.square()
        sums = self._together(0, kernel) @ powers.sum(dim=1) @ self._together(1, kernel)
        sums = torch.where(sums <= _NOTHING**self._q, 1.0, sums)
        norms = sums if self._q == 1 else sums.sqrt()
        return _divided(kernel, norms[:, None], bound=self._bound, like=weight)

    def _together(self, axis: int, kernel: torch.Tensor) -> torch.Tensor:
        """Return the 0-1 matrix that says which taps of an axis lie in the same columns."""
        taps = torch.arange(kernel.shape[3 + axis], device=kernel.device)
        phases = taps * self._convolution.dilation[axis] % self._convolution.stride[axis]
        return (phases[:, None] == phases[None, :]).to(kernel.dtype)

    def right_inverse(self, weight: torch.Tensor) -> torch.Tensor:
        """Accept any weight: it is divided when it is used."""
        return weight


class HeldRows(nn.Module):
    """A weight whose rows are divided each by its own 1-norm: a parametrisation.

    A row is what one coordinate of the output sees; a convolution has one for each output channel.
    """

    def __init__(self, *, bound: float) -> None:
        super().__init__()
        self._bound = positive("bound", bound)

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the weight with rows of norm ``bound``."""
        rows = weight.double().flatten(1)
        return _divided(rows, rows.abs().sum(dim=1, keepdim=True), bound=self._bound, like=weight)

    def right_inverse(self, weight: torch.Tensor) -> torch.Tensor:
        """Accept any weight: it is divided when it is used."""
        return weight


def _divided(
    weight: torch.Tensor, norms: torch.Tensor, *, bound: float, like: torch.Tensor
) -> torch.Tensor:
    """Return ``weight · bound / norms``, a little less for the rounding; 0 stays 0, NaN NaN."""
    margin = max(_ROUNDINGS * torch.finfo(like.dtype).eps, _LEAST_MARGIN)
    norms = torch.where(norms <= _NOTHING, 1.0, norms)
    return (weight * (bound * (1 - margin) / norms)).reshape(like.shape).to(like.dtype)
