"""From boxes of elements to the tasks of a copy kernel: merge, order, choose a body, cut.

A box says only where its elements are read and written; `copy_tasks` decides how they are moved.
"""

from __future__ import annotations

from math import prod

from leanconv.kernels.copy import BODY_EXTENTS, WHOLE, Body, CopyTask
from leanconv.records import dataclass, replace
from leanconv.spec.format import ceil_div
from leanconv.symbolic import least
from leanconv.types import DType

CHUNK_BYTES = 256 * 1024  # read and written in 5 to 15 us
_TILE_GRAIN = 16  # cuts of transposed extents keep whole vectors on every target
_TILE_ACROSS = 256
_LEAST_CUT = 512  # elements of a run in two chunks at least, as larger ones are: one code


@dataclass(frozen=True)
class StridedBox:
    """Elements to move from one operand, or to fill.

    Attributes:
        operand: index of the source; -1 fills with `value`.
        extents: of the box, in any order.
        source_strides, result_strides: in elements.
        source, result: offsets of the first element.
        value: what to fill with.
        slack, zeros: as in `CopyTask`.
    """

    operand: int
    extents: tuple[int, ...]
    source_strides: tuple[int, ...]
    result_strides: tuple[int, ...]
    source: int = 0
    result: int = 0
    value: float = 0.0
    slack: int = 0
    zeros: int = 0


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in elements of a dense array."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


Axis = tuple[int, int, int]  # extent, stride in the source, stride in the result


def _merged(box: StridedBox) -> list[Axis]:
    """Axes with the largest result stride first, extents of one dropped, neighbours joined."""
    axes = [
        (n, s if box.operand >= 0 else 0, r)
        for n, s, r in zip(box.extents, box.source_strides, box.result_strides, strict=True)
        if n > 1
    ]
    axes.sort(key=lambda axis: -abs(axis[2]))
    joined: list[Axis] = []
    for n, s, r in axes:
        if joined and joined[-1][2] == n * r and (joined[-1][1] == n * s or box.operand < 0):
            joined[-1] = (joined[-1][0] * n, s, r)
        else:
            joined.append((n, s, r))
    return joined


def _body(box: StridedBox, axes: list[Axis]) -> tuple[Body, list[Axis]]:
    """Choose the body and move its axes to the end."""
    writes = next((axis for axis in axes if axis[2] == 1), None)
    reads = next((axis for axis in axes if axis[1] == 1), None)
    if box.operand < 0:
        inner = writes or (1, 0, 1)
        return "fill", [*(axis for axis in axes if axis is not writes), inner]
    if writes is None:
        inner = axes[-1] if axes else (1, 1, 1)
        return "scalar" if axes else "run", [*axes[:-1], inner]
    outer = [axis for axis in axes if axis is not writes]
    if writes[1] in (0, 1, -1):
        return "run", [*outer, writes]
    if reads is not None:
        return "tile", [*(axis for axis in outer if axis is not reads), writes, reads]
    return "scalar", [*outer, writes]


def copy_tasks(box: StridedBox, dtype: DType) -> list[CopyTask]:
    """The task that does a box's work in chunks of at most about `CHUNK_BYTES`.

    None for an empty box. What is copied run by run has two chunks where one would do.
    """
    if 0 in box.extents:
        return []
    body, axes = _body(box, _merged(box))
    operands = (box.operand,) if box.operand >= 0 else ()
    offsets = (box.source, box.result) if operands else (box.result,)
    task = CopyTask(
        body,
        tuple(n for n, _, _ in axes),
        0,
        operands,
        (tuple(s for _, s, _ in axes), tuple(r for _, _, r in axes))[1 - len(operands) :],
        offsets,
        box.value,
        slack=box.slack,
        zeros=box.zeros,
    )
    budget, work = CHUNK_BYTES // dtype.bytes, prod(task.extents)
    if body == "run" and work >= _LEAST_CUT:
        budget = least(budget, ceil_div(work, 2))
    return [cut(task, budget)]


def _part(length: int, room: int, grain: int = 1) -> int:
    """A part of a length, at most `room`, in whole grains; one that leaves no rest if possible."""
    parts = ceil_div(length, max(1, room // grain) * grain)
    most = min(2 * parts, length)  # parts are no more than that
    if parts * grain <= room:
        for more in range(parts, most):
            if length % (more * grain) == 0:
                return length // more
    else:  # their sizes are fewer than their numbers
        for part in range(length // parts // grain * grain, length // most, -grain):
            if length % part == 0:
                return part
    return min(length, ceil_div(ceil_div(length, parts), grain) * grain)


def cut(task: CopyTask, budget: int) -> CopyTask:
    """Cut a task so that each chunk moves at most about `budget` elements."""
    inner = len(task.extents) - BODY_EXTENTS[task.body]
    if task.body == "tile":
        across, along = task.extents[inner:]
        along = _part(along, budget // min(across, _TILE_ACROSS), _TILE_GRAIN)
        across = _part(across, budget // along, _TILE_GRAIN)
        parts = {inner + 1: along, inner: across}
    else:
        axes = range(inner, len(task.extents))
        parts = {axis: _part(task.extents[axis], budget) for axis in axes}
    rank, task = len(task.extents), replace(task, steps=(WHOLE,) * inner)
    for axis, part in parts.items():
        task = _split(task, axis - rank, part)
    return _spread(task, budget)


def _split(task: CopyTask, axis: int, part: int) -> CopyTask:
    """Cut an axis (counted from the end) in parts; which part becomes an axis before the body.

    The last part overlaps the one before it where parts do not divide the axis.
    """
    axis += len(task.extents)
    length, extents = task.extents[axis], list(task.extents)
    if length == part:
        return task
    at = min(axis, len(task.extents) - BODY_EXTENTS[task.body])
    extents[axis] = part
    return replace(
        task,
        extents=(*extents[:at], ceil_div(length, part), *extents[at:]),
        strides=tuple((*s[:at], s[axis], *s[at:]) for s in task.strides),
        steps=(*task.steps[:at], (part, length - part), *task.steps[at:]),
    )


def _spread(task: CopyTask, budget: int) -> CopyTask:
    """Loop inside a chunk over what fits the budget, and spread the axes before over chunks."""
    inner = len(task.extents) - BODY_EXTENTS[task.body]
    work = prod(task.extents[inner:]) * (len(task.picks[0]) if task.picks else 1)
    for axis in reversed(range(inner)):
        part = _part(task.extents[axis], budget // work)
        if part < task.extents[axis]:
            if part > 1 and task.steps[axis] == WHOLE:
                task = _split(task, axis - len(task.extents), part)
            return replace(task, grid=axis + 1)
        work *= part
    return task
