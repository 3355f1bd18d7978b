"""The gallery: networks from elsewhere, and where noise may stand in them and where not.

Every network has random weights and, where it normalises batches, random running statistics, so
that nothing is downloaded and nothing is at its default. ``tests/test_gallery.py`` holds on small
inputs what is said here; this command measures it on inputs of the size that each network was
made for, and turns what it kept into the table of ``docs/gallery.md``.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import OrderedDict
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from pixeldp import Gaussian, Laplace, PixelDP
from pixeldp._torchvision import import_torchvision
from pixeldp.errors import NetworkError, NoiseBypassed, UnknownLayer, UnsupportedLayer
from pixeldp.records import record

if TYPE_CHECKING:
    from collections.abc import Callable

Shape = tuple[int, ...]

SEED = 1
NOISES = (Gaussian(scale=0.5, norm=2), Laplace(scale=0.5, norm=1))

# Of the search for two inputs whose values behind the front lie far apart: pairs, steps, distance.
_PAIRS, _STEPS, _APART = 4, 8, 0.1


@dataclass(frozen=True)
class Network:
    """How a network is built for inputs of a shape; the shape it was made for, and a small one."""

    build: Callable[[Shape], nn.Module]
    shape: Shape
    small: Shape


@dataclass(frozen=True)
class Placement:
    """Noise behind a layer of a network; if it is to be refused, how, and what must be named."""

    network: str
    after: str
    refused: type[NetworkError] | None = None
    naming: str = ""
    quick: bool = True  # whether the tests hold it, too, and not another of the same kind


def build(name: str, shape: Shape) -> nn.Module:
    """Return a network of the gallery for evaluation, the same one every time."""
    torch.manual_seed(SEED)
    network = NETWORKS[name].build(shape).eval()
    if norms := [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]:
        _give_statistics(network, norms, torch.rand(8, *shape))
    return network


@torch.no_grad()
def _give_statistics(network: nn.Module, norms: list[nn.BatchNorm2d], x: torch.Tensor) -> None:
    """Set running statistics near those of random inputs, so that these still matter at the end."""
    for norm in norms:
        norm.momentum = 1.0
        norm.train()
    network(x)
    for norm in norms:
        norm.momentum = 0.1
        norm.eval()
        mean, variance = norm.get_buffer("running_mean"), norm.get_buffer("running_var")
        mean += 0.3 * variance.sqrt() * torch.randn(mean.shape)
        variance *= 0.5 + 1.5 * torch.rand(variance.shape)
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.normal_(norm.bias, std=0.1)


def zoo(name: str, **options: Any) -> Callable[[Shape], nn.Module]:  # noqa: ANN401 - torchvision's
    """Return what builds a network of torchvision, without its weights."""

    def built(_shape: Shape) -> nn.Module:
        network: nn.Module = getattr(import_torchvision().models, name)(weights=None, **options)
        return network

    return built


def vision_transformer(shape: Shape) -> nn.Module:
    """Return torchvision's ViT-B/16, whose last layer starts at zero: give it weights, too."""
    network: Any = zoo("vit_b_16", image_size=shape[-1])(shape)
    nn.init.normal_(network.heads.head.weight, std=0.05)
    nn.init.normal_(network.class_token)
    transformer: nn.Module = network
    return transformer


class Normalize(nn.Module):
    """Affine normalisation of the channels, as most networks for photographs expect it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).reshape(3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).reshape(3, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``(x − mean) / std``, channel by channel."""
        mean, std = self.get_buffer("mean"), self.get_buffer("std")
        return (x - mean) / std


class UsedTwice(nn.Module):
    """A network that calls its first layer twice, with something in between."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(20, 20)
        self.output = nn.Linear(20, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        logits: torch.Tensor = self.output(self.shared(self.shared(x).relu()).relu())
        return logits


def named(**layers: nn.Module) -> nn.Sequential:
    """Return a chain of layers with names."""
    return nn.Sequential(OrderedDict(layers))


def autoencoder() -> nn.Sequential:
    """Return a small convolutional autoencoder for photographs (§3.2, option 4)."""
    layers = named(
        conv1=nn.Conv2d(3, 16, 8, stride=2, padding=3),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(16, 32, 4, stride=2, padding=1),
        relu2=nn.ReLU(),
        deconv2=nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1),
        relu3=nn.ReLU(),
        deconv1=nn.ConvTranspose2d(16, 3, 4, stride=2, padding=1),
        image=nn.Sigmoid(),
    )
    for module in layers:
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.kaiming_normal_(module.weight)  # torch's default leaves little of the image
    return layers


def convolutional(_shape: Shape) -> nn.Module:
    """Return a plain CNN for images of 3 × 32 × 32."""
    return named(
        conv1=nn.Conv2d(3, 16, 5, stride=2, padding=2),
        norm1=nn.BatchNorm2d(16),
        relu1=nn.ReLU(inplace=True),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(16, 32, 3, padding=1),
        relu2=nn.ReLU(inplace=True),
        pool2=nn.AvgPool2d(2),
        flatten=nn.Flatten(),
        dropout=nn.Dropout(0.5),
        output=nn.Linear(512, 10),
    )


def perceptron(shape: Shape) -> nn.Module:
    """Return an MLP over flattened images."""
    return named(
        flatten=nn.Flatten(),
        dense1=nn.Linear(shape[0] * shape[1] * shape[2], 64),
        relu1=nn.ReLU(),
        dense2=nn.Linear(64, 64),
        act2=nn.Tanh(),
        norm2=nn.LayerNorm(64),
        output=nn.Linear(64, 10),
    )


def text_classifier(shape: Shape) -> nn.Module:
    """Return a classifier of texts, given as the count of each word of a vocabulary."""
    return named(
        hidden=nn.Linear(shape[0], 64),
        relu=nn.ReLU(),
        output=nn.Linear(64, 2),
        probabilities=nn.Softmax(dim=1),
    )


def behind(first: Callable[[], nn.Module]) -> Callable[[Shape], nn.Module]:
    """Return what builds a small dense network behind a first layer."""
    return lambda _shape: named(first=first(), dense=nn.Linear(20, 20), output=nn.Linear(20, 5))


_PHOTO, _SMALL = (3, 224, 224), (3, 64, 64)

NETWORKS = {
    "resnet18": Network(zoo("resnet18"), _PHOTO, _SMALL),
    "Normalize, resnet18": Network(
        lambda shape: named(normalize=Normalize(), classifier=zoo("resnet18")(shape)),
        _PHOTO,
        _SMALL,
    ),
    "autoencoder, resnet18": Network(
        lambda shape: named(autoencoder=autoencoder(), classifier=zoo("resnet18")(shape)),
        _PHOTO,
        _SMALL,
    ),
    "wide_resnet50_2": Network(zoo("wide_resnet50_2"), _PHOTO, _SMALL),
    "inception_v3": Network(
        zoo("inception_v3", init_weights=False, aux_logits=True), (3, 299, 299), (3, 75, 75)
    ),
    "inception_v3, transform_input": Network(
        zoo("inception_v3", init_weights=False, transform_input=True), (3, 299, 299), (3, 75, 75)
    ),
    "mobilenet_v2": Network(zoo("mobilenet_v2"), _PHOTO, _SMALL),
    "vit_b_16": Network(vision_transformer, _PHOTO, (3, 32, 32)),
    "CNN": Network(convolutional, (3, 32, 32), (3, 32, 32)),
    "MLP": Network(perceptron, (1, 28, 28), (1, 8, 8)),
    "word counts": Network(text_classifier, (400,), (400,)),
    "a layer used twice": Network(lambda _shape: UsedTwice(), (20,), (20,)),
    "LayerNorm first": Network(behind(lambda: nn.LayerNorm(20)), (20,), (20,)),
    "softmax first": Network(behind(lambda: nn.Softmax(dim=1)), (20,), (20,)),
}

PLACEMENTS = (
    Placement("resnet18", "conv1"),
    Placement("resnet18", "bn1"),
    Placement("resnet18", "maxpool"),
    Placement("resnet18", "layer1"),
    Placement("resnet18", "layer1.0.conv1", NoiseBypassed, r"add\S* in 'layer1\.0'"),
    Placement("Normalize, resnet18", "classifier.conv1"),
    Placement("autoencoder, resnet18", "autoencoder.conv1"),
    Placement("wide_resnet50_2", "maxpool"),
    Placement(
        "wide_resnet50_2", "layer1.0.bn3", NoiseBypassed, r"add\S* in 'layer1\.0'", quick=False
    ),
    Placement("inception_v3", "Conv2d_1a_3x3", quick=False),
    Placement("inception_v3", "maxpool2"),
    Placement("inception_v3", "Mixed_5b"),
    Placement("inception_v3", "Mixed_5b.branch1x1.conv", NoiseBypassed, r"cat\S* in 'Mixed_5b"),
    Placement("inception_v3, transform_input", "Conv2d_1a_3x3.conv"),
    Placement("mobilenet_v2", "features.0", quick=False),
    Placement("mobilenet_v2", "features.3"),
    Placement("mobilenet_v2", "features.3.conv.0", NoiseBypassed, r"add\S* in 'features\.3'"),
    Placement("vit_b_16", "conv_proj"),
    Placement(
        "vit_b_16",
        "encoder.layers.encoder_layer_0.ln_1",
        NoiseBypassed,
        r"add\S* in 'encoder\.layers\.encoder_layer_0'",
    ),
    Placement("CNN", "conv1"),
    Placement("CNN", "pool1"),
    Placement("CNN", "pool2"),
    Placement("CNN", "output", UnsupportedLayer, "dropout 'dropout' stands before the noise"),
    Placement("MLP", "dense1"),
    Placement("MLP", "act2"),
    Placement("MLP", "norm2", UnsupportedLayer, r"layer_norm\S* in 'norm2'"),
    Placement("word counts", "hidden"),
    Placement("word counts", "probabilities", UnsupportedLayer, r"softmax\S* in 'probabilities'"),
    Placement("a layer used twice", "shared", UnknownLayer, "'shared' hands 2 values"),
    Placement("LayerNorm first", "dense", UnsupportedLayer, r"layer_norm\S* in 'first'"),
    Placement("softmax first", "dense", UnsupportedLayer, r"softmax\S* in 'first'"),
)


def largest_found(model: PixelDP, shape: Shape, *, starts: int = _PAIRS) -> float:
    """Search two inputs whose values behind the front lie as far apart as a sensitivity allows.

    Each step moves the second input to where the gradient of ``‖g(x′) − g(x)‖_q`` points, on the
    sphere of the p-norm around the first: for a linear front and p = q = 2 this is a power
    iteration, for p = 1 the ascent from corner to corner.
    """
    generator = torch.Generator().manual_seed(SEED)
    x = torch.rand(starts, *shape, generator=generator)
    moved = _on_sphere(torch.randn(x.shape, generator=generator), p=model.noise.norm)
    with torch.no_grad():
        at = model.front(x)
    found = 0.0
    for _ in range(_STEPS):
        moved = moved.detach().requires_grad_()
        apart = (model.front(x + moved) - at).flatten(1).norm(p=model.noise.q, dim=1)
        found = max(found, float(apart.detach().amax()) / _APART)
        (uphill,) = torch.autograd.grad(apart.sum(), moved)
        moved = _on_sphere(uphill, p=model.noise.norm)
    return found


def _on_sphere(direction: torch.Tensor, *, p: float) -> torch.Tensor:
    """Return, of all changes of p-norm ``_APART``, the one that goes furthest in a direction."""
    flat = direction.flatten(1)
    if p == 1:
        corner = torch.zeros_like(flat)
        largest = flat.abs().argmax(dim=1, keepdim=True)
        flat = corner.scatter(1, largest, flat.gather(1, largest).sign())
    else:
        flat = nn.functional.normalize(flat, dim=1)
    return (_APART * flat).reshape(direction.shape)


def measure(placement: Placement, shape: Shape) -> dict[str, Any]:
    """Return one row of the table: the sensitivities with the largest ratio found, or why not.

    The seconds are the processor's for wrapping: the capture, the proof that nothing walks around
    the noise, and, where it is accepted, the first bound.
    """
    row: dict[str, Any] = {
        "network": placement.network,
        "inputs": list(shape),
        "after": placement.after,
    }
    network = build(placement.network, shape)
    began = time.process_time()
    try:
        model = PixelDP(network, NOISES[0], after=placement.after, input_shape=shape)
    except NetworkError as error:
        refusal = {"accepted": False, "error": type(error).__name__, "message": str(error)}
        return {**row, **refusal, "seconds": _since(began)}
    row |= {"accepted": True, "seconds": _since(began)}
    for noise in NOISES:
        model.noise = noise  # the cut is the same for every noise
        pair = f"({noise.norm:g}, {noise.q})"
        row |= {pair: model.sensitivity, f"found {pair}": largest_found(model, shape)}
    return row


def _since(began: float) -> float:
    return round(time.process_time() - began, 1)


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as the tables of the page: what is accepted, and what is refused."""
    lines = [
        "| network | input | noise after | Δ₂,₂ | found | Δ₁,₁ | found | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in (row for row in rows if row["accepted"]):
        cells = [*_place(row)]
        for pair in ("(2, 2)", "(1, 1)"):
            cells += [_three(row[pair], ROUND_CEILING), _three(row[f"found {pair}"], ROUND_FLOOR)]
        lines.append(f"| {' | '.join(cells)} | {row['seconds']} |")
    lines += [
        "",
        "| network | noise after | refused with | in its own words |",
        "|---|---|---|---|",
    ]
    for row in (row for row in rows if not row["accepted"]):
        network, _, after = _place(row)
        words = row["message"].replace("<", "&lt;").replace(">", "&gt;").replace("|", "\\|")
        lines.append(f"| {network} | {after} | `{row['error']}` | {words} |")
    return "\n".join(lines)


def _three(number: float, rounding: str) -> str:
    """Return three digits, rounded up for a bound and down for what was found."""
    rounded = float(Context(prec=3, rounding=rounding).create_decimal(number))
    return f"{rounded:.0f}" if 100 <= rounded < 100_000 else f"{rounded:#.3g}"


def _place(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["network"], " × ".join(map(str, row["inputs"])), f"`{row['after']}`"


def main() -> None:
    """Measure every placement at full size, or print the tables of a kept result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", type=Path, help="a kept result to print as the page's tables")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(options.table.read_text(encoding="utf-8"))["numbers"]["rows"]))
        return
    torch.set_num_threads(1)
    measure(Placement("CNN", "conv1"), NETWORKS["CNN"].shape)  # the first capture warms up
    numbers = {
        "torchvision": import_torchvision().__version__,
        "rows": [measure(placement, NETWORKS[placement.network].shape) for placement in PLACEMENTS],
    }
    print(record(command="python benchmarks/gallery.py", seed=SEED, numbers=numbers), end="")


if __name__ == "__main__":
    main()
