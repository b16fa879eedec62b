"""Windows of an image: their sizes and begins, and which elements of their results are right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import ceil, floor, lcm, prod
from typing import TypeAlias

from leanconv.graph.fields.axis_map import AxisMap
from leanconv.graph.fields.receptive_fields import reads_of
from leanconv.graph.fields.routes import routes
from leanconv.graph.ir import Graph, Node
from leanconv.planner.decisions import Decision
from leanconv.planner.image_tiles.groups import Block, Cutting, Places, blocks
from leanconv.records import cached_property, dataclass

Index: TypeAlias = tuple[slice, ...]


@dataclass(frozen=True, eq=False)
class Tile:
    """One window.

    Attributes:
        number: in the order in which they run.
        reads: of each input, the part that is read.
        writes: of each output, the part that is written.
        gives: of each output, the same part in the window's own result.
    """

    number: int
    reads: Mapping[str, Index]
    writes: Mapping[str, Index]
    gives: Mapping[str, Index]


@dataclass(frozen=True, eq=False)
class Windows:
    """All windows of one image.

    Attributes:
        whole, window: the network for the image, and for each of its windows.
        cutting: the axes that are cut.
        begins: of each group, where windows begin in indices of its base; the first is 0, and the
            last one ends where the image ends.
        cuts: of each group, where the results of windows begin, in indices of its base; None where
            each output has them begin as early as it can.
        margins: the ranges of right elements in a window.
    """

    whole: Graph
    window: Graph
    cutting: Cutting
    begins: tuple[tuple[int, ...], ...]
    cuts: tuple[tuple[int, ...] | None, ...]
    margins: Margins

    @property
    def count(self) -> int:
        """The number of windows."""
        return prod(len(each) for each in self.begins)

    @cached_property
    def overlap(self) -> float:
        """Pixels that all windows read, over those of the image."""
        window, whole = self.cutting.extents(self.window), self.cutting.extents(self.whole)
        return prod(
            len(begins) * part / max(1, extent)
            for begins, part, extent in zip(self.begins, window, whole, strict=True)
        )

    def tiles(self) -> Iterator[Tile]:
        """All windows, the last axis of the inputs first."""
        numbers = product(*(range(len(each)) for each in self.begins))
        for number, chosen in enumerate(numbers):
            reads = {name: self._input_part(name, chosen) for name in self.whole.inputs}
            parts = {name: self._output_part(name, chosen) for name in self.whole.outputs}
            yield Tile(
                number,
                reads,
                {name: writes for name, (writes, _) in parts.items()},
                {name: gives for name, (_, gives) in parts.items()},
            )

    def _input_part(self, name: str, chosen: Sequence[int]) -> Index:
        found = []
        for axis, extent in enumerate(self.window.types[name].shape):
            place, begin = self.cutting.places[name].get(axis), 0
            if place is not None:
                begin = int(self.begins[place.group][chosen[place.group]] * place.density)
            found.append(slice(begin, begin + extent))
        return tuple(found)

    def _output_part(self, name: str, chosen: Sequence[int]) -> tuple[Index, Index]:
        writes, gives = [], []
        for axis, extent in enumerate(self.whole.types[name].shape):
            place = self.cutting.places[name].get(axis)
            begin, first, end = 0, 0, extent
            if place is not None:
                number, low = chosen[place.group], self.margins[name][axis][0]
                begins = [int(begin * place.density) for begin in self.begins[place.group]]
                cuts = [begin + low for begin in begins]
                cut = self.cuts[place.group]
                if cut is not None:
                    cuts = [int(each * place.density) for each in cut]
                begin = begins[number]
                first = cuts[number] if number else 0
                if number + 1 < len(begins):
                    end = cuts[number + 1]
            writes.append(slice(first, end))
            gives.append(slice(first - begin, end - begin))
        return tuple(writes), tuple(gives)


def last_begin(extent: int, wanted: int, step: int) -> int:
    """Return the begin of the last window, with at least the extent wanted; 0 for one alone."""
    return max(0, (extent - wanted) // step * step)


def longest_step(cutting: Cutting, margins: Margins, outputs: Sequence[str], group: int) -> int:
    """The most by which the next window of a group may begin behind one; below 1 if none may."""
    steps = [
        floor((margins[name][axis][1] + 1 - margins[name][axis][0]) / place.density)
        for name in outputs
        for axis, place in cutting.places[name].items()
        if place.group == group
    ]
    return min(steps, default=1 << 62)


def right_range(
    cutting: Cutting, margins: Margins, outputs: Sequence[str], group: int
) -> tuple[int, int]:
    """The range in which all outputs of a window are right, in indices of a group's base."""
    first, last = 0, 1 << 62
    for name in outputs:
        for axis, place in cutting.places[name].items():
            if place.group == group:
                low, high = margins[name][axis]
                first = max(first, ceil(low / place.density))
                last = min(last, floor((high + 1) / place.density))
    return first, last


def ends_of(
    last: int, step: int, right: tuple[int, int], chunk: int
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return where windows begin, and where results do: at multiples of a chunk.

    Args:
        last: where the last window begins.
        step: windows begin at its multiples.
        right: from where to where a window is right.
        chunk: the multiple.

    Returns:
        Both; None if windows are too small for a chunk.
    """
    move = (right[1] - right[0] - step + 1) // chunk * chunk
    if move < chunk:
        return None
    cuts = tuple(range(0, last + right[0] + move, move))
    inner = (max(0, cut - right[0]) // step * step for cut in cuts[1:-1])
    return (0, *inner, last), cuts


def fewest_read_twice(extent: int, wanted: int, step: int, margin: int) -> tuple[int, int]:
    """Windows of at most about the extent that is wanted of which the least is read twice.

    Windows of one extent cover an axis, and all but the last one move equally far: of an extent
    that fits badly, the last one reads most of what the one before it has read.

    Args:
        extent: of the axis.
        wanted: of windows.
        step: windows begin at its multiples.
        margin: elements that the next window reads again at least.

    Returns:
        The extent of windows, and how many there are.
    """
    most = (extent - margin) // step  # steps, of the last window's begin and of its own move
    fewest = max(1, -(-extent // max(1, wanted)))
    if most < 1 or fewest == 1:
        return extent, 1
    counts = range(fewest, 2 * fewest + 1)
    found = [(extent - (count - 1) * most // count * step, count) for count in counts]
    small = [each for each in found if each[0] <= wanted] or found[-1:]
    return min(small, key=lambda each: each[0] * each[1])


def begins_of(last: int, step: int) -> tuple[int, ...]:
    """Return where windows begin, as evenly as steps allow, up to the last one.

    Args:
        last: where the last one begins, a multiple of the step's unit.
        step: the most from one to the next.
    """
    if last == 0:
        return (0,)
    return (*range(0, last, step), last)


# -- results that are right where a window ends inside the image ---------------------------------
@dataclass(frozen=True)
class Route:
    """One axis of a node's result that is cut, and one that it reads.

    Attributes:
        node: the node.
        output, axis: the result's.
        input, read: the operand's.
        map: from one to the other.
        block: elements that are computed together.
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
    """Return the ranges of right elements in a window that ends inside the image on all sides.

    Args:
        whole: the network for the image, whose tables of resized axes are long enough to see what
            repeats itself.
        window: the same for a window.
        cutting: the axes that are cut.
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
    """Return whether padding that mirrors the image's border would read wrong elements.

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
