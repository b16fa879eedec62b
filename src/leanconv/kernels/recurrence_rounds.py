"""The kernel of recurrent layers whose weights are too many for one core: a step is a round.

    for d < directions:
      round 0:      h, c = what the operands hold
      for t < T:    one round for each pass of the step, whose chunks are panels of hidden units
      last round:   Y_h, Y_c

All threads share each step, so that a core reads the same part of R in each: of a layer of 512
units, two cores have 2 MiB each in their L2, where a core that does a direction alone reads 4 MiB
again and again. Directions follow each other for the same reason. Between steps, threads wait for
each other (`Kernel.rounds`). States lie in an operand, which is written and read.
"""

from __future__ import annotations

from collections.abc import Iterator

from leanconv.codegen.emitter import Function, Value
from leanconv.kernels.recurrence_kernel import Steps, Tile, cells_of
from leanconv.kernels.recurrent_gates import Pass
from leanconv.kernels.recurrent_layers import RecurrentLayers
from leanconv.kernels.recurrent_states import Chunk
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.target import Target
from leanconv.types import INT32

_STATES = "states"


@dataclass(frozen=True)
class RecurrenceInRounds(RecurrentLayers):
    """All steps of the layers; `group` is the whole batch.

    Attributes:
        panels_of_chunk: a multiple of the panels of each register tile.
    """

    panels_of_chunk: int

    @property
    def operands(self) -> tuple[str, ...]:
        return (*super().operands, _STATES)

    @property
    def result_count(self) -> int:
        return len(self.results) + 1

    @property
    def wants_consecutive_chunks(self) -> bool:
        return True  # each thread has its part of the weights

    @property
    def passes(self) -> int:
        """Of a step."""
        cell = self.cells[0]
        return 2 if cell.kind == "GRU" and not cell.linear_before_reset else 1

    @property
    def rounds_of_direction(self) -> int:
        """The first sets the states, the last writes them."""
        return self.steps * self.passes + 2

    @property
    def rounds(self) -> int:
        return len(self.cells) * self.rounds_of_direction

    @property
    def parts(self) -> int:
        """Chunks of a round."""
        return ceil_div(self.panels, self.panels_of_chunk)

    @property
    def chunks(self) -> int:
        return self.rounds * self.parts

    @property
    def states_bytes(self) -> int:
        """Bytes of the operand that holds all states."""
        return len(self.states) * self.state_bytes

    @property
    def scratch_bytes(self) -> int:
        return 0

    def emit(self, target: Target) -> str:
        e, parts = Function(self.NAME), self.parts
        others = {"lengths": INT32.llvm, _STATES: "i8"}
        at = e.pointers(self.operands, self.dtype.llvm, **others)
        end = (e.hi + (parts - 1)) // parts
        with e.loop("round", end, start=e.lo // parts) as number:
            direction, place = e.split(number, len(self.cells), self.rounds_of_direction)
            chunk = Chunk(e, self, at, direction, e.i64(0), at[_STATES])
            first = e.smax(e.lo - number * parts, 0)
            last = e.smin(e.hi - number * parts, parts)
            begins, ends = first.compare("eq", 0), place.compare("eq", self.rounds_of_direction - 1)
            with e.when(place.compare("eq", 0) & begins):
                chunk.begin()
            with e.when(ends & begins):
                chunk.end()
            with e.when((place.compare("eq", 0) | ends) ^ 1):
                for cell, reverse in cells_of(chunk):
                    steps = _Rounds(chunk, cell, reverse, target)
                    for each, t in steps.passes_at(place - 1):
                        steps.round(each, t, first, last)
        return e.finish()


class _Rounds(Steps):
    """Emits the rounds of one cell."""

    k: RecurrenceInRounds

    def passes_at(self, number: Value) -> Iterator[tuple[Pass, Value]]:
        """Emit the body for each pass, where it is that of a round of a direction; its step."""
        passes = self.gates.passes()
        if len(passes) == 1:
            yield passes[0], number
            return
        for which, each in enumerate(passes):
            with self.e.when((number % len(passes)).compare("eq", which)):
                yield each, number // len(passes)

    def round(self, each: Pass, t: Value, first: Value, last: Value) -> None:
        """Chunks of a pass; every other step goes backwards, and begins with what is in L2."""
        e, k = self.e, self.k
        with e.loop("part", last - first) as number:
            odd = (t & 1).compare("ne", 0)
            part = e.select(odd, (last - 1) - number, first + number)
            for panel, count, lanes in self._parts(part):
                for row, rows in self.row_tiles():
                    times = self.times(t, row, rows)
                    at_once = self.panels_at_once(each, rows)
                    for begin in range(0, count, at_once):
                        panels = min(at_once, count - begin)
                        own = lanes if begin + panels == count else k.lanes
                        tile = Tile(row, rows, panel + begin, panels, own)
                        self.compute(tile, t, times, each)

    def _parts(self, part: Value) -> Iterator[tuple[Value, int, int]]:
        """Emit the body for a whole chunk, and for the last one if it is another.

        Yields:
            Its first panel, how many it has, and the last one's lanes.
        """
        e, k = self.e, self.k
        most, partial = k.panels_of_chunk, k.hidden % k.lanes
        left = k.panels % most or (most if partial else 0)
        whole = k.parts - bool(left)
        panel = part * most
        if not left:
            yield panel, most, k.lanes
            return
        if whole:
            with e.when(part.compare("slt", whole)):
                yield panel, most, k.lanes
        with e.when(part.compare("eq", whole)):
            yield panel, left, partial or k.lanes
