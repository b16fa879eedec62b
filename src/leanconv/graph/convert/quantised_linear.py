"""QuantizeLinear and DequantizeLinear, and what makes a scale of a range."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph import float_codes
from leanconv.graph.convert.blocked_weights import blocked_floats
from leanconv.graph.convert.narrow import narrowed, widened
from leanconv.graph.convert.quantisation import (
    LIFT,
    Quantisation,
    broadcast,
    check_scales,
    is_subnormal,
    lifted,
    read_quantisation,
    single_precision,
    zero_of,
)
from leanconv.graph.convert.rule import Call, Rule
from leanconv.graph.narrow_codes import table
from leanconv.graph.ops.quantised import DEQUANTISED, QUANTISED
from leanconv.graph.value import Value
from leanconv.types import DTYPES, FLOAT8E8M0, FLOAT32, FLOATS, NARROW, UINT8, DType

_NARROW_CODES = tuple(each for each in NARROW if each != FLOAT8E8M0)


def _axis(call: Call, x: Value, scale: Value) -> int:
    """The axis along which there are several scales."""
    if scale.type.elements == 1 and not call.attribute("block_size", 0):
        return 0
    return call.axis(call.attribute("axis", 1), len(x.shape))


def _code_type(call: Call) -> DType:
    """The type of the codes that a QuantizeLinear gives."""
    number = call.attribute("output_dtype", 0)
    named = next((each for each in (*DTYPES, *NARROW) if each.onnx == number), None)
    zero = call.optional(2)
    code = call.declared(2) if zero is not None else named or UINT8
    if code not in (*QUANTISED, *_NARROW_CODES) or (named not in (None, code)):
        raise UnsupportedError(
            f"gives codes of {named or code}, with a zero point of {code}; expected one of "
            f"{', '.join((*QUANTISED, *_NARROW_CODES))} for both"
        )
    return code


def _quantise(call: Call) -> list[Value]:
    """QuantizeLinear: clip(rint(x / scale) + zero)."""
    x, code = call.value(), _code_type(call)
    if x.type.dtype != FLOAT32:  # which a file's float32 may be computed in; codes are made of that
        x = float_codes.cast(call, x, FLOAT32)
    block = call.attribute("block_size", 0)
    given = read_quantisation(call, 1, 2, x, _axis(call, x, call.value(1)), block)
    if given.scale.array is not None:
        check_scales(np.asarray(given.scale.numbers), 1, positive=True)
    if code.is_float:
        _check_no_zero(given, code)
        scale = broadcast(call, float_codes.cast(call, given.scale, FLOAT32), x, given)
        return [narrowed(call, call.emit("Div", [x, scale]), code)]
    if given.is_constant and code.held == code:
        scale, zero = single_precision(call, given.scale), zero_of(call, given, code)
        if is_subnormal(scale):
            x, scale = lifted(call, x), lifted(call, scale)
        return [call.emit("QuantizeLinear", [x, scale, zero], axis=given.axis)]
    scale = broadcast(call, float_codes.cast(call, given.scale, x.type.dtype), x, given)
    zero = float_codes.cast(call, zero_of(call, given, code.held), x.type.dtype)
    zero, ends = broadcast(call, zero, x, given), (code.low, code.high)
    codes = float_codes.quantise(call, x, scale, zero, code.held, ends)
    return [codes if code.held == code else call.builder.as_narrow(codes, code)]


def _check_no_zero(given: Quantisation, code: DType) -> None:
    """Raise where the zero point of codes that are floats is known not to be 0, as ONNX wants it.

    Raises:
        UnsupportedError: it is something else.
    """
    zero = None if given.zero is None else given.zero.numbers
    if zero is not None and np.any(table(code)[zero]):
        raise UnsupportedError(f"the zero point of {code} is not 0; expected 0, or none")


def _dequantise(call: Call) -> list[Value]:
    """DequantizeLinear: (x - zero) * scale."""
    x, zero, code = call.value(), call.optional(2), call.declared(0)
    taken = (*DEQUANTISED, *_NARROW_CODES)
    if code not in taken or (zero is not None and call.declared(2) != code):
        raise ModelError(
            f"got codes of {code}"
            + (f" and a zero point of {call.declared(2)}" if zero is not None else "")
            + f"; expected one of {', '.join(taken)} for both"
        )
    block = call.attribute("block_size", 0)
    given = read_quantisation(call, 1, 2, x, _axis(call, x, call.value(1)), block)
    dtype = call.builder.kept(given.scale.type.dtype)
    if dtype not in FLOATS:
        raise UnsupportedError(f"the scale is {given.scale.type}; expected {' or '.join(FLOATS)}")
    if given.is_constant and not code.is_float:
        return [constant_dequantised(call, x, given, dtype)]
    if given.blocks and not code.is_float and given.is_known and x.is_known:
        return [blocked_floats(call, x, given, dtype)]
    scale = broadcast(call, float_codes.cast(call, given.scale, dtype), x, given)
    if code.is_float:
        _check_no_zero(given, code)
        floats = float_codes.cast(call, widened(call), dtype)
        return [call.emit("Mul", [floats, scale])]
    if given.zero is not None:
        zero = broadcast(call, given.zero, x, given)
    return [float_codes.dequantise(call, x, scale, zero, dtype)]


def constant_dequantised(call: Call, x: Value, given: Quantisation, dtype: DType) -> Value:
    """Floats of codes whose quantisation is constant."""
    scale, zero = single_precision(call, given.scale), zero_of(call, given, x.type.dtype)
    lift = is_subnormal(scale)
    if lift:
        scale = lifted(call, scale)
    y = call.emit("DequantizeLinear", [x, scale, zero], axis=given.axis, dtype=dtype)
    return call.emit("Mul", [y, call.number(1 / LIFT, y)]) if lift else y


def dynamic(call: Call, x: Value) -> tuple[Value, Value, Value]:
    """The codes of x as uint8, its scale and its zero point, which follow from its range.

    The range includes 0; where it is nothing else, the scale is 1.
    """
    zero, extremes = call.number(0.0, x), call.emit("Extremes", [x])
    low, high = (
        call.reshape(call.emit("Slice", [extremes], starts=(i,), steps=(1,), sizes=(1,)), ())
        for i in range(2)
    )
    low, high = call.emit("Min", [low, zero]), call.emit("Max", [high, zero])
    none = call.emit("Equal", [low, high])
    width = call.emit("Div", [call.emit("Sub", [high, low]), call.number(UINT8.high, x)])
    scale = call.emit("Where", [none, call.number(1.0, x), width])
    start = call.emit("Neg", [call.emit("Div", [low, scale])])
    place = call.emit("Round", [call.emit("Clip", [start], min=0.0, max=float(UINT8.high))])
    bounds = {"low": int(UINT8.low), "high": int(UINT8.high)}
    codes = call.emit("QuantizeFloats", [x, scale, place], dtype=UINT8, **bounds)
    return codes, scale, float_codes.cast(call, place, UINT8)


def _dynamic(call: Call) -> Sequence[Value]:
    x = call.value()
    if x.type.dtype not in FLOATS or not x.type.elements:
        raise UnsupportedError(f"input 0 is {x.type}; expected floats, at least one")
    return dynamic(call, x)


LINEAR: dict[str, Rule] = {
    "QuantizeLinear": Rule(
        _quantise,
        {
            "axis": "int",
            "saturate": "int",
            "block_size": "int",
            "output_dtype": "int",
            "precision": "int",
        },
        2,
        3,
        running=None,
        since=10,
    ),
    "DequantizeLinear": Rule(
        _dequantise,
        {"axis": "int", "block_size": "int", "output_dtype": "int"},
        2,
        3,
        running=None,
        since=10,
    ),
}
DYNAMIC = {"DynamicQuantizeLinear": Rule(_dynamic, since=11, outputs=3)}
