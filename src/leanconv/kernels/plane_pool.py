"""MaxPool between plain tensors, of all types, with the places of what was found.

    y[p, o] = max over the taps k of x[p, o * stride + k * dilation - pad]         p: a map
    places[p, o] = the flat index of that element of x

Lanes run along columns. A row of results lies in the scratch while the rows of its taps are taken
one after the other. Each of those is split there into the columns of every phase of the stride, so
that a tap is read as whole vectors; a comparison of positions with the width leaves padding out.
Of equal numbers, and of several NaN, the first in row-major order counts.

What other kernels of MaxPool and AveragePool share with it, comes first: rows, joining taps, and
which taps count.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from leanconv.codegen import math
from leanconv.codegen.emitter import Carry, Function, Pointer, Value, vector
from leanconv.codegen.geometry import Window, triple
from leanconv.codegen.lowered import Call, Lowered
from leanconv.codegen.tails import each_tile_of_any, where_any
from leanconv.errors import UnsupportedError
from leanconv.graph.ir import Graph, Node
from leanconv.kernels import KernelContext, OfItems
from leanconv.kernels.ordering import precedes
from leanconv.kernels.typed_steps import extreme
from leanconv.records import dataclass
from leanconv.spec.format import aligned, ceil_div
from leanconv.symbolic import Extent, most
from leanconv.target import Target
from leanconv.types import INT32, INT64, DType


@dataclass(frozen=True)
class PoolOfRows(OfItems):
    """Pool `planes` (images times channels) between plain tensors, row by row of results.

    Attributes:
        dtype: of the elements.
        planes: number of maps.
        window: extents before and after, kernel, strides, dilations and padding before.
    """

    VARIES = True

    dtype: DType
    planes: Extent
    window: Window

    @property
    def items(self) -> int:
        """Rows of results in all."""
        return self.planes * self.window.out[0] * self.window.out[1]

    @property
    def flops(self) -> int:
        return self.items * self.window.out[2] * prod(self.window.kernel)


class RowLoops:
    """Function, window and vectors with which the loops over rows of results are written.

    Attributes:
        e: the function that they are written to.
        w: the window.
        lanes, element, kind: of a vector along columns.
    """

    def __init__(self, kernel: PoolOfRows, target: Target) -> None:
        self.e, self.w = Function(kernel.NAME), kernel.window
        self.lanes, self.element = lanes_of(kernel.dtype, target), kernel.dtype.llvm
        self.kind = vector(self.element, self.lanes)

    def plane(self, row: Value) -> Value:
        """The map of a row of results."""
        return row // (self.w.out[0] * self.w.out[1])

    def place(self, row: Value, axis: int) -> Value:
        """The depth (axis 0) or height (1) of a row of results in its map."""
        depths, heights = self.w.out[:2]
        return row % heights if axis else row // heights % depths


def lanes_of(dtype: DType, target: Target) -> int:
    """Elements of a vector along columns: as many as there are positions of 32 bits in one."""
    return target.lanes(dtype if dtype.bytes >= INT32.bytes else INT32)


def start(e: Function, dtype: DType, average: bool, kind: str) -> Value:
    """Return the initial value of a window: 0 for a mean, the least number for a maximum."""
    if not dtype.is_float:
        return e.const(kind, int(dtype.low))
    return e.const(kind, 0.0 if average else float("-inf"))


def joined(
    e: Function, dtype: DType, average: bool, acc: Value, a: Value, b: Value | None = None
) -> Value:
    """The sum or the maximum with one tap more, or with two; `maximum(a, acc)` keeps NaN."""
    if average:
        return acc + a if b is None else acc + a + b
    if not dtype.is_float:
        for x in (a, b):
            acc = acc if x is None else extreme(e, dtype, "max", acc, x)
        return acc
    if b is None:
        return math.larger(e, a, acc)
    return e.select(a.compare("uno", b), a + b, e.maximum(e.maximum(a, b), acc))


def taps_within(
    e: Function, w: Window, axis: int, o: Value, low: int, high: int
) -> tuple[Value, Value]:
    """The first tap whose input coordinate is in [low, high), and one past the last."""
    step = w.dilation[axis]
    begin = o * w.stride[axis] - w.pad[axis]
    before = e.smax(low - begin, 0)
    room = e.smax(high - begin, 0)
    first = (before + (step - 1)) // step
    return first, e.smin((room + (step - 1)) // step, w.kernel[axis])


_CHUNK_TAPS = 32 * 1024  # about 10 us
_ROUNDED = 16  # results of a row, rounded up: a multiple of all targets' lanes
_MOST_PHASES = 8  # further ones are split column by column
_MOST_PIXELS = 1 << 31  # places in an image have 32 bits


@dataclass(frozen=True)
class PlanePool(PoolOfRows):
    """Maxima of windows, and their places in int64.

    Attributes:
        columns_first: whether places count the axes of a map in reverse order.
    """

    operands = ("x", "values", "places")
    result_count = 2

    columns_first: bool = False

    @property
    def group(self) -> int:
        return ceil_div(_CHUNK_TAPS, self.window.out[2] * prod(self.window.kernel))

    @property
    def columns(self) -> int:
        """Results of a row, rounded up to whole vectors."""
        return ceil_div(self.window.out[2], _ROUNDED) * _ROUNDED

    @property
    def margin(self) -> int:
        """Columns of each phase before the input's first."""
        return ceil_div(self.window.pad[2], self.window.stride[2])

    @property
    def phase_columns(self) -> int:
        """Columns of one phase of a split row, margin and what no tap may count included."""
        w, step = self.window, self.window.stride[2]
        reach = ceil_div((w.kernel[2] - 1) * w.dilation[2], step)
        found: int = self.margin + most(ceil_div(w.size[2], step), self.columns + reach)
        return found

    @property
    def parts_bytes(self) -> tuple[int, int, int]:
        """Scratch for a row of results, their places, and a split row."""
        results, item = self.columns, self.dtype.bytes
        places = results * INT32.bytes
        split = self.phase_columns * self.window.stride[2] * item
        return aligned(results * item), aligned(places), aligned(split)

    @property
    def scratch_bytes(self) -> int:
        return sum(self.parts_bytes)

    def emit(self, target: Target) -> str:
        return _Nest(self, target).emit()


class _Nest(RowLoops):
    def __init__(self, kernel: PlanePool, target: Target) -> None:
        super().__init__(kernel, target)
        self.k = kernel
        self.index = vector(INT32.llvm, self.lanes)
        results, places, _ = kernel.parts_bytes
        scratch = self.e.scratch
        self.best = scratch.of(self.element)
        self.found = scratch.at(results).of(INT32.llvm)
        self.split = scratch.at(results + places).of(self.element)

    def emit(self) -> str:
        e, k, w = self.e, self.k, self.w
        x, y = e.pointer(0, self.element), e.pointer(1, self.element)
        places = e.pointer(2, INT64.llvm)
        with k.each_item(e, "row") as row:
            plane = self.plane(row)
            self._clear()
            base = plane * prod(w.size)
            self._rows(x.at(base), row)
            to = row * w.out[2]
            for at, count in each_tile_of_any(e, "column", w.out[2], self.lanes):
                e.store_first(e.load(self.best.at(at), self.kind), y.at(to + at), count)
                e.store_first(self._place(at, base), places.at(to + at), count)
        return e.finish()

    def _clear(self) -> None:
        """A row of the least number, which no place has."""
        e, dtype = self.e, self.k.dtype
        least = e.const(self.kind, float("-inf") if dtype.is_float else int(dtype.low))
        with e.loop("column", self.k.columns, step=self.lanes) as at:
            e.store(least, self.best.at(at))
            e.store(e.const(self.index, -1), self.found.at(at))

    def _place(self, at: Value, base: Value) -> Value:
        """Places in all of x, of a vector of results."""
        e, kind = self.e, vector(INT64.llvm, self.lanes)
        inside = e.convert("sext", e.load(self.found.at(at), self.index), kind)
        moved = inside + e.splat(base, self.lanes)
        return e.select(inside.compare("slt", 0), inside, moved)

    # -- rows of taps -----------------------------------------------------------------------------
    def _rows(self, x: Pointer, row: Value) -> None:
        w = self.w
        depths, heights, widths = w.size
        orders = (1, depths, depths * heights) if self.k.columns_first else None
        strides = orders or (heights * widths, widths, 1)
        for d in self._taps(0, self.place(row, 0)):
            for h in self._taps(1, self.place(row, 1)):
                self._split(x.at((d * heights + h) * widths))
                self._columns(d * strides[0] + h * strides[1], strides[2])

    def _taps(self, axis: int, o: Value) -> Iterator[Value]:
        """Emit the body for each position of the input along an axis that a window touches."""
        e, w, step = self.e, self.w, self.w.dilation[axis]
        start = o * w.stride[axis] - w.pad[axis]
        first, last = taps_within(e, w, axis, o, 0, w.size[axis])
        with e.when(first.compare("slt", last)), e.loop("dh"[axis], last, start=first) as tap:
            yield tap * step + start

    def _split(self, x: Pointer) -> None:
        """A row of the input into the scratch, phase by phase."""
        e, width, step = self.e, self.w.size[2], self.w.stride[2]
        margin, phase = self.k.margin, self.k.phase_columns
        block = step * self.lanes
        whole = width // block if step <= _MOST_PHASES else 0
        for _ in where_any(e, whole):
            with e.loop("block", whole) as number:
                loaded = e.load(x.at(number * block), vector(self.element, block))
                for p in range(step):
                    part = e.shuffle(loaded, None, range(p, block, step)) if step > 1 else loaded
                    e.store(part, self.split.at(number * self.lanes + (p * phase + margin)))
        for _ in where_any(e, width - whole * block):
            with e.loop("w", width, start=e.i64(whole * block)) as w:
                place = w % step * phase + w // step + margin
                e.store(e.load(x.at(w)), self.split.at(place))

    def _columns(self, row: Value, step: int) -> None:
        """Take the split row: its columns lie at `row + column * step` in the order of places."""
        e, w = self.e, self.w
        with e.loop("tile", self.k.columns, step=self.lanes) as first:
            best = e.load(self.best.at(first), self.kind)
            state: Carry = [best, e.load(self.found.at(first), self.index)]
            begin = self._splat(first * w.stride[2] - w.pad[2])
            column = e.const(self.index, [n * w.stride[2] for n in range(self.lanes)]) + begin
            places = (self._splat(row), self._splat(e.i64(step)))
            if w.kernel[2] > _MOST_PHASES:
                with e.loop("kw", w.kernel[2], [state]) as tap:
                    self._tap(state, first, tap, column, places)
            else:
                for number in range(w.kernel[2]):
                    self._tap(state, first, number, column, places)
            e.store(state[0], self.best.at(first))
            e.store(state[1], self.found.at(first))

    def _tap(
        self,
        state: Carry,
        first: Value,
        tap: Value | int,
        column: Value,
        places: tuple[Value, Value],
    ) -> None:
        e, w, stride = self.e, self.w, self.w.stride[2]
        from_margin = tap * w.dilation[2] + (self.k.margin * stride - w.pad[2])
        at = first + from_margin % stride * self.k.phase_columns + from_margin // stride
        x = e.load(self.split.at(at), self.kind)
        here = column + self._splat(e.i64(tap * w.dilation[2]))
        taken = precedes(self.k.dtype, x, state[0], least=False)
        taken = taken | state[1].compare("slt", 0)
        taken = taken & here.compare("ult", self._splat(e.i64(w.size[2])))
        state[0] = e.select(taken, x, state[0])
        row, column_step = places
        state[1] = e.select(taken, here * column_step + row, state[1])

    def _splat(self, number: Value) -> Value:
        return self.e.splat(self.e.convert("trunc", number, INT32.llvm), self.lanes)


def lower(context: KernelContext) -> Lowered:
    """Return one call, of a `PlanePool`."""
    node, graph = context.node, context.graph
    source = graph.types[node.inputs[0]]
    pixels = prod(source.shape[2:])
    if pixels >= _MOST_PIXELS:
        raise UnsupportedError(
            f"node {node.name or node.key!r}: {node.op} of maps of {pixels} pixels; expected "
            f"fewer than {_MOST_PIXELS}; cut the maps into several"
        )
    planes = source.shape[0] * source.shape[1]
    columns_first = bool(node.attributes["storage_order"])
    kernel = PlanePool(source.dtype, planes, window_of(node, graph), columns_first)
    return Lowered((Call(kernel, (node.inputs[0], *node.outputs)),), algorithm="pool")


def window_of(node: Node, graph: Graph) -> Window:
    """The window of a pool."""
    size, out = (graph.types[name].shape[2:] for name in (node.inputs[0], node.outputs[0]))
    attributes = node.attributes
    return Window(
        triple(size, 1),
        triple(out, 1),
        triple(attributes["kernel_shape"], 1),
        triple(attributes["strides"], 1),
        triple(attributes["dilations"], 1),
        triple(attributes["pads"][: len(size)], 0),
    )
