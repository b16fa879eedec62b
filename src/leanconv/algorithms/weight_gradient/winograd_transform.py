"""The transforms of Winograd's gradient of weights: tiles of x and of dy become rows of V and U.

V = B^T d B    of a tile d of x: m + r - 1 rows and columns, which overlap those of other tiles
U = G g G^T    of a tile g of dy: m rows and columns
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd, prod
from typing import NamedTuple

from leanconv.algorithms.common.conv import Conv
from leanconv.algorithms.common.linear_code import emit_values
from leanconv.algorithms.weight_gradient.bias import ROWS, sum_of
from leanconv.algorithms.weight_gradient.strips import StripCopy
from leanconv.algorithms.weight_gradient.winograd_tiles import WeightTiles, point_elements
from leanconv.algorithms.winograd.shape import Pair
from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.tails import tile_at
from leanconv.records import dataclass
from leanconv.spec.format import aligned, ceil_div
from leanconv.symbolic import Count
from leanconv.target import Target
from leanconv.winograd.matrices import Matrix
from leanconv.winograd.program import compile_matrix


class TileGrid(NamedTuple):
    """What tiles of an image are made of, x or dy, along height and width.

    Attributes:
        span: rows and columns of a tile.
        apart: rows and columns from one tile to the next.
        stride: rows and columns of the image from one of the tile to the next.
        phases: tiles of each place, which begin a row or a column further on.
        matrices: what transforms columns and rows of a tile into points.
    """

    span: Pair
    apart: Pair
    stride: Pair
    phases: Pair
    matrices: tuple[Matrix, Matrix]


@dataclass(frozen=True)
class TileTransform(Kernel):
    """Tiles of rows of x, or of dy, transformed into rows of V, or of U.

    A chunk is a vector of channels by some rows of tiles, of as many columns as L1 holds. Rows of
    the image are copied into a strip, transformed along the width into [row][tile][point], which
    rows of tiles share where they overlap, and then along the height. Where phases lie together, a
    chunk has all their channels: a pixel of the strip is made of the pixels of a stride each way.

    Attributes:
        work: the weights.
        conv: the convolution, or one of the residues of its dilation.
        of_x: whether x is transformed, else dy.
        first, count: rows of tiles, in the order of images.
        at: number in V of the first row's first tile.
        held: tiles that there is room for.
        rows, columns: rows and columns of tiles of a chunk.
        sums_dy: whether the pixels of dy are summed, too, in a row of channels for each block of
            rows and columns.
        sums_at: number of the first of these rows.
    """

    VARIES = True

    work: WeightTiles
    conv: Conv
    of_x: bool
    first: Count
    count: Count
    at: Count
    held: Count
    rows: Count
    columns: Count
    sums_dy: bool = False
    sums_at: Count = 0

    @property
    def operands(self) -> tuple[str, ...]:
        """What is transformed, and into what; rows of sums."""
        return ("x", "V", *((ROWS,) * self.sums_dy))

    @property
    def result_count(self) -> int:
        """V, and the sums."""
        return 1 + self.sums_dy

    @property
    def sum_rows(self) -> int:
        """Rows of sums."""
        return prod(self.grid[1:3]) if self.sums_dy else 0

    @property
    def tiles(self) -> Pair:
        """Tiles of an image along height and width."""
        (_, height, width), (mh, mw) = self.conv.window.out, self.work.m
        return ceil_div(height, mh), ceil_div(width, mw)

    @property
    def channels(self) -> int:
        """Channels of a group."""
        return self.work.inputs if self.of_x else self.work.outputs

    @property
    def row(self) -> int:
        """Elements of a row of V."""
        return self.work.v_row if self.of_x else self.work.u_row

    @property
    def grid(self) -> tuple[int, ...]:
        """Groups, blocks of columns, blocks of rows, phases (h, w), vectors of channels."""
        vectors = 1 if self.together else ceil_div(self.channels, self.work.lanes)
        blocks = ceil_div(self.tiles[1], self.columns), ceil_div(self.count, self.rows)
        return self.work.groups, *blocks, *self.kind.phases, vectors

    @property
    def together(self) -> bool:
        """Whether a pixel of the strip has the channels of all phases."""
        return self.of_x and self.work.together

    @property
    def kind(self) -> TileGrid:
        """What its tiles are made of."""
        work, (height, width) = self.work, self.work.transforms
        if self.of_x:
            matrices, phases = (height.bt, width.bt), (1, 1) if self.together else work.phases
            return TileGrid(work.alpha, work.m, work.stride, phases, matrices)
        return TileGrid(work.m, work.m, (1, 1), (1, 1), (height.g, width.g))

    @property
    def strip_columns(self) -> int:
        """Columns of a strip."""
        kind = self.kind
        return (self.columns - 1) * kind.apart[1] + kind.span[1]

    @property
    def vectors(self) -> int:
        """Vectors of a pixel of the strip."""
        return self.work.v_vectors if self.together else 1

    @property
    def strip(self) -> int:
        """Elements of a strip; the copy of a pixel's last run of channels may reach past it."""
        return (self.strip_columns * self.vectors + self.together) * self.work.lanes

    @property
    def raw_row(self) -> int:
        """Elements of a row of the image whose pixels are put together, and what a vector reads."""
        work = self.work
        return self.strip_columns * work.stride[1] * work.inputs + work.lanes

    @property
    def line(self) -> int:
        """Elements of a transformed row of a strip: [tile][point][vector][lane]."""
        return self.columns * self.work.alpha[1] * self.vectors * self.work.lanes

    @property
    def scratch_bytes(self) -> int:
        """A strip, its transformed rows, and the rows of the image that are put together."""
        size = self.strip + self.kind.span[0] * self.line
        if self.together:
            size += self.work.phases[0] * self.raw_row
        return aligned(size * self.work.dtype.bytes)

    def emit(self, target: Target) -> str:
        """Emit the loops: chunks, rows of tiles, rows of a tile, tiles of a row."""
        e, work, conv = Function(self.NAME), self.work, self.conv
        x, v, *sums = e.pointers(self.operands, work.dtype.llvm).values()
        x = x.at(conv.x_offset if self.of_x else conv.y_offset)
        with e.chunks(*self.grid) as (g, across, down, py, px, cb):
            width = self.channels if self.together else work.lanes
            for live in tile_at(e, cb, self.channels, width):
                vectors, phase = ceil_div(self.channels, work.lanes), py * self.kind.phases[1] + px
                channel = g * self.channels + cb * work.lanes
                rows = _Rows(e, self, target, x, live, (py, px), channel)
                point = point_elements(self.held, self.row, work.dtype)
                to = v.at(g * (work.points * point) + (phase * vectors + cb) * work.lanes)
                rows.block(to, across * self.columns, down * self.rows)
                for total, db in zip(rows.total, sums, strict=True):
                    number = down * self.grid[1] + across + self.sums_at
                    place = db.at(number * conv.out_channels + channel)
                    e.store_first(total, place, live)
        return e.finish()


class _Rows:
    """Emits rows of tiles of a vector of channels.

    Args:
        e: the function to append to.
        kernel: the kernel.
        target: the machine.
        x: address of the tensor.
        live: channels that there are.
        phase: its row and column.
        channel: number of the first channel in the tensor.
    """

    def __init__(
        self,
        e: Function,
        kernel: TileTransform,
        target: Target,
        x: Pointer,
        live: int,
        phase: tuple[Value, Value],
        channel: Value,
    ) -> None:
        work, kind = kernel.work, kernel.kind
        self.e, self.kernel, self.x, self.phase, self.channel = e, kernel, x, phase, channel
        self.element = vector(work.dtype.llvm, work.lanes)
        self.access = kernel.conv.x if kernel.of_x else kernel.conv.y
        window = kernel.conv.window
        self.size = (window.size if kernel.of_x else window.out)[1:]
        self.pad = window.pad[1:] if kernel.of_x else (0, 0)
        grain = gcd(kernel.channels if work.groups > 1 else 0, work.lanes)
        step, apart = (1, live) if kernel.together else (kind.stride[1], work.lanes)
        self.copy = StripCopy(
            e, target, self.access, self.element, live, apart, step=step, grain=grain
        )
        self.pixel = kernel.vectors * work.lanes
        self.strip = e.scratch.of(work.dtype.llvm)
        self.lines = self.strip.at(kernel.strip)
        self.raw = self.lines.at(kind.span[0] * kernel.line)
        height, width = kind.matrices
        self.along_height, self.along_width = compile_matrix(height), compile_matrix(width)
        self.total = [e.zero(self.element)] * kernel.sums_dy  # of pixels, where that is wanted

    def block(self, v: Pointer, column: Value, row: Value) -> None:
        """Transform the rows of tiles of a chunk, from a column and a row of tiles on.

        Args:
            v: address in V of the first point of tile 0.
            column, row: the first ones.
        """
        e, kernel = self.e, self.kernel
        stop = e.smin(row + kernel.rows, kernel.count)
        count = e.smin(e.i64(kernel.tiles[1]) - column, kernel.columns)
        image, ty = e.split(row + kernel.first, kernel.conv.batch, kernel.tiles[0])
        place = [image, ty]
        known = [e.i64(0)]  # rows of the strip that the row of tiles before has transformed
        with e.loop("tiles", stop, [place, known, self.total], start=row) as index:
            image, ty = place
            self._lines(image, ty, column, count, known[0])
            at = kernel.at + index * kernel.tiles[1] + column
            with e.loop("tile", count) as tx:
                self._down(tx, v.at((at + tx) * kernel.row))
            following = ty + 1
            ends = following.compare("eq", kernel.tiles[0])
            place[1] = e.select(ends, e.i64(0), following)
            place[0] = image + e.index(e.convert("zext", ends, "i64"))
            shared = max(0, kernel.kind.span[0] - kernel.kind.apart[0])
            if shared:
                self._keep(shared, count)
                known[0] = e.select(ends, e.i64(0), e.i64(shared))

    def _keep(self, shared: int, count: Value) -> None:
        """Move the last transformed rows to where the next row of tiles has its first ones."""
        e, kernel, lanes = self.e, self.kernel, self.kernel.work.lanes
        moved = self.lines.at(kernel.kind.apart[0] * kernel.line)
        vectors = count * (kernel.work.alpha[1] * kernel.vectors)
        with e.loop("kept", shared) as row, e.loop("v", vectors) as number:
            at = row * kernel.line + number * lanes
            e.store(e.load(moved.at(at), self.element), self.lines.at(at))

    def _lines(self, image: Value, ty: Value, column: Value, count: Value, known: Value) -> None:
        """Copy and transform the rows of a row of tiles, but for those that are known."""
        e, kernel, kind = self.e, self.kernel, self.kernel.kind
        y0 = ty * (kind.apart[0] * kind.stride[0]) + (self.phase[0] - self.pad[0])
        x0 = column * (kind.apart[1] * kind.stride[1]) + (self.phase[1] - self.pad[1])
        columns = (count - 1) * kind.apart[1] + kind.span[1]
        source = self.x.at(image * self.access.image)
        with e.loop("row", kind.span[0], [self.total], start=known) as i:
            y = y0 + i * kind.stride[0]
            if kernel.together:
                with e.loop("phase", kernel.work.phases[0]) as py:
                    to = self.raw.at(py * kernel.raw_row)
                    self._copy(source, y + py, x0, to, columns * kind.stride[1])
                self._put_together(columns)
            else:
                self._copy(source, y, x0, self.strip, columns)
            with e.loop("tile", count, [self.total]) as tx:
                self._across(tx, self.lines.at(i * kernel.line))

    def _copy(self, source: Pointer, y: Value, x0: Value, to: Pointer, columns: Value) -> None:
        """Copy a row of an image, zeros if it has no such row."""
        self.copy.row(
            source.at(y * self.access.spatial[1]),
            to,
            self.channel,
            first=x0,
            columns=columns,
            size=self.size[1],
            inside=y.compare("ult", self.size[0]),
        )

    def _put_together(self, columns: Value) -> None:
        """Make a strip of rows of the image: a pixel has the channels of all phases.

        They are copied in whole vectors. What of a vector is another phase's is written over.
        """
        e, kernel, work = self.e, self.kernel, self.kernel.work
        (height, width), lanes = work.phases, work.lanes
        run = width * work.inputs
        with e.loop("pixel", columns) as j:
            source = self.raw.at(j * (work.stride[1] * work.inputs))
            to = self.strip.at(j * self.pixel)
            for py in range(height):
                for at in range(0, run, lanes):
                    value = e.load(source.at(py * kernel.raw_row + at), self.element)
                    e.store(value, to.at(py * run + at))

    def _across(self, tx: Value, line: Pointer) -> None:
        """Transform one row of a tile along the width."""
        e, kernel, lanes = self.e, self.kernel, self.kernel.work.lanes
        strip = self.strip.at(tx * (kernel.kind.apart[1] * self.pixel))
        line = line.at(tx * (kernel.work.alpha[1] * self.pixel))
        for number in self._vectors():
            at, to = strip.at(number * lanes), line.at(number * lanes)
            span = range(kernel.kind.span[1])
            pixels = [e.load(at.at(j * self.pixel), self.element) for j in span]
            if self.total:
                self.total[0] = self.total[0] + sum_of(pixels)
            for j, value in enumerate(emit_values(e, self.along_width, pixels)):
                e.store(value, to.at(j * self.pixel))

    def _vectors(self) -> Iterator[Value | int]:
        """Emit the loop over the vectors of a pixel."""
        if self.kernel.vectors == 1:
            yield 0
            return
        with self.e.loop("vector", self.kernel.vectors) as number:
            yield number

    def _down(self, tx: Value, v: Pointer) -> None:
        """Transform the columns of a tile along the height, into V."""
        e, kernel, work = self.e, self.kernel, self.kernel.work
        width, point = work.alpha[1], point_elements(kernel.held, kernel.row, work.dtype)
        lines = self.lines.at(tx * (width * self.pixel))
        points: Value | int = width
        if kernel.kind.phases[1] > work.whole[1]:  # the others take no products at the last point
            points = e.select(
                self.phase[1].compare("ult", work.whole[1]), e.i64(width), e.i64(width - 1)
            )
        with e.loop("point", points) as j:
            self._points(lines.at(j * self.pixel), v.at(j * point), width * point)

    def _points(self, lines: Pointer, v: Pointer, apart: int) -> None:
        """Transform one column of points; those of a result lie so many elements `apart`."""
        e, kernel, work = self.e, self.kernel, self.kernel.work
        for number in self._vectors():
            at, to = lines.at(number * work.lanes), v.at(number * work.lanes)
            rows = [
                e.load(at.at(i * kernel.line), self.element) for i in range(kernel.kind.span[0])
            ]
            for i, value in enumerate(emit_values(e, self.along_height, rows)):
                e.store(value, to.at(i * apart))
