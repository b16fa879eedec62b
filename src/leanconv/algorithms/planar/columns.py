"""Rows of a plane as vectors: tiles of output columns, masks of their input loads, their stores.

A stride takes every s-th lane of s neighbouring vectors. Columns outside the input are masked off,
in tiles of their own at both ends of a row. Masks are constants, except where they follow from the
number of columns in a row's last vector and the target computes masks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from leanconv.algorithms.common.conv import GroupedConv
from leanconv.codegen.activations import finish
from leanconv.codegen.emitter import Function, Pointer, Value, lanes_of, vector
from leanconv.codegen.geometry import Window
from leanconv.codegen.microkernel import broadcast_channels, channel_address
from leanconv.codegen.tails import where_any
from leanconv.records import dataclass, replace
from leanconv.spec.format import ceil_div
from leanconv.symbolic import Symbol, fixed
from leanconv.target import Target


class Lanes(NamedTuple):
    """The lanes low <= lane < high of a vector, which are inside the input.

    Where `open`, `high` lacks the stride times the columns of the row's last vector.
    """

    low: int
    high: int
    open: bool = False


NO_LANES = Lanes(0, 0)
_NEVER = (1 << 31) - 1  # more than any number of lanes
_LEAST_BITS = 8  # of an integer that a register of masks is loaded from
Masks = tuple[Lanes, ...]  # for one tap and vector: of each of the `stride` loads


@dataclass(frozen=True)
class ColumnVectors:
    """Consecutive tiles of columns with the same masks.

    Attributes:
        first: first output column.
        count: number of tiles.
        live: output columns of each vector.
        masks: `masks[kw][v]`: the lanes inside the input of each vector loaded.
        tail: output columns of the row's last vector.
        latest: the column at which the last of these tiles begins at most: it may overlap the one
            before.
    """

    first: int
    count: int
    live: tuple[int, ...]
    masks: tuple[tuple[Masks, ...], ...]
    tail: int
    latest: int | None = None


def column_vectors(
    window: Window, lanes: int, vectors: int, target: Target
) -> tuple[ColumnVectors, ...]:
    """Cut a row of output columns into tiles; equal neighbours are merged.

    The tiles between the ends of a row are one run, whose length may be an extent.
    """
    width, span = window.out[2], vectors * lanes
    stride, pad = window.stride[2], window.pad[2]
    beyond = fixed(window.size[2] - width * stride)
    tail = target.lanes_of_tail(width % lanes) or lanes
    bounds = tail, tail
    if isinstance(tail, Symbol):  # of a stride's loads the last one is known
        part = fixed((tail * stride - 1) // lanes) if stride > 1 else 0
        bounds = part * lanes // stride + 1, min(lanes - 1, (part + 1) * lanes // stride)
    whole, rest = width // span, fixed(ceil_div(width % span, lanes))
    # Whole tiles that begin in the padding, and those that may reach beyond the input's end.
    before = ceil_div(max(pad, 0), stride * span)
    reach = ceil_div((window.kernel[2] - 1) * window.dilation[2] - pad - beyond, stride)
    after = max(0, ceil_div(reach - ((rest - 1) * lanes + bounds[0] if rest else 0), span))
    repeated = whole - (before + after + 1) if whole >= before + after else None
    known = fixed(whole) if repeated is None else before + after + 1
    taps = window.kernel[2], stride, window.dilation[2], pad
    tiles = []
    for tile in _tiles(_Row(*taps, beyond, lanes, vectors, known, rest, *bounds)):
        moved = replace(tile, tail=tail)
        if tile.first == known * span:
            moved = replace(moved, live=(*tile.live[:-1], tail))
        if repeated is not None and tile.first > before * span:
            moved = replace(moved, first=tile.first + repeated * span)
        elif repeated is not None and tile.first + tile.count * span > before * span:
            moved = replace(moved, count=tile.count + repeated)
        if isinstance(moved.count, Symbol) or moved.count:
            tiles.append(moved)
    return tuple(tiles)


@dataclass(frozen=True)
class _Row:
    """A row whose number of whole tiles is known, and within bounds its last vector.

    Attributes:
        kernel, stride, dilation, pad: of the window along the row.
        beyond: input columns less the stride times the output columns.
        lanes, vectors: of a tile.
        whole: whole tiles.
        rest: vectors after these.
        least, most: output columns of the row's last vector, at least and at most.
    """

    kernel: int
    stride: int
    dilation: int
    pad: int
    beyond: int
    lanes: int
    vectors: int
    whole: int
    rest: int
    least: int
    most: int

    def size(self, tail: int) -> int:
        """Input columns if the last vector has that many output columns."""
        before = (self.whole * self.vectors + self.rest - 1) * self.lanes
        return (before + tail) * self.stride + self.beyond


@lru_cache(maxsize=256)  # called for every tile size that is compared
def _tiles(row: _Row) -> tuple[ColumnVectors, ...]:
    """The tiles of a row; where the last vector's columns are not known, they are 0."""
    span, first = row.vectors * row.lanes, 0
    tail = row.least if row.least == row.most else 0
    tiles: list[ColumnVectors] = []
    while first < row.whole * span + min(row.rest, 1):
        ended = first == row.whole * span
        vectors = row.rest if ended else row.vectors
        starts = [first + v * row.lanes for v in range(vectors)]
        live = (row.lanes,) * (vectors - ended) + (tail,) * ended
        masks = tuple(tuple(_masks(row, start, kw) for start in starts) for kw in range(row.kernel))
        count = 1 if ended else _alike(row, first)
        last = tiles[-1] if tiles else None
        if last and (last.live, last.masks) == (live, masks):
            tiles[-1] = replace(last, count=last.count + count)
        else:
            tiles.append(ColumnVectors(first, count, live, masks, tail))
        first += count * span
    return tuple(tiles)


def _alike(row: _Row, first: int) -> int:
    """The number of whole tiles from column `first` on that have the masks of the first."""
    span, least = row.vectors * row.lanes, row.size(row.least)
    step = span * row.stride
    count = row.whole - first // span
    for kw in range(row.kernel):
        start = first * row.stride + kw * row.dilation - row.pad
        for at in range(start, start + step, row.lanes):
            if at + row.lanes <= 0:
                count = min(count, (-row.lanes - at) // step + 1)
            elif 0 <= at <= least - row.lanes:
                count = min(count, (least - row.lanes - at) // step + 1)
            elif at < row.size(row.most):
                return 1
    return count


def _masks(row: _Row, column: int, kw: int) -> Masks:
    """The lanes inside the input of the loads for tap kw and outputs from `column` on."""
    start = column * row.stride + kw * row.dilation - row.pad
    return tuple(_lanes(row, start + part * row.lanes) for part in range(row.stride))


def _lanes(row: _Row, at: int) -> Lanes:
    """The lanes inside the input of a vector loaded from input column `at` on."""
    low, least, most = max(0, -at), row.size(row.least) - at, row.size(row.most) - at
    if low >= min(row.lanes, most):
        return NO_LANES
    if least >= row.lanes or least == most:
        return Lanes(low, min(row.lanes, least))
    return Lanes(low, row.size(0) - at, open=True)


def each_tile_of_row(
    e: Function, tiles: tuple[ColumnVectors, ...], lanes: int
) -> Iterator[tuple[Value, ColumnVectors]]:
    """Emit the body for all tiles of a row, in loops over those that are alike.

    Args:
        e: the function under construction.
        tiles: of `row_tiles`.
        lanes: output columns of a vector.

    Yields:
        The tile's first output column, and the tile.
    """
    for tile in tiles:
        span = len(tile.live) * lanes
        for _ in where_any(e, tile.count):
            if not isinstance(tile.count, Symbol) and tile.count == 1 and tile.latest is None:
                yield e.i64(tile.first), tile
                continue
            with e.loop("tile", tile.count) as index:
                column = index * span + tile.first
                yield (column if tile.latest is None else e.smin(column, tile.latest)), tile


def shared_loads(window: Window) -> dict[int, list[tuple[int, int]]]:
    """Taps kw that use the same loaded vectors: from the first tap to (kw, first lane) of each."""
    kernel, stride = window.kernel[2], window.stride[2]
    if window.dilation[2] != 1:
        return {kw: [(kw, 0)] for kw in range(kernel)}
    return {
        base: [(kw, kw - base) for kw in range(base, min(base + stride, kernel))]
        for base in range(0, kernel, stride)
    }


def has_bits(target: Target, lanes: int) -> bool:
    """Return whether masks of so many lanes are bits of a register."""
    return target.masks_are_bits and lanes >= _LEAST_BITS


def through_bits(e: Function, mask: Value) -> Value:
    """A mask that is computed here: LLVM moves a comparison into the loops that it is used in."""
    return e.convert("bitcast", e.convert("bitcast", mask, f"i{lanes_of(mask.kind)}"), mask.kind)


class TileMasks:
    """The masks of one tile's loads: constants, and open ones, computed before the tile's loops.

    Args:
        e: the function to append to.
        tile: the tile.
        window: the sliding window.
        kind: type of a vector.
        target: the machine.
    """

    def __init__(
        self, e: Function, tile: ColumnVectors, window: Window, kind: str, target: Target
    ) -> None:
        self.e, self.kind, self.lanes = e, kind, lanes_of(kind)
        self._tail, self._stride = tile.tail, window.stride[2]
        used = {lanes for kw in shared_loads(window) for part in tile.masks[kw] for lanes in part}
        self._open = {
            lanes: through_bits(e, self._compared(lanes))
            for lanes in sorted(used)
            if lanes.open and has_bits(target, self.lanes)
        }

    def _compared(self, lanes: Lanes) -> Value:
        kind = vector("i32", self.lanes)
        # Lanes before the stride times the tail, in units of the stride.
        before = [
            (i - lanes.high) // self._stride if i >= lanes.low else _NEVER
            for i in range(self.lanes)
        ]
        return self.e.const(kind, before).compare("slt", self.e.const(kind, self._tail))

    def _mask(self, lanes: Lanes) -> Value:
        if lanes in self._open:
            return self._open[lanes]
        if lanes.open:
            return self._compared(lanes)
        bits = [int(lanes.low <= i < lanes.high) for i in range(self.lanes)]
        return self.e.const(vector("i1", self.lanes), bits)

    def load(self, at: Pointer, masks: Masks) -> list[Value] | None:
        """Load neighbouring vectors, zero outside the masks; None if all masks are empty."""
        e, kind = self.e, self.kind
        if all(lanes == NO_LANES for lanes in masks):
            return None
        parts = []
        for part, lanes in enumerate(masks):
            place = at.at(part * self.lanes)
            if lanes == NO_LANES:
                parts.append(e.zero(kind))
            elif lanes == (0, self.lanes, False):
                parts.append(e.load(place, kind))
            else:
                parts.append(e.masked_load(place, kind, self._mask(lanes)))
        return parts


class ColumnOutput:
    """Applies the epilogue to vectors of output columns of a few channels, and stores them.

    Args:
        e: the function to append to.
        kernel: the kernel.
        target: the machine.
        kind: type of a vector.
        pointers: addresses of `y` and, if they are there, of `residual` and `slope`.
        channel, count: the channels.
    """

    def __init__(
        self,
        e: Function,
        kernel: GroupedConv,
        target: Target,
        kind: str,
        pointers: Mapping[str, Pointer],
        channel: Value,
        count: int,
    ) -> None:
        self.e, self.kind, self.activation = e, kind, kernel.conv.epilogue.activation
        self._by_parts = target.stores_by_parts
        self._tails: list[tuple[Value, Pointer]] = []
        self._live = 0
        self.y, self.residual = pointers["y"], pointers.get("residual")
        slope = channel_address(pointers, "slope", channel)
        self.slopes = broadcast_channels(e, kind, slope, count) if slope else None

    def store(self, value: Value, k: int, place: Value, live: Value | int) -> None:
        """Store the first `live` lanes of the sums of channel k, `place` elements into y.

        Those of a tail perhaps at `finish`.
        """
        value = self._finished(value, k, place, live)
        if self._by_parts and isinstance(live, Symbol):
            self._tails.append((value, self.y.at(place)))
            self._live = live
        else:
            self.e.store_first(value, self.y.at(place), live)

    def store_some(self, value: Value, k: int, place: Value, count: int) -> None:
        """Store the first `count` lanes now; of a count that is an extent, perhaps none."""
        live = self.e.i64(count) if isinstance(count, Symbol) else count
        value = self._finished(value, k, place, live)
        self.e.store_first(value, self.y.at(place), live)

    def _finished(self, value: Value, k: int, place: Value, live: Value | int) -> Value:
        """Sums of channel k with a residual, of which `live` lanes exist, and the activation."""
        residual = None
        if self.residual:
            residual = self.e.load_first(self.residual.at(place), self.kind, live)
        slope = self.slopes[k] if self.slopes else None
        return finish(self.e, value, self.activation, slope, residual)

    def finish(self, most: int) -> None:
        """Store the rest of a tile: tails of at most so many lanes."""
        if self._tails:
            self.e.store_parts(self._tails, self._live, most)
        self._tails = []
