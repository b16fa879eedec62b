"""1x1 convolution of plain NCHW tensors, lanes along output channels, a blocked reduction.

    y[n, k, p] = act(bias[k] + residual + sum over parts, c of the part of  x[n, c, p] · w[k, c])

over all pixels p of a map as one row. One chunk is some tiles of pixels of one vector of output
channels, whose weights stay in L1 meanwhile:

    for part of the channels:     128 of them: 8 KiB of weights
        for tile of pixels:
            sums[tile] += x[part, tile] · w[part]      start value: the bias; kept in scratch

A tile is one vector of accumulators wide. Two vectors would double the weights that L1 holds
beside the lines of x; these come from L2, two or three for each channel, as many for 5 pixels as
for 16. Tiles are of nearly equal size: 289 pixels are 4 tiles of 16 and 15 of 15. No tile has more
rows than the square that is transposed to store them along pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

from leanconv.algorithms.common.conv import merge_rows
from leanconv.algorithms.direct.shape import PackedConv, prefetch_offsets
from leanconv.codegen.dot import computes_floats, dot_of
from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.epilogue import TileOutput, store_tile
from leanconv.codegen.microkernel import (
    ReductionLoop,
    RegisterTile,
    channel_address,
    multiply_accumulate,
    start_vectors,
)
from leanconv.codegen.partial_sums import LENGTH
from leanconv.codegen.tails import tile_at
from leanconv.codegen.tiling import fits, rows_per_chunk, step_cycles
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.target import Target

_ROWS = 16  # pixels of a tile, at most
_LEAST_ROWS = 8  # with fewer, too many loads of weights for each multiply-add
_CHUNKS = 2.5  # cycles of a chunk, over `costs.chunk`: large chunks reload fewer weights
# Share of `costs.transposed_store` for each multiply-add unit: with only one unit, other ports
# transpose while the next tile begins.
_STORE_SHARE = 0.5


@dataclass(frozen=True, kw_only=True)
class DirectPointwise(PackedConv):
    """One 1x1 convolution's code.

    Attributes:
        most_pixels: pixels of a tile, at most.
        chunk_tiles: tiles of one chunk.
    """

    panel_vectors = 1

    most_pixels: int
    chunk_tiles: int

    @property
    def pixels(self) -> int:
        """Pixels of one map."""
        return self.conv.window.out[2]

    @property
    def tile_count(self) -> int:
        """Tiles of pixels of one map."""
        return ceil_div(self.pixels, self.most_pixels)

    @property
    def blocks(self) -> int:
        """Chunks along the tiles of one map."""
        return ceil_div(self.tile_count, self.chunk_tiles)

    @property
    def grid(self) -> tuple[int, ...]:
        """Phases by images, groups, panels, blocks of tiles."""
        return self.phases * self.conv.batch, self.conv.groups, self.panels, self.blocks

    @property
    def largest(self) -> int:
        """Pixels of the largest tile."""
        return ceil_div(self.pixels, self.tile_count)

    @property
    def parts(self) -> int:
        """Parts of the sum."""
        return ceil_div(self.conv.inputs, LENGTH)

    @property
    def part(self) -> int:
        """Input channels of one part, the last one perhaps shorter."""
        return min(self.conv.inputs, LENGTH)

    @property
    def scratch_bytes(self) -> int:
        """The sums of one chunk."""
        if self.parts == 1:
            return 0
        return self.conv.precision.accumulate.bytes * self.chunk_tiles * self.largest * self.lanes

    def emit(self, target: Target) -> str:
        """Emit the loops: chunks, parts, tiles."""
        conv, e = self.conv, Function(self.NAME)
        pointers = self.addresses(e)
        with e.chunks(*self.grid) as (n, g, panel, block):
            first = block * self.chunk_tiles
            last = e.smin(first + self.chunk_tiles, self.tile_count)
            moved, n = self.of_phase(e, pointers, n)
            chunk = _Chunk(e, self, moved, (n, g, panel), first, last)
            for channels in tile_at(e, panel, conv.outputs, self.lanes):
                chunk.emit(channels)
        return e.finish()


class _Chunk:
    """Emission of the tiles first … last - 1 of one vector of output channels."""

    def __init__(
        self,
        e: Function,
        kernel: DirectPointwise,
        pointers: dict[str, Pointer],
        place: tuple[Value, Value, Value],
        first: Value,
        last: Value,
    ) -> None:
        conv = kernel.conv
        self.e, self.kernel, self.pointers, self.first, self.last = e, kernel, pointers, first, last
        element = conv.precision.accumulate.llvm
        self.kind, self.sums = vector(element, kernel.lanes), e.scratch.of(element)
        self.image, g, panel = place
        channel = (g * kernel.panels + panel) * kernel.lanes  # of those that are packed
        self.bias = channel_address(pointers, "bias", channel)
        self.slope = channel_address(pointers, "slope", channel)
        self.group_w = pointers["w"].at(g * kernel.group_weights)
        self.w = self.group_w.at(panel * (conv.inputs * kernel.lanes))
        x = self.image * conv.x.image + g * conv.x.channel(conv.inputs)
        self.x = pointers["x"].at(x)
        y = self.image * conv.y.image + g * conv.y.channel(conv.outputs) + conv.y_offset
        self.out = y + panel * conv.y.channel(kernel.lanes)

    def emit(self, channels: int) -> None:
        """Emit the chunk; `channels` of its lanes are output channels."""
        kernel, e = self.kernel, self.e
        starts = start_vectors(e, self.kind, self.bias)
        if kernel.parts == 1:
            self._tiles(
                lambda tile, pixel, pixels: self._store(
                    self._products(e.i64(0), tile, pixel, starts * pixels),
                    pixel,
                    channels,
                )
            )
            return

        def begin(tile: Value, pixel: Value, pixels: int) -> None:
            del pixel
            for i in range(pixels):
                e.store(starts[0], self._sum(tile, i))

        self._tiles(begin)
        with e.loop("part", kernel.parts) as part:
            self._tiles(lambda tile, pixel, pixels: self._add(part, tile, pixel, pixels, channels))

    def _tiles(self, body: Callable[[Value, Value, int], None]) -> None:
        """Emit a body for all tiles, given a tile's index, its first pixel, and its pixels."""
        kernel, e = self.kernel, self.e
        small, larger = divmod(kernel.pixels, kernel.tile_count)
        kinds = (small + 1, 0, larger), (small, larger, kernel.tile_count)
        for pixels, low, high in kinds:
            if low < high:
                first, last = e.smax(self.first, low), e.smin(self.last, high)
                with e.when(first.compare("slt", last)):
                    with e.loop("tile", last, start=first) as tile:
                        body(tile, tile * pixels + (larger if low else 0), pixels)

    def _sum(self, tile: Value, i: int) -> Pointer:
        """Address of one pixel's sums."""
        place = (tile - self.first) * (self.kernel.largest * self.kernel.lanes)
        return self.sums.at(place + i * self.kernel.lanes)

    def _products(self, part: Value, tile: Value, pixel: Value, acc: list[Value]) -> list[Value]:
        """Add one part's products to the accumulators, one for each pixel."""
        conv, kernel, e = self.kernel.conv, self.kernel, self.e
        c, extent = part * kernel.part, kernel.part
        length: Value | int = extent
        if conv.inputs % extent:
            length = e.smin(c + extent, conv.inputs) - c
        a = self.x.at(c * conv.x.block_stride + pixel)
        register = replace(self._register, prefetch_offsets=self._prefetch_offsets(tile))
        loops = [ReductionLoop("c", length, conv.x.block_stride, kernel.lanes)]
        b = self.w.at(c * kernel.lanes)
        multiply_accumulate(e, register, acc, range(len(acc)), a, b, loops)
        return acc

    @property
    def _register(self) -> RegisterTile:
        return RegisterTile(dot_of(self.kernel.conv.precision, "fma"), self.kernel.lanes, 1, 1)

    def _prefetch_offsets(self, tile: Value) -> tuple[Value, ...]:
        """Distances of the lines that each step of a tile prefetches for a later stage."""
        prefetched, kernel = self.pointers.get("prefetched"), self.kernel
        if prefetched is None:
            return ()
        index, tiles = self.image * kernel.tile_count + tile, kernel.conv.batch * kernel.tile_count
        return prefetch_offsets(self.e, kernel, prefetched, self.group_w, tiles, index)

    def _add(self, part: Value, tile: Value, pixel: Value, pixels: int, channels: int) -> None:
        """Add one part's products to a tile's sums; the last part finishes them."""
        kernel, e = self.kernel, self.e
        acc = self._products(part, tile, pixel, [e.zero(self.kind)] * pixels)
        acc = [e.load(self._sum(tile, i), self.kind) + value for i, value in enumerate(acc)]
        with e.when(part.compare("ult", kernel.parts - 1)):
            for i, value in enumerate(acc):
                e.store(value, self._sum(tile, i))
        with e.when(part.compare("eq", kernel.parts - 1)):
            self._store(acc, pixel, channels)

    def _store(self, acc: list[Value], pixel: Value, channels: int) -> None:
        conv, place = self.kernel.conv, self.out + pixel
        residual = self.pointers.get("residual")
        out = TileOutput(
            conv.epilogue,
            conv.y,
            self.pointers["y"].at(place),
            residual.at(place) if residual else None,
            self.slope,
            conv.stored,
        )
        store_tile(self.e, self._register, acc, out, channels)


def plan_direct_pointwise(
    kernel: PackedConv, target: Target
) -> tuple[DirectPointwise, float] | None:
    """Choose tile and chunks; also the estimated cycles of one core for all of it.

    Args:
        kernel: a convolution without tile and chunks.
        target: the machine.

    Returns:
        None if it is not a 1x1 convolution from planes to planes, or the map or the registers are
        too small.
    """
    conv = merge_rows(kernel.conv)
    window = conv.window
    if not (window.is_pointwise and computes_floats(conv.precision)):
        return None
    planes = all(a.block == 1 == a.spatial[2] for a in (conv.x, conv.y))
    rows = kernel.lanes * max(1, _ROWS // kernel.lanes)
    pixels = window.out[2]
    if not planes or window.out != (1, 1, pixels) or not fits(target, rows, 1):
        return None
    tiles = ceil_div(pixels, rows)
    if pixels < tiles * _LEAST_ROWS:
        return None
    steps = conv.inputs * max(float(target.fma_latency), step_cycles(target, rows, 1))
    costs = target.costs
    store = _STORE_SHARE * costs.transposed_store * target.fma_units * rows
    cycles = steps + ceil_div(conv.inputs, LENGTH) * costs.accumulator * rows + store
    cycles *= pixels / (tiles * rows)
    panels = conv.batch * conv.groups * ceil_div(conv.outputs, kernel.lanes)
    given = {field.name: getattr(kernel, field.name) for field in fields(PackedConv)}
    given["conv"] = conv
    per_chunk = rows_per_chunk(tiles, cycles, panels, _CHUNKS * costs.chunk)
    made = DirectPointwise(**given, most_pixels=rows, chunk_tiles=per_chunk)
    return made, cycles * tiles * panels
