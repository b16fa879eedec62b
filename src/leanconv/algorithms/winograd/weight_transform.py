"""Compiled packing of fused Winograd's weights: U = G g G^T in float64, rounded, in panels.

    packed[group][panel][place of step and point][lane] = sum over taps of
        matrix[tap][point] * w[group][output of panel and lane][source of step and tap]

Which weight is a tap of a step, and where a point of a step is stored, if it is, are tables: one
code transforms the weights of all tiles, strides and channels. A chunk is some steps of a panel.
"""

from __future__ import annotations

from leanconv.algorithms.common.panel_packing import Panels
from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.extents import Count
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.target import Target

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
    """

    taps: Count
    points: Count
    steps: Count
    stored: Count

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
        """The taps of a step, of one vector of outputs, in float64."""
        return self.taps * self.lanes * 8

    def emit(self, target: Target) -> str:
        """Emit the loops: chunks, steps, vectors of the panel, taps or points."""
        del target
        e, element = Function(self.NAME), self.dtype.llvm
        elements = element, "double", "i64", "i64", element
        w, matrix, sources, places, packed = map(e.pointer, range(5), elements)
        width = self.vectors * self.lanes
        with e.chunks(self.groups, self.panels, self.blocks) as (group, panel, block):
            rows = w.at(group * (self.outputs * self.row))
            number = group * self.panels + panel
            result = packed.at(number * (self.stored * width))
            start = block * _STEPS
            stop = e.smin(start + _STEPS, self.steps)
            with e.loop("step", stop, start=start) as step:
                taps = sources.at(step * self.taps)
                points = places.at(step * self.points)
                with e.loop("vector", self.vectors) as index:
                    lane = index * self.lanes
                    self._gather(e, rows, taps, panel * width + lane)
                    self._transform(e, matrix, points, result.at(lane))
        return e.finish()

    def _gather(self, e: Function, rows: Pointer, sources: Pointer, output: Value) -> None:
        """Bring the taps of a vector of outputs into the scratch, zero where there are none."""
        lanes = self.lanes
        kind, doubles = vector(self.dtype.llvm, lanes), vector("double", lanes)
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
            wide = weights if kind == doubles else e.convert("fpext", weights, doubles)
            e.store(wide, e.scratch.of("double").at(tap * lanes))

    def _transform(self, e: Function, matrix: Pointer, places: Pointer, result: Pointer) -> None:
        """Compute and store all points of the taps in the scratch."""
        lanes = self.lanes
        kind, doubles = vector(self.dtype.llvm, lanes), vector("double", lanes)
        gathered = e.scratch.of("double")
        with e.loop("point", self.points, step=POINTS) as point:
            sums = [e.zero(doubles) for _ in range(POINTS)]
            with e.loop("tap", self.taps, carry=[sums]) as tap:
                weights = e.load(gathered.at(tap * lanes), doubles)
                factors = matrix.at(tap * self.points + point)
                for i, total in enumerate(sums):
                    factor = e.broadcast(factors.at(i), doubles)
                    sums[i] = e.fma(factor, weights, total)
            for i, total in enumerate(sums):
                place = e.load_index(places.at(point + i))
                with e.when(place.compare("sge", 0)):
                    rounded = total if kind == doubles else e.convert("fptrunc", total, kind)
                    width = self.vectors * lanes
                    e.store(rounded, result.at(place * width))
