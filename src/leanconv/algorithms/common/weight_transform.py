"""Compiled code that transforms weights: sums of their taps in float64, rounded, in panels.

Which of an output's weights is a tap of a step of the reduction is a table, so that one code serves
all strides and channels. A chunk is some steps of a panel.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

from leanconv.algorithms.common.panel_packing import Panels
from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.extents import Count
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.target import Target
from leanconv.types import FLOAT32, FLOAT64, DType

_STEPS = 16  # of one chunk


class OneStep(NamedTuple):
    """A step of a vector of outputs, or the steps that lie together.

    Attributes:
        step: the first of them.
        result: where the vector of outputs is stored.
        width: outputs of the panel.
        output: the first one of the vector.
    """

    step: Value
    result: Pointer
    width: Value
    output: Value


@dataclass(frozen=True)
class WeightTransform(Panels):
    """The panels of all groups.

    Attributes:
        taps: of a step.
        steps: of the reduction.
        panel_size: packed elements from a panel to the next.
        group_size: packed elements of a group.
        packed: outputs of a group in whole vectors; lanes past the last output are zero.
        ragged: whether the last panel of a group has only the vectors that it needs.
        given: type of the weights as they are given.
        together: steps that lie side by side in a lane: 2 of int16.
    """

    taps: Count
    steps: Count
    panel_size: Count
    group_size: Count
    packed: Count
    ragged: bool = False
    given: DType = FLOAT32
    together: int = 1

    @property
    def panels(self) -> int:
        """Panels of a group."""
        return ceil_div(self.packed, self.vectors * self.lanes)

    @property
    def group_elements(self) -> int:
        """Those of all panels."""
        return self.group_size

    @property
    def panel_step(self) -> int:
        """Packed elements from a panel to the next."""
        return self.panel_size

    @property
    def chunks(self) -> int:
        """Panels by blocks of steps."""
        return self.groups * self.panels * ceil_div(self.steps, _STEPS)

    @property
    @abstractmethod
    def types(self) -> dict[str, str]:
        """Elements of the operands that are no i64."""

    def emit(self, target: Target) -> str:
        """Emit the loops: chunks, steps, vectors of the panel, and what is made of taps."""
        del target
        e = Function(self.NAME)
        pointers = e.pointers(self.operands, "i64", **self.types)
        with e.chunks(self.groups, self.panels, ceil_div(self.steps, _STEPS)) as (g, panel, block):
            rows = pointers["w"].at(g * (self.outputs * self.row))
            result = pointers["packed"].at(g * self.group_size + panel * self.panel_step)
            first, vectors = panel * (self.vectors * self.lanes), e.i64(self.vectors)
            if self.ragged:
                vectors = e.smin((e.i64(self.packed) - first) // self.lanes, self.vectors)
            start = block * _STEPS
            stop = e.smin(start + _STEPS, self.steps)
            with e.loop("step", stop, start=start, step=self.together) as step:
                taps = pointers["sources"].at(step * self.taps)
                with e.loop("vector", vectors) as index:
                    lane = index * self.lanes
                    for one in range(self.together):
                        of_step = taps.at(e.i64(self.taps) * one) if one else taps
                        self._gather(e, rows, of_step, first + lane, self.gathered(e, one))
                    there = result.at(self.lane_place(lane))
                    at = OneStep(step, there, vectors * self.lanes, first + lane)
                    self.transform(e, pointers, at)
        return e.finish()

    def lane_place(self, lane: Value) -> Value:
        """Where the first output of a vector is stored, from where its panel is."""
        return lane * self.together

    @abstractmethod
    def transform(self, e: Function, pointers: dict[str, Pointer], at: OneStep) -> None:
        """Make of the taps in the scratch what is stored, and store it.

        Args:
            e: the function.
            pointers: of the operands.
            at: what is transformed.
        """

    @property
    def gathered_elements(self) -> int:
        """Numbers of the scratch that taps take."""
        return self.together * self.taps * self.lanes

    @property
    def scratch_bytes(self) -> int:
        """The taps of steps that lie together, of one vector of outputs, in float64."""
        return self.gathered_elements * FLOAT64.bytes

    def gathered(self, e: Function, number: int = 0) -> Pointer:
        """The gathered taps of one of the steps that lie together."""
        taps = e.scratch.of("double")
        return taps.at(e.i64(self.taps) * (number * self.lanes)) if number else taps

    def _gather(
        self, e: Function, rows: Pointer, sources: Pointer, output: Value, gathered: Pointer
    ) -> None:
        """Bring the taps of a vector of outputs into the scratch, zero where there are none."""
        lanes = self.lanes
        kind, doubles = vector(self.given.llvm, lanes), vector("double", lanes)
        last = e.smax(e.i64(self.outputs) - 1, 0)
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

    def rounded(self, e: Function, totals: list[Value]) -> Value:
        """A vector of float64 as it is stored; of two, integers of 16 bits side by side."""
        if self.dtype.is_float:
            (total,), kind = totals, vector(self.dtype.llvm, self.lanes)
            return total if total.kind == kind else e.convert("fptrunc", total, kind)
        low, high = (e.convert("fptosi", t, vector("i32", self.lanes)) for t in totals)
        return low & 0xFFFF | high << 16
