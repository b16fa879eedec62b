"""Arithmetic of shapes and constants, which is computed at load and never at run time."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph.convert.rule import Call, Rule
from leanconv.graph.ops.base import Array, integers
from leanconv.graph.value import Value
from leanconv.symbolic import Symbol
from leanconv.types import FLOAT16, FLOAT32, FLOAT64, INT32, INT64


def _constant(call: Call) -> list[Value]:
    held = call.node.attributes
    if len(held) != 1:
        raise ModelError(f"got attributes {sorted(held)}; expected one of the forms of a constant")
    name, value = next(iter(held.items()))
    if name == "value_float" or name == "value_floats":
        value = np.asarray(value, dtype=np.float32)
    elif name != "value":
        value = np.asarray(value, dtype=np.int64)
    return [call.builder.constant(value)]


def _constant_of_shape(call: Call) -> list[Value]:
    held = call.attribute("value", np.zeros(1, np.float32))
    if held.size != 1:
        raise ModelError(f"attribute value has {held.size} elements; expected one")
    value = np.asarray(call.builder.constant(held).array)
    return [call.builder.filled(value, call.integers(0))]


def _shape(call: Call) -> list[Value]:
    shape = call.value().shape
    start, end = call.attribute("start", 0), call.attribute("end", None)
    return [call.builder.constant(integers(shape[start:end]))]


def _size(call: Call) -> list[Value]:
    return [call.builder.constant(integers([call.value().type.elements]).reshape(()))]


# Floats that are whole numbers below this are exact in float32, the others in float64.
_EXACT = {4: 1 << 24, 8: 1 << 53}


def _range(call: Call) -> list[Value]:
    open_range = _open_range(call)
    if open_range is not None:
        return [open_range]
    start, limit, delta = (call.scalar(index) for index in range(3))
    dtypes = {call.value(index).type.dtype for index in range(3)}
    dtype = call.value(0).type.dtype
    if len(dtypes) > 1 or not (dtype.is_integer or dtype.is_float):
        raise ModelError(f"got numbers of {', '.join(sorted(dtypes))}; expected one numeric dtype")
    if dtype == FLOAT16 and call.opset >= 27:
        raise UnsupportedError("a range of float16 is not supported; expected float32 or integers")
    finite = all(math.isfinite(number) for number in (start, limit, delta))
    if delta == 0 or not finite:
        raise ModelError(f"got start {start}, limit {limit} and delta {delta}; expected a range")
    if isinstance(start, int):
        count = max(-((start - limit) // delta), 0)
    else:
        steps = (limit - start) / delta
        count = max(math.ceil(steps), 0) if math.isfinite(steps) else 1 << 60

    def made() -> Array:
        numbers = np.arange(count, dtype=dtype.numpy)
        numbers *= delta
        numbers += start
        return numbers

    return [call.fold(made, (count,), dtype)]


def _open_range(call: Call) -> Value | None:
    """A range whose limit is an extent that is open, computed for each size; None for others."""
    limit = call.with_inputs([call.builder.cast_from(call.value(1))]).value()
    dtype = call.value(0).type.dtype
    dtypes = {call.value(index).type.dtype for index in range(3)}
    if not limit.is_known or limit.type.elements != 1 or len(dtypes) > 1:
        return None
    last = limit.array.reshape(-1)[0] if limit.array is not None else None
    if not isinstance(last, Symbol) or dtype not in (FLOAT32, FLOAT64, INT32, INT64):
        return None
    numbers = [call.scalar(index) for index in (0, 2)]
    if not all(float(number).is_integer() for number in numbers) or not numbers[1]:
        return None
    start, delta = map(int, numbers)
    if dtype.is_float and not (abs(start) < _EXACT[dtype.bytes] and last < _EXACT[dtype.bytes]):
        return None
    count = last - start if delta == 1 else -((start - last) // delta)
    if count < 1:
        return None
    one = call.constant_of(np.ones((1,), dtype))
    ones = call.emit("Expand", [one], shape=(count,))
    steps = call.emit("CumSum", [ones], axis=0, exclusive=True, reverse=False)
    scaled = call.emit("Mul", [steps, call.number(delta, ones)])
    return call.emit("Add", [scaled, call.number(start, ones)])


def _fold_rule(
    convert: Callable[[Call], list[Value]], inputs: int, since: int = 1, **kinds: str
) -> Rule:
    return Rule(convert, kinds, inputs, inputs, running=(), since=since)


RULES: dict[str, Rule] = {
    "Constant": _fold_rule(
        _constant,
        0,
        value="tensor",
        value_float="float",
        value_floats="floats",
        value_int="int",
        value_ints="ints",
    ),
    "ConstantOfShape": _fold_rule(_constant_of_shape, 1, since=9, value="tensor"),
    "Shape": Rule(_shape, {"start": "int", "end": "int"}, knows_shape=True),
    "Size": Rule(_size, knows_shape=True),
    "Range": _fold_rule(_range, 3, since=11, stash_type="int"),
}
