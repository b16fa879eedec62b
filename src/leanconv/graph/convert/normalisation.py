"""Normalisation by the data's own statistics, written as means, products and sums.

    y = (x - mean) / sqrt(variance + epsilon) · scale + bias

The mean is taken away before it is squared, so that a variance keeps its digits however far the
data lie from 0. Statistics per channel stay `(N, C, 1…)`: nothing as large as `x` changes its
shape, and the network's layout inside may pass through. Statistics per group are means of the
channels' statistics, which have one weight each.

Softmax is here too, whose axes depend on the opset.
"""

from __future__ import annotations

import math

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph.convert.reductions import power_of, root_of_powers, sum_over
from leanconv.graph.convert.rule import Call, Older, Rule
from leanconv.graph.ops.base import MAX_RANK, check_broadcasts_to, check_rank, same_dtype
from leanconv.graph.value import Value
from leanconv.types import FLOAT32, FLOAT64, FLOATS
from leanconv.units import shape_text

# TensorProto.data_type of stash_type -> the dtype in which statistics are taken at least
_STASHED = {1: FLOAT32, 11: FLOAT64}


def _data(call: Call, least: int) -> Value:
    """The input, of at least `least` axes, its operands of the same float dtype."""
    x = call.value()
    check_rank(x.type, least, MAX_RANK, "input 0")
    given = (call.optional(index) for index in range(len(call)))
    dtype = same_dtype([value.type for value in given if value is not None])
    if dtype not in FLOATS:
        raise UnsupportedError(f"input 0 is {x.type}; expected {' or '.join(FLOATS)}")
    stash = call.attribute("stash_type", 1)
    if stash not in _STASHED or (_STASHED[stash] == FLOAT64 and dtype != FLOAT64):
        raise UnsupportedError(
            f"attribute stash_type is {stash} for {dtype}; expected 1: statistics are taken in the "
            "dtype of the data; export with stash_type 1 or load with dtype='float64'"
        )
    return x


def _inverse_deviation(call: Call, variance: Value) -> Value:
    """1 / sqrt(variance + epsilon)."""
    epsilon = call.attribute("epsilon", 1e-5)
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise ModelError(f"attribute epsilon is {epsilon}; expected a finite number from 0 on")
    shifted = call.emit("Add", [variance, call.number(epsilon, variance)])
    return call.emit("Reciprocal", [call.emit("Sqrt", [shifted])])


def _mean(call: Call, x: Value, axes: tuple[int, ...]) -> Value:
    return call.emit("ReduceMean", [x], axes=axes, keepdims=True) if axes else x


def _layer_norm(call: Call) -> list[Value]:
    """Normalise over all axes from one on."""
    x = _data(call, 1)
    rank = len(x.shape)
    first = call.axis(call.attribute("axis", -1), rank)
    axes = tuple(range(first, rank))
    for index, what in ((1, "the scale"), (2, "the bias")):
        given = call.optional(index)
        if given is not None:
            check_broadcasts_to(given.type, x.shape, what)
    mean = _mean(call, x, axes)
    centred = call.emit("Sub", [x, mean])
    variance = _mean(call, call.emit("Mul", [centred, centred]), axes)
    inverse = _inverse_deviation(call, variance)
    y = call.emit("Mul", [call.emit("Mul", [centred, inverse]), call.value(1)])
    bias = call.optional(2)
    y = y if bias is None else call.emit("Add", [y, bias])
    return [y, mean, inverse][: len(call.node.outputs)]


def _rms_norm(call: Call) -> list[Value]:
    """x / sqrt(mean x^2 + epsilon) · scale, over all axes from one on."""
    x = _data(call, 1)
    rank = len(x.shape)
    axes = tuple(range(call.axis(call.attribute("axis", -1), rank), rank))
    check_broadcasts_to(call.value(1).type, x.shape, "the scale")
    inverse = _inverse_deviation(call, _mean(call, call.emit("Mul", [x, x]), axes))
    return [call.emit("Mul", [call.emit("Mul", [x, inverse]), call.value(1)])]


def _mean_variance_norm(call: Call) -> list[Value]:
    """(x - mean) / (deviation + 1e-9), over given axes."""
    x = _data(call, 1)
    axes = call.axes(call.attribute("axes", (0, 2, 3)), len(x.shape))
    centred = call.emit("Sub", [x, _mean(call, x, axes)])
    variance = _mean(call, call.emit("Mul", [centred, centred]), axes)
    deviation = call.emit("Sqrt", [variance])
    shifted = call.emit("Add", [deviation, call.number(1e-9, x)])
    return [call.emit("Div", [centred, shifted])]


def _lp_norm(call: Call) -> list[Value]:
    """x / (sum |x|^p)^(1/p) along an axis, p 1 or 2; 0 where all of it is 0."""
    x, p = _data(call, 1), call.attribute("p", 2)
    if p not in (1, 2):
        raise ModelError(f"attribute p is {p}; expected 1 or 2")
    axis = call.axis(call.attribute("axis", -1), len(x.shape))
    norm = root_of_powers(call, sum_over(call, power_of(call, x, p), (axis,), True), p)
    zero = call.emit("Equal", [norm, call.number(0, norm)])
    return [call.emit("Div", [x, call.emit("Where", [zero, call.number(1, norm), norm])])]


def _instance_norm(call: Call) -> list[Value]:
    """Normalise over the spatial axes of every channel."""
    x = _data(call, 3)
    return _by_groups(call, x, x.shape[1], x.shape[1])


def _group_norm(call: Call) -> list[Value]:
    """Over groups of channels; scale and bias are per group before opset 21."""
    x, groups = _data(call, 2), call.attribute("num_groups", None)
    channels = x.shape[1]
    if groups is None:
        raise ModelError("attribute num_groups is missing; expected the number of groups")
    if groups < 1 or channels % groups:
        raise ModelError(
            f"attribute num_groups is {groups}; expected a divisor of {channels}, the channels of "
            f"input 0, {x.type}"
        )
    return _by_groups(call, x, groups, channels if call.opset >= 21 else groups)


def _by_groups(call: Call, x: Value, groups: int, parameters: int) -> list[Value]:
    """Normalise groups of channels, then scale and shift by numbers per channel or group."""
    rank, channels = len(x.shape), x.shape[1]
    spatial, along = tuple(range(2, rank)), (channels,) + (1,) * (rank - 2)
    operands = []
    for index, what in ((1, "scale"), (2, "bias")):
        held = call.value(index)
        if held.shape != (parameters,):
            kind = "channel" if parameters == channels else "group, as before opset 21"
            raise ModelError(
                f"input {index}, the {what}, is {held.type}; expected {parameters} "
                f"numbers, one for each {kind}, for input 0, {x.type}"
            )
        operands.append(call.reshape(_spread(call, held, channels), along))

    def statistic(value: Value) -> Value:
        """The mean of every group, at each of its channels."""
        mean = _mean(call, value, spatial)
        if groups == channels:
            return mean
        grouped = (x.shape[0], groups, channels // groups)
        joint = _mean(call, call.reshape(mean, grouped), (2,))
        return call.reshape(call.emit("Expand", [joint], shape=grouped), mean.shape)

    centred = call.emit("Sub", [x, statistic(x)])
    variance = statistic(call.emit("Mul", [centred, centred]))
    factor = call.emit("Mul", [_inverse_deviation(call, variance), operands[0]])
    return [call.emit("Add", [call.emit("Mul", [centred, factor]), operands[1]])]


def _spread(call: Call, held: Value, channels: int) -> Value:
    """Numbers per group as numbers per channel."""
    (count,) = held.shape
    if count == channels:
        return held
    column = call.reshape(held, (count, 1))
    wide = call.emit("Expand", [column], shape=(count, channels // count))
    return call.reshape(wide, (channels,))


def _batch_norm(call: Call) -> list[Value]:
    """Normalise each channel by constant statistics; by the batch's where the file says so."""
    if call.opset < 14 and any(call.node.outputs[1:]):
        raise UnsupportedError(
            "there are outputs for the statistics of the batch; expected a model for inference; "
            "export it in evaluation mode"
        )
    if call.flag("training_mode"):
        return _norm_of_batch(call)
    if not call.flag("spatial", 1):
        return [_norm_of_features(call)]
    inputs = [call.value(index) for index in range(5)]
    if all(value.array is not None for value in inputs[1:]):
        return [call.emit("BatchNormalization", inputs, epsilon=call.attribute("epsilon", 1e-5))]
    x, channels = _data(call, 2), inputs[0].shape[1]
    if any(value.shape != (channels,) for value in inputs[1:]):
        listed = ", ".join(str(value.type) for value in inputs[1:])
        raise ModelError(f"got {listed}; expected {channels} numbers, one for each channel")
    along = (channels,) + (1,) * (len(x.shape) - 2)
    return [_affine(call, x, [call.reshape(value, along) for value in inputs[1:]])]


def _affine(call: Call, x: Value, parameters: list[Value]) -> Value:
    """x · f + (bias - mean · f) with f = scale / deviation, by given statistics."""
    scale, bias, mean, variance = parameters
    factor = call.emit("Mul", [_inverse_deviation(call, variance), scale])
    shift = call.emit("Sub", [bias, call.emit("Mul", [mean, factor])])
    return call.emit("Add", [call.emit("Mul", [x, factor]), shift])


def _norm_of_batch(call: Call) -> list[Value]:
    """By the mean and variance of the batch; then the statistics given, moved towards these."""
    x = _data(call, 2)
    rank, channels = len(x.shape), x.shape[1]

    def statistic(value: Value) -> Value:
        mean = _mean(call, value, tuple(range(2, rank))) if rank > 2 else value
        return _mean(call, mean, (0,))

    mean = statistic(x)
    centred = call.emit("Sub", [x, mean])
    variance = statistic(call.emit("Mul", [centred, centred]))
    along = (channels,) + (1,) * (rank - 2)
    scale, bias = (call.reshape(call.value(index), along) for index in (1, 2))
    factor = call.emit("Mul", [_inverse_deviation(call, variance), scale])
    results = [call.emit("Add", [call.emit("Mul", [centred, factor]), bias])]
    kept = call.attribute("momentum", 0.9)
    for index, found in ((3, mean), (4, variance)):
        if len(call.node.outputs) > len(results):
            old, new = call.value(index), call.reshape(found, (channels,))
            old = call.emit("Mul", [old, call.number(kept, old)])
            results.append(
                call.emit("Add", [old, call.emit("Mul", [new, call.number(1 - kept, new)])])
            )
    return results


def _norm_of_features(call: Call) -> Value:
    """By statistics of every feature of an image, as opsets 1 to 8 have it with spatial=0."""
    x = _data(call, 2)
    scale, bias, mean, variance = (call.value(index) for index in range(1, 5))
    if any(value.shape != x.shape[1:] for value in (scale, bias, mean, variance)):
        listed = ", ".join(str(value.type) for value in (scale, bias, mean, variance))
        raise ModelError(
            f"got parameters {listed} for {x.type} and spatial=0; expected "
            f"{shape_text(x.shape[1:])} for all of them"
        )
    return _affine(call, x, [scale, bias, mean, variance])


def _softmax(call: Call) -> list[Value]:
    """Softmax over one axis (since opset 13), before over all axes from one on."""
    x, op = call.value(), call.node.op
    rank = len(x.shape)
    axis = call.axis(call.attribute("axis", -1 if call.opset >= 13 else 1), rank)
    if call.opset >= 13 or axis == rank - 1:
        return [call.emit(op, [x], axis=axis)]
    flat = call.reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))
    return [call.reshape(call.emit(op, [flat], axis=1), x.shape)]


RULES: dict[str, Rule] = {
    "BatchNormalization": Rule(
        _batch_norm,
        {"epsilon": "float", "momentum": "float", "spatial": "int", "training_mode": "int"},
        5,
        5,
        None,
        outputs=3,
        older=Older(7, {"is_test": "int"}),
    ),
    "LayerNormalization": Rule(
        _layer_norm,
        {"axis": "int", "epsilon": "float", "stash_type": "int"},
        2,
        3,
        running=None,
        since=17,
        outputs=3,
    ),
    "RMSNormalization": Rule(
        _rms_norm,
        {"axis": "int", "epsilon": "float", "stash_type": "int"},
        2,
        2,
        running=None,
        since=23,
    ),
    "MeanVarianceNormalization": Rule(_mean_variance_norm, {"axes": "ints"}, since=9),
    "LpNormalization": Rule(_lp_norm, {"axis": "int", "p": "int"}),
    "InstanceNormalization": Rule(_instance_norm, {"epsilon": "float"}, 3, 3, running=None),
    "GroupNormalization": Rule(
        _group_norm,
        {"epsilon": "float", "num_groups": "int", "stash_type": "int"},
        3,
        3,
        running=None,
        since=18,
    ),
    "Softmax": Rule(_softmax, {"axis": "int"}),
    "LogSoftmax": Rule(_softmax, {"axis": "int"}),
}
