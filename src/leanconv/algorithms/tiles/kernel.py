"""The kernel of convolution by matrix tiles: chunks, blocks of tiles, and their epilogue.

What was multiplied in one block is finished during the next:

    y[columns of a run, 16 outputs] = epilogue(sums + bias)            four columns at a time

Where sums go is written down when they are multiplied: jobs, runs of neighbouring columns of one
row of the output. A part of the epilogue is a few times four columns of one job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from leanconv.algorithms.tiles.input import repack_rows
from leanconv.algorithms.tiles.shape import COLUMNS_TOGETHER, JOB_BYTES, JOB_WORDS, TileShape
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
from leanconv.records import dataclass
from leanconv.spec.format import ALIGNMENT, ceil_div
from leanconv.target import Target


class Epilogue:
    """Emits parts of the epilogue of a block.

    Args:
        e: the function to append to.
        conv: the convolution.
        pointers: addresses of its operands.
        sums: two buffers of sums in scratch.
        jobs: where they go, in scratch.
    """

    def __init__(
        self,
        e: Function,
        conv: TileShape,
        pointers: Mapping[str, Pointer],
        sums: Pointer,
        jobs: Pointer,
    ) -> None:
        self.e, self.conv, self.pointers, self.sums, self.jobs = e, conv, pointers, sums, jobs
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
            factor_step=conv.packed_channels,
        )
        self.output = with_numbers(e, self.tile, output)

    @property
    def parts(self) -> int:
        """Parts of the epilogue of a block, of `_quads` times four columns."""
        return self.conv.jobs * self.conv.quads // self._quads

    @property
    def _quads(self) -> int:
        """As many as each step has to take, at most those of a tile: a power of 2."""
        conv = self.conv
        wanted, size = ceil_div(conv.jobs * conv.quads, conv.steps), 1
        while size < min(wanted, conv.quads):
            size *= 2
        return size

    def part(self, part: Value, turn: Value) -> None:
        """Finish and store neighbouring columns of a tile of sums, as many of them as exist."""
        e, conv, quads = self.e, self.conv, self._quads
        per_run = conv.quads // quads
        number, start = part // per_run, part % per_run * (quads * COLUMNS_TOGETHER)
        job = self.jobs.at(turn * (conv.jobs * JOB_BYTES)).of("i64").at(number * JOB_WORDS)
        at, place, live, channel = (e.load_index(job.at(word)) for word in range(JOB_WORDS))
        sums = self.sums.at(turn * conv.sums_bytes + at + start * ROW_BYTES)
        place = place + start * (conv.y.spatial[2] * conv.precision.y.bytes)
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
        e, usual = self.e, self.conv.pixels % COLUMNS_TOGETHER  # of a tile's last columns
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
        e, conv, out = self.e, self.conv, self.output
        values = sums.of(self.tile.element).at(column * COLUMNS)
        acc = [e.load(values.at(i * COLUMNS), self.tile.kind) for i in range(columns)]
        if "bias" in self.pointers:
            bias = e.load(self.pointers["bias"].at(channel), self.tile.kind)
            acc = [value + bias for value in acc]
        stored = conv.precision.y
        at = place + column * (conv.y.spatial[2] * stored.bytes)
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
        del target
        e = Function(self.NAME)
        _Emission(e, self).emit()
        return e.finish()


@dataclass
class _Run:
    """Neighbouring columns of one row in a tile.

    Attributes:
        start: the first one's row in the tile.
        row, column: the first one's place in the output.
        columns: how many; below 1: none.
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

    def __init__(self, e: Function, conv: TileConv) -> None:
        self.e, self.conv = e, conv
        self.pointers = conv.addresses(e)
        self.tiles = Tiles(e, conv.precision)
        scratch = e.scratch
        self.sums = scratch
        self.jobs = scratch.at(conv.jobs_at)
        self.offsets = scratch.at(conv.offsets_at).of("i64")
        self.line = scratch.at(conv.line_at)
        self.input = scratch.at(conv.input_at)
        # Registers: sums first, then those of the input, then one or two of weights.
        self.c = [[i * conv.panels + j for j in range(conv.panels)] for i in range(conv.tiles)]
        at = conv.tiles * conv.panels
        self.b = list(range(at, at + conv.panels))
        self.a = list(range(at + conv.panels, REGISTERS))

    def emit(self) -> None:
        """Emit the function's body."""
        e, conv = self.e, self.conv
        rows = {r: conv.pixels for each in self.c for r in each}
        rows |= dict.fromkeys(self.a, conv.pixels) | dict.fromkeys(self.b, ROWS)
        self.tiles.configure(rows)
        self.epilogue = Epilogue(e, conv, self.pointers, self.sums, self.jobs)
        self._write_offsets()
        for job in range(2 * conv.jobs):
            e.store(e.i64(0), self.jobs.at(job * JOB_BYTES).of("i64").at(2))
        turn: list[Value] = [e.i64(0)]
        with e.loop("chunk", e.hi, [turn], start=e.lo) as chunk:
            extents = conv.batch, conv.groups, conv.row_blocks, conv.panel_blocks
            n, g, block, part = e.split(chunk, *extents)
            first = block * conv.rows
            last = e.smin(first + conv.rows, conv.window.out[1])
            fresh = part.compare("eq", 0) | chunk.compare("eq", e.lo)
            with e.when(fresh):
                self._repack(n, g, first, last)
            self._chunk(n, g, first, last, part, turn)
        with e.loop("part", self.epilogue.parts) as part:
            self.epilogue.part(part, turn[0] ^ 1)
        self.tiles.release()

    def _write_offsets(self) -> None:
        """Write where each step's input is, in bytes from that of its tile."""
        e, conv = self.e, self.conv
        down = conv.window.dilation[1] * conv.tap_rows // conv.row_step * conv.row_bytes
        height, width = conv.row_groups, conv.tap_groups
        with e.loop("part", conv.parts) as part, e.loop("kh", height) as kh:
            with e.loop("kw", width) as kw:
                place = kh * down + kw * conv.tap_bytes + part * conv.part_bytes
                e.store(place, self.offsets.at((part * height + kh) * width + kw))

    def _repack(self, n: Value, g: Value, first: Value, last: Value) -> None:
        conv, window = self.conv, self.conv.window
        x = self.pointers["x"].at(n * conv.x.image + g * conv.x.channel(conv.inputs))
        reach = (window.kernel[1] - 1) * window.dilation[1] + 1
        rows = (last - first - 1) * window.stride[1] + reach
        repack_rows(self.e, conv, x, first, rows, self.input, self.line)

    def _chunk(
        self, n: Value, g: Value, first: Value, last: Value, part: Value, turn: list[Value]
    ) -> None:
        """Emit the blocks of a chunk: panels, then tiles."""
        e, conv = self.e, self.conv
        rows, width = last - first, conv.window.out[2]
        count = rows * conv.tiles_across
        if conv.flat:
            count = ((rows - 1) * conv.columns + (width + (conv.pixels - 1))) // conv.pixels
        blocks = (count + (conv.tiles - 1)) // conv.tiles
        lines = e.i64(conv.step_lines)
        if conv.ahead == conv.pair_bytes:
            lines = (blocks + (conv.step_lines - 1)) // blocks
        low = part * conv.panel_pairs // conv.panel_blocks
        high = (part + 1) * conv.panel_pairs // conv.panel_blocks
        with e.loop("panel", high, [turn], start=low) as panel:
            with e.loop("block", blocks, [turn]) as block:
                line = block * lines
                self.lines = line, e.smin(line + lines, conv.step_lines)
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
        conv, tiles = self.conv, self.tiles
        channel = (g * conv.panel_pairs + panel) * (conv.panels * COLUMNS)
        inputs, runs = [], []
        for i in range(conv.tiles):
            place, found = self._tile(block * conv.tiles + i, count, rows)
            inputs.append(self.input.at(place))
            runs.append(found)
        self._write_jobs(n, g, panel, channel, runs, turn)
        for each in self.c:
            for register in each:
                tiles.zero(register)
        weights = self.pointers["w"].of("i8").at(channel * (conv.steps * (TILE_BYTES // COLUMNS)))
        self._multiply(inputs, weights, turn ^ 1)
        to = self.sums.at(turn * conv.sums_bytes)
        for i in range(conv.tiles):
            for j in range(conv.panels):
                tiles.store(self.c[i][j], to.at((i * conv.panels + j) * TILE_BYTES))

    def _tile(
        self, number: Value, count: Value, rows: tuple[Value, Value]
    ) -> tuple[Value, list[_Run]]:
        """Where a tile's input is in scratch, and its runs of columns; none if it does not exist.

        Args:
            number, count: the tile, and how many there are.
            rows: of output, of the chunk.
        """
        e, conv, width = self.e, self.conv, self.conv.window.out[2]
        exists = number.compare("slt", count)
        number = e.smin(number, count - 1)
        first, last = rows
        if not conv.flat:
            row = number // conv.tiles_across
            column = number % conv.tiles_across * conv.pixels
            down = conv.window.stride[1] // conv.row_step * conv.row_bytes
            place = row * down + column * conv.column_bytes
            live = e.select(exists, e.smin(width - column, conv.pixels), e.i64(0))
            return place, [_Run(e.i64(0), first + row, column, live)]
        position = number * conv.pixels
        row, column = first + position // conv.columns, position % conv.columns
        runs = [_Run(e.i64(0), row, column, e.smin(width - column, conv.pixels))]
        for later in range(1, conv.segments):
            start = later * conv.columns - column
            runs.append(_Run(start, row + later, e.i64(0), e.smin(conv.pixels - start, width)))
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
        e, conv, y = self.e, self.conv, self.conv.y
        size, width = conv.precision.y.bytes, COLUMNS * conv.panels
        image = n * y.image + g * y.channel(conv.outputs) + panel * y.channel(width)
        job = self.jobs.at(turn * (conv.jobs * JOB_BYTES)).of("i64")
        for i, runs in enumerate(tiles):
            for j in range(conv.panels):
                for run in runs:
                    pixel = image + run.row * y.spatial[1] + run.column * y.spatial[2]
                    sums = run.start * ROW_BYTES + (i * conv.panels + j) * TILE_BYTES
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
        e, conv = self.e, self.conv
        steps, parts = conv.steps, self.epilogue.parts
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
        e, conv, tiles = self.e, self.conv, self.tiles
        offset = e.load_index(self.offsets.at(step))
        at = weights.at(step * (conv.panels * TILE_BYTES))
        if conv.ahead:
            low, high = self.lines
            later = at.at(conv.ahead)
            with e.when(low.compare("slt", high)), e.loop("line", high, start=low) as line:
                e.prefetch(later.at(line * ALIGNMENT), locality=2)
        for j in range(conv.panels):
            tiles.load(self.b[j], at.at(j * TILE_BYTES), ROW_BYTES)
        for i in range(conv.tiles):
            a = self.a[i % len(self.a)]
            tiles.load(a, inputs[i].at(offset), conv.column_bytes)
            for j in range(conv.panels):
                tiles.multiply(self.c[i][j], a, self.b[j])
