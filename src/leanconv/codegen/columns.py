"""Columns of a tile whose count is known when the kernel runs: masks, branches, rows of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

from leanconv.codegen.emitter import Function, Pointer, Value, lanes_of, vector
from leanconv.target import Target


class Columns:
    """How many columns of a tile are stored, a value: made before the loops around `store_tile`.

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
