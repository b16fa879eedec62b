"""The kernel of recurrent layers: all steps of some sequences in one direction.

    for t < T:
      for panels p of hidden units:
        for gates g that lie side by side, for tile of rows n:
          s[i][g] = 0                                                            one vector each
          for k < H:  s[i][g] += broadcast(h[n+i, k]) * R[p, k, g]                register tile
        for row:  c, h' = gates(x[t, row, p] + s[row], c)
      h, h' = h', h

Lanes run along hidden units. R is packed into panels (parts of the gates, H, gates of the part,
lanes), read as streams: all rows read a part, which stays in L1, before the next one. Sums of many
rows go through the scratch. Those of few rows stay in registers, as many panels as keep the
multiply-add units busy. A GRU whose product reads r h has two such passes in a step. Where states
lie is in `recurrent_states`.

The steps of a sequence depend on each other, so a chunk does all of them: chunks are directions and
groups of sequences. `recurrence` has the same steps as rounds that all threads share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

from leanconv.codegen import math
from leanconv.codegen.emitter import Function, Pointer, Value
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
VECTORS = 2  # of a register tile of many rows; 3 where a pass has as many gates, which share a row
LEAST_ROWS = 4  # of its tiles; of 8 and more rows sums go through memory
_MANY_ROWS = 8
_IN_L2 = 2


def fits(rows: int, vectors: int, target: Target) -> bool:
    """Return whether the sums of a tile stay in registers beside the fewer of its operands."""
    return rows * vectors + min(rows, vectors) + 1 <= target.usable_registers


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


class Place(NamedTuple):
    """Panels whose sums are made together.

    Attributes:
        panel: the first one.
        panels: how many.
        lanes: hidden units in the last one.
    """

    panel: Value
    panels: int
    lanes: int


class Tile(NamedTuple):
    """A register tile: sums of rows and of columns, which are vectors of a gate of a panel.

    Attributes:
        row: the first row, among those of the chunk.
        rows: how many.
        columns: a panel, counted from the first of the place, and a gate, for each.
    """

    row: Value
    rows: int
    columns: Sequence[tuple[int, int]]


Places = Callable[[int], Iterator[Place]]


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
            self.compute(each, t, lambda at_once: self._places(t, at_once))

    def compute(self, each: Pass, t: Value, places: Places) -> None:
        """Compute a pass for all rows; `places` emits its body for so many panels at a time."""
        e, k, count = self.e, self.k, self.chunk.count
        if isinstance(k.batch, int) and k.batch == 1:
            for place in places(self._panels_of_few(each, 1)):
                self._few_rows(each, t, place, e.i64(0), 1)
            return

        most = next(n for n in (4, 2) if fits(n, len(each.gates), self.target))

        def few() -> None:
            for rows in (n for n in (4, 2, 1) if n <= most):
                tiles = count // most if rows == most else (count & rows) // rows
                with e.when(tiles.compare("ne", 0)):
                    for place in places(self._panels_of_few(each, rows)):
                        with e.loop("tile", tiles) as tile:
                            first = e.i64(0) if rows == most else count & -(2 * rows)
                            self._few_rows(each, t, place, first + tile * rows, rows)

        with e.when(count.compare("sge", max(_MANY_ROWS, k.rows)), otherwise=few):
            for place in places(max(1, VECTORS // len(each.gates))):
                self._many_rows(each, t, place)

    def _panels_of_few(self, each: Pass, rows: int) -> int:
        """Panels of a tile of few rows: sums enough for the latency of a multiply-add."""
        target = self.target
        wanted = int(target.fma_units * target.fma_latency) * rows
        most = min(wanted, target.usable_registers - rows - 1) // (len(each.gates) * rows)
        return min(max(1, most), self.k.panels)

    def _few_rows(self, each: Pass, t: Value, place: Place, row: Value, rows: int) -> None:
        """All gates of few rows, from sums that stay in registers."""
        columns = list(product(range(place.panels), each.gates))
        acc = [self.e.zero(self.kind)] * (len(columns) * rows)
        self._products(Tile(row, rows, columns), place, acc, t, each.source)
        for i in range(rows):
            self._finish(each, t, place, row + i, acc[i::rows])

    def _many_rows(self, each: Pass, t: Value, place: Place) -> None:
        """Sums go through memory: all rows read some weights, which stay in L1, then others."""
        e, k, chunk = self.e, self.k, self.chunk
        columns = list(product(range(place.panels), each.gates))

        def at(row: Value, number: int) -> Pointer:
            return chunk.sums.at((row * len(columns) + number) * k.lanes)

        for part in (part for part in k.parts if part[0] in each.gates):
            own = [number for number, (_, gate) in enumerate(columns) if gate in part]
            for row, rows in self._row_tiles():
                self._prefetch(part, t, place, row, rows)
                acc = [e.zero(self.kind)] * (len(own) * rows)
                tile = Tile(row, rows, [columns[number] for number in own])
                self._products(tile, place, acc, t, each.source)
                places = (at(row + i, number) for number in own for i in range(rows))
                for value, to in zip(acc, places, strict=True):
                    e.store(value, to)
        with e.loop("row", chunk.count) as row:
            sums = [e.load(at(row, number), self.kind) for number in range(len(columns))]
            self._finish(each, t, place, row, sums)

    def _prefetch(
        self, gates: Sequence[int], t: Value, place: Place, row: Value, rows: int
    ) -> None:
        """Ask for what is added to the sums of some gates, rows that lie far apart."""
        for i, gate in product(range(rows), gates):
            times = self.chunk.times(t, row + i, self.reverse)
            self.e.prefetch(self.chunk.input(gate, row + i, place.panel, times), locality=_IN_L2)

    def _finish(
        self, each: Pass, t: Value, place: Place, row: Value, sums: Sequence[Value]
    ) -> None:
        """Compute the gates of a row from its sums, by panel and gate."""
        times, gates = self.chunk.times(t, row, self.reverse), len(each.gates)
        for p in range(place.panels):
            lanes = place.lanes if p == place.panels - 1 else self.k.lanes
            unit = Unit(row, place.panel + p, lanes, t, times)
            own = zip(each.gates, sums[p * gates : (p + 1) * gates], strict=True)
            each.finish(unit, [value + self._added(gate, unit) for gate, value in own])

    def _row_tiles(self) -> Iterator[tuple[Value, int]]:
        """Emit the body for tiles of all rows and some of few; the last ones may overlap.

        Of 6 and 4 rows as many as make the number of rows, or one more.
        """
        e, most, count = self.e, self.k.rows, self.chunk.count
        first = e.i64(0)
        if most > LEAST_ROWS:
            wanted = count + (count & 1) if most % LEAST_ROWS else count
            whole = wanted // most
            if most % LEAST_ROWS:
                whole = whole - (wanted - whole * most) % LEAST_ROWS // 2
            with e.when(whole.compare("ne", 0)), e.loop("tile", whole) as tile:
                yield e.smin(tile * most, count - most), most
            first = whole * most
        with (
            e.when(first.compare("slt", count)),
            e.loop("row", count, start=first, step=LEAST_ROWS) as row,
        ):
            yield e.smin(row, count - LEAST_ROWS), LEAST_ROWS

    def _places(self, t: Value, panels: int) -> Iterator[Place]:
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
                yield Place(group * panels, panels, k.lanes)
        left = k.panels - groups * panels
        if left:
            yield Place(e.i64(groups * panels), left, partial or k.lanes)

    def _products(self, tile: Tile, place: Place, acc: list[Value], t: Value, source: str) -> None:
        """Add all products to the sums of a register tile, those of a column in turn."""
        e, k, rows = self.e, self.k, tile.rows
        states = [
            self.chunk.state(source, tile.row + i, e.i64(0), t if source == "h" else None)
            for i in range(rows)
        ]
        weights = [self._weights(place.panel + p, gate) for p, gate in tile.columns]

        def one(at: Value | int) -> None:
            def of_weights(j: int) -> Value:
                address, step = weights[j]
                return e.load(address.at(at * step), self.kind)

            def of_state(i: int) -> Value:
                return e.broadcast(states[i].at(at), self.kind)

            few, many = (of_weights, of_state), (range(len(weights)), range(rows))
            by_row = len(weights) < rows  # what is fewer stays in registers
            held = [of_weights(j) for j in many[0]] if by_row else [of_state(i) for i in many[1]]
            for outer in many[by_row]:
                other = few[by_row](outer)
                for inner, value in enumerate(held):
                    slot = inner * rows + outer if by_row else outer * rows + inner
                    acc[slot] = e.fma(value, other, acc[slot])

        unroll = _UNROLL if k.hidden >= _UNROLL else 1
        whole = k.hidden // unroll
        with e.loop("k", whole, [acc]) as index:
            for u in range(unroll):
                one(index * unroll + u)
        for rest in range(whole * unroll, k.hidden):
            one(e.i64(rest))

    def _weights(self, panel: Value, gate: int) -> tuple[Pointer, int]:
        """Where a gate's weights in a panel begin, and how far those of two units are apart."""
        k = self.k
        part = next(part for part in k.parts if gate in part)
        first = k.hidden * part[0] + (gate - part[0])
        number = self.chunk.direction * k.panels + panel
        at = self.chunk.at["r"].at(number * k.panel_elements)
        return at.at(first * k.lanes), len(part) * k.lanes

    def _added(self, gate: int, unit: Unit) -> Value:
        """Return what a sum is added to: the input's product, or the bias of a GRU's last one."""
        e, k = self.e, self.k
        if self.cell.linear_before_reset and self.cell.kind == "GRU" and gate == 2:
            if "bias" not in k.given:
                return e.zero(self.kind)
            at = self.chunk.at["bias"].at(self.chunk.direction * k.hidden)
            return e.load_first(at.at(unit.panel * k.lanes), self.kind, unit.lanes)
        return self.chunk.product(gate, unit.row, unit.panel, unit.lanes, unit.times)
