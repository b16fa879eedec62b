"""Activations, arithmetic, normalisation, reductions and matrix products."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph.builder import Value
from leanconv.graph.convert.rule import Call, Older, Rule
from leanconv.graph.ops.base import broadcast
from leanconv.types import FLOATS

_Step = Callable[[Call, Value], Value]

# Selu's alpha and gamma, float32 as the standard has them, and those of opset 1
_SELU, _OLD_SELU = (1.67326319217681884765625, 1.05070102214813232421875), (1.6732, 1.0507)


def _unary(op: str, *, since: int = 1, **defaults: float) -> Rule:
    """An operation whose attributes are floats with defaults, the same in every opset."""

    def convert(call: Call) -> list[Value]:
        numbers = {name: call.attribute(name, default) for name, default in defaults.items()}
        return [call.emit(op, [call.value()], **numbers)]

    return Rule(convert, dict.fromkeys(defaults, "float"), since=since)


def _gelu(call: Call) -> list[Value]:
    approximate = call.attribute("approximate", "none")
    if approximate not in ("none", "tanh"):
        raise ModelError(f"attribute approximate is {approximate!r}; expected none or tanh")
    return [call.emit("Gelu", [call.value()], approximate=approximate)]


def _float(call: Call) -> Value:
    """The first input, which has to hold floats."""
    x = call.value()
    if x.type.dtype not in FLOATS:
        raise UnsupportedError(f"input 0 is {x.type}; expected {' or '.join(FLOATS)}")
    return x


def _selu(call: Call) -> list[Value]:
    """gamma · Elu(x; alpha)."""
    alpha, gamma = _SELU if call.opset >= 6 else _OLD_SELU
    elu = call.emit("Elu", [_float(call)], alpha=call.attribute("alpha", alpha))
    return [call.emit("Mul", [elu, call.number(call.attribute("gamma", gamma), elu)])]


def _celu(call: Call) -> list[Value]:
    """|alpha| · Elu(x / |alpha|; 1), and for a negative alpha times e^Relu(x / alpha).

    Below zero that is alpha · (e^(x / alpha) - 1) for either sign: e^z - 1 = (1 - e^-z) · e^z.
    """
    x, alpha = _float(call), call.attribute("alpha", 1.0)
    if not alpha:
        raise ModelError("attribute alpha is 0; expected another number")
    if alpha == 1:
        return [call.emit("Elu", [x], alpha=1.0)]
    step = call.number(abs(alpha), x)
    elu = call.emit("Elu", [call.emit("Div", [x, step])], alpha=1.0)
    y = call.emit("Mul", [elu, step])
    if alpha < 0:
        growth = call.emit("Relu", [call.emit("Div", [x, call.number(alpha, x)])])
        y = call.emit("Mul", [y, call.emit("Exp", [growth])])
    return [y]


def _mish(call: Call) -> list[Value]:
    """x · tanh(softplus(x))."""
    x = _float(call)
    return [call.emit("Mul", [x, call.emit("Tanh", [call.emit("Softplus", [x])])])]


def _softsign(call: Call) -> list[Value]:
    """x / (1 + abs(x))."""
    x = _float(call)
    return [call.emit("Div", [x, call.emit("Add", [call.number(1, x), call.emit("Abs", [x])])])]


def _abs(call: Call) -> list[Value]:
    x = call.value()
    return [x if x.type.dtype.kind == "uint" else call.emit("Abs", [x])]


def _clip(call: Call) -> list[Value]:
    """Clip by attributes (before opset 11) or by inputs; of integers it is Max and Min."""
    if call.value().type.dtype.is_integer:
        return [_clipped_integers(call)]
    bounds = {"min": -math.inf, "max": math.inf}
    for index, name in enumerate(bounds, 1):
        if call.opset < 11:
            bounds[name] = call.attribute(name, bounds[name])
        elif call.optional(index) is not None:
            bounds[name] = float(call.scalar(index))
        if math.isnan(bounds[name]):
            raise ModelError(f"{name} is not a number; expected a number")
    return [call.emit("Clip", [call.value()], **bounds)]


def _clipped_integers(call: Call) -> Value:
    x = call.value()
    for index, op in ((1, "Max"), (2, "Min")):
        bound = call.optional(index)
        if bound is None:
            continue
        if bound.type.elements != 1:
            raise ModelError(f"input {index} is {bound.type}; expected one number")
        x = call.emit(op, [x, call.reshape(bound, ())])
    return x


def _prelu(call: Call) -> list[Value]:
    """PRelu; before opset 7 several slopes are one for each channel."""
    call.constant(1)
    x, slope = call.value(0), call.value(1)
    if call.opset < 7 and len(slope.shape) == 1:
        slope = call.reshape(slope, (*slope.shape, *(1,) * max(len(x.shape) - 2, 0)))
    return [call.emit("PRelu", [x, slope])]


def _binary(op: str) -> Callable[[Call], list[Value]]:
    def convert(call: Call) -> list[Value]:
        return [call.emit(op, [call.value(0), aligned(call)])]

    return convert


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
    """Pow, whose exponent may be of another dtype than its base."""
    base, exponent = call.value(0), aligned(call)
    if exponent.type.dtype != base.type.dtype:
        if base.type.dtype not in FLOATS:
            raise UnsupportedError(
                f"got a base {base.type} and an exponent {exponent.type}; expected a float base, "
                "or equal dtypes"
            )
        exponent = call.emit("Cast", [exponent], to=base.type.dtype)
    return [call.emit("Pow", [base, exponent])]


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
    _float(call)
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


def _reduction(
    op: str, axes_as_input: int, before: _Step | None = None, after: _Step | None = None
) -> Rule:
    """A reduction whose axes are an input from some opset on.

    Args:
        op: an operation in normal form.
        axes_as_input: that opset.
        before, after: what is done to every element that is read, and to every result.
    """

    def convert(call: Call) -> list[Value]:
        x = before(call, call.value()) if before else call.value()
        axes = call.reduced(len(x.shape), axes_as_input)
        if axes is not None:
            x = call.emit(op, [x], axes=axes, keepdims=call.flag("keepdims", 1))
        return [after(call, x) if after else x]

    kinds = {"axes": "ints", "keepdims": "int", "noop_with_empty_axes": "int"}
    return Rule(convert, kinds, 1, 2, moved=(axes_as_input, ("axes",)))


def _square(call: Call, x: Value) -> Value:
    return call.emit("Mul", [x, x])


def _magnitude(call: Call, x: Value) -> Value:
    return call.emit("Abs", [x])


def _root(call: Call, x: Value) -> Value:
    return call.emit("Sqrt", [x])


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
    return [call.emit("Gemm", inputs, **attributes)]


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
    return [call.value()]


_NO_KINDS: dict[str, str] = {}
_BROADCAST = Older(7, {"axis": "int", "broadcast": "int"})
RULES: dict[str, Rule] = {
    **{
        op: _unary(op)
        for op in (
            "Relu",
            "Sigmoid",
            "Tanh",
            "Sqrt",
            "Exp",
            "Log",
            "Neg",
            "Reciprocal",
            "Softplus",
        )
    },
    "Abs": Rule(_abs),
    "Erf": _unary("Erf", since=9),
    "HardSwish": _unary("HardSwish", since=14),
    "LeakyRelu": _unary("LeakyRelu", alpha=0.01),
    "HardSigmoid": _unary("HardSigmoid", alpha=0.2, beta=0.5),
    "Elu": _unary("Elu", alpha=1.0),
    "Selu": Rule(_selu, {"alpha": "float", "gamma": "float"}),
    "Celu": Rule(_celu, {"alpha": "float"}, since=12),
    "Mish": Rule(_mish, since=18),
    "Softsign": Rule(_softsign),
    "Gelu": Rule(_gelu, {"approximate": "string"}, since=20),
    "Clip": Rule(_clip, {"min": "float", "max": "float"}, 1, 3, moved=(11, ("min", "max"))),
    "PRelu": Rule(_prelu, _NO_KINDS, 2, 2),
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
    "ReduceMean": _reduction("ReduceMean", 18),
    "ReduceMax": _reduction("ReduceMax", 18),
    "ReduceMin": _reduction("ReduceMin", 18),
    "ReduceSum": _reduction("ReduceSum", 13),
    "ReduceL1": _reduction("ReduceSum", 18, _magnitude),
    "ReduceL2": _reduction("ReduceSum", 18, _square, _root),
    "ReduceSumSquare": _reduction("ReduceSum", 18, _square),
    "Gemm": Rule(
        _gemm,
        {"transA": "int", "transB": "int", "alpha": "float", "beta": "float"},
        2,
        3,
        running=None,
        older=Older(7, {"broadcast": "int"}),
    ),
    "MatMul": Rule(_binary("MatMul"), _NO_KINDS, 2, 2, running=None),
    "Identity": Rule(_identity),
    "Dropout": Rule(
        _dropout,
        {"ratio": "float", "seed": "int"},
        1,
        3,
        moved=(12, ("ratio",)),
        older=Older(7, {"is_test": "int"}),
    ),
}
