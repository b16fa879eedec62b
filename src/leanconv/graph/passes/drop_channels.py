"""Leave out dead channels: those that are one number everywhere, and those that nothing reads.

Pruned networks have them, and those that weight decay has pruned in training, whose filters are 0
once batch norms are folded.
"""

from __future__ import annotations

from itertools import compress
from typing import Any

import numpy as np

from leanconv.graph.channel_rules import CONVOLUTIONS, find_channels, folded, grouped
from leanconv.graph.channels import Channels, Mask, Read
from leanconv.graph.edit import Array, Editor, node_like, release_read
from leanconv.graph.ir import Graph, Node, TensorType
from leanconv.graph.ops.pointwise import ELEMENTWISE
from leanconv.graph.zeros import has_empty
from leanconv.records import replace


class _RefusedError(Exception):
    """Constants would not be finite, or far more than the graph came with."""


def drop_channels(graph: Graph) -> Graph:
    """Take out channels whose filters are 0, and those that only weights of 0 read.

    A channel whose filter is 0 is a number: its bias, or what activations make of it. Its part of
    what reads it goes into that one's bias, in float64, rounded once. Behind padding, where zeros
    stand beside it, one channel that is a number other than 0 stands for all. Residuals, depthwise
    convolutions, products, Concat and the like need their channels in the same places: these leave
    together or not at all.

    What is skipped is exact for finite values: 0 times an infinity or NaN is no longer NaN.

    Left alone: inputs and outputs of the graph; what nodes read that mix channels in other ways,
    codes among them; filters that are data; as many dead channels as fill up blocks of 16, if the
    channels are a multiple of 16 (else 8, 4); and at least one channel of each value.

    Requires: a verified graph, after batch norms are folded and `merge_common`.
    Ensures: graphs without a filter of zeros, or zeros for a channel in all filters, are the same.
    """
    if not _has_candidates(graph):
        return graph
    with np.errstate(all="ignore"):
        channels = find_channels(graph)
        try:
            return _Writer(graph, channels).graph()
        except _RefusedError:
            return graph


def _has_candidates(graph: Graph) -> bool:
    """Return whether a filter is 0 whose channel a convolution may read, or a channel's weights."""
    read: set[str] = set()  # values from which a convolution follows
    axes: dict[str, set[int]] = {}  # of weights
    for node in reversed(graph.nodes):
        conv = node.op in CONVOLUTIONS
        if conv and node.inputs[1] in graph.constants:
            some = compress((0, 1), (node.output in read, node.attributes["group"] == 1))
            axes.setdefault(node.inputs[1], set()).update(some)
        if conv or not read.isdisjoint(node.outputs):
            read.update(node.inputs)
    return any(has_empty(graph.constants[name], each) for name, each in axes.items())


class _Writer:
    """Writes a graph without the channels that leave."""

    def __init__(self, graph: Graph, channels: Channels) -> None:
        self._graph, self._channels, self._editor = graph, channels, Editor(graph)
        self._made: dict[tuple[str, bytes, bytes], str] = {}

    def graph(self) -> Graph:
        made = [name for node in self._graph.nodes for name in node.outputs]
        names = (*self._graph.inputs, *made)
        masks = {name: mask for name in names if (mask := self._channels.mask(name)) is not None}
        if not masks:
            return self._graph
        for name, mask in masks.items():
            shape, dtype = self._editor.types[name].shape, self._editor.types[name].dtype
            narrow = (shape[0], int(mask.sum()), *shape[2:])
            self._editor.types[name] = TensorType(narrow, dtype)
        for node in self._graph.nodes:
            touched = any(name in masks for name in (*node.inputs, *node.outputs))
            new = self._node(node, masks) if touched else node
            if new is node:
                self._editor.keep(node)
            else:
                self._editor.replace(node, new)
        convs = [node.output for node in self._graph.nodes if node.op in CONVOLUTIONS]
        gone = sum(int((~masks[name]).sum()) for name in convs if name in masks)
        return replace(self._editor.finish(), dropped=self._graph.dropped + gone)

    def _node(self, node: Node, masks: dict[str, Mask]) -> Node:
        a = node.attributes
        before, after = masks.get(node.inputs[0]), masks.get(node.outputs[0])
        changes: dict[str, Any] = {}
        if node.op in CONVOLUTIONS:
            return self._conv(node, before, after)
        if node.op in ELEMENTWISE and after is not None:
            inputs = tuple(self._operand(name, node, after) for name in node.inputs)
            return node if inputs == node.inputs else node_like(node, inputs=inputs)
        if node.op == "Split" and a["axis"] == 1:
            changes["sizes"] = tuple(self._editor.types[name].shape[1] for name in node.outputs)
        elif node.op == "Slice" and before is not None:
            start, size = a["starts"][1], a["sizes"][1]
            first, count = int(before[:start].sum()), int(before[start : start + size].sum())
            changes["starts"] = (a["starts"][0], first, *a["starts"][2:])
            changes["sizes"] = (a["sizes"][0], count, *a["sizes"][2:])
        elif node.op in ("Reshape", "Resize") and after is not None:
            name = "shape" if node.op == "Reshape" else "sizes"
            changes[name] = (a[name][0], int(after.sum()), *a[name][2:])
        return node_like(node, attributes=changes) if changes else node

    def _operand(self, name: str, node: Node, mask: Mask) -> str:
        """A constant for the channels of a result that stay."""
        held = self._graph.constants.get(name)
        if held is None:
            return name
        axis = 1 - (len(self._graph.types[node.output].shape) - held.ndim)
        if axis < 0 or held.shape[axis] == 1:
            return name
        return self._constant(name, held, mask, axis)

    def _constant(self, name: str, held: Array, mask: Mask, axis: int = 0) -> str:
        key = (name, mask.tobytes(), bytes([axis]))
        if key not in self._made:
            self._made[key] = self._added(name, np.compress(mask, held, axis))
        return self._made[key]

    def _added(self, hint: str, array: Array) -> str:
        if not self._editor.may_add(array.nbytes):
            raise _RefusedError
        return self._editor.constant(hint, array)

    def _conv(self, conv: Node, before: Mask | None, after: Mask | None) -> Node:
        w = self._graph.constants[conv.inputs[1]]
        weights, group = grouped(conv, w), conv.attributes["group"]
        if group > 1:
            return self._groups(conv, w, before, after)
        read = self._channels.reads.get(conv.key)
        inputs = np.ones(weights.shape[2], bool) if before is None else before
        outputs = np.ones(weights.shape[1], bool) if after is None else after
        bias = conv.input(2)
        if before is not None and read is not None and (read.folds & ~before).any():
            numbers = read.known.numbers.astype(np.float64)
            terms = folded(weights, np.where(read.folds & ~before, numbers, 0))[outputs]
            if terms.any():
                held = self._graph.constants[bias].astype(np.float64)[outputs] if bias else 0
                total = (held + terms).astype(w.dtype)
                if not np.isfinite(total).all():
                    raise _RefusedError
                bias = self._added(bias or f"{conv.inputs[1]}.bias", total)
        if bias == conv.input(2) and bias and after is not None:
            bias = self._constant(bias, self._graph.constants[bias], after)
        operands = [self._weights(conv, read, inputs, outputs), bias, *conv.inputs[3:]]
        return self._with(conv, operands, after)

    def _with(self, conv: Node, operands: list[str], after: Mask | None, **given: Any) -> Node:
        """A convolution of other constants, for its outputs that stay."""
        if after is not None and conv.input(4):
            slope = conv.input(4)
            operands[3] = self._constant(slope, self._graph.constants[slope], after)
        while operands and not operands[-1]:
            operands.pop()
        return node_like(conv, inputs=(conv.inputs[0], *operands), attributes=given)

    def _weights(self, conv: Node, read: Read | None, inputs: Mask, outputs: Mask) -> str:
        name = conv.inputs[1]
        w = self._graph.constants[name]
        by_axis = (outputs, inputs) if conv.op == "Conv" else (inputs, outputs)
        gone = np.zeros_like(inputs) if read is None else read.stands & ~inputs
        if gone.any() and read is not None:
            gone &= read.nonzero[outputs].any(axis=0)
        key = (name, by_axis[0].tobytes(), by_axis[1].tobytes())
        if not gone.any() and key in self._made:
            return self._made[key]
        if inputs.all() and outputs.all():
            return name
        places = np.ix_(*by_axis)
        if not self._editor.may_add(int(inputs.sum() * outputs.sum()) * w[0, 0].nbytes):
            raise _RefusedError
        kept = w[places]
        if gone.any() and read is not None:
            one, numbers = read.standing(inputs), read.known.numbers.astype(np.float64)
            total = w[outputs, one].astype(np.float64)
            for channel in np.flatnonzero(gone):
                total += w[outputs, channel] * (numbers[channel] / numbers[one])
            kept[:, int(inputs[:one].sum())] = total
            if not np.isfinite(kept).all():
                raise _RefusedError
        release_read(w)
        made = self._editor.constant(name, kept)
        if not gone.any():
            self._made[key] = made
        return made

    def _groups(self, conv: Node, w: Array, before: Mask | None, after: Mask | None) -> Node:
        """A convolution without some of its groups."""
        if after is None:
            return conv
        kept = after.reshape(conv.attributes["group"], -1)[:, 0]
        rows = np.repeat(kept, len(w) // len(kept))
        operands = [self._constant(conv.inputs[1], w, rows), conv.input(2), *conv.inputs[3:]]
        if conv.input(2):
            operands[1] = self._constant(conv.input(2), self._graph.constants[conv.input(2)], after)
        return self._with(conv, operands, after, group=int(kept.sum()))
