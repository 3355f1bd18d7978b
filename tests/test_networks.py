from __future__ import annotations

import pytest
import torch

from pixeldp.errors import InvalidArgument
from pixeldp.networks import build_network


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 7, 5), (1, 28, 28)])
def test_small_cnn_takes_any_image(shape: tuple[int, ...]) -> None:
    network = build_network("small-cnn", input_shape=shape, labels=4)
    assert network(torch.rand(2, *shape)).shape == (2, 4)


def test_unknown_names_and_shapes_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="network must be one of 'small-cnn'"):
        build_network("cnn", input_shape=(1, 8, 8), labels=4)
    with pytest.raises(InvalidArgument, match=r"got \(64,\)"):
        build_network("small-cnn", input_shape=(64,), labels=4)
