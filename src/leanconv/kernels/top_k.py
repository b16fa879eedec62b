"""TopK: the largest or smallest numbers along an axis, in order, and where they are.

Of equal numbers that of the lower place comes first. NaN is beyond all numbers (`ordering`): the
first of the largest, the last of the smallest, as in PyTorch; ONNX and onnxruntime define nothing.

Few along an axis with others behind it are found in lanes (`TopLanes`):

    keys[j][i], places[j][i] = the j-th of x[o, r, i] over r                 for each lane i

A tile is 64 columns. The keys found before stay in registers, in order. A row of x is compared with
the last of them; where a lane has one that comes before it, all lanes insert theirs: every key from
there on moves by one, which takes a comparison and two selections for each of `k`.

Few others are found by a list in a register (`top_k_scan`), and many by sorting (`TopSort`). The
first block of a line is sorted and its first `k` are kept. Of each block after it the numbers that
come before the last of these are appended; when there is no room for another block, and at the end,
they are sorted together. So a line costs one sort of `k` numbers and a comparison of each other one
if these are in random order, and a few times the sort of all of them at worst.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from leanconv.codegen.emitter import Carry, Function, Pointer, Value, vector
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.lowered import Call, Lowered
from leanconv.codegen.shuffles import any_lane
from leanconv.codegen.tails import where_any
from leanconv.errors import UnsupportedError
from leanconv.kernels import InPieces, KernelContext, top_k_scan
from leanconv.kernels.lane_reduce import TILE, each_column
from leanconv.kernels.ordering import RadixSort, count_bytes, key_kind, least_key, sort_key
from leanconv.kernels.top_k_scan import LineNest, TopKernel, TopOfLines, TopScan
from leanconv.records import dataclass
from leanconv.spec.format import aligned, ceil_div
from leanconv.symbolic import least, most
from leanconv.target import Target
from leanconv.types import INT32, INT64

MOST = 8  # keys and places are 16 registers


@dataclass(frozen=True)
class TopLanes(InPieces, TopKernel):
    """The first of many lines in lanes, for a `k` of at most `MOST`."""

    k: int  # no extent: the code depends on it

    @property
    def items(self) -> int:
        """Tiles of results."""
        return self.outer * ceil_div(self.inner, TILE)

    @property
    def elements(self) -> int:
        return self.outer * self.count * self.inner

    @property
    def flops(self) -> int:
        return self.outer * self.count * self.inner * self.k

    def emit(self, target: Target) -> str:
        return _LaneNest(self, target).emit()


class _LaneNest:
    def __init__(self, kernel: TopLanes, target: Target) -> None:
        self.k, self.e, self.target = kernel, Function(kernel.NAME), target
        # Places are wider than many numbers.
        self.step = kernel.dtype if kernel.dtype.bytes >= INT32.bytes else INT32
        self.lanes = target.lanes(self.step)
        self.element = key_kind(kernel.dtype)
        self.kind = vector(self.element, self.lanes)

    def emit(self) -> str:
        e, k = self.e, self.k
        x, values = e.pointer(0, self.element), e.pointer(1, self.element)
        places = e.pointer(2, INT64.llvm)
        columns = ceil_div(k.inner, TILE)
        with k.each_item(e) as item:
            row, tile = item // columns, item % columns
            source, to = x.at(row * (k.count * k.inner)), row * (k.k * k.inner)

            def body(offset: Value, count: Value | int) -> None:
                at = to + offset
                self._columns(source.at(offset), values.at(at), places.at(at), count)

            each_column(e, tile, k.inner, self.step, self.target, body)
        return e.finish()

    def _columns(
        self, source: Pointer, values: Pointer, places: Pointer, count: Value | int
    ) -> None:
        e, k = self.e, self.k
        keys: list[Value] = []
        found: list[Value] = []
        for first in map(e.i64, range(k.k)):
            self._insert(keys, found, self._keys(source, first, count), first, grows=True)
        for _ in where_any(e, k.count - k.k, [keys, found]):
            with e.loop("r", k.count, [keys, found], start=k.k) as r:
                key = self._keys(source, r, count)
                with e.when(any_lane(e, key.compare("slt", keys[-1])), [keys, found]):
                    self._insert(keys, found, key, r)
        for number, place in enumerate(found):
            wide = e.convert("zext", place, vector(INT64.llvm, self.lanes))
            e.store_first(wide, places.at(number * k.inner), count)
        with e.loop("j", k.k) as j, e.loop("lane", count) as lane:
            at = j * k.inner + lane
            place = e.load_index(places.at(at))
            e.store(e.load(source.at(place * k.inner + lane)), values.at(at))

    def _keys(self, source: Pointer, r: Value, count: Value | int) -> Value:
        x = self.e.load_first(source.at(r * self.k.inner), self.kind, count)
        return sort_key(self.e, self.k.dtype, x, largest=self.k.largest)

    def _insert(
        self, keys: list[Value], found: list[Value], key: Value, r: Value, grows: bool = False
    ) -> None:
        """Insert a later row's keys and place; the last ones go, unless the lists grow."""
        e = self.e
        place = e.splat(e.convert("trunc", r, "i32"), self.lanes)
        before = [key.compare("slt", other) for other in keys]
        keys[:] = self._moved(keys, before, key, grows)
        found[:] = self._moved(found, before, place, grows)

    def _moved(
        self, old: Sequence[Value], before: Sequence[Value], new: Value, grows: bool
    ) -> list[Value]:
        e = self.e
        if not old:
            return [new]
        made = [e.select(before[0], new, old[0])]
        for j in range(1, len(old)):
            made.append(e.select(before[j], e.select(before[j - 1], old[j - 1], new), old[j]))
        if grows:
            made.append(e.select(before[-1], old[-1], new))
        return made


_LEAST_BLOCK = 1024  # numbers after which a sort costs little more than its counts


@dataclass(frozen=True)
class TopSort(TopOfLines):
    """The first of each line by sorting."""

    @property
    def block(self) -> int:
        """Numbers of a line that are compared before another sort may be due."""
        found: int = most(self.k, _LEAST_BLOCK)
        return found

    @property
    def room(self) -> int:
        """Numbers of the first block, and in a buffer."""
        found: int = least(self.count, self.k + 2 * self.block)
        return found

    @property
    def count_bytes(self) -> int:
        """Scratch for the counts of the digits."""
        return count_bytes(self.dtype.bytes)

    @property
    def buffer_bytes(self) -> tuple[int, int]:
        """Scratch for a buffer of keys, and for one of places."""
        return aligned(self.room * self.dtype.bytes), aligned(self.room * INT32.bytes)

    @property
    def line_at(self) -> int:
        """Byte of the scratch at which the copy of a line begins."""
        return self.count_bytes + 2 * sum(self.buffer_bytes)

    @property
    def scratch_bytes(self) -> int:
        return self.line_at + self.line_bytes

    def emit(self, target: Target) -> str:
        return _SortNest(self, target).emit()


class _SortNest(LineNest):
    def __init__(self, kernel: TopSort, target: Target) -> None:
        super().__init__(kernel, target, kernel.line_at)
        self.sort = kernel
        e, (keys, places) = self.e, kernel.buffer_bytes
        begins = [kernel.count_bytes + number * (keys + places) for number in range(2)]
        self.keys = [e.scratch.at(at).of(self.element) for at in begins]
        self.places = [e.scratch.at(at + keys).of(INT32.llvm) for at in begins]
        self.radix = RadixSort(e, self.keys, self.places, e.scratch.of(INT32.llvm))
        self.least = least_key(kernel.dtype)

    def emit(self) -> str:
        e, k = self.e, self.sort
        behind = k.count - k.room
        with self.each_line() as (source, write):
            state: Carry = [e.i64(k.room), e.zero(self.element)]
            with e.loop("first", k.room) as r:
                self._append(r, r, self.key(source, r))
            self._first_of(state)
            for _ in where_any(e, behind, [state]):
                blocks = ceil_div(behind, k.block)
                with e.loop("block", blocks, [state]) as block:
                    start = block * k.block + k.room
                    self._scan(source, start, e.smin(start + k.block, k.count), state)
                    due = state[0].compare("ugt", k.k + k.block) | block.compare("eq", blocks - 1)
                    with e.when(due, [state]):
                        self._first_of(state)
            write(self.places[0])
        return e.finish()

    def _append(self, to: Value, r: Value, key: Value) -> None:
        """Put a number behind the first `to` in the buffers."""
        self.e.store(key ^ self.least, self.keys[0].at(to))
        self.e.store(self.e.convert("trunc", r, INT32.llvm), self.places[0].at(to))

    def _scan(self, source: Pointer, start: Value, stop: Value, state: Carry) -> None:
        """Append the numbers of a block that come before the last of the first `k`."""

        def append(r: Value, key: Value) -> None:
            self._append(state[0], r, key)
            state[0] = state[0] + 1

        self.scan(source, start, stop, [state[1]], [state], append)

    def _first_of(self, state: Carry) -> None:
        """Sort what is in the buffers; the first `k` of it are left, and the last one's key."""
        e, k, number = self.e, self.sort.k, self.sort.dtype.bytes
        self.radix.sort(state[0])
        if number % 2:
            with e.loop("j", k) as j:
                for buffers in (self.keys, self.places):
                    e.store(e.load(buffers[1].at(j)), buffers[0].at(j))
        last = e.load(self.keys[0].at(e.i64(k - 1)))
        state[:] = [e.i64(k), last ^ self.least]


_MOST_NUMBERS = 1 << 32  # places within a line have 32 bits


def lower(context: KernelContext) -> Lowered:
    """One kernel, whose results are the numbers and their places."""
    node, graph, target = context.node, context.graph, context.target
    (x,), (values, places) = node.inputs, node.outputs
    kind, axis, k = graph.types[x], node.attributes["axis"], node.attributes["k"]
    count = kind.shape[axis]
    if count > _MOST_NUMBERS:
        raise UnsupportedError(
            f"node {node.name or node.key!r}: TopK among {count} numbers; expected at most "
            f"{_MOST_NUMBERS} along an axis; cut the axis into several"
        )
    outer, inner = prod(kind.shape[:axis]), prod(kind.shape[axis + 1 :])
    largest = bool(node.attributes["largest"])
    kernel: Kernel
    if inner > 1 and k <= MOST:
        kernel = TopLanes(kind.dtype, largest, outer, count, inner, k)
    elif top_k_scan.fits(kind.dtype, k, target):
        kernel = TopScan(kind.dtype, largest, outer, count, inner, k)
    else:
        kernel = TopSort(kind.dtype, largest, outer, count, inner, k)
    call = Call(kernel, (x, values, places))
    return Lowered((call,), algorithm="top")
