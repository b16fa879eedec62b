"""From boxes of elements to the tasks of a copy kernel: merge, order, choose a body, cut.

A box says only where its elements are read and written; `copy_tasks` decides how they are moved.
`reorder` and its like are the copies from plain row-major to blocks of channels and back.
"""

from __future__ import annotations

from math import prod

import numpy as np
import numpy.typing as npt

from leanconv.codegen.lowered import Call
from leanconv.errors import SpecError
from leanconv.kernels.copy import BODY_EXTENTS, Body, Copy, CopyTask
from leanconv.records import dataclass, replace
from leanconv.spec.format import Format, ceil_div
from leanconv.symbolic import least, most
from leanconv.types import DType
from leanconv.units import shape_text

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


def reorder(
    shape: tuple[int, ...], dtype: DType, source_format: Format, result_format: Format
) -> Copy:
    """Return the kernel that moves a tensor (N, C, spatial…) from one format to another.

    Lanes past the last channel are written as zeros. Squares of channels by positions are
    transposed in registers.

    Raises:
        SpecError: both formats are blocked, with different blocks, or the rank is below 2.
    """
    block = source_format.block or result_format.block
    if len(shape) < 2 or {source_format.block, result_format.block} - {0, block}:
        raise SpecError(
            f"reorder of shape {shape_text(shape)} from {source_format} to {result_format}: "
            "expected a tensor (N, C, ...) and at most one size of block; go through the plain "
            "format"
        )
    if source_format == result_format:
        elements = source_format.elements(shape)
        boxes = [StridedBox(0, (elements,), (1,), (1,))]
    elif block:
        boxes = _block_boxes(shape, block, source_format, result_format)
    else:
        n, c, *spatial = shape
        area = prod(spatial)
        orders = {"NCHW": (c * area, area, 1), "NHWC": (c * area, 1, c)}
        strides = orders[source_format.order], orders[result_format.order]
        boxes = [StridedBox(0, (n, c, area), *strides)]
    return Copy(dtype, 1, tuple(task for box in boxes for task in copy_tasks(box, dtype)))


def _block_boxes(
    shape: tuple[int, ...], block: int, source_format: Format, result_format: Format
) -> list[StridedBox]:
    """Return the boxes to move into or out of blocks: whole blocks, the rest, unused lanes."""
    n, c, *spatial = shape
    area, full, rest = prod(spatial), c // block, c % block
    blocking = bool(result_format.block)
    last = (source_format if blocking else result_format).order == "NHWC"
    other = (c * area, block, c, 1) if last else (c * area, block * area, 1, area)
    blocked = ((full + bool(rest)) * area * block, area * block, block, 1)
    other_tail, tail = full * block if last else full * block * area, full * block * area
    strides = (other, blocked) if blocking else (blocked, other)
    boxes = [StridedBox(0, (n, full, area, block), *strides)]
    if rest:
        unused = block - rest
        # With one position there is nothing to transpose: zeros are then written on their own.
        boxes.append(
            StridedBox(
                0,
                (n, 1, area, rest),
                *strides,
                *((other_tail, tail) if blocking else (tail, other_tail)),
                slack=0 if last or blocking or area == 1 else unused,
                zeros=unused if not last and blocking and area > 1 and rest > 1 else 0,
            )
        )
        if blocking and not boxes[-1].zeros:
            ends = (n, 1, area, unused)
            boxes.append(StridedBox(-1, ends, blocked, blocked, 0, tail + rest))
    return boxes


def reorder_call(
    shape: tuple[int, ...],
    dtype: DType,
    source: str,
    result: str,
    source_format: Format,
    result_format: Format,
) -> Call:
    """Reorder the value `source` into the value `result`; see `reorder`."""
    return Call(reorder(shape, dtype, source_format, result_format), (source, result))


def to_format(array: npt.NDArray[np.floating], form: Format) -> npt.NDArray[np.floating]:
    """A constant (N, C, spatial…) as its bytes are in a format, unused lanes zero."""
    if not form.block:
        return np.ascontiguousarray(array.transpose(form.axes(array.ndim)))
    n, blocks, *spatial, lanes = form.physical_shape(array.shape)
    widths = [(0, 0), (0, blocks * lanes - array.shape[1])] + [(0, 0)] * len(spatial)
    whole = np.pad(array, widths).reshape(n, blocks, lanes, *spatial)
    return np.ascontiguousarray(np.moveaxis(whole, 2, -1))
