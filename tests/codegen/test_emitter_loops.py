"""The emitter: loops that carry values, conditions, chunks."""

from __future__ import annotations

import ctypes

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from leanconv.codegen.compiler import load_text
from leanconv.codegen.emitter import Function, Value
from support.emitted import integer_function
from support.outlines import outline


def test_loop_runs_over_the_range_with_a_step() -> None:
    def body(e: Function, a: Value, b: Value) -> Value:
        total = [e.i64(0)]
        with e.loop("i", b, [total], start=a, step=3) as i:
            total[0] = total[0] + i
        return total[0]

    native = integer_function(body)
    for a, b in ((0, 1), (0, 10), (4, 5), (4, 50), (5, 17)):
        assert native(a, b) == sum(range(a, b, 3))


def test_loop_body_runs_at_least_once() -> None:
    def body(e: Function, a: Value, b: Value) -> Value:
        count = [e.i64(0)]
        with e.loop("i", a, [count]):
            count[0] = count[0] + 1
        return count[0]

    assert integer_function(body)(0, 0) == 1


def test_loop_ends_where_its_body_says() -> None:
    """At the first square above b; the condition may be carried or not."""

    def body(e: Function, a: Value, b: Value) -> Value:
        total, done = [e.i64(0)], [e.const("i1", 0)]
        with e.loop("i", a, [total], until=done) as i:
            total[0] = total[0] + i
            done[0] = (i * i).compare("sgt", b)
        found = [e.const("i1", 0)]
        with e.loop("j", a, [found], until=found) as j:
            found[0] = (j * j).compare("sgt", b)
        return total[0] * 2 + e.convert("zext", found[0], "i64")

    native = integer_function(body)
    for a, b in ((1, 0), (1, 5), (20, 17), (5, 16), (4, 100)):
        last = next((i for i in range(a) if i * i > b), a - 1)
        assert native(a, b) == sum(range(last + 1)) * 2 + (last * last > b)


def test_carried_values_change_together() -> None:
    """Both phis read the iteration before: a, b = b, a + b."""

    def body(e: Function, a: Value, b: Value) -> Value:
        pair = [e.i64(0), e.i64(1)]
        with e.loop("i", a, [pair]):
            pair[0], pair[1] = pair[1], pair[0] + pair[1]
        return pair[0]

    native = integer_function(body)
    assert [native(n, 0) for n in range(1, 10)] == [1, 1, 2, 3, 5, 8, 13, 21, 34]


def test_one_value_carried_twice_becomes_two() -> None:
    def body(e: Function, a: Value, b: Value) -> Value:
        both, other = [e.i64(1)] * 2, [b]
        with e.loop("i", a, [both, other]) as i:
            both[1] = both[1] * 2
            other[0] = other[0] + i
        return both[0] * 1000 + both[1] + other[0]

    assert integer_function(body)(5, 7) == 1000 + 32 + 7 + 10


def test_nested_loops_carry_through() -> None:
    def body(e: Function, a: Value, b: Value) -> Value:
        total, outer = [e.i64(0)], [e.i64(0)]
        with e.loop("i", a, [total, outer]) as i:
            with e.loop("j", b, [total], start=2) as j:
                with e.loop("k", 3, [total]) as k:
                    total[0] = total[0] + i * j + k
                total[0] = total[0] + 100
            outer[0] = outer[0] + total[0]
        return total[0] * 7 + outer[0]

    def model(a: int, b: int) -> int:
        total = outer = 0
        for i in range(a):
            for j in range(2, b):
                for k in range(3):
                    total += i * j + k
                total += 100
            outer += total
        return total * 7 + outer

    native = integer_function(body)
    for a, b in ((1, 3), (4, 5), (7, 11)):
        assert native(a, b) == model(a, b)


def test_when_passes_values_through_both_ways() -> None:
    def body(e: Function, a: Value, b: Value) -> Value:
        values = [a, b]
        with e.when(a.compare("slt", b), [values]):
            values[0] = values[0] + 100
        return values[0] * 1000 + values[1]

    native = integer_function(body)
    assert native(1, 2) == 101_002
    assert native(3, 2) == 3_002


def test_when_and_loops_in_each_other() -> None:
    def body(e: Function, a: Value, b: Value) -> Value:
        total, kept = [e.i64(0)], [b]
        with e.loop("i", a, [total, kept]) as i:
            odd = (i % 3).compare("ne", 0)
            with e.when(odd, [total, kept]):
                with e.loop("j", i, [total]) as j:
                    late = j.compare("ugt", 2)
                    with e.when(late, [total]):
                        total[0] = total[0] + j * i
                kept[0] = kept[0] + 1
        return total[0] + kept[0] * 1_000_000

    def model(a: int, b: int) -> int:
        total, kept = 0, b
        for i in range(a):
            if i % 3:
                total += sum(j * i for j in range(i) if j > 2)
                kept += 1
        return total + kept * 1_000_000

    native = integer_function(body)
    for a, b in ((1, 0), (2, 5), (5, 1), (12, 3)):
        assert native(a, b) == model(a, b)


Tree = tuple[str, int, int, "Tree | None"]


def _trees() -> st.SearchStrategy[Tree]:
    leaf = st.tuples(
        st.sampled_from(["loop", "when"]), st.integers(1, 5), st.integers(0, 9), st.none()
    )
    return st.recursive(
        leaf,
        lambda inner: st.tuples(
            st.sampled_from(["loop", "when"]), st.integers(1, 5), st.integers(0, 9), inner
        ),
        max_leaves=4,
    )


def _emit(e: Function, tree: Tree, cells: list[Value]) -> None:
    what, count, number, inner = tree
    if what == "loop":
        with e.loop("t", count, [cells]) as i:
            cells[0], cells[1] = cells[1] + i, cells[0]
            if inner:
                _emit(e, inner, cells)
            cells[1] = (cells[1] + number) & 0xFFFF
        return
    with e.when((cells[0] % 3).compare("ult", count % 3), [cells]):
        if inner:
            _emit(e, inner, cells)
        cells[0] = (cells[0] + number + 1) & 0xFFFF


def _model(tree: Tree, cells: list[int]) -> None:
    what, count, number, inner = tree
    if what == "loop":
        for i in range(count):
            cells[0], cells[1] = cells[1] + i, cells[0]
            if inner:
                _model(inner, cells)
            cells[1] = (cells[1] + number) & 0xFFFF
    elif cells[0] % 3 < count % 3:
        if inner:
            _model(inner, cells)
        cells[0] = (cells[0] + number + 1) & 0xFFFF


@settings(max_examples=40, deadline=None)
@given(_trees(), st.integers(0, 50), st.integers(0, 50))
def test_any_nest_of_loops_and_conditions(tree: Tree, a: int, b: int) -> None:
    def body(e: Function, first: Value, second: Value) -> Value:
        cells = [first, second]
        _emit(e, tree, cells)
        return cells[0] * 0x1000000 + cells[1]

    cells = [a, b]
    _model(tree, cells)
    assert integer_function(body)(a, b) == cells[0] * 0x1000000 + cells[1]


def test_chunks_give_every_coordinate_once() -> None:
    extents = (3, 4, 5)
    e = Function("f")
    y = e.pointer(0, "i64")
    with e.chunks(*extents) as (i, j, k):
        place = (i * 4 + j) * 5 + k
        e.store(i * 100 + j * 10 + k, y.at(place))
    library = load_text(e.finish(), ["f"], "test")
    word, pointer = ctypes.c_int64, ctypes.c_void_p
    native = ctypes.CFUNCTYPE(None, pointer, word, word, pointer)(library.address("f"))
    out = np.full(60, -1, np.int64)
    table = (word * 1)(out.ctypes.data)
    native(ctypes.addressof(table), 7, 31, None)
    expected = [i * 100 + j * 10 + k for i, j, k in np.ndindex(*extents)]
    assert out[7:31].tolist() == expected[7:31]
    assert (out[:7] == -1).all()
    assert (out[31:] == -1).all()
    native(ctypes.addressof(table), 0, 60, None)
    assert out.tolist() == expected


def test_an_outline_has_both_branches() -> None:
    e = Function("two")
    to = e.pointer(0, "float")
    with e.chunks(4) as (i,):
        with e.when(
            i.compare("ult", 2), otherwise=lambda: e.store(e.const("float", 2.0), to.at(i))
        ):
            e.store(e.const("float", 1.0), to.at(i))
    lines = [line.strip() for line in outline(e.finish()).splitlines()]
    at = lines.index("if")
    assert lines[at : at + 4] == ["if", "1 store", "else", "1 store"]
