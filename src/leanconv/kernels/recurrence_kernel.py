"""The kernel of recurrent layers: all steps of some sequences in one direction.

    for t < T:
      for tile of rows n, for panels p of hidden units:
        s[i][g] = x[t, n+i, g, p]                                                one vector each
        for k < H:  s[i][g] += broadcast(h[n+i, k]) * R[p, k, g]                 register tile
        c, h' = gates(s, c)                                                      in registers
      h, h' = h', h

Lanes run along hidden units. R is packed into panels (H, gates, lanes), read as one stream; as many
panels are taken at once as keep the multiply-add units busy for so few rows. States lie in the
scratch, rows padded to whole vectors: the product reads those of the step before, and the gates
write others. A GRU whose product reads r h has two such passes in a step.

The steps of a sequence depend on each other, so a chunk does all of them: chunks are directions and
groups of sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import NamedTuple

from leanconv.codegen import math
from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.extents import Count, Extent
from leanconv.codegen.kernel import Kernel
from leanconv.graph.ops.recurrent import GATES, Cell, Gate
from leanconv.records import dataclass
from leanconv.spec.format import aligned, ceil_div
from leanconv.target import Target
from leanconv.types import INT32, DType

_UNROLL = 4  # steps of the sum over hidden units


@dataclass(frozen=True)
class Recurrence(Kernel):
    """Recurrent layers of one or two directions over sequences.

    Attributes:
        dtype: of all but the lengths, which are int32.
        lanes: elements of a vector.
        cells: what each direction computes.
        hidden: units.
        steps, batch: of the sequences, and how many there are.
        group: sequences of a chunk.
        rows: most rows of a register tile, a power of two.
        given: the optional operands that there are, of `OPTIONAL`.
        results: of Y, Y_h and Y_c.
    """

    VARIES = True
    OPTIONAL = ("h0", "c0", "peepholes", "bias", "lengths")

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
    def chunks(self) -> int:
        return len(self.cells) * self.groups

    @property
    def states(self) -> tuple[str, ...]:
        """What the scratch holds of each sequence."""
        kind = self.cells[0].kind
        return ("h", "next", *{"LSTM": ("c",), "GRU": ("z", "reset"), "RNN": ()}[kind])

    @property
    def state_bytes(self) -> int:
        """Bytes of one of them."""
        return aligned(self.group * (self.width * self.dtype.bytes))

    @property
    def scratch_bytes(self) -> int:
        return len(self.states) * self.state_bytes

    @property
    def flops(self) -> int:
        directions = len(self.cells)
        return 2 * self.steps * self.batch * directions * self.gates * self.hidden * self.hidden

    def emit(self, target: Target) -> str:
        return _Emission(self, target).emit()


class _Tile(NamedTuple):
    """Rows and panels that are computed together.

    Attributes:
        row: the first row, among those of the chunk.
        rows: how many.
        panel: the first panel.
        panels: how many.
        lanes: of the last panel's, those that are hidden units.
    """

    row: Value
    rows: int
    panel: Value
    panels: int
    lanes: int


class _Times(NamedTuple):
    """Where a row stands in a step.

    Attributes:
        time: the step of its sequence that is computed.
        alive: whether there is one; None if there is in any case.
    """

    time: Value
    alive: Value | None


class _Emission:
    """Emits one kernel."""

    def __init__(self, kernel: Recurrence, target: Target) -> None:
        self.k, self.target, self.e = kernel, target, Function(kernel.NAME)
        self.kind = vector(kernel.dtype.llvm, kernel.lanes)

    def emit(self) -> str:
        """The whole kernel."""
        e, k = self.e, self.k
        self.at = e.pointers(k.operands, k.dtype.llvm, lengths=INT32.llvm)
        with e.chunks(len(k.cells), k.groups) as (direction, group):
            self.direction = direction
            self.first = group * k.group
            self.count = e.smin(e.i64(k.batch) - self.first, k.group)
            self._begin()
            for cell, reverse in self._cells():
                self.cell, self.reverse = cell, reverse
                with e.loop("t", k.steps) as t:
                    self._step(t)
            self._end()
        return e.finish()

    def _cells(self) -> Iterator[tuple[Cell, Value | bool]]:
        """Emit the body for the chunk's cell, once where both directions compute alike.

        Yields:
            The cell, and whether it goes from the last step to the first.
        """
        first, last = self.k.cells[0], self.k.cells[-1]
        if first is last:
            yield first, first.reverse
            return
        backwards = self.direction.compare("eq", 1)
        if replace(first, reverse=True) == last:
            yield first, backwards
            return
        with self.e.when(backwards ^ 1):
            yield first, first.reverse
        with self.e.when(backwards):
            yield last, last.reverse

    # -- states --------------------------------------------------------------------------------
    def _state(self, name: str, row: Value, panel: Value, t: Value | None = None) -> Pointer:
        """A vector of a state. `h` and `next` change places with each step, where that is given."""
        e, k = self.e, self.k
        place = e.i64(k.states.index(name))
        if t is not None:
            place = e.index(t & 1 if name == "h" else (t & 1) ^ 1)
        base = e.scratch.at(place * k.state_bytes).of(k.dtype.llvm)
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
                e.store(value, self._state(target, row, panel))

    def _begin(self) -> None:
        k = self.k
        for name, state in (("h0", "h"), ("c0", "c")):
            if state in k.states:
                given = name in k.given
                self._copied(partial(self._outer, name) if given else None, state)

    def _end(self) -> None:
        e, k = self.e, self.k
        for name, state in (("Y_h", "h"), ("Y_c", "c")):
            if name not in k.results:
                continue
            with e.loop("row", self.count) as row:
                for panel, lanes in self._panels():
                    t = e.i64(k.steps) if state == "h" else None
                    value = e.load(self._state(state, row, panel, t), self.kind)
                    e.store_first(value, self._outer(name, row).at(panel * k.lanes), lanes)

    # -- steps ---------------------------------------------------------------------------------
    def _step(self, t: Value) -> None:
        """All rows and hidden units of a step."""
        cell, k = self.cell, self.k
        passes: list[tuple[Sequence[int], str, Callable[..., None]]]
        if cell.kind == "LSTM":
            passes = [(range(4), "h", self._lstm)]
        elif cell.kind == "RNN":
            passes = [(range(1), "h", self._rnn)]
        elif cell.linear_before_reset:
            passes = [(range(3), "h", self._gru)]
        else:
            passes = [(range(2), "h", self._gru_gates), ((2,), "reset", self._gru_new)]
        for gates, source, finish in passes:
            for row, rows in self._row_tiles():
                times = [self._times(t, row + i) for i in range(rows)]
                most = max(1, self._vectors(rows) // (len(gates) * rows))
                for tile in self._tiles(t, row, rows, min(most, k.panels)):
                    sums = self._sums(tile, t, times, gates, source)
                    for i in range(rows):
                        for p in range(tile.panels):
                            lanes = tile.lanes if p == tile.panels - 1 else k.lanes
                            unit = _Unit(row + i, tile.panel + p, lanes, t, times[i])
                            finish(unit, [sums[g, i, p] for g in range(len(gates))])

    def _vectors(self, rows: int) -> int:
        """Sums that are in registers at once: enough for the latency of a multiply-add."""
        target = self.target
        wanted = int(target.fma_units * target.fma_latency)
        return min(wanted if rows == 1 else 2 * wanted, target.usable_registers - rows - 1)

    def _row_tiles(self) -> Iterator[tuple[Value, int]]:
        """Emit the body for tiles of rows: whole ones, then halves of halves."""
        e, k = self.e, self.k
        if isinstance(k.batch, int) and k.batch == 1:
            yield e.i64(0), 1
            return
        rows = k.rows
        whole = self.count // rows
        with e.when(whole.compare("ne", 0)), e.loop("tile", whole) as tile:
            yield tile * rows, rows
        while rows > 1:
            rows //= 2
            with e.when((self.count & rows).compare("ne", 0)):
                yield self.count & -(2 * rows), rows

    def _tiles(self, t: Value, row: Value, rows: int, panels: int) -> Iterator[_Tile]:
        """Emit the body for groups of panels; the last one may be narrower.

        Every other step goes through them backwards, and begins with those that are still in L2
        where all weights are too many for it: 4 MiB took 152 us in each step, and take 106.
        """
        e, k = self.e, self.k
        partial = k.hidden % k.lanes
        groups = k.panels // panels - (1 if partial and k.panels % panels == 0 else 0)
        if groups:
            with e.loop("panels", groups) as number:
                odd = (t & 1).compare("ne", 0)
                group = e.select(odd, (groups - 1) - number, number)
                yield _Tile(row, rows, group * panels, panels, k.lanes)
        left = k.panels - groups * panels
        if left:
            yield _Tile(row, rows, e.i64(groups * panels), left, partial or k.lanes)

    def _times(self, t: Value, row: Value) -> _Times:
        """Where a row stands."""
        e, k = self.e, self.k
        if "lengths" not in k.given:
            return _Times(self._either(k.steps - 1 - t, t), None)
        held = e.load(self.at["lengths"].at(self.first + row))
        length = e.smin(e.smax(e.index(e.convert("sext", held, "i64")), 0), e.i64(k.steps))
        alive = t.compare("slt", length)
        return _Times(self._either(e.select(alive, length - 1 - t, t), t), alive)

    def _either(self, backwards: Value, forwards: Value) -> Value:
        """A number for the chunk's direction."""
        if isinstance(self.reverse, bool):
            return backwards if self.reverse else forwards
        return self.e.select(self.reverse, backwards, forwards)

    def _input(self, row: Value, time: Value) -> Pointer:
        """A row of the input's product, of the chunk's direction."""
        k = self.k
        width = k.gates * k.hidden
        number = (time * k.batch + self.first + row) * len(k.cells) + self.direction
        return self.at["x"].at(number * width)

    def _sums(
        self, tile: _Tile, t: Value, times: Sequence[_Times], gates: Sequence[int], source: str
    ) -> dict[tuple[int, int, int], Value]:
        """The sums of a register tile, by gate, row and panel."""
        e, k = self.e, self.k
        extents = tile.panels, len(gates), tile.rows
        keys = [(g, i, p) for p, g, i in product(*map(range, extents))]
        acc = []
        for g, i, p in keys:
            lanes = tile.lanes if p == tile.panels - 1 else k.lanes
            acc.append(self._start(gates[g], tile.row + i, tile.panel + p, lanes, times[i]))
        states = [
            self._state(source, tile.row + i, e.i64(0), t if source == "h" else None)
            for i in range(tile.rows)
        ]
        weights = self.at["r"].at(self.direction * (k.panels * k.panel_elements))
        panels = [weights.at((tile.panel + p) * k.panel_elements) for p in range(tile.panels)]
        step = k.gates * k.lanes

        def one(at: Value | int) -> None:
            broadcasts = [e.broadcast(state.at(at), self.kind) for state in states]
            slot = 0
            for p in range(tile.panels):
                for gate in gates:
                    w = e.load(panels[p].at(at * step).at(gate * k.lanes), self.kind)
                    for i in range(tile.rows):
                        acc[slot] = e.fma(broadcasts[i], w, acc[slot])
                        slot += 1

        unroll = _UNROLL if k.hidden >= _UNROLL else 1
        whole = k.hidden // unroll
        with e.loop("k", whole, [acc]) as index:
            for u in range(unroll):
                one(index * unroll + u)
        for rest in range(whole * unroll, k.hidden):
            one(e.i64(rest))
        return dict(zip(keys, acc, strict=True))

    def _start(self, gate: int, row: Value, panel: Value, lanes: int, times: _Times) -> Value:
        """What a sum begins with: the input's product, or the bias of a GRU's last product."""
        e, k = self.e, self.k
        if self.cell.linear_before_reset and self.cell.kind == "GRU" and gate == 2:
            if "bias" not in k.given:
                return e.zero(self.kind)
            at = self.at["bias"].at(self.direction * k.hidden)
            return e.load_first(at.at(panel * k.lanes), self.kind, lanes)
        return self._product(gate, row, panel, lanes, times)

    def _product(self, gate: int, row: Value, panel: Value, lanes: int, times: _Times) -> Value:
        """A gate's part of the input's product."""
        e, k = self.e, self.k
        at = self._input(row, times.time).at(gate * k.hidden).at(panel * k.lanes)
        return e.load_first(at, self.kind, lanes)

    # -- gates ---------------------------------------------------------------------------------
    def _gate(self, number: int, x: Value) -> Value:
        """One of the cell's activation functions, of what is clipped."""
        e, cell = self.e, self.cell
        if cell.clip < float("inf"):
            x = math.at_most(e, math.at_least(e, x, -cell.clip), cell.clip)
        return activated(e, x, cell.gates[number])

    def _peephole(self, number: int, unit: _Unit, x: Value, c: Value) -> Value:
        e, k = self.e, self.k
        if "peepholes" not in k.given:
            return x
        at = self.at["peepholes"].at((self.direction * 3 + number) * k.hidden)
        held = e.load_first(at.at(unit.panel * k.lanes), self.kind, unit.lanes)
        return e.fma(held, c, x)

    def _lstm(self, unit: _Unit, sums: Sequence[Value]) -> None:
        e = self.e
        i, o, f, g = sums
        place = self._state("c", unit.row, unit.panel)
        before = e.load(place, self.kind)
        i = self._gate(0, self._peephole(0, unit, i, before))
        f = 1.0 - i if self.cell.coupled else self._gate(0, self._peephole(2, unit, f, before))
        c = e.fma(f, before, i * self._gate(1, g))
        o = self._gate(0, self._peephole(1, unit, o, c))
        h = o * activated(e, c, self.cell.gates[2])
        e.store(self._kept(unit, c, before), place)
        self._write(unit, h)

    def _rnn(self, unit: _Unit, sums: Sequence[Value]) -> None:
        self._write(unit, self._gate(0, sums[0]))

    def _gru(self, unit: _Unit, sums: Sequence[Value]) -> None:
        z, r = (self._gate(0, each) for each in sums[:2])
        x = self._product(2, unit.row, unit.panel, unit.lanes, unit.times)
        self._mix(unit, z, self._gate(1, self.e.fma(r, sums[2], x)))

    def _gru_gates(self, unit: _Unit, sums: Sequence[Value]) -> None:
        e = self.e
        z, r = (self._gate(0, each) for each in sums)
        before = e.load(self._state("h", unit.row, unit.panel, unit.t), self.kind)
        e.store(z, self._state("z", unit.row, unit.panel))
        e.store(r * before, self._state("reset", unit.row, unit.panel))

    def _gru_new(self, unit: _Unit, sums: Sequence[Value]) -> None:
        z = self.e.load(self._state("z", unit.row, unit.panel), self.kind)
        self._mix(unit, z, self._gate(1, sums[0]))

    def _mix(self, unit: _Unit, z: Value, new: Value) -> None:
        """(1 - z) new + z h."""
        e = self.e
        before = e.load(self._state("h", unit.row, unit.panel, unit.t), self.kind)
        self._write(unit, e.fma(z, before, (1.0 - z) * new))

    def _kept(self, unit: _Unit, new: Value, before: Value) -> Value:
        """The new state, or that before it where the sequence has ended."""
        alive = unit.times.alive
        return new if alive is None else self.e.select(alive, new, before)

    def _write(self, unit: _Unit, h: Value) -> None:
        """The next state, and the result."""
        e, k = self.e, self.k
        y = h
        if unit.times.alive is not None:
            before = e.load(self._state("h", unit.row, unit.panel, unit.t), self.kind)
            h, y = self._kept(unit, h, before), self._kept(unit, h, e.zero(self.kind))
        e.store(h, self._state("next", unit.row, unit.panel, unit.t))
        if "Y" in k.results:
            number = (unit.times.time * len(k.cells) + self.direction) * k.batch
            to = self.at["Y"].at((number + self.first + unit.row) * k.hidden)
            e.store_first(y, to.at(unit.panel * k.lanes), unit.lanes)


class _Unit(NamedTuple):
    """A vector of hidden units of a row, in a step.

    Attributes:
        row: among those of the chunk.
        panel: which vector.
        lanes: of it that are hidden units.
        t: the step.
        times: where the row stands.
    """

    row: Value
    panel: Value
    lanes: int
    t: Value
    times: _Times


def activated(e: Function, x: Value, gate: Gate) -> Value:
    """An activation function of a cell, of every lane."""
    name, alpha, beta = gate.name, gate.alpha, gate.beta
    if name == "Sigmoid":
        return math.sigmoid(e, x)
    if name == "Tanh":
        return math.tanh(e, x)
    if name == "Relu":
        return math.at_least(e, x, 0.0)
    if name == "Softplus":
        return math.softplus(e, x)
    if name == "Softsign":
        return x / (e.unary("fabs", x) + 1.0)
    if name == "ScaledTanh":
        return math.tanh(e, x * beta) * alpha
    if name == "ThresholdedRelu":
        return e.select(x.compare("ogt", alpha), x, e.zero(x.kind))
    if name == "LeakyRelu":
        return e.select(x.compare("olt", 0.0), x * alpha, x)
    if name == "Elu":
        return e.select(x.compare("olt", 0.0), math.expm1(e, x) * alpha, x)
    affine = e.fma(x, e.const(x.kind, alpha), e.const(x.kind, beta))
    if name == "Affine":
        return affine
    assert name == "HardSigmoid", f"no code for {name}"
    return math.at_most(e, math.at_least(e, affine, 0.0), 1.0)
