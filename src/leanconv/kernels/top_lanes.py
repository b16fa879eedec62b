"""The few first numbers of an order along an axis, with lanes along the axes behind it.

    keys[j][i], places[j][i] = the j-th of x[o, r, i] over r                 for each lane i

A tile is 64 columns. The keys found before stay in registers, in order. A row of x is compared with
the last of them; where a lane has one that comes before it, all lanes insert theirs: every key from
there on moves by one, which takes a comparison and two selections for each of `k`.
"""

from __future__ import annotations

from collections.abc import Sequence

from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.shuffles import any_lane
from leanconv.codegen.tails import where_any
from leanconv.kernels.lane_reduce import TILE, each_column
from leanconv.kernels.pieces import InPieces
from leanconv.kernels.sort_keys import key_kind, sort_key
from leanconv.kernels.top_scan import TopKernel
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.target import Target
from leanconv.types import INT32, INT64

MOST = 8  # keys and places are 16 registers


@dataclass(frozen=True)
class TopLanes(InPieces, TopKernel):
    """In lanes, of a `k` of at most `MOST`."""

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
        return _Nest(self, target).emit()


class _Nest:
    """The loops of one kernel while they are written."""

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
        with e.chunks(k.chunks) as (chunk,):
            first = chunk * k.group
            with e.loop("item", e.smin(first + k.group, k.items), start=first) as item:
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
        """The results of the first `count` lanes."""
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
