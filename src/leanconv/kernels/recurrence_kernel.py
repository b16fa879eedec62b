"""The kernel of recurrent layers: all steps of some sequences in one direction.

    for t < T:
      for tile of rows n, for panels p of hidden units:
        s[i][g] = x[t, n+i, g, p]                                                one vector each
        for k < H:  s[i][g] += broadcast(h[n+i, k]) * R[p, k, g]                 register tile
        c, h' = gates(s, c)                                                      in registers
      h, h' = h', h

Lanes run along hidden units. R is packed into panels (H, gates, lanes), read as one stream; as many
panels are taken at once as keep the multiply-add units busy for so few rows. A GRU whose product
reads r h has two such passes in a step. Where states lie is in `recurrent_states`.

The steps of a sequence depend on each other, so a chunk does all of them: chunks are directions and
groups of sequences. `recurrence` has the same steps as rounds that all threads share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

from leanconv.codegen import math
from leanconv.codegen.emitter import Function, Value
from leanconv.graph.ops.recurrent import Cell, Gate
from leanconv.kernels.recurrent_states import Chunk, RecurrentLayers, Times
from leanconv.records import dataclass, replace
from leanconv.target import Target
from leanconv.types import INT32


class Unit(NamedTuple):
    """A vector of hidden units of a row, in a step.

    Attributes:
        row: among those of the chunk.
        panel: which vector.
        lanes: of it that are hidden units.
        t: the step.
        times: of the row in the step.
    """

    row: Value
    panel: Value
    lanes: int
    t: Value
    times: Times


class Pass(NamedTuple):
    """A pass over the weights; a step has one or two.

    Attributes:
        gates: whose sums are made.
        source: the state that they are sums of.
        finish: stores what the sums of a unit become.
    """

    gates: Sequence[int]
    source: str
    finish: Callable[[Unit, Sequence[Value]], None]


class Gates:
    """Code of a cell's gates: from sums to activations and new states.

    Args:
        chunk: the sequences.
        cell: what each step computes.
    """

    def __init__(self, chunk: Chunk, cell: Cell) -> None:
        self.chunk, self.cell = chunk, cell
        self.e, self.k, self.at, self.kind = chunk.e, chunk.k, chunk.at, chunk.kind

    def passes(self) -> list[Pass]:
        """The passes of a step, one after the other."""
        cell = self.cell
        if cell.kind == "LSTM":
            return [Pass(range(4), "h", self._lstm)]
        if cell.kind == "RNN":
            return [Pass(range(1), "h", self._rnn)]
        if cell.linear_before_reset:
            return [Pass(range(3), "h", self._gru)]
        return [Pass(range(2), "h", self._gru_gates), Pass((2,), "reset", self._gru_new)]

    def _gate(self, number: int, x: Value) -> Value:
        """One of the cell's activation functions, of a clipped number."""
        e, cell = self.e, self.cell
        if cell.clip < float("inf"):
            x = math.at_most(e, math.at_least(e, x, -cell.clip), cell.clip)
        return activated(e, x, cell.gates[number])

    def _peephole(self, number: int, unit: Unit, x: Value, c: Value) -> Value:
        e, k = self.e, self.k
        if "peepholes" not in k.given:
            return x
        at = self.at["peepholes"].at((self.chunk.direction * 3 + number) * k.hidden)
        held = e.load_first(at.at(unit.panel * k.lanes), self.kind, unit.lanes)
        return e.fma(held, c, x)

    def _lstm(self, unit: Unit, sums: Sequence[Value]) -> None:
        e = self.e
        i, o, f, g = sums
        place = self.chunk.state("c", unit.row, unit.panel)
        before = e.load(place, self.kind)
        i = self._gate(0, self._peephole(0, unit, i, before))
        f = 1.0 - i if self.cell.coupled else self._gate(0, self._peephole(2, unit, f, before))
        c = e.fma(f, before, i * self._gate(1, g))
        o = self._gate(0, self._peephole(1, unit, o, c))
        h = o * activated(e, c, self.cell.gates[2])
        e.store(self._kept(unit, c, before), place)
        self._write(unit, h)

    def _rnn(self, unit: Unit, sums: Sequence[Value]) -> None:
        self._write(unit, self._gate(0, sums[0]))

    def _gru(self, unit: Unit, sums: Sequence[Value]) -> None:
        z, r = (self._gate(0, each) for each in sums[:2])
        x = self.chunk.product(2, unit.row, unit.panel, unit.lanes, unit.times)
        self._mix(unit, z, self._gate(1, self.e.fma(r, sums[2], x)))

    def _gru_gates(self, unit: Unit, sums: Sequence[Value]) -> None:
        e = self.e
        z, r = (self._gate(0, each) for each in sums)
        before = e.load(self.chunk.state("h", unit.row, unit.panel, unit.t), self.kind)
        e.store(z, self.chunk.state("z", unit.row, unit.panel))
        e.store(r * before, self.chunk.state("reset", unit.row, unit.panel))

    def _gru_new(self, unit: Unit, sums: Sequence[Value]) -> None:
        z = self.e.load(self.chunk.state("z", unit.row, unit.panel), self.kind)
        self._mix(unit, z, self._gate(1, sums[0]))

    def _mix(self, unit: Unit, z: Value, new: Value) -> None:
        e = self.e
        before = e.load(self.chunk.state("h", unit.row, unit.panel, unit.t), self.kind)
        self._write(unit, e.fma(z, before, (1.0 - z) * new))

    def _kept(self, unit: Unit, new: Value, before: Value) -> Value:
        """The new state, or that before it where the sequence has ended."""
        alive = unit.times.alive
        return new if alive is None else self.e.select(alive, new, before)

    def _write(self, unit: Unit, h: Value) -> None:
        e, k = self.e, self.k
        y = h
        if unit.times.alive is not None:
            before = e.load(self.chunk.state("h", unit.row, unit.panel, unit.t), self.kind)
            h, y = self._kept(unit, h, before), self._kept(unit, h, e.zero(self.kind))
        e.store(h, self.chunk.state("next", unit.row, unit.panel, unit.t))
        if "Y" in k.results:
            number = (unit.times.time * len(k.cells) + self.chunk.direction) * k.batch
            to = self.at["Y"].at((number + self.chunk.first + unit.row) * k.hidden)
            e.store_first(y, to.at(unit.panel * k.lanes), unit.lanes)


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


_UNROLL = 4  # steps of the sum over hidden units


@dataclass(frozen=True)
class Recurrence(RecurrentLayers):
    """Recurrent layers of which a chunk computes all steps of a group of sequences."""

    def emit(self, target: Target) -> str:
        e = Function(self.NAME)
        at = e.pointers(self.operands, self.dtype.llvm, lengths=INT32.llvm)
        with e.chunks(*self.grid) as (direction, group):
            chunk = Chunk(e, self, at, direction, group)
            chunk.begin()
            for cell, reverse in cells_of(chunk):
                steps = Steps(chunk, cell, reverse, target)
                with e.loop("t", self.steps) as t:
                    steps.step(t)
            chunk.end()
        return e.finish()


def cells_of(chunk: Chunk) -> Iterator[tuple[Cell, Value | bool]]:
    """Emit the body for the chunk's cell, once where both directions compute alike.

    Yields:
        The cell, and whether it goes from the last step to the first.
    """
    first, last = chunk.k.cells[0], chunk.k.cells[-1]
    if first is last:
        yield first, first.reverse
        return
    backwards = chunk.direction.compare("eq", 1)
    if replace(first, reverse=True) == last:
        yield first, backwards
        return
    with chunk.e.when(backwards ^ 1):
        yield first, first.reverse
    with chunk.e.when(backwards):
        yield last, last.reverse


class Tile(NamedTuple):
    """Rows and panels that are computed together.

    Attributes:
        row: the first row, among those of the chunk.
        rows: how many.
        panel: the first panel.
        panels: how many.
        lanes: hidden units in the last panel.
    """

    row: Value
    rows: int
    panel: Value
    panels: int
    lanes: int


class Steps:
    """Emits the steps of one cell.

    Args:
        chunk: the sequences.
        cell: what each step computes.
        reverse: whether from the last step to the first.
        target: the machine.
    """

    def __init__(self, chunk: Chunk, cell: Cell, reverse: Value | bool, target: Target) -> None:
        self.chunk, self.cell, self.reverse, self.target = chunk, cell, reverse, target
        self.e, self.k, self.kind = chunk.e, chunk.k, chunk.kind
        self.gates = Gates(chunk, cell)

    def step(self, t: Value) -> None:
        """All rows and hidden units of a step."""
        for each in self.gates.passes():
            for row, rows in self.row_tiles():
                times = self.times(t, row, rows)
                for tile in self._tiles(t, row, rows, self.panels_at_once(each, rows)):
                    self.compute(tile, t, times, each)

    def times(self, t: Value, row: Value, rows: int) -> list[Times]:
        """Return the times of rows in a step."""
        return [self.chunk.times(t, row + i, self.reverse) for i in range(rows)]

    def panels_at_once(self, each: Pass, rows: int) -> int:
        """Panels of a register tile of a pass, of so many rows."""
        most = self._vectors(rows) // (len(each.gates) * rows)
        return min(max(1, most), self.k.panels)

    def compute(self, tile: Tile, t: Value, times: Sequence[Times], each: Pass) -> None:
        """Compute the sums of a register tile, and from them the gates."""
        sums = self._sums(tile, t, times, each.gates, each.source)
        for i in range(tile.rows):
            for p in range(tile.panels):
                lanes = tile.lanes if p == tile.panels - 1 else self.k.lanes
                unit = Unit(tile.row + i, tile.panel + p, lanes, t, times[i])
                each.finish(unit, [sums[g, i, p] for g in range(len(each.gates))])

    def _vectors(self, rows: int) -> int:
        """Sums that are in registers at once: enough for the latency of a multiply-add."""
        target = self.target
        wanted = int(target.fma_units * target.fma_latency)
        return min(wanted if rows == 1 else 2 * wanted, target.usable_registers - rows - 1)

    def row_tiles(self) -> Iterator[tuple[Value, int]]:
        """Emit the body for tiles of rows: whole ones, then halves of halves."""
        e, k = self.e, self.k
        if isinstance(k.batch, int) and k.batch == 1:
            yield e.i64(0), 1
            return
        rows = k.rows
        whole = self.chunk.count // rows
        with e.when(whole.compare("ne", 0)), e.loop("tile", whole) as tile:
            yield tile * rows, rows
        while rows > 1:
            rows //= 2
            with e.when((self.chunk.count & rows).compare("ne", 0)):
                yield self.chunk.count & -(2 * rows), rows

    def _tiles(self, t: Value, row: Value, rows: int, panels: int) -> Iterator[Tile]:
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
                yield Tile(row, rows, group * panels, panels, k.lanes)
        left = k.panels - groups * panels
        if left:
            yield Tile(row, rows, e.i64(groups * panels), left, partial or k.lanes)

    def _sums(
        self, tile: Tile, t: Value, times: Sequence[Times], gates: Sequence[int], source: str
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
            self.chunk.state(source, tile.row + i, e.i64(0), t if source == "h" else None)
            for i in range(tile.rows)
        ]
        weights = self.chunk.at["r"].at(self.chunk.direction * (k.panels * k.panel_elements))
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

    def _start(self, gate: int, row: Value, panel: Value, lanes: int, times: Times) -> Value:
        """Return a sum's first value: the input's product, or the bias of a GRU's last product."""
        e, k = self.e, self.k
        if self.cell.linear_before_reset and self.cell.kind == "GRU" and gate == 2:
            if "bias" not in k.given:
                return e.zero(self.kind)
            at = self.chunk.at["bias"].at(self.chunk.direction * k.hidden)
            return e.load_first(at.at(panel * k.lanes), self.kind, lanes)
        return self.chunk.product(gate, row, panel, lanes, times)
