"""Tiles and tails: every item is computed once, and no tail is emitted where there is none."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest

from leanconv.codegen.compiler import load_text
from leanconv.codegen.emitter import Function, Pointer, Value, element_of, lanes_of
from leanconv.codegen.tails import each_tile, last_or_other, tile_at, tiles_of_chunk

SIZES = [(total, 4) for total in (1, 3, 4, 5, 7, 8, 9, 16)]
Body = Callable[[Function, Pointer, Value], None]


def counted(total: int, calls: int, body: Body) -> list[int]:
    """How often each item was computed by a function called with 0, 1 … calls - 1."""
    e = Function("f", [("counts", "ptr"), ("number", "i64")])
    body(e, e.address(0, "i64"), e.arguments[1])
    library = load_text(e.finish(), ["f"], "test")
    native = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(library.address("f"))
    counts = np.zeros(total + 8, "int64")
    for number in range(calls):
        native(counts.ctypes.data, number)
    assert not counts[total:].any(), "written past the end"
    return counts[:total].tolist()


def count(e: Function, counts: Pointer, first: Value | int, items: int) -> None:
    for k in range(items):
        place = counts.at(e.i64(first) + k)
        e.store(e.load(place) + 1, place)


@pytest.mark.parametrize(("total", "size"), SIZES)
def test_each_tile(total: int, size: int) -> None:
    def body(e: Function, counts: Pointer, number: Value) -> None:
        del number
        for index, items in each_tile(e, "tile", total, size):
            count(e, counts, index * size, items)

    assert counted(total, 1, body) == [1] * total


@pytest.mark.parametrize("is_tail", ["uge", "eq"])
@pytest.mark.parametrize(("total", "size"), SIZES)
def test_tile_at(total: int, size: int, is_tail: str) -> None:
    def body(e: Function, counts: Pointer, number: Value) -> None:
        for items in tile_at(e, number, total, size, "eq" if is_tail == "eq" else "uge"):
            count(e, counts, number * size, items)

    assert counted(total, -(-total // size), body) == [1] * total


@pytest.mark.parametrize("per_chunk", [1, 2, 3])
@pytest.mark.parametrize(("total", "size"), SIZES)
def test_tiles_of_chunk(total: int, size: int, per_chunk: int) -> None:
    def body(e: Function, counts: Pointer, number: Value) -> None:
        for index, items in tiles_of_chunk(e, "tile", number, per_chunk, total, size):
            count(e, counts, index * size, items)

    tiles = -(-total // size)
    assert counted(total, -(-tiles // per_chunk), body) == [1] * total


def test_last_or_other() -> None:
    def body(e: Function, counts: Pointer, number: Value) -> None:
        for items in last_or_other(e, number, 3, 1, 2):
            count(e, counts, number * 2, items)

    assert counted(5, 3, body) == [1] * 5


@pytest.mark.parametrize("total", [4, 16])
def test_no_condition_without_a_tail(total: int) -> None:
    e = Function("f", [("counts", "ptr"), ("number", "i64")])
    assert list(tile_at(e, e.arguments[1], total, total)) == [total]
    assert list(last_or_other(e, e.arguments[1], 3, total, total)) == [total]
    assert "br " not in e.finish()


@pytest.mark.parametrize("kind", ["<4 x float>", "<8 x float>", "<16 x float>", "<8 x double>"])
@pytest.mark.parametrize("whole", [True, False])
def test_first_lanes_of_several_vectors_by_parts(kind: str, whole: bool) -> None:
    lanes, dtype = lanes_of(kind), "f4" if "float" in kind else "f8"
    element = element_of(kind)
    e = Function("f", [("args", "ptr")])
    values = [e.load(e.pointer(0, element).at(i * lanes), kind) for i in range(3)]
    places = [e.pointer(1, element).at(i * (lanes + 2)) for i in range(3)]
    count = e.load(e.address(0, "i64").at(2))
    e.store_parts(list(zip(values, places, strict=True)), count, lanes - (not whole))
    library = load_text(e.finish(), ["f"], "test")
    x = np.arange(1, 3 * lanes + 1, dtype=dtype)
    for n in range(lanes + whole):
        out = np.zeros((3, lanes + 2), dtype)
        table = (ctypes.c_int64 * 3)(x.ctypes.data, out.ctypes.data, n)
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(library.address("f"))(ctypes.addressof(table))
        expected = np.zeros_like(out)
        expected[:, :n] = x.reshape(3, lanes)[:, :n]
        assert out.tolist() == expected.tolist()
