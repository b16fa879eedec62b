"""Networks without batch norm: VGG-16, and small ones after AlexNet, SqueezeNet and GoogLeNet."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from examples.networks.builder import DEFAULT_OPSET, IntPair, NetBuilder, Padding, Value
from examples.networks.layers import (
    activation,
    concat,
    conv_bn,
    dropout,
    flatten,
    global_average,
    logits,
    pool,
)
from examples.networks.weighted import conv, linear

VGG16_STAGES = (
    (64, 2),
    (128, 2),
    (256, 3),
    (512, 3),
    (512, 3),
)  # channels, convolutions before the pooling


def _conv_relu(
    b: NetBuilder,
    x: Value,
    name: str,
    channels: int,
    kernel: int,
    stride: int = 1,
    padding: Padding | None = None,
    groups: int = 1,
) -> Value:
    y = conv(b, x, name, channels, kernel, stride=stride, padding=padding, groups=groups, bias=True)
    return activation(b, y, "relu")


def _local_norm(b: NetBuilder, x: Value, bias: float) -> Value:
    scale = bias**-0.75
    attributes = {"size": 5, "alpha": 1e-4, "beta": 0.75, "bias": bias}
    return b.apply("LRN", x, mean=scale * x.mean, var=scale**2 * x.var, **attributes)


def _dense_head(
    b: NetBuilder, x: Value, sizes: Sequence[int], classes: int, batch: int | None
) -> None:
    """Fully connected layers with ReLU and dropout, then the logits."""
    for index, size in enumerate(sizes):
        x = dropout(b, activation(b, linear(b, x, f"dense.{index}", size), "relu"))
    logits(b, x, classes, batch)


def vgg16(
    *,
    image: IntPair = 224,
    batch: int | None = None,
    width: float = 1.0,
    classes: int = 1000,
    seed: int = 0,
    opset: int = DEFAULT_OPSET,
) -> onnx.ModelProto:
    """VGG-16 (Simonyan & Zisserman 2015, arXiv 1409.1556, configuration D).

    Input `(n, 3, h, w)`, output `(n, classes)` logits; 138 million weights at width 1.

    Args:
        image: height and width, or one number for both; at least 32, since the first dense layer
            depends on it.
        batch: images at once; None leaves it symbolic.
        width: multiplies every channel count and the dense layers.
        classes: logits.
        seed: of the random weights.
        opset: ONNX operator set, 7 to 22.

    Raises:
        ValueError: the image is smaller than 32 pixels.
    """
    height, wide = (image, image) if isinstance(image, int) else image
    if min(height, wide) < 32:
        raise ValueError(
            f"image: got {height}x{wide}, expected at least 32x32 (five poolings by two)"
        )
    b = NetBuilder("vgg16", seed=seed, opset=opset)
    x = b.input(3, (height, wide), batch)
    for stage, (channels, count) in enumerate(VGG16_STAGES):
        for index in range(count):
            x = _conv_relu(b, x, f"features.{stage}.{index}", max(1, round(channels * width)), 3)
        x = pool(b, x, "max", 2, 2)
    x = flatten(b, x, (height // 32) * (wide // 32))
    dense = max(1, round(4096 * width))
    _dense_head(b, x, (dense, dense), classes, batch)
    return b.build()


def alexnet_like(
    *, batch: int | None = None, classes: int = 10, seed: int = 0, opset: int = DEFAULT_OPSET
) -> onnx.ModelProto:
    """11x11 stride 4, 5x5 in two groups, LRN; after Krizhevsky et al. 2012. Input 67x67."""
    b = NetBuilder("alexnet_like", seed=seed, opset=opset)
    x = _conv_relu(b, b.input(3, 67, batch), "conv1", 16, 11, stride=4, padding=2)  # 67 -> 16
    x = _local_norm(b, x, 2.0)
    x = pool(b, x, "max", 3, 2)  # 7
    x = _conv_relu(b, x, "conv2", 24, 5, groups=2)
    x = _local_norm(b, x, 2.0)
    x = _conv_relu(b, x, "conv3", 32, 3)
    x = _conv_relu(b, x, "conv4", 32, 3, groups=2)
    x = pool(b, _conv_relu(b, x, "conv5", 24, 3, groups=2), "max", 3, 2)  # 3
    x = flatten(b, x, 9)
    _dense_head(b, x, (64, 48), classes, batch)
    return b.build()


def _fire(b: NetBuilder, x: Value, name: str, squeeze: int, expand: int) -> Value:
    x = _conv_relu(b, x, f"{name}.squeeze", squeeze, 1)
    return concat(
        b,
        [
            _conv_relu(b, x, f"{name}.expand1", expand, 1),
            _conv_relu(b, x, f"{name}.expand3", expand, 3),
        ],
    )


def squeezenet_like(
    *,
    image: int = 64,
    batch: int | None = None,
    classes: int = 10,
    seed: int = 0,
    opset: int = DEFAULT_OPSET,
) -> onnx.ModelProto:
    """Squeeze, two expansions, concat; ceil_mode pools, softmax; after arXiv 1602.07360."""
    b = NetBuilder("squeezenet_like", seed=seed, opset=opset)
    x = _conv_relu(b, b.input(3, image, batch), "stem", 16, 3, stride=2, padding=0)
    x = pool(b, x, "max", 3, 2, ceil_mode=opset >= 10)
    x = _fire(b, _fire(b, x, "fire.0", 4, 16), "fire.1", 6, 16)
    x = pool(b, x, "max", 3, 2, ceil_mode=opset >= 10)
    x = dropout(b, _fire(b, _fire(b, x, "fire.2", 8, 24), "fire.3", 8, 32))
    x = conv(b, x, "classifier", classes, 1, bias=True, gain=40.0)
    y = b.apply("Softmax", flatten(b, global_average(b, x)), axis=1)
    b.output(y, ["N" if batch is None else batch, classes])
    return b.build()


def _inception(
    b: NetBuilder, x: Value, name: str, sizes: tuple[int, int, int, int, int, int], bn: bool
) -> Value:
    one, three_in, three, five_in, five, pooled = sizes

    def unit(y: Value, suffix: str, channels: int, kernel: int) -> Value:
        layer = conv_bn if bn else _conv_relu
        return layer(b, y, f"{name}.{suffix}", channels, kernel)

    around = pool(b, x, "max", 3, 1, 1)
    return concat(
        b,
        [
            unit(x, "one", one, 1),
            unit(unit(x, "three_in", three_in, 1), "three", three, 3),
            unit(unit(x, "five_in", five_in, 1), "five", five, 5),
            unit(around, "pooled", pooled, 1),
        ],
    )


def googlenet_like(
    *,
    image: int = 64,
    batch: int | None = None,
    classes: int = 10,
    seed: int = 0,
    opset: int = DEFAULT_OPSET,
) -> onnx.ModelProto:
    """Inception modules, LRN, ceil_mode and average pools, after arXiv 1409.4842.

    The first module has no batch norm, the second has; the last pooling counts its padding.
    """
    b = NetBuilder("googlenet_like", seed=seed, opset=opset)
    ceil = opset >= 10
    x = _conv_relu(b, b.input(3, image, batch), "conv1", 16, 7, stride=2)
    x = pool(b, x, "max", 3, 2, ceil_mode=ceil)
    x = _local_norm(b, x, 1.0)
    x = _conv_relu(b, _conv_relu(b, x, "conv2", 16, 1), "conv3", 24, 3)
    x = pool(b, x, "max", 3, 2, ceil_mode=ceil)
    x = _inception(b, x, "inception.0", (8, 8, 16, 4, 8, 8), bn=False)
    x = pool(b, x, "average", 3, 2, (0, 0, 1, 1))
    x = _inception(b, x, "inception.1", (12, 8, 16, 4, 8, 6), bn=True)
    x = pool(b, x, "average", 3, 1, 1, count_include_pad=True)
    y = dropout(b, flatten(b, global_average(b, x)))
    logits(b, y, classes, batch)
    return b.build()
