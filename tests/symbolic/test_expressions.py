"""Expressions are shared, of bounded size, and have the numbers that Python's arithmetic gives."""

from __future__ import annotations

import json
import math
import operator
from random import Random
from typing import Any

import pytest

from leanconv.errors import UnsupportedError
from leanconv.symbolic import (
    Expression,
    Expressions,
    Guarded,
    Record,
    Symbol,
    Trace,
    expressions,
    guarded,
    least,
    most,
)

OPERATIONS: list[Any] = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.floordiv,
    operator.mod,
    least,
    most,
]


def random_symbols(random: Random, values: tuple[int, ...], count: int) -> list[Symbol]:
    """Variables and what comes of them and small numbers."""
    trace = Trace()
    made = [trace.variable(index, value) for index, value in enumerate(values)]
    while len(made) < count:
        operands = [random.choice([*made[-6:], *made[:3], random.randint(-9, 9)]) for _ in "ab"]
        try:
            found = random.choice(OPERATIONS)(*operands)
        except (ArithmeticError, UnsupportedError):
            continue
        if isinstance(found, Symbol):
            made.append(found)
    return made


# -- sharing -------------------------------------------------------------------------------
def test_what_is_equal_is_one_node() -> None:
    trace = Trace()
    x, y = trace.variable(0, 5), trace.variable(1, 7)
    assert (x * y + 2).expression is (trace.variable(0, 5) * y + 1 + 1).expression
    assert (x * y).expression is not (y * x).expression
    assert least(x, 2).expression is not least(x, 2.0).expression
    assert len(trace.table) == 8  # x, y, xy, yx, xy + 1, xy + 2, and two minima


def test_doubling_takes_a_node_each_time() -> None:
    trace = Trace()
    size = trace.variable(0, 0)
    for _ in range(1000):
        size = size + size
    assert len(trace.table) == 1001
    find = guarded({}, [size.expression])
    assert (len(find.record.steps), find.record.results) == (1001, (1000,))
    assert len(size.text) < 10_000
    assert find((0,)) == (0,)
    assert find((1,)) is None


# -- bounds --------------------------------------------------------------------------------
def test_what_int64_has_not_has_no_number() -> None:
    n = Trace().variable(0, 1)
    with pytest.raises(UnsupportedError, match="got a size of 65 bits"):
        Trace().variable(0, 2**63 - 1) * 3
    assert Trace().variable(0, 1e30).value == 1e30  # scalars are no sizes
    many = n
    for _ in range(40):  # 3 to the power of 2 to the power of 40
        many = many * many
    for made in (many, 5 - many, -(n + (2**62 - 2)) * 2 + 5, n * 2**62 // 2**60):
        find = guarded({}, [made.expression])
        assert find((1,)) is not None
        assert find((3,)) is None


def test_no_table_grows_beyond_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expressions, "MOST_NODES", 100)
    size = Trace().variable(0, 3)
    for number in range(1, 100):
        size + number
    with pytest.raises(UnsupportedError, match="more than 100 different expressions"):
        size + 100
    assert len(size.trace.table) == 100
    assert (size + 1).value == 4  # what is there is found


# -- numbers -------------------------------------------------------------------------------
def test_numbers_are_those_of_making_them_anew() -> None:
    """With other values, and of what went through data."""
    for seed in range(60):
        values = tuple(Random(-seed).randint(2, 50) for _ in range(3))
        here = random_symbols(Random(seed), (7, 11, 13), 40)
        expected: list[float | None] = []
        for symbol in here:
            text = symbol.text
            if "…" in text:
                expected.append(None)
                continue
            try:
                expected.append(eval(text, {"v": values}))
            except ZeroDivisionError:
                expected.append(None)
        pairs = [(s.expression, n) for s, n in zip(here, expected, strict=True) if n is not None]
        assert len(pairs) > 5
        find = guarded({pairs[0][0]: pairs[0][1]}, [expression for expression, _ in pairs])
        read = Record.read(json.loads(json.dumps(find.record)), 3)
        assert read == find.record
        for each in (find, Guarded(read)):
            assert each(values) == tuple(number for _, number in pairs)
        other = guarded({pairs[0][0]: pairs[0][1] + 1}, [])
        assert other(values) is None


def test_guards_are_checked_before_what_they_guard() -> None:
    n = Trace().variable(0, 4)
    table, v = n.trace.table, n.expression
    whole = table.node(operator.floordiv, 12, v)
    find = guarded({table.node(operator.gt, v, 0): True, whole: 3}, [table.node(operator.neg, v)])
    unguarded = guarded({}, [whole])
    assert [find((value,)) for value in (4, 0, 5, -2)] == [(-4,), None, None, None]
    assert [unguarded((value,)) for value in (4, 0)] == [(3,), None]
    assert find.texts(["width"]) == ["width > 0", "12 // width == 3"]


def test_deep_expressions_are_evaluated() -> None:
    table = Expressions()
    chain = table.variable(0)
    for number in range(20_000):
        chain = table.node(max, chain, number % 7)
    find = guarded({}, [chain])
    assert [find((value,)) for value in (3, 9)] == [(6,), (9,)]


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan, 1e308, -0.0, True])
def test_any_number_can_be_compared_with(number: float) -> None:
    n = Trace().variable(0, 5)
    answer = bool(n < number)
    find = guarded(n.trace.guards, [n.expression])
    assert find((5,)) == (5,)
    assert answer == (number > 5)


def test_a_node_has_no_other_equals() -> None:
    one, other = Expressions().variable(0), Expressions().variable(0)
    assert one != other
    assert isinstance(one, Expression)
    assert Record.of({}, [one]) == Record.of({}, [other])


def test_texts_have_brackets_where_python_needs_them_alone() -> None:
    table = Expressions()
    v = table.variable(0)
    half = table.node(operator.floordiv, table.node(operator.add, v, -1), 2)
    quarter = table.node(operator.floordiv, table.node(operator.add, half, 1), 2)
    guard = table.node(operator.le, quarter, 64)
    assert guard.text == "((v[0] - 1) // 2 + 1) // 2 <= 64"
    less = table.node(operator.sub, v, table.node(operator.sub, v, half))
    assert less.text == "v[0] - (v[0] - (v[0] - 1) // 2)"
    rest = table.node(operator.mul, table.node(operator.neg, v), table.node(operator.mod, v, 3))
    assert rest.text == "-v[0] * (v[0] % 3)"
