"""Tails: extents that a tile does not divide. A body is emitted for whole tiles and for the tail.

A body is given its number of items and never tests whether it is the tail:

    for index, count in each_tile(e, "panel", channels, 16):  # a loop over panels, then the tail
        body(index, count)
    for count in tile_at(e, panel, channels, 16):             # one panel, whose index is a value
        body(panel, count)

Without a tail the body is emitted once, and no condition.

Columns whose count is known when the kernel runs have masks, branches and rows of their own
(`Columns`); columns that are some elements apart in memory are vectors under masks (`RowPieces`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, TypeVar

from leanconv.codegen.emitter import Function, Pointer, Value, lanes_of, vector
from leanconv.spec.format import ceil_div
from leanconv.symbolic import Symbol
from leanconv.target import Target

_Variant = TypeVar("_Variant")


def each_tile(e: Function, label: str, total: int, size: int) -> Iterator[tuple[Value | int, int]]:
    """Emit the body in a loop over whole tiles, then for the tail.

    Args:
        e: the function under construction.
        label: name of the loop's index.
        total: items.
        size: items of a whole tile.

    Yields:
        The tile's index, which is a constant for the tail, and its items.
    """
    whole, tail = divmod(total, size)
    if whole:
        with e.loop(label, whole) as index:
            yield index, size
    if tail:
        yield whole, tail


def each_tile_of_any(e: Function, label: str, total: int, size: int) -> Iterator[tuple[Value, int]]:
    """Emit the body for whole tiles, then for the tail: item by item where only a word tells it.

    Args:
        e: the function under construction.
        label: name of the loops' index.
        total: items; a symbol makes one code for all numbers of them.
        size: items of a whole tile.

    Yields:
        The tile's first item, and its items.
    """
    if not isinstance(total, Symbol):
        for index, count in each_tile(e, label, total, size):
            yield e.i64(index * size), count
        return
    whole = total // size
    for _ in where_any(e, whole):
        with e.loop(label, whole) as index:
            yield index * size, size
    for _ in where_any(e, total - whole * size):
        with e.loop(label, total, start=e.i64(whole * size)) as index:
            yield index, 1


def where_any(e: Function, count: int, carry: Sequence[list[Value]] = ()) -> Iterator[None]:
    """Emit the body if there are any: known now, or a condition in the code for a symbol.

    Args:
        e: the function under construction.
        count: of what the body works on.
        carry: lists of values that the body replaces, as in `Function.when`.
    """
    if isinstance(count, Symbol):
        with e.when(e.i64(count).compare("ne", 0), carry):
            yield
    elif count:
        yield


def tile_at(
    e: Function, index: Value, total: int, size: int, is_tail: Literal["uge", "eq"] = "uge"
) -> Iterator[int]:
    """Emit the body for a tile of run-time index: whole and tail, each under a condition.

    Args:
        e: the function under construction.
        index: of the tile.
        total: items of all tiles.
        size: items of a whole tile.
        is_tail: comparison of `index` with the number of whole tiles at the tail.

    Yields:
        The tile's items.
    """
    whole, tail = divmod(total, size)
    if not (whole and tail):
        yield tail or size
        return
    with e.when(index.compare("ult", whole)):
        yield size
    with e.when(index.compare(is_tail, whole)):
        yield tail


def tiles_of_chunk(
    e: Function, label: str, chunk: Value, per_chunk: int, total: int, size: int
) -> Iterator[tuple[Value | int, int]]:
    """Emit the body in a loop over the whole tiles of one chunk, then for the last chunk's tail.

    Args:
        e: the function under construction.
        label: name of the loop's index.
        chunk: index of the chunk, whose first tile is `chunk * per_chunk`.
        per_chunk: tiles of a chunk.
        total: items of all chunks.
        size: items of a whole tile.

    Yields:
        The tile's index among those of all chunks, and its items.
    """
    whole, tail = divmod(total, size)
    first = chunk * per_chunk
    stop = e.smin(first + per_chunk, whole)
    if whole:
        with e.when(first.compare("ult", stop)), e.loop(label, stop, start=first) as index:
            yield index, size
    if tail:
        with e.when(chunk.compare("eq", ceil_div(whole + 1, per_chunk) - 1)):
            yield whole, tail


def overlapping_tiles(
    e: Function, label: str, chunk: Value, per_chunk: int, total: int, size: int
) -> Iterator[Value]:
    """Emit the body in a loop over the tiles of one chunk, all of them whole.

    The last tile of all begins where it ends with the items, so that it may overlap the one before.

    Args:
        e, label, chunk, per_chunk, total, size: as of `tiles_of_chunk`; there are `size` items.

    Yields:
        The tile's first item.
    """
    first = chunk * per_chunk
    stop = e.smin(first + per_chunk, ceil_div(total, size))
    with e.loop(label, stop, start=first) as index:
        yield e.smin(index * size, total - size)


def last_or_other(
    e: Function, index: Value, count: int, last: _Variant, other: _Variant
) -> Iterator[_Variant]:
    """Emit the body for the last of `count` and for the others, once if they are equal."""
    if last == other:
        yield other
        return
    is_last = index.compare("eq", count - 1)
    with e.when(is_last):
        yield last
    with e.when(is_last ^ 1):
        yield other


class Columns:
    """Number of columns of a tile to store, a value made before the loops around `store_tile`.

    Args:
        e: the function to append to.
        count: columns, one at least.
        usual: most tiles have that many at least.
        kind: type of the tile's vectors.
        target: the machine.
    """

    def __init__(self, e: Function, count: Value, usual: int, kind: str, target: Target) -> None:
        self.e, self.count, self.usual = e, count, usual
        self._lanes = lanes_of(kind)
        self._bits: Value | None = None
        if target.masks_are_bits and self._lanes >= 8:
            # A comparison in a loop would come late: just before the stores.
            mask = e.first_lanes(count, self._lanes)
            self._bits = e.convert("bitcast", mask, f"i{self._lanes}")

    def mask(self, first: int) -> Value:
        """The lanes that columns `first` … fill."""
        if first == 0 and self._bits:
            return self.e.convert("bitcast", self._bits, vector("i1", self._lanes))
        return self.e.first_lanes(self.count - first, self._lanes)

    def beyond(self, column: int, known: int) -> AbstractContextManager[None]:
        """Emit the body if there is that column, of which `known` exist."""
        if column < known:
            return nullcontext()
        return self.e.when(self.count.compare("sgt", column))


def _each_column(
    e: Function, lanes: int, start: int, live: Columns | int, carry: list[Value]
) -> Iterator[int]:
    """Emit the body for each lane of a row that begins at column `start`."""
    for i in range(live if isinstance(live, int) else lanes):
        if isinstance(live, int):
            yield i
            continue
        with e.when(live.count.compare("sgt", start + i), [carry]):
            yield i


def load_row(
    e: Function, address: Pointer, kind: str, start: int, live: Columns | int, step: int
) -> Value:
    """Load a row of columns from `start` on, `step` elements apart; zero past the last of them."""
    if step == 1:
        if isinstance(live, int):
            return e.load_first(address, kind, live)
        return e.masked_load(address, kind, live.mask(start))
    values = [e.zero(kind)]
    for i in _each_column(e, lanes_of(kind), start, live, values):
        values[0] = e.insert(values[0], e.load(address.at(i * step)), i)
    return values[0]


def store_row(
    e: Function,
    value: Value,
    address: Pointer,
    start: int,
    live: Columns | int,
    step: int,
) -> None:
    """Store a row of columns from `start` on, `step` elements apart."""
    if step > 1:
        for i in _each_column(e, lanes_of(value.kind), start, live, []):
            e.store(e.extract(value, i), address.at(i * step))
        e.barrier()
    elif isinstance(live, int):
        e.store_first(value, address, live)
    else:
        e.masked_store(value, address, live.mask(start))


class RowPieces:
    """Loads and stores of `count` columns that are `step` elements apart.

    A register holds column i in lane i. In memory the columns span one or more vectors; masks keep
    the elements between them untouched.
    """

    def __init__(self, e: Function, kind: str, step: int, count: int) -> None:
        self.e, self.kind, self.step, self.count = e, kind, step, count
        lanes = lanes_of(kind)
        pieces = [range(i * lanes, (i + 1) * lanes) for i in range(ceil_div(count * step, lanes))]
        self._pieces = [piece for piece in pieces if any(self._columns(piece))]

    def _columns(self, piece: range) -> list[bool]:
        return [p % self.step == 0 and p // self.step < self.count for p in piece]

    def masks(self, first: Value | None = None, limit: Value | None = None) -> list[Value]:
        """The lanes of each piece that exist: all of `count` columns, or those below a limit.

        Args:
            first: number of the first column, an i32; zero if None.
            limit: the number of columns that there are, an i32; None if these exist.
        """
        e, lanes, found = self.e, lanes_of(self.kind), []
        for piece in self._pieces:
            mask = e.const(vector("i1", lanes), [int(c) for c in self._columns(piece)])
            if limit is not None:
                columns = e.const(vector("i32", lanes), [p // self.step for p in piece])
                numbers = e.index(columns)
                if first is not None:
                    numbers = numbers + e.splat(first, lanes)
                mask = numbers.compare("ult", e.splat(limit, lanes)) & mask
            found.append(mask)
        return found

    def load(self, at: Pointer, masks: list[Value]) -> Value:
        """Load the columns from `at` on, zeros where a mask says that there are none."""
        e, lanes = self.e, lanes_of(self.kind)
        result = e.zero(self.kind)
        for piece, mask in zip(self._pieces, masks, strict=True):
            loaded = e.masked_load(at.at(piece[0]), self.kind, mask)
            if self.step == 1:
                return loaded
            picks = [i * self.step - piece[0] for i in range(self.count)]
            taken = [lanes + p if 0 <= p < lanes else i for i, p in enumerate(picks)]
            result = e.shuffle(result, loaded, [*taken, *[-1] * (lanes - self.count)])
        return result

    def store(self, value: Value, at: Pointer, masks: list[Value]) -> None:
        """Store the columns from `at` on where the masks allow it."""
        e = self.e
        for piece, mask in zip(self._pieces, masks, strict=True):
            spread = value
            if self.step > 1:
                there = self._columns(piece)
                picks = [p // self.step if c else -1 for p, c in zip(piece, there, strict=True)]
                spread = e.shuffle(value, None, picks)
            e.masked_store(spread, at.at(piece[0]), mask)
