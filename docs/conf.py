"""How Sphinx builds these pages."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pixeldp._version import __version__

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "pixeldp"
author = "the pixeldp authors"
copyright = "2026, the pixeldp authors"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "results"]

html_theme = "furo"
html_title = f"pixeldp {__version__}"

myst_heading_anchors = 3

napoleon_google_docstring = False
napoleon_numpy_docstring = True
napoleon_attr_annotations = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"

_FIELD = re.compile(r"[\w.*]+(, [\w.*]+)*:?$")


def end_sections(
    _app: Sphinx, _what: str, _name: str, _obj: object, _options: object, lines: list[str]
) -> None:
    """Give what follows the last field of a section a heading; napoleon takes it for a field."""
    fields, done = False, []
    for number, line in enumerate(lines):
        if set(line) == {"-"} and number:
            fields = True
            if done[-1] == "Attributes":  # of a record: its fields are what it is made from
                done[-1] = "Parameters"
        elif fields and line and not line[0].isspace() and not _FIELD.match(line):
            fields = False
            heading = "Examples" if line.startswith(">>>") else "Notes"
            done += [heading, "-" * len(heading)]
        elif not fields and line.startswith(">>>") and "Notes" in done and "Examples" not in done:
            done += ["Examples", "--------"]
        done.append(line)
    lines[:] = done


def setup(app: Sphinx) -> None:
    """Run before napoleon, whose priority is 500."""
    app.connect("autodoc-process-docstring", end_sections, priority=400)
