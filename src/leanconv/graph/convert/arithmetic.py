"""Arithmetic, softmax and matrix products."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph.convert.blocked_weights import product_of_codes
from leanconv.graph.convert.rule import Call, Older, Rule
from leanconv.graph.ops import infer
from leanconv.graph.ops.base import broadcast
from leanconv.graph.value import Value
from leanconv.types import BOOL, FLOAT64, FLOATS, INT64


def floating(call: Call) -> Value:
    """The first input, which has to hold floats."""
    x = call.value()
    if x.type.dtype not in FLOATS:
        raise UnsupportedError(f"input 0 is {x.type}; expected {' or '.join(FLOATS)}")
    return x


def _binary(op: str) -> Callable[[Call], list[Value]]:
    def convert(call: Call) -> list[Value]:
        return [call.emit(op, [call.value(0), aligned(call)])]

    return convert


def _matmul(call: Call) -> list[Value]:
    a, b = call.value(0), call.value(1)
    return [product_of_codes(call, a, b, 0) or call.emit("MatMul", [a, b])]


def aligned(call: Call) -> Value:
    """The second operand, broadcast to the first as the opset says.

    Before opset 7 that is done where an attribute asks for it: its axes are those of the first
    operand from `axis` on, by default the last ones.
    """
    a, b = call.value(0), call.value(1)
    if call.opset >= 7 or a.shape == b.shape:
        return b
    axis, rank = call.attribute("axis", None), len(a.shape)
    if axis is not None and call.flag("broadcast"):
        first = call.axis(axis, rank) if rank else 0
        b = call.reshape(b, (*b.shape, *(1,) * max(rank - first - len(b.shape), 0)))
    if not call.flag("broadcast") or broadcast(a.shape, b.shape) != a.shape:
        raise ModelError(
            f"got {a.type} and {call.value(1).type}; expected equal shapes, or the attribute "
            "broadcast and axes that the first operand has, as before opset 7"
        )
    return b


def _power(call: Call) -> list[Value]:
    """Pow, whose exponent may be of another dtype than its base.

    Of an integer and a float it is computed in float64, of two integers in the larger dtype.
    """
    base, exponent = call.value(0), aligned(call)
    held = None if exponent.array is None else np.asarray(exponent.numbers, np.float64)
    mixed = base.type.dtype.is_integer and exponent.type.dtype.is_float
    if mixed and held is not None and np.all((np.abs(held) < 1 << 20) & (held == np.rint(held))):
        exponent = call.emit("Cast", [exponent], to=base.type.dtype)
    kept, of_exponent = base.type.dtype, exponent.type.dtype
    common = kept
    if kept.is_integer and of_exponent.is_float:
        common = FLOAT64
    elif kept.is_integer and of_exponent != kept:
        common = INT64 if of_exponent.is_integer else kept
    pair = [
        v if v.type.dtype == common else call.emit("Cast", [v], to=common) for v in (base, exponent)
    ]
    y = call.emit("Pow", pair)
    if common == FLOAT64 != kept:
        y = _whole(call, y)
    return [y if common == kept else call.emit("Cast", [y], to=kept)]


def _whole(call: Call, y: Value) -> Value:
    """Doubles that are integers but for the last bits of a power, as integers."""
    whole = call.emit("Round", [y])
    far = call.emit("Abs", [call.emit("Sub", [y, whole])])
    bound = call.emit("Mul", [call.emit("Abs", [y]), call.number(2.0**-44, y)])
    return call.emit("Where", [call.emit("LessOrEqual", [far, bound]), whole, y])


def _chain(op: str) -> Callable[[Call], list[Value]]:
    """Sum, Min and Max of any number of inputs, two at a time."""

    def convert(call: Call) -> list[Value]:
        result = call.value(0)
        for index in range(1, len(call)):
            result = call.emit(op, [result, call.value(index)])
        return [result]

    return convert


def _mean(call: Call) -> list[Value]:
    """The mean of any number of inputs."""
    floating(call)
    (total,) = _chain("Add")(call)
    return [call.emit("Div", [total, call.number(len(call), total)])]


def _softmax(call: Call) -> list[Value]:
    """Softmax over one axis (since opset 13), before over all axes from one on."""
    x, op = call.value(), call.node.op
    rank = len(x.shape)
    axis = call.axis(call.attribute("axis", -1 if call.opset >= 13 else 1), rank)
    if call.opset >= 13 or axis == rank - 1:
        return [call.emit(op, [x], axis=axis)]
    flat = call.reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))
    return [call.reshape(call.emit(op, [flat], axis=1), x.shape)]


def _gemm(call: Call) -> list[Value]:
    inputs = [call.value(0), call.value(1)]
    added = call.optional(2)
    if added is not None:
        inputs.append(added)
    attributes: dict[str, Any] = {
        "transA": call.flag("transA"),
        "transB": call.flag("transB"),
        "alpha": call.attribute("alpha", 1.0),
        "beta": call.attribute("beta", 1.0),
    }
    (result,) = infer("Gemm", [value.type for value in inputs], attributes)
    if added is not None and result.elements and not inputs[0].type.elements:
        scaled = call.emit("Mul", [added, call.number(attributes["beta"], added)])
        return [call.emit("Expand", [scaled], shape=result.shape)]
    plain = not attributes["transA"] and attributes["alpha"] == 1
    y = product_of_codes(call, inputs[0], inputs[1], int(attributes["transB"])) if plain else None
    if y is None:
        return [call.emit("Gemm", inputs, **attributes)]
    if added is None or not attributes["beta"]:
        return [y]
    if attributes["beta"] != 1:
        added = call.emit("Mul", [added, call.number(attributes["beta"], added)])
    return [call.emit("Add", [y, added])]


def _identity(call: Call) -> list[Value]:
    return [call.value()]


def _dropout(call: Call) -> list[Value]:
    """Nothing at all, outside of training."""
    if call.optional(2) is not None and call.scalar(2) and call.opset >= 12:
        ratio = call.scalar(1) if call.optional(1) is not None else 0.5
        if ratio:
            raise UnsupportedError(
                "training_mode is true; expected an inference model; export it in evaluation mode"
            )
    x, dtype = call.value(), BOOL if call.opset >= 10 else call.dtype(0)
    if not any(call.node.outputs[1:]):
        return [x]
    return [x, call.builder.filled(np.ones((), dtype.numpy), x.shape)]  # what is kept: all


_NO_KINDS: dict[str, str] = {}
_BROADCAST = Older(7, {"axis": "int", "broadcast": "int"})
RULES: dict[str, Rule] = {
    **{
        op: Rule(_binary(op), _NO_KINDS, 2, 2, running=None, older=_BROADCAST)
        for op in ("Add", "Sub", "Mul", "Div")
    },
    "Pow": Rule(_power, _NO_KINDS, 2, 2, running=None, older=_BROADCAST),
    "Sum": Rule(_chain("Add"), _NO_KINDS, 1, 1 << 31, running=None),
    "Min": Rule(_chain("Min"), _NO_KINDS, 1, 1 << 31, running=None),
    "Max": Rule(_chain("Max"), _NO_KINDS, 1, 1 << 31, running=None),
    "Mean": Rule(_mean, _NO_KINDS, 1, 1 << 31, running=None),
    "Softmax": Rule(_softmax, {"axis": "int"}),
    "LogSoftmax": Rule(_softmax, {"axis": "int"}),
    "Gemm": Rule(
        _gemm,
        {"transA": "int", "transB": "int", "alpha": "float", "beta": "float"},
        2,
        3,
        running=None,
        older=Older(7, {"broadcast": "int"}),
    ),
    "MatMul": Rule(_matmul, _NO_KINDS, 2, 2, running=None),
    "Identity": Rule(_identity),
    "Dropout": Rule(
        _dropout,
        {"ratio": "float", "seed": "int"},
        1,
        3,
        outputs=2,
        moved=(12, ("ratio",)),
        older=Older(7, {"is_test": "int"}),
    ),
}
