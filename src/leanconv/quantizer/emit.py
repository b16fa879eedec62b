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

Two precisions lie between int8 and float32. A layer whose weights are int8 reads codes of 16 bits.
QuantizeLinear and DequantizeLinear of 16 bits are ONNX's own from opset 21 on; before, they are
those of the domain com.microsoft, which ONNX Runtime has. Biases stay float32: in steps of such
fine sums they would not fit int32.

Layers in float16 are parts of a network between Casts. A layer of float16 reads and writes halves,
and what follows such layers and only bounds, adds, multiplies, pools or moves does so too. Where a
part begins a Cast rounds what it reads, where it ends a Cast gives float32 back.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np

from leanconv.graph.file_graph import FileNode, table_key
from leanconv.graph.onnx_graph import OnnxGraph, named_value
from leanconv.graph.ops.base import Array
from leanconv.quantizer.codes import HIGH, LOW, Codes, WeightCodes, bias_codes
from leanconv.quantizer.layers import Layer, Scheme, follows, is_float, rule_of
from leanconv.types import FLOAT16, FLOAT32

_PARTS = ("scale", "low", "high")
_FINE = 2.0**-30
_UNBOUNDED = 3e38
_OWN = 21  # the opset whose QuantizeLinear has 16 bits
_DOMAIN = "com.microsoft"
_LARGEST = float(np.finfo(np.float16).max)


class Form(Protocol):
    """A way to write codes into a graph."""

    def value(
        self, graph: OnnxGraph, name: str, codes: Codes, read: dict[str, str]
    ) -> list[FileNode]:
        """Return nodes that make a value's codes; `read` gets the name that stands for it."""

    def layer(
        self, graph: OnnxGraph, node: FileNode, layer: Layer, codes: WeightCodes, source: Codes
    ) -> list[FileNode]:
        """Return a layer's node with weights of codes, behind nodes that run before it."""


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
            node = replace(node, inputs=tuple(read.get(name, name) for name in node.inputs))
        if layer is None:
            nodes.append(node)
        else:
            nodes += form.layer(result, node, layer, weights[node.name], values[source])
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
) -> list[FileNode]:
    """QuantizeLinear and DequantizeLinear of a value: codes of uint8 or uint16.

    Args:
        graph: that gets the constants.
        name, codes: of the value.
        read: gets the name that is read in its place.
        suffix: of all names.
        domain: of both nodes.
    """
    kind = np.uint8 if codes.high == HIGH else np.uint16
    scale = graph.constant(f"{name}_scale{suffix}", np.float32(codes.scale))
    zero = graph.constant(f"{name}_zero{suffix}", kind(codes.zero))
    kept = graph.unused_name(f"{name}_codes{suffix}")
    made = read[name] = graph.unused_name(f"{name}_value{suffix}")
    steps = [("QuantizeLinear", name, kept), ("DequantizeLinear", kept, made)]
    return [
        FileNode(
            op=table_key(domain, op),
            inputs=(source, scale, zero),
            outputs=(target,),
            attributes={},
            name=f"{name}_{op}{suffix}",
            domain=domain,
        )
        for op, source, target in steps
    ]


def dequantised(graph: OnnxGraph, name: str, codes: Array, scales: Array, axis: int) -> FileNode:
    """A DequantizeLinear of constants, which the graph gets.

    Args:
        graph: that gets the constants.
        name: in place of which its result is read.
        codes: integers whose zero is 0.
        scales: along an axis of them.
        axis: that one.
    """
    names = (
        graph.constant(f"{name}_codes", codes),
        graph.constant(f"{name}_scale", scales),
        graph.constant(f"{name}_zero", np.zeros(len(scales), codes.dtype)),
    )
    made = graph.unused_name(f"{name}_value")
    return FileNode("DequantizeLinear", names, (made,), {"axis": axis}, f"{made}_Dequantize")


def dequantised_weights(
    graph: OnnxGraph, node: FileNode, layer: Layer, codes: WeightCodes
) -> FileNode:
    """The DequantizeLinear of a layer's weights."""
    weights = layer.from_rows(codes.codes)
    return dequantised(graph, node.inputs[1], weights, codes.scales, layer.weight_axis)


class Linear:
    """QuantizeLinear and DequantizeLinear."""

    def value(
        self, graph: OnnxGraph, name: str, codes: Codes, read: dict[str, str]
    ) -> list[FileNode]:
        return linear_value(graph, name, codes, read)

    def layer(
        self, graph: OnnxGraph, node: FileNode, layer: Layer, codes: WeightCodes, source: Codes
    ) -> list[FileNode]:
        nodes = [dequantised_weights(graph, node, layer, codes)]
        if layer.bias is not None:
            sums, steps = bias_codes(layer.bias, codes.scales, source.scale)
            nodes.append(dequantised(graph, f"{node.outputs[0]}_bias", sums, steps, 0))
        made = (each.outputs[0] for each in nodes)
        inputs = (node.inputs[0], *made, *node.inputs[1 + len(nodes) :])
        return [*nodes, replace(node, inputs=inputs)]


class Rounded:
    """Floats that are the numbers for which codes stand."""

    def value(
        self, graph: OnnxGraph, name: str, codes: Codes, read: dict[str, str]
    ) -> list[FileNode]:
        names = [graph.unused_name(f"{name}_{part}") for part in ("div", "rint", "clip", "value")]
        scale = graph.constant(f"{name}_scale", np.float32(codes.scale))
        low = graph.constant(f"{name}_low", np.float32(LOW - codes.zero))
        high = graph.constant(f"{name}_high", np.float32(HIGH - codes.zero))
        read[name] = names[3]
        given = [name, *names[:3]]
        ops = [("Div", (scale,)), ("Round", ()), ("Clip", (low, high)), ("Mul", (scale,))]
        return [
            FileNode(op, (source, *others), (target,), {}, f"{name}_{op}")
            for (op, others), source, target in zip(ops, given, names, strict=True)
        ]

    def layer(
        self, graph: OnnxGraph, node: FileNode, layer: Layer, codes: WeightCodes, source: Codes
    ) -> list[FileNode]:
        inputs = list(node.inputs)
        inputs[1] = graph.constant(f"{inputs[1]}_value", layer.from_rows(codes.values))
        if layer.bias is not None:
            sums, steps = bias_codes(layer.bias, codes.scales, source.scale)
            bias = (sums * steps.astype(np.float64)).astype(np.float32)
            inputs[2] = graph.constant(f"{node.outputs[0]}_bias_value", bias)
        return [replace(node, inputs=tuple(inputs))]


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
    made.inputs = {**made.inputs, **{name: named_value(name, FLOAT32.onnx, ()) for name in names}}
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
    ) -> list[FileNode]:
        made = self.values[name] = graph.unused_name(f"{name}_switch")
        scale, low, high = (f"{made}_{part}" for part in _PARTS)
        steps = [graph.unused_name(f"{name}_{op}") for op in ("div", "rint", "max", "min", "value")]
        read[name] = steps[-1]
        given = [name, *steps[:-1]]
        ops = [("Div", scale), ("Round", ""), ("Max", low), ("Min", high), ("Mul", scale)]
        return [
            FileNode(op, (source, *filter(None, [other])), (target,), {}, f"{target}_{op}")
            for (op, other), source, target in zip(ops, given, steps, strict=True)
        ]

    def layer(
        self, graph: OnnxGraph, node: FileNode, layer: Layer, codes: WeightCodes, source: Codes
    ) -> list[FileNode]:
        on = self.layers[layer.name] = graph.unused_name(f"{layer.name}_on")
        exact, more, scaled = (
            graph.unused_name(f"{node.outputs[0]}_{part}") for part in ("exact", "more", "switched")
        )
        rows = codes.values - layer.by_channel()
        inputs = [node.inputs[0], graph.constant(f"{more}_weights", layer.from_rows(rows))]
        bias = self._biases[layer.name]
        if bias is not None:
            before = 0.0 if layer.bias is None else layer.bias
            difference = np.asarray(bias - before, np.float32)
            inputs.append(graph.constant(f"{more}_bias", difference))
        return [
            replace(node, name=f"{node.name}_exact", outputs=(exact,)),
            replace(node, name=f"{node.name}_more", outputs=(more,), inputs=tuple(inputs)),
            FileNode("Mul", (more, on), (scaled,), {}, f"{scaled}_Mul"),
            replace(node, op="Add", attributes={}, inputs=(exact, scaled)),
        ]


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
    domain = "" if result.opsets[""] >= _OWN else _DOMAIN
    if domain:
        result.opsets = {**result.opsets, domain: 1}
    read: dict[str, str] = {}
    nodes = []
    for node in result.nodes:
        layer = layers.get(node.name)
        if layer is not None:
            name = node.inputs[0]
            if name not in read:
                nodes += linear_value(result, name, values[name], read, "16", domain)
            made = dequantised_weights(result, node, layer, weights[node.name])
            nodes.append(made)
            node = replace(node, inputs=(read[name], made.outputs[0], *node.inputs[2:]))
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
        if node not in chosen:
            needed.update(node.reads)
    halves: dict[str, str] = {}
    nodes: list[FileNode] = []
    for node in result.nodes:
        if node not in chosen:
            nodes.append(node)
            continue
        inputs = list(node.inputs)
        for index in _numbers(node):
            nodes += _as_half(result, inputs[index], halves)
            inputs[index] = halves[inputs[index]]
        outputs = tuple(result.unused_name(f"{name}_half") for name in node.outputs)
        halves.update(zip(node.outputs, outputs, strict=True))
        nodes.append(replace(node, inputs=tuple(inputs), outputs=outputs))
        casts = (name for name in node.outputs if name in needed)
        nodes += [_cast(halves[name], name, FLOAT32.onnx) for name in casts]
    result.nodes = nodes
    return result


def _half_nodes(graph: OnnxGraph, layers: Collection[str]) -> set[FileNode]:
    chosen: set[FileNode] = set()
    made: set[str] = set()
    for node in graph.nodes:
        if node.name in layers or _follows_halves(graph, node, made):
            chosen.add(node)
            made.update(node.outputs)
    return chosen


def _follows_halves(graph: OnnxGraph, node: FileNode, made: Collection[str]) -> bool:
    if node.captured or len(node.outputs) != 1 or not (rule_of(node).halves or follows(node)):
        return False
    names = [node.inputs[index] for index in _numbers(node)]
    held = [graph.constants[name] for name in names if name in graph.constants]
    running = [name for name in names if name not in graph.constants]
    sound = all(is_float(each) and (node.op == "Clip" or fits_halves(each)) for each in held)
    return sound and bool(running) and set(running) <= set(made)


def _numbers(node: FileNode) -> list[int]:
    """Return the indices of the inputs that a node computes on."""
    count = len(node.inputs) if rule_of(node).running is None else 1
    return [index for index in range(count) if node.inputs[index]]


def _as_half(graph: OnnxGraph, name: str, halves: dict[str, str]) -> list[FileNode]:
    """Let `halves` have a value in float16, and return the nodes that make it so."""
    if name in halves:
        return []
    held = graph.constants.get(name)
    if held is not None:
        bounded = np.clip(held, -_LARGEST, _LARGEST)  # of Clip: no number is beyond
        halves[name] = graph.constant(f"{name}_half", bounded.astype(np.float16))
        return []
    halves[name] = graph.unused_name(f"{name}_half")
    return [_cast(name, halves[name], FLOAT16.onnx)]


def _cast(source: str, target: str, to: int) -> FileNode:
    return FileNode("Cast", (source,), (target,), {"to": to}, f"{target}_Cast")
