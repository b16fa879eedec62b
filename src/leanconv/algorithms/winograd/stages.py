"""Winograd in separate stages, as the papers describe it: the baseline of the fused form.

    V[xi][b, c] = (B^T d B)[xi] of tile b, channel c                scatter: all tiles of the batch
    M[xi][b, k] = sum over c of V[xi][b, c] · U[xi][c, k]           a batch of alpha^2 products
    y           = A^T M A                                           gather: epilogue and store

U = G g G^T is made offline. V and M are unpadded temporaries of the whole batch: with b
over the P = N·ceil(oh/m)·ceil(ow/m) tiles they have alpha^2·P·C and alpha^2·P·K elements (all
groups together; for a stride C counts every phase's channels), as the papers count them. Vectors
that reach past the last channel are masked.

Transforms and register tiles are those of the fused form, so a comparison of the two shows the
cost of V and M in memory.
"""

from __future__ import annotations

from leanconv.algorithms.direct.kernel import DirectConv
from leanconv.algorithms.winograd.input import InputTransform
from leanconv.algorithms.winograd.output import OutputTransform
from leanconv.algorithms.winograd.shape import WinogradShape, operand_pointers
from leanconv.codegen.emitter import Function, Pointer, Value
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.tails import last_or_other
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.symbolic import Extent
from leanconv.target import Target


@dataclass(frozen=True)
class _TileTransform(Kernel):
    """A transform of all tiles, a chunk for each block of them.

    Attributes:
        shape: the convolution, panels of one vector; its blocks and register tile unused.
        tiles: of one chunk.
    """

    VARIES = True

    shape: WinogradShape
    tiles: Extent

    @property
    def grid(self) -> tuple[int, ...]:
        """Groups by blocks of tiles."""
        return self.shape.conv.groups, self.blocks

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch for the transform of one tile."""
        return self.shape.between_bytes

    @property
    def blocks(self) -> int:
        """Blocks of tiles of one group."""
        return ceil_div(self.shape.tile_count, self.tiles)

    def _first(self, e: Function, block: Value) -> tuple[Value, Value]:
        """The first tile of a block, and how many there are from it on."""
        first = block * self.tiles
        return first, e.i64(self.shape.tile_count) - first


@dataclass(frozen=True)
class Scatter(_TileTransform):
    """The input transform of all tiles."""

    @property
    def operands(self) -> tuple[str, ...]:
        """Input, V."""
        return ("x", "V")

    def emit(self, target: Target) -> str:
        """Emit the loops over chunks and tiles."""
        conv, e, shape = self.shape.conv, Function(self.NAME), self.shape
        v_group = shape.points * shape.tile_count * shape.steps
        x, v = operand_pointers(e, shape, self.operands).values()
        between = e.scratch
        with e.chunks(*self.grid) as (g, block):
            v_of_group = v.at(g * v_group)
            x_of_group = x.at(g * conv.x.channel(conv.inputs) + conv.x_offset)
            transform = InputTransform(e, shape, x_of_group, v_of_group, between, gapless=True)
            first, left = self._first(e, block)
            transform.block(first, e.smin(left, self.tiles), first)
        return e.finish()


@dataclass(frozen=True)
class PointProducts(Kernel):
    """The batch of products, one for each point of each group; V, U and M are batched alike.

    Attributes:
        points: products: alpha^2 of every group.
        tiles: rows of each.
        whole, last: the product of a block of rows, and of the last block, smaller or the same.
        parts: into how many the panels of output channels are cut.
        plain_flops: operations of the convolution that this computes.
    """

    VARIES = True

    points: int
    tiles: Extent
    whole: DirectConv
    last: DirectConv
    parts: Extent
    plain_flops: int

    @property
    def operands(self) -> tuple[str, ...]:
        """V, U, M."""
        return ("V", "w", "M")

    @property
    def block(self) -> int:
        """Rows of one block."""
        return self.whole.conv.window.out[2]

    @property
    def blocks(self) -> int:
        """Blocks of rows of one product."""
        return ceil_div(self.tiles, self.block)

    @property
    def grid(self) -> tuple[int, ...]:
        """Points by parts by blocks."""
        return self.points, self.parts, self.blocks

    @property
    def flops(self) -> int:
        """Operations of the plain sum that this replaces, padding counted."""
        return self.plain_flops

    @property
    def constant_bytes(self) -> dict[str, int]:
        """U in panels, for all points."""
        return {"w": self.points * self.whole.group_weights * self.whole.conv.precision.w.bytes}

    def emit(self, target: Target) -> str:
        """Emit the loop over chunks: some panels of a block of rows."""
        e = Function(self.NAME)
        types = self.whole.conv.precision
        pointers = e.pointers(("x", "w", "y"), types.x.llvm, y=types.y.llvm)
        with e.chunks(*self.grid) as (point, part, block):
            for shape in last_or_other(e, block, self.blocks, self.last, self.whole):
                self._chunk(e, pointers, shape, (point, part, block))
        return e.finish()

    def _chunk(
        self, e: Function, pointers: dict[str, Pointer], shape: DirectConv, chunk: tuple[Value, ...]
    ) -> None:
        point, part, block = chunk
        row = point * self.tiles + block * self.block
        moved = {
            "x": pointers["x"].at(row * shape.conv.inputs),
            "w": pointers["w"].at(point * shape.group_weights),
            "y": pointers["y"].at(row * shape.conv.outputs),
        }
        each = ceil_div(shape.panels, self.parts)
        low = part * each
        shape.emit_panels(e, moved, low, e.smin(low + each, shape.panels))


@dataclass(frozen=True)
class Gather(_TileTransform):
    """The output transform of all tiles."""

    @property
    def operands(self) -> tuple[str, ...]:
        """M, what the epilogue needs, output."""
        return ("M", *self.shape.conv.epilogue.operands, "y")

    @property
    def constant_bytes(self) -> dict[str, int]:
        """Bias and slopes in whole vectors."""
        shape = self.shape
        return shape.conv.epilogue.channel_bytes(
            shape.conv.precision.accumulate, shape.packed_channels
        )

    def emit(self, target: Target) -> str:
        """Emit the loops over chunks, tiles and vectors of output channels."""
        e, shape = Function(self.NAME), self.shape
        pointers = operand_pointers(e, shape, self.operands)
        m_group = shape.points * shape.tile_count * shape.conv.outputs
        between = e.scratch
        with e.chunks(*self.grid) as (g, block):
            m = pointers["M"].at(g * m_group)
            transform = OutputTransform(e, shape, target, pointers, g, m, between, gapless=True)
            first, left = self._first(e, block)
            with e.loop("panel", shape.panels) as panel:
                transform.block(first, e.smin(left, self.tiles), panel, first)
        return e.finish()
