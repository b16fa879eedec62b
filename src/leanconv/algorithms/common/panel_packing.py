"""Packs the weights of direct convolution: rows of outputs become panels of vectors.

    packed[group][panel][place of column][lane] = w[group][output of panel and lane][column]

Squares of outputs by columns are transposed in registers. A row has all inputs and taps of one
output; a table says at which step of a panel each of its columns is read. Lanes past the last
output are zero. A chunk is a block of columns of one panel: one code packs all layers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import numpy as np

from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.extents import Count
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.lowered import PackCall
from leanconv.codegen.shuffles import transpose_rectangle
from leanconv.kernels.packing import PIECE_BYTES, lowest
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.target import Target
from leanconv.types import DType

_COLUMNS = 512  # of one chunk: what is written stays in L2


@dataclass(frozen=True)
class Panels(Kernel):
    """Code that packs panels of output channels, one after the other.

    Attributes:
        groups: how many.
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


def in_pieces(
    kernel_of: Callable[[int], Panels],
    outputs: int,
    width: int,
    w: np.ndarray,
    tables: Callable[[], tuple[np.ndarray, ...]],
) -> list[PackCall]:
    """Pack weights (K, …), any view, in pieces of whole panels if they are large.

    Args:
        kernel_of: what packs so many outputs of a group.
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
    def chunks(self) -> int:
        """Panels by blocks of columns."""
        return self.groups * self.panels * self.blocks

    @property
    def group_elements(self) -> int:
        """Whole vectors of outputs."""
        return self.row * ceil_div(self.outputs, self.lanes) * self.lanes

    def emit(self, target: Target) -> str:
        """Emit the loops: chunks, columns, vectors of the panel."""
        del target
        e, element, lanes = Function(self.NAME), self.dtype.llvm, self.lanes
        w, places, packed = map(e.pointer, range(3), (element, "i64", element))
        with e.chunks(self.groups, self.panels, self.blocks) as (group, panel, block):
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
