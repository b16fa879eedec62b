"""Random networks that compute the same everywhere: convolutions, pools, resizing, crops, skips."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import helper

from support.onnx_models import model

CHANNELS = 4
_LETTERS = "DHW"


@dataclass
class LocalNetwork:
    """A network of `x`, float32 (N, 3, spatial…), whose extents are multiples of 2 ** `depth`.

    Attributes:
        random: decides.
        rank: spatial axes.
        smooth: whether every change of an input changes what reads it.
        nodes, constants: of the model so far.
        level: halvings between the input and the newest map.
        skips: maps (N, CHANNELS, spatial…) by level, which may be added.
        cut: whether the newest map has lost its border, so that nothing fits it any more.
    """

    random: Random
    rank: int = 2
    smooth: bool = False
    depth: int = 2
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    level: int = 0
    skips: dict[int, list[str]] = field(default_factory=dict)
    cut: bool = False

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=f"n{name}", **attributes))
        return name

    def held(self, array: Any, dtype: Any = np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array, dtype)
        return name

    def weights(self, *shape: int) -> str:
        numbers = [self.random.uniform(-0.5, 0.5) for _ in range(int(np.prod(shape)))]
        return self.held(np.array(numbers).reshape(shape))

    def steps(self, x: str, count: int) -> str:
        """A map after some random layers."""
        x = self.same(x, 3)
        for _ in range(count):
            self.skips.setdefault(self.level, []).append(x) if not self.cut else None
            ways = [self.same, self.same, self.joined, self.activated, self.mixed]
            if self.level < self.depth:
                ways += [self.halved, self.halved]
            if self.level > 0:
                ways += [self.doubled, self.doubled]
            ways += [self.cropped, self.padded] if self.random.random() < 0.4 else []
            x = self.random.choice(ways)(x)
        while self.level > 0 and self.random.random() < 0.7:
            x = self.doubled(x)
        return x

    def same(self, x: str, channels: int = CHANNELS) -> str:
        """A convolution that keeps the extents, its padding perhaps uneven."""
        size = self.random.choice([1, 3, 3, 3, 5, 2])
        dilation = self.random.choice([1, 1, 1, 2])
        total = dilation * (size - 1)
        before = [self.random.randint(0, total) for _ in range(self.rank)]
        if self.random.random() < 0.6:
            before = [total // 2] * self.rank
        pads = [*before, *(total - b for b in before)]
        group = channels if channels == CHANNELS and self.random.random() < 0.3 else 1
        w = self.weights(CHANNELS, channels // group, *[size] * self.rank)
        dilations = [dilation] * self.rank
        return self.node(
            "Conv", x, w, self.weights(CHANNELS), pads=pads, dilations=dilations, group=group
        )

    def activated(self, x: str) -> str:
        ops = ["Sigmoid", "Softplus", "Tanh"] if self.smooth else ["Relu", "Sigmoid", "Tanh"]
        return self.node(self.random.choice(ops), x)

    def mixed(self, x: str) -> str:
        """Channels, pixel by pixel."""
        way = self.random.randint(0, 2)
        if way == 0:
            return self.node("Softmax", x, axis=1)
        if way == 1:
            mean = self.node("ReduceMean", x, axes=[1], keepdims=1)
            return self.node("Sub", x, mean)
        return self.node("Mul", x, self.weights(1, CHANNELS, *[1] * self.rank))

    def joined(self, x: str) -> str:
        others = [] if self.cut else self.skips.get(self.level, [])
        if not others:
            return self.same(x)
        other = self.random.choice(others)
        if self.random.random() < 0.5:
            return self.node("Add", x, other)
        both = self.node("Concat", x, other, axis=1)
        w = self.weights(CHANNELS, 2 * CHANNELS, *[3] * self.rank)
        return self.node("Conv", both, w, pads=[1] * 2 * self.rank)

    def halved(self, x: str) -> str:
        self.level += 1
        two, pads = [2] * self.rank, [1, 0] * self.rank
        way = self.random.randint(0, 4)
        if way == 0:
            w = self.weights(CHANNELS, CHANNELS, *[3] * self.rank)
            return self.node("Conv", x, w, strides=two, pads=[1] * 2 * self.rank)
        if way == 1:
            w = self.weights(CHANNELS, CHANNELS, *two)
            return self.node("Conv", x, w, strides=two)
        if way == 2:
            w = self.weights(CHANNELS, CHANNELS, *[3] * self.rank)
            return self.node("Conv", x, w, strides=two, auto_pad="SAME_UPPER")
        if way == 3 and not self.smooth:
            return self.node("MaxPool", x, kernel_shape=two, strides=two)
        del pads
        three = [3] * self.rank
        return self.node(
            "AveragePool", x, kernel_shape=three, strides=two, pads=[1] * 2 * self.rank
        )

    def doubled(self, x: str) -> str:
        self.level -= 1
        two = [2] * self.rank
        way = self.random.randint(0, 4)
        if way < 2:
            size = self.random.choice([2, 4])
            pads = [(size - 2) // 2] * 2 * self.rank
            w = self.weights(CHANNELS, CHANNELS, *[size] * self.rank)
            return self.node("ConvTranspose", x, w, strides=two, pads=pads)
        if way == 2 and self.rank == 2:
            w = self.weights(4 * CHANNELS, CHANNELS, 1, 1)
            return self.node("DepthToSpace", self.node("Conv", x, w), blocksize=2, mode="CRD")
        mode = self.random.choice(["nearest", "linear"])
        scales = self.held([1, 1, *two])
        extra = {"nearest_mode": "floor"} if mode == "nearest" else {}
        form = "asymmetric" if mode == "nearest" else "half_pixel"
        return self.node(
            "Resize", x, "", scales, mode=mode, coordinate_transformation_mode=form, **extra
        )

    def cropped(self, x: str) -> str:
        """The border of a map cut away, of which nothing is left to fit."""
        self.cut = True
        first = [self.random.randint(0, 2) * 2 for _ in range(self.rank)]
        last = [-2 * self.random.randint(1, 2) for _ in range(self.rank)]
        axes = list(range(2, 2 + self.rank))
        return self.node("Slice", x, *(self.held(each, np.int64) for each in (first, last, axes)))

    def padded(self, x: str) -> str:
        self.cut = True
        mode = self.random.choice(["constant", "reflect", "edge"])
        pads = [0, 0, *[2] * self.rank] * 2
        return self.node("Pad", x, self.held(pads, np.int64), mode=mode)

    def spread(self, x: str) -> str:
        """A map of which every pixel depends on all of another: no network with it is local."""
        way = self.random.randint(0, 2)
        if way == 0:
            return self.node("Mul", x, self.node("GlobalAveragePool", x))
        if way == 1:
            ones = self.held(np.ones(CHANNELS))
            return self.node("InstanceNormalization", x, ones, ones)
        axes = list(range(2, 2 + self.rank))
        return self.node("Sub", x, self.node("ReduceMax", x, axes=axes, keepdims=1))


def local_network(
    seed: int, rank: int = 2, smooth: bool = False, layers: int = 6, local: bool = True
) -> onnx.ModelProto:
    """A random network of an image (N, 3, spatial…) of open extents, multiples of 8.

    Where it shall not be `local`, one of its nodes reads all of a map.
    """
    made = LocalNetwork(Random(seed), rank, smooth)
    y = made.steps("x", layers)
    if not local:
        y = made.same(made.spread(y))
    shape = ["N", 3, *_LETTERS[-rank:]]
    return model(made.nodes, {"x": shape}, [y], made.constants)
