"""ArgMax and ArgMin: where along an axis the largest or smallest number is.

    y[o, i] = the r of the largest x[o, r, i]                 of equal ones the first, or the last

NaN is beyond all numbers, as in NumPy. Two loop nests:

- other axes behind (`inner` > 1): lanes run along them, in tiles of columns. What was found lies in
  the scratch, so that a row of a tile is read as one run; it is loaded and stored once for a few
  rows. A last vector of columns overlaps the one before it, which changes nothing;
- none behind: lanes run along the axis. Each lane finds its own, then the lanes are compared, by
  number and place, then what is left of the axis, one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from leanconv.codegen.emitter import Function, Pointer, Value, lanes_of, vector
from leanconv.codegen.lowered import Call, Lowered
from leanconv.codegen.tails import where_any
from leanconv.errors import UnsupportedError
from leanconv.kernels import InPieces, KernelContext
from leanconv.kernels.ordering import precedes, precedes_at
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.symbolic import Extent
from leanconv.target import Target
from leanconv.types import INT32, INT64, DType

_TILE = 1024  # columns: with their places, 8 KiB of float
_ROWS = 4  # taken at once
_MOST_ROWS = 1 << 31  # places beside numbers in lanes have 32 bits


@dataclass(frozen=True)
class ExtremePlaces(InPieces):
    """Places along the middle one of three axes.

    Attributes:
        dtype: of the numbers; places are int64.
        least: the smallest instead of the largest number.
        last: of equal numbers the last instead of the first.
        outer, count, inner: extents before the axis, of it, and behind it; at least 1.
    """

    VARIES = True
    operands = ("x", "y")

    dtype: DType
    least: bool
    last: bool
    outer: Extent
    count: Extent
    inner: Extent

    @property
    def items(self) -> int:
        """Tiles of results."""
        return self.outer * ceil_div(self.inner, _TILE)

    @property
    def elements(self) -> int:
        return self.outer * self.count * self.inner

    @property
    def flops(self) -> int:
        return self.outer * self.count * self.inner

    @property
    def scratch_bytes(self) -> int:
        """Scratch for the extremes and places of a tile of columns."""
        return 0 if self.inner == 1 else _TILE * (self.dtype.bytes + INT32.bytes)

    def emit(self, target: Target) -> str:
        return _Nest(self, target).emit()


class _Nest:
    def __init__(self, kernel: ExtremePlaces, target: Target) -> None:
        self.k, self.e, self.target = kernel, Function(kernel.NAME), target
        # Places are wider than most numbers: a vector of either is a few registers.
        self.step = kernel.dtype if kernel.dtype.bytes >= INT32.bytes else INT32
        self.lanes = target.lanes(self.step)
        self.kind = vector(kernel.dtype.llvm, self.lanes)
        self.places, self.narrow = (vector(t.llvm, self.lanes) for t in (INT64, INT32))
        self.numbers_found = self.e.scratch.of(kernel.dtype.llvm)
        self.places_found = self.e.scratch.at(_TILE * kernel.dtype.bytes).of(INT32.llvm)

    def emit(self) -> str:
        e, k = self.e, self.k
        x, y = e.pointer(0, k.dtype.llvm), e.pointer(1, INT64.llvm)
        with k.each_item(e) as item:
            if k.inner == 1:
                e.store(self._row(x.at(item * k.count)), y.at(item))
            else:
                self._tile(x, y, item)
        return e.finish()

    # -- lanes along the axes behind --------------------------------------------------------------
    def _tile(self, x: Pointer, y: Pointer, item: Value) -> None:
        e, k, columns = self.e, self.k, ceil_div(self.k.inner, _TILE)
        row, tile = item // columns, item % columns
        first, end = (number * k.inner // columns for number in (tile, tile + 1))
        source, out = x.at(row * (k.count * k.inner) + first), y.at(row * k.inner + first)
        if k.inner < self.lanes:
            self._few_columns(source, out, self.target.lanes_of_tail(k.inner))
            return
        extent = end - first  # of tiles about equal, so that none is less than a vector
        self._first_row(source, extent)
        groups = (k.count - 1) // _ROWS
        for _ in where_any(e, groups):
            with e.loop("rows", groups) as group:
                self._rows(source, extent, group * _ROWS + 1, _ROWS)
        for _ in where_any(e, k.count - 1 - groups * _ROWS):
            with e.loop("r", k.count, start=e.i64(groups * _ROWS + 1)) as r:
                self._rows(source, extent, r, 1)
        for at in self._vectors_of(extent):
            place = e.load(self.places_found.at(at), self.narrow)
            e.store(e.convert("zext", place, self.places), out.at(at))

    def _vectors_of(self, extent: Value) -> Iterator[Value]:
        """Emit the body for where each vector of columns begins; there is at least one."""
        with self.e.loop("column", (extent + (self.lanes - 1)) // self.lanes) as number:
            yield self.e.smin(number * self.lanes, extent - self.lanes)

    def _first_row(self, source: Pointer, extent: Value) -> None:
        for at in self._vectors_of(extent):
            self.e.store(self.e.load(source.at(at), self.kind), self.numbers_found.at(at))
            self.e.store(self.e.zero(self.narrow), self.places_found.at(at))

    def _rows(self, source: Pointer, extent: Value, r: Value, rows: int) -> None:
        e, k = self.e, self.k
        for at in self._vectors_of(extent):
            numbers, places = self.numbers_found.at(at), self.places_found.at(at)
            best = [e.load(numbers, self.kind), e.load(places, self.narrow)]
            for u in range(rows):
                x = e.load(source.at((r + u) * k.inner + at), self.kind)
                place = e.splat(e.convert("trunc", r + u, INT32.llvm), self.lanes)
                self._take(best, x, place)
            e.store(best[0], numbers)
            e.store(best[1], places)

    def _few_columns(self, source: Pointer, out: Pointer, count: int) -> None:
        e, k = self.e, self.k
        best = [e.load_first(source, self.kind, count), e.const(self.places, 0)]
        for _ in where_any(e, k.count - 1, [best]):
            with e.loop("r", k.count, [best], start=1) as r:
                x = e.load_first(source.at(r * k.inner), self.kind, count)
                self._take(best, x, e.splat(r, self.lanes))
        e.store_first(best[1], out, count)

    # -- lanes along the axis ---------------------------------------------------------------------
    def _row(self, source: Pointer) -> Value:
        e, k = self.e, self.k
        whole, left = k.count // self.lanes, k.count % self.lanes
        best = [e.load(source), e.i64(0)]
        for _ in where_any(e, whole, [best]):
            best[:] = self._across_lanes(self._vectors(source, whole))
        for _ in where_any(e, left, [best]):
            with e.loop("r", k.count, [best], start=e.i64(whole * self.lanes)) as r:
                self._take(best, e.load(source.at(r)), r)
        return best[1]

    def _vectors(self, source: Pointer, whole: int) -> list[Value]:
        """Return the extreme of each lane and its place, over whole vectors."""
        e = self.e
        lane = e.const(self.places, range(self.lanes))
        best = [e.load(source, self.kind), lane]
        for _ in where_any(e, whole - 1, [best]):
            with e.loop("v", whole, [best], start=1) as v:
                first = v * self.lanes
                x = e.load(source.at(first), self.kind)
                self._take(best, x, lane + e.splat(first, self.lanes))
        return best

    def _across_lanes(self, best: list[Value]) -> list[Value]:
        e, k = self.e, self.k
        while (lanes := lanes_of(best[0].kind)) > 1:
            low, high = range(lanes // 2), range(lanes // 2, lanes)
            if lanes == 2:
                (a, i), (b, j) = ([e.extract(each, lane) for each in best] for lane in (0, 1))
            else:
                (a, i), (b, j) = ([e.shuffle(each, None, p) for each in best] for p in (low, high))
            taken = precedes_at(k.dtype, (b, j), (a, i), least=k.least, last=k.last)
            best = [e.select(taken, b, a), e.select(taken, j, i)]
        return best

    def _take(self, best: list[Value], x: Value, place: Value) -> None:
        """Take a number and its place, which lies behind the ones so far, where it precedes."""
        e, k = self.e, self.k
        taken = precedes(k.dtype, x, best[0], least=k.least, ties=k.last)
        best[:] = [e.select(taken, x, best[0]), e.select(taken, place, best[1])]


def lower(context: KernelContext) -> Lowered:
    """Return one call, of an `ExtremePlaces`."""
    node, graph = context.node, context.graph
    (x,), y = node.inputs, node.output
    kind, axis = graph.types[x], node.attributes["axis"]
    outer, inner = prod(kind.shape[:axis]), prod(kind.shape[axis + 1 :])
    if inner > 1 and kind.shape[axis] > _MOST_ROWS:
        raise UnsupportedError(
            f"node {node.name or node.key!r}: {node.op} among {kind.shape[axis]} rows; expected "
            f"at most {_MOST_ROWS} along an axis before others; move the axis to the end"
        )
    kernel = ExtremePlaces(
        kind.dtype,
        node.op == "ArgMin",
        bool(node.attributes["last"]),
        outer,
        kind.shape[axis],
        inner,
    )
    return Lowered((Call(kernel, (x, y)),), algorithm="extreme places")
