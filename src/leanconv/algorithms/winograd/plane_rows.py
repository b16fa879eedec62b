"""Loads and stores of pieces of rows in planes, whose columns may be strided."""

from __future__ import annotations

from leanconv.codegen.emitter import Function, Pointer, Value, lanes_of, vector
from leanconv.spec.format import ceil_div


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
