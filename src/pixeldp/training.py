"""Training with one draw of the noise for each example and step (§3.3)."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch.nn import functional as F  # noqa: N812 - the usual name

from pixeldp.errors import TrainingDiverged

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pixeldp.datasets import Dataset
    from pixeldp.model import PixelDP


class Recipe(BaseModel):
    """Stochastic gradient descent with Nesterov momentum and one cycle of the learning rate."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    epochs: int = Field(default=80, ge=1)
    batch_size: int = Field(default=32, ge=1)
    learning_rate: float = Field(default=0.05, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    weight_decay: float = Field(default=5e-4, ge=0)
    seed: int = Field(default=1, ge=0)


@dataclass(frozen=True)
class Epoch:
    """What one pass over the training data came to; accuracy is under noise, one draw each."""

    epoch: int
    loss: float
    accuracy: float
    learning_rate: float
    seconds: float


def train(model: PixelDP, dataset: Dataset, recipe: Recipe) -> Iterator[Epoch]:
    """Train ``model`` in place, and say after every epoch how it stands."""
    inputs, labels = dataset.train_inputs, dataset.train_labels
    steps = -(-len(inputs) // recipe.batch_size)
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=recipe.learning_rate,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        nesterov=recipe.momentum > 0,
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=recipe.learning_rate, total_steps=recipe.epochs * steps
    )
    model.train()
    for epoch in range(1, recipe.epochs + 1):
        began, total, correct = time.perf_counter(), 0.0, 0
        for batch in torch.split(torch.randperm(len(inputs)), recipe.batch_size):
            logits = model(inputs[batch])
            loss = F.cross_entropy(logits, labels[batch])
            if not math.isfinite(loss.item()):
                raise TrainingDiverged(
                    f"the loss became {loss.item()} in epoch {epoch}; take a lower learning rate "
                    f"than {recipe.learning_rate:g} or less noise than scale={model.noise.scale:g}"
                )
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            rate = schedule.get_last_lr()[0]
            schedule.step()
            total += loss.item() * len(batch)
            correct += int((logits.argmax(1) == labels[batch]).sum())
        yield Epoch(
            epoch=epoch,
            loss=total / len(inputs),
            accuracy=correct / len(inputs),
            learning_rate=float(rate),
            seconds=time.perf_counter() - began,
        )
    model.eval()
