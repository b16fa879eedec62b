"""From the network for an image to windows of it that are at least as large as is wanted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from leanconv.errors import ModelError
from leanconv.graph.fields.receptive_fields import InputAxis, receptive_fields
from leanconv.graph.ir import Graph
from leanconv.planner.decision import Decision
from leanconv.planner.tiles.groups import Cutting, cutting
from leanconv.planner.tiles.likeness import check_alike
from leanconv.planner.tiles.margins import alignments, margins, mirrors_wrong
from leanconv.planner.tiles.windows import Windows, begins_of, last_begin, longest_step
from leanconv.records import dataclass

Shapes = tuple[tuple[int, ...], ...]


class TileTooSmallError(ValueError):
    """Nothing of a window would be right: `needed` is the extent that works, per group."""

    def __init__(self, needed: tuple[int, ...]) -> None:
        super().__init__(needed)
        self.needed = needed


@dataclass(frozen=True, eq=False)
class Layout:
    """Windows, and how their network is computed."""

    windows: Windows
    decisions: tuple[Decision, ...]


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
        self.whole = bind(shapes)
        self.cutting: Cutting = cutting(receptive_fields(self.whole, open_axes))
        self.extents = self.cutting.extents(self.whole)

    def layout(self, wanted: Sequence[int]) -> Layout:
        """Windows of at least these extents, per group, as small as their steps allow.

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
        begins = []
        for group, end in enumerate(last):
            most = longest_step(self.cutting, right, graph.outputs, group)
            most = most // steps[group] * steps[group]
            if end and most < steps[group]:
                raise TileTooSmallError(self._needed(right, steps, graph))
            begins.append(begins_of(end, most))
        windows = Windows(self.whole, graph, self.cutting, tuple(begins), right)
        check_alike(windows)
        return Layout(windows, decisions)

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
