"""The whole line on the real digits, small: train, certify, re-certify, report."""

from __future__ import annotations

import base64
import csv
import re
import shutil
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest

from pixeldp import errors, runs, workflow
from pixeldp.datasets import load_dataset
from pixeldp.metrics import certified_accuracy
from pixeldp.report import gallery, render
from pixeldp.runs import NoiseConfig, RunConfig
from pixeldp.training import Recipe

if TYPE_CHECKING:
    from pathlib import Path

    from pixeldp.training import Epoch

IMAGES = 60


def digits_config(seed: int = 1, epochs: int = 10, after: str | None = "conv1") -> RunConfig:
    data = load_dataset("digits")
    return RunConfig(
        dataset="digits",
        network="small-cnn",
        input_shape=data.input_shape,
        input_range=data.input_range,
        label_names=data.label_names,
        noise=NoiseConfig(mechanism="gaussian", scale=0.2, norm=2, after=after),
        held_sensitivity=None if after is None else 1.0,
        recipe=Recipe(epochs=epochs, seed=seed),
    )


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "digits"
    workflow.train_run(digits_config(), folder)
    workflow.certify_run(folder, draws=200, images=IMAGES, seed=3)
    return folder


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / runs.CERTIFICATES).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def test_it_learns_and_certifies(certified: Path) -> None:
    results = workflow.read_results(certified)
    assert results.accuracy() > 0.9
    shares = results.certified()
    assert (shares["tight"] >= shares["dp"]).all()
    assert shares["tight"][2] > 0.6
    assert shares["tight"][0] == results.accuracy()
    assert 0.999 < results.certification.sensitivity <= 1.0


def test_the_table_has_the_columns_that_the_field_reads(certified: Path) -> None:
    table = rows(certified)
    header = (certified / runs.CERTIFICATES).read_text().splitlines()[0].split("\t")
    assert header[:6] == ["idx", "label", "predict", "radius", "correct", "time"]
    assert len(table) == IMAGES
    results = workflow.read_results(certified)
    for number, row in enumerate(table):
        made = results.certification
        assert int(row["idx"]) == number
        if made.abstained[number]:
            assert (row["predict"], float(row["radius"])) == ("-1", 0.0)
        assert int(row["correct"]) == (row["predict"] == row["label"])
        assert float(row["radius"]) <= made.radius[number] < float(row["radius"]) + 2e-6
        assert float(row["lower"]) <= made.lower[number]
        assert float(row["upper"]) >= made.upper[number]
        assert float(row["radius_dp"]) <= float(row["radius_tight"])
        assert float(row["time"]) > 0


def test_certified_accuracy_from_the_table_is_ours(certified: Path) -> None:
    """At a radius, the field's scripts take the mean of correct over rows with radius ≥ r."""
    table = rows(certified)
    radius = np.array([float(row["radius"]) for row in table])
    correct = np.array([int(row["correct"]) for row in table])
    results = workflow.read_results(certified)
    for threshold, ours in zip(results.thresholds(), results.certified()["tight"], strict=True):
        if threshold > 0:  # at 0 the field counts abstentions as errors, the paper does not
            assert (correct & (radius >= threshold)).mean() == ours


class FieldsAccuracy:
    """How the smoothing literature reads its tables: by pandas, a row an input."""

    def __init__(self, path: Path) -> None:
        self.rows = pd.read_csv(path, delimiter="\t")

    def at_radius(self, radius: float) -> float:
        return float((self.rows["correct"] & (self.rows["radius"] >= radius)).mean())


def test_the_fields_own_reading_of_our_file_gives_our_certified_accuracy(
    certified: Path, tmp_path: Path
) -> None:
    stopped = tmp_path / "stopped"
    shutil.copytree(certified, stopped)
    targets = (0.05, 0.1, 0.2)
    workflow.certify_run(stopped, draws=3000, images=IMAGES, targets=targets, seed=4)
    for folder in (certified, stopped):
        results = workflow.read_results(folder)
        read = FieldsAccuracy(folder / runs.CERTIFICATES)
        made = results.certification
        for threshold in (0.01, *targets, 0.3):
            ours = certified_accuracy(made.label, made.radius, results.labels, threshold)
            assert read.at_radius(threshold) == ours
    assert read.at_radius(0.1) > 0.3


def test_the_same_seeds_give_the_same_run(certified: Path, tmp_path: Path) -> None:
    config = workflow.train_run(digits_config(), tmp_path / "again")
    assert config.weights_sha256 == runs.read_config(certified).weights_sha256
    workflow.certify_run(tmp_path / "again", draws=200, images=IMAGES, seed=3)
    drop = {"time"}
    first, again = (
        [{k: v for k, v in row.items() if k not in drop} for row in rows(folder)]
        for folder in (certified, tmp_path / "again")
    )
    assert first == again
    other = workflow.train_run(digits_config(seed=2, epochs=1), tmp_path / "other")
    assert other.weights_sha256 != config.weights_sha256


def test_training_leaves_the_global_generator_alone(tmp_path: Path) -> None:
    import torch

    torch.manual_seed(9)
    expected = torch.rand(3)
    torch.manual_seed(9)
    seen: list[Epoch] = []
    workflow.train_run(digits_config(epochs=1), tmp_path / "run", progress=seen.append)
    assert torch.equal(torch.rand(3), expected)
    assert [epoch.epoch for epoch in seen] == [1]
    assert len((tmp_path / "run" / "train.jsonl").read_text().splitlines()) == 1


def test_the_page_holds_everything_that_it_shows(certified: Path) -> None:
    page = workflow.write_report(certified)
    text = page.read_text(encoding="utf-8")
    # No script, and nothing is loaded from anywhere: the only addresses are XML name spaces.
    assert "<script" not in text
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!data:|#)""", text)
    assert not re.findall(r"url\((?!#)", text)
    assert "@import" not in text
    results = workflow.read_results(certified)
    assert text.count("data:image/png;base64,") == len(gallery(results))
    picture = re.search(r"data:image/png;base64,([^']+)'", text)
    assert picture is not None
    assert base64.b64decode(picture.group(1)).startswith(b"\x89PNG")
    for value in results.certified()["tight"]:
        assert f"{100 * value:.1f} %" in text
    assert (certified / "plots" / "certified_accuracy.png").read_bytes().startswith(b"\x89PNG")


def test_the_gallery_shows_the_whole_range(certified: Path) -> None:
    results = workflow.read_results(certified)
    shown = gallery(results)
    made = results.certification
    assert len(shown) == len(set(shown)) == 12
    assert int(made.radius.argmax()) in shown
    wrong = made.label != results.labels
    if wrong.any():
        assert any(wrong[index] for index in shown)


def test_a_page_of_one_image_and_of_colour_can_be_made(certified: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    folder = tmp_path / "copy"
    shutil.copytree(certified, folder)
    results = workflow.certify_run(folder, draws=50, images=1, seed=1)
    assert results is not None
    colour = replace(results, images=results.images.repeat(3, axis=1))
    assert "image 0: label" in render(colour)


def test_softmax_scores_and_dp_are_kept_as_settings(certified: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(certified, folder)
    workflow.write_report(folder)
    made = workflow.certify_run(
        folder, draws=200, images=10, scores="softmax", certificate="dp", seed=1
    )
    assert made is not None
    assert not (folder / runs.REPORT).exists()  # it showed the earlier certificates
    again = workflow.read_results(folder)
    assert again.certification.kind == "softmax"
    assert again.certification.bounds.method == "betting"
    assert again.certification.radius.tolist() == made.certification.radius.tolist()


def test_scores_and_settings_that_differ_are_refused(certified: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(certified, folder)
    path = folder / runs.SETTINGS
    path.write_text(path.read_text().replace(f'"images": {IMAGES}', '"images": 7'))
    with pytest.raises(errors.RunCorrupt, match=r"are \(60, 200, 3\), not \(7, 200, 3\)"):
        workflow.read_results(folder)


def test_more_images_than_there_are_is_refused(certified: Path) -> None:
    with pytest.raises(errors.InvalidArgument, match="at most 450, the test images of digits"):
        workflow.certify_run(certified, draws=200, images=451)
    with pytest.raises(errors.InvalidArgument, match="images must be a whole number"):
        workflow.certify_run(certified, draws=200, images=0)


def test_a_failed_certification_keeps_the_earlier_one(certified: Path) -> None:
    before = (certified / runs.CERTIFICATES).read_bytes()
    with pytest.raises(errors.TooFewDraws):
        workflow.certify_run(certified, draws=2)
    assert (certified / runs.CERTIFICATES).read_bytes() == before
