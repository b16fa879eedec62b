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

import numpy as np

from leanconv.algorithms.common.grouped_conv import GroupedConv
from leanconv.algorithms.common.kernel_fields import fields, group_fields
from leanconv.algorithms.common.taps import Taps
from leanconv.algorithms.interface import Algorithm, Candidate, Parameters, packer, single
from leanconv.algorithms.planar.columns import (
    ColumnVectors,
    Masks,
    column_vectors,
    every,
    load_parts,
    shared_loads,
)
from leanconv.algorithms.planar.depthwise import PlanarDepthwise, plan_planar_depthwise
from leanconv.algorithms.planar.pointwise import PlanarPointwise, plan_pointwise
from leanconv.algorithms.problem import Problem, plane_cycles
from leanconv.algorithms.rounding import sum_error, walk_error
from leanconv.codegen.activations import apply
from leanconv.codegen.emitter import Function, Value, vector
from leanconv.codegen.geometry import Window, merge_rows
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.partial_sums import effective_length
from leanconv.codegen.tiling import Tile, rows_per_chunk
from leanconv.codegen.types import ELEMENT
from leanconv.spec.format import ceil_div
from leanconv.target import Target

_CHUNK_CYCLES = 30_000.0
# What reading weights as they are costs against a packed stream; with a stride over many channels
# their lines, and those of the planes, are too many for the first cache.
_UNPACKED, _UNPACKED_DEEP, _DEEP = 1.05, 1.35, 16
_SEEN = 1.05  # what layers take over the sum of their tiles
_LINE_CYCLES = 5.0  # of a line of large tensors: rows are asked for ahead by the processor
_LARGEST_STRIDE = 4
_SHUFFLES = (0.0, 0.0, 0.25, 2.0, 4.0)  # cycles of a vector and tap that nothing hides, by stride
_MOST_TAPS = 64  # along a row; each may be written out
_TAPS_WRITTEN = 4  # taps without masks that are written out instead of looped over


@dataclass(frozen=True)
class PlanarConv(GroupedConv):
    """One convolution's code, lanes along output columns; weights are read as they are given.

    Columns are neighbours in x and y.

    Attributes:
        lanes: lanes of a vector.
        channels: output channels of one tile, a divisor of `outputs`.
        vectors: vectors of columns of one tile.
        rows: output rows of one chunk.
    """

    lanes: int
    channels: int
    vectors: int
    rows: int

    @property
    def chunks(self) -> int:
        """Images by tiles of output channels by blocks of rows."""
        tiles = self.groups * self.outputs // self.channels
        return self.batch * tiles * ceil_div(self.row_count, self.rows)

    def tiles(self) -> tuple[ColumnVectors, ...]:
        """A row of output columns as tiles."""
        return column_vectors(self.window, self.lanes, self.vectors)

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
        self.per_output = conv.reduction
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

    def _tile(self, column: Value, tile: ColumnVectors) -> None:
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

    def _columns(self, tile: ColumnVectors, acc: list[Value], line: Value, taps: Value) -> None:
        """Emit the taps along a row: a loop where no lane is masked, else one after the other."""
        conv, e = self.conv, self.e
        whole = tuple((0, conv.lanes) for _ in range(conv.window.stride[2]))
        groups = list(shared_loads(conv.window).items())
        index = 0
        while index < len(groups):
            kw, shared = groups[index]
            stop = kw
            if len(shared) == 1 == conv.window.stride[2]:
                while stop < len(tile.masks) and all(m == whole for m in tile.masks[stop]):
                    stop += 1
            if stop - kw > _TAPS_WRITTEN:
                with e.loop("kw", stop, [acc], start=kw) as tap:
                    self._taps(tile, tile.masks[kw], acc, line, taps, tap, shared)
                index += stop - kw
            else:
                self._taps(tile, tile.masks[kw], acc, line, taps, e.const("i64", kw), shared)
                index += 1

    def _taps(
        self,
        tile: ColumnVectors,
        masks: tuple[Masks, ...],
        acc: list[Value],
        line: Value,
        taps: Value,
        kw: Value,
        shared: list[tuple[int, int]],
    ) -> None:
        """Emit the taps that are lanes of the vectors loaded at tap kw."""
        conv, e = self.conv, self.e
        vectors, stride = len(tile.live), conv.window.stride[2]
        at = line.at(kw * conv.window.dilation[2], self.element)
        parts = [
            load_parts(e, at.at(v * stride * conv.lanes, self.element), self.kind, masks[v])
            for v in range(vectors)
        ]
        for _, phase in shared:
            inputs = [every(e, part, phase) if part else None for part in parts]
            for k in range(conv.channels):
                tap = taps.at(kw + phase, self.element).at(k * self.per_output, self.element)
                weight = e.broadcast(tap, self.kind)
                for v, x in enumerate(inputs):
                    if x is not None:
                        acc[k * vectors + v] = e.fma(x, weight, acc[k * vectors + v])

    def _store(self, tile: ColumnVectors, acc: list[Value], place: Value) -> None:
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
    fitting = range(2, min(kernel.outputs, (room - 1) // vectors - 1) + 1)
    channels = max((c for c in fitting if kernel.outputs % c == 0), default=1)
    cycles = width * channels * (kernel.reduction / target.fma_units + 4)
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


def _planned(problem: Problem, target: Target) -> tuple[Kernel, float]:
    """The kernel for a problem, with its estimated cycles of one core."""
    window, *_ = merge_rows(problem.window, problem.x, problem.y, lambda total: total)
    row = (1, 1, window.out[2])
    plain = window.kernel == (1, 1, 1) == window.stride and window.pad == (0, 0, 0)
    if plain and window.size == window.out == row:
        return plan_pointwise(_pointwise(problem, window, target), target)
    general = _general(problem, target)
    cycles = _cycles(general, target)
    if problem.group_inputs == problem.group_outputs == 1 < problem.spec.groups and _flat(window):
        planned = plan_planar_depthwise(_depthwise(problem, target), target)
        if planned and planned[1] < cycles:
            return planned
    return general, cycles


def _flat(window: Window) -> bool:
    """Whether depth plays no part."""
    return window.size[0] == window.kernel[0] == window.out[0] == 1


def _cycles(kernel: PlanarConv, target: Target) -> float:
    stride, inputs = kernel.window.stride[2], kernel.inputs
    unpacked = _UNPACKED_DEEP if stride > 1 and inputs >= _DEEP else _UNPACKED

    def tile(vectors: int) -> float:
        size = kernel.channels * vectors
        loads = (vectors * stride * 2 + kernel.channels) / 2
        step = max(size / target.fma_units, loads, float(target.fma_latency))
        step += _SHUFFLES[stride] * vectors
        return unpacked * step * kernel.reduction + 2.0 * size

    whole, rest = divmod(ceil_div(kernel.window.out[2], kernel.lanes), kernel.vectors)
    rows = kernel.batch * kernel.groups * kernel.outputs // kernel.channels * kernel.row_count
    return rows * (whole * tile(kernel.vectors) + (tile(rest) if rest else 0.0))


def _pointwise(problem: Problem, row: Window, target: Target) -> PlanarPointwise:
    flat = replace(problem, window=row)
    return PlanarPointwise(
        **group_fields(flat, target),
        tile=Tile(1, 1),
        column_tiles=1,
        panel_block=1,
        prefetch=False,
    )


def _depthwise(problem: Problem, target: Target) -> PlanarDepthwise:
    return PlanarDepthwise(
        **fields(problem, target),
        channels=problem.spec.out_channels,
        planes=1,
        rows=1,
        vectors=1,
        plane_block=1,
        row_block=1,
    )


def _general(problem: Problem, target: Target) -> PlanarConv:
    kernel = PlanarConv(**group_fields(problem, target), channels=1, vectors=1, rows=1)
    return plan_planar(kernel, target)


def _cost(problem: Problem, target: Target) -> float:
    cycles = _SEEN * _planned(problem, target)[1]
    return cycles + plane_cycles(problem, target, _LINE_CYCLES)


def _candidate(problem: Problem, target: Target, parameters: Parameters) -> Candidate:
    del parameters
    kernel, _ = _planned(problem, target)
    if isinstance(kernel, PlanarPointwise):
        error = walk_error(problem, effective_length(kernel.inputs))
        return single("planar", kernel, packer(problem, kernel), error, kernel.tile_text)

    def pack(w: np.ndarray, channels: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"w": np.ascontiguousarray(w).reshape(-1), **channels}

    parameters_ = kernel.tile_text if isinstance(kernel, PlanarDepthwise) else ""
    return single("planar", kernel, pack, sum_error(problem), parameters_)


PLANAR = Algorithm("planar", (), _reject, _cost, _candidate)
