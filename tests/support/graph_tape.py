"""A builder of graphs that writes out the backward pass of what it has emitted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from leanconv.graph.ir import Node
from leanconv.spec.conv import transposed_reach
from support.graph_builder import Builder

ROWS: dict[str, Any] = {"taps_first": False, "exact": False}  # how weights that are data lie


class Tape(Builder):
    """A builder whose nodes have gradients, which are nodes that have some, too."""

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a value."""
        return self.types[name].shape

    def slice(self, x: str, first: int, count: int) -> str:
        """Some channels of an image."""
        shape = self.shape(x)
        starts, sizes = [0] * len(shape), list(shape)
        starts[1], sizes[1] = first, count
        given = {"starts": tuple(starts), "sizes": tuple(sizes), "steps": (1,) * len(shape)}
        return self.op("Slice", x, **given)

    def gradients(self, given: Mapping[str, str], wanted: Iterable[str]) -> dict[str, str]:
        """Emit a backward pass.

        Args:
            given: the gradients by some values.
            wanted: the inputs by which gradients are wanted.

        Returns:
            The gradients by all values between them, by name.
        """
        nodes, found, varies = list(self.nodes), dict(given), set(wanted)
        for node in nodes:
            varies |= set(node.outputs) if varies & set(node.inputs) else set()
        for node in reversed(nodes):
            dy = found.get(node.output)
            for index, name in enumerate(node.inputs if dy else ()):
                part = self._of_input(node, index, str(dy)) if name in varies else None
                if part is not None:
                    found[name] = self.op("Add", found[name], part) if name in found else part
        return found

    def _of_input(self, node: Node, index: int, dy: str) -> str | None:
        """The gradient of a node's input from that of its output; None of what counts as constant.

        `x` and `dy` of a convolution exchange places in a transposed one.
        """
        given, (x, *more), y = node.attributes, node.inputs, node.output
        match node.op:
            case "DataConv" | "DataConvTranspose" if index == 2:
                return self.op("ReduceSum", dy, axes=(0, *self._spatial(dy)), keepdims=False)
            case "DataConv" if index == 0:
                return self._towards(x, dy, more[0], given)
            case "DataConv":
                return self.op("ConvWeightGradient", x, dy, **_plain(given), with_bias=False)
            case "DataConvTranspose" if index == 0:
                return self.op("DataConv", dy, more[0], **_plain(given), **ROWS)
            case "DataConvTranspose":
                return self.op("ConvWeightGradient", dy, x, **_plain(given), with_bias=False)
            case "ConvWeightGradient" if index == 0:
                return self._towards(x, more[0], dy, given)
            case "ConvWeightGradient":
                return self.op("DataConv", x, dy, **_plain(given), **ROWS)
            case "Conv" if index == 0:
                kernel = self.shape(more[0])[2:]
                window = {**given, "kernel_shape": kernel}
                extra = _extra(self.shape(x)[2:], self.shape(dy)[2:], window)
                return self.conv(dy, more[0], op="ConvTranspose", output_padding=extra, **given)
            case "ConvTranspose" if index == 0:
                return self.conv(dy, more[0], **{k: given[k] for k in given if k in _CONV})
            case "Add":
                return self._summed(dy, node.inputs[index])
            case "Sub":
                part = dy if index == 0 else self.op("Mul", dy, -1.0)
                return self._summed(part, node.inputs[index])
            case "Mul":
                return self._summed(self.op("Mul", dy, node.inputs[1 - index]), node.inputs[index])
            case "Sigmoid":
                return self.op("Mul", dy, self.op("Mul", y, self.op("Sub", 1.0, y)))
            case "Tanh":
                return self.op("Mul", dy, self.op("Sub", 1.0, self.op("Mul", y, y)))
            case "AveragePool":
                return self._spread(dy, given, self.shape(x)[2:])
            case "ReduceSum" if given["keepdims"]:
                return self.op("Expand", dy, shape=self.shape(x))
            case "Expand":
                return self._summed(dy, x)
            case "Concat":
                before = sum(self.shape(name)[1] for name in node.inputs[:index])
                return self.slice(dy, before, self.shape(node.inputs[index])[1])
            case "Slice":
                return self._among_zeros(dy, given["starts"][1], self.shape(x)[1])
            case "Transpose":
                perm = given["perm"]
                return self.op("Transpose", dy, perm=tuple(map(perm.index, range(len(perm)))))
        return None

    def _spatial(self, name: str) -> range:
        return range(2, len(self.shape(name)))

    def _towards(self, x: str, dy: str, rows: str, given: Mapping[str, Any]) -> str:
        """The gradient of a convolution's input."""
        extra = _extra(self.shape(x)[2:], self.shape(dy)[2:], given)
        window = {**_plain(given), **ROWS, "output_padding": extra}
        return self.op("DataConvTranspose", dy, rows, **window)

    def _summed(self, dy: str, like: str) -> str:
        """A gradient, summed over the axes along which a value was repeated."""
        pairs = enumerate(zip(self.shape(dy), self.shape(like), strict=True))
        axes = tuple(axis for axis, (n, one) in pairs if n != one)
        return self.op("ReduceSum", dy, axes=axes, keepdims=True) if axes else dy

    def _spread(self, dy: str, given: Mapping[str, Any], size: Sequence[int]) -> str:
        """The gradient of means."""
        kernel, channels = given["kernel_shape"], self.shape(dy)[1]
        w = self.const(np.full((channels, 1, *kernel), 1 / prod(kernel)))
        window = window_of(given["strides"], given["dilations"], given["pads"], channels, kernel)
        extra = _extra(size, self.shape(dy)[2:], window)
        del window["kernel_shape"]
        return self.conv(dy, w, op="ConvTranspose", output_padding=extra, **window)

    def _among_zeros(self, dy: str, before: int, channels: int) -> str:
        """A gradient of some of an image's channels."""
        batch, count, *size = self.shape(dy)
        after = channels - before - count
        parts = [self.op("Mul", self.slice(dy, 0, 1), 0.0)] if before or after else []
        zeros = {
            n: [self.op("Expand", *parts, shape=(batch, n, *size))] for n in (before, after) if n
        }
        around = [*zeros.get(before, []), dy, *zeros.get(after, [])]
        return self.op("Concat", *around, axis=1) if parts else dy


_CONV = ("strides", "pads", "dilations", "group", "activation")


def window_of(
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
    group: int,
    kernel: Sequence[int],
) -> dict[str, Any]:
    found = {"strides": strides, "dilations": dilations, "pads": pads, "kernel_shape": kernel}
    return {name: tuple(values) for name, values in found.items()} | {"group": group}


def _plain(given: Mapping[str, Any]) -> dict[str, Any]:
    """The window of a convolution's attributes."""
    return window_of(*(given[n] for n in ("strides", "dilations", "pads", "group", "kernel_shape")))


def reach_of(size: Sequence[int], given: Mapping[str, Any], extra: Sequence[int]) -> list[int]:
    """The extents that a transposed convolution gives."""
    rank, names = len(size), ("kernel_shape", "strides", "dilations")
    axes = zip(size, *(given[name] for name in names), extra, strict=True)
    pads = zip(given["pads"][:rank], given["pads"][rank:], strict=True)
    return [transposed_reach(*axis) - sum(cut) for axis, cut in zip(axes, pads, strict=True)]


def _extra(large: Sequence[int], small: Sequence[int], given: Mapping[str, Any]) -> tuple[int, ...]:
    """Input positions behind those that the last window of a convolution reaches."""
    reach = reach_of(small, given, (0,) * len(small))
    return tuple(n - end for n, end in zip(large, reach, strict=True))
