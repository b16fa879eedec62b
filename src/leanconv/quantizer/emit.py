"""A network with codes in it, as an ONNX file.

Two forms of the same numbers: `Linear` has QuantizeLinear and DequantizeLinear around what is on
codes, which engines that know integers turn into these, and `Rounded` has floats rounded to the
same numbers (x / s, rounded, clipped, times s), which every engine computes fast in float32.

A third, `switched`, is one network in float32 in which each layer can be quantised or not, by what
it is given: a choice of layers is tried many times, and a file of each would have to be compiled.
Its rounding is arithmetic with numbers that are inputs:

    x' = min(max(round(x / scale), low), high) · scale          before a layer
    y  = layer of x' + on · (layer of x' with (quantised weights - weights))

With a scale of 2^-30 of the largest number nothing is rounded that float32 tells apart.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Protocol

import numpy as np

from leanconv.graph.wire import written
from leanconv.quantizer.codes import HIGH, LOW, Codes, WeightCodes, bias_codes
from leanconv.quantizer.layers import Layer, Scheme
from leanconv.quantizer.onnx_graph import Array, OnnxGraph, OnnxNode, int_attribute

_PARTS = ("scale", "low", "high")
_FINE = 2.0**-30
_UNBOUNDED = 3e38


class Form(Protocol):
    """A way to write codes into a graph."""

    def value(
        self, graph: OnnxGraph, name: str, codes: Codes, read: dict[str, str]
    ) -> list[OnnxNode]:
        """Return nodes that make a value's codes; `read` gets the name that stands for it."""

    def layer(
        self, graph: OnnxGraph, node: OnnxNode, layer: Layer, codes: WeightCodes, source: Codes
    ) -> list[OnnxNode]:
        """Return nodes that run before a layer's node, which gets weights of codes."""


def with_codes(
    graph: OnnxGraph,
    plan: Scheme,
    values: Mapping[str, Codes],
    weights: Mapping[str, WeightCodes],
    form: Form,
    apart: Collection[str] = (),
) -> OnnxGraph:
    """Return the network with codes in it.

    Args:
        graph: in float32, opset 13 or later; it is not changed.
        plan: the layers and values to quantise.
        values: codes of its values, by name.
        weights: codes of its layers, by the nodes' names.
        form: how codes are written.
        apart: names of nodes that read values as they are, also those that become codes.
    """
    result = graph.copy()
    read: dict[str, str] = {}  # what is read in place of a value
    nodes = []
    for name in plan.values:
        if name in result.inputs:
            nodes += form.value(result, name, values[name], read)
    for node in result.nodes:
        layer = plan.layers.get(node.name)
        source = node.inputs[0] if layer is not None else ""
        if node.name not in apart:
            node.inputs = [read.get(name, name) for name in node.inputs]
        if layer is not None:
            nodes += form.layer(result, node, layer, weights[node.name], values[source])
        nodes.append(node)
        for name in node.outputs:
            if name in values and name in plan.shares:
                nodes += form.value(result, name, values[name], read)
    result.nodes = nodes
    return result


def linear_value(
    graph: OnnxGraph,
    name: str,
    codes: Codes,
    read: dict[str, str],
    suffix: str = "",
    domain: str = "",
) -> list[OnnxNode]:
    """QuantizeLinear and DequantizeLinear of a value: codes of uint8 or uint16.

    Args:
        graph: that gets the constants.
        name, codes: of the value.
        read: gets the name that is read in its place.
        suffix: of all names.
        domain: of both nodes.
    """
    kind = np.uint8 if codes.high == HIGH else np.uint16
    scale = constant(graph, f"{name}_scale{suffix}", np.float32(codes.scale))
    zero = constant(graph, f"{name}_zero{suffix}", kind(codes.zero))
    kept = graph.unused_name(f"{name}_codes{suffix}")
    made = read[name] = graph.unused_name(f"{name}_value{suffix}")
    steps = [("QuantizeLinear", name, kept), ("DequantizeLinear", kept, made)]
    return [
        OnnxNode(op, [source, scale, zero], [target], f"{name}_{op}{suffix}", domain=domain)
        for op, source, target in steps
    ]


def dequantised_weights(
    graph: OnnxGraph, node: OnnxNode, layer: Layer, codes: WeightCodes
) -> OnnxNode:
    """Let a layer's node read weights by a DequantizeLinear: that node."""
    axis = {"axis": int_attribute("axis", layer.weight_axis)}
    names = [
        constant(graph, f"{node.inputs[1]}_codes", layer.from_rows(codes.codes)),
        constant(graph, f"{node.inputs[1]}_scale", codes.scales),
        constant(graph, f"{node.inputs[1]}_zero", np.zeros(len(codes.scales), np.int8)),
    ]
    made = graph.unused_name(f"{node.inputs[1]}_value")
    node.inputs[1] = made
    return OnnxNode("DequantizeLinear", names, [made], f"{made}_Dequantize", axis)


class Linear:
    """QuantizeLinear and DequantizeLinear."""

    def value(
        self, graph: OnnxGraph, name: str, codes: Codes, read: dict[str, str]
    ) -> list[OnnxNode]:
        return linear_value(graph, name, codes, read)

    def layer(
        self, graph: OnnxGraph, node: OnnxNode, layer: Layer, codes: WeightCodes, source: Codes
    ) -> list[OnnxNode]:
        nodes = [dequantised_weights(graph, node, layer, codes)]
        if layer.bias is not None:
            sums, steps = bias_codes(layer.bias, codes.scales, source.scale)
            names = [
                constant(graph, f"{node.outputs[0]}_bias_codes", sums),
                constant(graph, f"{node.outputs[0]}_bias_scale", steps),
                constant(graph, f"{node.outputs[0]}_bias_zero", np.zeros(len(steps), np.int32)),
            ]
            made = graph.unused_name(f"{node.outputs[0]}_bias_value")
            first = {"axis": int_attribute("axis", 0)}
            nodes.append(OnnxNode("DequantizeLinear", names, [made], f"{made}_Dequantize", first))
            node.inputs[2] = made
        return nodes


class Rounded:
    """Floats that are the numbers for which codes stand."""

    def value(
        self, graph: OnnxGraph, name: str, codes: Codes, read: dict[str, str]
    ) -> list[OnnxNode]:
        names = [graph.unused_name(f"{name}_{part}") for part in ("div", "rint", "clip", "value")]
        scale = constant(graph, f"{name}_scale", np.float32(codes.scale))
        low = constant(graph, f"{name}_low", np.float32(LOW - codes.zero))
        high = constant(graph, f"{name}_high", np.float32(HIGH - codes.zero))
        read[name] = names[3]
        return [
            OnnxNode("Div", [name, scale], [names[0]], f"{name}_Div"),
            OnnxNode("Round", [names[0]], [names[1]], f"{name}_Round"),
            OnnxNode("Clip", [names[1], low, high], [names[2]], f"{name}_Clip"),
            OnnxNode("Mul", [names[2], scale], [names[3]], f"{name}_Mul"),
        ]

    def layer(
        self, graph: OnnxGraph, node: OnnxNode, layer: Layer, codes: WeightCodes, source: Codes
    ) -> list[OnnxNode]:
        floats = layer.from_rows(codes.values)
        node.inputs[1] = constant(graph, f"{node.inputs[1]}_value", floats)
        if layer.bias is not None:
            sums, steps = bias_codes(layer.bias, codes.scales, source.scale)
            bias = (sums * steps.astype(np.float64)).astype(np.float32)
            node.inputs[2] = constant(graph, f"{node.outputs[0]}_bias_value", bias)
        return []


def constant(graph: OnnxGraph, name: str, value: np.ndarray | np.generic) -> str:
    """A constant of a name like that; its name."""
    name = graph.unused_name(name)
    graph.constants[name] = np.asarray(value)
    return name


def switched(
    graph: OnnxGraph,
    plan: Scheme,
    values: Mapping[str, Codes],
    weights: Mapping[str, WeightCodes],
    biases: Mapping[str, Array | None],
) -> tuple[OnnxGraph, Switches]:
    """Return the network, and its inputs beside samples.

    Args:
        graph: in float32; it is not changed.
        plan: the scheme with all layers quantised.
        values: codes of its values.
        weights: codes of its layers, by the nodes' names.
        biases: of layers where they are quantised.
    """
    form = _Switched(biases)
    made = with_codes(graph, plan, values, weights, form)
    names = [f"{name}_{part}" for name in form.values.values() for part in _PARTS]
    names += form.layers.values()
    made.inputs = {**made.inputs, **{name: _scalar(name) for name in names}}
    return made, Switches(form.values, form.layers)


class Switches:
    """The inputs beside samples: three numbers for each value, one for each layer.

    Args:
        values: the name of the numbers of a value, by the value's name.
        layers: of the number of a layer, by its node's name.
    """

    def __init__(self, values: Mapping[str, str], layers: Mapping[str, str]) -> None:
        self._values, self._layers = values, layers

    def set(
        self, codes: Mapping[str, Codes], chosen: Collection[str], largest: Mapping[str, float]
    ) -> dict[str, np.ndarray]:
        """Return the inputs for a choice.

        Args:
            codes: of the values that become codes, by name.
            chosen: the layers that are quantised.
            largest: of all values the largest number.
        """
        found = {}
        for name, made in self._values.items():
            code = codes.get(name)
            if code is None:
                power = math.ceil(math.log2(max(largest[name], 1e-20)))
                numbers = (math.ldexp(_FINE, power), -_UNBOUNDED, _UNBOUNDED)
            else:
                numbers = (code.scale, LOW - code.zero, code.high - code.zero)
            for part, number in zip(_PARTS, numbers, strict=True):
                found[f"{made}_{part}"] = np.array(number, np.float32)
        for name, made in self._layers.items():
            found[made] = np.array(name in chosen, np.float32)
        return found


class _Switched:
    """The form of a network whose inputs switch each rounding on or off."""

    def __init__(self, biases: Mapping[str, Array | None]) -> None:
        self._biases = biases
        self.values: dict[str, str] = {}
        self.layers: dict[str, str] = {}

    def value(
        self, graph: OnnxGraph, name: str, codes: Codes, read: dict[str, str]
    ) -> list[OnnxNode]:
        made = self.values[name] = graph.unused_name(f"{name}_switch")
        scale, low, high = (f"{made}_{part}" for part in _PARTS)
        steps = [graph.unused_name(f"{name}_{op}") for op in ("div", "rint", "max", "min", "value")]
        read[name] = steps[-1]
        given = [name, *steps[:-1]]
        ops = [("Div", scale), ("Round", ""), ("Max", low), ("Min", high), ("Mul", scale)]
        return [
            OnnxNode(op, [source, *filter(None, [other])], [target], f"{target}_{op}")
            for (op, other), source, target in zip(ops, given, steps, strict=True)
        ]

    def layer(
        self, graph: OnnxGraph, node: OnnxNode, layer: Layer, codes: WeightCodes, source: Codes
    ) -> list[OnnxNode]:
        on = self.layers[layer.name] = graph.unused_name(f"{layer.name}_on")
        exact, more, scaled = (
            graph.unused_name(f"{node.outputs[0]}_{part}") for part in ("exact", "more", "switched")
        )
        first, second = node.copy(), node.copy()
        first.name, first.outputs = f"{node.name}_exact", [exact]
        second.name, second.outputs = f"{node.name}_more", [more]
        rows = codes.values - layer.by_channel()
        second.inputs = [node.inputs[0], constant(graph, f"{more}_weights", layer.from_rows(rows))]
        bias = self._biases[layer.name]
        if bias is not None:
            before = 0.0 if layer.bias is None else layer.bias
            difference = np.asarray(bias - before, np.float32)
            second.inputs.append(constant(graph, f"{more}_bias", difference))
        node.op, node.attributes, node.inputs = "Add", {}, [exact, scaled]
        return [first, second, OnnxNode("Mul", [more, on], [scaled], f"{scaled}_Mul")]


def _scalar(name: str) -> bytes:
    kind = written(1, 1) + written(2, b"")
    return written(1, name.encode()) + written(2, written(1, kind))
