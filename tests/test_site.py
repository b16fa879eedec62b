"""The site: which pages it has, and how docstrings become its reference; no Sphinx is needed."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

import leanconv

SITE = Path(__file__).resolve().parents[1] / "docs" / "site"


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"site_{name}", SITE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, with a place of its own for staged pages."""
    made = module("build")
    monkeypatch.setattr(made, "STAGED", tmp_path / "pages")
    return made


def test_contents_name_pages_that_are_there(build: ModuleType) -> None:
    build.stage(build.tracked())
    made = {"reference", "gallery"}
    for pages in build.CONTENTS.values():
        assert all(page in made or (build.STAGED / f"{page}.md").exists() for page in pages)
    text = build.contents()
    for page in build.STAGED.rglob("*.md"):
        name = str(page.relative_to(build.STAGED).with_suffix(""))
        assert name == "README" or f"\n{name}\n" in text or f" <{name}>\n" in text


def test_contents_have_no_title_twice(build: ModuleType) -> None:
    """Pages of several machines have the same headings."""
    build.stage(build.tracked())
    titles = re.findall(r"^(.+) <docs/results/.+>$", build.contents(), re.MULTILINE)
    assert len(set(titles)) == len(titles) > 2


def test_the_reference_has_every_public_name(build: ModuleType) -> None:
    text = build.reference()
    assert all(f":: leanconv.{name}\n" in text for name in leanconv.__all__)


def test_the_gallery_leads_from_pictures_to_pages(build: ModuleType) -> None:
    text = build.gallery(build.tracked())
    assert "[![winograd](docs/pictures/winograd.svg)](docs/algorithms.md)" in text


def test_docstrings_become_restructured_text() -> None:
    lines = [
        "Take |y| as `a,",
        "b` has it.",
        "",
        "Args:",
        "    w, bias,",
        "        slope: * of `x`.",
    ]
    module("conf").as_restructured(None, "", "", None, None, lines)
    assert lines == [
        r"Take \|y\| as ``a, b`` has it.",
        "",
        "Args:",
        r"    w, bias, slope: \* of ``x``.",
    ]
