from __future__ import annotations

import errno
import json
import math
import os
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pixeldp
from pixeldp import errors, files, runs
from pixeldp.files import rounded_down
from pixeldp.runs import NoiseConfig, RunConfig
from pixeldp.scores import Scores
from pixeldp.training import Recipe

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def config(**changed: object) -> RunConfig:
    fields: dict[str, object] = {
        "dataset": "digits",
        "network": "small-cnn",
        "input_shape": (1, 8, 8),
        "input_range": (0.0, 1.0),
        "label_names": ("a", "b", "c"),
        "noise": NoiseConfig(mechanism="gaussian", scale=0.5, norm=2, after="conv1"),
        "held_sensitivity": 1.0,
        "recipe": Recipe(epochs=1),
    }
    return RunConfig.model_validate({**fields, **changed})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = runs.begin(tmp_path / "run", overwrite=False)
    runs.append_log(folder, {"epoch": 1})
    made = config()
    runs.finish(folder, made, made.build())
    return folder


def scores_of(images: int = 2) -> Scores:
    return Scores(
        counts=np.tile([80, 15, 5], (images, 1)),
        sums=np.tile([80.0, 15.0, 5.0], (images, 1)),
        squares=np.tile([70.0, 10.0, 3.0], (images, 1)),
        draws=np.full(images, 100),
        seconds=np.full(images, 0.01),
        seed=4,
    )


@pytest.mark.parametrize(
    "noise",
    [
        NoiseConfig(mechanism="gaussian", scale=0.5, norm=2, after="conv1"),
        NoiseConfig(mechanism="laplace", scale=0.2, norm=1, after="conv1"),
        NoiseConfig(mechanism="gaussian", scale=0.5, norm=1, after=None),
        NoiseConfig(mechanism="gaussian", scale=0.5, norm=math.inf, after="conv1"),
        NoiseConfig(mechanism="laplace", scale=0.5, norm=0, after="conv1"),
    ],
)
def test_a_model_comes_back_as_it_was(tmp_path: Path, noise: NoiseConfig) -> None:
    made = config(noise=noise, held_sensitivity=None if noise.after is None else 1.0)
    model = made.build()
    folder = runs.begin(tmp_path / "run", overwrite=False)
    done = runs.finish(folder, made, model)
    loaded = pixeldp.load(folder)
    x = torch.rand(3, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(
            loaded.back(loaded.front(x)), model.back(model.front(x)), rtol=0, atol=0
        )
    assert loaded.sensitivity == model.sensitivity
    assert loaded.noise == model.noise
    assert not loaded.training
    assert runs.read_config(folder) == done
    assert done.versions["pixeldp"] == pixeldp.__version__


def test_nothing_in_it_is_a_pickle(run: Path) -> None:
    runs.write_scores(run, runs.read_config(run), scores_of())
    for path in run.rglob("*"):
        if path.is_file():
            assert path.suffix in {".json", ".jsonl", ".safetensors", ".tsv", ".html", ".png"}


def test_scores_come_back_as_they_were_even_from_views(run: Path) -> None:
    made, kept = runs.read_config(run), scores_of(4)
    strided = np.stack([kept.sums, kept.squares], axis=1)
    views = Scores(
        counts=kept.counts,
        sums=strided[:, 0],
        squares=strided[:, 1],
        draws=kept.draws,
        seconds=kept.seconds,
        seed=kept.seed,
    )
    runs.write_scores(run, made, views)
    again = runs.read_scores(run, made)
    for name in ("counts", "sums", "squares", "draws", "seconds"):
        assert (getattr(again, name) == getattr(kept, name)).all()
    assert again.seed == 4


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def edit(path: Path, **changed: object) -> None:
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, **changed}))


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (lambda run: (run / "config.json").unlink(), errors.RunIncomplete, "half written"),
        (lambda run: (run / "model.safetensors").unlink(), errors.RunIncomplete, "no model.safe"),
        (lambda run: truncate(run / "model.safetensors"), errors.RunCorrupt, "digest"),
        (lambda run: truncate(run / "config.json"), errors.RunCorrupt, "not readable JSON"),
        (lambda run: (run / "config.json").write_text("[1]"), errors.NotARun, "not part of a run"),
        (lambda run: edit(run / "config.json", format="x"), errors.NotARun, "not the config"),
        (lambda run: edit(run / "config.json", version=99), errors.RunTooNew, "run format 99"),
        (lambda run: edit(run / "config.json", network=3), errors.RunCorrupt, "network:"),
        (lambda run: edit(run / "config.json", extra=3), errors.RunCorrupt, "extra:"),
        (lambda run: edit(run / "config.json", network="x"), errors.RunCorrupt, "cannot be built"),
        (
            lambda run: edit(run / "config.json", label_names=["a", "b"]),
            errors.RunCorrupt,
            "do not fit the network",
        ),
    ],
)
def test_a_damaged_run_is_refused_by_its_own_class(
    run: Path, damage: Callable[[Path], object], error: type[Exception], message: str
) -> None:
    damage(run)
    with pytest.raises(error, match=message):
        pixeldp.load(run)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.RunMissing, match="there is no run folder"):
        pixeldp.load(tmp_path / "nothing")
    (tmp_path / "file").write_text("x")
    with pytest.raises(errors.NotARun, match="is a file"):
        pixeldp.load(tmp_path / "file")
    with pytest.raises(errors.NotARun, match=r"has no config\.json"):
        pixeldp.load(tmp_path)


def test_an_earlier_run_is_not_overwritten_unless_asked(run: Path, tmp_path: Path) -> None:
    with pytest.raises(errors.RunExists, match="--overwrite"):
        runs.begin(run, overwrite=False)
    assert (run / "config.json").exists()
    (run / "notes.txt").write_text("mine")
    runs.begin(run, overwrite=True)
    assert sorted(path.name for path in run.iterdir()) == ["notes.txt"]
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("x")
    for overwrite in (False, True):
        with pytest.raises(errors.NotARun, match="holds other files and no run"):
            runs.begin(foreign, overwrite=overwrite)
    with pytest.raises(errors.NotARun, match="is a file"):
        runs.begin(foreign / "thesis.tex", overwrite=True)


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_full_disk_loses_nothing(
    run: Path, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = run / "config.json"
    before = path.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync" if failing == "fsync" else "pathlib.Path.replace", full)
    with pytest.raises(errors.RunInaccessible, match="No space left on device") as caught:
        files.write(path, b"new")
    assert caught.value.exit_status == 1
    assert path.read_bytes() == before
    assert sorted(p.name for p in run.iterdir()) == [
        "config.json",
        "model.safetensors",
        "train.jsonl",
    ]


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(errors.RunInaccessible, match="cannot write to"):
        runs.begin(tmp_path / "file" / "run", overwrite=False)
    with pytest.raises(errors.RunInaccessible, match="cannot write"):
        runs.append_log(tmp_path / "nowhere", {})


def test_scores_of_other_weights_or_none_are_refused(run: Path) -> None:
    made = runs.read_config(run)
    with pytest.raises(errors.RunIncomplete, match="pixeldp certify"):
        runs.read_scores(run, made)
    with pytest.raises(errors.RunIncomplete, match="pixeldp certify"):
        runs.read_settings(run)
    runs.write_scores(run, made, scores_of())
    with pytest.raises(errors.RunCorrupt, match="other weights"):
        runs.read_scores(run, made.model_copy(update={"weights_sha256": "0"}))
    truncate(run / runs.SCORES)
    with pytest.raises(errors.RunCorrupt, match="cannot be read as scores"):
        runs.read_scores(run, made)
    (run / runs.SCORES).write_bytes(b"GIF89a")
    with pytest.raises(errors.RunCorrupt, match="cannot be read as scores"):
        runs.read_scores(run, made)


def test_a_held_input_makes_no_sense() -> None:
    noise = NoiseConfig(mechanism="gaussian", scale=0.5, norm=2, after=None)
    with pytest.raises(errors.InvalidArgument, match="not the input"):
        config(noise=noise).build()


@given(value=st.floats(0, 1e6), digits=st.integers(0, 9))
def test_radii_are_never_rounded_up(value: float, digits: int) -> None:
    from fractions import Fraction

    written = Fraction(rounded_down(value, digits))
    assert written <= Fraction(value) < written + Fraction(1, 10**digits)


def test_the_example_that_rounding_gets_wrong() -> None:
    assert rounded_down(1.9553, 2) == "1.95"
    assert f"{1.9553:.3}" == "1.96"
    assert rounded_down(float("inf")) == "inf"
