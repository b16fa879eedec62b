"""From boxes of elements to the tasks of a copy kernel: merge, order, choose a body, cut.

A box says only where its elements are read and written; `copy_tasks` decides how they are moved.
"""

from __future__ import annotations

from math import prod

from leanconv.kernels.copy import BODY_EXTENTS, Body, CopyTask
from leanconv.records import dataclass, replace
from leanconv.spec.format import ceil_div
from leanconv.symbolic import least, most
from leanconv.types import DType

CHUNK_BYTES = 256 * 1024  # read and written in 5 to 15 us
_GRAIN = 16  # parts of what vectors run along are whole vectors of floats on every target
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
    """A part of a length, at most `room`, in whole grains; parts are as equal as that allows."""
    pieces = ceil_div(length, most(1, room // grain) * grain)
    part: int = least(length, ceil_div(ceil_div(length, pieces), grain) * grain)
    return part


def cut(task: CopyTask, budget: int) -> CopyTask:
    """Cut a task so that each chunk moves at most about `budget` elements.

    One code serves all sizes: how much of each extent a chunk has are numbers, not loops.
    """
    parts, inner = list(task.extents), len(task.extents) - BODY_EXTENTS[task.body]
    if task.body == "tile":
        across, along = parts[inner:]
        along = _part(along, budget // least(across, _TILE_ACROSS), _GRAIN)
        parts[inner:] = [_part(across, budget // along, _GRAIN), along]
    else:
        parts[inner:] = [_part(extent, budget, _GRAIN) for extent in parts[inner:]]
    work = prod(parts[inner:]) * (len(task.picks[0]) if task.picks else 1)
    for axis in reversed(range(inner)):
        parts[axis] = _part(parts[axis], budget // work)
        work *= parts[axis]
    return replace(task, parts=tuple(parts))
