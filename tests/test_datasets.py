from __future__ import annotations

import sys

import pytest
import torch

from pixeldp.datasets import load_dataset
from pixeldp.errors import InvalidArgument, MissingExtra


def test_digits_are_split_the_same_way_every_time() -> None:
    first, again = load_dataset("digits"), load_dataset("digits")
    assert first.input_shape == (1, 8, 8)
    assert len(first.test_labels) == 450
    assert len(first.train_labels) == 1797 - 450
    assert torch.equal(first.test_inputs, again.test_inputs)
    for inputs in (first.train_inputs, first.test_inputs):
        assert float(inputs.min()) == 0.0
        assert float(inputs.max()) == 1.0
    # Every digit is there often enough in both parts.
    assert int(torch.bincount(first.test_labels).min()) >= 30
    assert first.label_names == tuple("0123456789")


def test_no_test_image_is_trained_on() -> None:
    digits = load_dataset("digits")
    train = {image.numpy().tobytes() for image in digits.train_inputs}
    assert not any(image.numpy().tobytes() in train for image in digits.test_inputs)


def test_unknown_names_and_missing_parts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgument, match="dataset must be one of 'digits', got"):
        load_dataset("digitz")
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingExtra, match=r"pip install 'pixeldp\[demo\]'"):
        load_dataset("digits")
