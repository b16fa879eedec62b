"""Sums, means, products, largest and smallest values over any axes, plain or in channel blocks.

    y[k…] = R over r… of f(x[k…, r…])       R one of +, mean, *, max, min; f(x) one of x, |x|, x²

The input's axes are kept (k) or reduced (r), and neighbours of one kind are merged. Two loop nests:

- last axis reduced: lanes run along it, four accumulators of a vector, one horizontal step at the
  end of each result; those of as many short rows as there are lanes are one step;
- last axis kept (blocks of channels always are): lanes run along it, a tile of up to four vectors
  of results at a time, and no horizontal step. A global pool is `(N * C/B, H * W, B)`. Of few
  columns, a vector holds those of four accumulators beside each other.

`Extremes` takes both ends of all elements at once.

Sums are taken in runs of 256 with four partial sums, whose totals are added one by one: the error
grows with n / 256 + 64 roundings instead of n. The order of the additions depends on the shapes and
lanes alone. NaN anywhere makes the result NaN. Sums and products of integers are modulo 2^bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import nan, prod

from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.lowered import Call, Lowered
from leanconv.codegen.shuffles import any_lane
from leanconv.codegen.tails import tile_at, where_any
from leanconv.errors import UnsupportedError
from leanconv.graph.ir import Graph, Node
from leanconv.graph.ops import OPS
from leanconv.kernels import InPieces, KernelContext
from leanconv.kernels.expression import Step
from leanconv.kernels.lane_reduce import (
    PARTIAL,
    ReduceOp,
    across_lanes,
    by_runs,
    combine,
    each_across_lanes,
    neutral,
    neutral_load,
    run_of,
)
from leanconv.records import dataclass
from leanconv.spec.format import Format, ceil_div
from leanconv.symbolic import Counts, Extent, fixed
from leanconv.target import Target
from leanconv.types import DType


@dataclass(frozen=True)
class Reduction(InPieces):
    """One reduction of a tensor in memory.

    Attributes:
        dtype: of all values: float32, float64, and int32 and int64, but for a mean.
        how: `sum`, `mean`, `prod`, `max` or `min`.
        extents: of the input's memory, neighbours of one kind merged.
        reduced: for each axis, whether it is reduced.
        channels: 0, or: the extents are (N * blocks, spatial, lanes) and the result is a plain
            (N, channels).
        width: vectors of results in a tile where the last axis is kept.
        each: a step that is applied to each element before, with 0 for 0; "" for none.
    """

    VARIES = True
    operands = ("x", "y")

    dtype: DType
    how: ReduceOp
    extents: Counts
    reduced: tuple[bool, ...]
    channels: Extent = 0
    width: int = 4
    each: str = ""

    @property
    def kept(self) -> tuple[int, ...]:
        """Extents of the kept axes, without the one along which the lanes run."""
        axes = [n for n, reduced in zip(self.extents, self.reduced, strict=True) if not reduced]
        return tuple(axes if self.reduced[-1] else axes[:-1])

    @property
    def count(self) -> int:
        """Elements that make one result."""
        return prod(n for n, reduced in zip(self.extents, self.reduced, strict=True) if reduced)

    @property
    def columns(self) -> int:
        """Tiles of results along the last axis; 1 where it is reduced.

        A tile is 64 elements whatever the lanes are, so that the grid depends on shapes only.
        """
        return 1 if self.reduced[-1] else ceil_div(self.extents[-1], 64)

    @property
    def items(self) -> int:
        """Tiles of results."""
        return prod(self.kept) * self.columns

    @property
    def elements(self) -> int:
        return max(1, prod(self.extents))

    @property
    def flops(self) -> int:
        return prod(self.extents) * (2 if self.each else 1)

    def emit(self, target: Target) -> str:
        return _Nest(self, target).emit()


@dataclass(frozen=True)
class Extremes(InPieces):
    """The least and the largest of all elements, each of which is read once.

    Attributes:
        dtype: of all values, a float type.
        extent: elements, at least one.
    """

    VARIES = True
    operands = ("x", "y")

    dtype: DType
    extent: Extent

    @property
    def items(self) -> int:
        return 1

    @property
    def elements(self) -> int:
        return self.extent

    @property
    def flops(self) -> int:
        return 2 * self.extent

    def emit(self, target: Target) -> str:
        e, lanes = Function(self.NAME), target.lanes(self.dtype)
        x, y = e.pointer(0, self.dtype.llvm), e.pointer(1, self.dtype.llvm)
        kind = vector(self.dtype.llvm, lanes)
        lows = [neutral(e, "min", kind) for _ in range(PARTIAL)]
        highs = [neutral(e, "max", kind) for _ in range(PARTIAL)]
        bits = vector("i1" if target.masks_are_bits else f"i{8 * self.dtype.bytes}", lanes)
        flags = [e.const(bits, 0)] * (PARTIAL // 2)  # where there is NaN

        def take(j: int, *found: Value) -> None:
            """Take a vector or two, which share a flag."""
            for place, each in enumerate(found, j):
                lows[place] = e.minimum(each, lows[place])
                highs[place] = e.maximum(each, highs[place])
            none = found[0].compare("uno", found[-1])
            none = none if target.masks_are_bits else e.convert("sext", none, bits)
            flags[j // 2] = flags[j // 2] | none

        state = [lows, highs, flags]
        vectors, left = self.extent // lanes, target.lanes_of_tail(self.extent % lanes)
        whole = vectors // PARTIAL * PARTIAL
        with e.chunks(self.chunks):
            for _ in where_any(e, whole, state):
                with e.loop("v", whole, state, step=PARTIAL) as v:
                    for j in range(0, PARTIAL, 2):
                        take(j, *(e.load(x.at((v + j + i) * lanes), kind) for i in range(2)))
            for _ in where_any(e, vectors - whole, state):
                with e.loop("v", vectors, state, start=e.i64(whole)) as v:
                    take(0, e.load(x.at(v * lanes), kind))
            for _ in where_any(e, left, state):
                rest = e.load_first(x.at(self.extent - left), kind, left)
                take(0, e.select(e.first_lanes(left, lanes), rest, e.broadcast(x, kind)))
            for j in range(1, PARTIAL):
                lows[0], highs[0] = e.minimum(lows[j], lows[0]), e.maximum(highs[j], highs[0])
            none = flags[0]
            for other in flags[1:]:
                none = none | other
            none = any_lane(e, none.compare("ne", 0))
            least, most = across_lanes(e, "min", lows[0]), across_lanes(e, "max", highs[0])
            for place, end in enumerate((least, most)):
                e.store(e.select(none, e.const(end.kind, nan), end), y.at(place))
        return e.finish()


class _Nest:
    def __init__(self, kernel: Reduction, target: Target) -> None:
        self.k, self.e, self.target = kernel, Function(kernel.NAME), target
        self.lanes = target.lanes(kernel.dtype)
        self.kind = vector(kernel.dtype.llvm, self.lanes)
        extents = kernel.extents
        self.strides = [prod(extents[axis + 1 :]) for axis in range(len(extents))]
        self.loops = [axis for axis, reduced in enumerate(kernel.reduced) if reduced]

    def emit(self) -> str:
        e, k = self.e, self.k
        x, y = e.pointer(0, k.dtype.llvm), e.pointer(1, k.dtype.llvm)
        with k.each_group(e) as (first, stop):
            if k.reduced[-1] and self.lanes > 1:
                whole = first + (stop - first) // self.lanes * self.lanes
                with e.when(first.compare("ult", whole)):
                    self._short_rows(x, y, first, whole)
                with e.when(whole.compare("ult", stop)):
                    self._items(x, y, whole, stop)
            else:
                self._items(x, y, first, stop)
        return e.finish()

    def _short_rows(self, x: Pointer, y: Pointer, first: Value, stop: Value) -> None:
        """Reduce as many rows at a time as there are lanes, and combine their lanes together."""
        e, lanes = self.e, self.lanes
        held = e.local(self.k.dtype.llvm, lanes * lanes)
        with e.loop("rows", stop, start=first, step=lanes) as rows:
            with e.loop("row", lanes) as row:
                source = x.at(self._input_offset(rows + row))
                (total,) = self._totals(source, self.loops, 1, lanes)
                e.store(total, held.at(row * lanes))
            totals = [e.load(held.at(row * lanes), self.kind) for row in range(lanes)]
            e.store(self._finished(each_across_lanes(e, self.k.how, totals)), y.at(rows))

    def _items(self, x: Pointer, y: Pointer, first: Value, stop: Value) -> None:
        e, k = self.e, self.k
        with e.loop("item", stop, start=first) as item:
            columns = 1 if k.columns == 1 else k.columns
            column, row = item % columns, item // columns
            source = x.at(self._input_offset(row))
            if k.reduced[-1]:
                (total,) = self._totals(source, self.loops, 1, self.lanes)
                result = self._finished(across_lanes(e, k.how, total))
                e.store(result, y.at(row))
            else:
                self._tile(source, y, row, column)

    def _input_offset(self, row: Value) -> Value:
        k, offset = self.k, self.e.i64(0)
        axes = [axis for axis, reduced in enumerate(k.reduced) if not reduced]
        axes = axes if k.reduced[-1] else axes[:-1]
        for axis in reversed(axes):
            index = row % k.extents[axis] if axis != axes[0] else row
            row = row // k.extents[axis]
            offset = index * self.strides[axis] + offset
        return offset

    def _tile(self, source: Pointer, y: Pointer, row: Value, column: Value) -> None:
        """A tile of results along the last, kept axis: whole, or what is left at the end."""
        e, k = self.e, self.k
        extent = k.extents[-1]
        source = source.at(column * 64)
        out = y.at(row * extent + column * 64)
        if k.channels:
            self._channels(source, y, row)
            return
        for count in tile_at(e, column, extent, 64, is_tail="eq"):
            self._columns(source, out, count)

    def _columns(self, source: Pointer, out: Pointer, count: int) -> None:
        """The results of `count` columns, in tiles of whole vectors and one of the rest."""
        place = 0
        while place < count:
            width = fixed(min(self.k.width, max(1, (count - place) // self.lanes)))
            lanes = self.target.lanes_of_tail(min(self.lanes, count - place))
            address = source.at(place)
            totals = self._totals(address, self.loops, width, lanes)
            for j, total in enumerate(totals):
                target = out.at(place + j * self.lanes)
                self.e.store_first(self._finished(total), target, lanes)
            place += width * self.lanes

    def _channels(self, source: Pointer, y: Pointer, row: Value) -> None:
        """A block of channels into a plain result."""
        e, k = self.e, self.k
        blocks = ceil_div(k.channels, self.lanes)
        block = row % blocks
        offset = (row // blocks) * k.channels + block * self.lanes
        (total,) = self._totals(source, self.loops, 1, self.lanes)
        result, out = self._finished(total), y.at(offset)
        for count in tile_at(e, block, k.channels, self.lanes, is_tail="eq"):
            e.store_first(result, out, self.target.lanes_of_tail(count))

    def _totals(self, source: Pointer, loops: Sequence[int], width: int, lanes: int) -> list[Value]:
        k, e = self.k, self.e
        if not loops:
            places = [source.at(j * self.lanes) for j in range(width)]
            return [self._each(e.load_first(place, self.kind, lanes)) for place in places]
        axis, extent = loops[0], k.extents[loops[0]]
        if axis == len(k.extents) - 1:
            return [self._along(source, extent)]
        step = self.strides[axis]
        if axis == len(k.extents) - 2 and width == 1 and self._are_few_columns:
            return [self._few_columns(source, extent)]

        def leaf(i: Value) -> list[Value]:
            return self._totals(source.at(i * step), loops[1:], width, lanes)

        sets = self._sets * width if len(loops) == 1 else 1
        return run_of(e, k.how, leaf, extent, [self.kind] * width, sets)

    @property
    def _sets(self) -> int:
        """Partial sums of a result where lanes run along the kept axis.

        The tail of that axis has as many as its tiles of several vectors: what a result is does not
        depend on its place.
        """
        wide = not self.k.reduced[-1] and self.k.extents[-1] > self.lanes
        return max(1, PARTIAL // self.k.width) if wide else PARTIAL

    @property
    def _are_few_columns(self) -> bool:
        """True if four rows of columns fill two vectors at most."""
        columns, rows = self.k.extents[-1], self.k.extents[-2]
        powers = (2**n for n in range(1, self.lanes.bit_length() - 1))
        return not self.k.channels and columns in powers and rows % PARTIAL == 0

    def _few_columns(self, source: Pointer, extent: int) -> Value:
        """Combine rows whose sets of accumulators lie beside each other: the same pairs."""
        e, how, columns = self.e, self.k.how, fixed(self.k.extents[-1])
        width = min(self.lanes, PARTIAL * columns)
        kind, rows = vector(self.k.dtype.llvm, width), width // columns

        def part(first: Value, count: int) -> list[Value]:
            at = source.at(first * columns)

            def leaf(i: Value) -> list[Value]:
                return [self._each(e.load(at.at(i * width), kind))]

            (total,) = run_of(e, how, leaf, count // rows, [kind], PARTIAL // rows)
            return [across_lanes(e, how, total, columns)]

        tile = [vector(self.k.dtype.llvm, columns)]
        (total,) = by_runs(e, how, part, extent, tile, e.i64(0))
        return e.shuffle(total, None, [*range(columns), *[-1] * (self.lanes - columns)])

    def _along(self, source: Pointer, extent: int) -> Value:
        """Combine `extent` neighbours into the lanes of one vector."""
        e, how = self.e, self.k.how
        whole, left = extent // self.lanes, self.target.lanes_of_tail(extent % self.lanes)
        total = [neutral(e, how, self.kind)]

        def leaf(i: Value) -> list[Value]:
            return [self._each(e.load(source.at(i * self.lanes), self.kind))]

        for _ in where_any(e, whole, [total]):
            total[:] = run_of(e, how, leaf, whole, [self.kind])
        for _ in where_any(e, left, [total]):
            address = source.at(extent - left)
            rest = self._each(neutral_load(e, how, address, self.kind, left))
            total[0] = combine(e, how, total[0], rest)
        return total[0]

    def _each(self, x: Value) -> Value:
        """Apply the step that comes before the total to loaded elements."""
        return Step(self.k.each, (0,)).apply(self.e, [x]) if self.k.each else x

    def _finished(self, total: Value) -> Value:
        return total / self.k.count if self.k.how == "mean" else total


def accepts_blocked(node: Node, graph: Graph, block: int) -> bool:
    """True unless channels are reduced, or images are and their axis vanishes."""
    del block
    shape, axes = graph.types[node.inputs[0]].shape, node.attributes.get("axes", (1,))
    return (
        len(shape) >= 3 and 1 not in axes and (0 not in axes or bool(node.attributes["keepdims"]))
    )


def _merged(
    extents: Sequence[int], reduced: Sequence[bool], opened: Sequence[int]
) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    given = enumerate(zip(extents, reduced, strict=True))
    axes = [(n, r) for axis, (n, r) in given if axis in opened or n != 1]
    groups = [(prod(n for n, _ in g), kind) for kind, g in groupby(axes, lambda axis: axis[1])]
    groups = groups or [(1, False)]
    return tuple(n for n, _ in groups), tuple(r for _, r in groups)


def lower(context: KernelContext) -> Lowered:
    """One kernel; from blocks of channels to blocks, or to a plain (N, C) where that is the result.

    Raises:
        UnsupportedError: the reduced axes hold no element.
    """
    node, graph, formats = context.node, context.graph, context.formats
    (x,), y = node.inputs, node.output
    kind, source, result = graph.types[x], formats.get(x, Format()), formats[y]
    reduces = OPS[node.op].reduces
    if reduces is None:  # both ends, of all elements
        if not kind.elements:
            raise UnsupportedError(f"{node.op} {node.name!r} takes {kind}; expected an element")
        return Lowered((Call(Extremes(kind.dtype, kind.elements), (x, y)),), algorithm="reduction")
    axes = node.attributes["axes"]
    if any(kind.shape[axis] == 0 for axis in axes):
        raise UnsupportedError(
            f"{node.op} {node.name!r} reduces an empty axis of {kind}; expected at least one"
            " element; fold the operation into a constant"
        )
    extents = source.physical_shape(kind.shape)
    reduced = [axis in axes for axis in range(len(extents))]
    channels = kind.shape[1] if source.block and not result.block else 0
    if channels:
        assert set(axes) == set(range(2, len(kind.shape))), "a plain result has no spatial axes"
        extents = (prod(extents[:2]), prod(extents[2:-1]), extents[-1])
        flags: tuple[bool, ...] = (False, True, False)
    else:
        extents, flags = _merged(extents, reduced, graph.open_axes.get(x, ()))
    how, each = reduces
    kernel = Reduction(kind.dtype, how, extents, flags, channels, each=each)
    return Lowered((Call(kernel, (x, y)),), algorithm="reduction")
