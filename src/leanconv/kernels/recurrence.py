"""LSTM, GRU and RNN behind their input's product: one kernel, and R in panels.

A panel holds, for a vector of hidden units, the weights of all gates in the order in which a step
reads them. Constants are packed before the first run, others by a kernel in each.

Layers whose weights are too many for one core have a kernel of rounds:

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
from dataclasses import fields
from functools import partial

import numpy as np

from leanconv.codegen.emitter import Function, Value
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.lowered import Call, Lowered, PackCall, Packing
from leanconv.graph.ops.recurrent import Cell
from leanconv.kernels import KernelContext
from leanconv.kernels.recurrence_kernel import (
    LEAST_ROWS,
    VECTORS,
    Place,
    Recurrence,
    Steps,
    cells_of,
    fits,
)
from leanconv.kernels.recurrent_gates import Pass
from leanconv.kernels.recurrent_states import Chunk, RecurrentLayers
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.target import Target
from leanconv.types import DType

_STATES = "states"


@dataclass(frozen=True)
class RecurrenceInRounds(RecurrentLayers):
    """All steps of the layers; `group` is the whole batch.

    Attributes:
        panels_of_chunk: a multiple of the panels of each register tile.
    """

    wants_consecutive_chunks = True

    panels_of_chunk: int

    @property
    def operands(self) -> tuple[str, ...]:
        return (*super().operands, _STATES)

    @property
    def result_count(self) -> int:
        return len(self.results) + 1

    @property
    def passes(self) -> int:
        """Passes over the weights in a step."""
        cell = self.cells[0]
        return 2 if cell.kind == "GRU" and not cell.linear_before_reset else 1

    @property
    def rounds_of_direction(self) -> int:
        """Rounds of a direction: the first sets the states, the last writes them."""
        return self.steps * self.passes + 2

    @property
    def rounds(self) -> int:
        return len(self.cells) * self.rounds_of_direction

    @property
    def chunks_of_round(self) -> int:
        """Chunks of a round."""
        return ceil_div(self.panels, self.panels_of_chunk)

    @property
    def chunks(self) -> int:
        return self.rounds * self.chunks_of_round

    @property
    def states_bytes(self) -> int:
        """Bytes of the operand that holds all states."""
        return len(self.states) * self.state_bytes

    @property
    def scratch_bytes(self) -> int:
        return self.sums_bytes

    def emit(self, target: Target) -> str:
        e, parts = Function(self.NAME), self.chunks_of_round
        at = e.pointers(self.operands, self.dtype.llvm, **self.others, **{_STATES: "i8"})
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
        e = self.e
        with e.loop("part", last - first) as number:
            odd = (t & 1).compare("ne", 0)
            part = e.select(odd, (last - 1) - number, first + number)
            for place in self._parts(part):
                self.compute(each, t, partial(self._within, place))

    def _within(self, place: Place, at_once: int) -> Iterator[Place]:
        """Emit the body for so many panels of a chunk at a time."""
        for begin in range(0, place.panels, at_once):
            panels = min(at_once, place.panels - begin)
            lanes = place.lanes if begin + panels == place.panels else self.k.lanes
            yield Place(place.panel + begin, panels, lanes)

    def _parts(self, part: Value) -> Iterator[Place]:
        """Emit the body for each chunk: its panels."""
        e, k = self.e, self.k
        most, odd = k.panels_of_chunk, k.hidden % k.lanes
        left = k.panels % most or (most if odd else 0)
        whole = k.chunks_of_round - bool(left)
        panel = part * most
        if not left:
            yield Place(panel, most, k.lanes)
            return
        if whole:
            with e.when(part.compare("slt", whole)):
                yield Place(panel, most, k.lanes)
        with e.when(part.compare("eq", whole)):
            yield Place(panel, left, odd or k.lanes)


_GROUP = 48  # most sequences of a chunk: whole tiles of 4, 6 and 8 rows
# Of layers whose threads share each step: most steps, least weights where there is one direction,
# least FLOPs of a step, panels of a chunk; and chunks that suffice for threads without that.
_MOST_STEPS, _SHARED_BYTES, _SHARED_FLOPS, _PANELS = 512, 512 * 1024, 4 << 20, 2
_MANY_CHUNKS = 8


@dataclass(frozen=True)
class PackedPanels(Kernel):
    """R (directions, gates * H, H) as (directions, panels, parts, H, gates, lanes), with zeros.

    Attributes:
        dtype: of the weights, floats or codes.
        lanes: elements of a vector.
        directions, hidden: of the layer.
        parts: gates whose weights lie side by side.
    """

    operands = ("r", "panels")

    dtype: DType
    lanes: int
    directions: int
    hidden: int
    parts: tuple[tuple[int, ...], ...]

    @property
    def gates(self) -> int:
        """Rows of weights for each hidden unit."""
        return sum(map(len, self.parts))

    @property
    def panels(self) -> int:
        """Panels of one direction."""
        return ceil_div(self.hidden, self.lanes)

    @property
    def grid(self) -> tuple[int, ...]:
        return self.directions, self.panels

    @property
    def elements(self) -> int:
        """Elements of all panels."""
        return self.chunks * self.hidden * self.gates * self.lanes

    def emit(self, target: Target) -> str:
        del target
        e, hidden, lanes = Function(self.NAME), self.hidden, self.lanes
        source, made = (e.pointer(index, self.dtype.llvm) for index in range(2))
        with e.chunks(*self.grid) as (direction, panel):
            to = made.at((direction * self.panels + panel) * (hidden * self.gates * lanes))
            live = e.smin(e.i64(hidden) - panel * lanes, lanes)
            for part in self.parts:
                first, size = part[0], len(part)
                with e.loop("gate", size) as gate:
                    row = (direction * self.gates + first + gate) * hidden + panel * lanes
                    with e.loop("lane", lanes) as lane, e.loop("k", hidden) as k:
                        value = [e.zero(self.dtype.llvm)]
                        with e.when(lane.compare("slt", live), [value]):
                            value[0] = e.load(source.at((row + lane) * hidden + k))
                        place = (k * size + gate + first * hidden) * lanes
                        e.store(value[0], to.at(place + lane))
        return e.finish()


def lower(context: KernelContext) -> Lowered:
    """One kernel, and one that packs R where it is no constant."""
    node, graph, target = context.node, context.graph, context.target
    x, r, *others = node.inputs
    steps, batch, _ = graph.types[x].shape
    directions, _, hidden = graph.types[r].shape
    cells, results = node.attributes["cells"], node.attributes["results"]
    dtype, held, key = graph.types[x].dtype, graph.types[r].dtype, node.key
    lanes = target.lanes(dtype)
    given = [(n, v) for n, v in zip(Recurrence.OPTIONAL, others, strict=False) if v]
    kernel = Recurrence(
        dtype,
        lanes,
        cells,
        hidden,
        steps,
        batch,
        ceil_div(batch, ceil_div(batch, _GROUP)),
        _rows(cells[0], target),
        tuple(name for name, _ in given),
        results,
        None if held.is_float else held,
    )
    panels = f"{key}.panels"
    values = [x, panels, *(value for _, value in given), *node.outputs]
    temporaries = {}
    call = Call(kernel, tuple(values))
    if _in_rounds(kernel, target):
        rounds, states = _made_of_rounds(kernel), f"{key}.states"
        temporaries[states] = rounds.states_bytes
        call = Call(rounds, (*values, states))
    packing, constants = (
        PackedPanels(held, lanes, directions, hidden, kernel.parts),
        graph.constants,
    )
    size = packing.elements * held.bytes
    if r in constants:
        weights = constants[r]

        def calls() -> dict[str, list[PackCall]]:
            return {panels: [PackCall(packing, lambda: np.ascontiguousarray(weights), tuple, size)]}

        packed = Packing(
            {panels: size}, calls, ("panels of gates", kernel.parts, lanes), (weights,)
        )
        return Lowered((call,), {}, temporaries, "recurrence", packings=(packed,))
    temporaries[panels] = size
    return Lowered((Call(packing, (r, panels)), call), {}, temporaries, "recurrence")


def _in_rounds(kernel: Recurrence, target: Target) -> bool:
    """True if threads share each step: few chunks, and a step of many products or weights.

    At the end of each step they wait for each other, about a microsecond.
    """
    directions = len(kernel.cells)
    if directions * kernel.groups >= _MANY_CHUNKS or kernel.steps > _MOST_STEPS:
        return False
    if 2 * kernel.batch * (kernel.gates * kernel.hidden**2) >= _SHARED_FLOPS:
        return True
    held = kernel.codes or kernel.dtype
    weights = kernel.panels * kernel.panel_elements * held.bytes
    kept = target.costs.l2_share * target.l2_bytes
    return weights > (kept if directions > 1 else min(kept, _SHARED_BYTES))


def _made_of_rounds(kernel: Recurrence) -> RecurrenceInRounds:
    """The same layers, a step a round."""
    given = {field.name: getattr(kernel, field.name) for field in fields(kernel)}
    return RecurrenceInRounds(**given | {"group": kernel.batch, "panels_of_chunk": _PANELS})


def _rows(cell: Cell, target: Target) -> int:
    """Most rows of a register tile."""
    vectors = 3 if cell.linear_before_reset else VECTORS
    return next(n for n in (12, 8, 6, LEAST_ROWS) if fits(n, vectors, target))
