"""The networks that `leanconv warm --usual` compiles for, without their weights.

Constants are one number repeated: what is compiled depends on shapes only. Deeper networks of the
same blocks, such as ResNet-34 and ResNet-101, have the same forms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

import numpy as np

from leanconv.graph.file_graph import FileNode
from leanconv.graph.limits import Limits
from leanconv.graph.onnx_file import ModelInput
from leanconv.graph.onnx_import import Model
from leanconv.records import dataclass
from leanconv.types import FLOAT32

_OPSET, _CLASSES = 17, 1000
_IMAGE = ("N", 3, 224, 224)
_Bottlenecks = tuple[tuple[int, int, int, int], ...]
# Expansion, channels, blocks, stride of the first: Sandler et al. 2018 (arXiv 1801.04381), table 2.
_MOBILENET_V2: _Bottlenecks = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


@dataclass(frozen=True)
class _Value:
    name: str
    channels: int


@dataclass
class _Builder:
    """The nodes and constants of a network, written one after the other."""

    nodes: list[FileNode] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)

    def node(self, op: str, inputs: tuple[str, ...], channels: int, **attributes: Any) -> _Value:
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(FileNode(op, inputs, (name,), attributes, name))
        return _Value(name, channels)

    def constant(self, *shape: int) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants[name] = np.broadcast_to(np.float32(0.5), shape)
        return name

    def conv(
        self, x: _Value, channels: int, kernel: int, stride: int = 1, groups: int = 1, act: str = ""
    ) -> _Value:
        weights = self.constant(channels, x.channels // groups, kernel, kernel)
        y = self.node(
            "Conv",
            (x.name, weights, self.constant(channels)),
            channels,
            strides=(stride, stride),
            pads=(kernel // 2,) * 4,
            group=groups,
        )
        return self.activation(y, act) if act else y

    def activation(self, x: _Value, act: str) -> _Value:
        if act == "Relu":
            return self.node("Relu", (x.name,), x.channels)
        low, high = f"{x.name}_low", f"{x.name}_high"
        self.constants |= {low: np.array(0, np.float32), high: np.array(6, np.float32)}
        return self.node("Clip", (x.name, low, high), x.channels)

    def pool(self, x: _Value, kernel: int, pad: int) -> _Value:
        size = {"kernel_shape": (kernel, kernel), "strides": (2, 2), "pads": (pad,) * 4}
        return self.node("MaxPool", (x.name,), x.channels, **size)

    def add(self, x: _Value, y: _Value) -> _Value:
        return self.node("Add", (x.name, y.name), x.channels)

    def dense(self, x: _Value, channels: int) -> _Value:
        inputs = (x.name, self.constant(channels, x.channels), self.constant(channels))
        return self.node("Gemm", inputs, channels, transB=1)

    def classifier(self, x: _Value) -> _Value:
        x = self.node("GlobalAveragePool", (x.name,), x.channels)
        return self.dense(self.node("Flatten", (x.name,), x.channels), _CLASSES)


def _resnet(b: _Builder, x: _Value, blocks: tuple[int, ...], bottleneck: bool) -> _Value:
    """He et al. 2016 (arXiv 1512.03385), with the stride in the 3x3 of a bottleneck."""
    x = b.pool(b.conv(x, 64, 7, 2, act="Relu"), 3, 1)
    for stage, count in enumerate(blocks):
        inner = 64 * 2**stage
        for block in range(count):
            stride = 2 if stage and not block else 1
            if bottleneck:
                y = b.conv(b.conv(x, inner, 1, act="Relu"), inner, 3, stride, act="Relu")
                y = b.conv(y, 4 * inner, 1)
            else:
                y = b.conv(b.conv(x, inner, 3, stride, act="Relu"), inner, 3)
            if stride != 1 or x.channels != y.channels:
                x = b.conv(x, y.channels, 1, stride)
            x = b.activation(b.add(y, x), "Relu")
    return b.classifier(x)


def _mobilenet_v2(b: _Builder, x: _Value) -> _Value:
    x = b.conv(x, 32, 3, 2, act="Relu6")
    for expansion, channels, blocks, first_stride in _MOBILENET_V2:
        for block in range(blocks):
            stride, wide, y = 1 if block else first_stride, x.channels * expansion, x
            if expansion != 1:
                y = b.conv(y, wide, 1, act="Relu6")
            y = b.conv(b.conv(y, wide, 3, stride, wide, act="Relu6"), channels, 1)
            x = b.add(x, y) if stride == 1 and x.channels == channels else y
    return b.classifier(b.conv(x, 1280, 1, act="Relu6"))


_NETWORKS: Mapping[str, Callable[[_Builder, _Value], _Value]] = {
    "MobileNetV2": _mobilenet_v2,
    "ResNet-18": lambda b, x: _resnet(b, x, (2, 2, 2, 2), bottleneck=False),
    "ResNet-50": lambda b, x: _resnet(b, x, (3, 4, 6, 3), bottleneck=True),
}
USUAL = tuple(_NETWORKS)


def usual_network(name: str) -> Model:
    """One of `USUAL`: input `(N, 3, 224, 224)`, output `(N, 1000)` logits."""
    builder = _Builder()
    y = _NETWORKS[name](builder, _Value("x", 3))
    return Model(
        inputs=(ModelInput("x", FLOAT32, _IMAGE),),
        outputs=(y.name,),
        output_shapes=(("N", _CLASSES),),
        output_dtypes=(FLOAT32,),
        opset=_OPSET,
        nodes=tuple(builder.nodes),
        constants=builder.constants,
        dtype=FLOAT32,
        bytes=0,
        limits=Limits(),
        metadata={},
    )
