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

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from leanconv.algorithms.common.channels import pack_channels
from leanconv.algorithms.direct.kernel import DirectConv
from leanconv.algorithms.interface import Candidate, KernelUse
from leanconv.algorithms.parameters import Choice
from leanconv.algorithms.problem import Problem
from leanconv.algorithms.winograd.input import InputTransform
from leanconv.algorithms.winograd.output import OutputTransform
from leanconv.algorithms.winograd.packing import transformed_weights
from leanconv.algorithms.winograd.parameters import WinogradParameters
from leanconv.algorithms.winograd.parts import Part
from leanconv.algorithms.winograd.shape import Pair, WinogradShape
from leanconv.codegen.emitter import Function, Value
from leanconv.codegen.epilogue import Epilogue
from leanconv.codegen.geometry import Access, Window
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.tails import last_or_other
from leanconv.codegen.tiling import Tile, rank_tiles, rows_per_chunk
from leanconv.codegen.types import ELEMENT
from leanconv.dtypes import ITEMSIZE
from leanconv.spec.format import ceil_div
from leanconv.target import Costs, Target

_MOST_ROWS = 112  # rows of V (tiles) that stay in cache for all panels of a chunk
_L2_PARTS = 4  # of which these rows may fill one


# -- kernels -----------------------------------------------------------------------------------
@dataclass(frozen=True)
class _TileTransform(Kernel):
    """A transform of all tiles, a chunk for each block of them.

    Attributes:
        conv: the convolution, panels of one vector; its blocks and register tile unused.
        tiles: of one chunk.
    """

    conv: WinogradShape
    tiles: int

    @property
    def chunks(self) -> int:
        """Groups by blocks of tiles."""
        return self.conv.groups * self.blocks

    @property
    def scratch_bytes(self) -> int:
        """That of the transform of one tile."""
        return self.conv.between_bytes

    @property
    def blocks(self) -> int:
        """Blocks of tiles of one group."""
        return ceil_div(self.conv.tile_count, self.tiles)

    def _first(self, e: Function, block: Value) -> tuple[Value, Value]:
        """The first tile of a block, and how many there are from it on."""
        first = block * self.tiles
        return first, e.const("i64", self.conv.tile_count) - first


@dataclass(frozen=True)
class Scatter(_TileTransform):
    """The input transform of all tiles."""

    @property
    def operands(self) -> tuple[str, ...]:
        """Input, V."""
        return ("x", "V")

    def emit(self, target: Target) -> str:
        """Emit the loops over chunks and tiles."""
        del target
        e, conv = Function(self.NAME), self.conv
        x, v = e.pointer(0), e.pointer(1)
        element, v_group = ELEMENT[conv.dtype], conv.points * conv.tile_count * conv.steps
        with e.chunks(conv.groups, self.blocks) as (g, block):
            v_of_group = v.at(g * v_group, element)
            x_of_group = x.at(g * conv.x.channel(conv.inputs) + conv.x_offset, element)
            transform = InputTransform(e, conv, x_of_group, v_of_group, e.scratch, gapless=True)
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

    points: int
    tiles: int
    whole: DirectConv
    last: DirectConv
    parts: int
    plain_flops: int

    @property
    def operands(self) -> tuple[str, ...]:
        """V, U, M."""
        return ("V", "w", "M")

    @property
    def block(self) -> int:
        """Rows of one block."""
        return self.whole.window.out[2]

    @property
    def blocks(self) -> int:
        """Blocks of rows of one product."""
        return ceil_div(self.tiles, self.block)

    @property
    def chunks(self) -> int:
        """Points by parts by blocks."""
        return self.points * self.parts * self.blocks

    @property
    def flops(self) -> int:
        """Operations of the plain sum that this replaces, padding counted."""
        return self.plain_flops

    @property
    def constant_bytes(self) -> dict[str, int]:
        """U in panels, for all points."""
        return {"w": self.points * self.whole.group_weights * ITEMSIZE[self.whole.dtype]}

    def pack_weights(self, u: np.ndarray) -> np.ndarray:
        """Pack U (points, reduction, K)."""
        flat = u.swapaxes(1, 2).reshape(-1, u.shape[1], 1, 1, 1)
        return replace(self.whole, groups=self.points).pack_weights(flat)

    def emit(self, target: Target) -> str:
        """Emit the loop over chunks: some panels of a block of rows."""
        del target
        e = Function(self.NAME)
        pointers = {name: e.pointer(i) for i, name in enumerate(("x", "w", "y"))}
        with e.chunks(self.points, self.parts, self.blocks) as (point, part, block):
            for conv in last_or_other(e, block, self.blocks, self.last, self.whole):
                self._chunk(e, pointers, conv, (point, part, block))
        return e.finish()

    def _chunk(
        self, e: Function, pointers: dict[str, Value], conv: DirectConv, chunk: tuple[Value, ...]
    ) -> None:
        point, part, block = chunk
        element = ELEMENT[conv.dtype]
        row = point * self.tiles + block * self.block
        moved = {
            "x": pointers["x"].at(row * conv.inputs, element),
            "w": pointers["w"].at(point * conv.group_weights, element),
            "y": pointers["y"].at(row * conv.outputs, element),
        }
        each = ceil_div(conv.panels, self.parts)
        low = part * each
        conv.emit_panels(e, moved, low, e.smin(low + each, conv.panels))


@dataclass(frozen=True)
class Gather(_TileTransform):
    """The output transform of all tiles."""

    @property
    def operands(self) -> tuple[str, ...]:
        """M, what the epilogue needs, output."""
        return ("M", *self.conv.epilogue.operands, "y")

    @property
    def constant_bytes(self) -> dict[str, int]:
        """Bias and slopes in whole vectors."""
        conv = self.conv
        return conv.epilogue.channel_bytes(conv.dtype, conv.packed_channels)

    def emit(self, target: Target) -> str:
        """Emit the loops over chunks, tiles and vectors of output channels."""
        del target
        e, conv = Function(self.NAME), self.conv
        pointers = {name: e.pointer(i) for i, name in enumerate(self.operands)}
        m_group = conv.points * conv.tile_count * conv.outputs
        with e.chunks(conv.groups, self.blocks) as (g, block):
            m = pointers["M"].at(g * m_group, ELEMENT[conv.dtype])
            transform = OutputTransform(e, conv, pointers, g, m, e.scratch, gapless=True)
            first, left = self._first(e, block)
            with e.loop("panel", conv.panels) as panel:
                transform.block(first, e.smin(left, self.tiles), panel, first)
        return e.finish()


# -- choosing ----------------------------------------------------------------------------------
def _products(conv: WinogradShape, tile: Tile, target: Target) -> PointProducts:
    """Plan the products with a register tile: rows of a block, parts."""
    tiles, steps, vectors = conv.tile_count, conv.steps, conv.panels
    room = target.l2_bytes // _L2_PARTS // (steps * ITEMSIZE[conv.dtype])
    block = min(tiles, tile.rows * max(1, min(room, _MOST_ROWS) // tile.rows))

    def product(rows: int) -> DirectConv:
        extent = (1, 1, rows)
        return DirectConv(
            batch=1,
            groups=1,
            inputs=steps,
            outputs=conv.outputs,
            window=Window(extent, extent, (1, 1, 1), (1, 1, 1), (1, 1, 1), (0, 0, 0)),
            x=Access(0, 1, 1, (0, 0, steps)),
            y=Access(0, 1, 1, (0, 0, conv.outputs)),
            dtype=conv.dtype,
            lanes=conv.lanes,
            tile=tile,
            rows=1,
            panels_inside=False,
            epilogue=Epilogue(),
        )

    whole = product(block)
    cycles = block * steps * vectors / target.fma_units
    wanted = min(whole.panels, max(1, round(cycles / target.costs.chunk)))
    return PointProducts(
        conv.points * conv.groups,
        tiles,
        whole,
        product((tiles - 1) % block + 1),
        ceil_div(whole.panels, ceil_div(whole.panels, wanted)),
        conv.flops,
    )


def _per_chunk(conv: WinogradShape, vectors: int, cycles: float, costs: Costs) -> int:
    """Tiles that one chunk of a transform takes."""
    per_tile = conv.points * vectors * cycles
    return rows_per_chunk(conv.tile_count, per_tile, conv.groups, costs.chunk)


def _transform_cycles(costs: Costs) -> tuple[float, float]:
    """Cycles for each vector of V and of M, which go to memory."""
    return costs.winograd_input + costs.winograd_far, costs.winograd_output + costs.winograd_far


def stages_cycles(problem: Problem, target: Target, parts: list[tuple[Part, Pair]]) -> float:
    """Estimated cycles of one core: both transforms, products, traffic of V and M."""
    lanes, total, costs = target.lanes(problem.dtype), 0.0, target.costs
    into_vector, back_vector = _transform_cycles(costs)
    for part, m in parts:
        conv = WinogradShape.of(part.problem, m, lanes)
        tiles, vectors = conv.tile_count, ceil_div(conv.outputs, lanes)
        rows = min(tiles, _MOST_ROWS)
        product = rank_tiles(target, rows, vectors, conv.steps)[0][0] * tiles / rows
        into = tiles * ceil_div(conv.steps, lanes) * into_vector
        back = tiles * vectors * back_vector
        moved = 2 * conv.points * conv.groups * tiles * (conv.steps + conv.outputs)
        moved *= problem.itemsize
        total += conv.points * conv.groups * (into + product + back)
        if moved > target.l2_bytes:
            total += moved / (costs.l3_copy if moved <= target.l3_bytes else costs.dram_copy)
    return total


def in_stages(
    problem: Problem, target: Target, parts: list[tuple[Part, Pair]], error: float
) -> Candidate:
    """Scatter, multiply and gather each part of a problem, one after the other.

    Args:
        problem: what is computed.
        target: the machine.
        parts: its parts, with the outputs (h, w) of a tile of each.
        error: the expected error.
    """
    lanes, item = target.lanes(problem.dtype), problem.itemsize
    convs = [WinogradShape.of(part.problem, m, lanes) for part, m in parts]
    # All parts have one register tile: those with the same taps share the packed weights.
    rows = min(convs[0].tile_count, _MOST_ROWS)
    tile = rank_tiles(target, rows, convs[0].panels, convs[0].steps)[0][1]
    products = [_products(conv, tile, target) for conv in convs]
    costs = target.costs
    into, back = _transform_cycles(costs)
    names = {part.taps: f"w{number or ''}" for number, (part, _) in enumerate(parts)}
    uses: list[KernelUse] = []
    for (part, _), conv, product in zip(parts, convs, products, strict=True):
        scatter = Scatter(conv, _per_chunk(conv, conv.channel_blocks, into, costs))
        gather = Gather(conv, _per_chunk(conv, conv.panels, back, costs))
        roles = {"residual": "y"} if part.adds_up else {}
        uses += [
            KernelUse(scatter, scatter.operands),
            KernelUse(product, ("V", names[part.taps], "M")),
            KernelUse(gather, tuple(roles.get(o, o) for o in gather.operands)),
        ]

    def pack(w: np.ndarray, channels: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        packed = {
            name: pack_channels(values, convs[0].groups, convs[0].panels * convs[0].panel_lanes)
            for name, values in channels.items()
        }
        flat = w.reshape(*w.shape[:2], *problem.window.kernel[1:])
        for (part, _), conv, product in zip(parts, convs, products, strict=True):
            (top, bottom), (left, right) = part.taps
            if names[part.taps] not in packed:
                u = transformed_weights(conv, flat[:, :, top:bottom, left:right])
                points = u.reshape(-1, *u.shape[2:]).astype(w.dtype)
                packed[names[part.taps]] = product.pack_weights(points)
        return packed

    row_bytes = [conv.groups * conv.points * conv.tile_count * item for conv in convs]
    temporaries = {
        "V": max(b * conv.steps for b, conv in zip(row_bytes, convs, strict=True)),
        "M": max(b * conv.outputs for b, conv in zip(row_bytes, convs, strict=True)),
    }
    conv, m = convs[0], parts[0][1]
    text = f"F({m[0]}x{m[1]}, {conv.taps[0]}x{conv.taps[1]}) in stages, {conv.tile_count} tiles, "
    text += f"{tile.rows}x{tile.vectors}"
    if len(parts) > 1:
        text += f", {len(parts)} pieces"
    choice = Choice("winograd", WinogradParameters(form="stages", m=m), error=error)
    return Candidate(choice, tuple(uses), pack, temporaries, text)
