"""A run: the folder that holds a trained model, its draws and its certificates.

::

    config.json        everything needed to rebuild the network, with a version
    model.safetensors  its weights
    train.jsonl        one line an epoch
    scores/            sums over draws for each input, from which anything is certified again;
                       ``drawing`` tells what else lies there while they are made
    certificates.json  how the certificates were made
    certificates.tsv   the certificates, one line an input
    report.html, plots/

Nothing in it is a pickle. A file appears under its name only when it is whole; ``config.json`` is
written last, with the digest of the weights, so a folder without it was not finished.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import numpy as np
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_serializer

from pixeldp import files
from pixeldp._version import __version__
from pixeldp.constraints import hold_sensitivity
from pixeldp.errors import (
    InvalidArgument,
    NotARun,
    PixelDPError,
    RunCorrupt,
    RunExists,
    RunIncomplete,
    RunMissing,
    RunTooNew,
)
from pixeldp.mechanisms import MECHANISMS, Gaussian, Laplace
from pixeldp.model import PixelDP
from pixeldp.networks import build_network
from pixeldp.scores import Scores, Stopped
from pixeldp.training import Recipe

if TYPE_CHECKING:
    import os

Model = TypeVar("Model", bound=BaseModel)

FORMAT_VERSION = 1

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
TRAINING_LOG = "train.jsonl"
SCORES = "scores/test.safetensors"
CERTIFICATES = "certificates.tsv"
SETTINGS = "certificates.json"
PLAN = "scores/plan.json"
LOCK = "scores/lock"
REPORT = "report.html"
CURVE = "plots/certified_accuracy.png"
_SCORE_ARRAYS = ("counts", "sums", "squares", "draws", "seconds", "sketch", "selected")
_OWN_FILES = (CONFIG, WEIGHTS, TRAINING_LOG, SCORES, CERTIFICATES, SETTINGS, PLAN, REPORT, CURVE)


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class NoiseConfig(_Record):
    """The noise layer: what is drawn, and where it is added."""

    mechanism: Literal["gaussian", "laplace"]
    scale: float
    norm: Annotated[float, Field(allow_inf_nan=True)]
    after: str | None

    @field_serializer("norm", when_used="json")
    def _norm_as_text(self, norm: float) -> float | str:
        """JSON has no infinity: the ∞-norm is written as the word that is read back."""
        return "inf" if math.isinf(norm) else norm

    def build(self) -> Gaussian | Laplace:
        """Return the mechanism."""
        return MECHANISMS[self.mechanism](scale=self.scale, norm=self.norm)


class RunConfig(_Record):
    """Everything needed to rebuild the model of a run."""

    format: Literal["pixeldp-run"] = "pixeldp-run"
    version: int = FORMAT_VERSION
    dataset: str
    network: str
    input_shape: tuple[int, ...]
    input_range: tuple[float, float]
    label_names: tuple[str, ...]
    noise: NoiseConfig
    held_sensitivity: float | None
    recipe: Recipe
    weights_sha256: str = ""
    versions: dict[str, str] = {}

    def build(self) -> PixelDP:
        """Return the model with fresh weights, its layer before the noise held as configured."""
        network = build_network(
            self.network, input_shape=self.input_shape, labels=len(self.label_names)
        )
        noise = self.noise.build()
        if self.held_sensitivity is not None:
            if self.noise.after is None:
                raise InvalidArgument("held_sensitivity is for noise after a layer, not the input")
            hold_sensitivity(
                network,
                self.noise.after,
                self.input_shape,
                # A changed coordinate is a change in the 1-norm, as large as the input's range.
                p=1 if noise.norm == 0 else noise.norm,
                q=noise.q,
                bound=self.held_sensitivity,
            )
        return PixelDP(
            network,
            noise,
            after=self.noise.after,
            input_shape=self.input_shape,
            input_range=self.input_range,
        )


class CertificationSettings(_Record):
    """How the certificates of a run were made from its scores."""

    confidence: float
    scores: str
    certificate: str
    bound: str
    plan: str = "union"
    selection: int = 0
    simultaneous: bool = False
    sensitivity: float
    images: int
    draws: int
    seed: int
    targets: tuple[float, ...] = ()
    tolerance: float | None = None
    seconds: float | None = None
    shared_noise: bool = False
    precision: str = "fp32"
    device: str = "cpu"


def load(folder: str | os.PathLike[str]) -> PixelDP:
    """Return the model of a run folder, in evaluation mode, ready to certify.

    Raises
    ------
    RunError
        Its subclass says what is wrong: missing, half written, from a newer version, not a run.
    """
    config, path = read_config(folder), Path(folder) / WEIGHTS
    if not path.is_file():
        raise RunIncomplete(f"the run {str(folder)!r} has no {WEIGHTS}; train it again")
    content = files.read(path)
    if hashlib.sha256(content).hexdigest() != config.weights_sha256:
        raise RunCorrupt(
            f"{str(path)!r} is damaged or belongs to another run: its digest is not the one in "
            f"{CONFIG}; restore the folder or train it again"
        )
    try:
        model = config.build()
    except PixelDPError as error:
        raise RunCorrupt(f"{str(path.with_name(CONFIG))!r} cannot be built: {error}") from error
    try:
        model.network.load_state_dict(safetensors.torch.load(content))
    except (RuntimeError, safetensors.SafetensorError) as error:
        raise RunCorrupt(f"the weights in {str(path)!r} do not fit the network: {error}") from error
    return model.eval()


def read_config(folder: str | os.PathLike[str]) -> RunConfig:
    """Return the configuration of a run folder, or say what is wrong with the folder."""
    root = Path(folder)
    if not root.exists():
        raise RunMissing(f"there is no run folder {str(folder)!r}; make one with: pixeldp train")
    if not root.is_dir():
        raise NotARun(f"{str(folder)!r} is a file, not a run folder")
    path = root / CONFIG
    if not path.exists():
        if any((root / name).exists() for name in _OWN_FILES):
            raise RunIncomplete(
                f"the run {str(folder)!r} is half written: it has no {CONFIG}, which comes last; "
                "train it again with --overwrite"
            )
        raise NotARun(f"{str(folder)!r} is not a run folder: it has no {CONFIG}")
    data = files.json_object(path)
    if data.get("format") != "pixeldp-run":
        raise NotARun(f"{str(path)!r} is not the configuration of a run")
    version = data.get("version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise RunTooNew(
            f"{str(folder)!r} was written in run format {version}, but this pixeldp {__version__} "
            f"reads up to {FORMAT_VERSION}; install a newer pixeldp"
        )
    return _validated(RunConfig, data, path)


def begin(folder: str | os.PathLike[str], *, overwrite: bool) -> Path:
    """Make an empty run folder. With ``overwrite``, an earlier run's own files are removed."""
    root = Path(folder)
    try:
        if root.exists():
            _check_may_write(root, overwrite=overwrite)
            # The configuration first: without it the rest is known to be unfinished.
            journals = [str(path.relative_to(root)) for path in root.glob("scores/journal-*")]
            files.remove(root, *_OWN_FILES, *journals)
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise files.cannot("write to", root, error) from error
    return root


def _check_may_write(root: Path, *, overwrite: bool) -> None:
    if not root.is_dir():
        raise NotARun(f"{str(root)!r} is a file; give another --out")
    if not any(root.iterdir()):
        return
    if not any((root / name).exists() for name in _OWN_FILES):
        raise NotARun(f"{str(root)!r} holds other files and no run; give an empty or a new folder")
    if not overwrite:
        raise RunExists(
            f"there is a run in {str(root)!r} already; give another --out, or --overwrite to "
            "replace it"
        )


def finish(folder: Path, config: RunConfig, model: PixelDP) -> RunConfig:
    """Write the weights and then the configuration, which makes the run complete."""
    state = {name: tensor.contiguous() for name, tensor in model.network.state_dict().items()}
    content = safetensors.torch.save(state)
    files.write(folder / WEIGHTS, content)
    done = config.model_copy(
        update={
            "weights_sha256": hashlib.sha256(content).hexdigest(),
            "versions": {
                "pixeldp": __version__,
                "python": platform.python_version(),
                "torch": torch.__version__,
            },
        }
    )
    files.write(folder / CONFIG, (done.model_dump_json(indent=2) + "\n").encode())
    return done


def append_log(folder: Path, entry: dict[str, Any]) -> None:
    """Append one line to the training log."""
    path = folder / TRAINING_LOG
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
    except OSError as error:
        raise files.cannot("write", path, error) from error


def write_scores(folder: Path, config: RunConfig, scores: Scores, *, plan: str = "") -> None:
    """Keep the sums over draws, with what they were drawn from, and by which plan."""
    arrays = {name: array for name in _SCORE_ARRAYS if (array := getattr(scores, name)) is not None}
    metadata = {
        "seed": str(scores.seed),
        "weights_sha256": config.weights_sha256,
        "plan": plan,
    }
    if scores.stopped is not None:
        how = scores.stopped
        arrays["proved"] = how.proved
        metadata["stopped"] = json.dumps([how.bound, how.kind, how.alpha])
    content = safetensors.numpy.save(
        # The file format takes an array's bytes as they lie in memory.
        {name: np.ascontiguousarray(array) for name, array in arrays.items()},
        metadata=metadata,
    )
    files.write(folder / SCORES, content)


def read_scores(folder: Path, config: RunConfig) -> Scores:
    """Return the sums over draws; refuse those of other weights."""
    path = folder / SCORES
    if not path.is_file():
        raise RunIncomplete(
            f"the run {str(folder)!r} has no certificates yet; make them with: "
            f"pixeldp certify {folder}"
        )
    try:
        with safetensors.safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        proved = arrays.pop("proved", None)
        stopped = None
        if proved is not None:
            bound, kind, alpha = json.loads(metadata["stopped"])
            stopped = Stopped(str(bound), str(kind), float(alpha), proved=proved)
        scores = Scores(**arrays, seed=int(metadata["seed"]), stopped=stopped)
    except (safetensors.SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise RunCorrupt(
            f"{str(path)!r} cannot be read as scores ({error}); certify the run again"
        ) from error
    if metadata.get("weights_sha256") != config.weights_sha256:
        raise RunCorrupt(
            f"{str(path)!r} was drawn from other weights than the run's; certify the run again"
        )
    return scores


def plan_of_scores(folder: Path) -> str | None:
    """Return the digest of the plan that the kept scores were drawn by; None if there are none."""
    path = folder / SCORES
    if not path.is_file():
        return None
    try:
        with safetensors.safe_open(path, framework="np") as file:
            return (file.metadata() or {}).get("plan")
    except (safetensors.SafetensorError, OSError):
        return None


def read_settings(folder: Path) -> CertificationSettings:
    """Return how the run's certificates were made."""
    path = folder / SETTINGS
    if not path.is_file():
        raise RunIncomplete(
            f"the run {str(folder)!r} has no certificates yet; make them with: "
            f"pixeldp certify {folder}"
        )
    return _validated(CertificationSettings, files.json_object(path), path)


def _validated(kind: type[Model], data: dict[str, Any], path: Path) -> Model:
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise RunCorrupt(f"{str(path)!r} is damaged: {place}: {first['msg']}") from error
