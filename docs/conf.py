"""Sphinx: the pages of this folder and a reference made from the code. `make docs` builds it; nothing is fetched."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import reference  # noqa: E402

import underhood  # noqa: E402

project, author, release = "underhood", "the underhood authors", underhood.__version__
copyright = "the underhood authors, Apache-2.0"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "underhood"
html_static_path = []
html_copy_source = html_show_sourcelink = False
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
nitpicky = True


def setup(app):
    app.connect("builder-inited", lambda app: reference.write(HERE / "reference"))
