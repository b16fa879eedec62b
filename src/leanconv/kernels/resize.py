"""Resize, nearest and linear, any axes, through tables of cells and weights.

    y[o] = sum over the taps of all axes of  prod weight[axis][o, tap] * x[cell[axis][o, tap]]

Weights are multiplied first, from the last axis on, and each product is rounded before it is added,
as in ONNX Runtime: between codes of 8 bits ties are frequent, and the last bit decides them.

Which cells are read with which weights is computed once, from the shapes, and handed to the kernel
as constants. In blocks of channels every cell is one vector; in plain tensors it is the last axis
in vectors if that is not resized, else one element. Linear maps of the last two axes have a kernel
of their own (`resize_maps`), and so have plain maps whose elements are repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.lowered import Call, Lowered, View
from leanconv.codegen.shuffles import power_below
from leanconv.graph.ir import Graph, Node, TensorType
from leanconv.graph.ops.resize import linear_cells, nearest_cells, resized_axes
from leanconv.kernels import KernelContext, OfItems
from leanconv.kernels.copy import cover
from leanconv.kernels.copy_plan import CHUNK_BYTES, row_major
from leanconv.kernels.resize_maps import of_linear
from leanconv.records import dataclass, replace
from leanconv.spec.format import ceil_div
from leanconv.symbolic import Count, Extent
from leanconv.target import Target
from leanconv.types import FLOAT32, FLOAT64, DType

_CHUNK_LOADS = 8 * 1024  # 5 to 10 us
_MOST_REPEATS = 8  # of an element, and of a row: each is a store in the code


@dataclass(frozen=True)
class Axis:
    """Extent, stride and taps along one axis of the result.

    Attributes:
        extent: of the result.
        stride: of the source, in elements.
        taps: cells that are mixed; 0 for an axis that is not resized, and has no table.
        entry: where this axis begins in the tables, which hold `taps` entries per index.
    """

    extent: Extent
    stride: Extent
    taps: int = 0
    entry: Count = 0


@dataclass(frozen=True)
class Resize(OfItems):
    """Resize through tables.

    Attributes:
        dtype: of the elements.
        width: contiguous elements that are done at once: the block, or a vector of a cell.
        axes: of the result in memory order, without the one of the cell.
        weighted: whether there is a table of weights; nearest neighbours need none.
        inner: contiguous elements of a cell; the last vector of it overlaps the one before.
    """

    VARIES = True

    dtype: DType
    width: int
    axes: tuple[Axis, ...]
    weighted: bool
    inner: Extent

    @property
    def operands(self) -> tuple[str, ...]:
        return ("x", "cells", "weights", "y") if self.weighted else ("x", "cells", "y")

    @property
    def rows(self) -> int:
        """Rows of the result: all axes but the last."""
        return prod(axis.extent for axis in self.axes[:-1])

    @property
    def loads(self) -> int:
        """Cells read for one cell of the result."""
        return prod(max(1, axis.taps) for axis in self.axes)

    @property
    def items(self) -> int:
        return self.rows

    @property
    def group(self) -> int:
        loads = self.loads * self.rows * self.axes[-1].extent * ceil_div(self.inner, self.width)
        return ceil_div(self.rows, ceil_div(loads, _CHUNK_LOADS))

    @property
    def flops(self) -> int:
        cells = self.rows * self.axes[-1].extent * self.inner
        return 2 * cells * self.loads if self.weighted else 0

    def emit(self, target: Target) -> str:
        del target  # the width is its vector
        e = Function(self.NAME)
        pointers = e.pointers(self.operands, self.dtype.llvm, cells="i64")
        tables = _Tables(e, pointers["cells"], pointers.get("weights"))
        with self.each_item(e, "row") as row:
            y = pointers["y"].at(row * (self.axes[-1].extent * self.inner))
            self._emit_row(e, tables, pointers["x"], row, y)
        return e.finish()

    def _emit_row(self, e: Function, tables: _Tables, x: Pointer, row: Value, y: Pointer) -> None:
        """Mix the source's rows that this row needs, cell by cell."""
        kind = vector(self.dtype.llvm, self.width)
        sources: list[tuple[Pointer, tuple[Value, ...]]] = [(x, ())]
        rest = row
        for number, axis in enumerate(reversed(self.axes[:-1]), 2):
            index = rest if number == len(self.axes) else rest % axis.extent
            rest = rest // axis.extent
            sources = [
                (place.at(cell), shares if share is None else (*shares, share))
                for cell, share in tables.taps(axis, index)
                for place, shares in sources
            ]
        rows = [(at, [e.splat(w, self.width) for w in shares]) for at, shares in sources]
        last = replace(self.axes[-1], stride=self.inner, entry=0)
        tables = tables.at(self.axes[-1].entry)
        with e.loop("o", last.extent) as o:
            taps = [
                (cell, None if w is None else e.splat(w, self.width))
                for cell, w in tables.taps(last, o)
            ]
            for at in self._inside(e):
                total: Value | None = None
                for place, shares in rows:
                    for cell, share in taps:
                        new = e.load(place.at(cell + at), kind)
                        weights = [*([] if share is None else [share]), *shares]
                        new = new * prod(weights[1:], start=weights[0]) if weights else new
                        total = new if total is None else total + new
                assert total is not None
                e.store(total, y.at(o * self.inner + at))

    def _inside(self, e: Function) -> Iterator[Value | int]:
        """Emit the body for each vector of a cell."""
        if self.inner == self.width:
            yield 0
            return
        with e.loop("inner", ceil_div(self.inner, self.width)) as v:
            yield e.smin(v * self.width, self.inner - self.width)


@dataclass(frozen=True)
class Repeat(OfItems):
    """Maps whose elements are repeated along both axes: vectors are spread in registers.

    Attributes:
        dtype: of the elements.
        rows, width: of all maps together, and elements of a row.
        down, along: how often each row, and each of its elements, is repeated.
    """

    VARIES = True
    operands = ("x", "y")

    dtype: DType
    rows: Extent
    width: Extent
    down: int
    along: int

    @property
    def items(self) -> int:
        return self.rows

    @property
    def group(self) -> int:
        written = self.rows * self.width * self.down * self.along * self.dtype.bytes
        return ceil_div(self.rows, ceil_div(written, CHUNK_BYTES))

    def emit(self, target: Target) -> str:
        e, along = Function(self.NAME), self.along
        element = (
            self.dtype.llvm if self.dtype in (FLOAT32, FLOAT64) else f"i{8 * self.dtype.bytes}"
        )
        x, y = e.pointer(0, element), e.pointer(1, element)
        pitch = self.width * along
        with self.each_item(e, "row") as row:
            source, out = x.at(row * self.width), y.at(row * (pitch * self.down))

            def spread(at: Value | int, lanes: int) -> None:
                held = e.load(source.at(at), vector(element, lanes))
                for part in range(along):
                    picks = [(part * lanes + lane) // along for lane in range(lanes)]
                    found = held if lanes == 1 else e.shuffle(held, None, picks)
                    for number in range(self.down):
                        place = out.at(number * pitch).at(at * along)
                        e.store(found, place.at(part * lanes))

            cover(e, self.width, target.vector_bytes // self.dtype.bytes, spread, unroll=1)
        return e.finish()


_Tap = tuple[Value, Value | None]  # an offset, and its weight if it is not one


@dataclass(frozen=True)
class _Tables:
    """The constant operands: offsets of cells, and weights."""

    e: Function
    cells: Pointer
    weights: Pointer | None

    def at(self, entry: int) -> _Tables:
        cells = self.cells.at(entry)
        weights = self.weights.at(entry) if self.weights else None
        return replace(self, cells=cells, weights=weights)

    def taps(self, axis: Axis, index: Value) -> list[_Tap]:
        """Offsets that an index of the result reads, with their weights."""
        if not axis.taps:
            return [(index * axis.stride, None)]
        found: list[_Tap] = []
        for tap in range(axis.taps):
            entry = index * axis.taps + (axis.entry + tap)
            weight = None
            if self.weights is not None:
                weight = self.e.load(self.weights.at(entry))
            found.append((self.e.load_index(self.cells.at(entry)), weight))
        return found


def accepts_blocked(node: Node, graph: Graph, block: int) -> bool:
    """True unless channels are resized or there are none."""
    del block
    shape = graph.types[node.inputs[0]].shape
    return len(shape) >= 3 and not resized_axes(shape, node.attributes)[1]


def lower(context: KernelContext) -> Lowered:
    """One kernel and its tables; a view where nothing is resized."""
    node, graph, formats, target = context.node, context.graph, context.formats, context.target
    x, y = node.inputs[0], node.output
    source, result = graph.types[x], graph.types[y]
    resized = resized_axes(source.shape, node.attributes)
    if not any(resized):
        return Lowered((), algorithm="view", views={y: View(x)})
    block, linear = formats[y].block, node.attributes["mode"] == "linear"
    if linear and not block and grown_maps(resized, source, result):
        return _maps(node, source, result)
    times = None if block or linear else _repeated(node, resized, source)
    if times is not None:
        rows, width = prod(source.shape[:-1]), source.shape[-1]
        return Lowered((Call(Repeat(result.dtype, rows, width, *times), (x, y)),), {}, {}, "resize")
    physical = formats[y].physical_shape
    extents = physical(result.shape)[: len(result.shape)]
    strides = row_major(physical(source.shape))[: len(result.shape)]
    inner: int = block or 1
    width, rank = inner, len(extents)
    if not block and not resized[-1] and rank > 1:  # channels, or whatever is behind
        inner, rank = extents[-1], rank - 1
        width = power_below(inner, target.lanes(result.dtype))
    cells: list[np.ndarray] = []
    weights: list[np.ndarray] = []
    axes: list[Axis] = []
    entry = 0
    for number, (extent, stride) in enumerate(zip(extents[:rank], strides, strict=False)):
        if not resized[number]:
            axes.append(Axis(extent, stride))
            continue
        offsets, shares = _axis_tables(node, number, source.shape[number], result.dtype)
        axes.append(Axis(extent, stride, offsets.shape[1], entry))
        cells.append(offsets.ravel() * stride)
        weights.append(shares.ravel().astype(result.dtype))
        entry += offsets.size
    kernel = Resize(result.dtype, width, _joined(axes), linear, inner)
    constants = {f"{y}.cells": np.concatenate(cells)}
    if linear:
        constants[f"{y}.weights"] = np.concatenate(weights)
    return Lowered((Call(kernel, (x, *constants, y)),), constants, {}, "resize")


def _repeated(node: Node, resized: list[bool], source: TensorType) -> tuple[int, int] | None:
    """Return how often nearest cells repeat rows and elements of a row; None if unevenly."""
    if len(resized) < 2 or not resized[-1] or any(resized[:-2]):
        return None
    times = []
    for axis in (len(resized) - 2, len(resized) - 1):
        extent, size = source.shape[axis], node.attributes["sizes"][axis]
        count = size // extent
        if not 1 <= count <= _MOST_REPEATS or count * extent != size:
            return None
        cells, _ = _axis_tables(node, axis, extent, source.dtype)
        if (cells[:, 0] != np.arange(size) // count).any():
            return None
        times.append(count)
    return times[0], times[1]


def grown_maps(resized: list[bool], source: TensorType, result: TensorType) -> bool:
    """Return whether just the last two axes are resized, and most rows are read twice or more."""
    if resized[-2:] != [True, True] or any(resized[:-2]):
        return False
    return 3 * result.shape[-2] >= 2 * source.shape[-2]


def _maps(node: Node, source: TensorType, result: TensorType) -> Lowered:
    extents, last = source.shape[-2:], len(source.shape) - 1
    rows, columns = (
        _axis_tables(node, axis, extent, result.dtype)
        for axis, extent in zip((last - 1, last), extents, strict=True)
    )
    outer, y = prod(source.shape[:-2]), node.output
    kernel, tables = of_linear(result.dtype, outer, extents, rows, columns)
    constants = {f"{y}.{name}": table for name, table in tables.items()}
    return Lowered((Call(kernel, (node.inputs[0], *constants, y)),), constants, {}, "resize")


def _axis_tables(node: Node, axis: int, extent: int, dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    """Cells (int64) and weights of an axis, both of shape (size, taps)."""
    attributes = node.attributes
    size, scale = attributes["sizes"][axis], attributes["scales"][axis]
    mode = attributes["coordinate_transformation_mode"]
    if attributes["mode"] == "nearest":
        cells = nearest_cells(extent, size, scale, mode, attributes["nearest_mode"])
        return cells[:, None], np.ones((size, 1))
    return linear_cells(extent, size, scale, mode, dtype)


def _joined(axes: list[Axis]) -> tuple[Axis, ...]:
    """Join neighbouring axes that are not resized, such as images and blocks of channels."""
    joined: list[Axis] = []
    for axis in axes:
        last = joined[-1] if joined else None
        if last and not last.taps and not axis.taps and last.stride == axis.extent * axis.stride:
            joined[-1] = Axis(last.extent * axis.extent, axis.stride)
        else:
            joined.append(axis)
    return tuple(joined)
