"""The few first numbers of an order in lines, by a list of them in a register.

Numbers of a line are compared with the last of the list, a vector of them at a time. One that comes
before it is inserted: lanes from its place on move by one, which takes a comparison with the list,
one with the moved list and four selections, whatever the place. Random numbers are mostly skipped;
at worst every number is inserted.

Lines that are not contiguous are copied into the scratch first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from leanconv.codegen.emitter import Carry, Function, Pointer, Value, vector
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.shuffles import any_lane, lane_bits
from leanconv.codegen.tails import where_any
from leanconv.kernels import PIECE, OfItems
from leanconv.kernels.ordering import key_kind, sort_key
from leanconv.records import dataclass
from leanconv.spec.format import aligned, ceil_div
from leanconv.symbolic import Extent
from leanconv.target import Target
from leanconv.types import INT32, INT64, DType

_LEAST_LIST, _LONGEST_LIST = 8, 64


@dataclass(frozen=True)
class TopKernel(Kernel):
    """The first along the middle one of three axes.

    Attributes:
        dtype: of the numbers; places are int64.
        largest: whether larger numbers come first.
        outer, count, inner: extents before the axis, of it, and behind it.
        k: how many.
    """

    VARIES = True
    operands = ("x", "values", "places")
    result_count = 2

    dtype: DType
    largest: bool
    outer: Extent
    count: Extent
    inner: Extent
    k: Extent


@dataclass(frozen=True)
class TopOfLines(OfItems, TopKernel):
    """The first of each line, one line after the other."""

    @property
    def items(self) -> int:
        return self.outer * self.inner

    @property
    def group(self) -> int:
        return ceil_div(PIECE, self.count)

    @property
    def flops(self) -> int:
        return self.items * self.count

    @property
    def line_bytes(self) -> int:
        """Scratch for the copy of a line."""
        return 0 if self.inner == 1 else aligned(self.count * self.dtype.bytes)


@dataclass(frozen=True)
class TopScan(TopOfLines):
    """The first of each line by a list in a register, of a `k` that `fits`."""

    k: int  # no extent: the code depends on it

    @property
    def list_lanes(self) -> int:
        """Lanes of the list."""
        return _list_lanes(self.k)

    @property
    def scratch_bytes(self) -> int:
        return aligned(self.list_lanes * INT32.bytes) + self.line_bytes

    def emit(self, target: Target) -> str:
        return _Nest(self, target).emit()


def fits(dtype: DType, k: int, target: Target) -> bool:
    """Return whether a list of `k` keys and places leaves a quarter of the registers free.

    Longer ones spill: for 64 numbers of float in random order AVX-512 takes a fifth of the time of
    sorting; AVX2 takes twice that if they are in the worst order.
    """
    if k > _LONGEST_LIST:
        return False
    size = _list_lanes(k) * (dtype.bytes + INT32.bytes)
    return 4 * size <= 3 * target.registers * target.vector_bytes


def _list_lanes(k: int) -> int:
    return max(_LEAST_LIST, 1 << (int(k) - 1).bit_length())


class LineNest:
    """Loops over lines, and scans of a line, which several kernels share.

    Args:
        kernel: the kernel.
        target: the CPU.
        line_at: the byte of the scratch at which the copy of a line begins.
    """

    def __init__(self, kernel: TopOfLines, target: Target, line_at: int) -> None:
        self.k, self.e, self.results = kernel, Function(kernel.NAME), kernel.k
        self.lanes = target.lanes(kernel.dtype)
        self.element = key_kind(kernel.dtype)
        self._line_at = line_at

    @contextmanager
    def each_line(self) -> Iterator[tuple[Pointer, Callable[[Pointer], None]]]:
        """Run the body for each line of a chunk.

        Yields:
            The line, contiguous, and a function that writes the results: it is given where their
            places are, as i32.
        """
        e, k = self.e, self.k
        x, values = e.pointer(0, self.element), e.pointer(1, self.element)
        places = e.pointer(2, INT64.llvm)
        with k.each_item(e, "line") as line:
            row, column = line // k.inner, line % k.inner
            source = x.at(row * (k.count * k.inner) + column)
            if k.inner != 1:
                source = self._copied(source)
            to = row * (self.results * k.inner) + column

            def write(found: Pointer) -> None:
                with e.loop("j", self.results) as j:
                    place = e.index(e.convert("zext", e.load(found.at(j)), "i64"))
                    at = to + j * k.inner
                    e.store(place, places.at(at))
                    e.store(e.load(source.at(place)), values.at(at))

            yield source, write

    def _copied(self, source: Pointer) -> Pointer:
        e = self.e
        copy = e.scratch.at(self._line_at).of(self.element)
        with e.loop("r", self.k.count) as r:
            e.store(e.load(source.at(r * self.k.inner)), copy.at(r))
        return copy

    def key(self, source: Pointer, r: Value, lanes: int = 1) -> Value:
        """Keys of numbers of a line, from number r on."""
        x = self.e.load(source.at(r), vector(self.element, lanes))
        return sort_key(self.e, self.k.dtype, x, largest=self.k.largest)

    def scan(
        self,
        source: Pointer,
        start: Value,
        stop: Value,
        limit: Carry,
        carry: Sequence[Carry],
        body: Callable[[Value, Value], None],
    ) -> None:
        """Run `body(r, key)` for the numbers from `start` on that come before a limit.

        Args:
            source: the line.
            start, stop: which numbers; there may be none.
            limit: one value, a key, which the body may replace by a smaller one. The body may be
                run for a few numbers between the two.
            carry: what else the body replaces.
            body: emits the code for a number.
        """
        e, lanes = self.e, self.lanes
        whole = (stop - start) // lanes
        tail = start + whole * lanes
        state = [limit, *carry]
        with e.when(whole.compare("ne", 0), state), e.loop("v", whole, state) as v:
            at = start + v * lanes
            before = self.key(source, at, lanes).compare("slt", e.splat(limit[0], lanes))
            with e.when(any_lane(e, before), state):
                bits = lane_bits(e, before)
                if lanes < 64:
                    bits = e.convert("zext", bits, "i64")
                left = [bits]
                hits = e.intrinsic("llvm.ctpop.i64", "i64", bits)
                with e.loop("hit", hits, [left, *state]):
                    lane = e.intrinsic("llvm.cttz.i64", "i64", left[0], e.const("i1", 1))
                    left[0] = left[0] & (left[0] - 1)
                    r = at + lane
                    body(r, self.key(source, r))
        with e.when(tail.compare("ult", stop), state), e.loop("r", stop, state, start=tail) as r:
            key = self.key(source, r)
            with e.when(key.compare("slt", limit[0]), state):
                body(r, key)


class _Nest(LineNest):
    def __init__(self, kernel: TopScan, target: Target) -> None:
        at = aligned(kernel.list_lanes * INT32.bytes)
        super().__init__(kernel, target, at)
        self.width = kernel.list_lanes

    def emit(self) -> str:
        e, k, count = self.e, self.results, self.k.count
        found = e.scratch.of(INT32.llvm)
        numbers = e.const(vector(INT32.llvm, self.width), range(self.width))
        with self.each_line() as (source, write):
            kinds = (vector(element, self.width) for element in (self.element, INT32.llvm))
            held: Carry = [e.zero(kind) for kind in kinds]
            with e.loop("fill", k, [held]) as r:
                filled = e.splat(e.convert("trunc", r, INT32.llvm), self.width)
                self._insert(held, r, self.key(source, r), numbers.compare("sge", filled))
            for _ in where_any(e, count - k, [held]):
                self._others(held, source)
            e.store(held[1], found)
            write(found)
        return e.finish()

    def _others(self, held: Carry, source: Pointer) -> None:
        """Take the numbers after the first `k`."""
        e, k = self.e, self.results
        limit: Carry = [e.extract(held[0], k - 1)]

        def insert(r: Value, key: Value) -> None:
            self._insert(held, r, key)
            limit[0] = e.extract(held[0], k - 1)

        self.scan(source, e.i64(k), e.i64(self.k.count), limit, [held], insert)

    def _insert(self, held: Carry, r: Value, key: Value, empty: Value | None = None) -> None:
        """Insert a key and its place into the list, of which some lanes may be empty yet."""
        e = self.e
        keys, places = held
        new = e.splat(key, self.width)
        before = new.compare("slt", keys)
        if empty is not None:
            before = before | empty
        moved = self._moved(keys, new)
        moves = new.compare("slt", moved)
        place = e.splat(e.convert("trunc", r, INT32.llvm), self.width)
        held[0] = e.select(before, e.select(moves, moved, new), keys)
        held[1] = e.select(before, e.select(moves, self._moved(places, place), place), places)

    def _moved(self, old: Value, new: Value) -> Value:
        """Each lane in the next one's place; the first is new."""
        return self.e.shuffle(new, old, [0, *range(self.width, 2 * self.width - 1)])
