"""Sphinx's settings for the site; docs/site/build.py stages the pages and calls Sphinx."""

from __future__ import annotations

import re
from typing import Any

project = "leanconv"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
root_doc = "index"
html_theme = "furo"
html_title = "leanconv"
html_static_path: list[str] = []
html_show_sphinx = False
html_copy_source = False
autodoc_member_order = "bysource"
autodoc_typehints = "description"
napoleon_google_docstring = True
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_block"]
# Headings of pages that tell the same twice, lexers for listings of output, links to folders.
suppress_warnings = ["myst.xref_missing", "myst.header", "misc.highlighting_failure"]


def as_restructured(
    app: object, what: str, name: str, found: object, options: object, lines: list[str]
) -> None:
    """Write a docstring's Markdown as reStructuredText, before napoleon reads its sections."""
    del app, what, name, found, options
    text = re.sub(r"^( +[\w, ]+,)\n +", r"\1 ", "\n".join(lines), flags=re.MULTILINE)
    parts = re.split(r"`([^`]+)`", text)
    plain = (part.replace("|", r"\|").replace("*", r"\*") for part in parts[::2])
    code = [f"``{' '.join(part.split())}``" for part in parts[1::2]]
    lines[:] = "".join(map("".join, zip(plain, [*code, ""], strict=True))).splitlines()


def setup(app: Any) -> None:
    """Connect the docstrings."""
    app.connect("autodoc-process-docstring", as_restructured, priority=400)
