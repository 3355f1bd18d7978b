"""The projection of the original after every step of the optimiser (§3.3, Cisse et al. 2017)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Self

import torch
from torch import nn
from torch.nn.utils import parametrize

from pixeldp._checks import open_unit, positive, whole
from pixeldp.constraints.layers import linear_layer
from pixeldp.errors import InvalidArgument, TrainingDiverged

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle


class Parseval:
    """``W ← (1 + β) W − β W Wᵀ W`` after every step: draws the singular values of W towards 1.

    W is the matrix of a dense layer, and for a convolution its kernel as ``[out, in · kh · kw]``,
    one for each group. Each singular value v becomes ``(1 + β) v − β v³``, ``loops`` times a step.
    With ``bound``, they are drawn towards that instead of 1.

    It holds nothing by itself: between steps the optimiser moves the weight, and the norm of a
    convolution is not that of its reshaped kernel. Measure with ``model.sensitivity``.

    >>> network = nn.Sequential(nn.Linear(3, 2))
    >>> optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    >>> handle = Parseval(network, "0", beta=0.05, loops=500).attach(optimizer)
    >>> network(torch.ones(1, 3)).sum().backward()
    >>> optimizer.step()
    >>> [round(value, 4) for value in torch.linalg.svdvals(network[0].weight.detach()).tolist()]
    [1.0, 1.0]
    """

    def __init__(
        self,
        network: nn.Module,
        layer: str,
        *,
        beta: float = 0.0003,
        loops: int = 10,
        bound: float = 1.0,
    ) -> None:
        self._module, self._layer = linear_layer(network, layer), layer
        self._beta = open_unit("beta", beta)  # at 1 and beyond, 1 is no longer approached
        self._loops = whole("loops", loops, least=1)
        self._bound = positive("bound", bound)
        self._weight()

    @classmethod
    def for_attack(
        cls,
        network: nn.Module,
        layer: str,
        *,
        size: float,
        beta: float = 0.0003,
        bound: float = 1.0,
    ) -> Self:
        """Return the projection with the original's number of loops: ``ceil(100 L)``."""
        loops = math.ceil(round(100 * positive("size", size), 9))  # 0.07 means 7
        return cls(network, layer, beta=beta, loops=loops, bound=bound)

    def attach(self, optimizer: torch.optim.Optimizer) -> RemovableHandle:
        """Take a step after each one of the optimiser, until the handle's ``remove`` is called."""
        weight = self._weight()
        if not any(weight is trained for g in optimizer.param_groups for trained in g["params"]):
            raise InvalidArgument(
                f"optimizer must train the weight of layer={self._layer!r}, which is not among its "
                "parameters; attach after the network is on its device and the optimiser is made"
            )
        return optimizer.register_step_post_hook(lambda *_: self.step())

    @torch.no_grad()
    def step(self) -> None:
        """Project the weight, in place."""
        weight = self._weight()
        groups = getattr(self._module, "groups", 1)
        matrix = weight.double().reshape(groups, weight.shape[0] // groups, -1) / self._bound
        if not matrix.isfinite().all():
            raise TrainingDiverged(
                f"the weight of layer={self._layer!r} holds NaN or infinite values, which no "
                "projection mends; lower the learning rate"
            )
        if matrix.shape[1] > matrix.shape[2]:  # the smaller Gram matrix; the step is the same
            projected = self._project(matrix.mT).mT
        else:
            projected = self._project(matrix)
        weight.copy_((projected * self._bound).reshape(weight.shape))

    def _project(self, matrix: torch.Tensor) -> torch.Tensor:
        """Return the matrix after all loops.

        Beyond ``sqrt((2 + β)/β)`` a singular value would grow without end, and from
        ``sqrt((1 + β)/β)`` on it would change its sign; such a matrix is first divided by its norm.
        """
        limit = math.sqrt((1 + self._beta) / self._beta)
        at_most = torch.linalg.matrix_norm(matrix)  # the Frobenius norm, which is never smaller
        if (at_most > limit).any():
            norms = torch.linalg.matrix_norm(matrix, ord=2)
            matrix = matrix / torch.where(norms > limit, norms, 1.0)[:, None, None]
        for _ in range(self._loops):
            matrix = (1 + self._beta) * matrix - self._beta * (matrix @ matrix.mT) @ matrix
        return matrix

    def _weight(self) -> torch.Tensor:
        if parametrize.is_parametrized(self._module, "weight"):
            raise InvalidArgument(
                f"layer={self._layer!r} has a parametrised weight, which a projection cannot set; "
                "either hold it or project it"
            )
        return self._module.weight
