"""Arithmetic of shapes and constants, which is computed at load and never at run time."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph.builder import Value
from leanconv.graph.convert.rule import Call, Rule
from leanconv.graph.ops.base import Array, integers
from leanconv.types import FLOAT16, as_dtype
from leanconv.units import shape_text, type_text


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


def _range(call: Call) -> list[Value]:
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
    return [call.fold(lambda: start + np.arange(count, dtype=dtype) * delta, (count,), dtype)]


def _dequantised(call: Call) -> list[Value]:
    """Quantised weights as the floats that they represent: (x - zero point) * scale, exactly."""
    x, scale = call.constant(0), call.constant(1)
    zero = call.constant(2) if call.optional(2) is not None else np.zeros((), x.dtype)
    if call.attribute("block_size", 0):
        raise UnsupportedError("block_size is not supported; expected one scale, or one per slice")
    if x.dtype.kind not in "iu" or x.dtype.itemsize > 4 or zero.dtype != x.dtype:
        raise ModelError(f"got {x.dtype} and a zero point of {zero.dtype}; expected int8 for both")
    if scale.dtype.kind != "f" or zero.shape not in ((), (1,), scale.shape):
        raise ModelError(
            f"got a scale {type_text(scale.dtype, scale.shape)}; expected one float per slice"
        )
    shape = scale.shape if scale.size > 1 else ()
    if shape:
        axis = call.axis(call.attribute("axis", 1), x.ndim)
        if shape != x.shape[axis : axis + 1]:
            raise ModelError(
                f"got {shape[0]} scales for axis {axis} of {shape_text(x.shape)}; expected one each"
            )
        shape = tuple(shape[0] if i == axis else 1 for i in range(x.ndim))
    dtype = call.builder.single if scale.dtype == np.float32 else as_dtype(scale.dtype)

    def floats() -> Array:
        offset = zero.astype(np.int64).reshape(shape if zero.size > 1 else ())
        return np.asarray((x - offset).astype(dtype) * scale.reshape(shape).astype(dtype))

    return [call.fold(floats, x.shape, dtype)]


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
    "DequantizeLinear": Rule(
        _dequantised, {"axis": "int", "block_size": "int"}, 2, 3, running=(), since=10
    ),
}
