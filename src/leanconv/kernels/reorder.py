"""From plain row-major to blocks of channels and back."""

from __future__ import annotations

from math import prod

import numpy as np
import numpy.typing as npt

from leanconv.codegen.lowered import Call
from leanconv.errors import SpecError
from leanconv.kernels.copy import Copy
from leanconv.kernels.copy_plan import StridedBox, copy_tasks
from leanconv.spec.format import Format
from leanconv.types import DType
from leanconv.units import shape_text


def reorder(
    shape: tuple[int, ...], dtype: DType, source_format: Format, result_format: Format
) -> Copy:
    """The kernel that moves a tensor (N, C, spatial…) from one format to another.

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
        return Copy(dtype, 1, tuple(copy_tasks(StridedBox(0, (elements,), (1,), (1,)), dtype)))
    n, c, *spatial = shape
    area, full, rest = prod(spatial), c // block, c % block
    blocking = bool(result_format.block)
    plain = (c * area, block * area, 1, area)
    blocked = ((full + bool(rest)) * area * block, area * block, block, 1)
    tail = full * block * area
    strides = (plain, blocked) if blocking else (blocked, plain)
    boxes = [StridedBox(0, (n, full, area, block), *strides)]
    if rest:
        unused = block - rest
        # With one position there is nothing to transpose: zeros are then written on their own.
        boxes.append(
            StridedBox(
                0,
                (n, 1, area, rest),
                *strides,
                tail,
                tail,
                slack=0 if blocking or area == 1 else unused,
                zeros=unused if blocking and area > 1 and rest > 1 else 0,
            )
        )
        if blocking and not boxes[-1].zeros:
            ends = (n, 1, area, unused)
            boxes.append(StridedBox(-1, ends, blocked, blocked, 0, tail + rest))
    return Copy(dtype, 1, tuple(task for box in boxes for task in copy_tasks(box, dtype)))


def reorder_last(shape: tuple[int, ...], dtype: DType, blocks: Format, back: bool = False) -> Copy:
    """The kernel that moves a tensor (N, C, spatial…) whose channels lie last into blocks, or back.

    Lanes past the last channel are written as zeros.
    """
    n, c, *spatial = shape
    area, block = prod(spatial), blocks.block
    full, rest = divmod(c, block)
    last = (c * area, block, c, 1)
    blocked = ((full + bool(rest)) * area * block, area * block, block, 1)
    tail = full * block
    boxes = []
    for count, lanes, at in ((full, block, 0), (int(bool(rest)), rest, tail)):
        extents = (n, count, area, lanes)
        if back:
            boxes.append(StridedBox(0, extents, blocked, last, at * area, at))
        else:
            boxes.append(StridedBox(0, extents, last, blocked, at, at * area))
    if rest and not back:
        ends = (n, 1, area, block - rest)
        boxes.append(StridedBox(-1, ends, blocked, blocked, 0, tail * area + rest))
    tasks = (task for box in boxes if prod(box.extents) for task in copy_tasks(box, dtype))
    return Copy(dtype, 1, tuple(tasks))


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
        return np.ascontiguousarray(array)
    n, blocks, *spatial, lanes = form.physical_shape(array.shape)
    widths = [(0, 0), (0, blocks * lanes - array.shape[1])] + [(0, 0)] * len(spatial)
    whole = np.pad(array, widths).reshape(n, blocks, lanes, *spatial)
    return np.ascontiguousarray(np.moveaxis(whole, 2, -1))
