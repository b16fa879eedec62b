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
multiply-add units busy. Weights that are codes become floats in registers. A GRU whose product
reads r h has two such passes in a step. Where states lie is in `recurrent_states`, what becomes of
the sums in `recurrent_gates`.

The steps of a sequence depend on each other, so a chunk does all of them: chunks are directions and
groups of sequences. `recurrence` has the same steps as rounds that all threads share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.graph.ops.recurrent import Cell
from leanconv.kernels.recurrent_gates import Gates, Pass, Unit
from leanconv.kernels.recurrent_states import Chunk, RecurrentLayers
from leanconv.records import dataclass, replace
from leanconv.target import Target

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
        at = e.pointers(self.operands, self.dtype.llvm, **self.others)
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
            each.finish(unit, [self.gates.added(gate, value, unit) for gate, value in own])

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
        zeros = [self._zeros(place, p, gate) for p, gate in tile.columns]

        def one(at: Value | int) -> None:
            def of_weights(j: int) -> Value:
                address, step = weights[j]
                if k.codes is None:
                    return e.load(address.at(at * step), self.kind)
                codes = e.load(address.at(at * step), vector(k.codes.llvm, k.lanes))
                signed = k.codes.kind == "int"
                floats = e.convert("sitofp" if signed else "uitofp", codes, self.kind)
                zero = zeros[j]
                return floats if zero is None else floats - zero

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

    def _zeros(self, place: Place, p: int, gate: int) -> Value | None:
        """Zero points of a column of codes as floats."""
        if "zeros" not in self.k.given:
            return None
        lanes = place.lanes if p == place.panels - 1 else self.k.lanes
        return self.gates.of_column("zeros", gate, place.panel + p, lanes)
