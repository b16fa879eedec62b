"""The epilogue of tiles of sums: what was multiplied in one block is finished during the next.

    y[columns of a run, 16 outputs] = epilogue(sums + bias)            four columns at a time

Where sums go is written down when they are multiplied: jobs, runs of neighbouring columns of one
row of the output. A part of the epilogue is a few times four columns of one job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from leanconv.algorithms.tiles.shape import COLUMNS_TOGETHER, JOB_BYTES, JOB_WORDS, TileShape
from leanconv.codegen.dot import dot_of
from leanconv.codegen.emitter import Function, Pointer, Value
from leanconv.codegen.epilogue import TileOutput, store_tile, with_numbers
from leanconv.codegen.matrix_tiles import COLUMNS, ROW_BYTES
from leanconv.codegen.microkernel import RegisterTile
from leanconv.spec.format import ceil_div


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
