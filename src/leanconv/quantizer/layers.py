"""Layers with weights, and which values become codes when some of them are quantised.

Layers are convolutions and products with a constant matrix. What differs between these operations
(where the weights' output channels lie, which of the output's axes they are, whether there is a
bias) is known here only.

A quantised layer reads codes, so that each of its inputs is quantised. An operation that follows
layers and only mixes or moves values (a sum of two branches, a pool, a concatenation) works on
codes too, where all that it reads comes from layers on codes and what it gives goes to one. Relu
and Clip right behind a layer become bounds of its codes: what is quantised is their result.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from leanconv.graph.convert import FILE_RULES, Rule
from leanconv.graph.file_graph import FileNode
from leanconv.graph.onnx_graph import OnnxGraph
from leanconv.graph.onnx_nodes import attribute
from leanconv.graph.ops.base import Array
from leanconv.records import dataclass
from leanconv.types import FLOAT32

_UNKNOWN = Rule(lambda _: ())


@dataclass(frozen=True, eq=False)
class Layer:
    """A node with constant weights.

    Attributes:
        node: of the graph.
        weights: float32.
        bias: float32 `(channels,)`, or None.
        weight_axis: of the weights, along which output channels lie.
        channel_axis: of the output: 1, or -1 for the last one.
        rank: of the output; of a product 1, the axes that are known to be there.
        groups: of a convolution; 1 for others.
        transposed: whether output channels are `groups` blocks of `weights.shape[weight_axis]`.
    """

    node: FileNode
    weights: Array
    bias: Array | None
    weight_axis: int
    channel_axis: int
    rank: int
    groups: int = 1
    transposed: bool = False

    @property
    def name(self) -> str:
        """The node's name."""
        return self.node.name

    @property
    def channels(self) -> int:
        """The number of output channels."""
        count = int(self.weights.shape[self.weight_axis])
        return count * self.groups if self.transposed else count

    @property
    def takes_bias(self) -> bool:
        """True if the operation has an input for a bias."""
        return self.node.op != "MatMul"

    def by_channel(self) -> Array:
        """Return the weights, one row for each output channel: `(channels, n)`."""
        weights = np.moveaxis(self.weights, self.weight_axis, 0)
        if not self.transposed or self.groups == 1:
            return weights.reshape(len(weights), -1)
        # (K/g, C, ...) of which C is g groups
        count, inputs = weights.shape[:2]
        parts = weights.reshape(count, self.groups, inputs // self.groups, -1)
        return np.moveaxis(parts, 1, 0).reshape(self.channels, -1)

    def neighbours(self) -> Array | None:
        """The places in a row of `by_channel` in the order in which engines sum them.

        By kernel row, column and channel, so that weights of channels beside each other are, too.
        None for a depthwise convolution, whose products no engine adds in pairs.
        """
        inner = self.input_channels // self.groups
        if self.node.op == "Conv" and inner == 1 and self.channels == self.groups:
            return None
        places = np.arange(self.weights.size // self.channels)
        return np.asarray(places.reshape(inner, -1).T.reshape(-1))

    def from_rows(self, rows: Array) -> Array:
        """Weights in their own shape from rows of `by_channel`."""
        moved = np.moveaxis(self.weights, self.weight_axis, 0).shape
        if self.transposed and self.groups > 1:
            parts = rows.reshape(self.groups, moved[0], moved[1] // self.groups, -1)
            rows = np.moveaxis(parts, 0, 1)
        return np.ascontiguousarray(np.moveaxis(rows.reshape(moved), 0, self.weight_axis))

    @property
    def input_channels(self) -> int:
        """The number of input channels."""
        shape = self.weights.shape
        return int(shape[1] * self.groups if self.weight_axis == 0 else shape[0])

    def _by_input(self, weights: Array) -> Array:
        """A view of weights in which inputs are two axes: `(groups, ., C / groups, ...)`."""
        first = (self.groups, -1) if self.weight_axis == 0 else (1, 1, len(weights))
        return weights.reshape(*first, *weights.shape[1:])

    def largest_by_input(self) -> Array:
        """The largest weight of each input channel, `(C,)`."""
        parts = np.abs(self._by_input(self.weights))
        axes = (1, *range(3, parts.ndim))
        return np.asarray(parts.max(axis=axes).reshape(-1), np.float64)

    def scaled_inputs(self, factors: Array) -> Array:
        """Weights for inputs whose channels were divided by factors `(C,)`, float32."""
        parts = self._by_input(self.weights.astype(np.float64))
        parts = parts * factors.reshape(parts.shape[0], 1, -1, *[1] * (parts.ndim - 3))
        return np.ascontiguousarray(parts.reshape(self.weights.shape), np.float32)

    def inputs(self, graph: OnnxGraph, rows: Array | None, bias: Array | None) -> tuple[str, ...]:
        """Names of the node's inputs with other constants, which the graph gets.

        Args:
            graph: that of the node.
            rows: weights, as rows of `by_channel`; None: as they are.
            bias: None: as it is.
        """
        data, weights, *others = self.node.inputs
        if rows is not None:
            weights = graph.constant(f"{weights}_q", self.from_rows(rows))
        if bias is not None:
            assert self.takes_bias, f"{self.node.op} has no bias"
            others = [graph.constant(f"{self.node.outputs[0]}_bias", bias)]
        return data, weights, *others


def is_float(array: Array | None) -> bool:
    """Return whether a value is an array of float32."""
    return array is not None and array.dtype == np.dtype(FLOAT32)


def rule_of(node: FileNode) -> Rule:
    """The rule of a node's operation; an empty one if that is not imported."""
    return FILE_RULES.get(node.op, _UNKNOWN)


def layer_of(node: FileNode, graph: OnnxGraph) -> Layer | None:
    """The node as a layer, None if it is none, or is one that has no constant float32 weights."""
    read = _LAYERS.get(node.op)
    if read is None or len(node.inputs) < 2 or len(node.outputs) != 1:
        return None
    weights = graph.constants.get(node.inputs[1])
    if weights is None or not is_float(weights) or not weights.size:
        return None
    name = node.inputs[2] if len(node.inputs) > 2 else ""
    bias = graph.constants.get(name)
    if name and (bias is None or not is_float(bias)):
        return None
    return read(node, weights, bias)


def _convolution(node: FileNode, weights: Array, bias: Array | None) -> Layer | None:
    if weights.ndim < 3:
        return None
    return Layer(node, weights, bias, 0, 1, weights.ndim, attribute(node, "group", 1))


def _transposed(node: FileNode, weights: Array, bias: Array | None) -> Layer | None:
    groups = attribute(node, "group", 1)
    if weights.ndim < 3 or groups < 1 or weights.shape[0] % groups:
        return None
    return Layer(node, weights, bias, 1, 1, weights.ndim, groups, transposed=True)


def _gemm(node: FileNode, weights: Array, bias: Array | None) -> Layer | None:
    plain = attribute(node, "alpha", 1.0) == attribute(node, "beta", 1.0) == 1.0
    if weights.ndim != 2 or not plain or attribute(node, "transA", 0):
        return None
    axis = 0 if attribute(node, "transB", 0) else 1
    if bias is not None:
        if bias.size not in (1, weights.shape[axis]) or bias.ndim > 2:
            return None
        bias = np.broadcast_to(bias.reshape(-1), (weights.shape[axis],))
    return Layer(node, weights, bias, axis, 1, 2)


def _product(node: FileNode, weights: Array, bias: Array | None) -> Layer | None:
    return None if weights.ndim != 2 or bias is not None else Layer(node, weights, None, 1, -1, 1)


# Operations of files whose weights become codes, and how these lie: axes and attributes differ.
_LAYERS: dict[str, Callable[[FileNode, Array, Array | None], Layer | None]] = {
    "Conv": _convolution,
    "ConvTranspose": _transposed,
    "Gemm": _gemm,
    "MatMul": _product,
}


@dataclass(frozen=True, eq=False)
class Scheme:
    """Layers and values on codes, and the scales that values share.

    Attributes:
        layers: the layers that read codes, by the node's name.
        values: the values that become codes, in the order in which they are made.
        shares: for each of them the value whose scale it has, which may be itself.
    """

    layers: dict[str, Layer]
    values: tuple[str, ...]
    shares: dict[str, str]


def quantisable(graph: OnnxGraph) -> dict[str, Layer]:
    """Return the layers that can be quantised, by name, in the network's order."""
    found = {}
    for node in graph.nodes:
        layer = layer_of(node, graph)
        if layer is None or node.inputs[0] in graph.constants:
            continue
        if layer.transposed and layer.groups > 1:
            continue  # scales lie along an axis of the weights, which all groups share
        found[node.name] = layer
    return found


def scheme(graph: OnnxGraph, chosen: Collection[str]) -> Scheme:
    """Return the scheme in which the layers of these names are quantised."""
    layers = {name: each for name, each in quantisable(graph).items() if name in chosen}
    wanted = {layer.node.inputs[0] for layer in layers.values()}
    capable = _capable(graph, layers, wanted)
    consumers = graph.consumers()
    through: set[str] = set()  # results of which a bound gives a value that is wanted
    for node in reversed(graph.nodes):
        outputs = set(node.outputs)
        if not outputs & (wanted | through) or node.name in layers:
            continue
        if _bounds(node, graph, consumers):
            through.add(node.inputs[0])
        elif follows(node) and capable.issuperset(_reads(node)):
            wanted.update(_reads(node))
    order = [*graph.inputs, *(name for node in graph.nodes for name in node.outputs)]
    values = tuple(name for name in order if name in wanted)
    return Scheme(layers, values, _shares(graph, set(values)))


def capable_values(graph: OnnxGraph, chosen: Collection[str]) -> set[str]:
    """Return the values that are, or could be, codes where these layers are quantised."""
    layers = {name: each for name, each in quantisable(graph).items() if name in chosen}
    return _capable(graph, layers, {each.node.inputs[0] for each in layers.values()})


def _capable(graph: OnnxGraph, layers: Collection[str], wanted: Collection[str]) -> set[str]:
    """Values that are codes already, or could be made as codes."""
    capable = set(wanted)
    for node in graph.nodes:
        reads = _reads(node)
        if node.name in layers or (follows(node) and reads and capable.issuperset(reads)):
            capable.update(node.outputs)
    return capable


def follows(node: FileNode) -> bool:
    """Return whether a node can work on codes."""
    return bool(rule_of(node).codes) and not node.captured


def _reads(node: FileNode) -> Sequence[str]:
    """The inputs of a node that follows which are values."""
    several = rule_of(node).running is None and rule_of(node).codes != "bounded"
    return node.inputs if several else node.inputs[:1]


def _bounds(node: FileNode, graph: OnnxGraph, consumers: dict[str, list[FileNode]]) -> bool:
    """True if a node only bounds the result of the node before it."""
    if rule_of(node).codes != "bounded" or not node.inputs:
        return False
    source, *bounds = node.inputs
    alone = len(consumers.get(source, ())) == 1 and source not in graph.outputs
    known = all(not name or name in graph.constants for name in bounds)
    return alone and source not in graph.inputs and known


def _shares(graph: OnnxGraph, values: Collection[str]) -> dict[str, str]:
    """Join what must have one scale; each value's representative is the first of its set."""
    parent = {name: name for name in values}

    def root(name: str) -> str:
        while parent[name] != name:
            name = parent[name]
        return name

    for node in graph.nodes:
        if rule_of(node).codes != "kept":
            continue
        names = [name for name in (*_reads(node), *node.outputs) if name in values]
        if names and set(names) & set(node.outputs):
            first = root(names[0])
            for name in names[1:]:
                parent[root(name)] = first
    return {name: root(name) for name in values}
