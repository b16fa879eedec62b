"""Spelling values out for keys."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from leanconv.canonical import spelled


@dataclass(frozen=True)
class _Point:
    x: int
    y: float | None = None


@dataclass(frozen=True)
class _Pair:
    parts: tuple[_Point, ...]
    name: str = "a"


def test_parts_are_spelled_out() -> None:
    assert spelled(_Point(1, 2.5)) == "_Point(x=1, y=2.5)"
    pair = _Pair((_Point(1), _Point(2)))
    assert spelled(pair) == (
        "_Pair(parts=tuple(_Point(x=1, y=None), _Point(x=2, y=None)), name='a')"
    )
    assert spelled({"a": [1, True], "b": "1"}) == "dict('a': list(1, True), 'b': '1')"


def test_different_values_differ() -> None:
    values = [1, 1.0, True, "1", (1,), [1], (1, 1), ((1,), 1), (1, (1,)), {1: 1}, _Point(1), None]
    assert len({spelled(value) for value in values}) == len(values)


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
        assert spelled(point) == "_Point(x=1, y=None)"
        assert spelled(_Pair((point,))) != spelled(_Pair((other,)))
    finally:
        under_way.clear()
