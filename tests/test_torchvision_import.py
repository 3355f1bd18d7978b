from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from pixeldp._torchvision import import_torchvision
from pixeldp.errors import MissingExtra

if TYPE_CHECKING:
    from pathlib import Path

# Like the real one beside another kind of torch: it describes operators that were not loaded, and
# torch itself refuses. `extension` is what a failed import leaves in sys.modules.
BROKEN = """
import torch
from . import extension

@torch.library.register_fake("torchvision::nms")
def nms(dets, scores, iou_threshold): return dets

@torch.library.register_fake("torchvision::qnms")
def qnms(dets, scores, iou_threshold): return dets
"""
COUNTING = "import builtins; builtins.times = getattr(builtins, 'times', 0) + 1"


def run(script: str, folder: Path | None = None) -> str:
    """What a fresh interpreter prints; modules of ``folder`` come before all others."""
    first = "" if folder is None else f"import sys; sys.path.insert(0, {str(folder)!r})\n"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", first + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def fake(folder: Path, source: str) -> Path:
    package = folder / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text(source, encoding="utf-8")
    (package / "extension.py").write_text(COUNTING, encoding="utf-8")
    return folder


class Raising:
    """A finder of modules that meets one error when it looks for torchvision."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def find_spec(self, name: str, *_: object) -> None:
        if name == "torchvision":
            raise self._error


def import_meets(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Raising(error), *sys.meta_path])


def test_the_fake_fails_as_the_real_one_does(tmp_path: Path) -> None:
    script = """
        import sys
        try:
            import torchvision
        except RuntimeError as error:
            print(error)
            print("torchvision.extension" in sys.modules)
    """
    printed = run(script, fake(tmp_path, BROKEN))
    assert printed.splitlines() == ["operator torchvision::nms does not exist", "True"]


def test_an_import_that_misses_its_operators_is_mended(tmp_path: Path) -> None:
    script = """
        import builtins, gc, sys, torch
        from pixeldp._torchvision import import_torchvision
        module = import_torchvision()
        gc.collect()
        print(module is sys.modules["torchvision"], module is import_torchvision())
        print(builtins.times)
        for name in ("nms", "qnms"):
            print(getattr(torch.ops.torchvision, name).default._schema)
    """
    assert run(script, fake(tmp_path, BROKEN)).splitlines() == [
        "True True",
        "2",  # what the first attempt left was dropped, not reused
        "torchvision::nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
        "torchvision::qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    ]


def test_an_import_that_works_is_left_alone(tmp_path: Path) -> None:
    script = """
        import builtins, torch
        from pixeldp import _torchvision
        import torchvision
        print(_torchvision.import_torchvision() is torchvision, builtins.times)
        print(hasattr(torch.ops.torchvision, "nms"), _torchvision._kept)
    """
    printed = run(script, fake(tmp_path, "from . import extension"))
    assert printed.splitlines() == ["True 1", "False []"]


@pytest.mark.skipif(
    importlib.util.find_spec("torchvision") is None,
    reason="torchvision is not installed: pip install 'pixeldp[zoo]'",
)
def test_the_real_one_builds_networks_and_transforms() -> None:
    script = """
        import torch
        from pixeldp._torchvision import import_torchvision
        torchvision = import_torchvision()
        network = torchvision.models.resnet18(weights=None).eval()
        print(tuple(network(torch.zeros(2, 3, 32, 32)).shape))
        print(tuple(torchvision.transforms.CenterCrop(4)(torch.zeros(3, 8, 8)).shape))
        print(torchvision.datasets.CIFAR10.__name__)
    """
    assert run(script).splitlines() == ["(2, 1000)", "(3, 4, 4)", "CIFAR10"]


def test_a_missing_one_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import_meets(ModuleNotFoundError("No module", name="torchvision"), monkeypatch)
    with pytest.raises(MissingExtra, match=r"not installed.*pip install 'pixeldp\[zoo\]'"):
        import_torchvision()


def test_every_other_failure_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    before = dict(sys.modules)
    for error in (
        RuntimeError("operator torchvision::roi_align does not exist"),
        ModuleNotFoundError("No module named 'PIL'", name="PIL"),
    ):
        with monkeypatch.context() as patched:
            import_meets(error, patched)
            with pytest.raises(type(error), match=str(error)):
                import_torchvision()
    assert dict(sys.modules) == before
