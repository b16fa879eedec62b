"""From the network for an image to windows of it that are at least as large as is wanted.

The network of a window must be that of the whole image, moved. Files compute extents, crops and
tables from the size of their input: were these others, the result would depend on where the image
is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from math import prod
from typing import Any

import numpy as np

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph.fields.receptive_fields import InputAxis, reads_of, receptive_fields
from leanconv.graph.fields.routes import axis_table, routes
from leanconv.graph.ir import Graph, Node, is_filled
from leanconv.graph.ops import OPS, label
from leanconv.graph.ops.base import only_described
from leanconv.planner.decisions import Decision
from leanconv.planner.image_tiles.groups import Cutting, cutting
from leanconv.planner.image_tiles.windows import (
    Windows,
    alignments,
    begins_of,
    ends_of,
    last_begin,
    longest_step,
    margins,
    mirrors_wrong,
    right_range,
)
from leanconv.records import dataclass

Shapes = tuple[tuple[int, ...], ...]


class TileTooSmallError(ValueError):
    """No element of a window would be right: `needed` is the extent that works, per group."""

    def __init__(self, needed: tuple[int, ...]) -> None:
        super().__init__(needed)
        self.needed = needed


@dataclass(frozen=True, eq=False)
class Layout:
    """Windows, and how their network is computed.

    Attributes:
        windows: where they lie.
        decisions: how the nodes of their network are computed.
        steps: per group, windows begin at multiples of this.
        margins: per group, the elements of a window's extent that may be wrong.
    """

    windows: Windows
    decisions: tuple[Decision, ...]
    steps: tuple[int, ...]
    margins: tuple[int, ...]


class ImageNetwork:
    """A network for an image of one size, and its axes that can be cut.

    Args:
        bind: makes the network for the shapes of all inputs, without fused chains.
        decide: how the nodes of a window's network are computed.
        shapes: the image's.
        open_axes: the axes of inputs whose extents the file leaves open.

    Attributes:
        whole: the network for the image.
        cutting: its axes that can be cut.
        extents: the image's along these, per group.
    """

    def __init__(
        self,
        bind: Callable[[Shapes], Graph],
        decide: Callable[[Graph], tuple[Decision, ...]],
        shapes: Shapes,
        open_axes: Sequence[InputAxis],
    ) -> None:
        self._bind, self._decide, self._shapes = bind, decide, shapes
        with only_described():
            self.whole = bind(shapes)
            self.cutting: Cutting = cutting(receptive_fields(self.whole, open_axes))
        self.extents = self.cutting.extents(self.whole)

    def layout(self, wanted: Sequence[int], chunks: Sequence[int] | None = None) -> Layout:
        """Windows of at least these extents, per group, as small as their steps allow.

        Args:
            wanted: the extents.
            chunks: per group, where results of windows are to begin and end, if these are large
                enough: at multiples of this, in indices of the base; 1 for anywhere.

        Raises:
            UnsupportedError: the network does not compute the same everywhere.
            TileTooSmallError: nothing of such windows would be right.
        """
        plain = alignments(self.cutting, self.whole, None)
        graph = self._window(self._last(wanted, plain))
        decisions = self._decide(graph)
        steps = alignments(self.cutting, self.whole, decisions)
        last = self._last(wanted, steps)
        graph = self._window(last)
        right = margins(self.whole, graph, self.cutting, decisions)
        if any(last) and mirrors_wrong(graph, self.cutting.places, right):
            raise TileTooSmallError(tuple(2 * n for n in self.cutting.extents(graph)))
        begins, cuts, left = [], [], []
        for group, (end, extent) in enumerate(zip(last, self.cutting.extents(graph), strict=True)):
            most = longest_step(self.cutting, right, graph.outputs, group)
            most = most // steps[group] * steps[group]
            if end and most < steps[group]:
                raise TileTooSmallError(self._needed(right, steps, graph))
            range_ = right_range(self.cutting, right, graph.outputs, group)
            left.append(max(0, extent - (range_[1] - range_[0])))
            chunk = chunks[group] if chunks else 1
            found = ends_of(end, steps[group], range_, chunk) if end and chunk > 1 else None
            begins.append(found[0] if found else begins_of(end, most))
            cuts.append(found[1] if found else None)
        windows = Windows(self.whole, graph, self.cutting, tuple(begins), tuple(cuts), right)
        check_alike(windows)
        return Layout(windows, decisions, steps, tuple(left))

    def _last(self, wanted: Sequence[int], steps: Sequence[int]) -> list[int]:
        triples = zip(self.extents, wanted, steps, strict=True)
        return [last_begin(extent, want, step) for extent, want, step in triples]

    def _window(self, last: Sequence[int]) -> Graph:
        """The network of windows of which the last ones begin there."""
        if not any(last):
            return self.whole
        shapes = [list(shape) for shape in self._shapes]
        numbers: Mapping[str, int] = {name: n for n, name in enumerate(self.whole.inputs)}
        for group, end in zip(self.cutting.groups, last, strict=True):
            for (name, axis), ratio in group.ratios.items():
                shapes[numbers[name]][axis] -= int(end * ratio)
        try:
            graph = self._bind(tuple(map(tuple, shapes)))
        except ModelError as error:  # of which a kernel or a crop leaves nothing
            least = tuple(
                2 * (extent - end) for extent, end in zip(self.extents, last, strict=True)
            )
            raise TileTooSmallError(least) from error
        if [n.outputs for n in graph.nodes] != [n.outputs for n in self.whole.nodes]:
            # Such as one of which a crop leaves nothing.
            raise TileTooSmallError(tuple(2 * n for n in self.cutting.extents(graph)))
        return graph

    def _needed(
        self, right: Mapping[str, Mapping[int, tuple[int, int]]], steps: Sequence[int], graph: Graph
    ) -> tuple[int, ...]:
        """The least extents of windows whose results are right for one step."""
        extents = self.cutting.extents(graph)
        return tuple(
            extent + max(0, step - longest_step(self.cutting, right, graph.outputs, group))
            for group, (extent, step) in enumerate(zip(extents, steps, strict=True))
        )


# -- whether a window has the whole image's network, node by node --------------------------------
_FEW = 17  # results beside each other, from which on sums have one order: more than a vector


def check_alike(windows: Windows) -> None:
    """Refuse a network whose windows differ from the whole image.

    Args:
        windows: the network for both sizes, where windows lie, and what is right in them.

    Raises:
        UnsupportedError: naming the node.
    """
    whole, window = windows.whole, windows.window
    if [_form(node) for node in whole.nodes] != [_form(node) for node in window.nodes]:
        raise UnsupportedError(
            "the network for a tile has other nodes than the one for the whole image; expected a "
            "file that does not decide by its input's size; give another tile, or run it whole"
        )
    for node, other in zip(whole.nodes, window.nodes, strict=True):
        reason = next(_differences(node, other, windows), None)
        if reason:
            raise UnsupportedError(
                f"{label(node)} {reason}; a network is run in tiles if it computes the same "
                "everywhere; run it whole"
            )


def _form(node: Node) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    return node.op, node.inputs, node.outputs


def _differences(node: Node, other: Node, windows: Windows) -> Iterator[str]:
    whole, window, places = windows.whole, windows.window, windows.cutting.places
    op = OPS[node.op]
    for name, value in node.attributes.items():
        # Of what follows from extents these, and the routes of the axes, are compared instead.
        if name not in op.size_attributes and not _equal(value, other.attributes[name]):
            yield f"has another {name} for a tile than for the whole image"
    for name in node.inputs:
        if name in whole.constants and not _same_constant(name, whole, window):
            yield f"reads the constant {name!r}, which follows from the image's size"
    given = (name in whole.outputs for name in node.outputs[1:])
    if op.routes == "windows and places" and any(given):
        yield "gives places in the image"
    for result, output in enumerate(node.outputs):
        yield from _shape_differences(output, windows)
        pairs = zip(reads_of(node, result, whole), reads_of(other, result, window), strict=True)
        for (name, one), (_, two) in pairs:
            if places[name] and op.routes != "resized" and routes(one) != routes(two):
                yield "reads other places for a tile than for the whole image"
    yield from _table_differences(node, other, windows)
    ordered = op.reduces is not None and op.reduces[0] not in ("max", "min")
    if ordered and _columns(node, whole) != _columns(node, window):
        yield f"sums in another order in a tile of fewer than {_FEW} elements; give a larger tile"


def _shape_differences(output: str, windows: Windows) -> Iterator[str]:
    """Extents: a value reaches as far behind its windows' last one as its group's base does."""
    if not output:
        return
    types = windows.whole.types[output], windows.window.types[output]
    pairs = zip(*(kind.shape for kind in types), strict=True)
    for axis, (extent, part) in enumerate(pairs):
        place = windows.cutting.places[output].get(axis)
        moved = 0
        if place is not None:
            moved = int(windows.begins[place.group][-1] * place.density)
        if extent - moved != part:
            yield f"gives {part} elements along axis {axis} of a tile, not {extent - moved}"


def _table_differences(node: Node, other: Node, windows: Windows) -> Iterator[str]:
    """Places and weights of resized axes, which are rounded, wherever a window lies."""
    whole, window, places = windows.whole, windows.window, windows.cutting.places
    x = node.inputs[0] if OPS[node.op].routes == "resized" else ""
    for axis, source in places.get(x, {}).items():
        kind = whole.types[x].dtype
        one = axis_table(node, axis, whole.types[x].shape[axis], kind)
        two = axis_table(other, axis, window.types[x].shape[axis], kind)
        if one is None or two is None:
            continue
        density, (low, high) = places[node.key][axis].density, windows.margins[node.key][axis]
        begins = windows.begins[source.group]
        for begin in begins:
            first = low if begin else 0
            end = len(two[0]) if begin == begins[-1] else high + 1
            here = slice(first, end)
            at = int(begin * density)
            there = slice(at + first, at + end)
            if not np.array_equal(one[0][there], two[0][here] + int(begin * source.density)):
                yield "reads other places for a tile than for the whole image"
                return
            if not np.array_equal(one[1][there], two[1][here]):
                yield "weighs pixels by their place in the image, which is rounded"
                return


def _columns(node: Node, graph: Graph) -> int:
    """Elements beside each other that a reduction keeps, at most `_FEW`."""
    shape, axes = graph.types[node.inputs[0]].shape, node.attributes["axes"]
    kept = takewhile(lambda axis: axis not in axes, reversed(range(len(shape))))
    return min(_FEW, prod(shape[axis] for axis in kept))


def _equal(one: Any, other: Any) -> bool:
    same = one == other
    if isinstance(same, np.ndarray):
        return bool(np.array_equal(one, other))
    return bool(same) or (one != one and other != other)


def _same_constant(name: str, whole: Graph, window: Graph) -> bool:
    one, other = whole.constants[name], window.constants.get(name)
    if other is None:
        return False
    if one is other:
        return True
    if one.dtype != other.dtype:
        return False
    if is_filled(one) and is_filled(other):
        return bool(one.reshape(-1)[0] == other.reshape(-1)[0])
    return one.shape == other.shape and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
