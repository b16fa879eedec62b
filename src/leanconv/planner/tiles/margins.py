"""Which results of a window are right where it ends inside the image, and where it may begin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import lcm

from leanconv.graph.fields.axis_map import AxisMap
from leanconv.graph.fields.receptive_fields import reads_of
from leanconv.graph.fields.routes import routes
from leanconv.graph.ir import Graph, Node
from leanconv.planner.decision import Decision
from leanconv.planner.tiles.groups import Cutting, Places
from leanconv.planner.tiles.pins import Block, blocks
from leanconv.records import dataclass


@dataclass(frozen=True)
class Route:
    """One axis of a node's result that is cut, and one that it reads.

    Attributes:
        node: the node.
        output, axis: the result's.
        input, read: the operand's.
        map: from one to the other.
        block: what is computed together.
    """

    node: Node
    output: str
    axis: int
    input: str
    read: int
    map: AxisMap
    block: Block


def cut_routes(
    graph: Graph, places: Places, decisions: Sequence[Decision] | None
) -> Iterator[Route]:
    """All axes that are cut, node by node.

    Args:
        graph: of the whole image.
        places: of its values.
        decisions: how nodes are computed; None for algorithms that compute elements one by one.
    """
    for number, node in enumerate(graph.nodes):
        for result, output in enumerate(node.outputs):
            if not output:
                continue
            alike = (Block(),) * len(graph.types[output].shape)
            if decisions is not None and not result:
                alike = (Block(), Block(), *blocks(node, graph, decisions[number]))
            for name, read in reads_of(node, result, graph):
                if not places[name]:
                    continue
                to = routes(read)
                for axis in places[name]:
                    if axis in to:
                        out, made = to[axis]
                        yield Route(node, output, out, name, axis, made, alike[out])


def alignments(
    cutting: Cutting, graph: Graph, decisions: Sequence[Decision] | None
) -> tuple[int, ...]:
    """The steps, in indices of each group's base, by which windows may move.

    A step moves every value by whole elements, by whole periods of what reads them, and by whole
    blocks of what computes them.
    """
    found = [1] * len(cutting.groups)
    for axes in cutting.places.values():
        for place in axes.values():
            found[place.group] = lcm(found[place.group], place.density.denominator)
    for group, each in enumerate(cutting.groups):
        for ratio in each.ratios.values():
            found[group] = lcm(found[group], ratio.denominator)
    for route in cut_routes(graph, cutting.places, decisions):
        place = cutting.places[route.output][route.axis]
        for count in (route.map.period, route.block.outputs):
            found[place.group] = lcm(found[place.group], (place.density / count).denominator)
    return tuple(found)


Margins = Mapping[str, Mapping[int, tuple[int, int]]]
"""Of each value's axes that are cut: the first and the last element that is right."""


def margins(
    whole: Graph, window: Graph, cutting: Cutting, decisions: Sequence[Decision]
) -> Margins:
    """Which elements are right in a window that ends inside the image on all sides.

    Args:
        whole: the network for the image, whose tables of resized axes are long enough to see what
            repeats itself.
        window: the same for a window.
        cutting: what is cut.
        decisions: how nodes are computed.
    """
    found: dict[str, dict[int, tuple[int, int]]] = {
        name: {axis: (0, window.types[name].shape[axis] - 1) for axis in axes}
        for name, axes in cutting.places.items()
    }
    for route in cut_routes(whole, cutting.places, decisions):
        first, last = found[route.input][route.read]
        low, high = found[route.output][route.axis]
        low = max(low, _first_right(route.map, route.block, first))
        high = min(high, _last_right(route.map, route.block, last))
        found[route.output][route.axis] = low, high
    return found


def mirrors_wrong(graph: Graph, places: Places, right: Margins) -> bool:
    """Whether padding that mirrors a border of the image would read what is wrong in a window.

    Args:
        graph: of a window.
        places: of its values.
        right: its margins.
    """
    for node in graph.nodes:
        if node.op != "Pad" or node.attributes["mode"] != "reflect":
            continue
        x, pads = node.inputs[0], node.attributes["pads"]
        shape = graph.types[x].shape
        for axis in places[x]:
            low, high = right[x][axis]
            if high < pads[axis] or low > shape[axis] - 1 - pads[len(shape) + axis]:
                return True
    return False


def _first_right(map_: AxisMap, block: Block, first: int) -> int:
    """The first element from which on no block reads anything before `first`."""
    wrong = [
        (-((read - first) // map_.step) - 1) * map_.period + phase
        for phase, (read, last) in enumerate(zip(map_.first, map_.last, strict=True))
        if last >= read
    ]
    element = max((0, *(one + 1 for one in wrong)))
    return -(-element // block.outputs) * block.outputs


def _last_right(map_: AxisMap, block: Block, last: int) -> int:
    """The last element up to which no block reads anything behind `last`."""
    wrong = [
        ((last - read - block.beyond) // map_.step + 1) * map_.period + phase
        for phase, (first, read) in enumerate(zip(map_.first, map_.last, strict=True))
        if read >= first
    ]
    if not wrong:
        return 1 << 62
    return min(wrong) // block.outputs * block.outputs - 1
