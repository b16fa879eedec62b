"""Sources of all elements of a result: index maps per axis, and copy tasks made from them.

Along every axis a map is a list of `IndexRun`s, arithmetic sequences of source indices, however
long they are. Of channels in blocks, whole blocks that stay whole are copied, all others are
gathered from lanes of several blocks; blocks that gather alike but for their place are one task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from leanconv.errors import UnsupportedError
from leanconv.kernels.copy import CopyTask
from leanconv.kernels.copy_plan import CHUNK_BYTES, StridedBox, copy_tasks, cut, row_major
from leanconv.records import dataclass, replace
from leanconv.spec.format import Format, ceil_div
from leanconv.types import DType

_MOST_REFLECTIONS = 4096  # of one axis; each is code of its own


@dataclass(frozen=True)
class IndexRun:
    """Result indices `result + i` read source indices `source + i * step`, for i < count.

    A run with `source` below zero is filled with a constant instead.
    """

    result: int
    source: int
    step: int
    count: int


Segment = tuple[int, int, int]  # source, step, count, as of a run


def whole(extent: int, at: int = 0) -> list[IndexRun]:
    """Map an axis to itself, moved by `at` in the result."""
    return [IndexRun(at, 0, 1, extent)]


def runs_of(segments: Iterable[Segment]) -> list[IndexRun]:
    """The fewest runs that begin as early as they can, of source indices that follow each other.

    Args:
        segments: the indices, one sequence after the other; sources of -1 are filled.
    """
    runs: list[IndexRun] = []
    at = 0
    for source, step, count in segments:
        # The third index of a sequence belongs to a run of its step; the others then follow.
        for i in range(min(3, count)):
            _add(runs, at + i, source + i * step if source >= 0 else -1)
        if count > 3:
            runs[-1] = replace(runs[-1], count=runs[-1].count + count - 3)
        at += count
    return runs


def _add(runs: list[IndexRun], at: int, index: int) -> None:
    """Lengthen the last run by one index, or begin another one."""
    last = runs[-1] if runs else None
    if last is not None and (index < 0) == (last.source < 0):
        step = index - last.source if last.count == 1 else last.step
        if index < 0 or index == last.source + last.count * step:
            runs[-1] = IndexRun(last.result, last.source, step, last.count + 1)
            return
    runs.append(IndexRun(at, index, 1, 1))


def padded(extent: int, before: int, after: int, mode: str) -> list[IndexRun]:
    """Map a padded axis; `mode` is constant, reflect or edge.

    Raises:
        UnsupportedError: the axis is reflected too often.
    """
    if mode == "constant":
        middle = IndexRun(before, 0, 1, extent)
        ends = [IndexRun(0, -1, 0, before), IndexRun(before + extent, -1, 0, after)]
        return [run for run in (ends[0], middle, ends[1]) if run.count]
    if mode == "edge" or extent == 1:
        return runs_of([(0, 0, before), (0, 1, extent), (extent - 1, 0, after)])
    reflections = (before + after) // (extent - 1)
    if reflections > _MOST_REFLECTIONS:
        raise UnsupportedError(
            f"padding of {before} and {after} reflects an axis of {extent} {reflections} times; "
            f"expected at most {_MOST_REFLECTIONS}: pad less, or with a constant"
        )
    return runs_of(_reflected(extent, -before, extent + after))


def _reflected(extent: int, at: int, end: int) -> Iterator[Segment]:
    """The indices of positions at … end - 1 of an axis that is reflected at both ends."""
    period = 2 * (extent - 1)
    while at < end:
        around = at % period
        if around < extent:
            source, step, count = around, 1, extent - around
        else:
            source, step, count = period - around, -1, period - around
        count = min(count, end - at)
        yield source, step, count
        at += count


ChannelRun = tuple[int, IndexRun]  # an operand, and its channels in their order in the result
Channel = tuple[int, int] | None  # operand and channel in it; None is filled


@dataclass(frozen=True)
class ChannelBlocks:
    """Result blocks `first … first + count - 1`, which gather the same lanes.

    Attributes:
        first, count: which result blocks.
        operands: the source of each term.
        sources, steps: of each term, the block that the first result block reads, and how far the
            next one's is.
        picks: of each term and result lane, the source lane or -1; empty if blocks stay whole.
    """

    first: int
    count: int
    operands: tuple[int, ...]
    sources: tuple[int, ...]
    steps: tuple[int, ...]
    picks: tuple[tuple[int, ...], ...]


def _block_terms(channels: Sequence[Channel], block: int) -> ChannelBlocks:
    """Return the lanes of source blocks that one result block gathers."""
    terms: dict[tuple[int, int], list[int]] = {}
    for lane, channel in enumerate(channels):
        if channel is not None:
            operand, c = channel
            terms.setdefault((operand, c // block), [-1] * block)[lane] = c % block
    picks = tuple(tuple(lanes) for lanes in terms.values())
    stays = len(terms) == 1 and all(p in (-1, i) for i, p in enumerate(picks[0]))
    if stays and None not in channels:
        picks = ()
    operands, sources = tuple(o for o, _ in terms), tuple(b for _, b in terms)
    return ChannelBlocks(0, 1, operands, sources, (0,) * len(terms), picks)


def channel_blocks(channels: Sequence[ChannelRun], block: int) -> list[ChannelBlocks]:
    """Group the blocks of a result whose channels come from anywhere.

    Blocks inside a run differ in their place only: they are looked at no further than it takes to
    see how far apart they are.
    """
    groups: list[ChannelBlocks] = []
    expanded: list[Channel] = []  # of the block that is not whole yet
    for operand, run in channels:
        done = 0
        while done < run.count:
            taken = min(run.count - done, block - len(expanded))
            expanded += _expanded(operand, run, done, taken)
            done += taken
            if len(expanded) == block:
                _add_block(groups, expanded, block)
                expanded = []
                inside = (run.count - done) // block
                if done >= 3 * block and inside:  # the last two blocks were inside the run
                    groups[-1] = replace(groups[-1], count=groups[-1].count + inside)
                    done += inside * block
    if expanded:
        _add_block(groups, expanded, block)
    return groups


def _expanded(operand: int, run: IndexRun, first: int, count: int) -> list[Channel]:
    if run.source < 0:
        return [None] * count
    return [(operand, run.source + i * run.step) for i in range(first, first + count)]


def _add_block(groups: list[ChannelBlocks], channels: Sequence[Channel], block: int) -> None:
    """Lengthen the last group by a block, or begin another one."""
    new = _block_terms(channels, block)
    last = groups[-1] if groups else None
    if last is not None and (last.operands, last.picks) == (new.operands, new.picks):
        steps = last.steps
        if last.count == 1:
            steps = tuple(b - a for a, b in zip(last.sources, new.sources, strict=True))
        reached = (a + last.count * s for a, s in zip(last.sources, steps, strict=True))
        if tuple(reached) == new.sources:
            groups[-1] = replace(last, count=last.count + 1, steps=steps)
            return
    first = last.first + last.count if last else 0
    groups.append(replace(new, first=first))


Shape = tuple[int, ...]


Corner = tuple[list[int], list[int], list[int], list[int], bool]


def _corners(maps: Sequence[Sequence[IndexRun]]) -> Iterator[Corner]:
    """All combinations of runs: counts, sources, steps, results, and whether it is filled.

    Behind an axis that is filled the others are taken whole, so that borders are few.
    """
    if not maps:
        yield [], [], [], [], False
        return
    head, *tail = maps
    for run in head:
        if run.source < 0:
            rest = [
                IndexRun(min(r.result for r in runs), 0, 0, sum(r.count for r in runs))
                for runs in tail
            ]
            cells = [run, *rest]
            zeros = [0] * len(cells)
            yield [r.count for r in cells], zeros, zeros, [r.result for r in cells], True
            continue
        for counts, sources, steps, results, filled in _corners(tail):
            yield (
                [run.count, *counts],
                [run.source, *sources],
                [run.step, *steps],
                [run.result, *results],
                filled,
            )


def _dot(a: Sequence[int], b: Sequence[int]) -> int:
    return sum(x * y for x, y in zip(a, b, strict=True))


def plain_boxes(
    operand: int,
    source_strides: Shape,
    result_strides: Shape,
    maps: Sequence[Sequence[IndexRun]],
    value: float = 0.0,
) -> list[StridedBox]:
    """Boxes of a plain result, or of a part of it.

    Args:
        operand: index of the source.
        source_strides: for each axis of the result, the stride of the source's axis it reads.
        result_strides: in elements.
        maps: for each axis of the result.
        value: what filled runs hold.
    """
    return [
        StridedBox(
            -1 if filled else operand,
            tuple(counts),
            tuple(step * s for step, s in zip(steps, source_strides, strict=True)),
            result_strides,
            _dot(sources, source_strides),
            _dot(results, result_strides),
            value,
        )
        for counts, sources, steps, results, filled in _corners(maps)
    ]


def blocked_tasks(
    shapes: Sequence[Shape],
    result_shape: Shape,
    block: int,
    channels: Sequence[ChannelRun],
    maps: Sequence[Sequence[IndexRun]],
    dtype: DType,
    value: float = 0.0,
    perm: Sequence[int] | None = None,
) -> list[CopyTask]:
    """Pieces of a blocked result, or of a part of it.

    Args:
        shapes: logical shape of every source; all are blocked.
        result_shape: logical shape of the result.
        block: channels in a block.
        channels: where the channels of the result come from, run by run.
        maps: for every axis of the result but the channels.
        dtype: of the elements.
        value: what filled runs and channels hold.
        perm: the source's axis that each axis of the result reads; the channels stay second.
    """
    order = [axis for axis in (perm or range(len(result_shape))) if axis != 1]
    strides = [row_major(Format(block).physical_shape(shape)) for shape in shapes]
    result = row_major(Format(block).physical_shape(result_shape))
    around = [result[axis] for axis in range(len(result_shape)) if axis != 1]
    groups = channel_blocks(channels, block)
    count = sum(run.count for _, run in channels)
    tasks: list[CopyTask] = []
    for counts, sources, steps, results, filled in _corners(maps):
        start = _dot(results, around)
        if filled:
            extents = (*counts, ceil_div(count, block), block)
            where = (*around, result[1], 1)
            tasks += copy_tasks(StridedBox(-1, extents, where, where, 0, start, value), dtype)
            continue
        for group in groups:
            term_strides = [
                (
                    *(step * strides[o][axis] for step, axis in zip(steps, order, strict=True)),
                    block_step * strides[o][1],
                )
                for o, block_step in zip(group.operands, group.steps, strict=True)
            ]
            offsets = [
                sum(s * strides[o][axis] for s, axis in zip(sources, order, strict=True))
                + first * strides[o][1]
                for o, first in zip(group.operands, group.sources, strict=True)
            ]
            tasks += _group_tasks(
                group,
                (*counts, group.count),
                term_strides,
                offsets,
                (*around, result[1]),
                start + group.first * result[1],
                block,
                dtype,
                value,
            )
    return tasks


def _group_tasks(
    group: ChannelBlocks,
    extents: Shape,
    strides: list[Shape],
    offsets: list[int],
    result_strides: Shape,
    result: int,
    block: int,
    dtype: DType,
    value: float,
) -> list[CopyTask]:
    """Pieces of one group of blocks: a fill, whole blocks, or gathered lanes."""
    if not group.operands or not group.picks:
        operand = group.operands[0] if group.operands else -1
        box = StridedBox(
            operand,
            (*extents, block),
            (*strides[0], 1) if group.operands else (*result_strides, 1),
            (*result_strides, 1),
            offsets[0] if group.operands else 0,
            result,
            value,
        )
        return copy_tasks(box, dtype)
    if 0 in extents:
        return []
    kept = sorted(
        (axis for axis, extent in enumerate(extents) if extent > 1),
        key=lambda axis: -result_strides[axis],
    )
    streams = [*strides, result_strides]
    task = CopyTask(
        "lanes",
        tuple(extents[axis] for axis in kept),
        group.operands,
        tuple(tuple(s[axis] for axis in kept) for s in streams),
        (*offsets, result),
        value,
        group.picks,
    )
    return [cut(_joined(task), CHUNK_BYTES // dtype.bytes)]


def _joined(task: CopyTask) -> CopyTask:
    """Join neighbouring axes that every stream walks as one."""
    extents, strides = list(task.extents), [list(s) for s in task.strides]
    for axis in reversed([outer for outer, _ in pairwise(range(len(extents)))]):
        if all(s[axis] == extents[axis + 1] * s[axis + 1] for s in strides):
            extents[axis : axis + 2] = [extents[axis] * extents[axis + 1]]
            for s in strides:
                del s[axis]
    return CopyTask(
        task.body,
        tuple(extents),
        task.operands,
        tuple(tuple(s) for s in strides),
        task.offsets,
        task.value,
        task.picks,
    )
