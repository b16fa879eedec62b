"""What SECURITY.md says is so: its numbers are the code's, the tests that it cites exist."""

from __future__ import annotations

import dataclasses
import re
from functools import cache, reduce
from importlib import import_module
from pathlib import Path

import pytest

from leanconv.graph.limits import Limits

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
BOUNDS = {
    where: int(number.replace(",", ""))
    for number, where in re.findall(r"^\|[^|]+\| ([\d,]+) \| `([\w.]+)` \|$", PAGE, re.MULTILINE)
}
TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))


@cache
def source(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


@pytest.mark.parametrize("where", BOUNDS)
def test_a_bound_is_the_codes(where: str) -> None:
    """`graph.limits.Limits.nodes` is leanconv.graph.limits, then attributes."""
    parts = where.split(".")
    count = next(n for n, part in enumerate(parts) if part.lstrip("_")[0].isupper())
    module = import_module(".".join(["leanconv", *parts[:count]]))
    assert reduce(getattr, parts[count:], module) == BOUNDS[where]


def test_every_bound_of_a_model_is_there() -> None:
    fields = {f"graph.limits.Limits.{field.name}" for field in dataclasses.fields(Limits)}
    assert fields <= set(BOUNDS)
    assert len(BOUNDS) > len(fields)


@pytest.mark.parametrize(("file", "name"), TESTS)
def test_a_test_that_is_cited_exists(file: str, name: str) -> None:
    assert re.search(rf"^def {name}\(", source(file), re.MULTILINE)


def test_every_citation_is_seen() -> None:
    """The expressions above take all that looks like a bound or a test."""
    assert len(TESTS) > 20
    assert PAGE.count("`tests/") == len(re.findall(r"`tests/[\w/]+\.py::\w+`", PAGE))
    rows = [line for line in PAGE.splitlines() if re.search(r"\| `\w+\.\w+[\w.]*` \|$", line)]
    assert len(rows) == len(BOUNDS)


def test_every_setting_that_it_names_exists() -> None:
    from leanconv.settings import variables

    named = set(re.findall(r"LEANCONV_[A-Z_]+", PAGE))
    assert named
    assert named <= {*variables(), "LEANCONV_"}
