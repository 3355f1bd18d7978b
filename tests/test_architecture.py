"""The house stays as it is drawn: imports go one way, public names are documented, no torch in
the mathematics."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import pixeldp

ROOT = Path(pixeldp.__file__).parent

# A room may import those to its left in this order, and never the reverse.
ORDER = (
    "_version",
    "errors",
    "_checks",
    "_torchvision",
    "norms",
    "roots",
    "mechanisms",
    "graphs",
    "sensitivities",
    "tracing",
    "placements",
    "precisions",
    "model",
    "sketches",
    "bounds",
    "scores",
    "stopping",
    "streams",
    "probing",
    "layouts",
    "batches",
    "sampling",
    "certificates",
    "tasks",
    "certification",
    "prediction",
    "metrics",
    "constraints",
    "networks",
    "datasets",
    "training",
    "files",
    "runs",
    "journals",
    "teams",
    "drawing",
    "watching",
    "plots",
    "report",
    "records",
    "logs",
    "workflow",
    "cli",
    "__main__",
)
NO_TORCH = (
    "norms",
    "roots",
    "mechanisms",
    "sketches",
    "bounds",
    "scores",
    "stopping",
    "certificates",
    "tasks",
    "metrics",
    "plots",
)


def rooms() -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        room = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if room != "__init__":
            found.setdefault(room, []).append(path)
    return found


def imported(path: Path, *, when_run: bool = False) -> set[str]:
    """The modules that a file imports; with ``when_run``, without those for types alone."""
    names: set[str] = set()
    pending: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names |= {f"{module}.{alias.name}" for alias in node.names} | {module}
        for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        pending.extend([] if when_run and for_types else ast.iter_child_nodes(node))
    return names


def test_every_room_has_its_place() -> None:
    assert set(rooms()) == set(ORDER)


@pytest.mark.parametrize("room", ORDER)
def test_imports_go_one_way(room: str) -> None:
    allowed = set(ORDER[: ORDER.index(room) + 1])
    for path in rooms()[room]:
        ours = {name.split(".")[1] for name in imported(path) if name.startswith("pixeldp.")}
        # `from pixeldp import runs` names a room; `import pixeldp` alone would name none.
        assert ours & set(ORDER) <= allowed, f"{path.name} imports {ours - allowed}"


@pytest.mark.parametrize("room", NO_TORCH)
def test_the_mathematics_runs_without_torch(room: str) -> None:
    for path in rooms()[room]:
        needed = imported(path, when_run=True)
        assert not any(name.split(".")[0] == "torch" for name in needed), path.name


def test_public_names_are_sorted_exported_and_documented() -> None:
    names = pixeldp.__all__
    assert names == sorted(names)
    docs = Path(__file__).parents[1] / "docs" / "api.md"
    page = docs.read_text(encoding="utf-8")
    for name in names:
        value = getattr(pixeldp, name)
        assert name in page, f"{name} is missing in docs/api.md"
        if not name.startswith("__"):
            assert inspect.getdoc(value), f"{name} has no docstring"
    public = {name for name in vars(pixeldp) if not name.startswith("_")}
    submodules = {name for name in public if inspect.ismodule(getattr(pixeldp, name))}
    assert public - submodules == {name for name in names if not name.startswith("_")}


def test_no_public_function_hides_a_module() -> None:
    assert not set(pixeldp.__all__) & set(ORDER)


def test_every_exception_is_in_the_tree_that_is_drawn() -> None:
    from pixeldp import errors

    drawn = inspect.getdoc(errors) or ""
    for name, value in vars(errors).items():
        if inspect.isclass(value):
            assert issubclass(value, errors.PixelDPError)
            assert name in drawn, f"{name} is missing in the drawing"


def test_files_and_functions_stay_short() -> None:
    for path in ROOT.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        assert len(source.splitlines()) <= 400, path
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef) and not node.decorator_list:
                docstring = ast.get_docstring(node) or ""
                length = (node.end_lineno or 0) - node.lineno - len(docstring.splitlines())
                assert length <= 60, f"{path.name}: {node.name} has {length} lines"


def test_the_package_is_typed_and_runs_as_a_module() -> None:
    assert (ROOT / "py.typed").exists()
    done = subprocess.run(
        [sys.executable, "-m", "pixeldp", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == f"pixeldp {pixeldp.__version__}"
