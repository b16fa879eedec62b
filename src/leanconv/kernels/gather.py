"""Gather, GatherElements and GatherND: elements found by indices that are data.

    rows:      y[o, b, n, :] = x[o, b, place(indices[b, n, :]), :]      Gather, GatherND
    elements:  y[r, k]       = x[r // per, place(indices[r, k]), k]     GatherElements

A place is an index, counted from the end if it is below 0, brought within its axis: nothing beside
x is read, whatever the indices are, and one that is outside is reported. Rows are copied by
vectors, the last of which overlaps the one before it. Elements are moved as bits of their width.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from math import prod

from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.lowered import Call, Lowered
from leanconv.codegen.shuffles import any_lane, power_below
from leanconv.codegen.tails import where_any
from leanconv.kernels import KernelContext, OfItems
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.symbolic import Extent, Extents
from leanconv.target import Target
from leanconv.types import INT32, INT64, DType

CHUNK_BYTES = 32 * 1024  # that one chunk writes
_TILE = 1024  # indices of a row that are taken at once
_UNROLL = 4


def index_ranges(axes: Sequence[int]) -> list[tuple[int, int]]:
    """Return the least and largest index of each axis, as `Kernel.index_ranges` has them."""
    return [(-extent, extent - 1) for extent in axes]


def place_of(e: Function, index: Value, extent: int) -> tuple[Value, Value]:
    """Return an index as 64 bits, and as a place from the front; outside stays outside."""
    wide = e.index(e.convert("sext", index, "i64") if index.kind != "i64" else index)
    return wide, e.select(wide.compare("slt", 0), wide + extent, wide)


def clamped(e: Function, index: Value, extent: int, outside: Pointer) -> Value:
    """Return an index as a place within its axis; of one outside, reported, the nearest."""
    wide, place = place_of(e, index, extent)
    found = [place]
    with e.when(place.compare("uge", extent), [found]):
        e.store(wide, outside)
        found[0] = e.smin(e.smax(place, 0), extent - 1)
    return found[0]


def copy_row(e: Function, source: Pointer | None, out: Pointer, count: int, lanes: int) -> None:
    """Copy `count` contiguous elements, at least one, by vectors of at most `lanes`; else zeros."""
    while lanes > 1 and lanes > count:
        lanes //= 2
    kind = vector(out.element, lanes)
    vectors = count // lanes
    groups = vectors // _UNROLL

    def load(at: Value) -> Value:
        return e.zero(kind) if source is None else e.load(source.at(at), kind)

    for _ in where_any(e, groups):
        with e.loop("vectors", groups) as group:
            places = [group * (_UNROLL * lanes) + u * lanes for u in range(_UNROLL)]
            loaded = [load(at) for at in places]
            for at, value in zip(places, loaded, strict=True):
                e.store(value, out.at(at))
    for _ in where_any(e, vectors - groups * _UNROLL):
        with e.loop("vector", vectors, start=e.i64(groups * _UNROLL)) as v:
            e.store(load(v * lanes), out.at(v * lanes))
    if lanes > 1:
        for _ in where_any(e, count - vectors * lanes):
            last = e.i64(count - lanes)
            e.store(load(last), out.at(last))


@dataclass(frozen=True)
class GatherRows(OfItems):
    """Rows found by lists of indices, one index for each of some axes.

    Attributes:
        item: bytes of an element.
        index: dtype of the indices.
        outer: parts of x in each of which the same indices are looked up.
        batch: parts of x and of the indices that belong together.
        count: rows that are found in each part.
        axes: extents of the axes that the indices of one list are of.
        inner: elements of a row.
        counted: whether a number says how many of the rows are found, of a single part; the others
            are left as they are, and their indices are not read.
    """

    VARIES = True

    item: int
    index: DType
    outer: Extent
    batch: Extent
    count: Extent
    axes: Extents
    inner: Extent
    counted: bool = False

    @property
    def operands(self) -> tuple[str, ...]:
        return ("x", "indices", "found", "y") if self.counted else ("x", "indices", "y")

    @property
    def measure(self) -> str | None:
        return "found" if self.counted else None

    @property
    def index_ranges(self) -> list[tuple[int, int]]:
        return index_ranges(self.axes)

    @property
    def tiles(self) -> int:
        """Tiles of the rows of a part."""
        return ceil_div(self.count, _TILE)

    @property
    def items(self) -> int:
        """Tiles of all parts."""
        return self.outer * self.batch * self.tiles

    @property
    def group(self) -> int:
        """Tiles in one chunk."""
        size = self.outer * self.batch * self.count * self.inner * self.item
        return ceil_div(CHUNK_BYTES * self.items, size)

    def emit(self, target: Target) -> str:
        e, element = Function(self.NAME), f"i{8 * self.item}"
        lanes = target.vector_bytes // self.item
        x, y = e.pointer(0, element), e.pointer(2 + self.counted, element)
        indices = e.pointer(1, self.index.llvm)
        count = e.load_index(e.pointer(2, INT64.llvm)) if self.counted else e.i64(self.count)
        with self.each_item(e) as item:
            part, tile = item // self.tiles, item % self.tiles
            source = x.at(part * (prod(self.axes) * self.inner))
            out = y.at(part * (self.count * self.inner))
            lists = indices.at((part % self.batch) * (self.count * len(self.axes)))
            begin = tile * _TILE
            stop = e.smin(begin + _TILE, count)
            some = e.when(begin.compare("ult", stop)) if self.counted else nullcontext()
            with some, e.loop("n", stop, start=begin) as n:
                at = self._place(e, lists.at(n * len(self.axes)))
                row, result = source.at(at * self.inner), out.at(n * self.inner)
                copy_row(e, row, result, self.inner, lanes)
        return e.finish()

    def _place(self, e: Function, listed: Pointer) -> Value:
        """The row of a part that a list of indices finds."""
        at: Value = e.i64(0)
        for axis, extent in enumerate(self.axes):
            outside = e.pointer(len(self.operands) + axis, INT64.llvm)
            at = at * extent + clamped(e, e.load(listed.at(axis)), extent, outside)
        return at


@dataclass(frozen=True)
class GatherElements(OfItems):
    """Elements, each found by an index of its own.

    Attributes:
        item: bytes of an element.
        index: dtype of the indices.
        rows: of indices.
        per: rows that find elements in the same part of x.
        length: indices of a row.
        count: extent of the axis that the indices are of.
        moves: whether the elements of a row are beside each other in x, too, and the axis before
            them; otherwise the axis is the last one.
    """

    VARIES = True
    operands = ("x", "indices", "y")

    item: int
    index: DType
    rows: Extent
    per: Extent
    length: Extent
    count: Extent
    moves: bool

    @property
    def index_ranges(self) -> list[tuple[int, int]]:
        return index_ranges((self.count,))

    @property
    def tiles(self) -> int:
        """Tiles of a row."""
        return ceil_div(self.length, _TILE)

    @property
    def items(self) -> int:
        return self.rows * self.tiles

    @property
    def group(self) -> int:
        """Tiles in one chunk."""
        return ceil_div(4 * _TILE * self.tiles, self.length)

    def emit(self, target: Target) -> str:
        e, element, lanes = Function(self.NAME), f"i{8 * self.item}", self._lanes(target)
        x, y = e.pointer(0, element), e.pointer(2, element)
        indices = e.pointer(1, self.index.llvm)
        step = self.length if self.moves else 1
        with self.each_item(e) as item:
            row, tile = item // self.tiles, item % self.tiles
            source = x.at((row // self.per) * (self.count * step))
            own, out = indices.at(row * self.length), y.at(row * self.length)
            begin = tile * self.length // self.tiles  # no tile is less than a vector
            count = (tile + 1) * self.length // self.tiles - begin
            with e.loop("vector", (count + (lanes - 1)) // lanes) as number:
                k = begin + e.smin(number * lanes, count - lanes)
                self._take(e, source, own.at(k), out.at(k), k, lanes)
        return e.finish()

    def _lanes(self, target: Target) -> int:
        """Elements that are gathered at once: those of 32 bits and more, at offsets of 32 bits."""
        near = self.count * (self.length if self.moves else 1) < 1 << 31
        if self.item < INT32.bytes or not near:
            return 1
        return power_below(self.length, target.vector_bytes // self.item)

    def _take(
        self, e: Function, x: Pointer, indices: Pointer, y: Pointer, k: Value, lanes: int
    ) -> None:
        """A vector of the result; the last of a tile overlaps the one before it."""
        step, outside = self.length if self.moves else 1, e.pointer(3, INT64.llvm)
        index = e.load(indices, vector(self.index.llvm, lanes))
        if lanes == 1:
            place = clamped(e, index, self.count, outside) * step
            e.store(e.load(x.at(place + k if self.moves else place)), y)
            return
        found = [e.select(index.compare("slt", 0), index + self.count, index)]
        with e.when(any_lane(e, found[0].compare("uge", self.count)), [found]):
            with e.loop("lane", lanes) as lane:
                clamped(e, e.load(indices.at(lane)), self.count, outside)
            found[0] = e.smin(e.smax(found[0], 0), self.count - 1)
        narrow = vector(INT32.llvm, lanes)
        place = found[0] if index.kind == narrow else e.convert("trunc", found[0], narrow)
        place = place * step
        base = x.at(k) if self.moves else x
        if self.moves:
            place = place + e.const(narrow, range(lanes))
        e.store(e.gather(base, place, e.first_lanes(lanes, lanes)), y)


def lower(context: KernelContext) -> Lowered:
    """Return one call, of a `GatherRows` or a `GatherElements`."""
    node, graph = context.node, context.graph
    x, indices = (graph.types[name] for name in node.inputs[:2])
    counted = len(node.inputs) > 2
    kernel: Kernel
    if node.op == "GatherElements":
        axis = node.attributes["axis"]
        outer, inner = prod(x.shape[:axis]), prod(x.shape[axis + 1 :])
        found = indices.shape[axis]
        rows, per, length = (outer, 1, found) if inner == 1 else (outer * found, found, inner)
        kernel = GatherElements(
            x.dtype.bytes, indices.dtype, rows, per, length, x.shape[axis], inner != 1
        )
    elif node.op == "Gather":
        axis = node.attributes["axis"]
        outer, inner = prod(x.shape[:axis]), prod(x.shape[axis + 1 :])
        axes, found = x.shape[axis : axis + 1], indices.elements
        item = x.dtype.bytes
        kernel = GatherRows(item, indices.dtype, outer, 1, found, axes, inner, counted)
        if outer == inner == 1 and item >= INT32.bytes and not counted:  # vectors of elements
            kernel = GatherElements(item, indices.dtype, 1, 1, found, axes[0], False)
    else:
        batch, depth = node.attributes["batch_dims"], indices.shape[-1]
        parts = prod(indices.shape[:batch])
        kernel = GatherRows(
            x.dtype.bytes,
            indices.dtype,
            1,
            parts,
            prod(indices.shape[batch:-1]),
            x.shape[batch : batch + depth],
            prod(x.shape[batch + depth :]),
            counted,
        )
    return Lowered((Call(kernel, (*node.inputs, node.output)),), algorithm="gather")
