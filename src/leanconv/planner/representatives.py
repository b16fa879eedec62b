"""Sizes that stand for a range of sizes, and what is found for one size and holds for others.

How a node of open extents is computed is chosen as for the representative of its sizes: a new shape
of the network chooses nothing and needs hardly any new code, and what a shape's bits are does not
depend on the shapes before it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from math import prod
from typing import TypeVar

from leanconv.errors import LeanConvError
from leanconv.graph.ir import Graph, Node, Origin, TensorType
from leanconv.graph.ops import infer_node
from leanconv.spec.typical import input_side, representative
from leanconv.symbolic import Made, Memo, Trace, fixed

_TIMES = (1, 16)  # as many, where windows are longer than a representative


def usual_graph(graph: Graph) -> Graph | None:
    """The network at a size that stands for all of a range, this one among them.

    None where that is unknown: sizes are fixed, or the network does not take the other size.
    """
    origin = graph.origin
    if origin is None or not origin.is_whole:
        return None
    return origin.at(usual_extents(origin))


def usual_extents(origin: Origin) -> tuple[int, ...]:
    """Those that stand for the open extents of a network's inputs.

    One size for all but batches: how a layer is computed best depends on its pixels more than on
    their shape, and few sizes mean few searches.
    """
    sides = [extent for extent, axis in origin.extents if axis]
    usual = input_side(prod(sides), len(sides))
    return tuple(usual if axis else representative(n, axis) for n, axis in origin.extents)


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


# -- what planning finds, remembered for all shapes that answer alike ----------------------------
_Result = TypeVar("_Result")
_MOST_KEPT = 16  # of one question; sizes that answer in more ways are asked one by one


def remembered(graph: Graph, key: Hashable, make: Callable[[Graph], _Result]) -> _Result:
    """`make(graph)`, or what it made of a graph that was filled in from the same one with symbols.

    Args:
        graph: the network for one shape.
        key: what is asked, and all that the answer depends on besides the graph.
        make: what it makes must hold no extents; it is asked of the graph with symbols, too.
    """
    origin = graph.origin
    if origin is None or not origin.is_whole:
        return make(graph)
    memo: Memo[tuple[_Result]] = origin.memo.setdefault(key, Memo(_MOST_KEPT))
    known = memo.at(origin.values)
    if known is not None:
        return known[0]
    found = make(graph)
    if not memo.full:
        trace = Trace()

        def alike() -> Made[tuple[_Result]] | None:
            same = make(origin.symbolic(trace)) == found
            return Made((found,), trace.guards) if same else None

        memo.attempt("what is chosen for this shape is found", alike)
    return found
