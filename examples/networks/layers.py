"""Layers without weights of their own, and the blocks that several networks share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from examples.networks.builder import IntPair, NetBuilder, Padding, Stats, Value
from examples.networks.weighted import batch_norm, conv, linear


def _sigmoid(x: Stats) -> Stats:
    return np.asarray(0.5 + 0.5 * np.tanh(0.5 * x))


def _hard_sigmoid(x: Stats) -> Stats:
    return np.clip(x / 6.0 + 0.5, 0.0, 1.0)


_FUNCTIONS: dict[str, Callable[[Stats], Stats]] = {
    "relu": lambda x: np.maximum(x, 0.0),
    "relu6": lambda x: np.clip(x, 0.0, 6.0),
    "leaky_relu": lambda x: np.where(x > 0.0, x, 0.01 * x),
    "elu": lambda x: np.where(x > 0.0, x, np.expm1(np.minimum(x, 0.0))),
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
    "hard_sigmoid": _hard_sigmoid,
    "hard_swish": lambda x: x * _hard_sigmoid(x),
    "gelu": lambda x: x * _sigmoid(1.702 * x),  # near enough for an expectation
}
_OPS = {
    "relu": "Relu",
    "leaky_relu": "LeakyRelu",
    "elu": "Elu",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
}
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(41)
_WEIGHTS /= _WEIGHTS.sum()


def moments_after(kind: str, x: Value) -> tuple[Stats, Stats]:
    """Return mean and variance of activated normal values, by Gauss-Hermite quadrature."""
    samples = _FUNCTIONS[kind](x.mean[:, None] + np.sqrt(x.var)[:, None] * _NODES)
    mean = samples @ _WEIGHTS
    return mean, np.square(samples - mean[:, None]) @ _WEIGHTS


def activation(b: NetBuilder, x: Value, kind: str | None) -> Value:
    """Apply an activation by name, written as exporters write it for the operator set.

    Raises:
        KeyError: the name is not known.
        ValueError: the operator set cannot say it (gelu before 9).
    """
    if kind is None:
        return x
    mean, var = moments_after(kind, x)
    inputs: list[Value | str] = [x]
    attributes: dict[str, float] = {}
    op = _OPS.get(kind, "Mul")
    if kind == "relu6":
        op = "Clip"
        if b.opset < 11:
            attributes = {"min": 0.0, "max": 6.0}
        else:
            inputs += [b.constant(0.0, np.float32), b.constant(6.0, np.float32)]
    elif kind == "hard_sigmoid":
        op, attributes = "HardSigmoid", {"alpha": 1.0 / 6.0, "beta": 0.5}
    elif kind == "hard_swish" and b.opset >= 14:
        op = "HardSwish"
    elif kind == "hard_swish":
        inputs.append(activation(b, x, "hard_sigmoid"))
    elif kind == "silu":
        inputs.append(activation(b, x, "sigmoid"))
    elif kind == "gelu" and b.opset >= 20:
        op = "Gelu"
    elif kind == "gelu" and b.opset < 9:
        raise ValueError(f"gelu: got opset {b.opset}, expected 9 or later, which have Erf")
    elif kind == "gelu":  # x * (erf(x / sqrt 2) + 1), then * 0.5 as torch exports it
        scaled = b.apply("Div", x, b.constant(math.sqrt(2.0), np.float32))
        shifted = b.apply("Add", b.apply("Erf", scaled), b.constant(1.0, np.float32))
        inputs = [b.apply("Mul", x, shifted), b.constant(0.5, np.float32)]
    return b.apply(op, *inputs, mean=mean, var=var, **attributes)


def conv_bn(
    b: NetBuilder,
    x: Value,
    name: str,
    channels: int,
    kernel: IntPair,
    act: str | None = "relu",
    *,
    folded: bool = False,
    bn_gain: float = 1.0,
    **options: Any,
) -> Value:
    """Convolution, batch norm, activation; with `folded` a bias instead of the norm.

    Args:
        b: the network being written.
        x: `(n, c, h, w)`.
        name: prefix; the weights are `name.conv.*` and `name.bn.*`.
        channels: output channels.
        kernel: as in `conv`.
        act: an activation's name, or None.
        folded: leave the batch norm out.
        bn_gain: typical scale of the batch norm.
        options: stride, padding, dilation, groups as in `conv`.
    """
    y = conv(b, x, f"{name}.conv", channels, kernel, bias=folded, **options)
    if not folded:
        y = batch_norm(b, y, f"{name}.bn", gain=bn_gain)
    return activation(b, y, act)


def add(b: NetBuilder, x: Value, y: Value) -> Value:
    """Add two values of one shape, a residual connection."""
    return b.apply("Add", x, y, mean=x.mean + y.mean, var=x.var + y.var)


def concat(b: NetBuilder, values: Sequence[Value]) -> Value:
    """Join values along their channels."""
    mean = np.concatenate([value.mean for value in values])
    var = np.concatenate([value.var for value in values])
    return b.apply("Concat", *values, mean=mean, var=var, axis=1)


def pool(
    b: NetBuilder,
    x: Value,
    kind: str,
    kernel: int,
    stride: int,
    padding: Padding = 0,
    *,
    ceil_mode: bool = False,
    count_include_pad: bool = False,
) -> Value:
    """Max or average pooling (`kind` is "max" or "average")."""
    op = {"max": "MaxPool", "average": "AveragePool"}[kind]
    return b.apply(
        op,
        x,
        kernel_shape=[kernel, kernel],
        strides=[stride, stride],
        pads=[padding] * 4 if isinstance(padding, int) else list(padding),
        ceil_mode=1 if ceil_mode else None,
        count_include_pad=1 if count_include_pad else None,
        mean=x.mean + np.sqrt(x.var) if kind == "max" else x.mean,
        var=0.7 * x.var,
    )


def global_average(b: NetBuilder, x: Value) -> Value:
    """Average every channel over its image: `(n, c, h, w)` to `(n, c, 1, 1)`."""
    return b.apply("GlobalAveragePool", x, var=0.1 * x.var)


def flatten(b: NetBuilder, x: Value, positions: int = 1) -> Value:
    """`(n, c, h, w)` to `(n, c * h * w)`, where `positions` is `h * w`."""
    mean, var = np.repeat(x.mean, positions), np.repeat(x.var, positions)
    return b.apply("Flatten", x, mean=mean, var=var, axis=1)


def dropout(b: NetBuilder, x: Value) -> Value:
    """A dropout node, which does nothing at inference."""
    if b.opset >= 12:
        return b.apply("Dropout", x, b.constant(0.5, np.float32))
    return b.apply("Dropout", x, ratio=0.5)


def reduce_mean(b: NetBuilder, x: Value, axes: Sequence[int], *, keepdims: bool = True) -> Value:
    """Mean over `axes`."""
    var = 0.1 * x.var
    if b.opset >= 18:
        return b.apply("ReduceMean", x, b.constant(list(axes)), keepdims=int(keepdims), var=var)
    return b.apply("ReduceMean", x, axes=list(axes), keepdims=int(keepdims), var=var)


def squeeze_excite(
    b: NetBuilder, x: Value, name: str, squeezed: int, inner: str = "relu", gate: str = "sigmoid"
) -> Value:
    """Scale channels by what their means say (Hu et al. 2018, arXiv 1709.01507)."""
    y = global_average(b, x)
    y = activation(b, conv(b, y, f"{name}.reduce", squeezed, 1, bias=True), inner)
    y = activation(b, conv(b, y, f"{name}.expand", x.channels, 1, bias=True), gate)
    second = (np.square(x.mean) + x.var) * (np.square(y.mean) + y.var)
    mean = x.mean * y.mean
    return b.apply("Mul", x, y, mean=mean, var=second - np.square(mean))


def logits(b: NetBuilder, x: Value, classes: int, batch: int | None) -> None:
    """End the network with a fully connected layer on `(n, c)`, logits of spread 2."""
    b.output(
        linear(b, x, "classifier", classes, std=2.0), ["N" if batch is None else batch, classes]
    )


def classifier(
    b: NetBuilder, x: Value, classes: int, batch: int | None, *, dropped: bool = False
) -> None:
    """End the network with a global average, a dropout if wanted, and `logits`."""
    y = flatten(b, global_average(b, x))
    logits(b, dropout(b, y) if dropped else y, classes, batch)


def divisible(channels: float, step: int = 8) -> int:
    """Round a scaled channel count to a multiple of `step`, never losing more than a tenth of it.

    The rule of the MobileNet papers for their width multiplier.
    """
    rounded = max(step, int(channels + step / 2) // step * step)
    return rounded + step if rounded < 0.9 * channels else rounded
