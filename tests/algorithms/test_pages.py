"""Each method's page: the docstring of its sub-package, from the formula to the reading order."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import leanconv.algorithms

FOLDER = Path(leanconv.algorithms.__file__).parent
METHODS = sorted(
    path.parent for path in FOLDER.glob("*/__init__.py") if path.parent.stem != "common"
)


def page(method: Path) -> str:
    tree = ast.parse((method / "__init__.py").read_text(encoding="utf-8"))
    return ast.get_docstring(tree) or ""


@pytest.mark.parametrize("method", METHODS, ids=lambda path: path.stem)
def test_a_page_says_what_a_reader_needs(method: Path) -> None:
    text = page(method)
    assert 30 <= len(text.splitlines()) <= 60
    for part in ("for chunk", "- Bytes", "- Error: ", "- When: ", "- Source: ", "Reading order: "):
        assert part in text, part


@pytest.mark.parametrize("method", METHODS, ids=lambda path: path.stem)
def test_a_page_names_every_module(method: Path) -> None:
    order = page(method).partition("Reading order: ")[2]
    modules = {path.stem for path in method.glob("*.py")} - {"__init__"}
    assert {name for name in modules if f"`{name}`" not in order} == set()
