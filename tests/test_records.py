from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from pixeldp import records
from pixeldp._version import __version__

if TYPE_CHECKING:
    import pytest


def test_a_record_has_all_that_is_needed_to_repeat_it() -> None:
    kept = json.loads(records.record(command="pixeldp demo", seed=3, numbers={"accuracy": 0.5}))
    assert kept["command"] == "pixeldp demo"
    assert kept["seed"] == 3
    assert kept["numbers"] == {"accuracy": 0.5}
    assert kept["versions"]["pixeldp"] == __version__
    assert "cores" in kept["machine"]


def test_the_commit_is_named_and_changes_are_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert records._commit() == "unknown"
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    for command in (["init", "-q"], [*identity, "commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run(["git", *command], check=True)  # noqa: S607
    clean = records._commit()
    assert len(clean) == 12
    (tmp_path / "new").write_text("x")
    assert records._commit() == f"{clean} with changes"


def test_the_processor_is_named_on_any_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_CPU_INFO", Path("/nowhere"))
    monkeypatch.setattr("platform.processor", lambda: "")
    assert records._processor() == "unknown processor"


def test_every_kept_result_names_its_command_and_origin() -> None:
    kept = sorted((Path(__file__).parents[1] / "docs" / "results").glob("*.json"))
    assert kept
    for path in kept:
        content = json.loads(path.read_text(encoding="utf-8"))
        assert content["command"], path
        assert {"seed", "commit", "versions", "machine", "numbers"} <= set(content), path
        assert "unknown" not in content["commit"], path
