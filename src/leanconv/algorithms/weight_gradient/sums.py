"""Sums of a gradient of weights: from panels of output channels to rows of the weights.

    dw[(k·inputs + c)·taps + t] = sums[t][c][k]          k < outputs, c < channels

A register tile has a panel's output channels in its lanes; each row of dw has the inputs and taps
of one. Squares are transposed in registers on the way. Where strips of a sum are divided into
parts, `AddParts` adds these, the first ones first, and writes the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod

from leanconv.algorithms.weight_gradient.strips import store_lanes
from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.shuffles import transpose
from leanconv.codegen.tails import tile_at
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.symbolic import Count
from leanconv.target import Target
from leanconv.types import DType

# Loads vectors of a panel that are so many elements from its first.
Loads = Callable[[Sequence[Value | int]], list[Value]]


@dataclass(frozen=True)
class Panels:
    """Where sums lie: [tap][channel][output of a panel] for a block of channels, panel by panel.

    Attributes:
        dtype: of the sums.
        lanes: of a vector.
        vectors: of a panel.
        inputs, outputs: channels of a group.
        taps: of the kernel.
        width: channels of a block.
        blocks_per_chunk, panels_per_chunk: of a chunk, which has the sums of all its pairs.
    """

    dtype: DType
    lanes: int
    vectors: int
    inputs: int
    outputs: int
    taps: int
    width: int
    blocks_per_chunk: int
    panels_per_chunk: int

    @property
    def kind(self) -> str:
        """LLVM's type of a vector."""
        return vector(self.dtype.llvm, self.lanes)

    @property
    def wide(self) -> int:
        """Outputs of a panel."""
        return self.vectors * self.lanes

    @property
    def count(self) -> int:
        """Panels of a group."""
        return ceil_div(self.outputs, self.wide)

    @property
    def blocks(self) -> int:
        """Blocks of channels of a group."""
        return ceil_div(self.inputs, self.width)

    @property
    def chunks(self) -> tuple[int, int]:
        """Chunks of a group: of blocks of channels, of panels."""
        blocks = ceil_div(self.blocks, self.blocks_per_chunk)
        return blocks, ceil_div(self.count, self.panels_per_chunk)

    @property
    def elements(self) -> int:
        """Sums of a panel and a whole block."""
        return self.taps * self.width * self.wide

    @property
    def bias_elements(self) -> int:
        """Sums of dy of a chunk's panels."""
        return self.panels_per_chunk * self.wide

    @property
    def chunk_elements(self) -> int:
        """Sums of a chunk."""
        return self.blocks_per_chunk * self.panels_per_chunk * self.elements

    def place(self, block: Value | int, panel: Value | int) -> Value | int:
        """Where the sums of a block and a panel of a chunk begin."""
        return (panel * self.blocks_per_chunk + block) * self.elements

    def table(self, e: Function, channels: int) -> Pointer:
        """The places of a row's sums in a panel of that many channels."""
        order = range(channels * self.taps)
        return e.table([(r % self.taps * channels + r // self.taps) * self.wide for r in order])

    def write(
        self,
        e: Function,
        load: Loads,
        table: Pointer,
        dw: Pointer,
        channels: int,
        outputs: int,
        adds: bool = False,
    ) -> None:
        """Write the sums of a panel.

        Args:
            e: the function to append to.
            load: loads vectors of the panel.
            table: as `table` has made it.
            dw: address of the first output's first channel.
            channels: of the block.
            outputs: of the panel.
            adds: whether sums are added to what dw holds. The last rows may be loaded twice: what
                `load` gives the second time is added, too.
        """
        rows, lanes, pitch = channels * self.taps, self.lanes, self.inputs * self.taps
        size = min(rows, lanes)
        for first in range(0, outputs, lanes):
            live = min(lanes, outputs - first)
            with e.loop("row", rows, step=size) as index:
                row = e.smin(index, rows - size)
                places = [e.load(table.at(row + i)) for i in range(size)]
                found = load([e.index(e.convert("sext", p, "i64")) + first for p in places])
                square = found + [e.zero(self.kind)] * (lanes - size)
                for k, column in enumerate(transpose(e, square)[:live]):
                    place = dw.at(row + (first + k) * pitch)
                    if adds:
                        column = e.load_first(place, self.kind, size) + column
                    store_lanes(e, column, place, size)


@dataclass(frozen=True)
class AddParts(Kernel):
    """Adds the parts of all sums: [part][group][chunk of blocks][chunk of panels][panel][block].

    Attributes:
        panels: of a group.
        groups: of channels.
        parts: of each sum.
    """

    panels: Panels
    groups: int
    parts: Count

    VARIES = True

    @property
    def operands(self) -> tuple[str, ...]:
        """Parts and gradient."""
        return ("parts", "dw")

    @property
    def grid(self) -> tuple[int, ...]:
        """Panels of each block of channels."""
        return self.groups, self.panels.blocks, self.panels.count

    @property
    def part_elements(self) -> int:
        """Sums of a part."""
        return self.groups * prod(self.panels.chunks) * self.panels.chunk_elements

    def emit(self, target: Target) -> str:
        """Emit the loops: chunks, squares, parts."""
        del target
        made, element, e = self.panels, self.panels.dtype.llvm, Function(self.NAME)
        parts, dw = e.pointer(0, element), e.pointer(1, element)
        with e.chunks(*self.grid) as (g, block, panel):
            cb, b = block // made.blocks_per_chunk, block % made.blocks_per_chunk
            kb, k = panel // made.panels_per_chunk, panel % made.panels_per_chunk
            number = (g * made.chunks[0] + cb) * made.chunks[1] + kb
            source = parts.at(number * made.chunk_elements + made.place(b, k))
            load = partial(self._added, e, source)
            for channels in tile_at(e, block, made.inputs, made.width):
                table = made.table(e, channels)
                for outputs in tile_at(e, panel, made.outputs, made.wide):
                    row = (g * made.outputs + panel * made.wide) * made.inputs + block * made.width
                    made.write(e, load, table, dw.at(row * made.taps), channels, outputs)
        return e.finish()

    def _added(self, e: Function, source: Pointer, places: Sequence[Value | int]) -> list[Value]:
        kind = self.panels.kind
        acc = [e.load(source.at(place), kind) for place in places]
        more = e.i64(self.parts).compare("ne", 1)
        with e.when(more, [acc]), e.loop("part", self.parts, [acc], start=1) as s:
            part = source.at(s * self.part_elements)
            for i, place in enumerate(places):
                acc[i] = acc[i] + e.load(part.at(place), kind)
        return acc
