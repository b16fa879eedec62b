"""The kernel of `depthwise`: chunks, blocks of rows, passes over the taps, register tiles.

    for chunk (part of the images and blocks of rows, some vectors of channels):
        for image, block of rows, tap of the depth, vector of channels:
            for pass (some rows and columns of taps):            an accumulator for each tap
                for rows, columns of a tile:
                    load each vector of dy, and each of x that a tap of it meets; multiply and add
                add the accumulators to the sums of the vector
        store the sums

What lanes are, and where vectors lie, is decided by a sub-class: lanes along channels
(`depthwise_channels`), or along columns of planes (`depthwise_columns`).

Both read x where it lies: rows in the padding are zeros elsewhere, and columns in the padding are
left out by tiles of their own at both ends of a row. Kernels with many taps, and layouts without
vectors, copy x into a strip that has zeros for the padding, a block of rows at a time.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from leanconv.algorithms.common.conv import Taps
from leanconv.algorithms.weight_gradient.bias import ROWS, sum_of
from leanconv.algorithms.weight_gradient.naive import GradientKernel
from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.tails import where_any
from leanconv.records import dataclass
from leanconv.spec.conv import effective_extent
from leanconv.spec.format import ALIGNMENT, ceil_div
from leanconv.symbolic import Count
from leanconv.target import Target

_INTO_L2 = 2  # of a prefetch


@dataclass(frozen=True)
class Tile:
    """What the registers hold in the inner loop.

    Attributes:
        rows, columns: vectors of dy, powers of two.
        tap_rows, tap_columns: taps of a pass, each with an accumulator.
        sets: accumulators of a tap, to which vectors of dy are added in turn.
    """

    rows: int
    columns: int
    tap_rows: int
    tap_columns: int
    sets: int


@dataclass(frozen=True)
class DepthwiseGradient(GradientKernel):
    """The gradient of the weights of groups of few input channels.

    Attributes:
        lanes: of a vector.
        tile: what the registers hold.
        in_place: whether x is read where it lies.
        block_rows: output rows of a block.
        vectors: vectors of channels, or single ones, of one chunk.
        parts: into which images and blocks of rows are divided; dw is as many arrays then.
        sums_dy: whether dy is summed, too, in a row of channels for each part.
    """

    VARIES = True

    lanes: int
    tile: Tile
    in_place: bool
    block_rows: Count = 1
    vectors: Count = 1
    parts: Count = 1
    sums_dy: bool = False

    @property
    def operands(self) -> tuple[str, ...]:
        """Input, gradient of the output, gradient of the weights; rows of sums."""
        return (*super().operands, *((ROWS,) * self.sums_dy))

    @property
    def result_count(self) -> int:
        """The gradient, and the sums of dy."""
        return 1 + self.sums_dy

    @property
    def may_sum_dy(self) -> bool:
        """Whether each vector of dy is loaded once."""
        window = self.conv.window
        return self.passes == 1 == window.kernel[0] and window.always_full(0)

    @property
    @abstractmethod
    def pieces(self) -> int:
        """Vectors of channels, or single ones, of the whole convolution."""

    @property
    @abstractmethod
    def zeros(self) -> int:
        """Elements of x that are read of a row in the padding."""

    @property
    @abstractmethod
    def strip_row(self) -> int:
        """Elements from one row of a strip of x to the next."""

    @property
    def extra(self) -> int:
        """Elements of scratch behind the sums and the strip."""
        return 0

    @property
    def row_blocks(self) -> int:
        """Blocks of rows of an image."""
        return ceil_div(self.conv.window.out[1], self.block_rows)

    @property
    def grid(self) -> tuple[int, ...]:
        """Parts by groups of vectors."""
        return self.parts, ceil_div(self.pieces, self.vectors)

    @property
    def taps(self) -> int:
        """Taps of a channel."""
        kd, kh, kw = self.conv.window.kernel
        return kd * kh * kw

    @property
    def passes(self) -> int:
        """Times that the rows of a block are read."""
        _, kh, kw = self.conv.window.kernel
        return ceil_div(kh, self.tile.tap_rows) * ceil_div(kw, self.tile.tap_columns)

    @property
    def prefetches(self) -> bool:
        """Whether the rows that come next are prefetched: those that one pass reads in place."""
        return self.in_place and self.passes == 1

    @property
    def own(self) -> int:
        """Elements of the sums of a vector of channels: of all taps, and of dy behind them."""
        return (self.taps + self.sums_dy) * self.lanes

    @property
    def sums(self) -> int:
        """Elements of the sums of one chunk."""
        return self.vectors * self.own

    @property
    def strip(self) -> int:
        """Elements of the rows of x of a block, or of zeros."""
        if self.in_place:
            return self.zeros
        window = self.conv.window
        extent = effective_extent(window.kernel[1], window.dilation[1])
        return ((self.block_rows - 1) * window.stride[1] + extent) * self.strip_row

    @property
    def scratch_bytes(self) -> int:
        """Sums, the strip, and what a sub-class needs."""
        elements = self.sums + self.strip + self.extra
        return elements * self.conv.dtype.bytes + ALIGNMENT

    @abstractmethod
    def body(self, e: Function, target: Target, pointers: Pointers) -> Body:
        """What emits the vectors of a chunk."""

    def emit(self, target: Target) -> str:
        """Emit the loops: chunks, images and blocks of rows, vectors."""
        conv, e, element = self.conv, Function(self.NAME), self.conv.dtype.llvm
        x, dy, dw, *rows = e.pointers(self.operands, element).values()
        sums = e.scratch.of(element)
        kind, own = vector(element, self.lanes), self.own
        items = conv.batch * conv.window.out[0] * self.row_blocks
        each = ceil_div(items, self.parts)
        with e.chunks(*self.grid) as (part, group):
            result = dw.at(part * (conv.out_channels * conv.reduction))
            db = rows[0].at(part * conv.out_channels) if rows else None
            body = self.body(e, target, Pointers(x, dy, result, sums.at(self.sums), db))
            first = group * self.vectors
            count = e.smin(e.i64(self.pieces) - first, self.vectors)
            with e.loop("zero", count * (own // self.lanes)) as i:
                e.store(e.zero(kind), sums.at(i * self.lanes))
            if self.in_place:
                body.fill_zeros()
            start = part * each
            stop = e.smin(start + each, items)
            with e.when(start.compare("ult", stop)), e.loop("item", stop, start=start) as item:
                place = e.split(item, conv.batch, conv.window.out[0], self.row_blocks)
                self._block(e, body, sums, place, first, count)
            with e.loop("vector", count) as i:
                body.finish(first + i, sums.at(i * own))
        return e.finish()

    def _block(
        self,
        e: Function,
        body: Body,
        sums: Pointer,
        place: Sequence[Value],
        first: Value,
        count: Value,
    ) -> None:
        """Add the products of some rows of an image, to the sums of all vectors of the chunk."""
        conv, window = self.conv, self.conv.window
        n, depth, block = place
        row = block * self.block_rows
        rows = e.smin(e.i64(window.out[1]) - row, self.block_rows)
        own, plane = self.own, window.kernel[1] * window.kernel[2] * self.lanes
        taps = Taps(e, window, 0, depth)
        none: list[Value] = []
        with taps.guard(e, none), e.loop("kd", taps.high, start=taps.low) as kd:
            source = n * conv.x.image
            source = source + (taps.start + kd * window.dilation[0]) * conv.x.spatial[0]
            factor = n * conv.y.image + depth * conv.y.spatial[0] + row * conv.y.spatial[1]
            of_block = Block(source, factor, row * window.stride[1] - window.pad[1], rows)
            with e.loop("vector", count) as i:
                for lines in body.lines(first + i, of_block):
                    Passes(body, lines, rows).emit(sums.at(i * own + kd * plane))


class Pointers(NamedTuple):
    """Addresses: of the tensors, of the scratch behind the sums, of a row of sums of dy."""

    x: Pointer
    dy: Pointer
    dw: Pointer
    scratch: Pointer
    db: Pointer | None


class Block(NamedTuple):
    """Rows of one image, in one plane of x.

    Attributes:
        source: offset of the plane of x, of channel 0.
        factor: offset of the first row of dy, of channel 0.
        top: input row of the first tap; negative in the padding.
        rows: output rows.
    """

    source: Value
    factor: Value
    top: Value
    rows: Value


# Where a row of x lies: address of its first tap's column, and elements from one vector to the
# next.
Line = tuple[Pointer, "Value | int"]


class Lines(NamedTuple):
    """Where the vectors of a block of rows lie.

    Attributes:
        dy: address of the first row's first pixel.
        dy_row, dy_step: elements from one row, and from one vector, to the next.
        live: lanes of dy that exist.
        line: gives a row of x by its number, counted from the block's first.
    """

    dy: Pointer
    dy_row: Value | int
    dy_step: int
    live: int
    line: Callable[[Value], Line]


class Columns(NamedTuple):
    """Columns of a register tile.

    Attributes:
        first: vector.
        vectors: of the tile.
        live: lanes of the last one that exist; None: all.
        form: what else a body needs to know of them.
    """

    first: Value
    vectors: int
    live: int | None = None
    form: object = None


# A vector of x for a column of taps: a key that is equal for equal vectors of a row, and what loads
# it from the tile's first.
Input = tuple[tuple[int, ...], Callable[[Pointer], Value]]


class Body:
    """Emits what depends on the meaning of lanes.

    Args:
        e: the function to append to.
        kernel: the kernel.
        target: the machine.
        pointers: addresses.
    """

    def __init__(
        self, e: Function, kernel: DepthwiseGradient, target: Target, pointers: Pointers
    ) -> None:
        self.e, self.kernel, self.target = e, kernel, target
        self.x, self.dy, self.dw, self.scratch, self.db = pointers
        self.conv, self.window = kernel.conv, kernel.conv.window
        self.kind = vector(kernel.conv.dtype.llvm, kernel.lanes)

    def of_first_input(self, index: Value) -> AbstractContextManager[None]:
        """Run the body for the first input channel of a group alone: all others see the same dy."""
        inputs = self.conv.inputs
        if inputs == 1:
            return nullcontext()
        return self.e.when((index % inputs).compare("eq", 0))

    def fill_zeros(self) -> None:
        """Write the zeros that are read for rows in the padding."""
        e, kernel = self.e, self.kernel
        with e.loop("zeros", kernel.zeros, step=kernel.lanes) as i:
            e.store(e.zero(self.kind), self.scratch.at(i))

    def in_image(self, plane: Pointer, before: int, row: Value, step: int) -> Line:
        """A row of x where it lies, or zeros.

        Args:
            plane: address of the first row.
            before: elements of padding before the row's first one.
            row: of the image; outside of it in the padding.
            step: elements from one vector to the next.
        """
        e = self.e
        place = plane.at(row * self.conv.x.spatial[1] - before)
        if self.window.always_full(1):
            return place, step
        inside = row.compare("ult", self.window.size[1])  # unsigned: sees both ends
        zeros = self.scratch.of(plane.element)
        return e.select(inside, place, zeros), e.select(inside, e.i64(step), e.i64(0))

    @abstractmethod
    def lines(self, index: Value, block: Block) -> Iterator[Lines]:
        """Emit the body for the rows of a vector of channels; copy x if it is not in place."""

    @abstractmethod
    def columns(self, acc: list[Value]) -> Iterator[Columns]:
        """Emit the body for all columns of a row of dy."""

    @abstractmethod
    def input(self, columns: Columns, column: int, tap: int) -> Input | None:
        """The vector of x for a vector of dy and a column of taps; None if all is padding."""

    def existing(self, columns: Columns, column: int) -> Value | None:
        """The mask of the lanes of a vector of dy that exist, where only the code knows it."""
        del columns, column
        return None

    @property
    @abstractmethod
    def moves_taps(self) -> bool:
        """Whether all columns of taps read x alike, but for a number of elements."""

    @abstractmethod
    def first_tap(self, tap: Value | int) -> Value | int:
        """Elements of x by which a pass that begins with that column of taps is moved."""

    @abstractmethod
    def finish(self, index: Value, sums: Pointer) -> None:
        """Store the sums of a vector of channels."""


class Passes:
    """Emits the passes over the taps of a block of rows: each has accumulators for some taps."""

    def __init__(self, body: Body, lines: Lines, rows: Value) -> None:
        self.body, self.e, self.kernel, self.lines = body, body.e, body.kernel, lines
        self.rows = rows

    def emit(self, sums: Pointer) -> None:
        """Emit all passes; sums of tap t are at `sums[t]`."""
        tile, window = self.kernel.tile, self.kernel.conv.window
        width, size = window.kernel[2], tile.tap_columns
        for u, tap_rows in self._groups("kh", window.kernel[1], tile.tap_rows):
            if self.body.moves_taps:
                for v, tap_columns in self._groups("kw", width, size):
                    self._pass(sums, u, v, tap_rows, tap_columns)
                continue
            for v in range(0, width, size):
                self._pass(sums, u, v, tap_rows, min(size, width - v))

    def _groups(self, label: str, total: int, size: int) -> Iterator[tuple[Value | int, int]]:
        whole, rest = divmod(total, size)
        if whole == 1:
            yield 0, size
        elif whole:
            with self.e.loop(label, whole) as index:
                yield index * size, size
        if rest:
            yield whole * size, rest

    def _pass(
        self, sums: Pointer, u: Value | int, v: Value | int, tap_rows: int, tap_columns: int
    ) -> None:
        e, kernel, window = self.e, self.kernel, self.kernel.conv.window
        taps, sets = tap_rows * tap_columns, kernel.tile.sets
        acc = [e.zero(self.body.kind)] * (taps * sets + kernel.sums_dy)
        moves = self.body.moves_taps
        self.first_row = e.i64(0) + u * window.dilation[1]
        self.moved = self.body.first_tap(v) if moves else 0
        self.first_column = v if isinstance(v, int) and not moves else 0
        self.taps = [(i, j) for i in range(tap_rows) for j in range(tap_columns)]
        size = kernel.tile.rows
        whole = self.rows // size
        if size == 1:
            with e.loop("row", self.rows, [acc]) as row:
                self._rows(acc, row, 1)
        else:
            with e.when(whole.compare("ne", 0), [acc]), e.loop("rows", whole, [acc]) as index:
                self._rows(acc, index * size, size)
        while size > 1:
            before, size = self.rows - self.rows % size, size // 2
            with e.when((self.rows & size).compare("ne", 0), [acc]):
                self._rows(acc, before, size)
        width = window.kernel[2]
        for number, (i, j) in enumerate(self.taps):
            total = acc[number]
            for other in range(1, sets):
                total = total + acc[number + other * taps]
            place = sums.at((e.i64(0) + (u + i) * width + (v + j)) * kernel.lanes)
            e.store(e.load(place, self.body.kind) + total, place)
        for total in acc[taps * sets :]:
            place = sums.at(kernel.taps * kernel.lanes)
            e.store(e.load(place, self.body.kind) + total, place)

    def _rows(self, acc: list[Value], row: Value, rows: int) -> None:
        """Add the products of some rows of a register tile."""
        window = self.kernel.conv.window
        stride, apart = window.stride[1], window.dilation[1]
        factors = [self.lines.dy.at((row + r) * self.lines.dy_row) for r in range(rows)]
        reached = {r * stride + i * apart for r in range(rows) for i, _ in self.taps}
        begin = row * stride + self.first_row
        lines = {at: self.lines.line(begin + at) for at in sorted(reached)}
        for columns in self.body.columns(acc):
            there = [each.at(columns.first * self.lines.dy_step) for each in factors]
            seen = {
                at: line.at(columns.first * step + self.moved) for at, (line, step) in lines.items()
            }
            if self.kernel.prefetches and rows == self.kernel.tile.rows:
                self._prefetch(there, seen, columns.vectors)
            self._tile(acc, there, seen, columns)

    def _prefetch(self, factors: list[Pointer], lines: dict[int, Pointer], vectors: int) -> None:
        """Prefetch what the next rows of a tile read first: hardware follows one row, not several.

        Rows in the padding, and those beyond the last one, are addresses that nobody loads.
        """
        e, kernel, rows = self.e, self.kernel, len(factors)
        conv, stride = kernel.conv, kernel.conv.window.stride
        pixel = conv.x.spatial[2] if conv.x.lanes_contiguous else kernel.lanes
        new = sorted(lines)[-rows * stride[1] :]
        ahead = (
            (factors, e.i64(self.lines.dy_row) * rows, self.lines.dy_step, vectors),
            (
                [lines[at] for at in new],
                e.i64(conv.x.spatial[1]) * (rows * stride[1]),
                pixel,
                vectors * stride[2],
            ),
        )
        for places, distance, step, count in ahead:
            apart = max(1, ALIGNMENT // (step * conv.dtype.bytes))
            for place in places:
                there = place.at(distance)
                for q in range(0, count, apart):
                    e.prefetch(there.at(q * step), locality=_INTO_L2)

    def _tile(
        self,
        acc: list[Value],
        factors: list[Pointer],
        lines: dict[int, Pointer],
        columns: Columns,
    ) -> None:
        """Load each vector of dy and of x once, for the multiply-adds of all taps they meet in."""
        e, kernel, window = self.e, self.kernel, self.kernel.conv.window
        stride, apart, sets = window.stride[1], window.dilation[1], kernel.tile.sets
        met: dict[tuple[tuple[int, ...], int], list[tuple[int, int]]] = {}
        loads: dict[tuple[tuple[int, ...], int], Callable[[Pointer], Value]] = {}
        dys: list[Value] = []
        for r, line in enumerate(factors):
            for q in range(columns.vectors):
                number, live = len(dys), self.lines.live
                if q == columns.vectors - 1 and columns.live is not None:
                    live = columns.live
                place, mask = line.at(q * self.lines.dy_step), self.body.existing(columns, q)
                if mask is None:
                    dys.append(e.load_first(place, self.body.kind, live))
                else:
                    dys.append(e.masked_load(place, self.body.kind, mask))
                for tap, (i, j) in enumerate(self.taps):
                    given = self.body.input(columns, q, self.first_column + j)
                    if given is not None:
                        at = r * stride + i * apart
                        met.setdefault((given[0], at), []).append((number, tap))
                        loads[given[0], at] = given[1]
        if kernel.sums_dy:
            acc[-1] = acc[-1] + sum_of(dys)
        for found, uses in sorted(met.items(), key=lambda each: each[0]):
            value = loads[found](lines[found[1]])
            for number, tap in uses:
                slot = tap + number % sets * len(self.taps)
                acc[slot] = e.fma(value, dys[number], acc[slot])


def column_pieces(
    e: Function, first: int, total: int, size: int, acc: list[Value]
) -> Iterator[tuple[Value, int]]:
    """Emit the body for columns in tiles of a power of two, then for the rest in halves of it.

    Yields:
        The first column, and how many there are.
    """
    whole = total // size
    for _ in where_any(e, whole, [acc]):
        with e.loop("columns", whole, [acc]) as index:
            yield index * size + first, size
    while size > 1:
        before, size = total // size * size, size // 2
        for _ in where_any(e, total // size % 2, [acc]):
            yield e.i64(before) + first, size
