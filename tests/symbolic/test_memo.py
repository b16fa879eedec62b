"""What was made with symbols serves sizes that answer alike; holes in values are filled."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest

from leanconv.records import dataclass
from leanconv.symbolic import Holes, Made, Memo, NeedsNumberError, Trace


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass(frozen=True)
class Box:
    size: Any
    name: str = "box"


class Own:
    """Says by itself how it is filled."""

    def __init__(self, size: Any) -> None:
        self.size = size

    def filler_with(self, holes: Holes) -> Any:
        fill = holes.filler(self.size)
        return fill and (lambda numbers: Own(fill(numbers)))


def test_holes_are_filled_wherever_they_are() -> None:
    trace = Trace()
    x, y = trace.variable(0, 5), trace.variable(1, 7)
    fixed = Box(3)
    value = MappingProxyType(
        {"a": (x, [y + 1, 2.5], fixed), "b": Pair(Box((x,)), None), "c": Own(y), "d": np.ones(2)}
    )
    holes = Holes()
    fill = holes.filler(value)
    assert fill is not None
    assert [symbol.text for symbol in holes.symbols.values()] == ["v[0]", "v[1] + 1", "v[1]"]
    assert holes.values == (5, 8, 7)
    made = fill((50, 80, 70))
    assert type(made) is MappingProxyType
    assert made["a"] == (50, [80, 2.5], fixed)
    assert made["a"][2] is fixed
    assert made["b"] == Pair(Box((50,)), None)
    assert type(made["b"]) is Pair
    assert made["c"].size == 70
    assert made["d"] is value["d"]
    assert not trace.guards


def test_what_has_no_symbol_has_no_filler() -> None:
    assert Holes().filler(((1, "x"), {"n": [2.0, None]}, Box(b""), np.float32(2), Own(3))) is None


def test_symbols_that_would_not_be_found_are_refused() -> None:
    symbol = Trace().variable(0, 5)
    with pytest.raises(NeedsNumberError, match="a table holds sizes"):
        Holes().filler((np.array([symbol], object),))
    with pytest.raises(TypeError, match="function may hide symbols"):
        Holes().filler([lambda: symbol])


def made(value: int) -> Made[tuple[Any, ...]]:
    """A size and what its rest by 4 decided."""
    trace = Trace()
    size = trace.variable(0, value)
    result = (size * 2, "even" if size % 4 < 2 else "odd")
    holes = Holes()
    fill = holes.filler(result)
    return Made(result, trace.guards, holes.symbols, fill)


def test_a_memo_serves_sizes_that_answer_alike(caplog: pytest.LogCaptureFixture) -> None:
    memo = Memo[tuple[Any, ...]](2, ["width"])
    assert memo.at((8,)) is None
    for value in (8, 11):
        assert memo.attempt("it is made", lambda value=value: made(value)) is not None  # type: ignore[misc]
    assert [memo.at((value,)) for value in (5, 10, 12)] == [(10, "even"), (20, "odd"), (24, "even")]
    assert (memo.full, memo.uses) == (True, 3)
    texts = [entry.numbers.texts(memo.names) for entry in memo.entries]
    assert texts == [["width % 4 < 2"], ["not width % 4 < 2"]]
    memo.keep(made(6))
    assert memo.at((8,)) is None  # the oldest has gone

    def refused() -> Made[tuple[Any, ...]]:
        raise NeedsNumberError("a table")

    assert memo.attempt("it is made", refused) is None
    assert memo.refusals == ["it is made by itself: a table"]
