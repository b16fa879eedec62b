"""Sums of float16 products in pieces: each piece in float16, the sum of all pieces in float32.

    piece[lane] = fma over at most `length` products, in float16        32 lanes of a register of 16
    total[lane] += piece[lane]                                          float32, in memory

One accumulator of float16 is two of float32, of neighbouring blocks of channels. A piece of 64 errs
by the root of 64 times 0.3 roundoffs, which all pieces together do, too, relative to the sum.

Float16 ends at 65504. A piece that exceeds it is infinite, and so, or NaN, is its total: where one
is not finite the tile is computed anew in float32 (`overflowed`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from leanconv.codegen.dot import Dot, fma
from leanconv.codegen.emitter import Function, Pointer, Value, lanes_of
from leanconv.codegen.microkernel import (
    UNROLL_LIMIT,
    Fetch,
    RegisterTile,
)
from leanconv.codegen.partial_sums import PartialSums, Piece
from leanconv.types import FLOAT16, FLOAT32

HALF_PRODUCTS = fma(FLOAT16)
SINGLE_PRODUCTS = Dot(FLOAT16, FLOAT16, FLOAT32)
LONGEST_PIECE = 64
PIECES = (LONGEST_PIECE, 32)  # products of one piece, at most

_CHAINS = 4  # of additions that do not wait for one another


def in_floats(tile: RegisterTile, vectors: int) -> RegisterTile:
    """A tile of float16 sums as the tile of float32 ones that its totals are, of fewer vectors."""
    return replace(tile, dot=SINGLE_PRODUCTS, lanes=tile.lanes // 2, vectors=vectors)


class HalfSums(PartialSums):
    """The totals of one register tile of float16 sums.

    Args:
        e: the function to append to.
        tile: types and strides of the micro-kernel, of float16 sums.
        start: initial values in float32, two for each accumulator: `start[2 · slot + part]`.
        length: products of a piece, at most.
        unroll: as in `multiply_accumulate`.
    """

    def __init__(
        self,
        e: Function,
        tile: RegisterTile,
        start: Sequence[Value],
        length: int,
        unroll: int = UNROLL_LIMIT,
    ) -> None:
        self._single = in_floats(tile, 2 * tile.vectors)
        super().__init__(e, self._single, start, unroll, length)
        self._half = tile

    def _add_pieces(
        self, pieces: Sequence[Piece], a: Pointer, b: Pointer, fetch: Fetch | None
    ) -> None:
        e, tile = self._e, self._half
        acc = self._sum_of(pieces, tile, self._count // 2, a, b, fetch)
        lanes = self._single.lanes
        for i in sorted({i for rows, _, _ in pieces for i in rows}):
            for slot in range(i * tile.vectors, (i + 1) * tile.vectors):
                for part in range(2):
                    place = self.place(2 * slot + part)
                    piece = e.shuffle(acc[slot], None, range(part * lanes, (part + 1) * lanes))
                    total = e.load(place, self._single.kind)
                    e.store(total + e.convert("fpext", piece, total.kind), place)

    def values(self, vectors: int = 0) -> list[Value]:
        """The totals; of each row the first `vectors`, if that is given."""
        found, width = super().values(), self._single.vectors
        return [each for slot, each in enumerate(found) if slot % width < (vectors or width)]

    def overflowed(self) -> Value:
        """Whether a total is infinite or NaN."""
        e, kind = self._e, self._single.kind
        zero = e.zero(kind)
        chains = [zero] * _CHAINS
        for slot, value in enumerate(self.values()):
            chains[slot % _CHAINS] = e.fma(value, zero, chains[slot % _CHAINS])
        together = (chains[0] + chains[1]) + (chains[2] + chains[3])
        lanes = together.compare("uno", together)
        return e.convert("bitcast", lanes, f"i{lanes_of(kind)}").compare("ne", 0)
