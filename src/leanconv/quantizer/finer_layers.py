"""Layers in precisions between int8 and float32.

One whose weights are int8 reads codes of 16 bits. QuantizeLinear and DequantizeLinear of 16 bits
are ONNX's own from opset 21 on; before, they are those of the domain com.microsoft, which ONNX
Runtime has. Biases stay float32: in steps of such fine sums they would not fit int32.

Layers in float16 are parts of a network between Casts. A layer of float16 reads and writes halves,
and what follows such layers and only bounds, adds, multiplies, pools or moves does so too. Where a
part begins a Cast rounds what it reads, where it ends a Cast gives float32 back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from leanconv.quantizer.codes import Codes, WeightCodes
from leanconv.quantizer.emit import constant, dequantised_weights, linear_value
from leanconv.quantizer.layers import Layer, follows
from leanconv.quantizer.onnx_graph import OnnxGraph, OnnxNode, int_attribute, is_float
from leanconv.types import FLOAT16, FLOAT32

_OWN = 21  # the opset whose QuantizeLinear has 16 bits
_DOMAIN = "com.microsoft"
_LARGEST = float(np.finfo(np.float16).max)


def with_wide_codes(
    graph: OnnxGraph,
    layers: Mapping[str, Layer],
    values: Mapping[str, Codes],
    weights: Mapping[str, WeightCodes],
) -> OnnxGraph:
    """The network with some layers on 16-bit inputs and int8 weights.

    Args:
        graph: it is not changed.
        layers: by the nodes' names.
        values: codes of what they read, by the values' names.
        weights: of the layers.
    """
    if not layers:
        return graph
    result = graph.copy()
    domain = "" if result.opset >= _OWN else _DOMAIN
    if domain:
        result.domains = {**result.domains, domain: 1}
    read: dict[str, str] = {}
    nodes = []
    for node in result.nodes:
        layer = layers.get(node.name)
        if layer is not None:
            name = node.inputs[0]
            if name not in read:
                nodes += linear_value(result, name, values[name], read, "16", domain)
            node.inputs[0] = read[name]
            nodes.append(dequantised_weights(result, node, layer, weights[node.name]))
        nodes.append(node)
    result.nodes = nodes
    return result


def fits_halves(array: np.ndarray) -> bool:
    """Return whether all numbers of an array are within the range of float16."""
    return bool(np.abs(array).max(initial=0.0) < _LARGEST)


def with_halves(graph: OnnxGraph, layers: Collection[str]) -> OnnxGraph:
    """Return the network with the layers of some names in float16.

    Args:
        graph: it is not changed.
        layers: names of nodes; their weights are within the range of float16.
    """
    if not layers:
        return graph
    result = graph.copy()
    chosen = _half_nodes(result, layers)
    needed = set(result.outputs)
    for node in result.nodes:
        if id(node) not in chosen:
            needed.update((*node.inputs, *node.captured))
    halves: dict[str, str] = {}
    nodes: list[OnnxNode] = []
    for node in result.nodes:
        if id(node) not in chosen:
            nodes.append(node)
            continue
        for index in _numbers(node):
            nodes += _read_as_half(result, node, index, halves)
        given = list(node.outputs)
        node.outputs = [result.unused_name(f"{name}_half") for name in given]
        halves.update(zip(given, node.outputs, strict=True))
        nodes.append(node)
        nodes += [_cast(halves[name], name, FLOAT32.onnx) for name in given if name in needed]
    result.nodes = nodes
    return result


def _half_nodes(graph: OnnxGraph, layers: Collection[str]) -> set[int]:
    chosen: set[int] = set()
    made: set[str] = set()
    for node in graph.nodes:
        if node.name in layers or _follows_halves(graph, node, made):
            chosen.add(id(node))
            made.update(node.outputs)
    return chosen


def _follows_halves(graph: OnnxGraph, node: OnnxNode, made: Collection[str]) -> bool:
    if node.captured or len(node.outputs) != 1 or not (node.rule.halves or follows(node)):
        return False
    names = [node.inputs[index] for index in _numbers(node)]
    held = [graph.constants[name] for name in names if name in graph.constants]
    running = [name for name in names if name not in graph.constants]
    sound = all(is_float(each) and (node.op == "Clip" or fits_halves(each)) for each in held)
    return sound and bool(running) and set(running) <= set(made)


def _numbers(node: OnnxNode) -> list[int]:
    """Return the indices of the inputs that a node computes on."""
    count = len(node.inputs) if node.rule.running is None else 1
    return [index for index in range(count) if node.inputs[index]]


def _read_as_half(
    graph: OnnxGraph, node: OnnxNode, index: int, halves: dict[str, str]
) -> list[OnnxNode]:
    """Let a node read an input in float16; return the nodes to run before."""
    name = node.inputs[index]
    held = graph.constants.get(name)
    nodes = []
    if name not in halves:
        if held is not None:
            bounded = np.clip(held, -_LARGEST, _LARGEST)  # of Clip: no number is beyond
            halves[name] = constant(graph, f"{name}_half", bounded.astype(np.float16))
        else:
            halves[name] = graph.unused_name(f"{name}_half")
            nodes.append(_cast(name, halves[name], FLOAT16.onnx))
    node.inputs[index] = halves[name]
    return nodes


def _cast(source: str, target: str, to: int) -> OnnxNode:
    return OnnxNode("Cast", [source], [target], f"{target}_Cast", {"to": int_attribute("to", to)})
