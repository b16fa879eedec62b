"""How sums begin: the numbers of channels along the lanes, or one in all lanes, of any type."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest

from leanconv.codegen.compiler import load_text
from leanconv.codegen.dot import fma
from leanconv.codegen.emitter import Function, Pointer, Value, lanes_of, vector
from leanconv.codegen.microkernel import (
    RegisterTile,
    add_start,
    broadcast_channels,
    channel_address,
    load_channels,
    start_planes,
    start_tile,
    start_vectors,
)
from leanconv.types import FLOAT32
from support.emitted import DTYPE

ELEMENTS = ["float", "double", "i32"]
Start = Callable[[Function, str, Pointer | None], list[Value]]


def begun(element: str, lanes: int, start: Start, bias: bool = True) -> np.ndarray:
    """What sums begin at, a row for each vector of them; biases are 3, 4, 5 …"""
    e = Function("f", [("bias", "ptr"), ("y", "ptr")])
    kind, y = vector(element, lanes), e.address(1, element)
    values = start(e, kind, e.address(0, element) if bias else None)
    for number, value in enumerate(values):
        assert lanes_of(value.kind) == lanes
        e.store(value, y.at(number * lanes))
    native = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
    library = load_text(e.finish(), ["f"], "test")
    numbers = np.arange(3, 40).astype(DTYPE[element])
    found = np.full((len(values), lanes), 77, numbers.dtype)
    native(library.address("f"))(numbers.ctypes.data, found.ctypes.data)
    return found


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("lanes", [1, 4])
def test_lanes_are_channels(element: str, lanes: int) -> None:
    found = begun(element, lanes, lambda e, kind, bias: start_vectors(e, kind, bias, 3))
    assert np.array_equal(found, np.arange(3, 3 + 3 * lanes).reshape(3, lanes))


def test_a_tile_begins_alike_in_all_rows() -> None:
    tile = RegisterTile(fma(FLOAT32), 4, 2, 1)
    found = begun("float", 4, lambda e, kind, bias: start_tile(e, tile, 3, bias))
    assert np.array_equal(found, np.tile(np.arange(3, 11).reshape(2, 4), (3, 1)))


@pytest.mark.parametrize("element", ELEMENTS)
def test_lanes_are_columns(element: str) -> None:
    found = begun(element, 4, lambda e, kind, bias: start_planes(e, kind, bias, 3))
    assert np.array_equal(found, np.repeat([[3], [4], [5]], 4, axis=1))


@pytest.mark.parametrize("element", ELEMENTS)
def test_without_a_bias_sums_begin_at_zero(element: str) -> None:
    for start in (
        lambda e, kind, bias: start_vectors(e, kind, bias, 2),
        lambda e, kind, bias: start_planes(e, kind, bias, 2),
    ):
        assert not begun(element, 4, start, bias=False).any()


@pytest.mark.parametrize("element", ELEMENTS)
def test_sums_from_elsewhere_get_the_bias_or_stay(element: str) -> None:
    def start(e: Function, kind: str, bias: Pointer | None) -> list[Value]:
        there = load_channels(e, kind, bias)
        return [add_start(e.const(kind, number), there) for number in (10, 20)]

    assert np.array_equal(begun(element, 4, start), np.add(np.arange(3, 7), [[10], [20]]))
    assert np.array_equal(begun(element, 4, start, bias=False), np.repeat([[10], [20]], 4, axis=1))


def test_an_operand_that_is_not_there_has_no_address() -> None:
    e = Function("f")
    pointers = e.pointers(("bias",), "float")
    assert channel_address(pointers, "slope", 3) is None
    found = channel_address(pointers, "bias", e.hi)
    assert found
    assert found.element == "float"


@pytest.mark.parametrize("load", [start_vectors, load_channels, start_planes, broadcast_channels])
def test_numbers_of_another_type_than_the_sums_are_refused(load: Callable[..., object]) -> None:
    e = Function("f")
    kind, bias = vector("i32", 8), e.pointer(0, "float")
    count = () if load is load_channels else (1,)
    with pytest.raises(AssertionError, match="of the sums' type"):
        (load(e, kind, bias, *count))
