"""Small networks after DenseNet, ShuffleNet, ConvNeXt, and one that paints a map of classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from examples.networks.builder import DEFAULT_OPSET, NetBuilder, Stats, Value
from examples.networks.layers import (
    activation,
    add,
    classifier,
    concat,
    conv_bn,
    flatten,
    global_average,
    logits,
    moments_after,
    pool,
    reduce_mean,
)
from examples.networks.weighted import batch_norm, conv, conv_transpose


def densenet_like(
    *,
    image: int = 64,
    batch: int | None = None,
    classes: int = 10,
    seed: int = 0,
    opset: int = DEFAULT_OPSET,
) -> onnx.ModelProto:
    """Batch norm and ReLU first, every layer fed by all before it; after arXiv 1608.06993."""
    b = NetBuilder("densenet_like", seed=seed, opset=opset)

    def norm_relu_conv(x: Value, name: str, channels: int, kernel: int) -> Value:
        y = activation(b, batch_norm(b, x, f"{name}.bn"), "relu")
        return conv(b, y, f"{name}.conv", channels, kernel)

    x = conv_bn(b, b.input(3, image, batch), "stem", 16, 7, stride=2)
    x = pool(b, x, "max", 3, 2, 1)
    for stage, layers in enumerate((3, 3)):
        for layer in range(layers):
            name = f"blocks.{stage}.{layer}"
            y = norm_relu_conv(norm_relu_conv(x, f"{name}.0", 32, 1), f"{name}.1", 8, 3)
            x = concat(b, [x, y])
        if stage == 0:
            x = pool(b, norm_relu_conv(x, "transition", x.channels // 2, 1), "average", 2, 2)
    x = activation(b, batch_norm(b, x, "last"), "relu")
    classifier(b, x, classes, batch)
    return b.build()


def _shuffle(b: NetBuilder, x: Value, groups: int) -> Value:
    """Interleave the channels of `groups` groups; sizes are read from the tensor, as torch does."""
    shape = b.node("Shape", [x.name])[0]
    (batch, height, width) = (
        b.node("Gather", [shape, b.constant(axis)], axis=0)[0] for axis in (0, 2, 3)
    )

    def vector(scalar: str) -> str:
        if b.opset >= 13:
            return b.node("Unsqueeze", [scalar, b.constant([0])])[0]
        return b.node("Unsqueeze", [scalar], axes=[0])[0]

    count, rows, columns = vector(batch), vector(height), vector(width)
    split = b.constant([groups, x.channels // groups])
    apart = b.node("Concat", [count, split, rows, columns], axis=0)[0]
    whole = b.node("Concat", [count, b.constant([x.channels]), rows, columns], axis=0)[0]
    y = b.apply("Transpose", b.apply("Reshape", x, apart), perm=[0, 2, 1, 3, 4])
    order = np.arange(x.channels).reshape(groups, -1).T.ravel()
    return b.apply("Reshape", y, whole, mean=x.mean[order], var=x.var[order])


def _halves(b: NetBuilder, x: Value) -> tuple[Value, Value]:
    half = x.channels // 2
    if b.opset >= 13:
        names = b.node("Split", [x.name, b.constant([half, half])], outputs=2, axis=1)
    else:
        names = b.node("Split", [x.name], outputs=2, axis=1, split=[half, half])
    return Value(names[0], x.mean[:half], x.var[:half]), Value(
        names[1], x.mean[half:], x.var[half:]
    )


def shufflenet_like(
    *,
    image: int | None = 64,
    batch: int | None = None,
    classes: int = 10,
    seed: int = 0,
    opset: int = DEFAULT_OPSET,
) -> onnx.ModelProto:
    """Channel split, branch, concat and shuffle, after ShuffleNetV2 (arXiv 1807.11164)."""
    b = NetBuilder("shufflenet_like", seed=seed, opset=opset)
    x = conv_bn(b, b.input(3, image, batch), "stem", 12, 3, stride=2)
    x = pool(b, x, "max", 3, 2, 1)
    for stage, channels in enumerate((24, 48)):
        for block in range(2):
            name, half = f"blocks.{stage}.{block}", channels // 2
            if block == 0:  # both branches see everything and halve the image
                left = conv_bn(b, x, f"{name}.0", x.channels, 3, None, stride=2, groups=x.channels)
                left, right = conv_bn(b, left, f"{name}.1", half, 1), x
            else:
                left, right = _halves(b, x)
            right = conv_bn(b, right, f"{name}.2", half, 1)
            right = conv_bn(b, right, f"{name}.3", half, 3, None, stride=2 - block, groups=half)
            right = conv_bn(b, right, f"{name}.4", half, 1)
            x = _shuffle(b, concat(b, [left, right]), 2)
    x = conv_bn(b, x, "head", 96, 1)
    y = reduce_mean(b, x, (2, 3), keepdims=False)
    logits(b, y, classes, batch)
    return b.build()


def _layer_norm(b: NetBuilder, x: Value, name: str, channels: int) -> Value:
    """Normalise over the last axis: one node since opset 17, primitive operators before."""
    size = (channels,)
    scale = b.param(f"{name}.weight", lambda: np.linspace(0.8, 1.2, channels), size)
    shift = b.param(f"{name}.bias", lambda: b.normal(size, 0.1), size)
    after = {"mean": shift.astype(np.float64), "var": np.square(scale, dtype=np.float64)}
    if b.opset >= 17:
        operands = (f"{name}.weight", f"{name}.bias")
        return b.apply("LayerNormalization", x, *operands, axis=-1, epsilon=1e-6, **after)
    mean = reduce_mean(b, x, (-1,))
    centred = b.apply("Sub", x, mean)
    squared = b.apply("Pow", centred, b.constant(2.0, np.float32))
    variance = reduce_mean(b, squared, (-1,))
    deviation = b.apply("Sqrt", b.apply("Add", variance, b.constant(1e-6, np.float32)))
    y = b.apply("Div", centred, deviation)
    y = b.apply("Mul", y, f"{name}.weight")
    return b.apply("Add", y, f"{name}.bias", **after)


def _matmul(b: NetBuilder, x: Value, name: str, outputs: int) -> Value:
    """Multiply the last axis by a matrix `(x.channels, outputs)` and add a bias, as two nodes."""
    shape = (x.channels, outputs)
    std = float((np.square(x.mean) + x.var).sum()) ** -0.5
    b.param(f"{name}.weight", lambda: b.normal(shape, std), shape)
    b.param(f"{name}.bias", lambda: b.normal((outputs,), 0.1), (outputs,))
    y = b.apply("MatMul", x, f"{name}.weight", mean=np.zeros(outputs), var=np.ones(outputs))
    return b.apply("Add", f"{name}.bias", y)


def _layer_scale(channels: int) -> Callable[[], Stats]:
    return lambda: np.linspace(0.3, 0.6, channels)


def convnext_like(
    *,
    image: int = 64,
    batch: int | None = None,
    classes: int = 10,
    seed: int = 0,
    opset: int = DEFAULT_OPSET,
) -> onnx.ModelProto:
    """7x7 depthwise; layer norm, MatMul and gelu in NHWC; after arXiv 2201.03545."""
    b = NetBuilder("convnext_like", seed=seed, opset=opset)
    to_nhwc: dict[str, Any] = {"perm": [0, 2, 3, 1]}
    to_nchw: dict[str, Any] = {"perm": [0, 3, 1, 2]}
    x = conv(b, b.input(3, image, batch), "stem", 24, 4, stride=4, padding=0, bias=True, gain=1.0)
    for stage, channels in enumerate((24, 40)):
        if stage:
            y = _layer_norm(b, b.apply("Transpose", x, **to_nhwc), f"down.{stage}.norm", x.channels)
            y = b.apply("Transpose", y, **to_nchw)
            x = conv(
                b, y, f"down.{stage}.conv", channels, 2, stride=2, padding=0, bias=True, gain=1.0
            )
        for block in range(2):
            name = f"blocks.{stage}.{block}"
            y = conv(b, x, f"{name}.depthwise", channels, 7, groups=channels, bias=True, gain=1.0)
            y = _layer_norm(b, b.apply("Transpose", y, **to_nhwc), f"{name}.norm", channels)
            y = activation(b, _matmul(b, y, f"{name}.widen", 4 * channels), "gelu")
            y = _matmul(b, y, f"{name}.narrow", channels)
            b.param(f"{name}.scale", _layer_scale(channels), (channels,))
            y = b.apply("Mul", f"{name}.scale", y, var=0.2 * y.var)
            x = add(b, x, b.apply("Transpose", y, **to_nchw))
    y = flatten(b, global_average(b, x))
    y = _layer_norm(b, y, "last", y.channels)
    logits(b, y, classes, batch)
    return b.build()


def segmentation_like(
    *,
    image: int = 64,
    batch: int | None = None,
    classes: int = 5,
    seed: int = 0,
    opset: int = DEFAULT_OPSET,
) -> onnx.ModelProto:
    """An encoder, a dilated middle and a decoder: ConvTranspose, Resize nearest and linear, skips.

    Leaky ReLU, PReLU, ELU and a reflecting Pad come along. The output is `(n, classes, image,
    image)`; `image` must be a multiple of 8, `opset` at least 13.

    Raises:
        ValueError: `image` or `opset` is not as said.
    """
    if image % 8 or opset < 13:
        raise ValueError(
            f"got image {image}, opset {opset}; expected a multiple of 8, and 13 or later"
        )
    b = NetBuilder("segmentation_like", seed=seed, opset=opset)
    x = b.apply(
        "Pad", b.input(3, image, batch), b.constant([0, 0, 1, 1, 0, 0, 1, 1]), mode="reflect"
    )
    full = activation(
        b, batch_norm(b, conv(b, x, "in.conv", 12, 3, padding=0), "in.bn"), "leaky_relu"
    )
    half = conv_bn(b, full, "down.0", 16, 3, "elu", stride=2)
    quarter = conv_bn(b, half, "down.1", 24, 5, None, stride=2)
    b.param("down.1.slope", lambda: np.linspace(0.05, 0.4, 24).reshape(24, 1, 1), (24, 1, 1))
    mean, var = moments_after("leaky_relu", quarter)
    quarter = b.apply("PRelu", quarter, "down.1.slope", mean=mean, var=var)
    y = conv_bn(b, quarter, "middle.0", 24, 3, stride=2)
    y = conv_bn(b, y, "middle.1", 24, 3, dilation=2)
    y = conv_bn(b, y, "middle.2", 24, 3, dilation=3)
    y = activation(b, conv_transpose(b, y, "up.0", 24, 3, 2, 1, output_padding=[1, 1]), "relu")
    y = conv_bn(b, concat(b, [y, quarter]), "up.1", 16, 3)
    scales = b.constant([1.0, 1.0, 2.0, 2.0], np.float32)
    nearest: dict[str, Any] = {
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    }
    y = b.apply("Resize", y, "", scales, mode="nearest", **nearest)
    y = conv_bn(b, concat(b, [y, half]), "up.2", 12, 3)
    y = b.apply("Resize", y, "", scales, mode="linear", coordinate_transformation_mode="half_pixel")
    y = add(b, activation(b, conv(b, y, "up.3", 12, 1, bias=True), "tanh"), full)
    y = conv(b, y, "classifier", classes, 1, bias=True, gain=1.0)
    b.output(y, ["N" if batch is None else batch, classes, image, image])
    return b.build()
