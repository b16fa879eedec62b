"""Rows of a plane as vectors: tiles of output columns, masks of their input loads, their stores.

A stride takes every s-th lane of s neighbouring vectors. Columns outside the input are masked off,
by constants, in tiles of their own at both ends of a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from leanconv.algorithms.common.channels import broadcast_channels
from leanconv.algorithms.common.grouped_conv import GroupedConv
from leanconv.codegen.activations import apply
from leanconv.codegen.emitter import Function, Value, element_of, lanes_of, vector
from leanconv.codegen.geometry import Window

# For one tap and vector: the range of lanes inside the input, of each of the `stride` loads.
Masks = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class ColumnVectors:
    """Consecutive tiles of columns with the same masks.

    Attributes:
        first: first output column.
        count: number of tiles.
        live: output columns of each vector.
        masks: `masks[kw][v]`: for each vector loaded, its first and one past its last lane.
    """

    first: int
    count: int
    live: tuple[int, ...]
    masks: tuple[tuple[Masks, ...], ...]


@lru_cache(maxsize=256)  # called for every tile size that is compared
def column_vectors(window: Window, lanes: int, vectors: int) -> tuple[ColumnVectors, ...]:
    """Cut a row of output columns into tiles; equal neighbours are merged."""
    width, span, first = window.out[2], vectors * lanes, 0
    tiles: list[ColumnVectors] = []
    while first < width:
        starts = [first + v * lanes for v in range(vectors)]
        live = tuple(min(lanes, width - s) for s in starts if s < width)
        masks = tuple(
            tuple(_masks(window, lanes, start, kw) for start in starts[: len(live)])
            for kw in range(window.kernel[2])
        )
        count = _alike(window, lanes, first, vectors) if live == (lanes,) * vectors else 1
        last = tiles[-1] if tiles else None
        if last and (last.live, last.masks) == (live, masks):
            tiles[-1] = replace(last, count=last.count + count)
        else:
            tiles.append(ColumnVectors(first, count, live, masks))
        first += count * span
    return tuple(tiles)


def _alike(window: Window, lanes: int, first: int, vectors: int) -> int:
    """The number of whole tiles from column `first` on that have the masks of the first."""
    span, size = vectors * lanes, window.size[2]
    step = span * window.stride[2]
    count = (window.out[2] - first) // span
    for kw in range(window.kernel[2]):
        start = first * window.stride[2] + kw * window.dilation[2] - window.pad[2]
        for at in range(start, start + step, lanes):
            if at + lanes <= 0:
                count = min(count, (-lanes - at) // step + 1)
            elif 0 <= at <= size - lanes:
                count = min(count, (size - lanes - at) // step + 1)
            elif at < size:
                return 1
    return count


def _masks(window: Window, lanes: int, column: int, kw: int) -> Masks:
    """The lanes inside the input of the loads for tap kw and outputs from `column` on."""
    stride = window.stride[2]
    start = column * stride + kw * window.dilation[2] - window.pad[2]
    masks = []
    for part in range(stride):
        low = max(0, -(start + part * lanes))
        high = min(lanes, window.size[2] - (start + part * lanes))
        masks.append((low, high) if low < high else (0, 0))
    return tuple(masks)


def shared_loads(window: Window) -> dict[int, list[tuple[int, int]]]:
    """Taps kw that use the same loaded vectors: from the first tap to (kw, first lane) of each."""
    kernel, stride = window.kernel[2], window.stride[2]
    if window.dilation[2] != 1:
        return {kw: [(kw, 0)] for kw in range(kernel)}
    return {
        base: [(kw, kw - base) for kw in range(base, min(base + stride, kernel))]
        for base in range(0, kernel, stride)
    }


def load_parts(e: Function, at: Value, kind: str, masks: Masks) -> list[Value] | None:
    """Load neighbouring vectors, zero outside the masks; None if all masks are empty."""
    if all(low == high for low, high in masks):
        return None
    lanes, element = lanes_of(kind), element_of(kind)
    parts = []
    for part, (low, high) in enumerate(masks):
        place = at.at(part * lanes, element)
        if low == high:
            parts.append(e.zero(kind))
        elif (low, high) == (0, lanes):
            parts.append(e.load(place, kind))
        else:
            lane_bits = [int(low <= lane < high) for lane in range(lanes)]
            parts.append(e.masked_load(place, kind, e.const(vector("i1", lanes), lane_bits)))
    return parts


def deinterleave(e: Function, parts: list[Value], phase: int = 0) -> Value:
    """Lanes phase, phase + s, phase + 2s … of s vectors, one after the other."""
    stride, lanes, result = len(parts), lanes_of(parts[0].kind), parts[0]
    if stride == 1:
        return result
    # After part q the lanes that come from parts 0 … q are in place.
    for q in range(1, stride):
        picks = []
        for lane in range(lanes):
            part, inside = divmod(lane * stride + phase, lanes)
            if part == q:
                picks.append(lanes + inside)
            elif part < q:
                picks.append(inside if q == 1 else lane)
            else:
                picks.append(-1)
        result = e.shuffle(result, parts[q], picks)
    return result


class ColumnOutput:
    """Applies the epilogue to vectors of output columns of a few channels, and stores them.

    Args:
        e: the function to append to.
        conv: the kernel.
        kind: type of a vector.
        pointers: addresses of `y` and, if they are there, of `residual` and `slope`.
        channel, count: the channels.
    """

    def __init__(
        self,
        e: Function,
        conv: GroupedConv,
        kind: str,
        pointers: Mapping[str, Value],
        channel: Value,
        count: int,
    ) -> None:
        self.e, self.kind, self.activation = e, kind, conv.epilogue.activation
        self.y, self.residual = pointers["y"], pointers.get("residual")
        self.slopes = broadcast_channels(e, pointers, "slope", channel, count, kind)

    def store(self, value: Value, k: int, place: Value, live: int) -> None:
        """Store the first `live` lanes of the sums of channel k, `place` elements into y."""
        e, element = self.e, element_of(self.kind)
        if self.residual:
            value = value + e.load_first(self.residual.at(place, element), self.kind, live)
        value = apply(e, value, self.activation, self.slopes[k] if self.slopes else None)
        e.store_first(value, self.y.at(place, element), live)
