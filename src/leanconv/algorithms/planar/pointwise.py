"""1x1 convolution of plain NCHW tensors: lanes along pixels, the filter broadcast.

    y[n, k, p] = act(bias[k] + residual + sum over c of w[k, c] · x[n, c, p])

over all pixels p of a map as one row. One tile is `tile.rows` output channels by `tile.vectors`
vectors of pixels: the micro-kernel with the packed filter [group][panel][c][rows] as A and the
input, read in place, as B. A chunk computes all its panels for one tile of pixels, whose input
stays in cache, before the next tile. Tensors larger than L2 are prefetched: the input of the next
tile, a line each step.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from math import ceil

import numpy as np

from leanconv.algorithms.common.conv import GroupedConv
from leanconv.algorithms.planar.columns import ColumnOutput
from leanconv.codegen.dot import fma
from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.lowered import PackCall
from leanconv.codegen.microkernel import (
    Fetch,
    ReductionLoop,
    RegisterTile,
    channel_address,
    multiply_accumulate,
    start_planes,
)
from leanconv.codegen.partial_sums import LENGTH, PartialSums
from leanconv.codegen.tails import overlapping_tiles, tiles_of_chunk
from leanconv.codegen.tiling import Tile, fits, tile_cycles
from leanconv.kernels.packing import panels
from leanconv.records import dataclass, replace
from leanconv.spec.format import ALIGNMENT, ceil_div
from leanconv.symbolic import Count, Symbol, fixed, least, most
from leanconv.target import Target

_CHUNKS = 0.625  # of the record's chunk
_LEAST_CHUNKS = 32  # to balance any number of threads, unless below `costs.least_chunk` cycles
_MOST_VECTORS = 6
_UNALIGNED = 1.02  # cost of reading unaligned pixels over that of a packed stream
# Overhead of tiles of few vectors, divided by their number: lines are loaded several times. Large
# where tensors exceed L2.
_NARROW, _NARROW_LARGE = 0.03, 0.3
# The part of L1 that keeps a tile of pixels for the next panel, beside what is written. Where the
# pixels come from L2 each time, tiles of 3x5 took 894 us, 12x2 538 (768 channels to 192 at 17x17).
_L1_SHARE = 0.5


@dataclass(frozen=True)
class PlanarPointwise(GroupedConv):
    """One 1x1 convolution's code, lanes along pixels.

    The window is all pixels of a map as one row; pixels are neighbours in x and y.

    Attributes:
        lanes: lanes of a vector.
        tile: output channels by vectors of pixels.
        column_tiles: tiles of pixels of one chunk.
        panel_block: panels of output channels of one chunk.
        prefetch: whether the next tile's input and this tile's output are prefetched.
        panels_outside: whether a chunk computes a panel for all its pixels before the next one, so
            that it writes few planes at a time; the pixels, in L2, are read again for each.
        overlaps: whether the last tile of pixels may overlap the one before it: one code serves all
            maps. It adds no residual, which may lie in y.
    """

    VARIES = True

    lanes: int
    tile: Tile
    column_tiles: Count
    panel_block: Count
    prefetch: bool
    overlaps: bool = False
    panels_outside: bool = False

    @property
    def tile_text(self) -> str:
        """The tile, for people."""
        return f"{self.tile.rows} channels x {self.tile.vectors} vectors of pixels"

    @property
    def pixels(self) -> int:
        """Pixels of one map."""
        return self.conv.window.out[2]

    @property
    def span(self) -> int:
        """Pixels of one tile."""
        return self.tile.vectors * self.lanes

    @property
    def column_blocks(self) -> int:
        """Chunks along the pixels."""
        return ceil_div(ceil_div(self.pixels, self.span), self.column_tiles)

    @property
    def panels(self) -> int:
        """Panels of output channels of a group, the last one perhaps narrower."""
        return ceil_div(self.conv.outputs, self.tile.rows)

    @property
    def grid(self) -> tuple[int, ...]:
        """Images by groups by blocks of pixels by blocks of panels."""
        panel_blocks = ceil_div(self.panels, self.panel_block)
        return self.conv.batch, self.conv.groups, self.column_blocks, panel_blocks

    @property
    def packing(self) -> Hashable:
        """Channels, those of a tile, taps."""
        return super().packing, self.tile.rows

    def weight_calls(self, w: np.ndarray) -> list[PackCall]:
        """Return the calls that pack weights (K, …), any view, as [group][panel][c][channel]."""
        conv = self.conv
        grouped, width = w.reshape(conv.groups, conv.outputs, *w.shape[1:]), self.tile.rows

        def order(part: np.ndarray) -> np.ndarray:
            part = part.reshape(len(part), conv.inputs)
            split = (part[first : first + width] for first in range(0, len(part), width))
            return np.concatenate([panel.T.reshape(-1) for panel in split])

        return panels(grouped, width, order, lambda k: k * conv.inputs, conv.precision.w)

    def emit(self, target: Target) -> str:
        """Emit the loops: chunks, tiles of pixels, panels."""
        e = Function(self.NAME)
        self.emit_chunks(e, target, self.addresses(e))
        return e.finish()

    def emit_chunks(self, e: Function, target: Target, pointers: dict[str, Pointer]) -> None:
        """Emit the loop over the chunks of a function, with the operands at these addresses."""
        with e.chunks(*self.grid) as place:
            self.emit_chunk(e, target, pointers, place)

    def emit_chunk(
        self, e: Function, target: Target, pointers: dict[str, Pointer], place: Sequence[Value]
    ) -> None:
        """Emit the chunk at a place of the grid, with the operands at these addresses."""
        n, g, columns, block = place
        body = _Tiles(e, self, target, pointers, n, g)
        if self.panels_outside:
            for panel, channels in self._panels_of(e, block):
                for tile in self._tiles_of_pixels(e, target, columns):
                    body.tile(e.i64(panel), channels, *tile)
        else:
            for tile in self._tiles_of_pixels(e, target, columns):
                for panel, channels in self._panels_of(e, block):
                    body.tile(e.i64(panel), channels, *tile)

    def _panels_of(self, e: Function, block: Value) -> Iterator[tuple[Value | int, int]]:
        """Emit the body for the panels of a block: the index, and the output channels."""
        return tiles_of_chunk(
            e, "panel", block, self.panel_block, self.conv.outputs, self.tile.rows
        )

    def _tiles_of_pixels(
        self, e: Function, target: Target, chunk: Value
    ) -> Iterator[tuple[Value, int, int]]:
        """Emit the body for the tiles of a chunk.

        Yields:
            The first pixel, the vectors, and the lanes of the last of them.
        """
        of_chunk = chunk, self.column_tiles, self.pixels, self.span
        if self.overlaps and self.pixels >= self.span:
            for at in overlapping_tiles(e, "tile", *of_chunk):
                yield at, self.tile.vectors, self.lanes
            return
        for tile, pixels in tiles_of_chunk(e, "tile", *of_chunk):
            vectors = fixed(ceil_div(pixels, self.lanes))
            live = target.lanes_of_tail(pixels - (vectors - 1) * self.lanes)
            yield e.i64(tile * self.span), vectors, live


class _Tiles:
    """Emits the tiles of one image and group."""

    def __init__(
        self,
        e: Function,
        kernel: PlanarPointwise,
        target: Target,
        pointers: dict[str, Pointer],
        n: Value,
        g: Value,
    ) -> None:
        conv = kernel.conv
        self.e, self.kernel, self.target = e, kernel, target
        self.pointers = pointers
        self.kind = vector(conv.dtype.llvm, kernel.lanes)
        place = n * conv.x.image + g * (conv.inputs * conv.x.block_stride)
        self.x = pointers["x"].at(place)
        self.w = pointers["w"].at(g * (conv.outputs * conv.inputs))
        self.group_channel = g * conv.outputs
        self.out = n * conv.y.image

    def tile(self, panel: Value, channels: int, pixel: Value, vectors: int, live: int) -> None:
        """Emit one tile of pixels for one panel of `channels` output channels.

        Args:
            panel: index of the panel.
            channels: of it.
            pixel: the first of the tile.
            vectors: of pixels; the last one has `live` lanes.
            live: see there.
        """
        conv, kernel, e = self.kernel.conv, self.kernel, self.e
        first = panel * kernel.tile.rows
        channel = self.group_channel + first
        out = self.out + channel * conv.y.block_stride + pixel
        tile = RegisterTile(fma(conv.dtype), kernel.lanes, vectors, 1, live)
        bias = channel_address(self.pointers, "bias", channel)
        starts = start_planes(e, self.kind, bias, channels)
        acc = [start for start in starts for _ in range(vectors)]
        w = self.w.at(first * conv.inputs)
        x = self.x.at(pixel)
        fetch = None
        if kernel.prefetch and live == kernel.lanes:
            ahead = x.at(kernel.span + panel % vectors * kernel.lanes)
            fetch = Fetch(ahead, conv.x.block_stride)
            self._prefetch_output(out, channels, vectors)
        loops = [ReductionLoop("c", conv.inputs, channels, conv.x.block_stride)]
        if conv.inputs > LENGTH:
            parts = PartialSums(e, tile, acc)
            parts.add(range(channels), w, x, loops, fetch)
            acc = parts.values()
        else:
            multiply_accumulate(e, tile, acc, range(channels), w, x, loops, fetch=fetch)
        self._store(acc, out, channel, channels, vectors, live)

    def _prefetch_output(self, out: Value, channels: int, vectors: int) -> None:
        for k in range(channels):
            line = self.pointers["y"].at(out + k * self.kernel.conv.y.block_stride)
            for j in range(vectors):
                self.e.prefetch(line.at(j * self.kernel.lanes), write=True)

    def _store(
        self,
        acc: list[Value],
        out: Value,
        channel: Value,
        channels: int,
        vectors: int,
        live: int,
    ) -> None:
        kernel, e = self.kernel, self.e
        output = ColumnOutput(e, kernel, self.target, self.kind, self.pointers, channel, channels)
        for k in range(channels):
            line = out + k * kernel.conv.y.block_stride
            for j in range(vectors):
                count = live if j == vectors - 1 else kernel.lanes
                output.store(acc[k * vectors + j], k, line + j * kernel.lanes, count)
        output.finish(kernel.lanes)


def plan_planar_pointwise(kernel: PlanarPointwise, target: Target) -> tuple[PlanarPointwise, float]:
    """Choose tile and chunks; also the estimated cycles of one core for all of it."""
    kernel = _prefetching(kernel, target)
    choices = [
        Tile(channels, vectors)
        for vectors in range(1, min(_MOST_VECTORS, ceil_div(kernel.pixels, kernel.lanes)) + 1)
        for channels in range(1, min(28, kernel.conv.outputs) + 1)
        if fits(target, channels, vectors)
    ]
    cycles, tile = min(
        ((_cycles(kernel, target, tile), tile) for tile in choices),
        key=lambda c: (c[0], -c[1].rows * c[1].vectors),
    )
    return _in_chunks(replace(kernel, tile=tile), cycles, target)


def of_any_size(
    kernel: PlanarPointwise, tile: Tile, known: PlanarPointwise, target: Target
) -> tuple[PlanarPointwise, float]:
    """Choose the chunks where the tile is chosen, in integers: extents may be symbols.

    Args:
        kernel: of a size that may be open.
        tile: its register tile.
        known: the kernel of a size whose pixels take the same cycles.
        target: the machine.

    Returns:
        The kernel, with the estimated cycles of one core; 0 where extents are symbols.
    """
    known = _prefetching(known, target)
    kernel = replace(kernel, prefetch=known.prefetch, tile=tile)
    each = _cycles(known, target, tile) / known.pixels
    pieces, tiles = kernel.conv.batch * kernel.conv.groups, ceil_div(kernel.pixels, kernel.span)
    outputs = pieces * kernel.pixels
    even = least(_LEAST_CHUNKS, outputs // ceil(target.costs.least_chunk / each))
    wanted = most(1, even, outputs // ceil(_CHUNKS * target.costs.chunk / each))
    column_blocks = least(tiles, ceil_div(wanted, pieces))
    panel_blocks = least(kernel.panels, ceil_div(wanted, pieces * column_blocks))
    planned = replace(
        kernel,
        column_tiles=ceil_div(tiles, column_blocks),
        panel_block=ceil_div(kernel.panels, panel_blocks),
    )
    if isinstance(outputs, Symbol):
        return planned, 0.0
    # Cycles of its own extents: rows of one pixel waste all lanes but one.
    return planned, _UNALIGNED * pieces * _cycles(kernel, target, tile)


def _prefetching(kernel: PlanarPointwise, target: Target) -> PlanarPointwise:
    conv = kernel.conv
    channels = (conv.inputs + conv.outputs) * conv.groups
    large = channels * kernel.pixels * conv.dtype.bytes > target.l2_bytes
    return replace(kernel, prefetch=large)


def _in_chunks(
    planned: PlanarPointwise, cycles: float, target: Target
) -> tuple[PlanarPointwise, float]:
    """Choose the chunks, where one image and group takes so many cycles."""
    tiles, panels = ceil_div(planned.pixels, planned.span), planned.panels
    pieces = planned.conv.batch * planned.conv.groups
    total = cycles * pieces
    even = min(_LEAST_CHUNKS, round(total / target.costs.least_chunk))
    wanted = max(1, even, round(total / (_CHUNKS * target.costs.chunk)))
    column_blocks = min(tiles, ceil_div(wanted, pieces))
    panel_blocks = min(panels, ceil_div(wanted, pieces * column_blocks))
    planned = replace(
        planned,
        column_tiles=ceil_div(tiles, column_blocks),
        panel_block=ceil_div(panels, panel_blocks),
    )
    return planned, _UNALIGNED * cycles * pieces


def _cycles(kernel: PlanarPointwise, target: Target, tile: Tile) -> float:
    """Estimated cycles of one image and group."""
    span = tile.vectors * kernel.lanes
    whole, rest = divmod(kernel.pixels, span)
    rest_vectors = ceil_div(rest, kernel.lanes)

    def panel(channels: int) -> float:
        cycles = whole * _tile_cycles(kernel, target, tile, channels, tile.vectors)
        if rest:
            cycles += _tile_cycles(kernel, target, tile, channels, rest_vectors)
        return cycles

    panels, last = divmod(kernel.conv.outputs, tile.rows)
    cycles = panels * panel(tile.rows) + (panel(last) if last else 0.0)
    narrow = _NARROW_LARGE if kernel.prefetch else _NARROW
    return cycles * (1 + narrow / tile.vectors)


def _tile_cycles(
    kernel: PlanarPointwise, target: Target, tile: Tile, channels: int, vectors: int
) -> float:
    """Estimated cycles of a tile, or of what is left of one at an end: arithmetic, loads, L2."""
    conv, costs, steps = kernel.conv, target.costs, kernel.conv.inputs
    loads = (costs.vector_load or 0.0) * vectors + (costs.broadcast_load or 0.0) * channels
    cycles = tile_cycles(target, channels, vectors, steps) + steps * loads
    if costs.l2_read_of_planes is None:
        return cycles
    item, plane = conv.dtype.bytes, conv.x.block_stride
    # Planes that begin within a cache line have one line more for each piece.
    split = not isinstance(plane, int) or plane * item % ALIGNMENT != 0
    step_bytes = vectors * kernel.lanes * item + split * ALIGNMENT
    kept = _L1_SHARE * target.l1_bytes / (steps * tile.vectors * kernel.lanes * item)
    stream = steps * step_bytes * max(0.0, 1 - kept) / costs.l2_read_of_planes
    return costs.overlapped(cycles, stream)
