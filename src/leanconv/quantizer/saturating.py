"""Sums that saturate: what other engines answer on x86 CPUs with AVX2 or AVX-512 and without VNNI.

There a product of uint8 and int8 is VPMADDUBSW, which adds two products in 16 bits:

    sum = sum over i of clip(x[2 i] w[2 i] + x[2 i + 1] w[2 i + 1], -2^15, 2^15 - 1)

with codes as they are, without zero points. Beside each other lie weights of one kernel row and
column by channels, then those of the next column (im2col of NHWC, in each group; of a matrix its
rows). ONNX Runtime's sums are these, bit by bit; oneDNN's, which OpenVINO has, begin a pair at each
row and column. Depthwise convolutions are summed in 32 bits. Where two weights of the same sign
that lie beside each other are together at most 128, no pair saturates: 255 * 128 < 2^15.

leanconv's sums are exact on every CPU. `Saturating` computes with NumPy what the others give: at
most, as layers saturate here that they may compute in float32, with an activation behind them. Only
transposed convolutions, and those whose padding follows from sizes, are exact here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import numpy as np

from leanconv.api.inputs import Known
from leanconv.graph.ir import Graph, Node
from leanconv.graph.network_inputs import is_small
from leanconv.graph.onnx_import import Model
from leanconv.graph.ops import evaluate_node
from leanconv.graph.ops.base import Array
from leanconv.graph.ops.recurrent import run
from leanconv.quantizer.codes import HIGH, LOW, Codes, WeightCodes
from leanconv.quantizer.layers import Layer
from leanconv.quantizer.rounding import Windows
from leanconv.types import MOST_OF_TWO

_LOW, _HIGH = -(2**15), 2**15 - 1


def can_saturate(layer: Layer, weights: WeightCodes) -> bool:
    """Return whether the sum of two products of a layer can exceed 16 bits."""
    return bool(unsafe_pairs(layer, weights).any())


def unsafe_pairs(layer: Layer, weights: WeightCodes) -> Array:
    """Mark weights that, with the next in their order, can exceed 16 bits, `(k, n - 1)`."""
    order = layer.neighbours()
    if order is None:
        return np.zeros((layer.channels, 0), bool)
    codes = weights.codes[:, order].astype(np.int32)
    left, right = codes[:, :-1], codes[:, 1:]
    return np.asarray((left * right > 0) & (np.abs(left + right) > MOST_OF_TWO))


def lost(layer: Layer, weights: WeightCodes, codes: Array) -> Array:
    """Return the change of a layer's sums by saturation, int32 `(k, places)`.

    Args:
        layer: of any kind but a depthwise convolution.
        weights: its codes.
        codes: the inputs of its sums, uint8 `(groups, n, places)`.
    """
    order = layer.neighbours()
    assert order is not None, "depthwise convolutions have no pairs"
    unsafe = unsafe_pairs(layer, weights)[:, ::2]
    held = weights.codes[:, order].astype(np.int32)
    found = np.zeros((layer.channels, codes.shape[2]), np.int32)
    each = layer.channels // len(codes)
    for channel in np.flatnonzero(unsafe.any(axis=1)):
        first = 2 * np.flatnonzero(unsafe[channel])
        read = codes[channel // each].astype(np.int32, copy=False)
        row = held[channel][:, None]
        sums = read[order[first]] * row[first] + read[order[first + 1]] * row[first + 1]
        found[channel] = (np.clip(sums, _LOW, _HIGH) - sums).sum(axis=0)
    return found


class Saturating:
    """A file as engines compute it whose sums saturate.

    Args:
        model: the file, with QuantizeLinear and DequantizeLinear.
        layers: those on codes of 8 bits, by the nodes' names.
        weights: their codes.
        values: codes of their inputs, by the values' names in the float32 network.
    """

    def __init__(
        self,
        model: Model,
        layers: Mapping[str, Layer],
        weights: Mapping[str, WeightCodes],
        values: Mapping[str, Codes],
    ) -> None:
        self._model, self._weights, self._values = model, weights, values
        self._layers = {
            name: layer
            for name, layer in layers.items()
            if Windows.of(layer) is not None and can_saturate(layer, weights[name])
        }
        self._graphs: dict[tuple[tuple[int, ...], ...], Graph] = {}

    def run(self, sample: Known) -> dict[str, Array]:
        """The outputs for a sample.

        Raises:
            LeanConvError: its graph cannot be bound.
        """
        graph = self._graph(sample)
        values = {**graph.constants, **{name: sample[name] for name in graph.inputs}}
        return dict(zip(graph.outputs, run(graph, values, self._evaluated), strict=True))

    def _graph(self, sample: Known) -> Graph:
        inputs = self._model.inputs
        shapes = {i.name: sample[i.name].shape for i in inputs}
        small = {i.name: sample[i.name] for i in inputs if is_small(i.shape, i.dtype)}
        if small:
            return self._model.bind(shapes, values=small)
        key = tuple(shapes.values())
        if key not in self._graphs:
            self._graphs[key] = self._model.bind(shapes)
        return self._graphs[key]

    def _evaluated(self, node: Node, values: Mapping[str, Array]) -> tuple[Array, ...]:
        made = evaluate_node(node, values)
        layer = self._layers.get(node.name)
        if layer is None or node.op != layer.node.op:
            return made
        (exact,) = made
        x = values[node.inputs[0]]
        if layer.rank > 2:
            parts = [self._lost(layer, x[i : i + 1]) for i in range(len(x))]  # bounds the memory
            return (exact + np.stack(parts).reshape(exact.shape),)
        return (exact + self._lost(layer, x).T.reshape(exact.shape),)

    def _lost(self, layer: Layer, x: Array) -> Array:
        """Return the change of a layer's result by saturation, float32 `(k, places)`."""
        weights, codes = self._weights[layer.name], self._values[layer.node.inputs[0]]
        window = Windows.of(layer)
        assert window is not None, "these layers were chosen"
        read = np.rint(window.patches(x, sys.maxsize) / np.float32(codes.scale)) + codes.zero
        sums = lost(layer, weights, read.clip(LOW, HIGH).astype(np.uint8))
        factor = weights.scales[:, None] * np.float32(codes.scale)
        return np.asarray(sums * factor, np.float32)
