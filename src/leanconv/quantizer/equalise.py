"""Channels of one value made alike, so that one scale serves all of them.

A value of which one channel reaches 20 and another 0.1 has few codes left for the second. What
reads it multiplies channel c by its weights, so that

    W x = (W s) (x / s)

for any positive s. Dividing by s costs nothing where what makes the value has a factor for each
channel already (Nagel et al., "Data-free quantization through weight equalization and bias
correction", 2019), or is a chain of elementwise operations, which gets one more (Xiao et al.,
"SmoothQuant", 2023). It passes through Relu and pools, and not through Clip.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from leanconv.graph.file_graph import FileNode
from leanconv.graph.onnx_graph import OnnxGraph
from leanconv.graph.ops.base import Array
from leanconv.graph.ops.pointwise import ELEMENTWISE
from leanconv.progress import steps
from leanconv.quantizer.float_network import network_of
from leanconv.quantizer.layers import (
    Layer,
    capable_values,
    follows,
    is_float,
    layer_of,
    quantisable,
    rule_of,
)
from leanconv.quantizer.samples import Samples
from leanconv.records import dataclass, replace

_MOST = 2**16  # between the factors of two channels
_POWERS = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75)  # of sizes that become divisors
_WORTH = 0.9  # what the noise must fall to


@dataclass(frozen=True, eq=False)
class _Sizes:
    """The largest number of each channel, and the mean of its squares."""

    largest: Array
    square: Array


@dataclass(frozen=True, eq=False)
class _Value:
    """A value that can be divided, and what reads it."""

    name: str
    readers: tuple[Layer, ...]
    axis: int  # of the channels: 1, or -1 for the last
    trailing: int  # axes behind it

    @property
    def channels(self) -> int:
        return self.readers[0].input_channels

    def spread(self, factors: Array) -> Array:
        """One number for each channel, in a shape that goes with the value's."""
        return factors.astype(np.float32).reshape(-1, *[1] * self.trailing)


def equalised(graph: OnnxGraph, samples: Samples, threads: int | None) -> OnnxGraph:
    """The same network with channels of like size where layers read them.

    Args:
        graph: folded; it is not changed.
        samples: on which the sizes are taken.
        threads: of runs.
    """
    result = graph.copy()
    values = _divisible(result)
    sizes = _sizes(result, values, samples, threads)
    for value in values:
        divisors = _divisors(value, sizes[value.name])
        if divisors is not None and _divide(result, value, divisors):
            for reader in value.readers:
                data, weights, *bias = reader.node.inputs
                scaled = result.constant(f"{weights}_equal", reader.scaled_inputs(divisors))
                result.change(reader.node, inputs=(data, scaled, *bias))
    return result


def _divisible(graph: OnnxGraph) -> list[_Value]:
    """Values that layers alone read, all along the same axis."""
    on_codes = capable_values(graph, set(quantisable(graph)))
    producers, found = graph.producers(), []
    for name, nodes in graph.consumers().items():
        layers = [layer_of(node, graph) for node in nodes if node.inputs[:1] == (name,)]
        known = [layer for layer in layers if layer is not None]
        whole = len(known) == len(nodes) and name in producers and name not in graph.outputs
        if not whole or _mixes(producers[name], graph, on_codes):
            continue
        axes = {(1, each.weights.ndim - 2) if each.rank > 2 else (-1, 0) for each in known}
        counts = {each.input_channels for each in known}
        if len(axes) == len(counts) == 1:
            axis, trailing = axes.pop()
            found.append(_Value(name, tuple(known), axis, trailing))
    return found


def _mixes(node: FileNode, graph: OnnxGraph, on_codes: Collection[str]) -> bool:
    """True if a node makes codes of codes of several values: it has no place for a factor."""
    given = {name for name in node.inputs if name not in graph.constants}
    return follows(node) and len(given) > 1 and given.issubset(on_codes)


def _sizes(
    graph: OnnxGraph, values: Sequence[_Value], samples: Samples, threads: int | None
) -> Mapping[str, _Sizes]:
    found = {e.name: _Sizes(np.zeros(e.channels), np.zeros(e.channels)) for e in values}
    if not values:
        return found
    network = network_of(graph, [each.name for each in values], threads)
    for sample in steps("looking at channels", samples, len(samples)):
        made = network.run(sample)
        for each in values:
            rows = np.moveaxis(made[each.name], each.axis, 0).reshape(each.channels, -1)
            sizes = found[each.name]
            most = np.abs(rows).max(axis=1, initial=0.0)
            np.maximum(sizes.largest, most, out=sizes.largest)
            mean = np.square(rows).mean(axis=1, dtype=np.float64)
            np.add(sizes.square, mean / len(samples), out=sizes.square)
    return found


def _divisors(value: _Value, sizes: _Sizes) -> Array | None:
    """Return the divisor of each channel, None where nothing is gained or known.

    A channel that its layers read by itself, as depthwise ones do, gets the whole range of codes.
    Of others a part of the difference is left to the weights: the one that promises the least
    rounding of both.
    """
    largest = sizes.largest
    if not np.isfinite(largest).all() or not np.isfinite(sizes.square).all():
        return None
    weights = np.max([each.largest_by_input() for each in value.readers], axis=0)
    sound = (largest > 0) & (weights > 0)
    if not sound.any():
        return None
    if all(each.groups == each.input_channels for each in value.readers):
        return _bounded(largest, sound)
    tried = [_bounded(largest**a / np.maximum(weights, 1e-30) ** (1 - a), sound) for a in _POWERS]
    tried += [_bounded(largest**a, sound) for a in _POWERS]
    noises = [_noise(value, sizes, divisors) for divisors in (np.ones(value.channels), *tried)]
    best = int(np.argmin(noises))
    return tried[best - 1] if best and noises[best] < _WORTH * noises[0] else None


def _bounded(divisors: Array, sound: Array) -> Array:
    """Divisors of at most 1, within limits; 1 where nothing is known of a channel."""
    top = divisors[sound].max()
    return np.where(sound, np.maximum(divisors / top, 1.0 / _MOST), 1.0)


def _noise(value: _Value, sizes: _Sizes, divisors: Array) -> float:
    """The mean square of what rounding of the value and of weights adds to the outputs.

    Roundings are taken as independent and even over a step; a constant factor is left out.
    """
    step = (sizes.largest / divisors).max() / 255.0
    squares = (sizes.square / np.square(divisors)).mean()
    total = 0.0
    for reader in value.readers:
        scaled = replace(reader, weights=reader.scaled_inputs(divisors))
        rows = scaled.by_channel().astype(np.float64)
        of_value = np.square(step) * np.square(rows).sum()
        steps_ = np.abs(rows).max(axis=1) / 127.0
        total += of_value + np.square(steps_).sum() * squares * rows.shape[1]
    return float(total)


def _divide(graph: OnnxGraph, value: _Value, divisors: Array) -> bool:
    """Divide a value's channels where it is made, if possible; return whether it was."""
    inverse = 1.0 / divisors
    if _absorbed(graph, value.name, value, inverse):
        return True
    node = graph.producers()[value.name]
    passes_on = rule_of(node).homogeneous or rule_of(node).codes == "bounded"
    if node.op not in ELEMENTWISE or passes_on:
        return False
    inner = graph.unused_name(f"{value.name}_whole")
    factor = graph.constant(f"{value.name}_factor", value.spread(inverse))
    outputs = tuple(inner if each == value.name else each for each in node.outputs)
    node = graph.change(node, outputs=outputs)
    product = FileNode("Mul", (inner, factor), (value.name,), {}, f"{factor}_Mul")
    graph.nodes.insert(graph.nodes.index(node) + 1, product)
    return True


def _absorbed(graph: OnnxGraph, name: str, value: _Value, inverse: Array) -> bool:
    """Multiply what makes a value by a number for each channel, where that has one already."""
    node = graph.producers().get(name)
    if node is None or name in graph.outputs:
        return False
    if name != value.name and len(graph.consumers().get(name, ())) != 1:
        return False
    layer = layer_of(node, graph)
    if layer is not None:
        alike = (layer.channel_axis == 1) == (value.axis == 1 or layer.rank == 2)
        if layer.channels != value.channels or not alike:
            return False
        rows = layer.by_channel() * inverse.astype(np.float32)[:, None]
        bias = None if layer.bias is None else (layer.bias * inverse).astype(np.float32)
        graph.change(node, inputs=layer.inputs(graph, rows, bias))
        return True
    if rule_of(node).homogeneous:
        return _absorbed(graph, node.inputs[0], value, inverse)
    return _in_constants(graph, node, value, inverse)


def _in_constants(graph: OnnxGraph, node: FileNode, value: _Value, inverse: Array) -> bool:
    """Put the factors into a constant factor, and into the constant summand after one."""
    numbers = [i for i, each in enumerate(node.inputs) if is_float(graph.constants.get(each))]
    if node.op not in ("Mul", "Add") or len(numbers) != 1 or len(node.inputs) != 2:
        return False
    constant, wanted = graph.constants[node.inputs[numbers[0]]], value.spread(inverse)
    shape = () if constant.size == 1 else constant.shape[-wanted.ndim :]
    fits = constant.size == math.prod(shape)
    if not fits or np.broadcast_shapes(shape, wanted.shape) != wanted.shape:
        return False
    if node.op == "Add" and not _absorbed(graph, node.inputs[1 - numbers[0]], value, inverse):
        return False
    factors = (constant.reshape(shape) * wanted).astype(np.float32)
    inputs = list(node.inputs)
    inputs[numbers[0]] = graph.constant(f"{inputs[numbers[0]]}_equal", factors)
    graph.change(node, inputs=tuple(inputs))
    return True
