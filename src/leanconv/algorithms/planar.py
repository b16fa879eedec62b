"""Grouped convolution with lanes along the output columns: for plain NCHW and narrow groups.

    y[n, k, oh, ow] = act(bias[k] + residual + sum over kd, kh, c, kw of
        x[n, g·ig + c, ih, ow·sw + kw·dw - pw] · w[k, c, kd, kh, kw])

Here the filter is what is broadcast, and vectors run along rows of the input, which are read in
place: any number of channels in a group costs the same for each product, and weights need no
packing. A stride takes every s-th lane of s neighbouring vectors. Columns outside the input are
masked off, by constants, in tiles of their own at both ends of a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from leanconv.algorithms.problem import (
    Algorithm,
    Candidate,
    Parameters,
    Problem,
    single,
    sum_error,
)
from leanconv.algorithms.taps import Taps
from leanconv.codegen.activations import apply
from leanconv.codegen.emitter import Function, Value, vector
from leanconv.codegen.epilogue import Epilogue
from leanconv.codegen.geometry import Access, Window, merge_rows
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.tiling import rows_per_chunk
from leanconv.codegen.types import ELEMENT
from leanconv.spec.format import ceil_div
from leanconv.target import Target

_CHUNK_CYCLES = 30_000.0
_UNPACKED = 1.05  # what reading weights as they are costs against a packed stream
_LARGEST_STRIDE = 4
_MOST_TAPS = 64  # along a row; each may be written out

# For one tap and vector: the lanes that exist of each of the `stride` vectors loaded.
Masks = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class _Tile:
    """Tiles of `vectors` vectors of columns, `count` of them, that differ in nothing but place.

    Attributes:
        first: first output column.
        live: output columns of each vector.
        masks: `masks[kw][v]`: for each vector loaded, its first and one past its last lane.
    """

    first: int
    count: int
    live: tuple[int, ...]
    masks: tuple[tuple[Masks, ...], ...]


@dataclass(frozen=True)
class PlanarConv(Kernel):
    """One convolution's code, lanes along output columns.

    Attributes:
        batch, groups: N and g.
        inputs, outputs: channels of one group.
        window: the sliding window.
        x, y: where input and output lie; columns are neighbours in both.
        dtype: `"float32"` or `"float64"`.
        lanes: lanes of a vector.
        channels: output channels of one tile, a divisor of `outputs`.
        vectors: vectors of columns of one tile.
        rows: output rows of one chunk.
        epilogue: bias, residual, activation.
    """

    batch: int
    groups: int
    inputs: int
    outputs: int
    window: Window
    x: Access
    y: Access
    dtype: str
    lanes: int
    channels: int
    vectors: int
    rows: int
    epilogue: Epilogue

    @property
    def operands(self) -> tuple[str, ...]:
        """Input, weights as given, what the epilogue needs, output."""
        return ("x", "w", *self.epilogue.operands, "y")

    @property
    def row_count(self) -> int:
        """Output rows of one image: depth by height."""
        return self.window.out[0] * self.window.out[1]

    @property
    def chunks(self) -> int:
        """Images by tiles of output channels by blocks of rows."""
        tiles = self.groups * self.outputs // self.channels
        return self.batch * tiles * ceil_div(self.row_count, self.rows)

    @property
    def flops(self) -> int:
        """Operations of the plain sum, padding counted."""
        taps = prod(self.window.kernel) * self.inputs
        return 2 * self.batch * self.groups * self.outputs * prod(self.window.out) * taps

    def tiles(self) -> list[_Tile]:
        """Cut a row of output columns into tiles; equal neighbours are merged."""
        width, span = self.window.out[2], self.vectors * self.lanes
        tiles: list[_Tile] = []
        for first in range(0, width, span):
            starts = [first + v * self.lanes for v in range(self.vectors)]
            live = tuple(min(self.lanes, width - s) for s in starts if s < width)
            masks = tuple(
                tuple(self._masks(start, kw) for start in starts[: len(live)])
                for kw in range(self.window.kernel[2])
            )
            last = tiles[-1] if tiles else None
            if last and (last.live, last.masks) == (live, masks):
                tiles[-1] = replace(last, count=last.count + 1)
            else:
                tiles.append(_Tile(first, 1, live, masks))
        return tiles

    def _masks(self, column: int, kw: int) -> Masks:
        """Which lanes of the vectors loaded for outputs from `column` on exist, for tap kw."""
        stride = self.window.stride[2]
        start = column * stride + kw * self.window.dilation[2] - self.window.pad[2]
        masks = []
        for part in range(stride):
            low = max(0, -(start + part * self.lanes))
            high = min(self.lanes, self.window.size[2] - (start + part * self.lanes))
            masks.append((low, high) if low < high else (0, 0))
        return tuple(masks)

    def emit(self, target: Target) -> str:
        """Emit the loops: chunks, rows, tiles."""
        e = Function(self.NAME)
        pointers = {name: e.pointer(i) for i, name in enumerate(self.operands)}
        per_group = self.outputs // self.channels
        row_blocks = ceil_div(self.row_count, self.rows)
        with e.chunks(self.batch, self.groups, per_group, row_blocks) as (n, g, part, block):
            first = block * self.rows
            last = e.smin(first + self.rows, self.row_count)
            body = _Body(e, self, pointers, n, g, g * self.outputs + part * self.channels)
            with e.loop("row", last, start=first) as row:
                body.row(row)
        return e.finish()


class _Body:
    """Emission of one row of a few output channels."""

    def __init__(
        self,
        e: Function,
        conv: PlanarConv,
        pointers: dict[str, Value],
        n: Value,
        g: Value,
        channel: Value,
    ) -> None:
        self.e, self.conv, self.channel = e, conv, channel
        self.element = ELEMENT[conv.dtype]
        self.kind = vector(self.element, conv.lanes)
        self.per_output = conv.inputs * prod(conv.window.kernel)
        place = n * conv.x.image + g * (conv.inputs * conv.x.block_stride)
        self.x = pointers["x"].at(place, self.element)
        self.w = pointers["w"].at(channel * self.per_output, self.element)
        out = n * conv.y.image + channel * conv.y.block_stride
        self.y = pointers["y"].at(out, self.element)
        residual = pointers.get("residual")
        self.residual = residual.at(out, self.element) if residual else None
        self.bias = self._per_channel(pointers.get("bias"))
        self.slope = self._per_channel(pointers.get("slope"))

    def _per_channel(self, pointer: Value | None) -> list[Value] | None:
        if pointer is None:
            return None
        first = pointer.at(self.channel, self.element)
        count = range(self.conv.channels)
        return [self.e.broadcast(first.at(k, self.element), self.kind) for k in count]

    def row(self, row: Value) -> None:
        """Emit one row of output columns."""
        conv, e, window = self.conv, self.e, self.conv.window
        od, oh = row // window.out[1], row % window.out[1]
        self.taps = [Taps(e, window, axis, o) for axis, o in ((0, od), (1, oh))]
        starts = [t.start * conv.x.spatial[axis] for axis, t in enumerate(self.taps)]
        self.row_x = self.x.at(starts[0] + starts[1], self.element)
        self.place = od * conv.y.spatial[0] + oh * conv.y.spatial[1]
        for tile in conv.tiles():
            if tile.count == 1:
                self._tile(e.const("i64", tile.first), tile)
            else:
                with e.loop("tile", tile.count) as index:
                    self._tile(index * (conv.vectors * conv.lanes) + tile.first, tile)

    def _tile(self, column: Value, tile: _Tile) -> None:
        conv, e, window = self.conv, self.e, self.conv.window
        x = self.row_x.at(column * window.stride[2] - window.pad[2], self.element)
        vectors = len(tile.live)
        start = self.bias or [e.zero(self.kind)] * conv.channels
        acc = [start[k] for k in range(conv.channels) for _ in range(vectors)]
        depth, height = self.taps
        kd, kh, kw = window.kernel
        with depth.guard(e, acc), height.guard(e, acc):
            planes = depth.loop("kd", window.dilation[0] * conv.x.spatial[0], kh * kw)
            lines = height.loop("kh", window.dilation[1] * conv.x.spatial[1], kw)
            with e.loop("kd", planes.extent, [acc], start=planes.start) as d:
                with e.loop("kh", lines.extent, [acc], start=lines.start) as h:
                    line = x.at(d * planes.a_stride + h * lines.a_stride, self.element)
                    taps = self.w.at(d * planes.b_stride + h * lines.b_stride, self.element)
                    with e.loop("c", conv.inputs, [acc]) as c:
                        self._columns(
                            tile,
                            acc,
                            line.at(c * conv.x.block_stride, self.element),
                            taps.at(c * (kd * kh * kw), self.element),
                        )
        self._store(tile, acc, self.place + column)

    def _columns(self, tile: _Tile, acc: list[Value], line: Value, taps: Value) -> None:
        """Emit the taps along a row: a loop where no lane is masked, else one after the other."""
        conv, e = self.conv, self.e
        whole = tuple((0, conv.lanes) for _ in range(conv.window.stride[2]))
        kw = 0
        while kw < len(tile.masks):
            stop = kw
            while stop < len(tile.masks) and all(m == whole for m in tile.masks[stop]):
                stop += 1
            if stop - kw > 4:
                with e.loop("kw", stop, [acc], start=kw) as index:
                    self._tap(tile, tile.masks[kw], acc, line, taps, index)
                kw = stop
            else:
                self._tap(tile, tile.masks[kw], acc, line, taps, e.const("i64", kw))
                kw += 1

    def _tap(
        self,
        tile: _Tile,
        masks: tuple[Masks, ...],
        acc: list[Value],
        line: Value,
        taps: Value,
        kw: Value,
    ) -> None:
        conv, e = self.conv, self.e
        vectors = len(tile.live)
        at = line.at(kw * conv.window.dilation[2], self.element)
        inputs = [self._input(at, v, masks[v]) for v in range(vectors)]
        for k in range(conv.channels):
            tap = taps.at(kw, self.element).at(k * self.per_output, self.element)
            weight = e.broadcast(tap, self.kind)
            for v, x in enumerate(inputs):
                if x is not None:
                    acc[k * vectors + v] = e.fma(x, weight, acc[k * vectors + v])

    def _input(self, at: Value, v: int, masks: Masks) -> Value | None:
        """Every stride-th column from output vector `v` on; None where there is none."""
        conv, e = self.conv, self.e
        stride, lanes = conv.window.stride[2], conv.lanes
        if all(low == high for low, high in masks):
            return None
        parts = []
        for part, (low, high) in enumerate(masks):
            place = at.at((v * stride + part) * lanes, self.element)
            if low == high:
                parts.append(e.zero(self.kind))
            elif (low, high) == (0, lanes):
                parts.append(e.load(place, self.kind))
            else:
                lane_bits = [int(low <= lane < high) for lane in range(lanes)]
                mask = e.const(vector("i1", lanes), lane_bits)
                parts.append(e.masked_load(place, self.kind, mask))
        return self._every(parts, stride)

    def _every(self, parts: list[Value], stride: int) -> Value:
        """Lanes 0, stride, 2·stride … of the vectors, one after the other."""
        lanes, result = self.conv.lanes, parts[0]
        if stride == 1:
            return result
        # After part q the lanes that come from parts 0 … q are in place.
        for q in range(1, stride):
            picks = []
            for lane in range(lanes):
                part, inside = divmod(lane * stride, lanes)
                if part == q:
                    picks.append(lanes + inside)
                elif part < q:
                    picks.append(inside if q == 1 else lane)
                else:
                    picks.append(-1)
            result = self.e.shuffle(result, parts[q], picks)
        return result

    def _store(self, tile: _Tile, acc: list[Value], place: Value) -> None:
        conv, e = self.conv, self.e
        for k in range(conv.channels):
            for v, live in enumerate(tile.live):
                out = place + (k * conv.y.block_stride + v * conv.lanes)
                value = acc[k * len(tile.live) + v]
                if self.residual:
                    at = self.residual.at(out, self.element)
                    value = value + e.load_first(at, self.kind, live)
                slope = self.slope[k] if self.slope else None
                value = apply(e, value, conv.epilogue.activation, slope)
                e.store_first(value, self.y.at(out, self.element), live)


def plan_planar(kernel: PlanarConv, target: Target) -> PlanarConv:
    """Choose channels and vectors of a tile, and the rows of a chunk."""
    window, x, y = merge_rows(kernel.window, kernel.x, kernel.y, lambda total: total)
    width = ceil_div(window.out[2], kernel.lanes)
    room = min(target.registers, 32) - 3
    vectors = min(width, 4 if kernel.outputs > 1 else 8)
    if window.stride[2] > 1:
        vectors = min(vectors, 4)
    divisors = [c for c in range(1, kernel.outputs + 1) if kernel.outputs % c == 0]
    channels = max(c for c in divisors if c == 1 or (c + 1) * vectors + 1 <= room)
    taps = prod(window.kernel) * kernel.inputs
    cycles = width * channels * (taps / target.fma_units + 4)
    pieces = kernel.batch * kernel.groups * kernel.outputs // channels
    rows = rows_per_chunk(window.out[0] * window.out[1], cycles, pieces, _CHUNK_CYCLES)
    return replace(kernel, window=window, x=x, y=y, channels=channels, vectors=vectors, rows=rows)


def _reject(problem: Problem, target: Target) -> str | None:
    del target
    if problem.x.block > 1 or problem.y.block > 1:
        return "channels stand in blocks, not in planes"
    if problem.x.spatial[2] != 1 or problem.y.spatial[2] != 1 or problem.y_offset:
        return "columns are not neighbours in memory"
    if problem.window.stride[2] > _LARGEST_STRIDE:
        return f"a stride of {problem.window.stride[2]} along rows; at most {_LARGEST_STRIDE}"
    if problem.window.kernel[2] > _MOST_TAPS:
        return f"{problem.window.kernel[2]} taps along rows; at most {_MOST_TAPS}"
    return None


def _cost(problem: Problem, target: Target) -> float:
    kernel = _kernel(problem, target)
    size = kernel.channels * kernel.vectors
    loads = (kernel.vectors * kernel.window.stride[2] * 2 + kernel.channels) / 2
    step = max(size / target.fma_units, loads, float(target.fma_latency))
    taps = kernel.inputs * prod(kernel.window.kernel)
    tiles = ceil_div(ceil_div(kernel.window.out[2], kernel.lanes), kernel.vectors)
    rows = kernel.batch * kernel.groups * kernel.outputs // kernel.channels * kernel.row_count
    return rows * tiles * (_UNPACKED * step * taps + 2.0 * size)


def _kernel(problem: Problem, target: Target) -> PlanarConv:
    spec = problem.spec
    return plan_planar(
        PlanarConv(
            batch=spec.batch,
            groups=spec.groups,
            inputs=problem.group_inputs,
            outputs=problem.group_outputs,
            window=problem.window,
            x=problem.x,
            y=problem.y,
            dtype=spec.dtype,
            lanes=target.lanes(spec.dtype),
            channels=1,
            vectors=1,
            rows=1,
            epilogue=problem.epilogue,
        ),
        target,
    )


def _candidate(problem: Problem, target: Target, parameters: Parameters) -> Candidate:
    del parameters
    kernel = _kernel(problem, target)

    def pack(w: np.ndarray, channels: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"w": np.ascontiguousarray(w).reshape(-1), **channels}

    return single("planar", kernel, pack, sum_error(problem))


PLANAR = Algorithm("planar", (), _reject, _cost, _candidate)
