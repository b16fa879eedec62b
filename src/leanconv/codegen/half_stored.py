"""Kernels on halves: of float32 with operands that lie in memory as halves, and sums in float16.

    HalfStored(kernel, ("", "bfloat16", ""))     its second operand is bfloat16, the others as usual

The kernel computes in float32 and knows nothing of it: while it emits its code, the addresses that
it asks for are of halves, and `codegen.memory` converts what is loaded from them and stored there.
So every kernel whose operands are float32 numbers, loaded and stored as such, takes halves; what
moves bytes, or looks at the bits of numbers, does not.

`HalfSums` sums products of float16 in pieces: each in float16, all of them in float32.

    piece[lane] = fma over at most `length` products, in float16        32 lanes of a register of 16
    total[lane] += piece[lane]                                          float32, in memory

One accumulator of float16 is two of float32, of neighbouring blocks of channels. A piece of 64 errs
by the root of 64 times 0.3 roundoffs, which all pieces together do, too, relative to the sum.

Float16 ends at 65504. A piece that exceeds it is infinite, and so, or NaN, is its total: where one
is not finite the tile is computed anew in float32 (`overflowed`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from leanconv.codegen.dot import Dot, fma
from leanconv.codegen.emitter import Function, Pointer, Value, halves_of_operands, lanes_of
from leanconv.codegen.kernel import Kernel, of_wrapped
from leanconv.codegen.lowered import PackCall
from leanconv.codegen.microkernel import (
    UNROLL_LIMIT,
    Fetch,
    RegisterTile,
)
from leanconv.codegen.partial_sums import PartialSums, Piece
from leanconv.records import dataclass, replace
from leanconv.target import Target
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
        """Return whether a total is infinite or NaN."""
        e, kind = self._e, self._single.kind
        zero = e.zero(kind)
        chains = [zero] * _CHAINS
        for slot, value in enumerate(self.values()):
            chains[slot % _CHAINS] = e.fma(value, zero, chains[slot % _CHAINS])
        together = (chains[0] + chains[1]) + (chains[2] + chains[3])
        lanes = together.compare("uno", together)
        return e.convert("bitcast", lanes, f"i{lanes_of(kind)}").compare("ne", 0)


@dataclass(frozen=True)
class HalfStored(Kernel):
    """The code of a kernel with halves as operands.

    Attributes:
        kernel: computes in float32.
        halves: for each operand, the half precision that it lies in; `""`: as the kernel has it.
    """

    VARIES = of_wrapped("VARIES")
    operands = of_wrapped("operands")
    result_count = of_wrapped("result_count")
    chunks = of_wrapped("chunks")
    rounds = of_wrapped("rounds")
    wants_consecutive_chunks = of_wrapped("wants_consecutive_chunks")
    reuses_scratch = of_wrapped("reuses_scratch")
    weight_uses = of_wrapped("weight_uses")
    scratch_bytes = of_wrapped("scratch_bytes")
    flops = of_wrapped("flops")

    kernel: Kernel
    halves: tuple[str, ...]

    def emit(self, target: Target) -> str:
        """Emit the kernel with addresses of halves."""
        with halves_of_operands(self.halves):
            return self.kernel.emit(target)

    def packing_cycles(self, target: Target) -> float:
        """Those of the kernel: memory that is half as much hides the conversion."""
        return self.kernel.packing_cycles(target)

    @property
    def constant_bytes(self) -> Mapping[str, int]:
        """Bytes of the kernel's constants, half as many where they are halves."""
        halves = dict(zip(self.operands, self.halves, strict=True))
        return {
            name: size // 2 if halves[name] else size
            for name, size in self.kernel.constant_bytes.items()
        }

    @property
    def packing(self) -> Hashable:
        """The kernel's packing, and the precision of each operand."""
        return self.kernel.packing, self.halves


def half_stored(kernel: Kernel, halves: tuple[str, ...]) -> Kernel:
    """A kernel with halves as operands; itself where none is."""
    if isinstance(kernel, HalfStored):
        pairs = zip(kernel.halves, halves, strict=True)
        return HalfStored(kernel.kernel, tuple(own or other for own, other in pairs))
    return HalfStored(kernel, halves) if any(halves) else kernel


def halved_calls(calls: Sequence[PackCall], half: str) -> list[PackCall]:
    """Calls that pack float32 weights as halves."""
    return [
        replace(
            call,
            kernel=half_stored(call.kernel, (*[""] * (len(call.kernel.operands) - 1), half)),
            bytes=call.bytes // 2,
        )
        for call in calls
    ]


def calls_on_halves(
    calls: Sequence[PackCall], given: np.ndarray, w: np.ndarray, half: str
) -> list[PackCall]:
    """Calls made for an array of float32, which read one of halves in its place.

    Args:
        calls: which read views of `given` alone.
        given: an array of float32, of any content.
        w: of the same shape, row-major both.
        half: its type.
    """
    return [
        replace(
            call.reading(given, lambda: w, 0.5),
            kernel=half_stored(call.kernel, (half, *[""] * (len(call.kernel.operands) - 1))),
        )
        for call in calls
    ]
