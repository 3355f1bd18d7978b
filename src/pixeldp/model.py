"""PixelDP: any network with one layer of noise in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from pixeldp.errors import InvalidArgument, InvalidInput
from pixeldp.graphs import evaluating
from pixeldp.mechanisms import Mechanism
from pixeldp.sensitivities import front_sensitivity
from pixeldp.sensitivities.operators import check_pair
from pixeldp.sensitivities.rules import identity
from pixeldp.tracing import Cut, cut

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pixeldp.mechanisms import Gaussian, Laplace


class PixelDP(nn.Module):
    """A network with noise at one place: ``A(x) = back(front(x) + Z)``.

    Parameters
    ----------
    network:
        Any module that maps a batch of inputs to one row of logits for each. It is not changed,
        and its weights are shared, not copied.
    noise:
        ``Gaussian`` or ``Laplace``; it also states the norm of the attack.
    after:
        The name of the layer behind which the noise is added, as in ``network.named_modules()``;
        None for noise on the input itself. It is proved that no path walks around the noise.
    input_shape:
        The shape of one input, without the batch; needed with ``after``.
    input_range:
        The lowest and the highest value that an input may have, if it is to be checked. A radius
        is always in the units of the input.

    >>> from pixeldp import Gaussian
    >>> network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
    >>> model = PixelDP(network, Gaussian(scale=0.5, norm=2), after="0", input_shape=(1, 8, 8))
    >>> model(torch.zeros(5, 1, 8, 8)).shape
    torch.Size([5, 10])
    """

    def __init__(
        self,
        network: nn.Module,
        noise: Gaussian | Laplace,
        *,
        after: str | None = None,
        input_shape: Sequence[int] | None = None,
        input_range: tuple[float, float] | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(network, nn.Module):
            raise InvalidArgument(
                f"network must be a torch.nn.Module, got {type(network).__name__}"
            )
        if not isinstance(noise, Mechanism):
            raise InvalidArgument(f"noise must be Gaussian(…) or Laplace(…), got noise={noise!r}")
        if after is not None and input_shape is None:
            raise InvalidArgument(
                "input_shape must be given with after, got input_shape=None; it is the shape of "
                "one input without the batch, such as (3, 32, 32)"
            )
        if input_range is not None and not input_range[0] < input_range[1]:
            raise InvalidArgument(
                f"input_range must be (lowest, highest), got input_range={input_range!r}"
            )
        self.network = network
        self.noise = noise
        self.after = after
        self.input_shape = None if input_shape is None else tuple(int(n) for n in input_shape)
        self.input_range = input_range
        self._cut: Cut | None = None
        self._cut_for: object = None
        if after is not None:
            self._current_cut()
        _ = self.sensitivity  # refuse a front without a bound now, not after training

    @property
    def sensitivity(self) -> float:
        """A proven upper bound on Δ_{p,q} of the front, on today's weights."""
        p, q = self.noise.norm, self.noise.q
        check_pair(p, q)
        if self.after is None:
            return identity()[int(p), q]
        current = self._current_cut()
        return front_sensitivity(current.graph, self.network, current.at, p=p, q=q)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits under one draw of the noise for each input; trains like any module."""
        if self.after is None:
            noisy: torch.Tensor = self.network(x + self.noise.sample(x))
            return noisy
        layer = self.network.get_submodule(self.after)
        with layer.register_forward_hook(
            lambda _module, _inputs, output: output + self.noise.sample(output)
        ):
            logits: torch.Tensor = self.network(x)
        return logits

    def front(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the noise is added to, as evaluated: once for each input."""
        if self.after is None:
            return x
        return self._current_cut().front(x)

    def back(self, value: torch.Tensor) -> torch.Tensor:
        """Return the logits for noisy values of the front, as evaluated: once for each draw."""
        if self.after is None:
            with evaluating(self.network):
                logits: torch.Tensor = self.network(value)
                return logits
        return self._current_cut().back(value)

    def check_inputs(self, x: torch.Tensor) -> None:
        """Refuse a batch that is empty, of the wrong shape, not finite, or out of range."""
        self._check_tensor(x)
        shape = tuple(x.shape[1:])
        if x.dim() == 0 or x.shape[0] == 0:
            raise InvalidInput(
                f"x must be a batch of at least one input, got shape {tuple(x.shape)}"
            )
        if self.input_shape is not None and shape != self.input_shape:
            raise InvalidInput(
                f"x must have shape (batch, {', '.join(map(str, self.input_shape))}), "
                f"got {tuple(x.shape)}"
            )
        if not torch.isfinite(x).all():
            row = int((~torch.isfinite(x.flatten(1))).any(1).nonzero()[0])
            raise InvalidInput(f"x must be finite, got NaN or infinity in input {row}")
        if self.input_range is not None:
            low, high = self.input_range
            least, most = float(x.min()), float(x.max())
            if least < low or most > high:
                raise InvalidInput(
                    f"x must lie in [{low:g}, {high:g}], got values from {least:g} to {most:g}; "
                    "radii are in these units, so rescale the input rather than the range"
                )

    def _check_tensor(self, x: torch.Tensor) -> None:
        if not isinstance(x, torch.Tensor):
            raise InvalidInput(
                f"x must be a torch.Tensor, got {type(x).__name__}; see torch.as_tensor"
            )
        like = next((p for p in self.network.parameters() if p.is_floating_point()), x)
        if not x.is_floating_point() or x.dtype != like.dtype or x.device != like.device:
            raise InvalidInput(
                f"x must hold {like.dtype if like is not x else 'floating-point'} numbers on "
                f"{like.device}, as the network does, got {x.dtype} on {x.device}; convert it "
                "with x.to(…), and scale whole numbers to the range that the network was trained on"
            )

    def extra_repr(self) -> str:
        """Name the noise and its place."""
        return f"noise={self.noise}, after={self.after!r}"

    def __getstate__(self) -> dict[str, Any]:
        """Leave the captured graph out of copies: a copy captures its own network again."""
        return {**self.__dict__, "_cut": None, "_cut_for": None}

    def _current_cut(self) -> Cut:
        """Return the cut for the network as it is now: captured again when its weights are others.

        Other names, types, devices or shapes, that is; their values are looked up at every use.
        """
        if self.after is None or self.input_shape is None:
            raise InvalidArgument("noise on the input needs no cut")
        held = [*self.network.named_parameters(), *self.network.named_buffers()]
        kind = [(name, tensor.dtype, tensor.device, tensor.shape) for name, tensor in held]
        if self._cut is None or self._cut_for != kind:
            self._cut = cut(self.network, self.after, self.input_shape)
            self._cut_for = kind
        return self._cut
