"""The emitter: types, literals, arithmetic, memory and its masks."""

from __future__ import annotations

import ctypes
import sys

import numpy as np
import pytest

from leanconv.codegen.compiler import load_text
from leanconv.codegen.emitter import (
    Function,
    Index,
    Value,
    bytes_of,
    element_of,
    lanes_of,
    vector,
)
from leanconv.codegen.values import literal
from leanconv.errors import CompileError
from support.cache_check import run_program
from support.emitted import compiles, integer_function, map_arrays


# -- types and literals --------------------------------------------------------------------
@pytest.mark.parametrize("element", ["float", "double", "i1", "i32", "i64", "half"])
@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16])
def test_types_round_trip(element: str, lanes: int) -> None:
    kind = vector(element, lanes)
    assert (element_of(kind), lanes_of(kind)) == (element, lanes)


@pytest.mark.parametrize(
    ("kind", "size"), [("float", 4), ("double", 8), ("ptr", 8), ("i64", 8), ("i32", 4), ("i1", 1)]
)
def test_sizes(kind: str, size: int) -> None:
    assert bytes_of(kind) == size


@pytest.mark.parametrize(
    "value",
    [
        0.0,
        -0.0,
        1.0,
        0.1,
        1 / 3,
        1e-45,
        1e-310,
        3.4028235e38,
        1e39,
        -1e300,
        float("inf"),
        2**24 + 1,
    ],
)
@pytest.mark.parametrize("kind", ["float", "double"])
def test_float_literals_are_exact(kind: str, value: float) -> None:
    lanes = 4
    dtype = np.float32 if kind == "float" else np.float64
    found = map_arrays(
        vector(kind, lanes),
        lambda e, x: e.const(x.kind, value) + e.zero(x.kind) if value else e.const(x.kind, value),
        np.ones(lanes, dtype),
    )
    with np.errstate(over="ignore"):
        expected = np.full(lanes, value).astype(dtype)
    assert found.tobytes() == expected.tobytes()


def test_nan_literal() -> None:
    found = map_arrays("<4 x float>", lambda e, x: e.const(x.kind, float("nan")), np.ones(4, "f4"))
    assert np.isnan(found).all()


HALF_NUMBERS = [0.0, -0.0, 0.1, -1 / 3, 2049, 2051, 65504, 65519, 65520, 1e39, 1e-7, -3e-8, 6.2e-5]


@pytest.mark.parametrize("value", [*HALF_NUMBERS, float("inf")])
def test_literals_of_half_precision_are_the_nearest_numbers(value: float) -> None:
    with np.errstate(over="ignore"):
        nearest = float(np.float16(value))
    assert literal("half", value) == literal("double", nearest)


@pytest.mark.parametrize("value", [*HALF_NUMBERS, 257.0, 259.0, 3.39e38, 3.4e38, 9.2e-41, -1e-45])
def test_literals_of_bfloat_are_the_nearest_numbers(value: float) -> None:
    """Of all there are; beside the largest, 2^128 stands for infinity."""
    numbers = (np.arange(0x7F80, dtype=np.uint32) << 16).view(np.float32).astype(np.float64)
    apart = np.abs(np.append(numbers, 2.0**128) - abs(value))
    first, *other = np.flatnonzero(apart == apart.min())
    nearest = other[0] if other and first % 2 else first  # the even one of two
    expected = np.copysign(np.append(numbers, np.inf)[nearest], value)
    assert literal("bfloat", value) == literal("double", float(expected))


@pytest.mark.parametrize("kind", ["half", "<4 x bfloat>"])
def test_literals_of_halves_are_those_of_llvm(kind: str) -> None:
    e = Function("f", [("x", "ptr")])
    for number in (0.1, 1e39, -3e-8, float("nan")):
        e.store(e.const(kind, number), e.address(0, element_of(kind)))
    assert compiles(e.finish())


def test_sequence_literal_keeps_order() -> None:
    found = map_arrays(
        "<4 x double>", lambda e, x: x * e.const(x.kind, [1, 0.5, -2, 3]), np.arange(1.0, 5.0)
    )
    assert found.tolist() == [1.0, 1.0, -6.0, 12.0]
    assert literal("i64", -7) == "-7"


# -- arithmetic ----------------------------------------------------------------------------
OPERATIONS = {
    "a + b": lambda a, b: a + b,
    "a - b": lambda a, b: a - b,
    "7 - a": lambda a, b: 7 - a,
    "a * b": lambda a, b: a * b,
    "3 * a": lambda a, b: 3 * a,
    "a // b": lambda a, b: a // b,
    "a // 1": lambda a, b: a // 1,
    "a % b": lambda a, b: a % b,
    "a % 1": lambda a, b: a % 1,
    "a & b": lambda a, b: a & b,
    "a | 5": lambda a, b: a | 5,
    "a ^ b": lambda a, b: a ^ b,
    "a << 3": lambda a, b: a << 3,
    "a + 0 - 0 * 1": lambda a, b: (a + 0) - 0 + b * 1,
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_integer_arithmetic(name: str) -> None:
    operation = OPERATIONS[name]
    native = integer_function(lambda e, a, b: operation(a, b))
    for a, b in ((0, 1), (1, 1), (17, 5), (1000, 7), (12345678901, 98765)):
        assert native(a, b) == operation(a, b)


@pytest.mark.parametrize(("element", "bits"), [("i8", 8), ("i16", 16), ("i32", 32), ("i64", 64)])
def test_integers_of_data_wrap_as_those_of_numpy(element: str, bits: int) -> None:
    """Modulo 2^bits: sums that overflow on the way, as of Winograd's products, come out right."""
    lanes, dtype = 64 // (bits // 8), np.dtype(f"i{bits // 8}")
    kind, random = vector(element, lanes), np.random.default_rng(bits)
    least = np.iinfo(dtype).min
    a, b = (random.integers(least, -(least + 1), lanes, dtype, endpoint=True) for _ in "ab")
    a[:3], b[:3] = (least, -(least + 1), least), (least, 1, -1)
    with np.errstate(over="ignore"):
        wanted = {"+": a + b, "-": a - b, "*": a * b, "<<": a << 3}
    found = {
        "+": map_arrays(kind, lambda e, x, y: x + y, a, b),
        "-": map_arrays(kind, lambda e, x, y: x - y, a, b),
        "*": map_arrays(kind, lambda e, x, y: x * y, a, b),
        "<<": map_arrays(kind, lambda e, x: x << 3, a),
    }
    for name, values in wanted.items():
        assert np.array_equal(found[name], values), name


def test_llvm_may_take_indices_never_to_overflow_but_not_data() -> None:
    """With `nsw` an overflow is poison, from which LLVM may derive anything."""
    e = Function("f", [("n", "i64"), ("x", "ptr")])
    n, x = e.arguments[0], e.address(1, "i64")
    with e.loop("i", n) as i:
        loaded = e.load(x.at(i * 3))
        e.store(loaded * 5 + 7 - i, x.at(i))
        vectors = e.load(x, "<4 x i32>")
        e.store(vectors * vectors - 1 + vectors, x)
    lines = [line for line in e.finish().splitlines() if " add " in line or " mul " in line]
    lines += [line for line in e.finish().splitlines() if " sub " in line]
    assert sorted(line.split(" = ")[1].split("%")[0].strip() for line in lines) == [
        "add <4 x i32>",
        "add i64",
        "add nuw nsw i64",
        "mul <4 x i32>",
        "mul i64",
        "mul nsw i64",
        "sub <4 x i32>",
        "sub i64",
    ]


def test_what_follows_from_an_index_is_one() -> None:
    e = Function("f", [("n", "i64"), ("x", "ptr")])
    n, x = e.arguments
    for index in (n % 1, n // 3, n % 3, 2 - n, n & 7, e.smin(n, 5), e.i64(4), n.frozen()):
        assert type(index) is Index, index
    assert type(e.select(n.compare("slt", 3), n, e.i64(0))) is Index
    carried = [e.i64(0), e.load(x, "i64")]
    with e.loop("i", n, [carried]), e.when(n.compare("ult", 3), [carried]):
        assert [type(value) for value in carried] == [Index, Value]
        carried[:] = [carried[0] + 1, carried[1] + 1]
    assert [type(value) for value in carried] == [Index, Value]
    assert type(e.load_index(x)) is type(e.index(e.load(x, "i64"))) is Index


def test_integer_minimum_and_maximum_are_signed() -> None:
    smallest = integer_function(lambda e, a, b: e.smin(a, b))
    largest = integer_function(lambda e, a, b: e.smax(a, 0))
    assert smallest(-3, 2) == -3
    assert (largest(-3, 0), largest(4, 0)) == (0, 4)


@pytest.mark.parametrize("kind", ["<8 x float>", "<2 x double>", "double"])
def test_float_arithmetic(kind: str) -> None:
    lanes, dtype = lanes_of(kind), "f4" if "float" in kind else "f8"
    random = np.random.default_rng(0)
    a, b, c = (random.normal(size=lanes).astype(dtype) for _ in range(3))
    assert np.array_equal(map_arrays(kind, lambda e, x, y: x + y, a, b), a + b)
    assert np.array_equal(map_arrays(kind, lambda e, x, y: x - y, a, b), a - b)
    assert np.array_equal(map_arrays(kind, lambda e, x, y: x * y, a, b), a * b)
    assert np.array_equal(map_arrays(kind, lambda e, x, y: x / y, a, b), a / b)
    assert np.array_equal(map_arrays(kind, lambda e, x: 1.0 / x, a), np.divide(1, a, dtype=dtype))
    assert np.array_equal(map_arrays(kind, lambda e, x: 2.0 - x, a), (2 - a).astype(dtype))
    root = map_arrays(kind, lambda e, x: e.unary("sqrt", x), np.abs(a))
    assert np.array_equal(root, np.sqrt(np.abs(a)))
    fused = map_arrays(kind, lambda e, x, y, z: e.fma(x, y, z), a, b, c)
    wide = a.astype(np.longdouble) * b + c
    assert np.array_equal(fused, wide.astype(dtype))


def test_minimum_and_maximum_take_the_second_where_the_first_is_nan() -> None:
    a = np.array([1, np.nan, 3, -0.5], "f4")
    b = np.array([2, 5, np.nan, -0.5], "f4")
    largest = map_arrays("<4 x float>", lambda e, x, y: e.maximum(x, y), a, b)
    smallest = map_arrays("<4 x float>", lambda e, x, y: e.minimum(x, y), a, b)
    np.testing.assert_array_equal(largest, np.array([2, 5, np.nan, -0.5], "f4"))
    np.testing.assert_array_equal(smallest, np.array([1, 5, np.nan, -0.5], "f4"))


def test_conversions_lanes_and_shuffles() -> None:
    x = np.arange(4, dtype="f4")
    wide = map_arrays("<4 x float>", lambda e, v: e.convert("fpext", v, "<4 x double>"), x)
    assert wide.dtype == np.float64
    assert wide.tolist() == [0, 1, 2, 3]
    whole = map_arrays("<4 x float>", lambda e, v: e.convert("fptosi", v, "<4 x i32>"), x)
    assert whole.tolist() == [0, 1, 2, 3]
    turned = map_arrays("<4 x float>", lambda e, v, w: e.shuffle(v, w, [7, 0, 4, 3]), x, x + 10)
    assert turned.tolist() == [13, 0, 10, 3]
    partly = map_arrays("<4 x float>", lambda e, v: e.shuffle(v, None, [-1, 2]), x)
    assert partly[1] == 2
    other = map_arrays("<4 x float>", lambda e, v: e.insert(v, e.extract(v, 3), 0), x)
    assert other.tolist() == [3, 1, 2, 3]
    same = map_arrays("float", lambda e, v: e.splat(e.extract(v, 0), 8), x[2:])
    assert same.tolist() == [2] * 8


# -- memory --------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["<4 x float>", "<8 x float>", "<16 x float>", "<8 x double>"])
def test_first_lanes_only(kind: str) -> None:
    lanes, dtype = lanes_of(kind), "f4" if "float" in kind else "f8"
    x = np.arange(1, lanes + 1, dtype=dtype)
    for count in range(1, lanes + 1):
        found = map_arrays(kind, lambda e, v, n=count: e.load_first(e.pointer(0), v.kind, n), x)
        assert found.tolist() == [*x[:count].tolist(), *[0] * (lanes - count)]
        e = Function("f", [("args", "ptr")])
        e.store_first(e.const(kind, 7.0), e.pointer(0), count)
        library = load_text(e.finish(), ["f"], "test")
        out = np.zeros(lanes + 4, dtype)
        table = (ctypes.c_int64 * 1)(out.ctypes.data)
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(library.address("f"))(ctypes.addressof(table))
        assert out.tolist() == [7.0] * count + [0.0] * (len(out) - count)


_AT_THE_END_OF_A_PAGE = """
import ctypes, mmap
from leanconv.codegen.compiler import load_text
from leanconv.codegen.emitter import Function
page = mmap.PAGESIZE
pages = mmap.mmap(-1, 2 * page)
start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.mprotect(ctypes.c_void_p(start + page), page, 0) == 0
for kind in ("<16 x float>", "<8 x float>", "<4 x float>", "<8 x double>"):
    size = 8 if "double" in kind else 4
    e = Function("f", [("args", "ptr")])
    place = e.pointer(0)
    v = e.load_first(place, kind, 3)
    e.store_first(v + 1.0, place, 3)
    library = load_text(e.finish(), ["f"], "test")
    table = (ctypes.c_int64 * 1)(start + page - 3 * size)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(library.address("f"))(ctypes.addressof(table))
print("untouched")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="protects a page with mprotect")
def test_masked_lanes_are_never_touched() -> None:
    """Three lanes before a page that may not be read: one byte more is a crash."""
    result = run_program(_AT_THE_END_OF_A_PAGE)
    assert result.stdout.strip() == "untouched", result.stderr


def test_local_arrays_are_aligned_and_separate() -> None:
    def body(e: Function, a: Value, b: Value) -> Value:
        first, second = e.local("i64", 8), e.local("i64", 8)
        with e.loop("i", 8) as i:
            e.store(i * a, first.at(i))
            e.store(i * b, second.at(i))
        total = [e.i64(0)]
        with e.loop("i", 8, [total]) as i:
            total[0] = total[0] + e.load(first.at(i))
        last = e.load(second.at(7))
        address = e.convert("ptrtoint", first, "i64") % 64
        return total[0] * 1000 + last + address * 1_000_000

    assert integer_function(body)(2, 3) == 56 * 1000 + 21


def test_an_intrinsic_is_declared_once() -> None:
    e = Function("f", [("args", "ptr")])
    x = e.load(e.pointer(0), "<4 x float>")
    e.store(e.fma(e.fma(x, x, x), x, x), e.pointer(0))
    e.prefetch(e.pointer(0))
    e.prefetch(e.pointer(0), write=True, locality=2)
    text = e.finish()
    assert text.count("declare <4 x float> @llvm.fma.v4f32") == 1
    assert text.count("declare void @llvm.prefetch") == 1
    assert compiles(text)


def test_invalid_code_is_an_error_of_ours() -> None:
    with pytest.raises(CompileError, match="invalid code"):
        compiles("define void @f() { ret i64 1 }")
