"""The arithmetic in which a network is evaluated: a part of what is certified.

A network in bfloat16 is another classifier than the same in float32: near a tie they differ. So
the precision belongs to the model, is recorded with every certificate, and predictions use the
same one. What stands before the noise is always evaluated in full float32, since its sensitivity
is proved for real numbers and bfloat16 rounds by up to 2⁻⁸; the noise is added in float32 too.
What comes behind is post-processing, and may be computed in any way.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

PRECISIONS = ("fp32", "bf16")


@contextmanager
def arithmetic(precision: str, device: torch.device) -> Iterator[None]:
    """Evaluate in that precision, whatever the caller has set.

    ``fp32`` is full float32: neither an outer autocast nor the shortened products of newer
    processors (TF32) apply. ``bf16`` is torch's automatic mixed precision.
    """
    products = torch.get_float32_matmul_precision()
    convolutions = torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions
