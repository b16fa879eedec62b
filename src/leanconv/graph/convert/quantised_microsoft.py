"""Operations on codes of the domain com.microsoft, which ONNX Runtime's quantiser writes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from leanconv.errors import ModelError
from leanconv.graph.codes import Code, fused, table
from leanconv.graph.convert.code_products import product
from leanconv.graph.convert.packed_weights import RULES as PACKED
from leanconv.graph.convert.quantisation import lifted_codes, one_scale, scalar
from leanconv.graph.convert.quantised import (
    LINEAR,
    check_codes,
    dynamic,
    qlinear_conv,
    scaled_product,
    zero_point,
)
from leanconv.graph.convert.recurrent import RULES as RECURRENT
from leanconv.graph.convert.recurrent import layers
from leanconv.graph.convert.rule import Call, Rule
from leanconv.graph.convert.windows import CONV_ATTRIBUTES, POOL_ATTRIBUTES, pool_window
from leanconv.graph.ops.base import Array, check_rank
from leanconv.graph.value import Value
from leanconv.spec.activation import sigmoid
from leanconv.types import FLOAT32, UINT8

DOMAIN = "com.microsoft"
_Table = Callable[[Array], Array]


def _binary(op: str) -> Rule:
    """QLinearAdd and QLinearMul: a, its scale and zero point, b, its, those of the result."""

    def convert(call: Call) -> list[Value]:
        check_codes(call, 0, 3)
        codes = [scalar(call, 1, 2, call.dtype(0)), scalar(call, 4, 5, call.dtype(3))]
        codes.append(scalar(call, 6, 7, call.dtype(0)))
        return [call.emit(op, [call.value(0), call.value(3)], **fused(codes))]

    return Rule(convert, {}, 7, 8, running=(0, 3))


def looked_up(
    call: Call, x: Value, source: Code, result: Code, function: _Table | None = None
) -> Value:
    """A function of codes by a table; nothing where codes stand for the same before and after."""
    if function is None and source == result:
        return x
    found = call.fold(lambda: table(source, result, function), (256,), result.dtype)
    return call.emit("Lookup", [x, found])


def _unary(make: Callable[[Call], _Table], **kinds: str) -> Rule:
    """A function of one tensor: x, its scale and zero point, those of the result."""

    def convert(call: Call) -> list[Value]:
        check_codes(call, 0)
        source, result = (scalar(call, i, i + 1, call.dtype(0)) for i in (1, 3))
        return [looked_up(call, call.value(), source, result, make(call))]

    return Rule(convert, kinds, 4, 5)


def _leaky(call: Call) -> _Table:
    alpha = np.float32(call.attribute("alpha", 0.01))
    return lambda x: np.where(x >= 0, x, alpha * x)


def _as_codes_of(call: Call, places: Sequence[int], result: Code) -> list[Value]:
    """Inputs, each followed by its scale and zero point, as codes of the result's quantisation."""
    return [
        looked_up(call, call.value(i), scalar(call, i + 1, i + 2, call.dtype(i)), result)
        for i in places
    ]


def _concat(call: Call) -> list[Value]:
    """QLinearConcat: the result's scale and zero point, then each tensor with its own."""
    if len(call) % 3 != 2:
        raise ModelError(f"got {len(call)} inputs; expected two, and three for each tensor")
    places = range(2, len(call), 3)
    check_codes(call, *places)
    result = scalar(call, 0, 1, call.dtype(2))
    parts = _as_codes_of(call, places, result)
    axis = call.axis(call.attribute("axis", 0), len(parts[0].shape))
    return [call.emit("Concat", parts, axis=axis)]


def _where(call: Call) -> list[Value]:
    """QLinearWhere: condition, x, its scale and zero point, y, its, those of the result."""
    check_codes(call, 1, 4)
    result = scalar(call, 7, 8, call.dtype(1))
    return [call.emit("Where", [call.value(0), *_as_codes_of(call, (1, 4), result)])]


def _channels_first(call: Call, convert: Callable[[Value], Value]) -> list[Value]:
    """Convert x with its channels on axis 1, where the file may have them last."""
    x = call.value()
    if not call.flag("channels_last"):
        return [convert(x)]
    last = len(x.shape) - 1
    y = convert(call.emit("Transpose", [x], perm=(0, last, *range(1, last))))
    return [call.emit("Transpose", [y], perm=(0, *range(2, last + 1), 1))]


def _pooled(call: Call, op: str, attributes: dict[str, Any]) -> list[Value]:
    """An average of codes: x, its scale and zero point, those of the result."""
    check_codes(call, 0)
    codes = lifted_codes([scalar(call, i, i + 1, call.dtype(0)) for i in (1, 3)])
    return _channels_first(call, lambda x: call.emit(op, [x], **attributes, **fused(codes)))


def _average_pool(call: Call) -> list[Value]:
    x = call.value()
    if call.flag("channels_last"):
        x = Value(replace(x.type, shape=(x.shape[0], x.shape[-1], *x.shape[1:-1])))
    return _pooled(call, "QLinearAveragePool", pool_window(call, x))


def _max_pool(call: Call) -> list[Value]:
    """NhwcMaxPool: the channels of x are last."""
    x = call.value()
    check_codes(call, 0)
    check_rank(x.type, 4, 4)
    last = replace(call.node, attributes={**call.node.attributes, "channels_last": 1})

    def pooled(first: Value) -> Value:
        return call.emit("MaxPool", [first], **pool_window(call, first))

    return _channels_first(call.with_inputs([x], last), pooled)


def _conv(call: Call) -> list[Value]:
    """QLinearConv, whose channels may be last."""
    others = [call.optional(index) for index in range(1, len(call))]

    def convolved(first: Value) -> Value:
        return qlinear_conv(call.with_inputs([first, *others]))[0]

    return _channels_first(call, convolved)


def _reduce_mean(call: Call) -> list[Value]:
    """QLinearReduceMean: x, its scale and zero point, those of the result."""
    check_codes(call, 0)
    x, rank = call.value(), len(call.value().shape)
    source, result = (scalar(call, i, i + 1, call.dtype(0)) for i in (1, 3))
    axes = call.axes(call.attribute("axes", tuple(range(rank))), rank)
    numbers = call.fold(lambda: table(source, None), (256,), FLOAT32)
    floats = call.emit("Lookup", [x, numbers])
    mean = call.emit("ReduceMean", [floats], axes=axes, keepdims=call.flag("keepdims", 1))
    scale = call.fold(lambda: np.asarray(result.scale, np.float32), (), FLOAT32)
    zero = call.builder.constant(np.asarray(result.zero, result.dtype))
    return [call.emit("QuantizeLinear", [mean, scale, zero], axis=0)]


def _global_average_pool(call: Call) -> list[Value]:
    return _pooled(call, "QLinearGlobalAveragePool", {})


def _softmax(call: Call) -> list[Value]:
    """QLinearSoftmax: over one axis, or before opset 13 over all from it on."""
    x, axis = call.value(), call.axis(call.attribute("axis", -1), len(call.value().shape))
    check_codes(call, 0)
    source, result = (scalar(call, i, i + 1, call.dtype(0)) for i in (1, 3))
    attributes = fused((source, result))
    if call.attribute("opset", 13) >= 13:
        return [call.emit("QLinearSoftmax", [x], axis=axis, **attributes)]
    shape = x.shape
    flat = call.reshape(x, (math.prod(shape[:axis]), math.prod(shape[axis:])))
    return [call.reshape(call.emit("QLinearSoftmax", [flat], axis=1, **attributes), shape)]


# -- products of matrices -------------------------------------------------------------------------
def _gemm(call: Call) -> list[Value]:
    """QGemm: a, its scale and zero point, b, its, bias (int32), y's; without these y is float."""
    check_codes(call, 0, 3)
    a, b = call.value(0), call.value(3)
    for name, value in (("transA", a), ("transB", b)):
        if len(value.shape) != 2:
            raise ModelError(f"got {value.type}; expected a matrix")
        if call.flag(name):
            turned = call.emit("Transpose", [value], perm=(1, 0))
            a, b = (turned, b) if value is a and name == "transA" else (a, turned)
    result = None
    if call.optional(7) is not None:
        result = one_scale(call, 7, 8, call.dtype(0), other=True)
    elif call.optional(8) is not None:
        raise ModelError("the result has a zero point but no scale; expected both, or none")
    return [scaled_product(call, (a, b), call.attribute("alpha", 1.0), 6, result)]


def _scaled(call: Call, total: Value, scales: Sequence[Value], added: Value | None) -> Value:
    """Sums as floats: sum * (a's scale * b's scale) + bias."""
    single = call.builder.single
    factors = [call.cast(each, single) for each in scales]
    flat = [call.reshape(each, ()) if each.type.elements == 1 else each for each in factors]
    y = call.emit("Mul", [call.cast(total, single), call.emit("Mul", flat)])
    return y if added is None else call.emit("Add", [y, added])


def _integer_to_float(call: Call) -> list[Value]:
    """MatMulIntegerToFloat: a, b, their scales, their zero points, a bias."""
    check_codes(call, 0, 1)
    zeros = zero_point(call, 4, 0), zero_point(call, 5, 1)
    total = product(call, call.value(0), call.value(1), *zeros)
    return [_scaled(call, total, [call.value(2), call.value(3)], call.optional(6))]


def _dynamic_matmul(call: Call) -> list[Value]:
    """DynamicQuantizeMatMul: a (floats), b, its scale and zero point, a bias."""
    codes, scale, zero = dynamic(call, call.value(0))
    check_codes(call, 1)
    total = product(call, codes, call.value(1), zero, zero_point(call, 3, 1))
    return [_scaled(call, total, [scale, call.value(2)], call.optional(4))]


def _dynamic_lstm(call: Call) -> Sequence[Value]:
    """DynamicQuantizeLSTM as an LSTM whose input and weights are quantised; its states are not.

    Inputs: those of LSTM, of which w (directions, I, 4 H) and r (directions, H, 4 H) are codes,
    then their scales and zero points.
    """
    codes, scale, zero = dynamic(call, call.value(0))
    inputs = [codes, *(call.optional(index) for index in range(1, 8))]
    (w_scale, w_zero), (r_scale, r_zero) = (_quantisation(call, index) for index in (1, 2))
    for index in (1, 2):
        inputs[index] = call.emit("Transpose", [call.value(index)], perm=(0, 2, 1))

    def multiply(rows: Value, matrix: Value, added: Value | None) -> Value:
        columns = call.emit("Transpose", [matrix], perm=(1, 0))
        count = (w_scale.type.elements,)
        away = None if w_zero is None else call.reshape(w_zero, count)
        total = product(call, rows, columns, zero, away)
        return _scaled(call, total, [scale, call.reshape(w_scale, count)], added)

    single = call.builder.single
    coded = [call.cast(r_scale, single), None if r_zero is None else call.cast(r_zero, single)]
    return layers(call.with_inputs(inputs, replace(call.node, op="LSTM")), multiply, coded)


def _quantisation(call: Call, index: int) -> tuple[Value, Value | None]:
    """Scales of recurrent weights, and zero points if they are not 0: (directions, 4 H)."""
    codes = call.value(index)
    check_codes(call, index)
    if len(codes.shape) != 3:
        raise ModelError(f"input {index} is {codes.type}; expected (directions, columns, rows)")
    directions, _, rows = codes.shape

    def spread(number: int) -> Value | None:
        value = call.optional(number)
        if value is None:
            return None
        if value.shape not in ((directions,), (directions, rows)):
            raise ModelError(
                f"input {number} is {value.type}; expected {directions} numbers, or {rows} for "
                "each of these directions"
            )
        value = call.reshape(value, (directions, *(value.shape[1:] or (1,))))
        return call.emit("Expand", [value], shape=(directions, rows))

    scale, zero = spread(6 + 2 * index), spread(7 + 2 * index)
    if scale is None:
        raise ModelError(f"input {6 + 2 * index} is absent; expected a scale")
    none = zero is not None and zero.array is not None and not np.any(zero.numbers)
    return scale, None if none else zero


_MATMUL = {"transA": "int", "transB": "int", "alpha": "float"}
_PRODUCTS: dict[str, Any] = {"running": None, "products": True}
_RULES: dict[str, Rule] = {
    **LINEAR,
    "QLinearAdd": _binary("QLinearAdd"),
    "QLinearMul": _binary("QLinearMul"),
    "QLinearSigmoid": _unary(lambda _: lambda x: sigmoid(np, x.astype(np.float64))),
    "QLinearLeakyRelu": _unary(_leaky, alpha="float"),
    "QLinearConcat": Rule(_concat, {"axis": "int"}, 5, 1 << 31, running=None),
    "QLinearWhere": Rule(_where, {}, 9, 9, running=(0, 1, 4)),
    "QLinearAveragePool": Rule(_average_pool, {**POOL_ATTRIBUTES, "channels_last": "int"}, 4, 5),
    "QLinearGlobalAveragePool": Rule(_global_average_pool, {"channels_last": "int"}, 4, 5),
    "QLinearReduceMean": Rule(_reduce_mean, {"axes": "ints", "keepdims": "int"}, 4, 5),
    "QLinearConv": Rule(_conv, {**CONV_ATTRIBUTES, "channels_last": "int"}, 8, 9, **_PRODUCTS),
    "NhwcMaxPool": Rule(_max_pool, POOL_ATTRIBUTES),
    "QLinearSoftmax": Rule(_softmax, {"axis": "int", "opset": "int"}, 5, 5),
    "QGemm": Rule(_gemm, _MATMUL, 6, 9, gives=UINT8, **_PRODUCTS),
    "MatMulIntegerToFloat": Rule(_integer_to_float, {}, 4, 7, **_PRODUCTS),
    "DynamicQuantizeMatMul": Rule(_dynamic_matmul, {}, 3, 5, **_PRODUCTS),
    "DynamicQuantizeLSTM": replace(RECURRENT["LSTM"], convert=_dynamic_lstm, least=12, most=12),
}
_ALL = {**PACKED, **{op: replace(rule, quantised=True) for op, rule in _RULES.items()}}
RULES = {f"{DOMAIN}.{op}": rule for op, rule in _ALL.items()}
