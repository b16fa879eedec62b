"""Strides of operands that are broadcast to a result, plain or in blocks of channels."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from leanconv.spec.format import Format, ceil_div


def merged(
    extents: Sequence[int], strides: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Merge neighbouring axes that every operand walks as one, and drop those of one element."""
    axes: list[tuple[int, tuple[int, ...]]] = []
    for axis, extent in enumerate(extents):
        steps = tuple(s[axis] for s in strides)
        if extent == 1:
            continue
        if axes and all(a == b * extent for a, b in zip(axes[-1][1], steps, strict=True)):
            axes[-1] = (axes[-1][0] * extent, steps)
        else:
            axes.append((extent, steps))
    axes = axes or [(1, (0,) * len(strides))]
    return (
        tuple(extent for extent, _ in axes),
        tuple(tuple(steps[i] for _, steps in axes) for i in range(len(strides))),
    )


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a row-major array, 0 along axes of one element."""
    after = list(accumulate(reversed(shape), lambda a, b: a * b, initial=1))[-2::-1]
    return tuple(0 if extent == 1 else s for extent, s in zip(shape, after, strict=True))


def broadcast_strides(
    shape: tuple[int, ...], result: tuple[int, ...], operand: Format, output: Format
) -> tuple[int, ...]:
    """Strides of an operand along the axes of the result's memory."""
    aligned = (1,) * (len(result) - len(shape)) + shape
    if not output.block:
        return row_major(aligned)
    if not operand.block:
        assert aligned[1] == 1, "an operand with channels has the result's format"
        return (*row_major(aligned), 0)
    strides = row_major(operand.physical_shape(aligned))
    if aligned[1] == 1 and result[1] > 1:
        return (strides[0], 0, *strides[2:-1], 0)
    return strides


def to_blocks(array: np.ndarray, block: int) -> np.ndarray:
    """Reorder (N, C, spatial…) into (N, ceil(C / block), spatial…, block), zero where unused."""
    n, c, *spatial = array.shape
    padded = np.zeros((n, ceil_div(c, block) * block, *spatial), array.dtype)
    padded[:, :c] = array
    blocks = padded.reshape(n, -1, block, *spatial)
    return np.ascontiguousarray(np.moveaxis(blocks, 2, -1))
