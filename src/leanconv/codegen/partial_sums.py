"""Long sums as sums of partial sums, which round less.

A float32 accumulator that adds 4,608 products one after the other has three times the error of one
that adds up 18 sums of 256. The totals of a tile are spilled to the function's frame, which costs
one load, addition and store for each accumulator every `LENGTH` steps, under 1 % of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from leanconv.codegen.emitter import Function, Pointer, Value
from leanconv.codegen.microkernel import (
    UNROLL_LIMIT,
    Fetch,
    ReductionLoop,
    RegisterTile,
    multiply_accumulate,
    static_steps,
)
from leanconv.records import replace
from leanconv.spec.format import ceil_div

Run = tuple[Value | int, Value | int, Sequence[int]]
Piece = tuple[Sequence[int], Sequence[ReductionLoop], Value | bool]
_UNROLLED = 8  # partial sums of a row of taps that are written out
LENGTH = 128  # products of one partial sum, at most


def effective_length(reduction: float) -> float:
    """Length of the sequential sum with the same rounding error as partial sums of `reduction`."""
    return reduction if reduction <= LENGTH else LENGTH + reduction / LENGTH


def sum_in_two_parts(
    e: Function,
    tile: RegisterTile,
    start: Sequence[Value],
    a: Pointer,
    b: Pointer,
    loops: Sequence[ReductionLoop],
    unroll: int = UNROLL_LIMIT,
    fetch: Fetch | None = None,
) -> list[Value]:
    """Emit a reduction of `LENGTH` to twice as many products, of all rows of a tile, as two sums.

    The first one begins with `start` and is stored, the second one stays in registers: a third of
    the loads and stores of `PartialSums`. With more parts that saves nothing measurable.

    Args:
        e, tile, a, b, loops, unroll, fetch: as in `multiply_accumulate`; bounds are known here.
        start: initial values, `start[i * vectors + j]`.

    Returns:
        The sums, as `start`.
    """
    loop, inner, acc, rows = loops[0], loops[1:], list(start), range(len(start) // tile.vectors)
    assert isinstance(loop.extent, int)
    each = LENGTH // (static_steps(inner) or 1)
    stored = e.local(tile.element, len(start) * tile.lanes)
    places = [stored.at(slot * tile.lanes) for slot in range(len(start))]
    with e.loop("half", 2, [acc]) as half:
        is_first = half.compare("eq", 0)
        extent = e.select(is_first, e.i64(each), e.i64(loop.extent - each))
        first = half * each
        fetch_i = fetch and fetch.moved(first * (loop.a_stride if inner else fetch.stride))
        over = [replace(loop, extent=extent), *inner]
        a_i = a.at(first * loop.a_stride).frozen()
        b_i = b.at(first * loop.b_stride).frozen()
        multiply_accumulate(e, tile, acc, rows, a_i, b_i, over, unroll, fetch_i)
        with e.when(is_first, [acc]):
            for value, place in zip(acc, places, strict=True):
                e.store(value, place)
            acc[:] = [e.zero(tile.kind)] * len(start)
    return [e.load(p, tile.kind) + value for value, p in zip(acc, places, strict=True)]


class PartialSums:
    """The totals of one register tile.

    Args:
        e: the function to append to.
        tile: types and strides of the micro-kernel.
        start: initial values, `start[i * vectors + j]`.
        unroll: as in `multiply_accumulate`.
        length: products of one partial sum, at most.
    """

    def __init__(
        self,
        e: Function,
        tile: RegisterTile,
        start: Sequence[Value],
        unroll: int = UNROLL_LIMIT,
        length: int = LENGTH,
    ) -> None:
        self._e, self._tile, self._count, self._unroll = e, tile, len(start), unroll
        self._length = length
        self._totals = e.local(tile.element, len(start) * tile.lanes)
        for slot, value in enumerate(start):
            e.store(value, self.place(slot))

    def place(self, slot: int) -> Pointer:
        """Return the address of an accumulator's total."""
        return self._totals.at(slot * self._tile.lanes)

    def add(
        self,
        rows: Sequence[int],
        a: Pointer,
        b: Pointer,
        loops: Sequence[ReductionLoop],
        fetch: Fetch | None = None,
    ) -> None:
        """Add the products of the loops (as of `multiply_accumulate`), partial sum by sum."""
        e = self._e
        steps = static_steps(loops)
        if steps is not None and steps <= self._length:
            self._add_one(rows, a, b, loops, fetch)
            return
        loop, inner = loops[0], list(loops[1:])
        inside = static_steps(inner)
        assert inside is not None, "only the outermost loop may have bounds known at run time"
        # Whole inner loops of half the length and more are parts of their own: two levels of loops
        # in one part cost more address arithmetic than fewer parts save.
        each = 1 if 2 * inside >= self._length else self._length // max(1, inside)
        if each <= 1 or not (isinstance(loop.extent, int) and isinstance(loop.start, int)):
            with e.loop(loop.label, loop.extent, start=loop.start) as index:
                a_i, b_i, fetch_i = self._moved(a, b, fetch, loop, index, bool(inner))
                self.add(rows, a_i, b_i, inner, fetch_i)
            return
        assert isinstance(loop.extent, int)
        assert isinstance(loop.start, int)
        total, whole = loop.extent - loop.start, (loop.extent - loop.start) // each
        with e.loop("part", ceil_div(total, each)) as number:
            index = number * each + loop.start
            a_i, b_i, fetch_i = self._moved(a, b, fetch, loop, index, bool(inner))
            # The last one may be shorter: the code of both is the same.
            extent = each if whole * each == total else e.smin(e.i64(total) - number * each, each)
            part = replace(loop, start=0, extent=extent)
            self._add_one(rows, a_i, b_i, [part, *inner], fetch_i)

    def _moved(
        self,
        a: Pointer,
        b: Pointer,
        fetch: Fetch | None,
        loop: ReductionLoop,
        index: Value,
        nested: bool,
    ) -> tuple[Pointer, Pointer, Fetch | None]:
        """A, B and the prefetch at one index of a loop; `nested` if it contains loops."""
        if fetch:
            stride = loop.a_stride if nested else fetch.stride
            fetch = fetch.moved(index * stride)
        return a.at(index * loop.a_stride), b.at(index * loop.b_stride), fetch

    def add_row(
        self,
        runs: Sequence[Run],
        taps: ReductionLoop,
        a: Pointer,
        b: Pointer,
        inner: Sequence[ReductionLoop],
        fetch: Fetch | None = None,
    ) -> None:
        """Add the products of a row of taps, of which some rows of the tile have a part.

        Whatever a row has is summed in the parts of a row that has all taps: its sum does not
        depend on the tile that it is in.

        Args:
            runs: first tap, one past the last, and the rows of the tile that have these; each row's
                one after the other.
            taps: the loop over all taps.
            a, b, fetch: as of `add`, at tap 0.
            inner: the loops of one tap.
        """
        steps, kernel = static_steps(inner), taps.extent
        assert steps is not None
        assert isinstance(kernel, int)
        if len(runs) == 1 and runs[0][:2] == (0, kernel):
            self.add(runs[0][2], a, b, [taps, *inner], fetch)
            return
        each = kernel
        if kernel * steps > self._length:
            each = 1 if 2 * steps >= self._length else self._length // max(1, steps)
        if each == 1:
            for low, high, rows in runs:
                with self._e.loop(taps.label, high, start=low) as index:
                    a_i, b_i, fetch_i = self._moved(a, b, fetch, taps, index, True)
                    self.add(rows, a_i, b_i, inner, fetch_i)
            return

        def add_taps(first: Value | int, stop: Value | int) -> None:
            pieces = [
                (rows, [replace(taps, start=low, extent=high), *inner], some)
                for low, high, rows, some in (self._within(run, first, stop) for run in runs)
                if some is not False
            ]
            if pieces:
                self._add_pieces(pieces, a, b, fetch)

        e, count = self._e, ceil_div(kernel, each)
        if count <= _UNROLLED:
            for first in range(0, kernel, each):
                add_taps(first, min(kernel, first + each))
            return
        with e.loop(f"{taps.label}s", count) as index:
            add_taps(index * each, e.smin(index * each + each, kernel))

    def _within(
        self, run: Run, first: Value | int, stop: Value | int
    ) -> tuple[Value | int, Value | int, Sequence[int], Value | bool]:
        """The part of a run within some taps, and whether there is any."""
        low, high, rows = run
        if isinstance(first, int) and isinstance(low, int) and isinstance(high, int):
            assert isinstance(stop, int)
            low, high = max(low, first), min(high, stop)
            return low, high, rows, low < high
        e = self._e
        begin, end = e.smax(e.i64(low), first), e.smin(e.i64(high), stop)
        return begin, end, rows, begin.compare("slt", end)

    def _add_one(
        self,
        rows: Sequence[int],
        a: Pointer,
        b: Pointer,
        loops: Sequence[ReductionLoop],
        fetch: Fetch | None,
    ) -> None:
        self._add_pieces([(rows, loops, True)], a, b, fetch)

    def _add_pieces(
        self, pieces: Sequence[Piece], a: Pointer, b: Pointer, fetch: Fetch | None
    ) -> None:
        """Add one partial sum of pieces: rows of the tile, loops, whether there are any."""
        e, tile = self._e, self._tile
        acc = self._sum_of(pieces, tile, self._count, a, b, fetch)
        for i in sorted({i for rows, _, _ in pieces for i in rows}):
            for slot in range(i * tile.vectors, (i + 1) * tile.vectors):
                total = e.load(self.place(slot), tile.kind)
                e.store(total + acc[slot], self.place(slot))

    def _sum_of(
        self,
        pieces: Sequence[Piece],
        tile: RegisterTile,
        count: int,
        a: Pointer,
        b: Pointer,
        fetch: Fetch | None,
    ) -> list[Value]:
        """The products of pieces, one after the other in the same accumulators."""
        e = self._e
        acc = [e.zero(tile.kind)] * count
        for rows, loops, some in pieces:
            with nullcontext() if isinstance(some, bool) else e.when(some, [acc]):
                multiply_accumulate(e, tile, acc, rows, a, b, loops, self._unroll, fetch=fetch)
        return acc

    def values(self) -> list[Value]:
        """The totals."""
        return [self._e.load(self.place(slot), self._tile.kind) for slot in range(self._count)]
