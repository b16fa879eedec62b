"""How large windows are, where they begin, and what each of them gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import ceil, floor, prod
from typing import TypeAlias

from leanconv.graph.ir import Graph
from leanconv.planner.tiles.groups import Cutting
from leanconv.planner.tiles.margins import Margins
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
        margins: what is right in a window.
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
        """How many times as many pixels windows read as there are."""
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
    """Where the last window begins that has at least the extent that is wanted; 0 for one alone."""
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
    """From where to where all outputs are right in a window, in indices of a group's base."""
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
    """Where windows and their results begin so that results begin and end at multiples of a chunk.

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
        margin: what the next window reads again at least.

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
    """Where windows begin, as evenly as steps allow, up to the last one.

    Args:
        last: where the last one begins, a multiple of the step's unit.
        step: the most from one to the next.
    """
    if last == 0:
        return (0,)
    return (*range(0, last, step), last)
