"""Random networks of convolutions with their gradients, and with gradients of these, as graphs.

Forward come convolutions and transposed ones whose weights are data, of which several may share
weights or inputs; convolutions of constants; residuals, products, activations, pools, images cut
and joined, channels last. Then comes the backward pass, written out from what was emitted. Some
networks take a step along a gradient of weights, and differentiate what that gives.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from leanconv.graph.ir import Graph
from leanconv.spec import NHWC
from leanconv.spec.conv import effective_extent
from leanconv.types import DType
from support.graph_tape import ROWS, Tape, reach_of, window_of

_CHANNELS = (1, 3, 4, 8, 12, 16, 20, 32, 48)
_MOST_ELEMENTS, _MOST_EXTENT = 40_000, 24
_CONVS = ("DataConv", "DataConvTranspose")


class GradientNetwork:
    """A network by its seed.

    Args:
        seed: decides on everything but the batch.
        dtype: of all values.
        batch: images; by the seed if 0.

    Attributes:
        inputs: arrays by the names of the graph's inputs: numbers that float32 holds.
        outputs: names of the graph's outputs.
    """

    def __init__(self, seed: int, dtype: DType, batch: int = 0) -> None:
        self._random, self._numbers = random.Random(seed), np.random.default_rng(seed)
        self._tape = Tape(dtype, seed)
        self.inputs: dict[str, np.ndarray] = {}
        drawn = self._random.choice((1, 2, 3, 5))
        self._batch, self._rank = batch or drawn, self._random.choice((1, 2, 2, 2, 3))
        self._wanted = list[str]()  # inputs whose gradients are outputs
        self._images = [self._image(), *(self._image() for _ in range(self._random.random() < 0.2))]
        steps: list[Callable[[], str]] = [
            self._conv, self._conv, self._conv, self._transposed, self._constant, self._residual,
            self._product, self._activated, self._pooled, self._scaled, self._joined, self._cut,
        ]  # fmt: skip
        wanted = self._random.randint(2, 5)
        while len(self._images) <= wanted:
            self._images.append(self._random.choice(steps)())
        self.outputs = self._with_gradients()

    def graph(self) -> Graph:
        """The graph."""
        return self._tape.graph(*self.outputs)

    # -- inputs ------------------------------------------------------------------------------
    def _given(self, shape: Sequence[int], spread: float = 1.0) -> str:
        name = self._tape.input(*shape)
        numbers = self._numbers.standard_normal(tuple(shape)) * spread
        self.inputs[name] = numbers.astype("f4").astype(str(self._tape.dtype))
        return name

    def _image(self) -> str:
        size = [
            self._random.randint(3, {1: 24, 2: 12, 3: 6}[self._rank]) for _ in range(self._rank)
        ]
        shape = (self._batch, self._random.choice(_CHANNELS), *size)
        last = NHWC.axes(len(shape))
        if self._random.random() < 0.7:
            self._wanted.append(self._given(shape))
            return self._wanted[-1]
        self._wanted.append(self._given([shape[axis] for axis in last]))
        perm = tuple(last.index(axis) for axis in range(len(last)))
        return self._op("Transpose", self._wanted[-1], perm=perm)

    def _weights(self, rows: int, columns: int, summed: int) -> str:
        """New weights, or those that another convolution has."""
        shape = rows, columns
        known = [name for name in self._wanted if self._shape(name) == shape]
        if known and self._random.random() < 0.5:
            return known[0]
        self._wanted.append(self._given(shape, summed**-0.5))
        return self._wanted[-1]

    def _bias(self, channels: int) -> list[str]:
        if self._random.random() < 0.6:
            return []
        self._wanted.append(self._given((channels,)))
        return [self._wanted[-1]]

    # -- forward -----------------------------------------------------------------------------
    def _op(self, op: str, *inputs: str | float, **attributes: Any) -> str:
        return self._tape.op(op, *inputs, **attributes)

    def _shape(self, name: str) -> tuple[int, ...]:
        return self._tape.types[name].shape

    def _pick(self) -> str:
        return self._random.choice(self._images)

    def _window(self, size: Sequence[int], channels: int) -> dict[str, Any]:
        """A window of a convolution that fits an image."""
        draw, axes = self._random, range(len(size))
        while True:
            kernel = tuple(draw.choice((1, 2, 3, 3, 5)) for _ in axes)
            dilations = tuple(draw.choice((1, 1, 2)) for _ in axes)
            spans = list(map(effective_extent, kernel, dilations))
            begin, end = ([draw.randint(0, span - 1) for span in spans] for _ in range(2))
            ends = zip(size, spans, begin, end, strict=True)
            if all(n + before + after >= span for n, span, before, after in ends):
                group = draw.choice((1, 1, 1, channels, 2 if channels % 2 == 0 else 1))
                strides = tuple(draw.choice((1, 1, 2, 3)) for _ in axes)
                pads = (*begin, *end)
                return window_of(strides, dilations, pads, group, kernel)

    def _conv(self) -> str:
        x = self._pick()
        channels, *size = self._shape(x)[1:]
        window = self._window(size, channels)
        group, taps = window["group"], prod(window["kernel_shape"])
        outputs = channels * self._random.randint(1, 2) if group > 1 else self._some_channels()
        w = self._weights(outputs, channels // group * taps, channels // group * taps)
        return self._op("DataConv", x, w, *self._bias(outputs), **window, **ROWS)

    def _transposed(self) -> str:
        x = self._pick()
        channels, *size = self._shape(x)[1:]
        window = self._window(size, channels)
        group, taps = window["group"], prod(window["kernel_shape"])
        outputs = self._random.randint(1, 2) if group == channels else self._some_channels()
        extra = tuple(self._random.randrange(s) for s in window["strides"])
        small = (self._batch, outputs * group, *reach_of(size, window, extra))
        if min(small) < 1 or max(small[2:]) > _MOST_EXTENT or prod(small) > _MOST_ELEMENTS:
            return self._conv()
        w = self._weights(channels, outputs * taps, channels // group * taps)
        bias, given = self._bias(outputs * group), {**window, **ROWS, "output_padding": extra}
        return self._op("DataConvTranspose", x, w, *bias, **given)

    def _some_channels(self) -> int:
        return self._random.choice(_CHANNELS)

    def _constant(self) -> str:
        """A convolution of a file, whose weights nobody trains."""
        x = self._pick()
        channels, *size = self._shape(x)[1:]
        window = self._window(size, channels)
        group, kernel = window["group"], window.pop("kernel_shape")
        outputs = channels if group > 1 else self._some_channels()
        shape = outputs, channels // group, *kernel
        numbers = self._tape.random.standard_normal(shape) / np.sqrt(prod(shape[1:]))
        w = self._tape.const(numbers.astype("f4"))
        return self._tape.conv(x, w, **window)

    def _residual(self) -> str:
        return self._op("Add", *self._two_alike())

    def _product(self) -> str:
        x, y = self._two_alike()
        return self._op("Mul", x, self._op("Sigmoid", y))

    def _two_alike(self) -> tuple[str, str]:
        x = self._pick()
        alike = [y for y in self._images if self._shape(y) == self._shape(x)]
        return x, self._random.choice(alike)

    def _activated(self) -> str:
        return self._op(self._random.choice(("Sigmoid", "Tanh")), self._pick())

    def _pooled(self) -> str:
        """Means; or what is largest, which counts as a constant in the backward pass."""
        x = self._pick()
        kernel = tuple(self._random.randint(1, min(3, n)) for n in self._shape(x)[2:])
        op = self._random.choice(("AveragePool", "AveragePool", "MaxPool"))
        return self._tape.pool(x, kernel, op, strides=kernel)

    def _scaled(self) -> str:
        """Channels by numbers that follow from the sums of all pixels."""
        x = self._pick()
        axes = tuple(range(2, len(self._shape(x))))
        mean = self._op("Mul", self._op("ReduceSum", x, axes=axes, keepdims=True), 0.05)
        return self._op("Mul", x, self._op("Sigmoid", mean))

    def _joined(self) -> str:
        x, y = self._two_alike()
        return self._op("Concat", x, y, axis=1)

    def _cut(self) -> str:
        x = self._pick()
        channels = self._shape(x)[1]
        first = self._random.randrange(channels)
        return self._tape.slice(x, first, self._random.randint(1, channels - first))

    # -- backward ----------------------------------------------------------------------------
    def _with_gradients(self) -> tuple[str, ...]:
        read = {name for node in self._tape.nodes for name in node.inputs}
        last = [name for name in self._images if name not in read]
        made = [*last, *self._back({name: self._given(self._shape(name)) for name in last})]
        if self._random.random() < 0.5:
            made += self._step()
        return tuple(name for name in dict.fromkeys(made) if name not in self.inputs)

    def _step(self) -> list[str]:
        """What a convolution gives after a step along its gradient, and the gradients of that."""
        convs = [node for node in self._tape.nodes if node.op in _CONVS]
        convs = [node for node in convs if node.inputs[1] in self._wanted]
        if not convs:
            return []
        node = self._random.choice(convs)
        x, w = node.inputs[:2]
        y = node.output
        dw = self._tape.gradients({y: self._given(self._shape(y))}, self._wanted)[w]
        moved = self._op("Sub", w, self._op("Mul", dw, 0.02))
        again = self._op("Tanh", self._op(node.op, x, moved, **node.attributes))
        return [again, *self._back({again: self._given(self._shape(again))})]

    def _back(self, given: Mapping[str, str]) -> list[str]:
        """The gradients of all inputs that have some, from those of outputs."""
        found = self._tape.gradients(given, self._wanted)
        return [found[name] for name in self._wanted if name in found]


def with_open_batch(seed: int, dtype: DType, batch: int) -> tuple[GradientNetwork, Graph]:
    """A network and its graph, whose choices are those of any batch."""
    made = GradientNetwork(seed, dtype, batch)
    graph, other = made.graph(), GradientNetwork(seed, dtype, batch + 1).graph()
    shapes = {name: (kind.shape, other.types[name].shape) for name, kind in graph.types.items()}
    axes = {
        name: tuple(axis for axis, (n, m) in enumerate(zip(*pair, strict=True)) if n != m)
        for name, pair in shapes.items()
    }
    return made, replace(graph, open_axes={name: found for name, found in axes.items() if found})
