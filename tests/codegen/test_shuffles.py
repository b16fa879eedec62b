"""Transposition of squares in registers, for every number of lanes there is."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from leanconv.codegen.compiler import load_text
from leanconv.codegen.emitter import Function, vector
from leanconv.codegen.shuffles import (
    columns_of_halves,
    halves_fit,
    halves_of_columns,
    interleave,
    transpose,
)
from leanconv.target import preset
from support.emitted import DTYPE
from support.listing import assembly_text

SQUARES = [
    *[("float", n) for n in (1, 2, 4, 8, 16, 32)],
    *[("double", n) for n in (1, 2, 4, 8, 16)],
    *[("i32", n) for n in (4, 8, 16)],
]


def _square(element: str, lanes: int) -> str:
    e = Function("f", [("x", "ptr"), ("y", "ptr")])
    kind = vector(element, lanes)
    x, y = e.address(0, element), e.address(1, element)
    rows = [e.load(x.at(i * lanes), kind) for i in range(lanes)]
    for i, column in enumerate(transpose(e, rows)):
        e.store(column, y.at(i * lanes))
    return e.finish()


@pytest.mark.parametrize(("element", "lanes"), SQUARES)
def test_transpose(element: str, lanes: int) -> None:
    library = load_text(_square(element, lanes), ["f"], "test")
    x = np.arange(lanes * lanes, dtype=DTYPE[element]).reshape(lanes, lanes)
    y = np.zeros_like(x)
    native = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(library.address("f"))
    native(x.ctypes.data, y.ctypes.data)
    assert np.array_equal(y, x.T)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("lanes", [2, 4, 8, 16])
def test_interleave(count: int, lanes: int) -> None:
    e = Function("f", [("x", "ptr"), ("y", "ptr")])
    x, y = e.address(0, "float"), e.address(1, "float")
    rows = [e.load(x.at(i * lanes), vector("float", lanes)) for i in range(count)]
    for i, value in enumerate(interleave(e, rows)):
        e.store(value, y.at(i * lanes))
    library = load_text(e.finish(), ["f"], "test")
    values = np.arange(count * lanes, dtype=np.float32).reshape(count, lanes)
    found = np.full(count * lanes, np.nan, np.float32)
    native = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(library.address("f"))
    native(values.ctypes.data, found.ctypes.data)
    assert np.array_equal(found, values.T.reshape(-1))


@pytest.mark.parametrize(
    ("name", "lanes"), [("haswell", 8), ("skylake-avx512", 16), ("neoverse-n1", 4)]
)
def test_number_of_shuffles(name: str, lanes: int) -> None:
    """L·log2(L) shuffles are written, and the machine needs no more instructions than that."""
    text = _square("float", lanes)
    most = lanes * (lanes.bit_length() - 1)
    assert text.count("shufflevector") == most
    listing = assembly_text(text, preset(name))
    words = ("vunpck", "vshuf", "vperm", "vinsert", "vblend", "zip", "trn", "uzp", "ext", "vmovlh")
    moves = [
        line for line in listing.splitlines() if line.split() and line.split()[0].startswith(words)
    ]
    assert 0 < len(moves) <= most


HALVES = [("float", 8), ("float", 16), ("double", 4), ("double", 8)]


def _run(text: str, x: np.ndarray, y: np.ndarray) -> None:
    library = load_text(text, ["f"], "test")
    native = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(library.address("f"))
    native(x.ctypes.data, y.ctypes.data)


@pytest.mark.parametrize(("element", "lanes"), HALVES)
def test_columns_of_half_rows(element: str, lanes: int) -> None:
    half = lanes // 2
    e = Function("f", [("x", "ptr"), ("y", "ptr")])
    x, y = e.address(0, element), e.address(1, element)
    rows = [e.load(x.at(i * half), vector(element, half)) for i in range(lanes)]
    assert halves_fit(vector(element, lanes))
    for j, column in enumerate(columns_of_halves(e, rows)):
        e.store(column, y.at(j * lanes))
    given = np.arange(lanes * half, dtype=DTYPE[element]).reshape(lanes, half)
    found = np.zeros((half, lanes), DTYPE[element])
    _run(e.finish(), given, found)
    assert np.array_equal(found, given.T)


@pytest.mark.parametrize(("element", "lanes"), HALVES)
def test_half_rows_of_columns(element: str, lanes: int) -> None:
    half = lanes // 2
    for count in range(1, half + 1):
        e = Function("f", [("x", "ptr"), ("y", "ptr")])
        x, y = e.address(0, element), e.address(1, element)
        columns = [e.load(x.at(j * lanes), vector(element, lanes)) for j in range(count)]
        for i, row in enumerate(halves_of_columns(e, columns)):
            e.store(row, y.at(i * half))
        given = np.arange(count * lanes, dtype=DTYPE[element]).reshape(count, lanes)
        found = np.zeros((lanes, half), DTYPE[element])
        _run(e.finish(), given, found)
        assert np.array_equal(found[:, :count], given.T)
