from __future__ import annotations

import pytest
import torch
from torch import nn

from pixeldp import Gaussian, PixelDP
from pixeldp.datasets import Dataset
from pixeldp.errors import TrainingDiverged
from pixeldp.training import Recipe, train


def two_clouds() -> Dataset:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(200) % 2
    inputs = torch.randn(200, 2, generator=generator) * 0.2 + labels[:, None] * 2.0
    return Dataset(
        name="clouds",
        train_inputs=inputs,
        train_labels=labels,
        test_inputs=inputs,
        test_labels=labels,
        input_range=(-5.0, 5.0),
        label_names=("0", "1"),
    )


def test_it_learns_under_noise_and_says_how_it_stands() -> None:
    torch.manual_seed(0)
    model = PixelDP(nn.Linear(2, 2), Gaussian(scale=0.3, norm=2))
    epochs = list(train(model, two_clouds(), Recipe(epochs=10)))
    assert [epoch.epoch for epoch in epochs] == list(range(1, 11))
    assert epochs[-1].accuracy > 0.95
    assert epochs[-1].loss < epochs[0].loss
    assert not model.training


def test_a_loss_that_becomes_nan_stops_with_advice() -> None:
    model = PixelDP(nn.Linear(2, 2), Gaussian(scale=0.3, norm=2))
    with torch.no_grad():
        model.network.weight.fill_(torch.nan)  # type: ignore[operator]
    with pytest.raises(TrainingDiverged, match="became nan in epoch 1; take a lower learning rate"):
        list(train(model, two_clouds(), Recipe(epochs=2)))
