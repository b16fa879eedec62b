"""Spelling values out for keys."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from leanconv.canonical import canonical_text


@dataclass(frozen=True)
class _Point:
    x: int
    y: float | None = None


@dataclass(frozen=True)
class _Pair:
    parts: tuple[_Point, ...]
    name: str = "a"


def test_parts_are_spelled_out() -> None:
    assert canonical_text(_Point(1, 2.5)) == "_Point(x=1, y=2.5)"
    pair = _Pair((_Point(1), _Point(2)))
    assert canonical_text(pair) == (
        "_Pair(parts=tuple(_Point(x=1, y=None), _Point(x=2, y=None)), name='a')"
    )
    assert canonical_text({"a": [1, True], "b": "1"}) == "dict('a': list(1, True), 'b': '1')"


def test_different_values_differ() -> None:
    values = [1, 1.0, True, "1", (1,), [1], (1, 1), ((1,), 1), (1, (1,)), {1: 1}, _Point(1), None]
    assert len({canonical_text(value) for value in values}) == len(values)


def test_an_interrupted_repr_leaves_the_spelling_alone() -> None:
    """What a KeyboardInterrupt in a dataclass's repr leaves behind: the object is under way."""
    point, other = _Point(1), _Point(2)
    under_way = next(
        cell.cell_contents
        for cell in _Point.__repr__.__closure__ or ()
        if isinstance(cell.cell_contents, set)
    )
    under_way |= {(id(each), threading.get_ident()) for each in (point, other)}
    try:
        assert repr(point) == repr(other) == "..."
        assert canonical_text(point) == "_Point(x=1, y=None)"
        assert canonical_text(_Pair((point,))) != canonical_text(_Pair((other,)))
    finally:
        under_way.clear()
