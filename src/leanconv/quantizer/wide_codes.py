"""Layers whose weights are int8 and whose inputs are codes of 16 bits.

QuantizeLinear and DequantizeLinear of 16 bits are ONNX's own from opset 21 on; before, they are
those of the domain com.microsoft, which ONNX Runtime has. Biases stay float32: in steps of such
fine sums they would not fit int32.
"""

from __future__ import annotations

from collections.abc import Mapping

from leanconv.quantizer.codes import Codes, WeightCodes
from leanconv.quantizer.emit import dequantised_weights, linear_value
from leanconv.quantizer.layers import Layer
from leanconv.quantizer.onnx_graph import OnnxGraph

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
                nodes += linear_value(result, name, values[name], read, "16", domain)
            node.inputs[0] = read[name]
            nodes.append(dequantised_weights(result, node, layer, weights[node.name]))
        nodes.append(node)
    result.nodes = nodes
    return result
