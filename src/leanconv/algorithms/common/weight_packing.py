"""Compiled code that packs weights in panels of output channels: as they are, or transformed.

`PanelPacking`: rows of outputs become panels of vectors.

    packed[group][panel][place of column][lane] = w[group][output of panel and lane][column]

Squares of outputs by columns are transposed in registers. A row has all inputs and taps of one
output; a table says at which step of a panel each of its columns is read. Lanes past the last
output are zero. A chunk is a block of columns of one panel: one code packs all layers.

`WeightTransform`: sums of their taps in float64, rounded. Which of an output's weights is a tap of
a step of the reduction is a table, so that one code serves all strides and channels. A chunk is
some steps of a panel.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.lowered import PackCall
from leanconv.codegen.shuffles import transpose_rectangle
from leanconv.kernels.packing import PIECE_BYTES, lowest, packing_traffic
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.symbolic import Count
from leanconv.target import Target
from leanconv.types import FLOAT32, FLOAT64, DType

_COLUMNS = 512  # of one chunk: what is written stays in L2


@dataclass(frozen=True)
class Panels(Kernel):
    """Code that packs panels of output channels, one after the other.

    Attributes:
        groups: number of groups.
        outputs: of a group.
        row: weights of one output.
        vectors: of a whole panel.
        lanes: of a vector.
        dtype: of all values, float32 or float64.
    """

    VARIES = True

    groups: Count
    outputs: Count
    row: Count
    vectors: Count
    lanes: int
    dtype: DType

    @property
    def panels(self) -> int:
        """Panels of one group."""
        return ceil_div(self.outputs, self.vectors * self.lanes)

    @property
    @abstractmethod
    def group_elements(self) -> int:
        """Packed elements of one group."""

    @property
    @abstractmethod
    def given_weights(self) -> int:
        """Weights of one output."""

    def packing_cycles(self, target: Target) -> float:
        """Cycles of vectors of weights, of what is made of them, and of memory."""
        item = self.dtype.bytes
        vectors = self.groups * ceil_div(self.outputs, self.lanes)
        weights = vectors * self.given_weights
        packed = self.groups * self.group_elements
        arithmetic = weights * self.read_cycles(target)
        arithmetic += packed / self.lanes * self.made_cycles(target)
        read = self.groups * self.outputs * self.given_weights * item
        traffic = packing_traffic(target, read, packed * item, self.is_streamed(target))
        return target.costs.overlapped(arithmetic, traffic)

    def read_cycles(self, target: Target) -> float:
        """Cycles of a vector of weights as it is brought from where they lie."""
        return target.costs.transposed_vector

    def made_cycles(self, target: Target) -> float:
        """Cycles of a packed vector beside those of its weights."""
        del target
        return 0.0

    def is_streamed(self, target: Target) -> bool:
        """Return whether panels are written past the caches."""
        del target
        return False


def in_pieces(
    kernel_of: Callable[[int], Panels],
    outputs: int,
    width: int,
    w: np.ndarray,
    tables: Callable[[], tuple[np.ndarray, ...]],
) -> list[PackCall]:
    """Pack weights (K, …), any view, in pieces of whole panels if they are large.

    Args:
        kernel_of: makes the kernel that packs so many outputs of a group.
        outputs: of a group.
        width: outputs of a panel.
        w: of which `Panels.row` elements are from one output to the next.
        tables: as of `PackCall`.
    """
    whole, each = kernel_of(outputs), outputs
    if whole.groups == 1:
        size = whole.group_elements * whole.dtype.bytes
        each = min(outputs, max(1, PIECE_BYTES * ceil_div(outputs, width) // size) * width)
    calls, lowest_bytes = [], lowest(w.shape[1:], w.strides[1:])
    for first in range(0, outputs, each):
        part = kernel_of(min(each, outputs - first))
        packed = part.groups * part.group_elements * part.dtype.bytes
        begin = first * w.strides[0] + lowest_bytes
        calls.append(PackCall(part, lambda: w, tables, packed, begin))
    return calls


@dataclass(frozen=True)
class PanelPacking(Panels):
    """Weights as they are, rows of at least `lanes`; the last panel has the vectors it needs."""

    @property
    def operands(self) -> tuple[str, ...]:
        """Weights, steps of a row's columns as i64, the result."""
        return ("w", "places", "packed")

    @property
    def blocks(self) -> int:
        """Blocks of columns."""
        return ceil_div(self.row, _COLUMNS)

    @property
    def grid(self) -> tuple[int, ...]:
        """Panels by blocks of columns."""
        return self.groups, self.panels, self.blocks

    @property
    def given_weights(self) -> int:
        """All of its row."""
        return self.row

    @property
    def group_elements(self) -> int:
        """Whole vectors of outputs."""
        return self.row * ceil_div(self.outputs, self.lanes) * self.lanes

    def emit(self, target: Target) -> str:
        """Emit the loops: chunks, columns, vectors of the panel."""
        e, element, lanes = Function(self.NAME), self.dtype.llvm, self.lanes
        w, places, packed = map(e.pointer, range(3), (element, "i64", element))
        with e.chunks(*self.grid) as (group, panel, block):
            first = panel * (self.vectors * lanes)
            vectors = e.smin((e.i64(self.outputs + (lanes - 1)) - first) // lanes, self.vectors)
            result = packed.at(group * self.group_elements + first * self.row)
            rows = w.at(group * (self.outputs * self.row))
            start = block * _COLUMNS
            stop = e.smin(start + _COLUMNS, self.row)
            with e.loop("column", stop, start=start, step=lanes) as column:
                at = e.smin(column, self.row - lanes)  # the last square overlaps
                steps = places.at(at)
                with e.loop("vector", vectors) as number:
                    there = rows.at(at), steps, result.at(number * lanes)
                    self._square(e, there, first + number * lanes, vectors * lanes)
        return e.finish()

    def _square(
        self, e: Function, there: tuple[Pointer, Pointer, Pointer], output: Value, width: Value
    ) -> None:
        """Transpose the columns at `there` (w, places, packed) of a vector of outputs."""
        source, steps, result = there
        kind = vector(self.dtype.llvm, self.lanes)
        last = self.outputs - 1
        lines = [
            e.load(source.at(e.smin(output + lane, last) * self.row), kind, align=1)
            for lane in range(self.lanes)
        ]
        live = e.first_lanes(e.i64(self.outputs) - output, self.lanes)
        for number, column in enumerate(transpose_rectangle(e, lines, self.lanes)):
            step = e.load_index(steps.at(number))
            place = result.at(step * width)
            e.store(e.select(live, column, e.zero(kind)), place)


_STEPS = 16  # of one chunk
_LANE_MOVES = 2  # a load, and an insertion into a vector


class OneStep(NamedTuple):
    """A step of a vector of outputs, or the steps that lie together.

    Attributes:
        step: the first of them.
        result: address of the stored vector of outputs.
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
        return self.group_size

    @property
    def given_weights(self) -> int:
        """Those of all steps, with zeros in the place of some."""
        return self.taps * self.steps

    def read_cycles(self, target: Target) -> float:
        """Lane by lane."""
        return _LANE_MOVES * self.lanes * target.costs.element_move

    def made_cycles(self, target: Target) -> float:
        """Sums of products in float64."""
        vectors = FLOAT64.bytes / self.dtype.bytes
        return target.costs.winograd_input + vectors * self.taps / target.fma_units

    @property
    def panel_step(self) -> int:
        """Packed elements from a panel to the next."""
        return self.panel_size

    @property
    def grid(self) -> tuple[int, ...]:
        """Panels by blocks of steps."""
        return self.groups, self.panels, ceil_div(self.steps, _STEPS)

    @property
    @abstractmethod
    def types(self) -> dict[str, str]:
        """Elements of the operands that are no i64."""

    def emit(self, target: Target) -> str:
        """Emit the loops: chunks, steps, vectors of the panel, and what is made of taps."""
        e = Function(self.NAME)
        pointers = e.pointers(self.operands, "i64", **self.types)
        with e.chunks(*self.grid) as (g, panel, block):
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
        """Return the offset of a vector's first output from the start of its panel."""
        return lane * self.together

    @abstractmethod
    def transform(self, e: Function, pointers: dict[str, Pointer], at: OneStep) -> None:
        """Transform the taps in the scratch, and store the result.

        Args:
            e: the function.
            pointers: of the operands.
            at: the step and the outputs that are transformed.
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
