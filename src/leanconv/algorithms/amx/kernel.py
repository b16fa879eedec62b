"""The kernel of convolution by matrix tiles: chunks, blocks of tiles, and their epilogue.

What was multiplied in one block is finished during the next:

    y[columns of a run, 16 outputs] = epilogue(sums + bias)            four columns at a time

The places of sums are written down when they are multiplied: jobs, runs of neighbouring columns of
one row of the output. A part of the epilogue is a few times four columns of one job.
"""

from __future__ import annotations

from collections.abc import Mapping

from leanconv.algorithms.amx.input import repack_rows
from leanconv.algorithms.amx.shape import COLUMNS_TOGETHER, JOB_BYTES, JOB_WORDS, TileShape
from leanconv.codegen.dot import dot_of
from leanconv.codegen.emitter import Function, Pointer, Value
from leanconv.codegen.epilogue import TileOutput, store_tile, with_numbers
from leanconv.codegen.matrix_tiles import (
    COLUMNS,
    REGISTERS,
    ROW_BYTES,
    ROWS,
    TILE_BYTES,
    Tiles,
)
from leanconv.codegen.microkernel import RegisterTile
from leanconv.records import dataclass, replace
from leanconv.spec.format import ALIGNMENT, ceil_div
from leanconv.target import Target


class Epilogue:
    """Emits parts of the epilogue of a block.

    Args:
        e: the function to append to.
        kernel: the convolution.
        pointers: addresses of its operands.
        sums: two buffers of sums in scratch.
        jobs: their places in y, in scratch.
    """

    def __init__(
        self,
        e: Function,
        kernel: TileShape,
        pointers: Mapping[str, Pointer],
        sums: Pointer,
        jobs: Pointer,
    ) -> None:
        conv = kernel.conv
        self.e, self.kernel, self.pointers, self.sums, self.jobs = e, kernel, pointers, sums, jobs
        types = conv.precision
        self.tile = RegisterTile(dot_of(types, "pairs"), COLUMNS, 1, 0)
        output = TileOutput(
            conv.epilogue,
            conv.y,
            self.pointers["y"],
            self.pointers.get("residual"),
            self.pointers.get("scale") or self.pointers.get("slope"),
            None if types.y == types.accumulate else types.y,
            self.pointers.get("quantisation"),
            factor_step=kernel.packed_channels,
        )
        self.output = with_numbers(e, self.tile, output)

    @property
    def parts(self) -> int:
        """Parts of the epilogue of a block, of `_quads` times four columns."""
        return self.kernel.jobs * self.kernel.quads // self._quads

    @property
    def _quads(self) -> int:
        """Groups of four columns in one part of the epilogue, a power of 2."""
        kernel = self.kernel
        wanted, size = ceil_div(kernel.jobs * kernel.quads, kernel.steps), 1
        while size < min(wanted, kernel.quads):
            size *= 2
        return size

    def part(self, part: Value, turn: Value) -> None:
        """Finish and store neighbouring columns of a tile of sums, as many of them as exist."""
        e, kernel, quads = self.e, self.kernel, self._quads
        per_run = kernel.quads // quads
        number, start = part // per_run, part % per_run * (quads * COLUMNS_TOGETHER)
        job = self.jobs.at(turn * (kernel.jobs * JOB_BYTES)).of("i64").at(number * JOB_WORDS)
        at, place, live, channel = (e.load_index(job.at(word)) for word in range(JOB_WORDS))
        sums = self.sums.at(turn * kernel.sums_bytes + at + start * ROW_BYTES)
        place = place + start * (kernel.conv.y.spatial[2] * kernel.conv.precision.y.bytes)
        left = live - start
        whole = left.compare("sge", quads * COLUMNS_TOGETHER)
        with e.when(whole):
            for quad in range(quads):
                self._finish(sums, place, channel, quad * COLUMNS_TOGETHER, COLUMNS_TOGETHER)
        some = left.compare("sgt", 0) & (whole ^ 1)
        with e.when(some):
            self._finish_some(sums, place, channel, left)

    def _finish_some(self, sums: Pointer, place: Value, channel: Value, left: Value) -> None:
        """Finish and store `left` columns, one at least and not all of a part."""
        e, usual = self.e, self.kernel.pixels % COLUMNS_TOGETHER  # of a tile's last columns
        with e.loop("quad", (left + (COLUMNS_TOGETHER - 1)) // COLUMNS_TOGETHER) as quad:
            first = quad * COLUMNS_TOGETHER
            count = e.smin(left - first, COLUMNS_TOGETHER)
            others = e.i64(1).compare("eq", 1)
            for known in {COLUMNS_TOGETHER, usual} - {0, 1}:
                alike = count.compare("eq", known)
                others = others & (alike ^ 1)
                with e.when(alike):
                    self._finish(sums, place, channel, first, known)
            with e.when(others), e.loop("column", first + count, start=first) as column:
                self._finish(sums, place, channel, column, 1)

    def _finish(
        self, sums: Pointer, place: Value, channel: Value, column: Value | int, columns: int
    ) -> None:
        """Finish and store neighbouring columns of 16 outputs."""
        e, kernel, out = self.e, self.kernel, self.output
        values = sums.of(self.tile.element).at(column * COLUMNS)
        acc = [e.load(values.at(i * COLUMNS), self.tile.kind) for i in range(columns)]
        if "bias" in self.pointers:
            bias = e.load(self.pointers["bias"].at(channel), self.tile.kind)
            acc = [value + bias for value in acc]
        stored = kernel.conv.precision.y
        at = place + column * (kernel.conv.y.spatial[2] * stored.bytes)
        out = replace(
            out,
            y=out.y.of("i8").at(at).of(stored.llvm),
            residual=out.residual.of("i8").at(at).of(stored.llvm) if out.residual else None,
            factors=out.factors.at(channel) if out.factors else None,
        )
        store_tile(e, self.tile, acc, out, COLUMNS)


@dataclass(frozen=True, kw_only=True)
class TileConv(TileShape):
    """The code of one convolution over blocks of channels."""

    VARIES = True

    def emit(self, target: Target) -> str:
        """Emit the loops: chunks, panels, blocks of tiles."""
        e = Function(self.NAME)
        _Emission(e, self).emit()
        return e.finish()


@dataclass
class _Run:
    """Neighbouring columns of one row in a tile.

    Attributes:
        start: the first one's row in the tile.
        row, column: the first one's place in the output.
        columns: their number; below 1: none.
    """

    start: Value
    row: Value
    column: Value
    columns: Value


class _Emission:
    """Emission of one kernel.

    Sums are finished one block later: while tiles of one are multiplied, those of the block before
    go from one of two buffers through the epilogue, four columns at a time.
    """

    def __init__(self, e: Function, kernel: TileConv) -> None:
        self.e, self.kernel = e, kernel
        self.pointers = kernel.addresses(e)
        self.tiles = Tiles(e, kernel.conv.precision)
        scratch = e.scratch
        self.sums = scratch
        self.jobs = scratch.at(kernel.jobs_at)
        self.offsets = scratch.at(kernel.offsets_at).of("i64")
        self.line = scratch.at(kernel.line_at)
        self.input = scratch.at(kernel.input_at)
        # Registers: sums first, then those of the input, then one or two of weights.
        self.c = [
            [i * kernel.panels + j for j in range(kernel.panels)] for i in range(kernel.tiles)
        ]
        at = kernel.tiles * kernel.panels
        self.b = list(range(at, at + kernel.panels))
        self.a = list(range(at + kernel.panels, REGISTERS))

    def emit(self) -> None:
        conv, e, kernel = self.kernel.conv, self.e, self.kernel
        rows = {r: kernel.pixels for each in self.c for r in each}
        rows |= dict.fromkeys(self.a, kernel.pixels) | dict.fromkeys(self.b, ROWS)
        self.tiles.configure(rows)
        self.epilogue = Epilogue(e, kernel, self.pointers, self.sums, self.jobs)
        self._write_offsets()
        for job in range(2 * kernel.jobs):
            e.store(e.i64(0), self.jobs.at(job * JOB_BYTES).of("i64").at(2))
        turn: list[Value] = [e.i64(0)]
        with e.loop("chunk", e.hi, [turn], start=e.lo) as chunk:
            extents = conv.batch, conv.groups, kernel.row_blocks, kernel.panel_blocks
            n, g, block, part = e.split(chunk, *extents)
            first = block * kernel.rows
            last = e.smin(first + kernel.rows, conv.window.out[1])
            fresh = part.compare("eq", 0) | chunk.compare("eq", e.lo)
            with e.when(fresh):
                self._repack(n, g, first, last)
            self._chunk(n, g, first, last, part, turn)
        with e.loop("part", self.epilogue.parts) as part:
            self.epilogue.part(part, turn[0] ^ 1)
        self.tiles.release()

    def _write_offsets(self) -> None:
        """Write where each step's input is, in bytes from that of its tile."""
        e, kernel = self.e, self.kernel
        down = (
            kernel.conv.window.dilation[1] * kernel.tap_rows // kernel.row_step * kernel.row_bytes
        )
        height, width = kernel.row_groups, kernel.tap_groups
        with e.loop("part", kernel.parts) as part, e.loop("kh", height) as kh:
            with e.loop("kw", width) as kw:
                place = kh * down + kw * kernel.tap_bytes + part * kernel.part_bytes
                e.store(place, self.offsets.at((part * height + kh) * width + kw))

    def _repack(self, n: Value, g: Value, first: Value, last: Value) -> None:
        conv, kernel, window = self.kernel.conv, self.kernel, self.kernel.conv.window
        x = self.pointers["x"].at(n * conv.x.image + g * conv.x.channel(conv.inputs))
        reach = (window.kernel[1] - 1) * window.dilation[1] + 1
        rows = (last - first - 1) * window.stride[1] + reach
        repack_rows(self.e, kernel, x, first, rows, self.input, self.line)

    def _chunk(
        self, n: Value, g: Value, first: Value, last: Value, part: Value, turn: list[Value]
    ) -> None:
        """Emit the blocks of a chunk: panels, then tiles."""
        e, kernel = self.e, self.kernel
        rows, width = last - first, kernel.conv.window.out[2]
        count = rows * kernel.tiles_across
        if kernel.flat:
            count = ((rows - 1) * kernel.columns + (width + (kernel.pixels - 1))) // kernel.pixels
        blocks = (count + (kernel.tiles - 1)) // kernel.tiles
        lines = e.i64(kernel.step_lines)
        if kernel.ahead == kernel.pair_bytes:
            lines = (blocks + (kernel.step_lines - 1)) // blocks
        low = part * kernel.panel_pairs // kernel.panel_blocks
        high = (part + 1) * kernel.panel_pairs // kernel.panel_blocks
        with e.loop("panel", high, [turn], start=low) as panel:
            with e.loop("block", blocks, [turn]) as block:
                line = block * lines
                self.lines = line, e.smin(line + lines, kernel.step_lines)
                self._block(n, g, (first, last), count, panel, block, turn[0])
                turn[0] = turn[0] ^ 1

    def _block(
        self,
        n: Value,
        g: Value,
        rows: tuple[Value, Value],
        count: Value,
        panel: Value,
        block: Value,
        turn: Value,
    ) -> None:
        """Emit the products of a block, with the epilogue of the one before."""
        kernel, tiles = self.kernel, self.tiles
        channel = (g * kernel.panel_pairs + panel) * (kernel.panels * COLUMNS)
        inputs, runs = [], []
        for i in range(kernel.tiles):
            place, found = self._tile(block * kernel.tiles + i, count, rows)
            inputs.append(self.input.at(place))
            runs.append(found)
        self._write_jobs(n, g, panel, channel, runs, turn)
        for each in self.c:
            for register in each:
                tiles.zero(register)
        weights = self.pointers["w"].of("i8").at(channel * (kernel.steps * (TILE_BYTES // COLUMNS)))
        self._multiply(inputs, weights, turn ^ 1)
        to = self.sums.at(turn * kernel.sums_bytes)
        for i in range(kernel.tiles):
            for j in range(kernel.panels):
                tiles.store(self.c[i][j], to.at((i * kernel.panels + j) * TILE_BYTES))

    def _tile(
        self, number: Value, count: Value, rows: tuple[Value, Value]
    ) -> tuple[Value, list[_Run]]:
        """Return the offset in scratch of a tile's input, and its runs of columns, perhaps empty.

        Args:
            number, count: the tile, and how many there are.
            rows: of output, of the chunk.
        """
        e, kernel, width = self.e, self.kernel, self.kernel.conv.window.out[2]
        exists = number.compare("slt", count)
        number = e.smin(number, count - 1)
        first, last = rows
        if not kernel.flat:
            row = number // kernel.tiles_across
            column = number % kernel.tiles_across * kernel.pixels
            down = kernel.conv.window.stride[1] // kernel.row_step * kernel.row_bytes
            place = row * down + column * kernel.column_bytes
            live = e.select(exists, e.smin(width - column, kernel.pixels), e.i64(0))
            return place, [_Run(e.i64(0), first + row, column, live)]
        position = number * kernel.pixels
        row, column = first + position // kernel.columns, position % kernel.columns
        runs = [_Run(e.i64(0), row, column, e.smin(width - column, kernel.pixels))]
        for later in range(1, kernel.segments):
            start = later * kernel.columns - column
            runs.append(_Run(start, row + later, e.i64(0), e.smin(kernel.pixels - start, width)))
        for run in runs:
            inside = exists & run.row.compare("slt", last)
            run.columns = e.select(inside, run.columns, e.i64(0))
        return position * ROW_BYTES, runs

    def _write_jobs(
        self,
        n: Value,
        g: Value,
        panel: Value,
        channel: Value,
        tiles: list[list[_Run]],
        turn: Value,
    ) -> None:
        """Write where the sums of a block will go."""
        conv, e, kernel, y = self.kernel.conv, self.e, self.kernel, self.kernel.conv.y
        size, width = conv.precision.y.bytes, COLUMNS * kernel.panels
        image = n * y.image + g * y.channel(conv.outputs) + panel * y.channel(width)
        job = self.jobs.at(turn * (kernel.jobs * JOB_BYTES)).of("i64")
        for i, runs in enumerate(tiles):
            for j in range(kernel.panels):
                for run in runs:
                    pixel = image + run.row * y.spatial[1] + run.column * y.spatial[2]
                    sums = run.start * ROW_BYTES + (i * kernel.panels + j) * TILE_BYTES
                    live = run.columns
                    if j and conv.outputs % width:
                        there = (panel * width + j * COLUMNS).compare("slt", conv.outputs)
                        live = e.select(there, live, e.i64(0))
                    place = (pixel + y.channel(j * COLUMNS)) * size
                    for word, value in enumerate((sums, place, live, channel + j * COLUMNS)):
                        e.store(value, job.at(word))
                    job = job.at(JOB_WORDS)

    def _multiply(self, inputs: list[Pointer], weights: Pointer, before: Value) -> None:
        """Emit the steps, each with its share of the epilogue of the block before."""
        e, kernel = self.e, self.kernel
        steps, parts = kernel.steps, self.epilogue.parts
        each = ceil_div(parts, steps)
        busy = ceil_div(parts, each)  # steps with such a share; that of the last may be less
        with e.loop("step", busy) as step:
            self._step(inputs, weights, step)
            end = e.smin((step + 1) * each, parts)
            with e.loop("part", end, start=step * each) as part:
                self.epilogue.part(part, before)
        if busy < steps:
            with e.loop("step", steps, start=busy) as step:
                self._step(inputs, weights, step)

    def _step(self, inputs: list[Pointer], weights: Pointer, step: Value) -> None:
        e, kernel, tiles = self.e, self.kernel, self.tiles
        offset = e.load_index(self.offsets.at(step))
        at = weights.at(step * (kernel.panels * TILE_BYTES))
        if kernel.ahead:
            low, high = self.lines
            later = at.at(kernel.ahead)
            with e.when(low.compare("slt", high)), e.loop("line", high, start=low) as line:
                e.prefetch(later.at(line * ALIGNMENT), locality=2)
        for j in range(kernel.panels):
            tiles.load(self.b[j], at.at(j * TILE_BYTES), ROW_BYTES)
        for i in range(kernel.tiles):
            a = self.a[i % len(self.a)]
            tiles.load(a, inputs[i].at(offset), kernel.column_bytes)
            for j in range(kernel.panels):
                tiles.multiply(self.c[i][j], a, self.b[j])
