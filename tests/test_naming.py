"""The glossary: its modules exist, and the source uses the field's words instead of those below."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "leanconv"
TERMS = [
    [cell.strip() for cell in line.split("|")[1:-1]]
    for line in (ROOT / "docs" / "naming.md")
    .read_text("utf-8")
    .split("## Glossary")[1]
    .splitlines()
    if line.startswith("| ") and not line.startswith("| word")
]
# What the field calls L1, L2 and L3, prefetched, freed, and expensive.
AVOIDED = (
    r"(first|second|third|nearest) cache\b",
    r"\basked for ahead\b",
    r"\basks? ahead\b",
    r"\blets go of\b",
    r"\bdear(er|est)?\b",
    r"\bleanest\b",
)


def test_the_glossary_has_terms() -> None:
    assert len(TERMS) >= 60
    assert len({term[0] for term in TERMS}) == len(TERMS), "a word twice"


@pytest.mark.parametrize("term", TERMS, ids=lambda term: term[0])
def test_every_module_of_the_glossary_exists(term: list[str]) -> None:
    _, meaning, _, module = term
    found = re.fullmatch(r"`([\w/]+)`", module)
    assert meaning
    assert found, f"expected one module, got {module}"
    place = SOURCE / found[1]
    assert place.with_suffix(".py").is_file() or (place / "__init__.py").is_file(), module


@pytest.mark.parametrize("words", AVOIDED)
def test_words_that_the_source_avoids(words: str) -> None:
    pattern = re.compile(words, re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted(SOURCE.rglob("*.py"))
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found, "\n".join(found)
