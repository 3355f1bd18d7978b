"""What several test files share."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import nn

from pixeldp import Gaussian, PixelDP

# Two workers on two cores: more threads would only get in each other's way.
torch.set_num_threads(1)

settings.register_profile(
    "default",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture
def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(4 * 36, 3),
    )


@pytest.fixture
def model(network: nn.Module) -> PixelDP:
    return PixelDP(network, Gaussian(scale=0.5, norm=2), after="0", input_shape=(1, 6, 6))
