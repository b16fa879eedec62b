"""Operands of recurrent kernels, and their states: where they lie, begin and end.

States lie in the scratch, or in memory of all threads, in rows padded to whole vectors. `h` and
`next` change places with each step: the product reads those of the step before, and the gates write
others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.kernel import Kernel
from leanconv.graph.ops.recurrent import GATES, Cell
from leanconv.records import dataclass
from leanconv.spec.format import aligned, ceil_div
from leanconv.symbolic import Count, Extent
from leanconv.types import INT32, DType


@dataclass(frozen=True)
class RecurrentLayers(Kernel):
    """Recurrent layers of one or two directions over sequences.

    Attributes:
        dtype: of all but R where it is codes, and the lengths, which are int32.
        lanes: elements of a vector.
        cells: what each direction computes.
        hidden: units.
        steps, batch: of the sequences, and how many there are.
        group: sequences of a chunk.
        rows: most rows of a register tile.
        given: the optional operands that there are, of `OPTIONAL`.
        results: of Y, Y_h and Y_c.
        codes: the type of R, if that is no float.
    """

    VARIES = True
    OPTIONAL = ("h0", "c0", "peepholes", "bias", "lengths", "scales", "zeros")

    dtype: DType
    lanes: int
    cells: tuple[Cell, ...]
    hidden: int
    steps: Extent
    batch: Extent
    group: Count
    rows: int
    given: tuple[str, ...]
    results: tuple[str, ...]
    codes: DType | None

    @property
    def others(self) -> dict[str, str]:
        """Operands whose elements are not of `dtype`: LLVM's types."""
        return {"lengths": INT32.llvm, "r": (self.codes or self.dtype).llvm}

    @property
    def operands(self) -> tuple[str, ...]:
        return ("x", "r", *self.given, *self.results)

    @property
    def result_count(self) -> int:
        return len(self.results)

    @property
    def gates(self) -> int:
        """Rows of weights for each hidden unit."""
        return GATES[self.cells[0].kind]

    @property
    def panels(self) -> int:
        """Vectors of hidden units."""
        return ceil_div(self.hidden, self.lanes)

    @property
    def width(self) -> int:
        """Elements of a row of states."""
        return self.panels * self.lanes

    @property
    def panel_elements(self) -> int:
        """Elements of a panel of R."""
        return self.hidden * self.gates * self.lanes

    @property
    def groups(self) -> int:
        """Groups of sequences."""
        return ceil_div(self.batch, self.group)

    @property
    def grid(self) -> tuple[int, ...]:
        return len(self.cells), self.groups

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the states of each sequence in the scratch."""
        kind = self.cells[0].kind
        return ("h", "next", *{"LSTM": ("c",), "GRU": ("z", "reset"), "RNN": ()}[kind])

    @property
    def state_bytes(self) -> int:
        """Bytes of one state of a group of sequences."""
        return aligned(self.group * (self.width * self.dtype.bytes))

    @property
    def parts(self) -> tuple[tuple[int, ...], ...]:
        """Gates whose weights lie side by side in a panel: a register tile has one part."""
        cell = self.cells[0]
        if cell.kind == "LSTM":
            return (0, 1), (2, 3)
        if cell.kind == "RNN":
            return ((0,),)
        return ((0, 1, 2),) if cell.linear_before_reset else ((0, 1), (2,))

    @property
    def sums_bytes(self) -> int:
        """Bytes of a group's sums of the gates of some panels, which lie first in the scratch."""
        return aligned(self.group * (max(2, self.gates) * self.lanes * self.dtype.bytes))

    @property
    def scratch_bytes(self) -> int:
        return self.sums_bytes + len(self.states) * self.state_bytes

    @property
    def flops(self) -> int:
        directions = len(self.cells)
        return 2 * self.steps * self.batch * directions * self.gates * self.hidden * self.hidden


class Times(NamedTuple):
    """The step of its sequence that a row computes.

    Attributes:
        time: the number of the step.
        alive: whether the sequence has this step; None if all have.
    """

    time: Value
    alive: Value | None


class Chunk:
    """Some sequences in one direction, while their kernel is written.

    Args:
        e: the function under construction.
        kernel: the kernel under construction.
        at: the operands, by name.
        direction, group: which chunk.
        states: where they lie, if not in the scratch.
    """

    def __init__(
        self,
        e: Function,
        kernel: RecurrentLayers,
        at: Mapping[str, Pointer],
        direction: Value,
        group: Value,
        states: Pointer | None = None,
    ) -> None:
        self.e, self.k, self.at, self.direction = e, kernel, at, direction
        self.kind = vector(kernel.dtype.llvm, kernel.lanes)
        self.states = states or e.scratch.at(kernel.sums_bytes)
        self.sums = e.scratch.of(kernel.dtype.llvm)
        self.first = group * kernel.group
        self.count = e.smin(e.i64(kernel.batch) - self.first, kernel.group)

    def state(self, name: str, row: Value, panel: Value, t: Value | None = None) -> Pointer:
        """A vector of a state. `h` and `next` change places with each step, where that is given."""
        e, k = self.e, self.k
        place = e.i64(k.states.index(name))
        if t is not None:
            place = e.index(t & 1 if name == "h" else (t & 1) ^ 1)
        base = self.states.at(place * k.state_bytes).of(k.dtype.llvm)
        return base.at(row * k.width + panel * k.lanes)

    def _outer(self, name: str, row: Value) -> Pointer:
        """A row of a state among the operands: (directions, N, H)."""
        k = self.k
        number = self.direction * k.batch + self.first + row
        return self.at[name].at(number * k.hidden)

    def _panels(self) -> Iterator[tuple[Value, int]]:
        """Emit the body for each panel alone: its number and lanes."""
        k, e = self.k, self.e
        whole, left = divmod(k.hidden, k.lanes)
        if whole:
            with e.loop("panel", whole) as panel:
                yield panel, k.lanes
        if left:
            yield e.i64(whole), left

    def _copied(self, source: Callable[[Value], Pointer] | None, target: str) -> None:
        """Set a state of all rows: to what an operand holds, or to zero."""
        e, k = self.e, self.k
        with e.loop("row", self.count) as row:
            for panel, lanes in self._panels():
                value = e.zero(self.kind)
                if source:
                    value = e.load_first(source(row).at(panel * k.lanes), self.kind, lanes)
                e.store(value, self.state(target, row, panel))

    def begin(self) -> None:
        """Set the states to what the operands hold, or to zero."""
        k = self.k
        for name, state in (("h0", "h"), ("c0", "c")):
            if state in k.states:
                given = name in k.given
                self._copied(partial(self._outer, name) if given else None, state)

    def end(self) -> None:
        """Write the last states."""
        e, k = self.e, self.k
        for name, state in (("Y_h", "h"), ("Y_c", "c")):
            if name not in k.results:
                continue
            with e.loop("row", self.count) as row:
                for panel, lanes in self._panels():
                    t = e.i64(k.steps) if state == "h" else None
                    value = e.load(self.state(state, row, panel, t), self.kind)
                    e.store_first(value, self._outer(name, row).at(panel * k.lanes), lanes)

    def times(self, t: Value, row: Value, reverse: Value | bool) -> Times:
        """Return the time of a row in a step of a cell that may go backwards."""
        e, k = self.e, self.k
        if "lengths" not in k.given:
            return Times(self._either(reverse, k.steps - 1 - t, t), None)
        held = e.load(self.at["lengths"].at(self.first + row))
        length = e.smin(e.smax(e.index(e.convert("sext", held, "i64")), 0), e.i64(k.steps))
        alive = t.compare("slt", length)
        return Times(self._either(reverse, e.select(alive, length - 1 - t, t), t), alive)

    def _either(self, reverse: Value | bool, backwards: Value, forwards: Value) -> Value:
        if isinstance(reverse, bool):
            return backwards if reverse else forwards
        return self.e.select(reverse, backwards, forwards)

    def product(self, gate: int, row: Value, panel: Value, lanes: int, times: Times) -> Value:
        """A gate's part of the input's product."""
        return self.e.load_first(self.input(gate, row, panel, times), self.kind, lanes)

    def input(self, gate: int, row: Value, panel: Value, times: Times) -> Pointer:
        """Where a gate's part of the input's product lies."""
        k = self.k
        width = k.gates * k.hidden
        number = (times.time * k.batch + self.first + row) * len(k.cells) + self.direction
        return self.at["x"].at(number * width).at(gate * k.hidden).at(panel * k.lanes)
