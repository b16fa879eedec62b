"""The kernel of convolution by matrix tiles: chunks, blocks of tiles, and their epilogue."""

from __future__ import annotations

from leanconv.algorithms.tiles.input import repack_rows
from leanconv.algorithms.tiles.shape import JOB_BYTES, JOB_WORDS, TileShape
from leanconv.codegen.dot import dot_of
from leanconv.codegen.emitter import Function, Pointer, Value
from leanconv.codegen.epilogue import TileOutput, store_tile
from leanconv.codegen.matrix_tiles import COLUMNS, ROW_BYTES, ROWS, TILE_BYTES, Tiles
from leanconv.codegen.microkernel import RegisterTile
from leanconv.records import dataclass
from leanconv.target import Target


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
        self.input = scratch.at(conv.input_at)
        # Registers: sums first, then those of the input, then one or two of weights.
        self.c = [[i * conv.panels + j for j in range(conv.panels)] for i in range(conv.tiles)]
        at = conv.tiles * conv.panels
        self.b = list(range(at, at + conv.panels))
        self.a = list(range(at + conv.panels, 8))

    def emit(self) -> None:
        """Emit the function's body."""
        e, conv = self.e, self.conv
        rows = {r: conv.pixels for each in self.c for r in each}
        rows |= dict.fromkeys(self.a, conv.pixels) | dict.fromkeys(self.b, ROWS)
        self.tiles.configure(rows)
        self._write_offsets()
        for job in range(2 * conv.tiles * conv.panels):
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
        with e.loop("quad", conv.tiles * conv.panels * conv.quads) as quad:
            self._quad(quad, turn[0] ^ 1)
        self.tiles.release()

    def _write_offsets(self) -> None:
        """Write where each step's input is, in bytes from that of its tile."""
        e, conv = self.e, self.conv
        step = conv.taps * conv.window.dilation[2] * conv.pixel_bytes
        down = conv.window.dilation[1] * conv.row_bytes
        width, parts = conv.tap_groups, conv.parts
        with e.loop("kh", conv.window.kernel[1]) as kh, e.loop("kw", width) as kw:
            with e.loop("part", parts) as part:
                place = kh * down + kw * step + part * conv.part_bytes
                e.store(place, self.offsets.at((kh * width + kw) * parts + part))

    def _repack(self, n: Value, g: Value, first: Value, last: Value) -> None:
        conv, window = self.conv, self.conv.window
        x = self.pointers["x"].at(n * conv.x.image + g * conv.x.channel(conv.inputs))
        reach = (window.kernel[1] - 1) * window.dilation[1] + 1
        rows = (last - first - 1) * window.stride[1] + reach
        repack_rows(self.e, conv, x, first, rows, self.input)

    def _chunk(
        self, n: Value, g: Value, first: Value, last: Value, part: Value, turn: list[Value]
    ) -> None:
        """Emit the blocks of a chunk: panels, then tiles."""
        e, conv = self.e, self.conv
        count = (last - first) * conv.tiles_across
        blocks = (count + (conv.tiles - 1)) // conv.tiles
        low = part * conv.panel_pairs // conv.panel_blocks
        high = (part + 1) * conv.panel_pairs // conv.panel_blocks
        with e.loop("panel", high, [turn], start=low) as panel:
            with e.loop("block", blocks, [turn]) as block:
                self._block(n, g, first, count, panel, block, turn[0])
                turn[0] = turn[0] ^ 1

    def _block(
        self,
        n: Value,
        g: Value,
        first: Value,
        count: Value,
        panel: Value,
        block: Value,
        turn: Value,
    ) -> None:
        """Emit the products of a block, with the epilogue of the one before."""
        e, conv, tiles = self.e, self.conv, self.tiles
        channel = (g * conv.panel_pairs + panel) * (conv.panels * COLUMNS)
        inputs, places = [], []
        for i in range(conv.tiles):
            number = block * conv.tiles + i
            exists = number.compare("slt", count)
            number = e.smin(number, count - 1)
            row = number // conv.tiles_across
            column = number % conv.tiles_across * conv.pixels
            place = row * (conv.window.stride[1] * conv.row_bytes)
            place = place + column * (conv.window.stride[2] * conv.pixel_bytes)
            inputs.append(self.input.at(place))
            live = e.smin(conv.window.out[2] - column, conv.pixels)
            live = e.select(exists, live, e.i64(0))
            places.append((first + row, column, live))
        self._write_jobs(n, g, panel, channel, places, turn)
        for j in range(conv.panels):
            for i in range(conv.tiles):
                if "bias" in self.pointers:
                    tiles.load(self.c[i][j], self.pointers["bias"].at(channel + j * COLUMNS), 0)
                else:
                    tiles.zero(self.c[i][j])
        weights = self.pointers["w"].at(channel * (conv.steps * (TILE_BYTES // COLUMNS)))
        self._multiply(inputs, weights, turn ^ 1)
        to = self.sums.at(turn * conv.sums_bytes)
        for i in range(conv.tiles):
            for j in range(conv.panels):
                tiles.store(self.c[i][j], to.at((i * conv.panels + j) * TILE_BYTES))

    def _write_jobs(
        self,
        n: Value,
        g: Value,
        panel: Value,
        channel: Value,
        places: list[tuple[Value, Value, Value]],
        turn: Value,
    ) -> None:
        """Write where the sums of a block will go."""
        e, conv, y = self.e, self.conv, self.conv.y
        size = conv.precision.y.bytes
        image = n * y.image + g * y.channel(conv.outputs) + panel * y.channel(COLUMNS * conv.panels)
        jobs = self.jobs.at(turn * (conv.tiles * conv.panels * JOB_BYTES)).of("i64")
        for i, (row, column, live) in enumerate(places):
            pixel = image + row * y.spatial[1] + column * y.spatial[2]
            for j in range(conv.panels):
                job = jobs.at((i * conv.panels + j) * JOB_WORDS)
                place = (pixel + y.channel(j * COLUMNS)) * size
                if j and conv.outputs % (COLUMNS * conv.panels):
                    there = panel * (COLUMNS * conv.panels) + j * COLUMNS
                    live = e.select(there.compare("slt", conv.outputs), live, e.i64(0))
                for number, value in enumerate((place, live, channel + j * COLUMNS)):
                    e.store(value, job.at(number + 1))

    def _multiply(self, inputs: list[Pointer], weights: Pointer, before: Value) -> None:
        """Emit the steps, each with its share of the epilogue of the block before."""
        e, conv = self.e, self.conv
        quads, steps = conv.tiles * conv.panels * conv.quads, conv.steps
        each = -(-quads // steps)
        busy = -(-quads // each)  # steps with quads; the last one may have fewer
        with e.loop("step", busy) as step:
            self._step(inputs, weights, step)
            end = e.smin((step + 1) * each, quads)
            with e.loop("quad", end, start=step * each) as quad:
                self._quad(quad, before)
        if busy < steps:
            with e.loop("step", steps, start=busy) as step:
                self._step(inputs, weights, step)

    def _step(self, inputs: list[Pointer], weights: Pointer, step: Value) -> None:
        e, conv, tiles = self.e, self.conv, self.tiles
        offset = e.load_index(self.offsets.at(step))
        stride = conv.window.stride[2] * conv.pixel_bytes
        for j in range(conv.panels):
            panel = weights.at(step * TILE_BYTES + j * (conv.steps * TILE_BYTES))
            tiles.load(self.b[j], panel, ROW_BYTES)
        for i in range(conv.tiles):
            a = self.a[i % len(self.a)]
            tiles.load(a, inputs[i].at(offset), stride)
            for j in range(conv.panels):
                tiles.multiply(self.c[i][j], a, self.b[j])

    def _quad(self, quad: Value, turn: Value) -> None:
        """Finish and store four columns of a tile of sums, or as many of them as there are."""
        e, conv = self.e, self.conv
        number, start = quad // conv.quads, quad % conv.quads * 4
        jobs = self.jobs.at(turn * (conv.tiles * conv.panels * JOB_BYTES)).of("i64")
        job = jobs.at(number * JOB_WORDS)
        place, live, channel = (e.load_index(job.at(word)) for word in (1, 2, 3))
        sums = self.sums.at(turn * conv.sums_bytes + number * TILE_BYTES + start * ROW_BYTES)
        whole = live.compare("sge", start + 4)
        with e.when(whole):
            self._finish(sums, 4, place, start, channel)
        some = live.compare("sgt", start) & (whole ^ 1)
        with e.when(some), e.loop("column", live, start=start) as column:
            one = sums.at((column - start) * ROW_BYTES)
            self._finish(one, 1, place, column, channel)

    def _finish(
        self, sums: Pointer, columns: int, place: Value, column: Value, channel: Value
    ) -> None:
        """Finish and store neighbouring columns of 16 outputs."""
        e, conv = self.e, self.conv
        dot = dot_of(conv.precision, "lanes")
        tile = RegisterTile(dot, COLUMNS, 1, 0)
        values = sums.of(tile.element)
        acc = [e.load(values.at(i * COLUMNS), tile.kind) for i in range(columns)]
        types = conv.precision
        at = place + column * (conv.y.spatial[2] * types.y.bytes)
        y, residual = self.pointers["y"], self.pointers.get("residual")
        scale = self.pointers.get("scale")
        stored = None if types.y == types.accumulate else types.y
        output = TileOutput(
            conv.epilogue,
            conv.y,
            y.of("i8").at(at).of(types.y.llvm),
            residual.of("i8").at(at).of(types.y.llvm) if residual else None,
            scale.at(channel) if scale else None,
            stored,
            self.pointers.get("quantisation"),
        )
        store_tile(e, tile, acc, output, COLUMNS)
