"""The one place that imports torchvision, and mends the import where its operators do not load.

torchvision from the package index is built against one kind of torch. Beside another kind, such
as a CPU-only one, its compiled operators are left out without a word, and the import then fails
over a description of one of them (https://github.com/pytorch/vision/issues/9085). Data sets,
models and transforms need none of these operators, only that their names are known.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

import torch

from pixeldp.errors import MissingExtra

if TYPE_CHECKING:
    from types import ModuleType

_FAILURE = "operator torchvision::nms does not exist"

# The operators whose descriptions torchvision registers whether or not they were loaded.
_NAMES = ("nms", "qnms")
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"

# A library that is collected takes its schemas with it, so it is kept for as long as this module.
_kept: list[torch.library.Library] = []


def import_torchvision() -> ModuleType:
    """Return torchvision; where its import works by itself, nothing is touched."""
    try:
        return _imported()
    except RuntimeError as error:
        if str(error) != _FAILURE:
            raise
    _drop_half_imported()
    _declare_schemas()
    return _imported()


def _imported() -> ModuleType:
    try:
        return importlib.import_module("torchvision")
    except ModuleNotFoundError as error:
        if error.name != "torchvision":  # installed, but broken in some other way
            raise
        raise MissingExtra(
            "networks and data sets of torchvision need it, and it is not installed; "
            "install it with: pip install 'pixeldp[zoo]'"
        ) from error


def _drop_half_imported() -> None:
    """Forget what the failed import left behind, so that the next one starts from nothing."""
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]


def _declare_schemas() -> None:
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for name in _NAMES:
        library.define(name + _SCHEMA)  # type: ignore[no-untyped-call]
    _kept.append(library)
