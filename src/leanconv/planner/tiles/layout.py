"""From the network for an image to windows of it that are at least as large as is wanted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from leanconv.errors import ModelError
from leanconv.graph.fields.receptive_fields import InputAxis, receptive_fields
from leanconv.graph.ir import Graph
from leanconv.graph.ops.base import only_described
from leanconv.planner.decision import Decision
from leanconv.planner.tiles.groups import Cutting, cutting
from leanconv.planner.tiles.likeness import check_alike
from leanconv.planner.tiles.margins import alignments, margins, mirrors_wrong
from leanconv.planner.tiles.windows import (
    Windows,
    begins_of,
    ends_of,
    last_begin,
    longest_step,
    right_range,
)
from leanconv.records import dataclass

Shapes = tuple[tuple[int, ...], ...]


class TileTooSmallError(ValueError):
    """Nothing of a window would be right: `needed` is the extent that works, per group."""

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
        margins: per group, what of a window's extent may be wrong.
    """

    windows: Windows
    decisions: tuple[Decision, ...]
    steps: tuple[int, ...]
    margins: tuple[int, ...]


class ImageNetwork:
    """A network for an image of one size, and what of it can be cut.

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
        """Extents of windows of which one step is right."""
        extents = self.cutting.extents(graph)
        return tuple(
            extent + max(0, step - longest_step(self.cutting, right, graph.outputs, group))
            for group, (extent, step) in enumerate(zip(extents, steps, strict=True))
        )
