"""Resample: axes of which every cell of the result mixes a window of cells.

Of one axis:

    y[o, r, i] = sum over t < taps of  weights[r, t] * x[o, first[r] + t, i]

in floats, or in 32-bit integers of codes, as `graph.ops.resample` has it.

Windows lie within the axis; they and the weights are tables. Lanes run along `i`, the axes behind;
a last vector overlaps the one before it. Without axes behind, a few rows `o` are done together.
Two axes are one kernel, `resample_maps`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from leanconv.codegen.emitter import Function, Pointer, Value, lanes_of, vector
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.lowered import Call, Lowered
from leanconv.codegen.shuffles import power_below
from leanconv.codegen.tails import where_any
from leanconv.graph.ir import Graph, Node
from leanconv.graph.ops.resample import ONE, ONE_BITS, order, window
from leanconv.kernels import KernelContext, OfItems
from leanconv.kernels.resample_maps import of_maps
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.symbolic import Extent
from leanconv.target import Target
from leanconv.types import INT8, INT32, DType

_CHUNK_LOADS = 8 * 1024  # of a vector or an element
_UNROLL = 4  # vectors, or rows
_WRITTEN_OUT = 8  # taps; more are a loop


@dataclass(frozen=True)
class Resample(OfItems):
    """Windows of one axis.

    Attributes:
        dtype: of the elements.
        outer, extent, inner: extents before the axis, of it, and behind it.
        size: extent of the axis in the result.
        taps: cells of a window.
    """

    VARIES = True
    operands = ("x", "first", "weights", "y")

    dtype: DType
    outer: Extent
    extent: Extent
    inner: Extent
    size: Extent
    taps: Extent

    @property
    def sums(self) -> DType:
        """Type of weights and sums: int32 where codes are mixed."""
        return self.dtype if self.dtype.is_float else INT32

    @property
    def items(self) -> int:
        """Rows of the result, or groups of lines where no axis is behind."""
        return ceil_div(self.outer, _UNROLL) if self.inner == 1 else self.outer * self.size

    @property
    def group(self) -> int:
        loads = self.outer * self.size * self.taps * ceil_div(self.inner, 8)
        return ceil_div(_CHUNK_LOADS * self.items, loads)

    @property
    def flops(self) -> int:
        return 2 * self.outer * self.size * self.inner * self.taps

    def emit(self, target: Target) -> str:
        e = Function(self.NAME)
        kinds = {"first": "i64", "weights": self.sums.llvm}
        x, firsts, weights, y = e.pointers(self.operands, self.dtype.llvm, **kinds).values()
        with self.each_item(e) as item:
            if self.inner == 1:
                self._lines(e, x, firsts, weights, y, item)
            else:
                o, r = item // self.size, item % self.size
                at = o * self.extent + e.load_index(firsts.at(r))
                lanes = power_below(self.inner, target.lanes(self.sums))
                own = weights.at(r * self.taps)
                self._row(e, x.at(at * self.inner), own, y.at(item * self.inner), lanes)
        return e.finish()

    def _row(self, e: Function, x: Pointer, weights: Pointer, y: Pointer, lanes: int) -> None:
        vectors = self.inner // lanes
        groups = vectors // _UNROLL
        for _ in where_any(e, groups):
            with e.loop("group", groups) as group:
                at = [(group * _UNROLL + u) * lanes for u in range(_UNROLL)]
                self._mix(e, x, weights, y, at, lanes)
        for _ in where_any(e, vectors - groups * _UNROLL):
            with e.loop("vector", vectors, start=e.i64(groups * _UNROLL)) as v:
                self._mix(e, x, weights, y, [v * lanes], lanes)
        if lanes > 1:
            for _ in where_any(e, self.inner - vectors * lanes):
                self._mix(e, x, weights, y, [e.i64(self.inner - lanes)], lanes)

    def _mix(
        self, e: Function, x: Pointer, weights: Pointer, y: Pointer, at: list[Value], lanes: int
    ) -> None:
        kind = vector(self.sums.llvm, lanes)
        total = [self._start(e, kind) for _ in at]

        def tap(t: Value | int) -> None:
            weight = e.broadcast(weights.at(t), kind)
            row = x.at(e.i64(t) * self.inner)
            total[:] = [
                self._added(e, row.at(column), weight, sum_)
                for column, sum_ in zip(at, total, strict=True)
            ]

        self._taps(e, tap, total)
        for column, value in zip(at, total, strict=True):
            e.store(self._result(e, value), y.at(column))

    def _start(self, e: Function, kind: str) -> Value:
        """Return a sum's initial value: half a code of codes, as the last shift rounds down."""
        return e.zero(kind) if self.dtype.is_float else e.zero(kind) + ONE // 2

    def _added(self, e: Function, x: Pointer, weight: Value, sum_: Value) -> Value:
        """A sum with as many elements of x more as it has lanes."""
        loaded = e.load(x, vector(self.dtype.llvm, lanes_of(sum_.kind)))
        if self.dtype.is_float:
            return e.fma(loaded, weight, sum_)
        wide = e.convert("sext" if self.dtype == INT8 else "zext", loaded, sum_.kind)
        return wide * weight + sum_

    def _result(self, e: Function, sum_: Value) -> Value:
        if self.dtype.is_float:
            return sum_
        codes = sum_.shifted_right(ONE_BITS)
        codes = e.smin(e.smax(codes, int(self.dtype.low)), int(self.dtype.high))
        return e.convert("trunc", codes, vector(self.dtype.llvm, lanes_of(sum_.kind)))

    def _taps(self, e: Function, tap: Callable[[Value | int], None], total: list[Value]) -> None:
        """Emit `tap` for all taps, in a loop where there are many."""
        if self.taps <= _WRITTEN_OUT:
            for t in range(self.taps):
                tap(t)
            return
        with e.loop("tap", self.taps, [total]) as number:
            tap(number)

    def _lines(
        self, e: Function, x: Pointer, firsts: Pointer, weights: Pointer, y: Pointer, item: Value
    ) -> None:
        """A few whole lines; of less than these all, the last ones overlap those before."""
        lines = min(_UNROLL, self.outer)
        o = e.smin(item * _UNROLL, self.outer - lines)
        sources = [x.at((o + u) * self.extent) for u in range(lines)]
        with e.loop("r", self.size) as r:
            at, own = e.load_index(firsts.at(r)), weights.at(r * self.taps)
            total = [self._start(e, self.sums.llvm) for _ in range(lines)]

            def tap(t: Value | int) -> None:
                weight = e.load(own.at(t))
                total[:] = [
                    self._added(e, source.at(at + t), weight, sum_)
                    for source, sum_ in zip(sources, total, strict=True)
                ]

            self._taps(e, tap, total)
            for line, value in enumerate(total):
                e.store(self._result(e, value), y.at((o + line) * self.size + r))


def accepts_blocked(node: Node, graph: Graph, block: int) -> bool:
    """True unless channels are resampled or there are none."""
    del block
    return len(graph.types[node.inputs[0]].shape) >= 3 and 1 not in node.attributes["axes"]


def lower(context: KernelContext) -> Lowered:
    """One kernel and its tables."""
    node, graph, formats = context.node, context.graph, context.formats
    (x,), y, axes = node.inputs, node.output, node.attributes["axes"]
    source, result = graph.types[x], graph.types[y]
    shape = formats[y].physical_shape(result.shape)
    outer, inner = prod(shape[: axes[0]]), prod(shape[axes[-1] + 1 :])
    sizes = [(source.shape[axis], result.shape[axis]) for axis in axes]
    sums = result.dtype if result.dtype.is_float else INT32
    tables = [window(node.attributes, axis, source.shape[axis], result.dtype) for axis in axes]
    tables = [(first, weights.astype(sums)) for first, weights in tables]
    kernel: Kernel
    if len(axes) == 2:
        rows_first = order(node.attributes) == axes
        kernel, constants = of_maps(result.dtype, outer, inner, sizes, tables, rows_first)
    else:
        ((extent, size),), ((first, weights),) = sizes, tables
        kernel = Resample(result.dtype, outer, extent, inner, size, weights.shape[1])
        constants = {"first": first, "weights": weights}
    named = {f"{y}.{name}": table for name, table in constants.items()}
    return Lowered((Call(kernel, (x, *named, y)),), named, {}, "resample")
