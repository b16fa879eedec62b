"""MobileNetV2 as the report's layers, with the steps of its ladder as switches."""

from __future__ import annotations

from dataclasses import dataclass

from examples.report.formats import Topology
from leanconv.spec.format import ceil_div

Extents = tuple[int, int, int]


@dataclass(frozen=True)
class Version:
    """One step of the report, as switches.

    Attributes:
        name: as the report numbers it.
        change: what is different from the step before.
        per_channel: a work item for each pixel and channel, not for each pixel.
        padded_copies: every layer copies its input row by row into a padded buffer; else each
            writes its output already padded for the next.
        up_front: all buffers are allocated once; else in the forward pass.
        block: work items along a side of a block.
        own_pointwise: kernels of their own for 1 x 1 convolutions and the classifier.
        parts: into how many the channel loop of a 1 x 1 convolution is cut; their sums are kept
            and added in a tree.
    """

    name: str
    change: str
    per_channel: bool = True
    padded_copies: bool = False
    up_front: bool = False
    block: int = 32
    own_pointwise: bool = False
    parts: int = 1


VERSIONS = (
    Version("v1", "an item for each pixel, all channels in its loop", False, True),
    Version("v2.1", "an item for each pixel and channel", True, True),
    Version("v2.2", "no padding copies: outputs are written padded for the next layer"),
    Version("v3.1", "all buffers allocated once", up_front=True),
    Version("v3.2", "blocks of 8 x 8 items instead of 32 x 32", up_front=True, block=8),
    Version("v3.3", "own kernels for 1 x 1", up_front=True, block=8, own_pointwise=True),
)
# What the report names as future work (section 5.2): the channel loop goes to several threads.
FUTURE = Version(
    "v3.4",
    "1 x 1: channels in 8 parts, whose sums are added in a tree",
    up_front=True,
    block=8,
    own_pointwise=True,
    parts=8,
)


@dataclass(frozen=True)
class Layer:
    """One operation of the network.

    Attributes:
        op: "conv", "add", "mean" or "dense".
        inputs, output: names of values; the network's are "image" and "logits".
        extents: channels, height and width of the output.
        kernel, stride, groups, clip: of a convolution, padded by half its kernel.
        weights: what its parameters' names begin with.
    """

    op: str
    inputs: tuple[str, ...]
    output: str
    extents: Extents
    kernel: int = 1
    stride: int = 1
    groups: int = 1
    clip: bool = False
    weights: str = ""


def layers_of(topology: Topology) -> list[Layer]:
    """The network's operations in order."""
    layers: list[Layer] = []
    extents: dict[str, Extents] = {"image": topology.input_shape}

    def conv(x: str, name: str, outputs: int, kernel: int, stride: int, clip: bool) -> str:
        channels, h, w = extents[x]
        extents[name] = (outputs, ceil_div(h, stride), ceil_div(w, stride))
        groups = channels if name.endswith("depthwise") else 1
        shape = (extents[name], kernel, stride, groups, clip)
        layers.append(Layer("conv", (x,), name, *shape, f"{name}.conv"))
        return name

    x, index = conv("image", "stem", topology.stem, 3, 2, True), 0
    for expansion, channels, blocks, first_stride in topology.stages:
        for block in range(blocks):
            name, stride = f"blocks.{index}", first_stride if block == 0 else 1
            wide = extents[x][0] * expansion
            y = x if expansion == 1 else conv(x, f"{name}.expand", wide, 1, 1, True)
            y = conv(y, f"{name}.depthwise", wide, 3, stride, True)
            y = conv(y, f"{name}.project", channels, 1, 1, False)
            if stride == 1 and extents[x][0] == channels:
                extents[name] = extents[y]
                layers.append(Layer("add", (x, y), name, extents[y]))
                y = name
            x, index = y, index + 1
    x = conv(x, "head", topology.head, 1, 1, True)
    layers.append(Layer("mean", (x,), "features", (topology.head, 1, 1)))
    shape = (topology.classes, 1, 1)
    layers.append(Layer("dense", ("features",), "logits", shape, weights="classifier"))
    return layers
