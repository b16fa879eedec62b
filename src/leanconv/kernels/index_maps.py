"""Where every element of a result comes from: index maps per axis, and from them copy tasks.

Along every axis a map is a list of `IndexRun`s. Of channels in blocks, whole blocks that stay whole
are copied, all others are gathered from lanes of several blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from leanconv.kernels.channel_blocks import ChannelBlocks, ChannelRun, channel_blocks
from leanconv.kernels.copy import CopyTask
from leanconv.kernels.copy_plan import CHUNK_BYTES, StridedBox, copy_tasks, cut, row_major
from leanconv.kernels.index_runs import IndexRun
from leanconv.spec.format import Format, ceil_div
from leanconv.types import DType

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
