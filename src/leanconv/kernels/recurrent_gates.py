"""Gates of recurrent layers: from sums to activations and new states.

A product of states and weights (`recurrence_kernel`) leaves sums of each gate in vectors of hidden
units. What is added to them, what they become and where that is stored stands here, a row at a
time; a GRU whose last product reads r h has two such passes in a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from leanconv.codegen import math
from leanconv.codegen.emitter import Function, Value
from leanconv.graph.ops.recurrent import Cell, Gate
from leanconv.kernels.recurrent_states import Chunk, Times


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

    def of_column(self, name: str, gate: int, panel: Value, lanes: int) -> Value:
        """Numbers of a gate's hidden units, from an operand (directions, gates * H)."""
        k = self.k
        at = self.at[name].at((self.chunk.direction * k.gates + gate) * k.hidden)
        return self.e.load_first(at.at(panel * k.lanes), self.kind, lanes)

    def added(self, gate: int, value: Value, unit: Unit) -> Value:
        """A sum in its weights' steps, added to the input's product, or to a GRU's last bias."""
        e, k = self.e, self.k
        if self.cell.linear_before_reset and self.cell.kind == "GRU" and gate == 2:
            if "bias" not in k.given:
                other = e.zero(self.kind)
            else:
                at = self.at["bias"].at(self.chunk.direction * k.hidden)
                other = e.load_first(at.at(unit.panel * k.lanes), self.kind, unit.lanes)
        else:
            other = self.chunk.product(gate, unit.row, unit.panel, unit.lanes, unit.times)
        if "scales" not in k.given:
            return value + other
        return e.fma(value, self.of_column("scales", gate, unit.panel, unit.lanes), other)

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
