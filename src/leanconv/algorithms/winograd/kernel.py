"""Fused Winograd convolution: transform a block of tiles, multiply, transform back, store.

One chunk is a block of `tiles` tiles and a part of the output channels. Its V and M stay in the
thread's scratch, sized for L2; threads share nothing.

    V  [xi][channel block][tile][lane]      broadcasts walk along lanes, stores along tiles; large
                                            ones [xi][tiles / rows][channel block][row][lane], so
                                            that reads of a register tile are contiguous
    U  [panel][xi][channel][vectors·lanes]  contiguous; channels of short phases are left
                                            out at the points where they are zero
    M  [xi][tile][vectors·lanes]            of one panel of output channels

A stride is decomposed into phases (polyphase): the stride-1 convolutions of x[p::sh, q::sw] with
w[p::sh, q::sw] add up to the result. Phases are therefore more input channels, and all share one
output transform.
"""

from __future__ import annotations

from collections.abc import Hashable

from leanconv.algorithms.winograd.edge_tiles import order_of
from leanconv.algorithms.winograd.input import InputTransform
from leanconv.algorithms.winograd.output import OutputTransform
from leanconv.algorithms.winograd.products import Products
from leanconv.algorithms.winograd.shape import WinogradShape, operand_pointers
from leanconv.codegen.emitter import Function, Pointer, Value
from leanconv.codegen.kernel import Kernel
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.target import Target
from leanconv.types import INT64

_MOST_ROTATED = 4  # blocks of tiles, up to which threads work on neighbouring blocks at one time


@dataclass(frozen=True)
class WinogradConv(Kernel):
    """The code of one convolution.

    Attributes:
        shape: its sizes, tiles, blocks and register tile.
    """

    VARIES = True

    shape: WinogradShape

    @property
    def operands(self) -> tuple[str, ...]:
        """Input, transformed weights, what the epilogue needs, offsets, output."""
        offsets = ("offsets",) * (self.shape.residues > 1)
        return ("x", "w", *self.shape.epilogue.operands, *offsets, "y")

    @property
    def chunks(self) -> int:
        """Residues by groups by parts of the output channels by blocks of tiles."""
        shape = self.shape
        return shape.residues * shape.groups * shape.parts * shape.blocks

    @property
    def scratch_bytes(self) -> int:
        """V, M and the transforms' own scratch of one thread."""
        return sum(self.shape.areas())

    @property
    def flops(self) -> int:
        """Operations of the plain sum that this replaces, padding counted."""
        return self.shape.flops

    @property
    def constant_bytes(self) -> dict[str, int]:
        """Transformed weights, bias and slopes in whole panels, offsets of input and output."""
        shape = self.shape
        sizes = {"w": shape.weight_bytes}
        sizes |= shape.epilogue.channel_bytes(shape.precision.accumulate, shape.packed_channels)
        return sizes | ({"offsets": 2 * shape.residues * INT64.bytes} if shape.residues > 1 else {})

    @property
    def packing(self) -> Hashable:
        """Channels, panels, the transform and the order of its sums; offsets follow the sizes."""
        shape = self.shape
        if shape.residues > 1:
            return self
        channels = shape.groups, shape.outputs, shape.vectors, shape.epilogue.operands
        return WinogradConv, channels, shape.reduction, shape.products

    def _rotated_panel(
        self,
        e: Function,
        target: Target,
        block: Value,
        index: Value,
        start: Value,
        stop: Value,
    ) -> Value:
        """The panel of an iteration: where blocks are few, every other block starts in the middle.

        Two threads on neighbouring blocks then neither write the same lines at the same time nor
        load the same weights from DRAM: 2 to 6 % of cv5, cv9 and cv10. With many blocks it gains
        nothing. Weights beyond half of L3 are better walked in the same order, so that each thread
        reads what the other has loaded into L3.
        """
        shape = self.shape
        if 2 * shape.weight_bytes > target.l3_bytes:
            return index
        if not shape.any_size and not 1 < shape.blocks <= _MOST_ROTATED:
            return index
        count = stop - start
        return start + (index - start + self._every_other(e, block) * (count // 2)) % count

    def _every_other(self, e: Function, block: Value) -> Value:
        """1 for every other block where these are few, else 0."""
        if not self.shape.any_size:
            return block % 2
        few = e.i64(self.shape.blocks).compare("sle", _MOST_ROTATED)
        return e.select(few, block % 2, e.i64(0))

    def _with_offsets(
        self, e: Function, pointers: dict[str, Pointer], index: Value | None = None
    ) -> dict[str, Pointer]:
        """The operands' addresses for the residue of this index; None if there is only one."""
        if index is None:
            return pointers
        pair = pointers["offsets"].at(index * 2)
        x, y = (e.load_index(pair.at(i)) for i in (0, 1))
        moved = {"x": x, "y": y, **({"residual": y} if "residual" in pointers else {})}
        return pointers | {role: pointers[role].at(by) for role, by in moved.items()}

    def emit(self, target: Target) -> str:
        """Emit the loops: chunks; input transform; panels of products and output transform."""
        e, shape = Function(self.NAME), self.shape
        pointers = operand_pointers(e, shape, self.operands)
        v_bytes, m_bytes, _ = shape.areas()
        v = e.scratch.of(shape.transformed.llvm)
        m = e.scratch.at(v_bytes).of(shape.precision.accumulate.llvm)
        between = e.scratch.at(v_bytes + m_bytes)
        numbers = order_of(shape)
        order = e.table(numbers) if numbers else None
        per_part = ceil_div(shape.panels, shape.parts)
        stream = shape.all_steps * shape.panel_lanes
        residues = (shape.residues,) * (shape.residues > 1)
        with e.chunks(*residues, shape.groups, shape.parts, shape.blocks) as (*at, g, part, block):
            here = self._with_offsets(e, pointers, *at)
            x = here["x"].at(g * shape.x.channel(shape.inputs) + shape.x_offset)
            far = shape.planar and (shape.any_size or shape.x_bytes > target.l2_bytes)
            into = InputTransform(e, shape, x, v, between, order=order, prefetch=far)
            back = OutputTransform(e, shape, target, here, g, m, between, order=order)
            u = pointers["w"].at(g * (shape.panels * stream))
            first = block * shape.tiles
            live = e.smin(e.i64(shape.tile_count) - first, shape.tiles)
            into.block(first, live)
            products = Products(e, shape, target, v, m, live)
            start = part * per_part
            stop = e.smin(start + per_part, shape.panels)
            with e.when(start.compare("slt", stop)), e.loop("panel", stop, start=start) as index:
                panel = self._rotated_panel(e, target, block, index, start, stop)
                products.panel(u.at(panel * stream))
                back.block(first, live, panel)
        return e.finish()
