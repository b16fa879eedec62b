"""Networks of inverted residuals: MobileNetV2, small ones after MobileNetV3, EfficientNet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx
from numpy.typing import NDArray

from examples.networks.builder import DEFAULT_OPSET, IntPair, NetBuilder, Value
from examples.networks.layers import (
    activation,
    add,
    classifier,
    conv_bn,
    divisible,
    dropout,
    flatten,
    global_average,
    logits,
    squeeze_excite,
)
from examples.networks.weighted import conv

Stages = tuple[tuple[int, int, int, int], ...]

# Expansion, channels, blocks, stride of the first: table 2 of the paper.
MOBILENET_V2_STAGES: Stages = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def inverted_residual(
    b: NetBuilder,
    x: Value,
    name: str,
    channels: int,
    expansion: int,
    stride: int,
    *,
    kernel: int = 3,
    act: str = "relu6",
    squeeze: int = 0,
    gate: str = "sigmoid",
    folded: bool = False,
) -> Value:
    """Expand, filter depthwise, project linearly; add the input where shapes allow.

    Sandler et al. 2018 (arXiv 1801.04381), section 3.3 and figure 4d.

    Args:
        b: the network being written.
        x: `(n, c, h, w)`.
        name: prefix of the weights' names.
        channels: output channels.
        expansion: the depthwise convolution works on `expansion * c` channels; at 1 nothing is
            expanded.
        stride: of the depthwise convolution.
        kernel: of the depthwise convolution.
        act: activation after the first two convolutions.
        squeeze: inner channels of a squeeze-and-excitation after the depthwise convolution; 0 for
            none.
        gate: its gate.
        folded: leave batch norm out.
    """
    wide = x.channels * expansion
    y = x
    if expansion != 1:
        y = conv_bn(b, y, f"{name}.expand", wide, 1, act, folded=folded)
    y = conv_bn(
        b, y, f"{name}.depthwise", wide, kernel, act, folded=folded, stride=stride, groups=wide
    )
    if squeeze:
        y = squeeze_excite(
            b, y, f"{name}.se", squeeze, "relu" if act == "hard_swish" else act, gate
        )
    residual = stride == 1 and x.channels == channels
    gain = 0.5 if residual else 1.0
    y = conv_bn(b, y, f"{name}.project", channels, 1, None, folded=folded, bn_gain=gain)
    return add(b, x, y) if residual else y


def mobilenet_v2(
    *,
    image: IntPair | None = 224,
    batch: int | None = None,
    width: float = 1.0,
    classes: int = 1000,
    seed: int = 0,
    opset: int = DEFAULT_OPSET,
    channels: int = 3,
    stem: int = 32,
    stem_stride: int = 2,
    stages: Stages = MOBILENET_V2_STAGES,
    head: int = 1280,
    folded: bool = False,
    params: Mapping[str, NDArray[Any]] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> onnx.ModelProto:
    """MobileNetV2 (Sandler et al. 2018, arXiv 1801.04381).

    Input `(n, channels, h, w)`, output `(n, classes)` logits.

    Args:
        image: height and width, or one number for both; None leaves them symbolic.
        batch: images at once; None leaves it symbolic.
        width: multiplies every channel count, rounded to multiples of 8; the head only when above
            1.
        classes: logits.
        seed: of the random weights.
        opset: ONNX operator set, 7 to 22.
        channels: colours of the input.
        stem: channels of the first convolution, before `width`.
        stem_stride: its stride.
        stages: expansion, channels, blocks and first stride of every stage.
        head: channels of the last convolution.
        folded: write convolutions with a bias and no batch norm.
        params: weights by name (`stem.conv.weight`, `blocks.3.project.bn.running_var`, …) instead
            of random ones.
        metadata: written into the file's `metadata_props`.
    """
    b = NetBuilder("mobilenet_v2", seed=seed, opset=opset, params=params)
    x = b.input(channels, image, batch)
    x = conv_bn(
        b, x, "stem", divisible(stem * width), 3, "relu6", folded=folded, stride=stem_stride
    )
    index = 0
    for expansion, out, blocks, stride in stages:
        for block in range(blocks):
            step = stride if block == 0 else 1
            name = f"blocks.{index}"
            x = inverted_residual(
                b, x, name, divisible(out * width), expansion, step, folded=folded
            )
            index += 1
    x = conv_bn(b, x, "head", divisible(head * max(1.0, width)), 1, "relu6", folded=folded)
    classifier(b, x, classes, batch)
    return b.build(metadata)


def mobilenet_v3_like(
    *,
    image: int = 64,
    batch: int | None = None,
    classes: int = 10,
    seed: int = 0,
    opset: int = DEFAULT_OPSET,
) -> onnx.ModelProto:
    """Hard-swish, squeeze-and-excitation with a hard gate, 5x5; after arXiv 1905.02244."""
    b = NetBuilder("mobilenet_v3_like", seed=seed, opset=opset)
    x = conv_bn(b, b.input(3, image, batch), "stem", 16, 3, "hard_swish", stride=2)
    plan = (
        (16, 1, 2, 3, "relu", 8),
        (24, 4, 2, 3, "relu", 0),
        (24, 3, 1, 3, "relu", 0),
        (40, 4, 2, 5, "hard_swish", 24),
        (40, 6, 1, 5, "hard_swish", 64),
    )
    for index, (out, expansion, stride, kernel, act, squeeze) in enumerate(plan):
        x = inverted_residual(
            b,
            x,
            f"blocks.{index}",
            out,
            expansion,
            stride,
            kernel=kernel,
            act=act,
            squeeze=squeeze,
            gate="hard_sigmoid",
        )
    x = conv_bn(b, x, "head", 96, 1, "hard_swish")
    y = global_average(b, x)  # the paper's head: pool, then widen by a 1x1 convolution
    y = activation(b, conv(b, y, "widen", 128, 1, bias=True), "hard_swish")
    logits(b, dropout(b, flatten(b, y)), classes, batch)
    return b.build()


def efficientnet_like(
    *,
    image: int = 64,
    batch: int | None = None,
    classes: int = 10,
    seed: int = 0,
    opset: int = DEFAULT_OPSET,
) -> onnx.ModelProto:
    """SiLU (as Sigmoid and Mul) and squeeze-and-excitation; after arXiv 1905.11946."""
    b = NetBuilder("efficientnet_like", seed=seed, opset=opset)
    x = conv_bn(b, b.input(3, image, batch), "stem", 16, 3, "silu", stride=2)
    plan = ((8, 1, 1, 3), (16, 6, 2, 3), (16, 6, 1, 3), (24, 6, 2, 5), (24, 6, 1, 5), (40, 6, 2, 3))
    for index, (out, expansion, stride, kernel) in enumerate(plan):
        squeeze = max(1, x.channels // 4)
        x = inverted_residual(
            b,
            x,
            f"blocks.{index}",
            out,
            expansion,
            stride,
            kernel=kernel,
            act="silu",
            squeeze=squeeze,
        )
    x = conv_bn(b, x, "head", 128, 1, "silu")
    classifier(b, x, classes, batch, dropped=True)
    return b.build()
