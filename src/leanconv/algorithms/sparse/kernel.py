"""The kernel that skips zeros: tiles of planes in scratch, and a stream of nonzero weights.

A chunk is some output channels of one group over one tile of some rows by some columns. Block by
block of input channels it copies what the tile reads into scratch, where every tap of a channel
leads to plain vectors that follow each other:

    scratch   [channel of the block][tap of the depth][row's residue][tap of the row][row][column]

A row's residue is that of its number by the stride. So padding, strides and dilation are matters of
the copy alone, and no vector of whole lines begins within one. Rows of a tile follow each other, so
that a narrow map fills its vectors. A 1x1 kernel copies only tiles that a plane ends within, or
whose vectors begin within a line: it reads others where they stand.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import partial
from math import prod

from leanconv.algorithms.common.conv import GroupedConv
from leanconv.algorithms.planar.columns import ColumnOutput, has_bits, through_bits
from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.microkernel import channel_address, start_planes
from leanconv.codegen.shuffles import deinterleave
from leanconv.records import cached_property, dataclass
from leanconv.spec.format import aligned, ceil_div
from leanconv.symbolic import Count
from leanconv.target import Target
from leanconv.types import INT16, INT32

_FEW = 4  # places a channel up to which vectors that begin within a line are read in place


@dataclass(frozen=True)
class Strip:
    """How a tile's input lies in scratch, in elements.

    Attributes:
        rows: of each residue.
        residues: of rows by the stride, those that taps touch.
        plane: from one tap of a row to the next.
        offsets: of each tap (kd, kh, kw) from where its channel begins.
        channel: from one channel to the next.
        vectors: of a tile.
    """

    rows: int
    residues: tuple[int, ...]
    plane: int
    offsets: tuple[int, ...]
    channel: int
    vectors: int


@dataclass(frozen=True)
class SparseConv(GroupedConv):
    """One convolution's code; tensors in planes.

    Attributes:
        lanes: lanes of a vector.
        rows, columns: of a tile.
        block: input channels of a block.
        together: output channels of one stream: they share its places.
        streams_each: streams of a chunk.
        entries: places of all streams; no code depends on them.
    """

    VARIES = True

    lanes: int
    rows: int
    columns: int
    block: int
    together: int
    streams_each: Count
    entries: Count

    @property
    def operands(self) -> tuple[str, ...]:
        """Input, nonzero weights, their places, the heads of outputs; the epilogue's; output."""
        return ("x", "w", "places", "heads", *self.conv.epilogue.operands, "y")

    @property
    def operand_types(self) -> dict[str, str]:
        """LLVM type of the elements of each operand."""
        return {**super().operand_types, "places": INT16.llvm, "heads": INT32.llvm}

    @property
    def packing(self) -> Hashable:
        """Channels and taps, those of a block, and outputs of a stream."""
        return super().packing, self.block, self.together

    @property
    def constant_bytes(self) -> dict[str, int]:
        """Of each place it and its weights; a head for each block of each stream."""
        conv = self.conv
        return {
            **super().constant_bytes,
            "w": self.entries * self.together * conv.precision.w.bytes,
            "places": self.entries * INT16.bytes,
            "heads": 2 * (conv.groups * self.streams * self.blocks + 1) * INT32.bytes,
        }

    @property
    def tile(self) -> str:
        """The tile, for people."""
        several = f", {self.together} outputs at once" if self.together > 1 else ""
        return f"tile {self.rows}x{self.columns}{several}"

    @property
    def streams(self) -> int:
        """Streams of a group."""
        return self.conv.outputs // self.together

    @property
    def blocks(self) -> int:
        """Blocks of input channels of a group."""
        return ceil_div(self.conv.inputs, self.block)

    @property
    def grid(self) -> tuple[int, ...]:
        """Images, groups, parts of the streams, depths, tiles of rows, tiles of columns."""
        conv, (depth, height, width) = self.conv, self.conv.window.out
        parts = ceil_div(self.streams, self.streams_each)
        tiles = ceil_div(height, self.rows), ceil_div(width, self.columns)
        return conv.batch, conv.groups, parts, depth, *tiles

    @cached_property
    def strip(self) -> Strip:
        """How a tile's input lies in scratch."""
        window, lanes = self.conv.window, self.lanes
        kd, kh, kw = window.kernel
        stride, down = window.stride[1], [tap * window.dilation[1] for tap in range(kh)]
        residues = tuple(sorted({at % stride for at in down}))
        rows = self.rows + down[-1] // stride
        vectors = ceil_div(self.rows * self.columns, lanes)
        read = down[-1] // stride * self.columns + vectors * lanes
        copied = (rows - 1) * self.columns + ceil_div(self.columns, lanes) * lanes
        plane = ceil_div(max(copied, read), lanes) * lanes
        offsets = tuple(
            ((d * len(residues) + residues.index(h % stride)) * kw + w) * plane
            + h // stride * self.columns
            for d in range(kd)
            for h in down
            for w in range(kw)
        )
        return Strip(rows, residues, plane, offsets, kd * len(residues) * kw * plane, vectors)

    @property
    def taps(self) -> int:
        """Taps of a channel."""
        return prod(self.conv.window.kernel)

    @property
    def in_place(self) -> bool:
        """Whether a tile may be read where it stands: one tap that covers every pixel."""
        window = self.conv.window
        return self.taps == 1 and not any(window.pad) and set(window.stride) == {1}

    @property
    def _parts(self) -> dict[str, int]:
        """Bytes of each part of scratch."""
        strip, item, lanes = self.strip, self.conv.dtype.bytes, self.lanes
        tile = strip.vectors * lanes * item
        # Whole vectors are loaded of a tile's rows, of the last one too.
        line = (self.rows - 1) * self.columns + ceil_div(self.columns, lanes) * lanes
        sums = self.streams_each * self.together if self.blocks > 1 else 0
        return {
            "x": aligned(min(self.block, self.conv.inputs) * strip.channel * item),
            "offsets": aligned(self.block * self.taps * 4 if self.taps > 1 else 0),
            "line": aligned(max(tile, line * item) if self.rows > 1 else 0),
            "sums": sums * tile,
        }

    @property
    def scratch_bytes(self) -> int:
        """The input of a tile, tables, sums between blocks."""
        return sum(self._parts.values())

    def emit(self, target: Target) -> str:
        """Emit the loops: chunks, blocks, output channels, nonzero weights."""
        e = Function(self.NAME)
        pointers = self.addresses(e)
        with e.chunks(*self.grid) as place:
            _Tile(e, self, target, pointers, *place).emit()
        return e.finish()


class _Tile:
    """Emits one chunk."""

    def __init__(
        self,
        e: Function,
        kernel: SparseConv,
        target: Target,
        pointers: dict[str, Pointer],
        *place: Value,
    ) -> None:
        self.e, self.kernel, self.target, self.pointers = e, kernel, target, pointers
        self.strip, conv = kernel.strip, kernel.conv
        self.kind, element = vector(conv.dtype.llvm, kernel.lanes), conv.dtype.llvm
        self.n, self.g, part, self.depth, row, column = place
        self.row, self.column = row * kernel.rows, column * kernel.columns
        self.first = part * kernel.streams_each
        self.last = e.smin(self.first + kernel.streams_each, kernel.streams)
        scratch, at = {}, 0
        for name, size in kernel._parts.items():
            scratch[name] = e.scratch.at(at)
            at += size
        self.x = scratch["x"].of(element)
        self.offsets = scratch["offsets"].of("i32")
        self.line, self.sums = scratch["line"].of(element), scratch["sums"].of(element)
        group = self.n * conv.x.image + self.g * (conv.inputs * conv.x.block_stride)
        self.source = pointers["x"].at(group)

    def emit(self) -> None:
        kernel, e = self.kernel, self.e
        self.inside = self._inside()
        self.copied = self._copied() if kernel.in_place else None
        if kernel.taps > 1:
            self._table()
        blocks = kernel.blocks
        if blocks == 1:
            self._block(e.i64(0), kernel.conv.inputs, True, True)
            return
        self._block(e.i64(0), kernel.block, True, False)
        if blocks > 2:
            with e.loop("block", blocks - 1, start=1) as block:
                self._block(block, kernel.block, False, False)
        rest = kernel.conv.inputs - (blocks - 1) * kernel.block
        self._block(e.i64(blocks - 1), rest, False, True)

    def _copied(self) -> Value:
        """Whether a tile is copied: one that a plane ends within, or that begins within a vector.

        Vectors that begin within a line take two loads each; few of them cost less than copies do.
        """
        e, kernel, x = self.e, self.kernel, self.kernel.conv.x
        self.place = self.source.at(self.depth * x.spatial[0] + self.column)
        item, inputs = kernel.conv.dtype.bytes, kernel.conv.groups * kernel.conv.inputs
        begin = e.convert("ptrtoint", self.place, "i64") | e.i64(x.block_stride) * item
        many = e.i64(kernel.entries).compare("ugt", _FEW * inputs)
        apart = (begin & (kernel.lanes * item - 1)).compare("ne", 0)
        ends = (self.column + kernel.columns).compare("ugt", kernel.conv.window.out[2])
        return ends | (apart & many)

    def _table(self) -> None:
        """Write the offset of each place of a block: of its channel and its tap."""
        e, kernel = self.e, self.kernel
        with e.loop("c", min(kernel.block, kernel.conv.inputs)) as c:
            for tap, offset in enumerate(self.strip.offsets):
                value = e.convert("trunc", c * self.strip.channel + offset, "i32")
                e.store(value, self.offsets.at(c * kernel.taps + tap))

    def _block(self, block: Value, channels: int, first: bool, last: bool) -> None:
        """Emit what a block of input channels adds to all output channels of the chunk."""
        e, kernel = self.e, self.kernel
        first_channel = block * kernel.block

        def copy() -> None:
            with e.loop("c", channels) as c:
                self._copy(first_channel + c, self.x.at(c * self.strip.channel))

        self.read, self.channel = self.x, e.i64(self.strip.channel)
        if self.copied is None:
            copy()
        else:
            stride = e.i64(kernel.conv.x.block_stride)
            with e.when(self.copied):
                copy()
            self.read = e.select(self.copied, self.x, self.place.at(first_channel * stride))
            self.channel = e.select(self.copied, self.channel, stride)
        stream = (self.g * kernel.blocks + block) * kernel.streams
        heads = self.pointers["heads"].at(stream * 2)
        held = kernel.together * self.strip.vectors
        with e.loop("j", self.last, start=self.first) as j:
            k, begin, end = (
                e.index(e.convert("zext", e.load(heads.at(j * 2 + i)), "i64")) for i in (0, 1, 3)
            )
            sums = self.sums.at((j - self.first) * (held * kernel.lanes))
            if first:
                acc = self._bias(k)
            else:
                acc = [e.load(sums.at(i * kernel.lanes), self.kind) for i in range(held)]
            with e.when(begin.compare("ult", end), [acc]):
                with e.loop("i", end, [acc], start=begin) as i:
                    self._add(i, acc)
            if last:
                self._store(k, acc)
            else:
                for number, value in enumerate(acc):
                    e.store(value, sums.at(number * kernel.lanes))

    def _copy(self, c: Value, to: Pointer) -> None:
        """Bring what a tile reads of a channel into scratch, zeros where there is padding."""
        e, window, strip, x = self.e, self.kernel.conv.window, self.strip, self.kernel.conv.x
        source, columns = self.source.at(c * x.block_stride), self.kernel.columns
        kd, _, kw = window.kernel
        if strip.plane > strip.rows * columns:
            for tap in range(strip.channel // strip.plane):
                e.store(e.zero(self.kind), to.at((tap + 1) * strip.plane - self.kernel.lanes))
        top = self.row * window.stride[1] - window.pad[1]
        for d in range(kd):
            depth = self.depth * window.stride[0] + (d * window.dilation[0] - window.pad[0])
            for i, residue in enumerate(strip.residues):
                place = to.at((d * len(strip.residues) + i) * kw * strip.plane)
                with e.loop("row", strip.rows) as row:
                    at = top + residue + row * window.stride[1]
                    inside = [
                        at.compare("ult", window.size[1]),
                        depth.compare("ult", window.size[0]),
                    ]
                    line = source.at(at * x.spatial[1] + depth * x.spatial[0])
                    out = place.at(row * columns)
                    missing = partial(self._zero, out)
                    with e.when(inside[0] & inside[1], otherwise=missing):
                        self._row(line, out)

    def _vectors(self) -> Iterator[tuple[int, int]]:
        """The vectors of a row, as the number of the tap and the first column."""
        for tap in range(self.kernel.conv.window.kernel[2]):
            for first in range(0, self.kernel.columns, self.kernel.lanes):
                yield tap, first

    def _zero(self, out: Pointer) -> None:
        for tap, first in self._vectors():
            self.e.store(self.e.zero(self.kind), out.at(tap * self.strip.plane + first))

    def _row(self, line: Pointer, out: Pointer) -> None:
        for (tap, first), (begin, masks) in self.inside.items():
            parts = [
                self.e.masked_load(line.at(begin + part * self.kernel.lanes), self.kind, mask)
                for part, mask in enumerate(masks)
            ]
            self.e.store(deinterleave(self.e, parts), out.at(tap * self.strip.plane + first))

    def _inside(self) -> dict[tuple[int, int], tuple[Value, list[Value]]]:
        """Of each vector of a row, by tap and column: its first input column, those that exist."""
        e, window, lanes = self.e, self.kernel.conv.window, self.kernel.lanes
        stride = window.stride[2]
        start = self.column * stride - window.pad[2]
        numbers = e.const(vector("i64", lanes), list(range(lanes)))
        limit = e.const(numbers.kind, window.size[2])
        found = {}
        for tap, first in self._vectors():
            begin = start + (tap * window.dilation[2] + first * stride)
            masks = []
            for part in range(stride):
                places = e.splat(begin + part * lanes, lanes) + numbers
                mask = places.compare("ult", limit)
                masks.append(through_bits(e, mask) if has_bits(self.target, lanes) else mask)
            found[tap, first] = begin, masks
        return found

    def _bias(self, k: Value) -> list[Value]:
        """What the sums of a stream's outputs begin with: output by output, vector by vector."""
        kernel = self.kernel
        bias = channel_address(self.pointers, "bias", self.g * kernel.conv.outputs + k)
        starts = start_planes(self.e, self.kind, bias, kernel.together)
        return [start for start in starts for _ in range(self.strip.vectors)]

    def _add(self, i: Value, acc: list[Value]) -> None:
        """Add the weights of a place times the vectors of x there."""
        e, kernel, pointers = self.e, self.kernel, self.pointers
        place = e.index(e.convert("zext", e.load(pointers["places"].at(i)), "i64"))
        if kernel.taps > 1:
            offset = e.index(e.convert("zext", e.load(self.offsets.at(place)), "i64"))
        else:
            offset = place * self.channel
        x, w = self.read.at(offset), pointers["w"].at(i * kernel.together)
        weights = [e.broadcast(w.at(k), self.kind) for k in range(kernel.together)]
        for v in range(self.strip.vectors):
            vector_of_x = e.load(x.at(v * kernel.lanes), self.kind)
            for k, weight in enumerate(weights):
                at = k * self.strip.vectors + v
                acc[at] = e.fma(vector_of_x, weight, acc[at])

    def _store(self, k: Value, acc: list[Value]) -> None:
        """Store the sums of a stream's outputs."""
        e, kernel, y = self.e, self.kernel, self.kernel.conv.y
        channel, each = self.g * kernel.conv.outputs + k, self.strip.vectors
        pointers, kind, count = self.pointers, self.kind, kernel.together
        output = ColumnOutput(e, kernel, self.target, kind, pointers, channel, count)
        out = self.n * y.image + self.depth * y.spatial[0] + self.row * y.spatial[1] + self.column
        for number in range(count):
            place = out + (channel + number) * y.block_stride
            self._tile(output, number, acc[number * each : (number + 1) * each], place)

    def _tile(self, output: ColumnOutput, k: int, values: list[Value], out: Value) -> None:
        """Store a tile of one output channel."""
        e, kernel = self.e, self.kernel
        live = e.smin(kernel.conv.window.out[2] - self.column, kernel.columns)
        if kernel.rows == 1:
            self._columns(output, k, values, out, live)
            return
        for v, value in enumerate(values):
            e.store(value, self.line.at(v * kernel.lanes))
        count = e.smin(kernel.conv.window.out[1] - self.row, kernel.rows)
        with e.loop("row", count) as row:
            line = self.line.at(row * kernel.columns)
            firsts = range(0, kernel.columns, kernel.lanes)
            values = [e.load(line.at(first), self.kind) for first in firsts]
            self._columns(output, k, values, out + row * kernel.conv.y.spatial[1], live)

    def _columns(
        self, output: ColumnOutput, k: int, values: list[Value], out: Value, live: Value
    ) -> None:
        """Store a row of vectors, of which so many columns are there."""
        e, kernel = self.e, self.kernel

        def some() -> None:
            for v, value in enumerate(values):
                left = e.smax(live - v * kernel.lanes, 0)
                output.store(value, k, out + v * kernel.lanes, e.smin(left, kernel.lanes))

        with e.when(live.compare("eq", kernel.columns), otherwise=some):
            for v, value in enumerate(values):
                count = min(kernel.lanes, kernel.columns - v * kernel.lanes)
                output.store(value, k, out + v * kernel.lanes, count)
