"""What a network's planning finds for one shape, remembered for all shapes that answer alike."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

from leanconv.graph.ir import Graph
from leanconv.symbolic import Made, Memo, Trace

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
    if origin is None or origin.nodes is not graph.nodes:
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
