"""Elementwise kernels between element types, exactly as NumPy computes them."""

from __future__ import annotations

import math

import ml_dtypes  # noqa: F401  tells NumPy of bfloat16
import numpy as np
import pytest

from leanconv.codegen.host import host
from leanconv.graph.ops import pointwise, typed
from leanconv.graph.ops.typed import HELD
from leanconv.kernels import elementwise
from leanconv.kernels.elementwise import Elementwise
from leanconv.kernels.expression import Step
from leanconv.target import Target, preset
from leanconv.types import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    FLOATS,
    INT8,
    INT16,
    INT32,
    INT64,
    NUMBERS,
    UINT8,
    UINT16,
    UINT64,
    DType,
)
from support.kernel_runner import run_kernel
from support.listing import assembly
from support.nodes import Case, run_in_place, run_node

# This machine, and AVX2 where it can run that.
RUN = [host()] if host().isa == "neon" else [host(), preset("haswell")]
TARGETS = pytest.mark.parametrize("target", RUN, ids=lambda t: t.name)
INTEGERS = tuple(each for each in NUMBERS if each.is_integer)
OPS = (*typed.OPS, *(op for op, each in pointwise.OPS.items() if INT64 in each.dtypes))
COMPARED = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")


def numbers(shape: tuple[int, ...], dtype: DType, seed: int = 0) -> np.ndarray:
    """Numbers of a type: its ends, some that are equal, some small ones; NaN and infinities."""
    generator = np.random.default_rng(seed)
    if dtype == BOOL:
        return generator.integers(0, 2, shape).astype(bool)
    if dtype.is_float:
        special = [np.nan, np.inf, -np.inf, 0.0, -0.0, dtype.high, dtype.low, 1.0]
        x = np.round(generator.normal(size=shape) * 30) / 4
    else:
        special = [dtype.low, dtype.low + 1, dtype.high, dtype.high - 1, 0, 1]
        x = generator.integers(max(dtype.low, -9), 9, shape)
    x = x.astype(dtype)
    chosen = generator.integers(0, 3, shape) == 0
    return np.where(chosen, generator.choice(np.array(special, dtype), shape), x).astype(dtype)


def check(case: Case, target: Target) -> None:
    found, wanted = case.run(target, False), case.expected()
    if wanted.dtype.name == BFLOAT16:
        wanted = wanted.view(BFLOAT16.numpy)  # as kernels leave them
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)
    if found.dtype == bool:
        assert set(np.unique(found.view(np.uint8))) <= {0, 1}


def castable(x: np.ndarray, source: DType, to: DType) -> np.ndarray:
    """Without the numbers of which ONNX does not say what becomes of them."""
    if not source.is_float or to.is_float or to == BOOL:
        return x
    wide = x.astype(np.float64)
    fits = (np.trunc(wide) >= to.low) & (np.trunc(wide) <= to.high) & (np.trunc(wide) < 2**62)
    return np.where(fits, x, x.dtype.type(3.75))


@pytest.mark.drawn
@pytest.mark.pairs
@TARGETS
@pytest.mark.parametrize("to", HELD)
@pytest.mark.parametrize("source", HELD)
def test_casts(source: DType, to: DType, target: Target) -> None:
    x = castable(numbers((3, 47), source), source, to)
    with np.errstate(all="ignore"):
        check(Case(elementwise, "Cast", [x], {"to": to}), target)


@TARGETS
def test_doubles_are_rounded_to_halves_once(target: Target) -> None:
    steps = np.arange(-300, 300) * 2.0**-30
    near = np.concatenate([(1 + k * 2.0**-11) * (1 + steps) for k in range(5)])
    x = np.concatenate([near, -near * 2.0**-15, near * 2.0**-20, near * 32000, [7e4, 1e-300]])
    with np.errstate(all="ignore"):
        check(Case(elementwise, "Cast", [x], {"to": FLOAT16}), target)


@pytest.mark.pairs
@TARGETS
@pytest.mark.parametrize("to", [*INTEGERS, UINT64])
@pytest.mark.parametrize("source", [FLOAT16, *FLOATS])
def test_numbers_out_of_range_are_the_same_wherever_they_lie(
    source: DType, to: DType, target: Target
) -> None:
    with np.errstate(all="ignore"):
        odd = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 4e9, -3e9, 70000.5, -5.5], source)
    lanes = [Case(elementwise, "Cast", [np.full(67, x)], {"to": to}) for x in odd]
    for case in lanes:
        assert len(set(case.run(target, False).tolist())) == 1


def kept_bits(number: float, to: DType) -> int:
    """What the rules say: the nearest of int32 or of 64 bits, of which the low bits are kept."""
    wide = INT32 if to.bytes <= 2 or to == INT32 else UINT64 if to == UINT64 else INT64
    held = 0 if math.isnan(number) else max(wide.low, min(wide.high, number))
    whole = int(held) if math.isfinite(held) else 0
    bits = whole % 2 ** (8 * to.bytes)
    return bits - 2 ** (8 * to.bytes) if to.kind == "int" and bits > to.high else bits


@TARGETS
@pytest.mark.parametrize("to", [*INTEGERS, UINT64])
@pytest.mark.parametrize("source", FLOATS)
def test_numbers_out_of_range_become_the_nearest(source: DType, to: DType, target: Target) -> None:
    ends = [s * (2.0**b + d) for b in (7, 8, 15, 16, 31, 32, 63, 64) for d in (-1, -0.5, 0, 1)
            for s in (1, -1)]  # fmt: skip
    x = np.array([*ends, math.nan, math.inf, -math.inf, 0.9, -0.9, -0.0], source)
    wanted = np.array([kept_bits(float(number), to) for number in x], to)
    small = np.where(np.abs(x) < 100, x, 7.5).astype(source)  # vectors that are all in range
    for row in (x, np.concatenate([small, small, small[:5], x, small])):
        found = Case(elementwise, "Cast", [row], {"to": to}).run(target, False)
        places = slice(None) if row is x else slice(2 * len(x) + 5, 3 * len(x) + 5)
        np.testing.assert_array_equal(found[places], wanted)
        if row is not x:
            np.testing.assert_array_equal(found[: len(x)], [kept_bits(float(v), to) for v in small])


@TARGETS
@pytest.mark.parametrize("dtype", [INT32, INT64, UINT8])
@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 5])
def test_powers_that_are_known(exponent: int, dtype: DType, target: Target) -> None:
    operands = [numbers((3, 37), dtype), np.array(exponent, dtype)]
    check(Case(elementwise, "Pow", operands, {}, constants=[1]), target)


@TARGETS
@pytest.mark.parametrize("columns", [63, 64, 65, 129, 261])
def test_rows_longer_than_registers_of_the_narrowest_type(columns: int, target: Target) -> None:
    shape, line = (3, columns), (columns,)
    for a, b in ((BOOL, BOOL), (UINT8, UINT8), (INT8, FLOAT32)):
        x, y = numbers(shape, a), numbers(line, b, 1)
        with np.errstate(all="ignore"):
            if a == BOOL:
                check(Case(elementwise, "And", [x, y], {}), target)
                check(Case(elementwise, "Xor", [x, x[:, :1]], {}), target)
            elif a == b:
                check(Case(elementwise, "BitwiseXor", [x, y], {}), target)
                check(Case(elementwise, "Add", [x, x[:, :1]], {}), target)
            else:
                check(Case(elementwise, "Cast", [x], {"to": b}), target)
                check(Case(elementwise, "Cast", [y], {"to": BOOL}), target)
    chosen = numbers(shape, BOOL)
    check(
        Case(elementwise, "Where", [chosen, numbers((3, 1), FLOAT32), numbers(line, FLOAT32)], {}),
        target,
    )


@pytest.mark.drawn
@pytest.mark.pairs
@TARGETS
@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("op", COMPARED)
def test_comparisons(op: str, dtype: DType, target: Target) -> None:
    a, b = numbers((5, 41), dtype), numbers((5, 41), dtype, 1)
    check(Case(elementwise, op, [a, b], {}), target)
    check(Case(elementwise, op, [a, numbers((5, 1), dtype, 2)], {}), target)


@TARGETS
@pytest.mark.parametrize("op", ["Equal", "And", "Or", "Xor", "Not"])
def test_logic(op: str, target: Target) -> None:
    operands = [numbers((7, 37), BOOL), numbers((37,), BOOL, 1)][: 1 if op == "Not" else 2]
    check(Case(elementwise, op, operands, {}), target)


@pytest.mark.drawn
@TARGETS
@pytest.mark.parametrize("dtype", HELD)
def test_where(dtype: DType, target: Target) -> None:
    chosen, a, b = numbers((5, 37), BOOL), numbers((5, 37), dtype), numbers((5, 1), dtype, 1)
    check(Case(elementwise, "Where", [chosen, a, b], {}), target)
    check(Case(elementwise, "Where", [chosen[:, :1], b, a], {}), target)
    check(Case(elementwise, "Where", [chosen, a, b[:1]], {}, constants=(2,)), target)
    check(Case(elementwise, "Where", [chosen, a[:1], b], {}, constants=(0, 1)), target)


BITS = ("BitwiseAnd", "BitwiseOr", "BitwiseXor")
BINARY = ("Add", "Sub", "Mul", "Div", "Min", "Max", "Pow", *BITS)


@pytest.mark.drawn
@pytest.mark.pairs
@TARGETS
@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("op", BINARY)
def test_integers_are_numbers_modulo_their_range(op: str, dtype: DType, target: Target) -> None:
    a, b = numbers((5, 41), dtype), numbers((5, 41), dtype, 1)
    if op == "Div":
        b = np.where(b == 0, dtype.high, b).astype(dtype)
    with np.errstate(all="ignore"):
        check(Case(elementwise, op, [a, b], {}), target)
        check(Case(elementwise, op, [a, b[:, :1]], {}, constants=(1,)), target)
        check(Case(elementwise, op, [a, b[:1, :1]], {}, constants=(1,)), target)


@TARGETS
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_shifts_by_any_number(dtype: DType, left: bool, target: Target) -> None:
    a, b = numbers((5, 41), dtype), numbers((5, 41), dtype, 1)
    check(Case(elementwise, "BitShift", [a, b], {"left": left}), target)
    few = np.arange(41).astype(dtype)
    check(Case(elementwise, "BitShift", [a, few], {"left": left}, constants=(1,)), target)


@TARGETS
@pytest.mark.parametrize("towards_zero", [False, True])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_remainders(dtype: DType, towards_zero: bool, target: Target) -> None:
    a, b = numbers((5, 41), dtype), numbers((5, 41), dtype, 1)
    b = np.where(b == 0, 7, b).astype(dtype)
    with np.errstate(all="ignore"):
        check(Case(elementwise, "Mod", [a, b], {"fmod": towards_zero}), target)


@TARGETS
@pytest.mark.parametrize("towards_zero", [False, True])
@pytest.mark.parametrize("dtype", FLOATS)
def test_remainders_of_floats(dtype: DType, towards_zero: bool, target: Target) -> None:
    a, b = numbers((9, 41), dtype), numbers((9, 41), dtype, 1)
    generator = np.random.default_rng(3)
    wide = generator.normal(size=(2, 2000)) * 10.0 ** generator.integers(-36, 36, (2, 2000))
    with np.errstate(all="ignore"):
        for operands in ([a, b], list(wide.astype(dtype))):
            case = Case(elementwise, "Mod", operands, {"fmod": towards_zero})
            check(case, target)
            found, wanted = case.run(target, False), case.expected()
            signs = np.signbit(found) == np.signbit(wanted)
            assert np.all(signs | np.isnan(wanted))


@TARGETS
@pytest.mark.parametrize("op", ["Div", "Mod"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_nothing_traps(op: str, dtype: DType, target: Target) -> None:
    """By zero the quotient is zero, and so is the remainder; the least number by -1 is itself."""
    attributes = {"fmod": False} if op == "Mod" else {}
    a, b = numbers((67,), dtype), np.zeros(67, dtype)
    assert not Case(elementwise, op, [a, b], attributes).run(target, False).any()
    if dtype.kind == "int":
        least, minus = np.full(67, dtype.low, dtype), np.full(67, -1, dtype)
        found = Case(elementwise, op, [least, minus], attributes).run(target, False)
        assert set(found.tolist()) == {dtype.low if op == "Div" else 0}


@TARGETS
@pytest.mark.parametrize("op", ["Div", "Mod"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_quotients_beside_whole_numbers(op: str, dtype: DType, target: Target) -> None:
    """All pairs of 8 bits; of wider ones multiples of the divisor and their neighbours."""
    generator = np.random.default_rng(5)
    if dtype.bytes == 1:
        every = np.arange(int(dtype.low), int(dtype.high) + 1).astype(dtype)
        a, b = np.repeat(every, 256), np.tile(every, 256)
    else:
        wide = 1 << generator.integers(1, 8 * dtype.bytes - 1, 4000).astype(object)
        b = np.array([int(generator.integers(1, limit + 1)) for limit in wide], object)
        times = np.array([int(dtype.high) // int(by) for by in b], object)
        times = np.where(generator.integers(0, 2, 4000), times, times // 3)
        near = b * times + generator.integers(-1, 2, 4000).astype(object)
        a = np.array([min(max(int(n), int(dtype.low)), int(dtype.high)) for n in near], object)
        if dtype.kind == "int":
            a, b = (np.where(generator.integers(0, 2, 4000), n, -n) for n in (a, b))
        a, b = a.astype(dtype), b.astype(dtype)
    b = np.where(b == 0, 1, b).astype(dtype)
    attributes = {"fmod": True} if op == "Mod" else {}
    with np.errstate(all="ignore"):
        check(Case(elementwise, op, [a, b], attributes), target)


@pytest.mark.pairs
@TARGETS
@pytest.mark.parametrize("op", ["Neg", "Abs", "Relu", "Sign", "BitwiseNot"])
@pytest.mark.parametrize("dtype", NUMBERS)
def test_unary(op: str, dtype: DType, target: Target) -> None:
    if dtype.is_float if op == "BitwiseNot" else dtype.kind == "uint" and op != "Sign":
        return
    with np.errstate(all="ignore"):
        check(Case(elementwise, op, [numbers((5, 41), dtype)], {}), target)


@TARGETS
@pytest.mark.parametrize("dtype", FLOATS)
def test_of_floats(dtype: DType, target: Target) -> None:
    x = numbers((5, 41), dtype)
    for op in ("Floor", "Ceil", "Round", "IsNaN"):
        check(Case(elementwise, op, [x], {}), target)
    for signs in ((True, True), (True, False), (False, True), (False, False)):
        attributes = dict(zip(("positive", "negative"), signs, strict=True))
        check(Case(elementwise, "IsInf", [x], attributes), target)


SIZES = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 129, 16384, 16385, 40001)
PAIRS = [(FLOAT32, BOOL), (BOOL, INT64), (UINT8, INT8), (FLOAT64, FLOAT16), (INT16, FLOAT32)]


@pytest.mark.pairs
@TARGETS
@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_sizes(size: int, pair: tuple[DType, DType], target: Target) -> None:
    x = castable(numbers((size,), pair[0]), *pair)
    with np.errstate(all="ignore"):
        check(Case(elementwise, "Cast", [x], {"to": pair[1]}), target)


SHAPES = [
    ((2, 3, 4, 5), (5,), (4, 1)),
    ((), (7,), (1,)),
    ((3, 129), (1, 129), (3, 1)),
    ((129, 3), (3,), (129, 1)),
    ((300, 200), (300, 1), ()),
    ((1, 1), (1,), ()),
    ((3, 20000), (20000,), (3, 1)),
    ((2, 1, 1, 9000), (1, 3, 4, 1), (4, 1)),
]


@pytest.mark.drawn
@pytest.mark.pairs
@TARGETS
@pytest.mark.parametrize("dtype", [BOOL, UINT8, FLOAT16, FLOAT32, INT64])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_broadcasting(shapes: tuple[tuple[int, ...], ...], dtype: DType, target: Target) -> None:
    for order in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        chosen, a, b = (shapes[i] for i in order)
        operands = [numbers(chosen, BOOL), numbers(a, dtype, 1), numbers(b, dtype, 2)]
        check(Case(elementwise, "Where", operands, {}), target)


def test_a_chain_of_steps_between_types() -> None:
    """int32((x < z) ? x : 2.5), with no memory between the steps."""
    x, z = numbers((3, 40), FLOAT32), numbers((3, 1), FLOAT32, 1)
    x = np.where(np.abs(x) < 100, x, 1).astype("f4")
    steps = (
        Step("Less", (0, 1), types=(FLOAT32, BOOL)),
        Step("Where", (3, 0, 2), types=(FLOAT32, FLOAT32)),
        Step("Add", (4, 2)),
        Step("Cast", (5,), types=(FLOAT32, INT32)),
    )
    kernel = Elementwise(
        FLOAT32, (3, 40), ((40, 1), (1, 0)), (2.5,), steps, (FLOAT32, FLOAT32, INT32)
    )
    y = run_kernel(kernel, x, z, np.full(x.shape, -1, np.int32))
    np.testing.assert_array_equal(y, (np.where(x < z, x, 2.5) + 2.5).astype(np.int32))


def test_memory_is_taken_over_by_elements_of_one_size() -> None:
    a, b = numbers((40, 50), INT32), numbers((40, 50), INT32, 1)
    outcome = run_node(elementwise.lower, "Max", {"a": a, "b": b})
    assert outcome.lowered.calls[0].in_place == (0, 1)
    np.testing.assert_array_equal(run_in_place(outcome, 1, a, b), np.maximum(a, b))
    less = run_node(elementwise.lower, "Less", {"a": a, "b": b})
    assert less.lowered.calls[0].in_place == ()
    cast = run_node(elementwise.lower, "Cast", {"a": a}, to=FLOAT32)
    assert cast.lowered.calls[0].in_place == (0,)
    np.testing.assert_array_equal(run_in_place(cast, 0, a).view("f4"), a.astype("f4"))


def test_large_constants_are_exact() -> None:
    x = np.full(19, 2**53, np.int64)
    check(Case(elementwise, "Add", [x, np.full(19, 2**53 + 1)], {}, constants=(1,)), host())


TWO = (*BINARY, *COMPARED, "Mod", "BitShift")


@pytest.mark.drawn
@pytest.mark.parametrize("name", ["neoverse-n1", "icelake-server", "haswell"])
@pytest.mark.parametrize("op", OPS)
def test_nothing_is_called(op: str, name: str) -> None:
    """On any machine the code is complete: no function of a library is left to be linked."""
    target = preset(name)
    floats = op in ("IsNaN", "IsInf")
    for dtype in (FLOAT64,) if floats else (INT8, UINT16, INT64):
        if op in ("And", "Or", "Xor", "Not"):
            dtype = BOOL
        count = {"Cast": 1, "Where": 2}.get(op, 2 if op in TWO else 1)
        count = 2 if op in ("And", "Or", "Xor") else count
        operands = [numbers((21,), dtype)] * count
        if op == "Where":
            operands = [numbers((21,), BOOL), *operands]
        attributes = {
            "Cast": {"to": FLOAT16},
            "BitCast": {"to": {INT8: UINT8, UINT16: INT16}.get(dtype, UINT64)},
            "Mod": {"fmod": False},
            "BitShift": {"left": False},
            "IsInf": {"positive": True, "negative": True},
        }.get(op, {})
        case = Case(elementwise, op, operands, attributes)
        text = assembly(case.lower(target, False).calls[0].kernel, target)
        assert "call" not in text
        assert "\tbl\t" not in text


@TARGETS
@pytest.mark.parametrize("to", [INT8, INT16, UINT8])
def test_nothing_is_written_past_a_last_narrow_element(to: DType, target: Target) -> None:
    """One lane of a vector that is narrowed: LLVM 22 stores it whole under a mask of one lane."""
    for size in (1, 9, 17, 33):
        check(Case(elementwise, "Cast", [np.arange(size, dtype=np.int32)], {"to": to}), target)
