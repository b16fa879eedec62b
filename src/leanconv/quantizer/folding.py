"""Nodes after a layer that only scale or shift its channels become part of its weights.

    y = g (w * x + b) + h        becomes        y = (g w) * x + (g b + h)

with g and h a number for each output channel: batch normalisation, and products with and sums of
constants. A quantised layer then has all of it in its integers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from leanconv.graph.ops import OPS
from leanconv.graph.passes.fold_batch_norm import normalised
from leanconv.quantizer.layers import Layer, layer_of
from leanconv.quantizer.onnx_graph import Array, OnnxGraph, OnnxNode, is_float
from leanconv.records import dataclass


@dataclass(frozen=True, eq=False)
class _Affine:
    """Factors g and summands h, float64, each of one element or of one for each channel."""

    factor: Array
    summand: Array


def folded(graph: OnnxGraph) -> OnnxGraph:
    """The same network with constant factors and summands in the weights before them."""
    result = graph.copy()
    consumers = result.consumers()
    removed: set[int] = set()
    for node in list(result.nodes):
        layer = layer_of(node, result)
        while layer is not None:
            name = node.outputs[0]
            readers = consumers.get(name, [])
            if len(readers) != 1 or name in result.outputs or name in readers[0].captured:
                break
            after = readers[0]
            affine = _affine(after, name, layer, result)
            if affine is None:
                break
            _apply(layer, affine, result)
            node.outputs[0] = after.outputs[0]
            removed.add(id(after))
            layer = layer_of(node, result)
    result.nodes = [node for node in result.nodes if id(node) not in removed]
    return result


def _affine(node: OnnxNode, name: str, layer: Layer, graph: OnnxGraph) -> _Affine | None:
    """Return a node's factors and summands of channels; None if it computes anything else."""
    read = _FOLDED.get(node.op) if not node.domain else None
    if read is None or len([out for out in node.outputs if out]) != 1:
        return None
    found = read(node, name, layer, graph)
    if found is None or not (layer.takes_bias or not found.summand.any()):
        return None
    sound = np.isfinite(found.factor).all() and np.isfinite(found.summand).all()
    return found if sound else None


def _normalisation(node: OnnxNode, name: str, layer: Layer, graph: OnnxGraph) -> _Affine | None:
    arrays = [graph.constants.get(each) for each in node.inputs[1:5]]
    if node.inputs[0] != name or len(arrays) != 4 or not all(map(is_float, arrays)):
        return None
    if layer.channel_axis != 1 or node.integer("training_mode", 0):
        return None
    given = [each.astype(np.float64) for each in arrays if each is not None]
    if any(each.shape != (layer.channels,) for each in given):
        return None
    with np.errstate(all="ignore"):
        return _Affine(*normalised(given, node.number("epsilon", 1e-5)))


def _with_constant(node: OnnxNode, name: str, layer: Layer, graph: OnnxGraph) -> _Affine | None:
    """Add, Sub, Mul and Div with a number or one for each channel."""
    if len(node.inputs) != 2 or node.inputs.count(name) != 1:
        return None
    first = node.inputs[0] == name
    constant = graph.constants.get(node.inputs[1 if first else 0])
    if constant is None or not is_float(constant):
        return None
    values = _per_channel(constant.astype(np.float64), layer)
    entry = OPS[node.op]
    if values is None or entry.affine is None or not (first or entry.commutes):
        return None
    with np.errstate(all="ignore"):
        found = entry.affine(values, False)
    return found and _Affine(*map(np.atleast_1d, found))


def _per_channel(values: Array, layer: Layer) -> Array | None:
    """A constant as one number for each channel, or as a single one; None if it is neither."""
    if values.size == 1 and values.ndim <= layer.rank:
        return values.reshape(1)
    trailing = layer.rank - layer.channel_axis % layer.rank  # the channels' axis from the end
    wanted = (layer.channels, *[1] * (trailing - 1))
    shape = values.shape[-trailing:] if values.ndim >= trailing else ()
    if shape == wanted and values.size == layer.channels and values.ndim <= layer.rank:
        return values.reshape(-1)
    return None


_FOLDED: dict[str, Callable[[OnnxNode, str, Layer, OnnxGraph], _Affine | None]] = {
    "BatchNormalization": _normalisation,
    **dict.fromkeys((op for op, each in OPS.items() if each.affine), _with_constant),
}


def _apply(layer: Layer, affine: _Affine, graph: OnnxGraph) -> None:
    """Give a layer the weights and the bias with which it also computes the node after it."""
    bias = np.zeros(layer.channels) if layer.bias is None else layer.bias.astype(np.float64)
    weights = layer.by_channel().astype(np.float64) * affine.factor.reshape(-1, 1)
    bias = bias * affine.factor + affine.summand
    layer.set_weights(graph, weights.astype(np.float32))
    if layer.bias is None and not affine.summand.any():
        return
    layer.set_bias(graph, bias.astype(np.float32))
