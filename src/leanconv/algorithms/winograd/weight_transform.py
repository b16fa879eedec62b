"""Compiled packing of fused Winograd's weights: U = G g G^T in float64, rounded, in panels.

    packed[group][panel][place of step and point][lane] = sum over taps of
        matrix[tap][point] * w[group][output of panel and lane][source of step and tap]

Which weight is a tap of a step, and where a point of a step is stored, if it is, are tables: one
code transforms the weights of all tiles, strides and channels. A chunk is some steps of a panel.
Bytes become int16, exactly; two steps that one dot product multiplies lie side by side in a lane.
"""

from __future__ import annotations

from leanconv.algorithms.common.panel_packing import Panels
from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.extents import Count
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.target import Target
from leanconv.types import FLOAT32, FLOAT64, DType

POINTS = 4  # computed together; tables have a multiple of them
_STEPS = 16  # of one chunk


@dataclass(frozen=True)
class WeightTransform(Panels):
    """The panels of all groups.

    Attributes:
        taps: of a step.
        points: of the transform, those included that fill up `POINTS`.
        steps: of the reduction.
        stored: (point, step) pairs of a panel that are stored.
        given: type of the weights as they are given.
        together: steps that lie side by side in a lane: 2 of int16.
    """

    taps: Count
    points: Count
    steps: Count
    stored: Count
    given: DType = FLOAT32
    together: int = 1

    @property
    def operands(self) -> tuple[str, ...]:
        """Weights; matrix (taps, points) in float64; i64 tables, -1 where there is none; result.

        The tables are (steps, taps), which of a row's weights it is, and (steps, points), where it
        is stored, counted in vectors of the panel's width.
        """
        return ("w", "matrix", "sources", "places", "packed")

    @property
    def group_elements(self) -> int:
        """Whole panels."""
        return self.panels * (self.stored * (self.vectors * self.lanes))

    @property
    def blocks(self) -> int:
        """Blocks of steps."""
        return ceil_div(self.steps, _STEPS)

    @property
    def chunks(self) -> int:
        """Panels by blocks of steps."""
        return self.groups * self.panels * self.blocks

    @property
    def scratch_bytes(self) -> int:
        """The taps of steps that lie together, of one vector of outputs, in float64."""
        return self.together * self.taps * self.lanes * FLOAT64.bytes

    def emit(self, target: Target) -> str:
        """Emit the loops: chunks, steps, vectors of the panel, taps or points."""
        del target
        e, element = Function(self.NAME), self.dtype.llvm
        elements = self.given.llvm, "double", "i64", "i64", element
        w, matrix, sources, places, packed = map(e.pointer, range(5), elements)
        width = self.vectors * self.lanes
        with e.chunks(self.groups, self.panels, self.blocks) as (group, panel, block):
            rows = w.at(group * (self.outputs * self.row))
            number = group * self.panels + panel
            result = packed.at(number * (self.stored * width))
            start = block * _STEPS
            stop = e.smin(start + _STEPS, self.steps)
            with e.loop("step", stop, start=start, step=self.together) as step:
                taps = sources.at(step * self.taps)
                points = places.at(step * self.points)
                with e.loop("vector", self.vectors) as index:
                    lane = index * self.lanes
                    for one in range(self.together):
                        of_step = taps.at(e.i64(self.taps) * one) if one else taps
                        self._gather(e, rows, of_step, panel * width + lane, self._taps(e, one))
                    self._transform(e, matrix, points, result.at(lane * self.together))
        return e.finish()

    def _taps(self, e: Function, number: int) -> Pointer:
        """The gathered taps of one of the steps that lie together."""
        gathered = e.scratch.of("double")
        return gathered.at(e.i64(self.taps) * (number * self.lanes)) if number else gathered

    def _gather(
        self, e: Function, rows: Pointer, sources: Pointer, output: Value, gathered: Pointer
    ) -> None:
        """Bring the taps of a vector of outputs into the scratch, zero where there are none."""
        lanes = self.lanes
        kind, doubles = vector(self.given.llvm, lanes), vector("double", lanes)
        last = self.outputs - 1
        lines = [rows.at(e.smin(output + lane, last) * self.row) for lane in range(lanes)]
        left = e.i64(self.outputs) - output
        with e.loop("gathered", self.taps) as tap:
            source = e.load_index(sources.at(tap))
            at = e.smax(source, 0)
            weights = e.poison(kind)
            for lane, line in enumerate(lines):
                weight = e.load(line.at(at), align=1)
                weights = e.insert(weights, weight, lane)
            live = e.select(source.compare("sge", 0), left, e.i64(0))
            weights = e.select(e.first_lanes(live, lanes), weights, e.zero(kind))
            widening = "fpext" if self.given.is_float else "sitofp"
            wide = weights if kind == doubles else e.convert(widening, weights, doubles)
            e.store(wide, gathered.at(tap * lanes))

    def _transform(self, e: Function, matrix: Pointer, places: Pointer, result: Pointer) -> None:
        """Compute and store all points of the taps in the scratch."""
        lanes, together = self.lanes, self.together
        doubles = vector("double", lanes)
        gathered = [self._taps(e, number) for number in range(together)]
        with e.loop("point", self.points, step=POINTS) as point:
            sums = [e.zero(doubles) for _ in range(POINTS * together)]
            with e.loop("tap", self.taps, carry=[sums]) as tap:
                weights = [e.load(taps.at(tap * lanes), doubles) for taps in gathered]
                factors = matrix.at(tap * self.points + point)
                for i in range(POINTS):
                    factor = e.broadcast(factors.at(i), doubles)
                    for j, weight in enumerate(weights, i * together):
                        sums[j] = e.fma(factor, weight, sums[j])
            for i in range(POINTS):
                totals = sums[i * together : (i + 1) * together]
                place = e.load_index(places.at(point + i))
                with e.when(place.compare("sge", 0)):
                    width = self.vectors * lanes
                    e.store(self._rounded(e, totals), result.at(place * width))

    def _rounded(self, e: Function, totals: list[Value]) -> Value:
        """A vector of float64 as it is stored; of two, integers of 16 bits side by side."""
        if self.dtype.is_float:
            (total,), kind = totals, vector(self.dtype.llvm, self.lanes)
            return total if total.kind == kind else e.convert("fptrunc", total, kind)
        low, high = (e.convert("fptosi", t, vector("i32", self.lanes)) for t in totals)
        return low & 0xFFFF | high << 16
