"""Sizes that stand for a range of sizes, where a network takes any.

How a node of open extents is computed is chosen as for the representative of its sizes: a new shape
of the network chooses nothing and needs hardly any new code, and what a shape's bits are does not
depend on the shapes before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from leanconv.errors import LeanConvError
from leanconv.graph.ir import Graph, Node, Origin, TensorType
from leanconv.graph.ops import infer_node
from leanconv.symbolic import fixed

# The end of each range, and what stands for it.
_BATCHES = {4: 4, 16: 14, 64: 56, 256: 224}
_SIZES = {64: 56, 1024: 224}
# What stands for the open sizes of a network's inputs, by their geometric mean. (Many networks take
# multiples of 32 only.) A YOLOv8n's plan for 96 is within 0.05 of the best one up to 192, of 0.1 up
# to 256, that for 384 within 0.02 from 320 on.
_INPUTS = {192: 96, 1024: 384}
_TIMES = (1, 16)  # as many, where windows are longer than a representative


def representative(extent: int, axis: int) -> int:
    """The extent that stands for all of its range: a batch along axis 0, else a size.

    Sizes up to 64 and up to 1024 are two ranges: what is chosen differs little within one, and each
    new range costs as much time as a network's first shape. Beyond all ranges, 7/8 of the power of
    four that an extent does not exceed stands for it.
    """
    for end, stands in (_SIZES if axis else _BATCHES).items():
        if extent <= end:
            return stands
    power = end
    while power < extent:
        power *= 4
    return power * 7 // 8


def usual_graph(graph: Graph) -> Graph | None:
    """The network at a size that stands for all of a range, this one among them.

    None where that is unknown: sizes are fixed, or the network does not take the other size.
    """
    origin = graph.origin
    if origin is None or origin.nodes is not graph.nodes:
        return None
    return origin.at(usual_extents(origin))


def usual_extents(origin: Origin) -> tuple[int, ...]:
    """Those that stand for the open extents of a network's inputs.

    One size for all but batches: how a layer is computed best depends on its pixels more than on
    their shape, and few sizes mean few searches.
    """
    sides = [extent for extent, axis in origin.extents if axis]
    usual = _usual_side(prod(sides), len(sides))
    return tuple(usual if axis else representative(n, axis) for n, axis in origin.extents)


def _usual_side(product: int, sides: int) -> int:
    """What stands for sides of a product."""
    for end, stands in _INPUTS.items():
        if product <= end**sides:
            return stands
    while end**sides < product:
        end, stands = 4 * end, 4 * stands
    return stands


def representative_types(node: Node, graph: Graph) -> Mapping[str, TensorType]:
    """The types of a node's values with representatives for open extents.

    Those of the graph where no input has any, or where the node computes no such sizes.
    """
    own = {name: graph.types[name] for name in (*node.inputs, *node.outputs) if name}
    if not any(name in graph.open_axes for name in node.inputs):
        return own
    x, before = node.inputs[0], own[node.key]
    # A residual is as large as the output, which the representative of the input decides.
    added = {name for name in node.inputs[1:] if name not in ("", x) and own[name] == before}
    alone = replace(node, inputs=tuple("" if name in added else name for name in node.inputs))
    for times in _TIMES:
        types = {
            name: _of(kind, graph.open_axes.get(name, ()), times) for name, kind in own.items()
        }
        try:
            types.update(zip(node.outputs, infer_node(alone, types), strict=True))
        except LeanConvError:
            continue
        types.update(dict.fromkeys(added, types[node.key]))
        return fixed(types)
    return fixed(own)  # nothing else fits, such as channels that a file leaves open


def _of(kind: TensorType, axes: tuple[int, ...], times: int) -> TensorType:
    extents = list(kind.shape)
    for axis in axes:
        extents[axis] = representative(extents[axis] * times, axis)
    return TensorType(tuple(extents), kind.dtype)
