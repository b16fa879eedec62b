"""Layers whose weights are int8 and whose inputs are codes of 16 bits.

QuantizeLinear and DequantizeLinear of 16 bits are ONNX's own from opset 21 on; before, they are
those of the domain com.microsoft, which ONNX Runtime has. Biases stay float32: in steps of such
fine sums they would not fit int32.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from leanconv.quantizer.codes import Codes, WeightCodes
from leanconv.quantizer.emit import constant, dequantised_weights
from leanconv.quantizer.layers import Layer
from leanconv.quantizer.onnx_graph import OnnxGraph, OnnxNode

_OWN = 21  # the opset whose QuantizeLinear has 16 bits
_DOMAIN = "com.microsoft"


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
                nodes += _value(result, name, values[name], domain, read)
            node.inputs[0] = read[name]
            nodes.append(dequantised_weights(result, node, layer, weights[node.name]))
        nodes.append(node)
    result.nodes = nodes
    return result


def _value(
    graph: OnnxGraph, name: str, codes: Codes, domain: str, read: dict[str, str]
) -> list[OnnxNode]:
    scale = constant(graph, f"{name}_scale16", np.float32(codes.scale))
    zero = constant(graph, f"{name}_zero16", np.uint16(codes.zero))
    kept, made = graph.unused_name(f"{name}_codes16"), graph.unused_name(f"{name}_value16")
    read[name] = made
    return [
        OnnxNode("QuantizeLinear", [name, scale, zero], [kept], f"{kept}_Q", domain=domain),
        OnnxNode("DequantizeLinear", [kept, scale, zero], [made], f"{kept}_DQ", domain=domain),
    ]
