"""What a network's planning finds for one shape, remembered for all shapes that answer alike."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

from leanconv.graph.ir import Graph
from leanconv.symbolic import Trace, attempted, guarded, tell

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
    kept = origin.memo.setdefault(key, [])
    for fits, result in kept:
        if fits(origin.values) is not None:
            known: _Result = result
            return known
    found = make(graph)
    if len(kept) < _MOST_KEPT:
        trace = Trace()
        alike = attempted(lambda: make(origin.symbolic(trace)) == found)
        if isinstance(alike, Exception):
            tell("what is chosen for this shape is found", alike)
        elif alike:
            kept.append((guarded(trace.guards, ()), found))
    return found
