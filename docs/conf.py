"""How Sphinx builds these pages."""

from pixeldp._version import __version__

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
napoleon_use_ivar = True
napoleon_attr_annotations = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"
