"""Functions of each element by itself: activations, powers of e, trigonometry."""

from __future__ import annotations

import math

from leanconv.errors import ModelError
from leanconv.graph.convert.arithmetic import floating
from leanconv.graph.convert.patterns import counted
from leanconv.graph.convert.rule import Call, Rule
from leanconv.graph.ops.base import check_broadcasts_to
from leanconv.graph.value import Value
from leanconv.types import FLOAT64, FLOATS

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


def _selu(call: Call) -> list[Value]:
    """gamma · Elu(x; alpha)."""
    alpha, gamma = _SELU if call.opset >= 6 else _OLD_SELU
    elu = call.emit("Elu", [floating(call)], alpha=call.attribute("alpha", alpha))
    return [call.emit("Mul", [elu, call.number(call.attribute("gamma", gamma), elu)])]


def _celu(call: Call) -> list[Value]:
    """|alpha| · Elu(x / |alpha|; 1), and for a negative alpha times e^Relu(x / alpha).

    Below zero that is alpha · (e^(x / alpha) - 1) for either sign: e^z - 1 = (1 - e^-z) · e^z.
    """
    x, alpha = floating(call), call.attribute("alpha", 1.0)
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
    x = floating(call)
    return [call.emit("Mul", [x, call.emit("Tanh", [call.emit("Softplus", [x])])])]


def _softsign(call: Call) -> list[Value]:
    """x / (1 + abs(x))."""
    x = floating(call)
    return [call.emit("Div", [x, call.emit("Add", [call.number(1, x), call.emit("Abs", [x])])])]


def _abs(call: Call) -> list[Value]:
    x = call.value()
    return [x if x.type.dtype.kind == "uint" else call.emit("Abs", [x])]


def _clip(call: Call) -> list[Value]:
    """Clip by attributes (before opset 11) or by inputs; by data, and of integers, Max and Min."""
    known = all(v is None or v.array is not None for v in map(call.optional, (1, 2)))
    if call.value().type.dtype.is_integer or not known:
        return [_clipped_by_inputs(call)]
    bounds = {"min": -math.inf, "max": math.inf}
    for index, name in enumerate(bounds, 1):
        if call.opset < 11:
            bounds[name] = call.attribute(name, bounds[name])
        elif call.optional(index) is not None:
            bounds[name] = float(call.scalar(index))
        if math.isnan(bounds[name]):
            raise ModelError(f"{name} is not a number; expected a number")
    return [call.emit("Clip", [call.value()], **bounds)]


def _clipped_by_inputs(call: Call) -> Value:
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
    x, slope = call.value(0), call.value(1)
    if call.opset < 7 and len(slope.shape) == 1:
        slope = call.reshape(slope, (*slope.shape, *(1,) * max(len(x.shape) - 2, 0)))
    if x.type.dtype in FLOATS:
        return [call.emit("PRelu", [x, slope])]
    check_broadcasts_to(slope.type, x.shape, "the slope")
    below = call.emit("Less", [x, call.number(0, x)])
    return [call.emit("Where", [below, call.emit("Mul", [x, slope]), x])]


def _thresholded(call: Call) -> list[Value]:
    """x where it is above alpha, 0 elsewhere."""
    x = floating(call)
    above = call.emit("Greater", [x, call.number(call.attribute("alpha", 1.0), x)])
    return [call.emit("Where", [above, x, call.number(0, x)])]


def _shrink(call: Call) -> list[Value]:
    """x + bias below -lambd, x - bias above lambd, 0 between; of integers computed as floats."""
    x = call.value()
    dtype = x.type.dtype
    if dtype not in FLOATS:
        x = call.emit("Cast", [x], to=FLOAT64)
    bound, bias = call.attribute("lambd", 0.5), call.number(call.attribute("bias", 0.0), x)
    below = call.emit("Less", [x, call.number(-bound, x)])
    above = call.emit("Less", [call.number(bound, x), x])
    positive = call.emit("Where", [above, call.emit("Sub", [x, bias]), call.number(0, x)])
    y = call.emit("Where", [below, call.emit("Add", [x, bias]), positive])
    return [y if dtype in FLOATS else call.emit("Cast", [y], to=dtype)]


def swish(call: Call, x: Value, alpha: float) -> Value:
    """x · sigmoid(alpha x)."""
    if alpha == 1:
        return call.emit("Silu", [x])
    scaled = call.emit("Mul", [x, call.number(alpha, x)])
    return call.emit("Mul", [x, call.emit("Sigmoid", [scaled])])


def _swish(call: Call) -> list[Value]:
    return [swish(call, floating(call), call.attribute("alpha", 1.0))]


def _swiglu(call: Call) -> list[Value]:
    """swish(a) · b."""
    a, b = floating(call), call.value(1)
    return [call.emit("Mul", [swish(call, a, call.attribute("alpha", 1.0)), b])]


def _hardmax(call: Call) -> list[Value]:
    """1 at the first of the largest numbers of an axis, 0 elsewhere; the axis as Softmax's."""
    x = floating(call)
    rank = len(x.shape)
    axis = call.axis(call.attribute("axis", -1 if call.opset >= 13 else 1), rank)
    if not x.type.elements:
        return [x]
    flat = x
    if call.opset < 13:
        flat = call.reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))
        axis = 1
    extent, after = flat.shape[axis], len(flat.shape) - 1 - axis
    places = counted(call, extent, (extent, *(1,) * after))
    first = call.emit("ArgMax", [flat], axis=axis, keepdims=True, last=False)
    found = call.emit("Cast", [call.emit("Equal", [first, places])], to=x.type.dtype)
    return [call.reshape(found, x.shape)]


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
    **{op: _unary(op, since=7) for op in ("Sin", "Cos", "Tan", "Asin", "Acos", "Atan")},
    **{op: _unary(op, since=9) for op in ("Sinh", "Cosh", "Asinh", "Acosh", "Atanh")},
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
    "Clip": Rule(
        _clip, {"min": "float", "max": "float"}, 1, 3, running=None, moved=(11, ("min", "max"))
    ),
    "PRelu": Rule(_prelu, {}, 2, 2, running=None),
    "ThresholdedRelu": Rule(_thresholded, {"alpha": "float"}, since=10),
    "Shrink": Rule(_shrink, {"lambd": "float", "bias": "float"}, since=9),
    "Swish": Rule(_swish, {"alpha": "float"}, since=24),
    "SwiGLU": Rule(_swiglu, {"alpha": "float"}, 2, 2, running=None, since=28),
    "Hardmax": Rule(_hardmax, {"axis": "int"}),
}
