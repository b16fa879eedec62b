"""A transposed convolution as a matrix product whose results are added where they overlap (col2im).

    cols[i, (o, k)] = sum over c of x[c, i] * w[c, (o, k)]        i: pixels of the input
    y[o, i * stride + k * dilation - pad] += cols[i, (o, k)]      from the bias on, then activated

Weights are packed in panels (c, vectors * lanes) of the columns (o, k): no column is multiplied
twice and none is left out, whatever the stride. A register tile has the columns of a panel at some
pixels; it goes to the scratch, and from there its runs are added to rows of y. A run is what lies
beside each other in y, a row of the kernel's taps:

    for chunk (image, group, unit of outputs, band of the output):
        y = bias
        for panel of the unit's columns:
            for tile of the band's pixels, the last one first:
                cols[i][j] = sum over c of broadcast(x[c, i]) * w[panel, c, j]     micro-kernel
                for i of the tile, the last one first:   for run of the panel:
                    y[run of i] += cols[i, run]
        y = activation(y)

A band is a range of the first axis that is longer than one. Its chunk alone writes its outputs, and
computes the columns of the few pixels before it that reach into it as well. An output is the sum of
its taps, the first one first, and of c within a tap: pixels go backwards as taps of one output do.
So bits depend on no tile, panel, band, size, image or thread.

What lies where is in the table `runs`, which follows from the kernel alone and not from sizes: for
each panel its first run and the one past its last, then for each run the column of the panel at
which it begins, its length, its block of outputs, and what it adds to the place along each axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext

from leanconv.algorithms.col2im.layout import PLACE, RUN, Col2ImLayout
from leanconv.codegen.activations import apply
from leanconv.codegen.dot import fma
from leanconv.codegen.emitter import Carry, Function, Pointer, Value, vector
from leanconv.codegen.microkernel import ReductionLoop, RegisterTile, multiply_accumulate
from leanconv.codegen.tails import where_any
from leanconv.kernels.copy import cover
from leanconv.records import dataclass
from leanconv.target import Target
from leanconv.types import INT64

_Along = Callable[[Value, "Value | int"], None]  # (place, lanes)
_OfVector = Callable[[Pointer, "Value | int", Mapping[str, Value]], None]

_ENDLESS = 1 << 62  # of a loop that ends by itself


@dataclass(frozen=True)
class Col2Im(Col2ImLayout):
    """The code of one transposed convolution; attributes as of `Col2ImLayout`."""

    def emit(self, target: Target) -> str:
        """Emit the loops: chunks, panels, tiles."""
        return _Emission(self, target).emit()


class _Emission:
    """The code of one kernel while it is written."""

    def __init__(self, kernel: Col2Im, target: Target) -> None:
        self.k, self.target, self.e = kernel, target, Function(kernel.NAME)
        self.kind = vector(kernel.dtype.llvm, kernel.lanes)
        # Along these axes a column may lie outside of the output, or of the chunk's part of it.
        window = kernel.window
        self.checked = [axis for axis in (0, 1) if not self._is_flat(axis)]
        self.size = window.size

    def _is_flat(self, axis: int) -> bool:
        """Return whether input and output have one position along an axis, and one unpadded tap."""
        window = self.k.window
        one = window.size[axis] == 1 == window.out[axis] == window.kernel[axis]
        return one and window.pad[axis] == 0

    def emit(self) -> str:
        e, k = self.e, self.k
        pointers = e.pointers(k.operands, k.dtype.llvm, runs=INT64.llvm)
        with e.chunks(*k.grid) as (n, g, unit, band):
            own_unit = g * k.units + unit
            first_block = own_unit * k.unit
            x = pointers["x"].at(n * k.x.image).at(k.x.panel(g, k.inputs))
            y = pointers["y"].at(n * k.y.image).at(first_block * k.y.block_stride)
            w = pointers["w"].at(own_unit * (k.panels * k.width) * k.inputs)
            first, stop, low, high = self._band(band)
            start = first * k.inner
            end = stop * k.inner
            self._each_vector(y, low, high, first_block, pointers, self._start)
            scratch = e.scratch
            cols = scratch.of(k.dtype.llvm)
            places = scratch.at(k.cols_bytes).of(INT64.llvm)
            offsets = scratch.at(k.cols_bytes + k.places_bytes).of(INT64.llvm)
            packed = scratch.at(k.cols_bytes + k.places_bytes + k.offsets_bytes).of(k.dtype.llvm)
            self._places(places, start, end)
            self._offsets(pointers["runs"].at(k.panels * 2), offsets)
            tiles = (end - start + (k.tile.rows - 1)) // k.tile.rows
            if k.packed:
                self._pack(x, packed, end, tiles)
            with e.loop("panel", k.panels) as panel:
                own = w.at(panel * k.width * k.inputs)
                with e.loop("tile", tiles) as number:
                    stop = end - number * k.tile.rows
                    at = e.smax(stop - k.tile.rows, 0)
                    if k.packed:
                        of_x = packed.at(number * k.tile.rows * k.inputs)
                    else:
                        of_x = x.at(at * k.x.spatial[2])
                    self._columns(of_x, own, cols)
                    rows = e.smax(start, stop - k.tile.rows) - at, stop - at
                    of_tile = places.at((at - start) * PLACE)
                    tables = pointers["runs"], offsets, of_tile
                    self._add_runs(tables, panel, cols, rows, y, (low, high))
            if k.epilogue.activation is not None:
                self._each_vector(y, low, high, first_block, pointers, self._finish)
        return e.finish()

    def _band(self, band: Value) -> tuple[Value, Value, Value, Value]:
        """The input's positions that a band reads, and the output's that it writes, half open."""
        e, k, axis = self.e, self.k, self.k.axis
        size, out = k.window.size[axis], k.window.out[axis]
        stride, pad = k.window.stride[axis], k.window.pad[axis]
        begin = band * size // k.bands
        stop = (band + 1) * size // k.bands
        low, high = (e.smin(e.smax(at * stride - pad, 0), out) for at in (begin, stop))
        low = e.select(band.compare("eq", 0), e.i64(0), low)
        high = e.select((band + 1).compare("eq", k.bands), e.i64(out), high)
        return e.smax(begin - k.halo, 0), stop, low, high

    # -- outputs before and after --------------------------------------------------------------
    def _each_vector(
        self,
        y: Pointer,
        low: Value,
        high: Value,
        block: Value,
        pointers: dict[str, Pointer],
        body: _OfVector,
    ) -> None:
        """Call `body(address, kind, lanes, numbers)` for all outputs of a chunk.

        Args:
            y: the first of the unit's blocks.
            low, high: the band.
            block: number of the unit's first block of outputs.
            pointers: bias and slopes.
            body: emits what is done with one vector, the last one of fewer lanes; numbers are the
                bias and the slopes of its channels.
        """
        e, k = self.e, self.k
        step = k.y.spatial[k.axis]
        count = (high - low) * step
        with e.loop("output", k.unit) as output:
            rows = y.at(output * k.y.block_stride).at(low * step)
            numbers: dict[str, Value] = {}
            for name in ("bias", "slope"):
                if name in pointers:
                    here = pointers[name].at((block + output) * k.y.block)
                    load = e.load if k.y.block > 1 else e.broadcast
                    numbers[name] = load(here, self.kind)
            self._along(
                e.i64(0),
                count,
                lambda at, lanes: body(rows.at(at), lanes, numbers),
            )

    def _start(self, y: Pointer, lanes: Value | int, numbers: Mapping[str, Value]) -> None:
        self._store(numbers.get("bias", self.e.zero(self.kind)), y, lanes)

    def _finish(self, y: Pointer, lanes: Value | int, numbers: Mapping[str, Value]) -> None:
        value = self._load(y, lanes)
        slope = numbers.get("slope")
        self._store(apply(self.e, value, self.k.epilogue.activation, slope), y, lanes)

    def _along(self, start: Value, stop: Value, body: _Along) -> None:
        """Call `body(at, lanes)` for vectors from start to stop, which may be none.

        What is left is one vector under a mask, or, where masks are slow, element by element.
        """
        e, lanes = self.e, self.k.lanes
        last = stop - (lanes - 1)  # a whole vector begins before
        place: Carry = [start]
        with e.when(start.compare("slt", last), [place]):
            ends: Carry = [start.compare("eq", start)]
            with e.loop("vector", _ENDLESS, [place], until=ends):
                body(place[0], lanes)
                place[0] = place[0] + lanes
                ends[0] = place[0].compare("sge", last)
        if self.k.y.block > 1:
            return
        left = stop - place[0]
        with e.when(left.compare("sgt", 0)):
            if self.target.runtime_masks:
                body(place[0], left)
            else:
                with e.loop("element", stop, start=place[0]) as at:
                    body(at, 1)

    def _load(self, address: Pointer, lanes: Value | int) -> Value:
        return self.e.load_first(address, self.kind, lanes)

    def _store(self, value: Value, address: Pointer, lanes: Value | int) -> None:
        self.e.store_first(value, address, lanes)

    # -- columns -------------------------------------------------------------------------------
    def _places(self, places: Pointer, start: Value, end: Value) -> None:
        """Write where the columns of each pixel of a band begin."""
        e, k, window = self.e, self.k, self.k.window
        with e.loop("place", end, start=start) as pixel:
            position = e.split(pixel, *window.size)
            here = places.at((pixel - start) * PLACE)
            offset: Value = e.i64(0)
            for axis in (0, 1, 2):
                along = position[axis] * window.stride[axis] - window.pad[axis]
                if axis == 2:
                    along = along * k.y.block
                    e.store(along, here.at(axis))
                    offset = offset + along
                elif axis in self.checked:
                    e.store(along, here.at(axis))
                    offset = offset + along * k.y.spatial[axis]
            e.store(offset, here.at(3))

    def _offsets(self, table: Pointer, offsets: Pointer) -> None:
        """Write the offset of each run from a pixel's place in y."""
        e, k = self.e, self.k
        with e.loop("run", k.runs) as number:
            _, _, block, *shift = (e.load_index(table.at(number * RUN + i)) for i in range(RUN))
            offset = block * k.y.block_stride + shift[2]
            for axis in self.checked:
                offset = offset + shift[axis] * k.y.spatial[axis]
            e.store(offset, offsets.at(number))

    def _pack(self, x: Pointer, packed: Pointer, end: Value, tiles: Value) -> None:
        """Copy the pixels before `end` of all channels: tile by tile [c][pixel], the last first."""
        e, k, rows = self.e, self.k, self.k.tile.rows
        with e.loop("channel", k.inputs) as channel:
            plane, here = x.at(channel * k.x.block_stride), packed.at(channel * rows)
            with e.loop("tile", tiles) as number:
                source = plane.at(e.smax(end - (number + 1) * rows, 0))
                to = here.at(number * rows * k.inputs)

                def copy(
                    at: Value | int, lanes: int, source: Pointer = source, to: Pointer = to
                ) -> None:
                    kind = vector(k.dtype.llvm, lanes)
                    e.store(e.load(source.at(at), kind), to.at(at))

                cover(e, rows, k.lanes, copy)

    def _columns(self, x: Pointer, w: Pointer, cols: Pointer) -> None:
        """Compute the columns of a panel at the pixels from x on."""
        e, k = self.e, self.k
        rows, vectors = k.tile.rows, k.tile.vectors
        acc = [e.zero(self.kind)] * (rows * vectors)
        block, step = k.x.block, 1 if k.packed else k.x.spatial[2]
        tile = RegisterTile(fma(k.dtype), k.lanes, vectors, step)
        if k.packed:
            loops = [ReductionLoop("c", k.inputs, rows, k.width)]
            multiply_accumulate(e, tile, acc, range(rows), x, w, loops)
        elif block == 1:
            loops = [ReductionLoop("c", k.inputs, k.x.block_stride, k.width)]
            multiply_accumulate(e, tile, acc, range(rows), x, w, loops)
        else:
            whole, rest = divmod(k.inputs, block)
            inside = ReductionLoop("c", block, 1, k.width)
            for _ in where_any(e, whole, [acc]):
                outside = ReductionLoop("block", whole, k.x.block_stride, block * k.width)
                multiply_accumulate(e, tile, acc, range(rows), x, w, [outside, inside])
            for _ in where_any(e, rest, [acc]):
                last = x.at(whole * k.x.block_stride), w.at(whole * (block * k.width))
                loops = [ReductionLoop("c", rest, 1, k.width)]
                multiply_accumulate(e, tile, acc, range(rows), *last, loops)
        for number, value in enumerate(acc):
            e.store(value, cols.at(number * k.lanes))

    def _add_runs(
        self,
        tables: tuple[Pointer, Pointer, Pointer],
        panel: Value,
        cols: Pointer,
        rows: tuple[Value, Value],
        y: Pointer,
        band: tuple[Value, Value],
    ) -> None:
        """Add the columns of a tile's pixels `rows` to y, the last pixel first.

        Args:
            tables: of runs, of their offsets, and of the places of the tile's pixels.
            panel: number of the panel.
            cols: the columns.
            rows: the first pixel of the tile that counts, and one past the last.
            y: the unit's outputs.
            band: the outputs of the chunk along the axis of the bands.
        """
        e, k = self.e, self.k
        runs, offsets, places = tables
        bounds, table = runs.at(panel * 2), runs.at(k.panels * 2)
        first, stop = e.load_index(bounds), e.load_index(bounds.at(1))
        with e.loop("pixel", rows[1] - rows[0]) as number:
            row = rows[1] - 1 - number
            place, columns = places.at(row * PLACE), cols.at(row * k.width)
            there, begin = y.at(e.load_index(place.at(3))), e.load_index(place.at(2))
            with e.loop("run", stop, start=first) as index:
                run = table.at(index * RUN)
                inside = self._inside(place, run, band)
                with nullcontext() if inside is None else e.when(inside):
                    source = columns.at(e.load_index(run))
                    to = there.at(e.load_index(offsets.at(index)))
                    length, shift = e.load_index(run.at(1)), e.load_index(run.at(RUN - 1))
                    self._add_run(source, to, length, begin + shift, band)

    def _limits(self, axis: int, band: tuple[Value, Value]) -> tuple[Value, Value]:
        """The outputs of a chunk along an axis."""
        e = self.e
        return band if axis == self.k.axis else (e.i64(0), e.i64(self.k.window.out[axis]))

    def _inside(self, place: Pointer, run: Pointer, band: tuple[Value, Value]) -> Value | None:
        """Return whether a run lies in the chunk's outputs along depth and height; None: always."""
        e, found = self.e, None
        for axis in self.checked:
            low, high = self._limits(axis, band)
            at = e.load_index(place.at(axis)) + e.load_index(run.at(3 + axis))
            within = (at - low).compare("ult", high - low)
            found = within if found is None else found & within
        return found

    def _add_run(
        self, source: Pointer, y: Pointer, length: Value, begin: Value, band: tuple[Value, Value]
    ) -> None:
        """Add one run of one pixel, without columns beside the chunk's outputs.

        Args:
            source: its columns.
            y: address to which the first of them is added.
            length: columns.
            begin: the place of the first along the width.
            band: as in `_add_runs`.
        """
        e, block = self.e, self.k.y.block
        low, high = (limit * block for limit in self._limits(2, band))
        start, stop = e.smax(low - begin, 0), e.smin(length, high - begin)

        def add(at: Value, lanes: Value | int) -> None:
            total = self._load(y.at(at), lanes)
            added = e.load(source.at(at), self.kind)
            self._store(total + added, y.at(at), lanes)

        self._along(start, stop, add)
