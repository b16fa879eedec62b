"""One network in float32 in which each layer can be quantised or not, by what it is given.

A choice of layers is tried many times, and a file of each would have to be compiled. Here rounding
is arithmetic with numbers that are inputs:

    x' = min(max(round(x / scale), low), high) · scale          before a layer
    y  = layer of x' + on · (layer of x' with (quantised weights - weights))

With a scale of 2^-30 of the largest number nothing is rounded that float32 tells apart.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import numpy as np

from leanconv.graph.wire import written
from leanconv.quantizer.codes import LOW, Codes, WeightCodes
from leanconv.quantizer.emit import constant, with_codes
from leanconv.quantizer.layers import Layer
from leanconv.quantizer.onnx_graph import Array, OnnxGraph, OnnxNode
from leanconv.quantizer.scheme import Scheme

_PARTS = ("scale", "low", "high")
_FINE = 2.0**-30
_UNBOUNDED = 3e38


def switched(
    graph: OnnxGraph,
    plan: Scheme,
    values: Mapping[str, Codes],
    weights: Mapping[str, WeightCodes],
    biases: Mapping[str, Array | None],
) -> tuple[OnnxGraph, Switches]:
    """The network, and what it is given beside samples.

    Args:
        graph: in float32; it is not changed.
        plan: what would be quantised with all layers.
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
        """The inputs for a choice.

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
    """The form of a network whose inputs say what is rounded."""

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
    """A ValueInfoProto of one float32 number."""
    kind = written(1, 1) + written(2, b"")
    return written(1, name.encode()) + written(2, written(1, kind))
