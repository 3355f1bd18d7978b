"""PixelDP: any network with one layer of noise in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from pixeldp._checks import one_of
from pixeldp.errors import InvalidArgument, InvalidInput
from pixeldp.mechanisms import Mechanism
from pixeldp.placements import Behind, Between, Halves, OnInput, Placement
from pixeldp.precisions import PRECISIONS, arithmetic
from pixeldp.sensitivities.tables import Wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pixeldp.mechanisms import Gaussian, Laplace
    from pixeldp.sensitivities.account import Account


# Inputs whose values are looked at together.
_CHECKED_AT_ONCE = 256


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
    front, back:
        Instead of a network: its two parts, given by hand. The front is captured and bounded; the
        back may be any module, also one that cannot be captured, since it sees noisy values only.
    input_shape:
        The shape of one input, without the batch; needed with ``after`` and with ``front``, and for
        ∞-norm attacks on the input, whose bound grows with its size.
    input_range:
        The lowest and the highest value that an input may have, if it is to be checked. A radius
        is always in the units of the input. Needed for 0-norm attacks, where it bounds what one
        changed coordinate can do.
    pixels:
        Whether a 0-norm attack counts pixels, all channels of a place as one change, and not
        single coordinates.
    precision:
        ``fp32``, or ``bf16`` for what stands behind the noise: two to three times as fast where
        the processor has it. It is another classifier, so it is a part of what is certified.

    >>> from pixeldp import Gaussian
    >>> network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
    >>> model = PixelDP(network, Gaussian(scale=0.5, norm=2), after="0", input_shape=(1, 8, 8))
    >>> model(torch.zeros(5, 1, 8, 8)).shape
    torch.Size([5, 10])
    """

    def __init__(
        self,
        network: nn.Module | None = None,
        noise: Gaussian | Laplace | None = None,
        *,
        after: str | None = None,
        front: nn.Module | None = None,
        back: nn.Module | None = None,
        input_shape: Sequence[int] | None = None,
        input_range: tuple[float, float] | None = None,
        pixels: bool = False,
        precision: str = "fp32",
    ) -> None:
        super().__init__()
        if not isinstance(noise, Mechanism):
            raise InvalidArgument(f"noise must be Gaussian(…) or Laplace(…), got noise={noise!r}")
        if (after is not None or front is not None) and input_shape is None:
            raise InvalidArgument(
                f"input_shape must be given with {'after' if front is None else 'front'}, got "
                "input_shape=None; it is the shape of one input without the batch, such as "
                "(3, 32, 32)"
            )
        if input_range is not None and not input_range[0] < input_range[1]:
            raise InvalidArgument(
                f"input_range must be (lowest, highest), got input_range={input_range!r}"
            )
        self.network = _whole(network, front, back, after)
        self.noise = noise
        self.after = after
        self.input_shape = None if input_shape is None else tuple(int(n) for n in input_shape)
        self.input_range = input_range
        self.pixels = pixels
        self.precision = one_of("precision", precision, PRECISIONS)
        self._placement: Placement
        if isinstance(self.network, Halves) and front is not None:
            self._placement = Between(self.network, input_shape or ())
        elif after is not None:
            self._placement = Behind(self.network, after, input_shape or ())
        else:
            self._placement = OnInput(self.network, self.input_shape)
        _ = self.sensitivity  # refuse a front without a bound now, not after training

    @property
    def sensitivity(self) -> float:
        """A proven upper bound on Δ_{p,q} of the front, on today's weights."""
        return self.account().bound

    def account(self) -> Account:
        """Return what is proved of the front on today's weights, step by step."""
        wanted = Wanted(self.noise.norm, self.noise.q, self.input_range, self.pixels)
        return self._placement.account(wanted)

    def explain(self) -> None:
        """Print the front operation by operation, each with its bound, the rule and its source.

        ``account()`` returns the same as data.
        """
        print(self.account())  # noqa: T201 - what it is for

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits under one draw of the noise for each input; trains like any module."""
        return self._placement.noisy(x, self.noise.sample)

    def front(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the noise is added to, as evaluated: once for each input, in float32."""
        with arithmetic("fp32", x.device):
            return self._placement.front(x)

    def back(self, value: torch.Tensor) -> torch.Tensor:
        """Return the logits for noisy values of the front, as evaluated: once for each draw.

        In the model's precision; the logits themselves are never shorter than float32.
        """
        return self._logits(self._placement.back, value)

    def compiled_back(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return the back with today's weights, compiled for batches of one size."""
        compiled = torch.compile(
            self._placement.frozen_back(), dynamic=False, options={"freezing": True}
        )
        return lambda value: self._logits(compiled, value)

    def _logits(
        self, back: Callable[[torch.Tensor], torch.Tensor], value: torch.Tensor
    ) -> torch.Tensor:
        with arithmetic(one_of("precision", self.precision, PRECISIONS), value.device):
            logits = back(value)
        return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits

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
        # A part at a time: what is needed meanwhile does not grow with the inputs.
        for first in range(0, len(x), _CHECKED_AT_ONCE):
            self._check_values(x[first : first + _CHECKED_AT_ONCE], first)

    def _check_values(self, x: torch.Tensor, first: int) -> None:
        finite = torch.isfinite(x)
        if not finite.all():
            row = first + int((~finite.flatten(1)).any(1).nonzero()[0])
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
        like = next((p for p in self.network.parameters() if p.is_floating_point()), None)
        device = x.device if like is None else like.device
        dtype = self._placement.input_dtype() or (None if like is None else like.dtype)
        fits = x.is_floating_point() if dtype is None else x.dtype == dtype
        if not fits or x.device != device:
            raise InvalidInput(
                f"x must hold {dtype or 'floating-point'} numbers on "
                f"{device}, as the network does, got {x.dtype} on {x.device}; convert it "
                "with x.to(…), and scale whole numbers to the range that the network was trained on"
            )

    def extra_repr(self) -> str:
        """Name the noise and its place."""
        return f"noise={self.noise}, after={self.after!r}, precision={self.precision!r}"


def _whole(
    network: nn.Module | None, front: nn.Module | None, back: nn.Module | None, after: str | None
) -> nn.Module:
    """Return the network, or the two parts given by hand as one."""
    by_hand = front is not None or back is not None
    if by_hand and (network is not None or after is not None):
        raise InvalidArgument(
            "give either a network, with after=… for the place of the noise, or front=… and "
            "back=…, not both"
        )
    for name, module in (("front", front), ("back", back)) if by_hand else (("network", network),):
        if not isinstance(module, nn.Module):
            raise InvalidArgument(f"{name} must be a torch.nn.Module, got {type(module).__name__}")
    if front is not None and back is not None:
        return Halves(front, back)
    assert network is not None  # noqa: S101 - checked above
    return network
