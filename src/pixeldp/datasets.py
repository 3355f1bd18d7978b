"""Data to train and to certify on, as tensors in the units in which radii are stated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from pixeldp._checks import one_of
from pixeldp.errors import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Callable

_DIGITS_TEST = 450
_DIGITS_SPLIT_SEED = 0


@dataclass(frozen=True, eq=False)
class Dataset:
    """Inputs ``[N, ...]`` and their labels ``[N]``, split for training and testing."""

    name: str
    train_inputs: torch.Tensor
    train_labels: torch.Tensor
    test_inputs: torch.Tensor
    test_labels: torch.Tensor
    input_range: tuple[float, float]
    label_names: tuple[str, ...]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.train_inputs.shape[1:])


def load_dataset(name: str) -> Dataset:
    """Return the data set of that name.

    ``digits``: 1797 handwritten digits of 8×8 pixels in [0, 1] that ship inside scikit-learn;
    a fixed random quarter of them, 450, is the test split.
    """
    return _DATASETS[one_of("dataset", name, _DATASETS)]()


def _digits() -> Dataset:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingExtra(
            "the digits ship inside scikit-learn, which is not installed; "
            "install it with: pip install 'pixeldp[demo]'"
        ) from error
    pixels, labels = load_digits(return_X_y=True)
    # The file's order goes by writer and by digit: shuffle it, the same way every time.
    order = np.random.default_rng(_DIGITS_SPLIT_SEED).permutation(len(labels))
    inputs = torch.from_numpy((pixels[order] / 16).astype(np.float32).reshape(-1, 1, 8, 8))
    targets = torch.from_numpy(labels[order].astype(np.int64))
    return Dataset(
        name="digits",
        train_inputs=inputs[_DIGITS_TEST:],
        train_labels=targets[_DIGITS_TEST:],
        test_inputs=inputs[:_DIGITS_TEST],
        test_labels=targets[:_DIGITS_TEST],
        input_range=(0.0, 1.0),
        label_names=tuple(str(digit) for digit in range(10)),
    )


_DATASETS: dict[str, Callable[[], Dataset]] = {"digits": _digits}
