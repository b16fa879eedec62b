"""The kernel of tiled Fourier transforms whose lanes are tiles of one channel.

A chunk takes `lanes` tiles through all steps:

    for each term and row of the tiles     read a line of each tile, transpose, transform
    for each column of the spectrum        transform, multiply, transform back
    for each row of the outputs            transform back, transpose, finish, store each tile's line

What lies where is said in `layout`. Positions outside of the tensor are zero.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import NamedTuple

import numpy as np

from leanconv.algorithms.common.linear_code import emit_program
from leanconv.algorithms.fft.layout import CutKernel, PlaneLayout
from leanconv.algorithms.fft.network import (
    complex_forward,
    complex_inverse,
    real_forward,
    real_inverse,
)
from leanconv.codegen.activations import finish
from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.lowered import PackCall
from leanconv.codegen.microkernel import add_start, channel_address
from leanconv.codegen.shuffles import transpose
from leanconv.codegen.tails import Columns, load_row, store_row
from leanconv.kernels.packing import copied
from leanconv.records import dataclass
from leanconv.target import Target


@dataclass(frozen=True)
class FftPlanes(CutKernel):
    """One convolution's code: a chunk is a vector of tiles of one channel."""

    layout: PlaneLayout

    @property
    def grid(self) -> tuple[int, ...]:
        """Channels by vectors of their tiles."""
        return self.layout.conv.groups, self.layout.vectors

    @property
    def scratch_bytes(self) -> int:
        """Lines, bins of a column, half-transformed tiles."""
        return self.layout.scratch_offsets[-1] * self.layout.item

    @property
    def packing(self) -> Hashable:
        """Channels, taps and transform; the step where it cuts the kernel."""
        conv = self.layout.conv
        return FftPlanes, self.packed_axes, conv.groups, conv.dtype, conv.epilogue.operands

    @property
    def constant_bytes(self) -> dict[str, int]:
        """Transformed weights; bias and slopes of each channel."""
        conv, layout = self.layout.conv, self.layout
        channels = conv.epilogue.channel_bytes(conv.dtype, conv.groups)
        return {"w": layout.weight_elements * layout.item, **channels}

    def channel_calls(self, values: np.ndarray) -> list[PackCall]:
        return copied(values)

    def emit(self, target: Target) -> str:
        """Emit: for each vector of tiles, rows, columns, rows."""
        layout = self.layout
        e = Function(self.NAME)
        pointers = e.pointers(self.operands, layout.conv.dtype.llvm)
        with e.chunks(*self.grid) as (channel, number):
            tiles = _Tiles(e, layout, target, pointers, channel)
            tiles.find(number)
            tiles.transform_rows()
            tiles.filter_columns()
            tiles.store_rows()
        return e.finish()


class _Column(NamedTuple):
    """A column of the spectrum: its place in `mid`, weights, frequencies, whether it is real."""

    mid: Value
    weights: Pointer
    bins: int
    real: bool


class _Tiles:
    """Emission of a chunk: `lanes` tiles of a channel."""

    def __init__(
        self,
        e: Function,
        layout: PlaneLayout,
        target: Target,
        pointers: dict[str, Pointer],
        channel: Value,
    ) -> None:
        self.e, self.layout, self.target, self.pointers = e, layout, target, pointers
        self.channel = channel
        self.kind = vector(layout.conv.dtype.llvm, layout.lanes)
        scratch = e.scratch.of(layout.conv.dtype.llvm)
        turned, bins, results, mid, _ = layout.scratch_offsets
        self.lines, self.turned = scratch.at(layout.lanes), scratch.at(turned)
        self.bins, self.results, self.mid = scratch.at(bins), scratch.at(results), scratch.at(mid)
        # For each lane's tile: its input's first row and column, offsets of image and outputs, and
        # the numbers of rows and columns of these.
        names = ("row", "column", "x", "y", "rows", "columns")
        self.places = {name: e.local("i64", layout.lanes) for name in names}

    # -- places ----------------------------------------------------------------------------
    def find(self, vector_number: Value) -> None:
        """Find where the tiles of the chunk are; lanes beyond the last tile have no rows."""
        conv, e, layout = self.layout.conv, self.e, self.layout
        height, width = layout.height, layout.width
        with e.loop("lane", layout.lanes) as lane:
            number = vector_number * layout.lanes + lane
            inside = number.compare("ult", layout.tiles)
            image, rest = number // layout.image_tiles, number % layout.image_tiles
            tiles = rest // width.tiles, rest % width.tiles
            rest = image // width.residues
            residues = rest % height.residues, image % width.residues
            image = rest // height.residues
            y = image * conv.y.image + self.channel * conv.y.channel(1) + conv.y_offset
            found = {"x": image * conv.x.image + self.channel * conv.x.channel(1)}
            for axis, at, (start, count), tile, residue in zip(
                (height, width),
                (1, 2),
                (("row", "rows"), ("column", "columns")),
                tiles,
                residues,
                strict=True,
            ):
                found[start] = tile * (axis.step * axis.spread) + residue * axis.stride - axis.pad
                first = tile * (axis.step * axis.residue_step) + residue
                y = y + first * conv.y.spatial[at]
                of_residue = (axis.out + axis.residue_step - 1 - residue) // axis.residue_step
                found[count] = e.smin(of_residue - tile * axis.step, axis.step)
            found["y"] = y
            found["row"] = e.select(inside, found["row"], e.i64(height.size))
            found["rows"] = e.select(inside, e.smax(found["rows"], 0), e.i64(0))
            for name, value in found.items():
                e.store(value, self.places[name].at(lane))

    def _place(self, name: str, lane: Value) -> Value:
        return self.e.load_index(self.places[name].at(lane))

    # -- rows of the inputs ----------------------------------------------------------------
    def transform_rows(self) -> None:
        e, layout = self.e, self.layout
        with e.loop("term", layout.reduction_steps) as term:
            p, q, a, b = e.split(term, *layout.terms)
            offsets = [
                part * (axis.step * axis.spread) + phase * axis.dilation
                for axis, part, phase in ((layout.height, p, a), (layout.width, q, b))
            ]
            with e.loop("row", layout.length) as row:
                down = offsets[0] + row * layout.height.spread
                with e.loop("lane", layout.lanes) as lane:
                    self._read_line(lane, down, offsets[1])
                self._turn(self.lines, layout.line, self.turned, layout.lanes, layout.span)
                to = self.mid.at((term * layout.length + row) * layout.mid_row)
                emit_program(
                    e,
                    real_forward(layout.length).program,
                    lambda i: e.load(self.turned.at(i * layout.lanes), self.kind),
                    lambda i, value: e.store(value, to.at(i * layout.lanes)),
                )

    def _read_line(self, lane: Value, down: Value, across: Value) -> None:
        """Copy a row of a lane's tile, zero where the tensor has no such position."""
        conv, e, layout = self.layout.conv, self.e, self.layout
        height, width, spread = layout.height, layout.width, layout.width.spread
        line = self.lines.at(lane * layout.line)
        row, column = self._place("row", lane) + down, self._place("column", lane) + across
        exists = row.compare("ult", height.size)
        last = column + (layout.length - 1) * spread
        whole = exists & column.compare("sge", 0) & last.compare("slt", width.size)
        offset = self._place("x", lane) + conv.x_offset + row * conv.x.spatial[1]
        source = self.pointers["x"].at(offset + column * conv.x.spatial[2])
        contiguous = conv.x.spatial[2] == 1 and spread == 1 and width.size >= layout.lanes
        steps = range(0, layout.span, layout.lanes)
        with e.when(whole ^ 1):
            for first in steps:
                e.store(e.zero(self.kind), line.at(first))
        if contiguous and layout.length % layout.lanes == 0:
            with e.when(whole):
                for first in steps:
                    e.store(e.load(source.at(first), self.kind), line.at(first))
            exists = exists & (whole ^ 1)
        with e.when(exists):
            if contiguous:
                self._read_vectors(line, source, column)
            else:
                self._read_elements(line, source, column)

    def _read_vectors(self, line: Pointer, source: Pointer, column: Value) -> None:
        """Copy vectors; one that reaches over an end of the row is moved inside.

        Its positions still land in their own places of the line, which has margins for those that
        are not the tile's.
        """
        e, lanes = self.e, self.layout.lanes
        with e.loop("first", self.layout.span, step=lanes) as first:
            begin = column + first
            offset = e.smin(e.smax(begin, 0), self.layout.width.size - lanes) - column
            near = offset.compare("sgt", -lanes) & offset.compare("slt", self.layout.span)
            with e.when(near):
                e.store(e.load(source.at(offset), self.kind), line.at(offset))

    def _read_elements(self, line: Pointer, source: Pointer, column: Value) -> None:
        e, layout = self.e, self.layout
        spread, length = layout.width.spread, layout.length
        low = (e.smax(0 - column, 0) + (spread - 1)) // spread
        high = (e.smax(layout.width.size - column, 0) + (spread - 1)) // spread
        high = e.smin(high, length)
        with e.when(low.compare("slt", high)), e.loop("position", high, start=low) as i:
            e.store(e.load(source.at(i * (spread * layout.conv.x.spatial[2]))), line.at(i))

    def _turn(self, source: Pointer, row: int, to: Pointer, to_row: int, count: int) -> None:
        """Transpose `lanes` rows of `count` numbers, or as many numbers of rows of `lanes`.

        Squares are taken along the longer of the two; `row` and `to_row` lead to the next row.
        """
        e, lanes = self.e, self.layout.lanes
        with e.loop("first", count, step=lanes) as first:
            # One of the two has rows of `lanes` numbers: it goes on by rows, the other along them.
            a = source.at(first * (row if row == lanes else 1))
            b = to.at(first * (to_row if to_row == lanes else 1))
            values = [e.load(a.at(i * row), self.kind) for i in range(lanes)]
            for i, value in enumerate(transpose(e, values)):
                e.store(value, b.at(i * to_row))

    # -- columns ---------------------------------------------------------------------------
    def filter_columns(self) -> None:
        """Transform each column of the spectrum, multiply it, transform it back."""
        for column in self._columns():
            self._filter(column)

    def _columns(self) -> Iterator[_Column]:
        """Loop over the two real columns of the spectrum, then over the complex ones."""
        e, layout = self.e, self.layout
        half, lanes, length = layout.length // 2, layout.lanes, layout.length
        step = 2 * layout.reduction_steps  # weights of a frequency
        weights = self.pointers["w"].at(self.channel * (layout.bins * step))
        with e.loop("real", 2) as i:
            yield _Column(i * lanes, weights.at(i * ((half + 1) * step)), half + 1, True)
        with e.loop("complex", half - 1) as i:
            first = i * length + 2 * (half + 1)
            yield _Column((i + 1) * (2 * lanes), weights.at(first * step), length, False)

    def _filter(self, column: _Column) -> None:
        e, layout, terms = self.e, self.layout, self.layout.reduction_steps
        lanes, length = layout.lanes, layout.length
        forward, back = (
            (real_forward, real_inverse) if column.real else (complex_forward, complex_inverse)
        )
        if terms > 1:
            with e.loop("frequency", 2 * column.bins) as i:
                e.store(e.zero(self.kind), self.results.at(i * lanes))
        with e.loop("term", terms) as term:
            mid = self.mid.at(term * (length * layout.mid_row) + column.mid)

            def store(i: int, value: Value) -> None:
                e.store(value, self._bin(self.bins, column, i))
                if column.real and i < 2:  # the frequencies 0 and T/2 are real
                    e.store(e.zero(self.kind), self._bin(self.bins, column, i).at(lanes))

            emit_program(
                e,
                forward(length).program,
                lambda i: e.load(mid.at(self._number(column, i)), self.kind),
                store,
            )
            self._multiply(column, term)
        mid = self.mid.at(column.mid)
        emit_program(
            e,
            back(length, layout.height.kept).program,
            lambda i: e.load(self._bin(self.results, column, i), self.kind),
            lambda i, value: e.store(value, mid.at(self._number(column, i))),
        )

    def _number(self, column: _Column, i: int) -> int:
        """Offset of number i of a column of half-transformed tiles."""
        if column.real:
            return i * self.layout.mid_row
        return i // 2 * self.layout.mid_row + i % 2 * self.layout.lanes

    def _bin(self, bins: Pointer, column: _Column, i: int) -> Pointer:
        """Address of number i of a column's spectrum, packed as `network` says."""
        if column.real and i < 2:
            return bins.at(i * (self.layout.length // 2) * 2 * self.layout.lanes)
        return bins.at(i * self.layout.lanes)

    def _multiply(self, column: _Column, term: Value) -> None:
        """Multiply a column of a term by its weights; add the products to those of other terms."""
        e, lanes, terms = self.e, self.layout.lanes, self.layout.reduction_steps
        with e.loop("frequency", column.bins) as number:
            w = column.weights.at((number * terms + term) * 2)
            w_re, w_im = e.broadcast(w, self.kind), e.broadcast(w.at(1), self.kind)
            x, y = self.bins.at(number * (2 * lanes)), self.results.at(number * (2 * lanes))
            re, im = e.load(x, self.kind), e.load(x.at(lanes), self.kind)
            real, imaginary = re * w_re, re * w_im
            if terms > 1:
                real = e.fma(re, w_re, e.load(y, self.kind))
                imaginary = e.fma(re, w_im, e.load(y.at(lanes), self.kind))
            e.store(real - im * w_im, y)
            e.store(e.fma(im, w_re, imaginary), y.at(lanes))

    # -- rows of the outputs ---------------------------------------------------------------
    def store_rows(self) -> None:
        """Transform rows back; add the bias; store each tile's line.

        The bias is added to what comes out: accumulators hold sums of spectra.
        """
        e, layout, lanes = self.e, self.layout, self.layout.lanes
        bias = channel_address(self.pointers, "bias", self.channel)
        added = e.broadcast(bias, self.kind) if bias else None
        slope_at = channel_address(self.pointers, "slope", self.channel)
        slope = e.broadcast(slope_at, self.kind) if slope_at else None
        with e.loop("row", layout.height.step) as row:
            source = self.mid.at(row * layout.mid_row)
            emit_program(
                e,
                real_inverse(layout.length, layout.width.kept).program,
                lambda i: e.load(source.at(i * lanes), self.kind),
                lambda i, value: e.store(add_start(value, added), self.turned.at(i * lanes)),
            )
            self._turn(self.turned, lanes, self.lines, layout.line, layout.kept)
            with e.loop("lane", lanes) as lane:
                with e.when(row.compare("ult", self._place("rows", lane))):
                    self._store_line(lane, row, slope)

    def _store_line(self, lane: Value, row: Value, slope: Value | None) -> None:
        """Finish and store the columns of one tile's row that are outputs."""
        conv, e, layout, lanes = self.layout.conv, self.e, self.layout, self.layout.lanes
        apart = layout.height.residue_step * conv.y.spatial[1]
        step = layout.width.residue_step * conv.y.spatial[2]
        start = self._place("y", lane) + row * apart
        line, columns = self.lines.at(lane * layout.line), self._place("columns", lane)

        def store(first: Value, live: Columns | int) -> None:
            place = start + first * step
            residual = None
            if "residual" in self.pointers:
                at = self.pointers["residual"].at(place)
                residual = load_row(e, at, self.kind, 0, live, step)
            value = e.load(line.at(first), self.kind)
            value = finish(e, value, conv.epilogue.activation, slope, residual)
            store_row(e, value, self.pointers["y"].at(place), 0, live, step)

        with e.when(columns.compare("sge", lanes)):
            with e.loop("vector", columns // lanes) as number:
                store(number * lanes, lanes)
        rest = columns % lanes
        with e.when(columns.compare("sgt", 0) & rest.compare("ne", 0)):
            store(columns - rest, Columns(e, rest, 1, self.kind, self.target))
