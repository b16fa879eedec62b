"""Operations between types: Cast, comparisons, logic, Where; Mod and bits, which types define."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from leanconv.errors import ModelError
from leanconv.graph.ir import Attributes, TensorType
from leanconv.graph.ops.base import (
    PAIR,
    SYMBOLIC_DTYPES,
    Array,
    Arrays,
    Op,
    Types,
    array,
    broadcast,
    checked,
    first,
    numbers,
    remainder,
    required,
    same_dtype,
    single,
)
from leanconv.half_arrays import in_memory
from leanconv.types import BOOL, DTYPES, FLOAT32, HALVES, INT64, NUMBERS, UINT16, DType

HELD = DTYPES
INTEGERS = tuple(each for each in NUMBERS if each.is_integer)
_COUNTED = tuple(each for each in HELD if each != BOOL)


def _infer_cast(types: Types, attributes: Attributes) -> TensorType:
    return checked(first(types).shape, attributes["to"])


def _evaluate_cast(arrays: Arrays, attributes: Attributes) -> Array:
    """By ONNX's rules: to integers towards zero; what they do not hold is any number."""
    x, to = array(arrays), attributes["to"]
    if x.dtype == object:  # integers, with symbols among them
        return x if to in SYMBOLIC_DTYPES else numbers(x, INT64).astype(to)
    if to in HALVES:
        # Integers of 16 bits are no bits of bfloat16 here.
        return in_memory(x.astype(FLOAT32) if x.dtype == UINT16 else x, to)
    return x.astype(to)


_RAW = tuple(each for each in HELD if each not in (BOOL, *HALVES))  # in registers as in memory


def _infer_bits(types: Types, attributes: Attributes) -> TensorType:
    x, to = first(types), attributes["to"]
    if x.dtype.bytes != to.bytes or to not in _RAW or x.dtype not in _RAW:
        raise ModelError(f"got {x.dtype} as {to}; expected two types of as many bits, no bool")
    return checked(x.shape, to)


def _evaluate_bits(arrays: Arrays, attributes: Attributes) -> Array:
    return np.asarray(array(arrays), order="C").view(attributes["to"].numpy)


def _same_taken(types: Types, taken: Sequence[DType]) -> tuple[int, ...]:
    """The common shape of two inputs, which must be of one of some dtypes."""
    dtype = same_dtype(types)
    if dtype not in taken:
        raise ModelError(f"got inputs of {dtype}; expected {' or '.join(taken)}")
    return broadcast(first(types).shape, required(types, 1).shape)


def _predicate(function: Callable[[Any, Any], Any], taken: tuple[DType, ...], **facts: Any) -> Op:
    def infer(types: Types, _attributes: Attributes) -> TensorType:
        return checked(_same_taken(types, taken), BOOL)

    def evaluate(arrays: Arrays, _attributes: Attributes) -> Array:
        return np.asarray(function(array(arrays), array(arrays, 1)), dtype=bool)

    running = tuple(each for each in taken if each not in HALVES)
    facts |= {"halves": "rounded" if FLOAT32 in running else "", "working": 0}
    signature = f"{PAIR}; gives bool"
    return single(infer, evaluate, signature, takes_symbols=True, dtypes=running, **facts)


def _infer_not(types: Types, _attributes: Attributes) -> TensorType:
    x = first(types)
    if x.dtype != BOOL:
        raise ModelError(f"the input holds {x.dtype}; expected bool")
    return x


def _evaluate_not(arrays: Arrays, _attributes: Attributes) -> Array:
    return np.asarray(np.logical_not(array(arrays)))


def _infer_where(types: Types, _attributes: Attributes) -> TensorType:
    condition, a, b = (required(types, index) for index in range(3))
    if condition.dtype != BOOL or a.dtype != b.dtype:
        raise ModelError(
            f"got {condition.dtype}, {a.dtype}, {b.dtype}; expected bool and two alike"
        )
    return checked(broadcast(condition.shape, a.shape, b.shape), a.dtype)


def _evaluate_where(arrays: Arrays, _attributes: Attributes) -> Array:
    return np.where(array(arrays), array(arrays, 1), array(arrays, 2))


def _infer_modulo(types: Types, _attributes: Attributes) -> TensorType:
    return checked(_same_taken(types, _COUNTED), first(types).dtype)


def _evaluate_modulo(arrays: Arrays, attributes: Attributes) -> Array:
    a, b, towards_zero = array(arrays), array(arrays, 1), attributes["fmod"]
    if a.dtype.kind == "f":
        return np.asarray((np.fmod if towards_zero else np.mod)(a, b))
    return remainder(a, b, towards_zero)


def _of_bits(function: Callable[..., Any], inputs: int, *names: str, commutes: bool = False) -> Op:
    def infer(types: Types, _attributes: Attributes) -> TensorType:
        dtype = same_dtype(types)
        if not dtype.is_integer:
            raise ModelError(f"got {dtype}; expected integers")
        shapes = (required(types, index).shape for index in range(inputs))
        return checked(broadcast(*shapes), dtype)

    def evaluate(arrays: Arrays, attributes: Attributes) -> Array:
        given = [array(arrays, index) for index in range(inputs)]
        return np.asarray(function(*given, *(attributes[name] for name in names)))

    signature = f"{PAIR if inputs == 2 else 'x'}; integers"
    return single(infer, evaluate, signature, names, dtypes=INTEGERS, commutes=commutes)


def _shift(x: Array, by: Array, left: bool) -> Array:
    """By NumPy's rules: nothing is left of what is shifted by as many bits as there are."""
    return np.asarray((np.left_shift if left else np.right_shift)(x, by))


def _float_test(function: Callable[..., Any], *names: str) -> Op:
    def infer(types: Types, _attributes: Attributes) -> TensorType:
        x = first(types)
        if not x.dtype.is_float:
            raise ModelError(f"the input holds {x.dtype}; expected floats")
        return checked(x.shape, BOOL)

    def evaluate(arrays: Arrays, attributes: Attributes) -> Array:
        return np.asarray(function(array(arrays), *(attributes[name] for name in names)))

    return single(infer, evaluate, "x; gives bool", names, halves="rounded")


def _infinite(x: Array, positive: bool, negative: bool) -> Array:
    return np.asarray((np.isposinf(x) & positive) | (np.isneginf(x) & negative))


COMPARISONS: dict[str, Op] = {
    "Equal": _predicate(np.equal, HELD, commutes=True),
    "Less": _predicate(np.less, _COUNTED),
    "LessOrEqual": _predicate(np.less_equal, _COUNTED),
    "Greater": _predicate(np.greater, _COUNTED),
    "GreaterOrEqual": _predicate(np.greater_equal, _COUNTED),
}
LOGIC: dict[str, Op] = {
    "And": _predicate(np.logical_and, (BOOL,), commutes=True),
    "Or": _predicate(np.logical_or, (BOOL,), commutes=True),
    "Xor": _predicate(np.logical_xor, (BOOL,), commutes=True),
}
_EACH: dict[str, Op] = {
    "Cast": single(
        _infer_cast,
        _evaluate_cast,
        attributes=("to",),
        takes_symbols=True,
        dtypes=HELD,
        converts=True,
        working=0,
    ),
    "BitCast": single(_infer_bits, _evaluate_bits, "x; to: of as many bits", ("to",), dtypes=_RAW),
    **COMPARISONS,
    **LOGIC,
    "Not": single(_infer_not, _evaluate_not, dtypes=(BOOL,), working=0),
    "Where": single(
        _infer_where,
        _evaluate_where,
        "condition (bool), a, b (broadcast)",
        takes_symbols=True,
        dtypes=HELD,
        halves="exact",
    ),
    "Mod": single(
        _infer_modulo,
        _evaluate_modulo,
        f"{PAIR}; fmod: whether it has the sign of a, not of b",
        ("fmod",),
        precise=slice(2),
        takes_symbols=True,
        dtypes=NUMBERS,
        halves="rounded",
        series=True,
    ),
    "BitwiseAnd": _of_bits(np.bitwise_and, 2, commutes=True),
    "BitwiseOr": _of_bits(np.bitwise_or, 2, commutes=True),
    "BitwiseXor": _of_bits(np.bitwise_xor, 2, commutes=True),
    "BitwiseNot": _of_bits(np.bitwise_not, 1),
    "BitShift": _of_bits(_shift, 2, "left"),
    "IsNaN": _float_test(np.isnan),
    "IsInf": _float_test(_infinite, "positive", "negative"),
}
OPS = {op: replace(each, routes="aligned", kernel="elementwise") for op, each in _EACH.items()}
