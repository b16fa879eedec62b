"""Softmax and log-softmax over one axis of a plain tensor.

    y[o, r, i] = exp(x[o, r, i] - m) / s        or    (x[o, r, i] - m) - log s

with m the largest of x[o, :, i] and s the sum of exp(x[o, :, i] - m), so nothing overflows. Where
the axis is the last one (one i) the lanes run along r, otherwise along i: the same three passes
(largest, sum, result), with or without a step across the lanes. A pass over one line stays in
L1. Softmax stores its exponentials in the second pass and scales them in the third; a short line
stays in registers. The largest may lose a NaN, which the sum then has.
"""

from __future__ import annotations

from functools import reduce
from math import prod
from operator import add

from leanconv.codegen import math
from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.lowered import Call, Lowered
from leanconv.codegen.tails import where_any
from leanconv.kernels import KernelContext, OfItems
from leanconv.kernels.lane_reduce import (
    TILE,
    ReduceOp,
    across_lanes,
    combine,
    each_column,
    neutral,
    neutral_load,
    run_of,
)
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.symbolic import Extent, fixed
from leanconv.target import Target
from leanconv.types import DType

# Elements of one chunk: about 10 microseconds.
PIECE = 8192
# Exponentials in flight at once; more would need more registers than AVX2 has.
SETS = 2
_OF_REGISTERS = 4  # the part of them that a line may fill to stay there


@dataclass(frozen=True)
class Softmax(OfItems):
    """Softmax over the middle axis of (outer, extent, inner).

    Attributes:
        dtype: of all values, float32 or float64.
        logarithm: log-softmax instead.
        outer, extent, inner: the shape; one inner element means that the axis is contiguous.
        held: vectors of a contiguous line that stays in registers; 0: any line is walked.
    """

    VARIES = True
    operands = ("x", "y")

    dtype: DType
    logarithm: bool
    outer: Extent
    extent: Extent
    inner: Extent
    held: int = 0

    @property
    def tiles(self) -> int:
        """Tiles of columns in each outer line."""
        tiles = ceil_div(self.inner, TILE)
        return 1 if tiles == 1 else tiles

    @property
    def items(self) -> int:
        return self.outer * self.tiles

    @property
    def group(self) -> int:
        return ceil_div(PIECE, self.extent * min(self.inner, TILE))

    @property
    def chunks(self) -> int:
        if not self.extent:
            return 0
        return super().chunks

    @property
    def flops(self) -> int:
        return 4 * self.outer * self.extent * self.inner

    def emit(self, target: Target) -> str:
        e = Function(self.NAME)
        nest = SoftmaxPasses(self, e, target)
        x, y = e.pointer(0, self.dtype.llvm), e.pointer(1, self.dtype.llvm)
        with self.each_item(e) as item:
            offset = item // self.tiles * (self.extent * self.inner)
            source, result = x.at(offset), y.at(offset)
            if self.inner == 1:
                nest.line(source, result)
            else:
                nest.columns(source, result, item % self.tiles)
        return e.finish()


class SoftmaxPasses:
    """The three passes while they are written."""

    def __init__(self, kernel: Softmax, e: Function, target: Target) -> None:
        self.k, self.e, self.target = kernel, e, target
        self.lanes = target.lanes(kernel.dtype)
        self.kind = vector(kernel.dtype.llvm, self.lanes)

    def line(self, x: Pointer, y: Pointer) -> None:
        """A contiguous axis, lanes along it."""
        e, lanes = self.e, self.lanes
        if self.k.held:
            self._held_line(x, y)
            return
        count, left = self._vectors()
        end = e.i64(count * lanes)
        largest = self._all_lanes("largest", self._largest_of_line(x))

        def leaf(i: Value) -> list[Value]:
            return [self._exponential(x, y, i * lanes, largest, lanes)]

        total = [e.const(self.kind, 0.0)]
        for _ in where_any(e, count, [total]):
            total[:] = run_of(e, "sum", leaf, count, [self.kind], SETS)
        for _ in where_any(e, left, [total]):
            rest = self._exponential(x, y, end, largest, left)
            total[0] += e.select(e.first_lanes(left, lanes), rest, e.const(self.kind, 0.0))
        scale = self._scale(self._all_lanes("sum", total[0]))

        for _ in where_any(e, count):
            with e.loop("r", count) as r:
                self._result(x, y, r * lanes, largest, scale, lanes)
        for _ in where_any(e, left):
            self._result(x, y, end, largest, scale, left)

    def _held_line(self, x: Pointer, y: Pointer) -> None:
        """The same numbers of a line whose vectors stay in registers, summed in the same order."""
        e, lanes = self.e, self.lanes
        count, left = self._vectors()
        counts = [*(lanes for _ in range(count)), *((left,) if left else ())]
        places = [i * lanes for i in range(len(counts))]
        given = [
            neutral_load(e, "largest", x.at(at), self.kind, live)
            for at, live in zip(places, counts, strict=True)
        ]
        most = reduce(lambda a, b: combine(e, "largest", a, b), given)
        largest = self._all_lanes("largest", most)
        shifted = [value - largest for value in given]
        powers = [math.exp(e, value, positive=False) for value in shifted]
        parts = [powers[u:count:SETS] for u in range(min(SETS, count))]
        if left:
            powers[-1] = e.select(e.first_lanes(left, lanes), powers[-1], e.const(self.kind, 0.0))
            parts.append(powers[-1:])
        total = reduce(add, [reduce(add, part) for part in parts])
        scale = self._scale(self._all_lanes("sum", total))
        for i, (at, live) in enumerate(zip(places, counts, strict=True)):
            result = shifted[i] - scale if self.k.logarithm else powers[i] * scale
            e.store_first(result, y.at(at), live)

    def _vectors(self) -> tuple[int, int]:
        """Whole vectors of a line, and the lanes that remain."""
        count, left = divmod(self.k.extent, self.lanes)
        return count, self.target.lanes_of_tail(left)

    def _largest_of_line(self, x: Pointer) -> Value:
        e, lanes = self.e, self.lanes
        count, left = self._vectors()
        largest = [neutral(e, "largest", self.kind)]

        def leaf(i: Value) -> list[Value]:
            return [e.load(x.at(i * lanes), self.kind)]

        for _ in where_any(e, count, [largest]):
            largest[:] = run_of(e, "largest", leaf, count, [self.kind])
        for _ in where_any(e, left, [largest]):
            address = x.at(count * lanes)
            rest = neutral_load(e, "largest", address, self.kind, left)
            largest[0] = combine(e, "largest", largest[0], rest)
        return largest[0]

    def _all_lanes(self, how: ReduceOp, x: Value) -> Value:
        return self.e.splat(across_lanes(self.e, how, x), self.lanes)

    def columns(self, x: Pointer, y: Pointer, tile: Value) -> None:
        """A strided axis, lanes along the axis inside of it."""
        each_column(
            self.e,
            tile,
            self.k.inner,
            self.k.dtype,
            self.target,
            lambda offset, count: self._column(x.at(offset), y.at(offset), count),
        )

    def _column(self, x: Pointer, y: Pointer, count: Value | int) -> None:
        k, e = self.k, self.e

        def load(i: Value) -> list[Value]:
            return [e.load_first(x.at(i * k.inner), self.kind, count)]

        (largest,) = run_of(e, "largest", load, k.extent, [self.kind])

        def exponential(i: Value) -> list[Value]:
            return [self._exponential(x, y, i * k.inner, largest, count)]

        (total,) = run_of(e, "sum", exponential, k.extent, [self.kind], SETS)
        scale = self._scale(total)
        with e.loop("r", k.extent) as r:
            self._result(x, y, r * k.inner, largest, scale, count)

    def _exponential(
        self, x: Pointer, y: Pointer, offset: Value, largest: Value, count: Value | int
    ) -> Value:
        e = self.e
        value = e.load_first(x.at(offset), self.kind, count)
        power = math.exp(e, value - largest, positive=False)
        if not self.k.logarithm:
            e.store_first(power, y.at(offset), count)
        return power

    def _scale(self, total: Value) -> Value:
        return math.log(self.e, total) if self.k.logarithm else 1.0 / total

    def _result(
        self,
        x: Pointer,
        y: Pointer,
        offset: Value,
        largest: Value,
        scale: Value,
        count: Value | int,
    ) -> None:
        e, out = self.e, y.at(offset)
        if self.k.logarithm:
            value = e.load_first(x.at(offset), self.kind, count)
            result = (value - largest) - scale
        else:
            result = e.load_first(out, self.kind, count) * scale
        e.store_first(result, out, count)


def lower(context: KernelContext) -> Lowered:
    """One kernel, which may work in place.

    A short line of a known length stays in registers; one code walks lines of open lengths.
    """
    node, graph, target = context.node, context.graph, context.target
    (x,), y = node.inputs, node.output
    kind, axis = graph.types[x], node.attributes["axis"]
    outer, inner = prod(kind.shape[:axis]), prod(kind.shape[axis + 1 :])
    extent, held = kind.shape[axis], 0
    if inner == 1 and x not in graph.open_axes:
        vectors = ceil_div(extent, target.lanes(kind.dtype))
        held = fixed(vectors) if vectors <= target.registers // _OF_REGISTERS else 0
    kernel = Softmax(kind.dtype, node.op == "LogSoftmax", outer, extent, inner, held)
    return Lowered((Call(kernel, (x, y), (0,)),), algorithm="softmax")
