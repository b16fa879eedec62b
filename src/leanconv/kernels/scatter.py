"""ScatterElements and ScatterND: a copy of x, some elements of which are updated, in order.

    rows:      y[place(indices[n, :]), :] = updates[n, :]                       ScatterND
    elements:  y[o, place(indices[o, n, i]), i] = updates[o, n, i]              ScatterElements

or `y = reduced(y, update)`. An update whose index lies outside of its axis is left out: nothing
beside y is written, whatever the indices are, and one that is no padding (`NOWHERE`) is reported.
Updates of one element come in the order of n, so chunks share none: each does a tile of the columns
`:` or `i` for all of n. Where y takes over the memory of x nothing is copied, and an x of zeros is
not read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from math import prod

import numpy as np

from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.lowered import Call, Lowered
from leanconv.codegen.shuffles import power_below
from leanconv.codegen.tails import where_any
from leanconv.graph.ir import is_filled
from leanconv.graph.ops.indexing import NOWHERE
from leanconv.kernels import KernelContext
from leanconv.kernels.gather import copy_row, index_ranges, place_of
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.symbolic import Extent, Extents, Symbol
from leanconv.target import Target
from leanconv.types import INT64, DType

_TILE = 512  # columns


@dataclass(frozen=True)
class Scatter(Kernel):
    """Updates of rows, or of elements.

    Attributes:
        dtype: of the elements.
        index: dtype of the indices.
        reduction: what becomes of an element and its update: none (the update), add, mul, min, max.
        each: whether every element has an index of its own, and not every row a list.
        padded: whether an index may be `NOWHERE`.
        outer: parts of x and of the updates that belong together.
        axes: extents of the axes that the indices are of.
        inner: elements behind these.
        count: updates of each part: rows, or elements of each column.
        zeros: whether x is a constant of zeros, and no operand.
    """

    VARIES = True

    dtype: DType
    index: DType
    reduction: str
    each: bool
    padded: bool
    outer: Extent
    axes: Extents
    inner: Extent
    count: Extent
    zeros: bool = False

    @property
    def operands(self) -> tuple[str, ...]:
        return ("x", "indices", "updates", "y")[self.zeros :]

    @property
    def index_ranges(self) -> list[tuple[int, int]]:
        return index_ranges(self.axes)

    @property
    def tiles(self) -> int:
        """Tiles of columns, about equally wide."""
        return ceil_div(self.inner, _TILE)

    @property
    def chunks(self) -> int:
        return self.outer * self.tiles

    @property
    def element(self) -> str:
        """LLVM's type of what is moved or computed with."""
        return f"i{8 * self.dtype.bytes}" if self.reduction == "none" else self.dtype.llvm

    def emit(self, target: Target) -> str:
        return _Nest(self, target).emit()


class _Nest:
    def __init__(self, kernel: Scatter, target: Target) -> None:
        self.k, self.e = kernel, Function(kernel.NAME)
        self.lanes = target.lanes(kernel.dtype)

    def emit(self) -> str:
        e, k = self.e, self.k
        given = e.pointers(k.operands, k.element, indices=k.index.llvm)
        x, indices, updates, y = given.get("x"), given["indices"], given["updates"], given["y"]
        lists = k.count * (k.inner if k.each else len(k.axes))
        part, rows = prod(k.axes) * k.inner, prod(k.axes)
        with e.chunks(k.chunks) as (chunk,):
            outer, tile = chunk // k.tiles, chunk % k.tiles
            first = tile * k.inner // k.tiles
            width = (tile + 1) * k.inner // k.tiles - first
            out = y.at(outer * part + first)
            if x is None:
                self._copy(None, out, rows, width)
            else:
                addresses = [e.convert("ptrtoint", pointer, "i64") for pointer in (x, y)]
                with e.when(addresses[0].compare("ne", addresses[1])):
                    self._copy(x.at(outer * part + first), out, rows, width)
            source = updates.at(outer * (k.count * k.inner) + first)
            own = indices.at(outer * lists)
            for _ in where_any(e, k.count):
                with e.loop("n", k.count) as n:
                    if k.each:
                        self._elements(own.at(n * k.inner + first), source, out, n, width)
                    else:
                        self._row(own.at(n * len(k.axes)), source, out, n, width)
        return e.finish()

    def _copy(self, source: Pointer | None, out: Pointer, rows: int, width: Value) -> None:
        """Bring a tile of columns, or zeros, to the result; a tile of all columns is one run."""
        e, k = self.e, self.k
        if k.tiles == 1:
            copy_row(e, source, out, rows * k.inner, self.lanes)
            return
        with e.loop("copied", rows) as row:
            at = row * k.inner
            self._along(width, lambda kind, i: self._move(kind, source, out, at + i))

    def _move(self, kind: str, source: Pointer | None, out: Pointer, at: Value) -> None:
        e = self.e
        e.store(e.zero(kind) if source is None else e.load(source.at(at), kind), out.at(at))

    def _along(self, width: Value, body: Callable[[str, Value], None]) -> None:
        """Emit the body for vectors of columns, then for single ones."""
        e, k = self.e, self.k
        lanes = power_below(k.inner, self.lanes)
        whole = width // lanes
        with e.when(whole.compare("ne", 0)), e.loop("vector", whole) as v:
            body(vector(k.element, lanes), v * lanes)
        if lanes > 1:
            left = whole * lanes
            with e.when(left.compare("ult", width)), e.loop("column", width, start=left) as i:
                body(k.element, i)

    def _row(self, listed: Pointer, source: Pointer, out: Pointer, n: Value, width: Value) -> None:
        e, k = self.e, self.k
        at, inside, found = e.i64(0), None, []
        for axis, extent in enumerate(k.axes):
            wide, place = place_of(e, e.load(listed.at(axis)), extent)
            within = place.compare("ult", extent)
            inside = within if inside is None else inside & within
            at = at * extent + place
            found.append((wide, within))
        assert inside is not None
        with e.when(inside, otherwise=lambda: self._report(found)):
            row, given = out.at(at * k.inner), source.at(n * k.inner)
            self._along(width, lambda kind, i: self._update(kind, given.at(i), row.at(i)))

    def _elements(
        self, listed: Pointer, source: Pointer, out: Pointer, n: Value, width: Value
    ) -> None:
        """The updates of number `n` of all columns of a tile."""
        e, k = self.e, self.k
        given, (extent,) = source.at(n * k.inner), k.axes
        single = not isinstance(k.inner, Symbol) and k.inner == 1
        with nullcontext(e.i64(0)) if single else e.loop("i", width) as i:
            wide, place = place_of(e, e.load(listed.at(i)), extent)
            within = place.compare("ult", extent)
            with e.when(within, otherwise=lambda: self._report([(wide, within)])):
                self._update(k.element, given.at(i), out.at(place * k.inner + i))

    def _report(self, found: Sequence[tuple[Value, Value]]) -> None:
        """Store indices where the caller looks for them, each with whether it is within."""
        e, k = self.e, self.k
        for axis, (index, within) in enumerate(found):
            outside = within ^ 1
            if k.padded:
                outside = outside & index.compare("ne", NOWHERE[k.index])
            with e.when(outside):
                e.store(index, e.pointer(len(k.operands) + axis, INT64.llvm))

    def _update(self, kind: str, given: Pointer, out: Pointer) -> None:
        e, k = self.e, self.k
        new = e.load(given, kind)
        if k.reduction != "none":
            old = e.load(out, kind)
            new = (
                old + new
                if k.reduction == "add"
                else old * new
                if k.reduction == "mul"
                else (self._extreme(old, new))
            )
        e.store(new, out)

    def _extreme(self, old: Value, new: Value) -> Value:
        """The smaller or larger of two, NaN if either is."""
        least, dtype = self.k.reduction == "min", self.k.dtype
        if dtype.is_float:
            taken = new.compare("olt" if least else "ogt", old) | new.compare("uno", new)
        elif dtype.kind == "int":
            taken = new.compare("slt" if least else "sgt", old)
        else:
            taken = new.compare("ult" if least else "ugt", old)
        return self.e.select(taken, new, old)


def lower(context: KernelContext) -> Lowered:
    """One kernel, whose result may take over the memory of x."""
    node, graph = context.node, context.graph
    x, indices = (graph.types[name] for name in node.inputs[:2])
    reduction = node.attributes["reduction"]
    if node.op == "ScatterElements":
        axis = node.attributes["axis"]
        outer, inner = prod(x.shape[:axis]), prod(x.shape[axis + 1 :])
        axes, count = x.shape[axis : axis + 1], indices.shape[axis]
    else:
        depth = indices.shape[-1]
        outer, axes, inner = 1, x.shape[:depth], prod(x.shape[depth:])
        count = prod(indices.shape[:-1])
    each, padded = node.op == "ScatterElements", node.attributes.get("padded", False)
    held = graph.constants.get(node.inputs[0])
    zeros = held is not None and is_filled(held) and not np.any(held.flat[:1].view(np.uint8))
    extents = outer, axes, inner, count
    kernel = Scatter(x.dtype, indices.dtype, reduction, each, padded, *extents, zeros)
    call = Call(kernel, (*node.inputs[zeros:], node.output), in_place=() if zeros else (0,))
    return Lowered((call,), algorithm="scatter")
