"""Which values of a network become codes when some of its layers are quantised.

A quantised layer reads codes, so that each of its inputs is quantised. An operation that follows
layers and only mixes or moves values (a sum of two branches, a pool, a concatenation) works on
codes too, where all that it reads comes from layers on codes and what it gives goes to one. Relu
and Clip right behind a layer become bounds of its codes: what is quantised is their result.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from leanconv.quantizer.layers import Layer, layer_of
from leanconv.quantizer.onnx_graph import OnnxGraph, OnnxNode
from leanconv.records import dataclass

# Operations on codes, by their inputs that are values; those that give what they read share its
# scale.
_MOVED = ("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Slice", "Split")
_SAME_SCALE = frozenset((*_MOVED, "MaxPool", "Concat", "Resize", "DepthToSpace", "Expand"))
_OTHERS = frozenset(("Add", "Mul", "AveragePool", "GlobalAveragePool"))
_SEVERAL = frozenset(("Add", "Mul", "Concat"))  # that read several values
_BOUNDS = frozenset(("Relu", "Clip"))
_ON_CODES = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul"))


@dataclass(frozen=True, eq=False)
class Scheme:
    """What is quantised.

    Attributes:
        layers: those that read codes, by the node's name.
        values: the values that become codes, in the order in which they are made.
        shares: for each of them the value whose scale it has, which may be itself.
    """

    layers: dict[str, Layer]
    values: tuple[str, ...]
    shares: dict[str, str]


def quantisable(graph: OnnxGraph) -> dict[str, Layer]:
    """The layers that can be quantised, by name, in the network's order."""
    found = {}
    for node in graph.nodes:
        layer = layer_of(node, graph) if node.op in _ON_CODES else None
        if layer is None or node.inputs[0] in graph.constants:
            continue
        if layer.transposed and layer.groups > 1:
            continue  # scales lie along an axis of the weights, which all groups share
        found[node.name] = layer
    return found


def scheme(graph: OnnxGraph, chosen: Collection[str]) -> Scheme:
    """What is quantised where the layers of these names are."""
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
        elif _follows(node) and capable.issuperset(_reads(node)):
            wanted.update(_reads(node))
    order = [*graph.inputs, *(name for node in graph.nodes for name in node.outputs)]
    values = tuple(name for name in order if name in wanted)
    return Scheme(layers, values, _shares(graph, set(values)))


def capable_values(graph: OnnxGraph, chosen: Collection[str]) -> set[str]:
    """Values that would be codes, or could be, where the layers of these names are quantised."""
    layers = {name: each for name, each in quantisable(graph).items() if name in chosen}
    return _capable(graph, layers, {each.node.inputs[0] for each in layers.values()})


def _capable(graph: OnnxGraph, layers: Collection[str], wanted: Collection[str]) -> set[str]:
    """Values that are codes already, or could be made as codes."""
    capable = set(wanted)
    consumers = graph.consumers()
    for node in graph.nodes:
        reads = _reads(node)
        follows = _follows(node) or _bounds(node, graph, consumers)
        if node.name in layers or (follows and reads and capable.issuperset(reads)):
            capable.update(node.outputs)
    return capable


def _follows(node: OnnxNode) -> bool:
    """Whether a node can work on codes."""
    if node.domain or node.captured:
        return False
    return node.op in _SAME_SCALE or node.op in _OTHERS or node.op in _BOUNDS


def _reads(node: OnnxNode) -> list[str]:
    """The inputs of a node that would be codes."""
    return node.inputs if node.op in _SEVERAL else node.inputs[:1]


def _bounds(node: OnnxNode, graph: OnnxGraph, consumers: dict[str, list[OnnxNode]]) -> bool:
    """Whether a node only bounds what the one before it gives."""
    if node.op not in _BOUNDS or node.domain or not node.inputs:
        return False
    source = node.inputs[0]
    alone = len(consumers.get(source, ())) == 1 and source not in graph.outputs
    return alone and source not in graph.inputs and _constant_bounds(node, graph)


def _constant_bounds(node: OnnxNode, graph: OnnxGraph) -> bool:
    return all(not name or name in graph.constants for name in node.inputs[1:])


def _shares(graph: OnnxGraph, values: Collection[str]) -> dict[str, str]:
    """Join what must have one scale; each value's representative is the first of its set."""
    parent = {name: name for name in values}

    def root(name: str) -> str:
        while parent[name] != name:
            name = parent[name]
        return name

    for node in graph.nodes:
        if node.domain or node.op not in _SAME_SCALE:
            continue
        names = list(_joined(node, values))
        if names and set(names) & set(node.outputs):
            first = root(names[0])
            for name in names[1:]:
                parent[root(name)] = first
    return {name: root(name) for name in values}


def _joined(node: OnnxNode, values: Collection[str]) -> Iterator[str]:
    yield from (name for name in (*_reads(node), *node.outputs) if name in values)
