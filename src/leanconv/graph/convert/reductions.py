"""Reductions, running totals, and losses of classifiers.

Sums, products and extremes exist of floats and of int32 and int64; what is of other integers is
cast to one of these that holds them. Logarithms and roots of integers are taken in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from leanconv.errors import ModelError
from leanconv.graph.convert.elementwise import floating
from leanconv.graph.convert.rule import Call, Rule
from leanconv.graph.ops import OPS
from leanconv.graph.ops.algebra import NEUTRAL
from leanconv.graph.ops.base import MAX_RANK, check_rank
from leanconv.graph.value import Value
from leanconv.types import BOOL, FLOAT64, FLOATS, INT32, INT64, DType

Axes = tuple[int, ...]


def _counted_in(dtype: DType, total: bool) -> DType:
    """In which dtype integers are reduced: one that holds them, or only as many bits of a total."""
    if dtype in (*FLOATS, INT32, INT64) or (dtype.bytes == 8 and not total):
        return dtype
    narrow = dtype == BOOL or dtype.bytes < 4 or (total and dtype.bytes == 4)
    return INT32 if narrow else INT64


def _reduce(op: str, call: Call, x: Value, axes: Axes, keepdims: bool) -> Value:
    """One reduction in normal form; `ReduceSum` and `ReduceProd` of nothing are 0 and 1."""
    kept, (combines, _) = x.type.dtype, OPS[op].reduces or ("", "")
    if not axes:
        return x
    if combines in NEUTRAL and any(x.shape[axis] == 0 for axis in axes):
        shape = [1 if axis in axes else extent for axis, extent in enumerate(x.shape)]
        shape = shape if keepdims else [e for i, e in enumerate(x.shape) if i not in axes]
        number = NEUTRAL[combines]
        if not kept.is_float:
            number = min(max(number, kept.low), kept.high)
        return call.builder.filled(np.asarray(number, kept.numpy), shape)
    if x.array is None:
        x = call.cast(x, _counted_in(kept, combines in ("sum", "prod")))
    return call.cast(call.emit(op, [x], axes=axes, keepdims=keepdims), kept)


sum_over = partial(_reduce, "ReduceSum")
_max_over = partial(_reduce, "ReduceMax")


def _mean(call: Call, x: Value, axes: Axes, keepdims: bool) -> Value:
    """The mean; of integers the sum's quotient towards zero."""
    if x.type.dtype in FLOATS or x.array is not None:
        return _reduce("ReduceMean", call, x, axes, keepdims)
    count = math.prod(x.shape[axis] for axis in axes)
    if not count:
        raise ModelError(f"takes the mean of no elements of {x.type}; expected one at least")
    total = sum_over(call, x, axes, keepdims)
    return call.emit("Div", [total, call.number(count, total)])


def _magnitudes(call: Call, x: Value, axes: Axes, keepdims: bool) -> Value:
    return sum_over(call, call.emit("Abs", [x]), axes, keepdims)


def _squares(call: Call, x: Value, axes: Axes, keepdims: bool) -> Value:
    return sum_over(call, call.emit("Mul", [x, x]), axes, keepdims)


def _length(call: Call, x: Value, axes: Axes, keepdims: bool) -> Value:
    return call.emit("Sqrt", [_squares(call, x, axes, keepdims)])


def power_of(call: Call, x: Value, p: float) -> Value:
    """|x|^p."""
    if p == 2:
        return call.emit("Mul", [x, x])
    size = call.emit("Abs", [x])
    return size if p == 1 else call.emit("Pow", [size, call.number(p, x)])


def root_of_powers(call: Call, x: Value, p: float) -> Value:
    """x^(1/p)."""
    if p == 1:
        return x
    return call.emit("Sqrt", [x]) if p == 2 else call.emit("Pow", [x, call.number(1 / p, x)])


def _log_sum(call: Call, x: Value, axes: Axes, keepdims: bool) -> Value:
    return call.emit("Log", [sum_over(call, x, axes, keepdims)])


def _log_sum_exp(call: Call, x: Value, axes: Axes, keepdims: bool) -> Value:
    """log sum e^(x - m) + m, with m the largest number where that is finite, else 0."""
    largest = _max_over(call, x, axes, True)
    infinite = call.emit("IsInf", [largest], positive=True, negative=True)
    m = call.emit("Where", [infinite, call.number(0, x), largest])
    total = sum_over(call, call.emit("Exp", [call.emit("Sub", [x, m])]), axes, True)
    y = call.emit("Add", [call.emit("Log", [total]), m])
    if keepdims:
        return y
    return call.reshape(y, [e for axis, e in enumerate(y.shape) if axis not in axes])


_Over = Callable[[Call, Value, Axes, bool], Value]


def _rule(over: _Over, axes_as_input: int, in_floats: bool = False) -> Rule:
    """A reduction whose axes are an input from some opset on.

    Args:
        over: makes it, over any axes.
        axes_as_input: that opset.
        in_floats: whether it is computed of floats only.
    """

    def convert(call: Call) -> list[Value]:
        x = call.value()
        kept = x.type.dtype
        if in_floats and not kept.is_float:
            x = call.cast(x, FLOAT64)
        axes = call.reduced(len(x.shape), axes_as_input)
        keepdims = call.flag("keepdims", 1)
        return [call.cast(over(call, x, axes or (), keepdims), kept)]

    kinds = {"axes": "ints", "keepdims": "int", "noop_with_empty_axes": "int"}
    return Rule(convert, kinds, 1, 2, moved=(axes_as_input, ("axes",)))


def _running(call: Call) -> Sequence[Value]:
    """CumSum and CumProd; of unsigned integers as many bits of the signed."""
    x = call.value()
    check_rank(x.type, 1, len(x.shape))
    kept = x.type.dtype
    attributes = {
        "axis": call.axis(call.whole(1), len(x.shape)),
        "exclusive": call.flag("exclusive"),
        "reverse": call.flag("reverse"),
    }
    if not kept.is_float and x.array is None:
        x = call.cast(x, INT32 if kept.bytes <= 4 else INT64)
    return [call.cast(call.emit(call.node.op, [x], **attributes), kept)]


_RUNNING = {"exclusive": "int", "reverse": "int"}


def _cross_entropy(call: Call) -> list[Value]:
    """Return the loss of scores (N, C, spatial...), then their log-probabilities."""
    x = floating(call)
    check_rank(x.type, 2, MAX_RANK, "input 0")
    logarithms = call.emit("LogSoftmax", [x], axis=1)
    return [_loss(call, logarithms), logarithms][: len(call.node.outputs)]


def _likelihood(call: Call) -> list[Value]:
    x = floating(call)
    check_rank(x.type, 2, MAX_RANK, "input 0")
    return [_loss(call, x)]


def _loss(call: Call, x: Value) -> Value:
    """-x[n, label, spatial...] · weight[label], 0 where the label is `ignore_index`.

    Of their mean the divisor is the sum of the weights, 1 each where there are none.
    """
    labels, weights = call.value(1), call.optional(2)
    reduction = call.attribute("reduction", "mean")
    if reduction not in ("none", "sum", "mean"):
        raise ModelError(f"attribute reduction is {reduction!r}; expected none, sum or mean")
    if not labels.type.dtype.is_integer or labels.shape != (x.shape[0], *x.shape[2:]):
        raise ModelError(f"got labels {labels.type} for {x.type}; expected an integer for each")
    if weights is not None and weights.shape != (x.shape[1],):
        raise ModelError(f"got weights {weights.type}; expected one for each of {x.shape[1]}")
    labels, ignored = call.cast(labels, INT64), call.attribute("ignore_index", None)
    skipped = None
    if ignored is not None:
        skipped = call.emit("Equal", [labels, call.number(ignored, labels)])
        labels = call.emit("Where", [skipped, call.number(0, labels), labels])
    places = call.reshape(labels, (labels.shape[0], 1, *labels.shape[1:]))
    found = call.reshape(call.emit("GatherElements", [x, places], axis=1), labels.shape)
    loss, weight = call.emit("Neg", [found]), None
    if weights is not None:
        weight = call.emit("Gather", [weights, labels], axis=0)
        loss = call.emit("Mul", [loss, weight])
    if skipped is not None:
        loss = call.emit("Where", [skipped, call.number(0, loss), loss])
    if reduction == "none":
        return loss
    axes = tuple(range(len(loss.shape)))
    total = sum_over(call, loss, axes, False)
    if reduction == "sum":
        return total
    if weight is None and skipped is None:
        return call.emit("Div", [total, call.number(loss.type.elements, total)])
    if weight is None:
        weight = call.emit("Expand", [call.number(1, loss)], shape=loss.shape)
    if skipped is not None:
        weight = call.emit("Where", [skipped, call.number(0, loss), weight])
    return call.emit("Div", [total, sum_over(call, weight, axes, False)])


_LOSS = {"ignore_index": "int", "reduction": "string"}

RULES: dict[str, Rule] = {
    "ReduceMean": _rule(_mean, 18),
    "ReduceMax": _rule(_max_over, 18),
    "ReduceMin": _rule(partial(_reduce, "ReduceMin"), 18),
    "ReduceSum": _rule(sum_over, 13),
    "ReduceProd": _rule(partial(_reduce, "ReduceProd"), 18),
    "ReduceL1": _rule(_magnitudes, 18),
    "ReduceL2": _rule(_length, 18, in_floats=True),
    "ReduceSumSquare": _rule(_squares, 18),
    "ReduceLogSum": _rule(_log_sum, 18, in_floats=True),
    "ReduceLogSumExp": _rule(_log_sum_exp, 18, in_floats=True),
    "CumSum": Rule(_running, _RUNNING, 2, 2, since=11),
    "CumProd": Rule(_running, _RUNNING, 2, 2, since=26),
    "SoftmaxCrossEntropyLoss": Rule(_cross_entropy, _LOSS, 2, 3, None, since=12, outputs=2),
    "NegativeLogLikelihoodLoss": Rule(_likelihood, _LOSS, 2, 3, None, since=12),
}
