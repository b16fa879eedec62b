"""MaxPool and AveragePool between tensors in blocks of channels.

    y[n, c, o] = max, or sum / count, over the taps k of x[n, c, o * stride + k * dilation - pad]

Lanes run along channels, so that every tap of every output is one whole vector. A row of outputs
bounds its taps of depth and height once; its columns are tiles of a few outputs, whose taps beside
the input are left out while generating. Padding is never read and never wins a maximum. NaN in a
window gives NaN, as in NumPy: one comparison serves two taps. With the select it costs pools
of 3x3 at stride 2 on large maps a tenth more time, small ones at stride 1 half more.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice, product
from math import prod

import numpy as np

from leanconv.codegen.column_tiles import (
    ColumnTile,
    column_tiles,
    each_tile_of_row,
    overlapping_tiles,
)
from leanconv.codegen.emitter import Carry, Function, Pointer, Value, vector
from leanconv.codegen.geometry import Window, triple
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.lowered import Call, Lowered
from leanconv.graph.ir import Graph, Node
from leanconv.graph.ops.quantised import CODES
from leanconv.kernels import KernelContext, OfItems
from leanconv.kernels.plane_pool import joined, start, taps_within, window_of
from leanconv.kernels.quantised_steps import as_codes, as_float
from leanconv.kernels.separable_pool import SeparablePool
from leanconv.records import dataclass, replace
from leanconv.spec.format import ceil_div
from leanconv.symbolic import Extent, Scalars, fixed
from leanconv.target import Target
from leanconv.types import FLOAT32, FLOATS, DType

_Body = Callable[[Pointer], None]

CODES_IN_BLOCKS = True

_CHUNK_LOADS = 16 * 1024  # 5 to 10 us
_MOST_TILES = 24  # more kinds of columns than that are bounded at run time
_MOST_TAPS = 16  # longer rows of taps are a loop
_PIXELS = 4
_FEW = 2  # with fewer channels than a block by this, planes are pooled
_MOST_USES = 36  # of an element in blocks; with more, planes are pooled, axis by axis


@dataclass(frozen=True)
class Pool(OfItems):
    """Pool `planes` (images times blocks of channels), each a map of vectors.

    Attributes:
        dtype: of the elements.
        block: lanes.
        planes: number of maps.
        window: extents before and after, kernel, strides, dilations and padding before.
        average: a mean instead of a maximum.
        counted: for a mean, how many cells before and after the input are counted, per axis.
        any_width: whether the code is that of all widths: tiles overlap at the end of a row.
        codes: types of x and of the result where these are codes and the mean is of what they stand
            for, one tap after the other.
        numbers: zero and scale of x, scale and zero of the result, bounds of its codes.
    """

    VARIES = True
    operands = ("x", "y")

    dtype: DType
    block: int
    planes: Extent
    window: Window
    average: bool
    counted: tuple[tuple[int, int], ...]
    any_width: bool = False
    codes: tuple[DType, DType] | None = None
    numbers: Scalars = ()

    @property
    def items(self) -> int:
        """Rows of outputs in all."""
        return self.planes * self.window.out[0] * self.window.out[1]

    @property
    def group(self) -> int:
        loads = self.window.out[2] * prod(self.window.kernel)
        even = ceil_div(self.items, max(1, _CHUNK_LOADS // loads))
        return ceil_div(self.items, even)

    @property
    def flops(self) -> int:
        return self.items * self.window.out[2] * prod(self.window.kernel) * self.block

    def emit(self, target: Target) -> str:
        del target  # the block is its vector
        e = Function(self.NAME)
        types = self.codes or (self.dtype, self.dtype)
        x, y = (e.pointer(number, dtype.llvm) for number, dtype in enumerate(types))
        with self.each_item(e, "row") as row:
            _Row(self, e, x, y, row).emit()
        return e.finish()


class _Row:
    def __init__(self, pool: Pool, e: Function, x: Pointer, y: Pointer, row: Value) -> None:
        self.pool, self.e, self.window = pool, e, pool.window
        self.kind = vector(pool.dtype.llvm, pool.block)
        _, height, width = self.window.size
        plane = row // (self.window.out[0] * self.window.out[1])
        self.od = row // self.window.out[1] % self.window.out[0]
        self.oh = row % self.window.out[1]
        self.y = y.at(row * (self.window.out[2] * pool.block))
        self.x = x.at(plane * (self.window.size[0] * height * width * pool.block))
        self.depth = self._bounds(0, self.od)
        self.height = self._bounds(1, self.oh)

    def emit(self) -> None:
        e = self.e
        if self.pool.any_width:
            tiles = overlapping_tiles(self.window, _PIXELS, once=False)
        else:
            tiles = list(islice(column_tiles(self.window, _PIXELS), _MOST_TILES + 1))
        if len(tiles) > _MOST_TILES:
            tiles = [ColumnTile(0, self.window.out[2], 1, (), computed=True)]
        for column, tile in each_tile_of_row(e, tiles):
            if tile.computed:
                counts = [self._count(2, column)] if self.pool.average else []
                self._store([self._reduce_bounded(column)], column, counts)
            else:
                self._tile(tile, column)

    # -- bounds --------------------------------------------------------------------------------
    def _bounds(self, axis: int, o: Value) -> tuple[Value, Value]:
        """First tap that touches the input, and one past the last; may be empty."""
        return self._taps_within(axis, o, 0, self.window.size[axis])

    def _taps_within(self, axis: int, o: Value, low: int, high: int) -> tuple[Value, Value]:
        """Taps whose input coordinate is in [low, high)."""
        e, w = self.e, self.window
        taps, step = w.kernel[axis], w.dilation[axis]
        starts = [i * w.stride[axis] - w.pad[axis] for i in (0, w.out[axis] - 1)]
        # Of any size, whether a stride leaves the last ones outside is not asked.
        asked = not (self.pool.any_width and w.stride[axis] > 1 and taps > 1)
        if asked and starts[0] >= low and starts[1] + (taps - 1) * step < high:
            return e.i64(0), e.i64(taps)
        return taps_within(e, w, axis, o, low, high)

    def _counted(self, axis: int) -> tuple[int, int]:
        """The first coordinate whose cells are counted along an axis, and one past the last."""
        before, after = self.pool.counted[axis]
        return -before, self.window.size[axis] + after

    def _count(self, axis: int, o: Value) -> Value:
        """Cells that a window counts along an axis, at least one, as a float."""
        first, last = self._taps_within(axis, o, *self._counted(axis))
        return self.e.convert("sitofp", self.e.smax(last - first, 1), self.pool.dtype.llvm)

    def _column_count(self, tile: ColumnTile, pixel: int, ow: Value) -> Value:
        """The count along the columns, a constant where all columns of this code agree."""
        if self.pool.any_width:
            return self._count(2, ow + pixel)
        w, (low, high) = self.window, self._counted(2)
        counted = replace(w, size=(1, 1, high - low), pad=(0, 0, w.pad[2] + low))
        first = tile.first + pixel
        taps, last = (counted.taps(2, o) for o in (first, first + (tile.count - 1) * tile.pixels))
        if taps != last:
            return self._count(2, ow + pixel)
        return self.e.const(self.pool.dtype.llvm, max(1, fixed(taps[1] - taps[0])))

    # -- reduction -----------------------------------------------------------------------------
    def _start(self) -> Value:
        return start(self.e, self.pool.dtype, self.pool.average, self.kind)

    def _join(self, acc: Value, a: Value, b: Value | None = None) -> Value:
        return joined(self.e, self.pool.dtype, self.pool.average, acc, a, b)

    def _load(self, address: Pointer) -> Value:
        """A vector of x: of codes what they stand for."""
        e, pool = self.e, self.pool
        if pool.codes is None:
            return e.load(address, self.kind)
        zero, scale = (e.const(self.kind, number) for number in pool.numbers[:2])
        loaded = e.load(address, vector(pool.codes[0].llvm, pool.block))
        return (as_float(e, loaded, pool.codes[0]) - zero) * scale

    def _coded(self, mean: Value) -> Value:
        e, pool = self.e, self.pool
        if pool.codes is None:
            return mean
        scale, zero, low, high = (e.const(self.kind, number) for number in pool.numbers[2:])
        return as_codes(e, e.unary("rint", mean / scale + zero), low, high, pool.codes[1])

    def _over_rows(self, acc: Carry, body: _Body) -> None:
        """Run `body(address of the input row)` for each row of taps that touches the input."""
        e, w = self.e, self.window
        widths = (w.size[1] * w.size[2] * self.pool.block, w.size[2] * self.pool.block)
        starts = [
            (o * w.stride[axis] - w.pad[axis], w.dilation[axis])
            for axis, o in ((0, self.od), (1, self.oh))
        ]

        def along(axis: int, at: Pointer) -> None:
            if axis == 2:
                body(at)
                return
            first, last = (self.depth, self.height)[axis]

            def taps() -> None:
                if w.kernel[axis] == 1:
                    along(axis + 1, at.at(starts[axis][0] * widths[axis]))
                    return
                with e.loop("dh"[axis], last, [acc], start=first) as tap:
                    row = tap * starts[axis][1] + starts[axis][0]
                    along(axis + 1, at.at(row * widths[axis]))

            if w.sometimes_empty(axis):
                with e.when(first.compare("slt", last), [acc]):
                    taps()
            else:
                taps()

        along(0, self.x)

    def _tile(self, tile: ColumnTile, ow: Value) -> None:
        """A tile of columns; each input vector is loaded once per row of taps."""
        e, w = self.e, self.window
        acc: Carry = [self._start()] * tile.pixels
        at = ow * w.stride[2] - w.pad[2]

        block = self.pool.block

        def row(x: Pointer) -> None:
            base = x.at(at * block)
            loaded: dict[int, Value] = {}
            for low, high, columns in tile.runs:
                if high - low > _MOST_TAPS:
                    with e.loop("w", high, [acc], start=low) as index:
                        here = base.at(index * (w.dilation[2] * block))
                        for p in columns:
                            address = here.at(p * w.stride[2] * block)
                            acc[p] = self._join(acc[p], self._load(address))
                    continue
                for tap, p in product(range(low, high, 2), columns):
                    pair = range(tap, min(tap + 2, high))
                    cells = [p * w.stride[2] + t * w.dilation[2] for t in pair]
                    for cell in cells:
                        if cell not in loaded:
                            address = base.at(cell * block)
                            loaded[cell] = self._load(address)
                    acc[p] = self._join(acc[p], *(loaded[cell] for cell in cells))

        self._over_rows(acc, row)
        counts = []
        if self.pool.average:
            counts = [self._column_count(tile, p, ow) for p in range(tile.pixels)]
        self._store(acc, ow, counts)

    def _reduce_bounded(self, ow: Value) -> Value:
        """One column, its taps bounded while running."""
        e, w = self.e, self.window
        acc: Carry = [self._start()]
        first, last = self._bounds(2, ow)
        at = ow * w.stride[2] - w.pad[2]

        def row(x: Pointer) -> None:
            base = x.at(at * self.pool.block)
            with (
                e.when(first.compare("slt", last), [acc]),
                e.loop("w", last, [acc], start=first) as tap,
            ):
                cell = base.at(tap * (w.dilation[2] * self.pool.block))
                acc[0] = self._join(acc[0], self._load(cell))

        self._over_rows(acc, row)
        return acc[0]

    def _store(self, acc: list[Value], ow: Value, counts: list[Value]) -> None:
        y = self.y.at(ow * self.pool.block)
        if self.pool.average:
            around = self._count(0, self.od) * self._count(1, self.oh)
        for p, value in enumerate(acc):
            if self.pool.average:
                value = value / self.e.splat(counts[p] * around, self.pool.block)
                value = self._coded(value)
            self.e.store(value, y.at(p * self.pool.block))


def accepts_blocked(node: Node, graph: Graph, block: int) -> bool:
    """Unless planes are faster: of few channels, and where windows share many taps.

    Maxima of codes and means of codes are in blocks where their users want them.
    """
    dtype = graph.types[node.output].dtype
    if dtype not in FLOATS:
        return dtype in CODES
    channels, attributes = graph.types[node.output].shape[1], node.attributes
    uses = prod(attributes["kernel_shape"]) / prod(attributes["strides"])
    return channels * _FEW >= block and uses <= _MOST_USES


def lower(context: KernelContext) -> Lowered:
    """One kernel: of plain floats and integers that of `separable_pool`."""
    node, graph, formats = context.node, context.graph, context.formats
    x, y = node.inputs[0], node.output
    source, result = graph.types[x], graph.types[y]
    average, block = node.op != "MaxPool", formats[y].block
    window = window_of(node, graph)
    edges: tuple[tuple[int, int], ...] = ((0, 0),) * 3
    if node.attributes["count_include_pad"]:
        after = node.attributes["pads"][len(source.shape) - 2 :]
        edges = tuple(zip(window.pad, triple(after, 0), strict=True))
    counted = edges if average else ()
    planes = source.shape[0] * ceil_div(source.shape[1], block or 1)
    kernel: Kernel
    scales = node.attributes.get("scales")  # of codes
    if not block and scales is None:
        kernel = SeparablePool(result.dtype, planes, window, average, counted)
        return Lowered((Call(kernel, (x, y)),), algorithm="pool")
    any_width = any(axis >= 2 for axis in graph.open_axes.get(y, ()))
    kernel = Pool(result.dtype, block or 1, planes, window, average, counted, any_width)
    if scales is not None:
        (scale_x, scale), (zero_x, zero) = scales, node.attributes["zeros"]
        bounds = node.attributes["low"], node.attributes["high"]
        numbers = tuple(float(np.float32(n)) for n in (zero_x, scale_x, scale, zero, *bounds))
        codes = source.dtype, result.dtype
        kernel = replace(kernel, dtype=FLOAT32, codes=codes, numbers=numbers)
    return Lowered((Call(kernel, (x, y)),), algorithm="pool")
