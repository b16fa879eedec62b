"""Arithmetic and functions of each element by itself: activations, powers of e, trigonometry."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph.convert.rule import Call, Older, Rule
from leanconv.graph.convert.shapes import counted
from leanconv.graph.ops import UNARY
from leanconv.graph.ops.base import broadcast, check_broadcasts_to
from leanconv.graph.value import Value
from leanconv.spec.activation import KINDS
from leanconv.types import BOOL, FLOAT64, FLOATS, INT64

# Selu's alpha and gamma, float32 as the standard has them, and those of opset 1
_SELU, _OLD_SELU = (1.67326319217681884765625, 1.05070102214813232421875), (1.6732, 1.0507)


def floating(call: Call) -> Value:
    """The first input, which has to hold floats."""
    x = call.value()
    if x.type.dtype not in FLOATS:
        raise UnsupportedError(f"input 0 is {x.type}; expected {' or '.join(FLOATS)}")
    return x


def _arithmetic(op: str, **facts: Any) -> Rule:
    def convert(call: Call) -> list[Value]:
        return [call.emit(op, [call.value(0), aligned(call)])]

    return Rule(convert, _NO_KINDS, 2, 2, running=None, older=_BROADCAST, **facts)


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
    pair = [call.cast(v, common) for v in (base, exponent)]
    y = call.emit("Pow", pair)
    if common == FLOAT64 != kept:
        y = _whole(call, y)
    return [call.cast(y, kept)]


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


def _identity(call: Call) -> list[Value]:
    return [call.value()]


def _dropout(call: Call) -> list[Value]:
    """Return the input unchanged, as outside of training."""
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


def _unary(op: str, *defaults: tuple[str, float], **facts: Any) -> Rule:
    """An operation whose attributes are floats with defaults, the same in every opset."""

    def convert(call: Call) -> list[Value]:
        numbers = {name: call.attribute(name, default) for name, default in defaults}
        return [call.emit(op, [call.value()], **numbers)]

    return Rule(convert, {name: "float" for name, _ in defaults}, **facts)


def _alike(op: str) -> Rule:
    """What files have by our name."""
    kind, since = KINDS.get(UNARY[op].activation), UNARY[op].since
    if kind is None:
        return _unary(op, since=since)
    traits = {"halves": True, "homogeneous": kind.homogeneous}
    return _unary(op, *kind.parameters.items(), since=since, **traits)


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


_EACH: dict[str, Rule] = {
    "Add": _arithmetic("Add", codes="mixed"),
    "Sub": _arithmetic("Sub", halves=True),
    "Mul": _arithmetic("Mul", codes="mixed"),
    "Div": _arithmetic("Div"),
    "Pow": Rule(_power, _NO_KINDS, 2, 2, running=None, older=_BROADCAST),
    "Sum": Rule(_chain("Add"), _NO_KINDS, 1, 1 << 31, running=None),
    "Min": Rule(_chain("Min"), _NO_KINDS, 1, 1 << 31, running=None),
    "Max": Rule(_chain("Max"), _NO_KINDS, 1, 1 << 31, running=None),
    "Mean": Rule(_mean, _NO_KINDS, 1, 1 << 31, running=None),
    "Relu": _unary("Relu", codes="bounded", homogeneous=True),
    **{op: _alike(op) for op, each in UNARY.items() if each.since},
    "Abs": Rule(_abs),
    "HardSigmoid": _unary("HardSigmoid", ("alpha", 0.2), ("beta", 0.5), halves=True),
    "Selu": Rule(_selu, {"alpha": "float", "gamma": "float"}),
    "Celu": Rule(_celu, {"alpha": "float"}, since=12),
    "Mish": Rule(_mish, since=18),
    "Softsign": Rule(_softsign),
    "Gelu": Rule(_gelu, {"approximate": "string"}, since=20),
    "Clip": Rule(
        _clip,
        {"min": "float", "max": "float"},
        1,
        3,
        running=None,
        moved=(11, ("min", "max")),
        codes="bounded",
    ),
    "PRelu": Rule(_prelu, {}, 2, 2, running=None, homogeneous=True),
    "ThresholdedRelu": Rule(_thresholded, {"alpha": "float"}, since=10),
    "Shrink": Rule(_shrink, {"lambd": "float", "bias": "float"}, since=9),
    "Swish": Rule(_swish, {"alpha": "float"}, since=24),
    "SwiGLU": Rule(_swiglu, {"alpha": "float"}, 2, 2, running=None, since=28),
}
RULES: dict[str, Rule] = {
    **{op: replace(rule, follows="each") for op, rule in _EACH.items()},
    "Identity": Rule(_identity, moves=True, narrow=True, follows="shape", codes="kept"),
    "Dropout": Rule(
        _dropout,
        {"ratio": "float", "seed": "int"},
        1,
        3,
        outputs=2,
        moved=(12, ("ratio",)),
        older=Older(7, {"is_test": "int"}),
    ),
    "Hardmax": Rule(_hardmax, {"axis": "int"}),
}
