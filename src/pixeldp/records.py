"""Results worth keeping: numbers together with all that is needed to get them again."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from pixeldp._version import __version__

_CPU_INFO = Path("/proc/cpuinfo")


def record(*, command: str, seed: int | None, numbers: dict[str, Any]) -> str:
    """Return, as JSON text, ``numbers`` with the command, seed, commit, versions and machine."""
    content = {
        "command": command,
        "seed": seed,
        "commit": _commit(),
        "versions": {
            "pixeldp": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
        "machine": machine(),
        "numbers": numbers,
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def machine() -> str:
    """Name the kind of machine: system, processor and cores; nothing that identifies it."""
    cores = f"{os.cpu_count()} cores, {torch.get_num_threads()} threads"
    accelerator = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{platform.system()} {platform.machine()}, {_processor()}, {cores}{accelerator}"


def _processor() -> str:
    if _CPU_INFO.is_file():
        for line in _CPU_INFO.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown processor"


def _commit() -> str:
    """Return the commit of the working folder, marked where the tree is not as committed."""
    try:
        commit = _git("rev-parse", "--short=12", "HEAD")
        return f"{commit} with changes" if _git("status", "--porcelain") else commit
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    done = subprocess.run(  # noqa: S603 - the arguments are this file's own
        ["git", *arguments],  # noqa: S607 - wherever git is
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()
