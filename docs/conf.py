"""Sphinx builds the documentation from MyST pages: ``make docs``."""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

from sf_quantum import __version__  # noqa: E402

project = "sf_quantum"
author = "The sf_quantum authors"
project_copyright = "the sf_quantum authors, Apache-2.0"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
myst_enable_extensions = ["attrs_block", "colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
nitpicky = False

html_theme = "furo"
html_title = f"sf_quantum {release}"
html_static_path = ["images"]
# `$ ` starts a command of a console block; what it prints is not copied
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
