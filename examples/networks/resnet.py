"""Networks of bottlenecks: ResNet-50, ResNet-101, and a small one after ResNeXt."""

from __future__ import annotations

import onnx

from examples.networks.builder import DEFAULT_OPSET, IntPair, NetBuilder, Value
from examples.networks.layers import activation, add, classifier, conv_bn, pool


def bottleneck(
    b: NetBuilder, x: Value, name: str, inner: int, out: int, stride: int, groups: int = 1
) -> Value:
    """1x1, 3x3 with the stride and the groups, 1x1, plus the input or a 1x1 of it, ReLU.

    He et al. 2016 (arXiv 1512.03385, fig. 5), with the stride in the 3x3 as today's implementations
    have it.
    """
    y = conv_bn(b, x, f"{name}.0", inner, 1)
    y = conv_bn(b, y, f"{name}.1", inner, 3, stride=stride, groups=groups)
    y = conv_bn(b, y, f"{name}.2", out, 1, None, bn_gain=0.5)
    shortcut = x
    if stride != 1 or x.channels != out:
        shortcut = conv_bn(b, x, f"{name}.shortcut", out, 1, None, stride=stride)
    return activation(b, add(b, y, shortcut), "relu")


def _resnet(
    name: str,
    blocks: tuple[int, ...],
    *,
    image: IntPair | None,
    batch: int | None,
    width: float,
    classes: int,
    seed: int,
    opset: int,
    groups: int = 1,
    inner_factor: int = 1,
) -> onnx.ModelProto:
    b = NetBuilder(name, seed=seed, opset=opset)
    base = max(1, round(64 * width))
    x = conv_bn(b, b.input(3, image, batch), "stem", base, 7, stride=2)
    x = pool(b, x, "max", 3, 2, 1)
    for stage, count in enumerate(blocks):
        for block in range(count):
            stride = 2 if stage > 0 and block == 0 else 1
            inner = base * 2**stage
            x = bottleneck(
                b, x, f"stages.{stage}.{block}", inner * inner_factor, 4 * inner, stride, groups
            )
    classifier(b, x, classes, batch)
    return b.build()


def resnet50(
    *,
    image: IntPair | None = 224,
    batch: int | None = None,
    width: float = 1.0,
    classes: int = 1000,
    seed: int = 0,
    opset: int = DEFAULT_OPSET,
) -> onnx.ModelProto:
    """ResNet-50: input `(n, 3, h, w)`, output `(n, classes)` logits.

    Args:
        image: height and width, or one number for both; None leaves them symbolic.
        batch: images at once; None leaves it symbolic.
        width: multiplies every channel count.
        classes: logits.
        seed: of the random weights.
        opset: ONNX operator set, 7 to 22.
    """
    return _resnet(
        "resnet50",
        (3, 4, 6, 3),
        image=image,
        batch=batch,
        width=width,
        classes=classes,
        seed=seed,
        opset=opset,
    )


def resnet101(
    *,
    image: IntPair | None = 224,
    batch: int | None = None,
    width: float = 1.0,
    classes: int = 1000,
    seed: int = 0,
    opset: int = DEFAULT_OPSET,
) -> onnx.ModelProto:
    """ResNet-101: as `resnet50`, with 23 blocks in the third stage."""
    return _resnet(
        "resnet101",
        (3, 4, 23, 3),
        image=image,
        batch=batch,
        width=width,
        classes=classes,
        seed=seed,
        opset=opset,
    )


def resnext_like(
    *,
    image: int = 64,
    batch: int | None = None,
    classes: int = 10,
    seed: int = 0,
    opset: int = DEFAULT_OPSET,
) -> onnx.ModelProto:
    """Bottlenecks whose 3x3 convolution has 8 groups, after Xie et al. 2017 (arXiv 1611.05431)."""
    return _resnet(
        "resnext_like",
        (1, 2, 1),
        image=image,
        batch=batch,
        width=0.25,
        classes=classes,
        seed=seed,
        opset=opset,
        groups=8,
        inner_factor=2,
    )
