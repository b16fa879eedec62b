"""Depthwise convolution of plain NCHW tensors: lanes along output columns, several rows at once.

    y[n, k, oh, ow] = act(bias[k] + residual +
        sum over kh, kw of x[n, k, oh·sh + kh·dh - ph, ow·sw + kw·dw - pw] · w[k, kh, kw])

One tile is `planes` channels by `rows` output rows by `vectors` vectors of output columns. Each
vector of an input row is loaded once for each tap kw (a stride's neighbouring taps share their
loads) and used for all output rows that it reaches, whose weights are broadcast inside the
multiply-add. A branch skips rows of input outside the map.

Half registers are used for rows that fill them better: 7 columns use 7 lanes of 8, instead of 7 of
16. Their loads touch two lines less often, and some targets do twice as many multiply-adds on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, prod

from leanconv.algorithms.common.conv import GroupedConv
from leanconv.algorithms.interface import good_choices
from leanconv.algorithms.planar.columns import (
    ColumnOutput,
    ColumnVectors,
    TileMasks,
    each_tile_of_row,
    shared_loads,
)
from leanconv.algorithms.planar.kernel import row_tiles
from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.microkernel import channel_address, start_planes
from leanconv.codegen.shuffles import deinterleave
from leanconv.codegen.tails import overlapping_tiles, tiles_of_chunk
from leanconv.records import dataclass, replace
from leanconv.spec.format import ALIGNMENT, ceil_div
from leanconv.symbolic import Count, Symbol, fixed, least, most
from leanconv.target import Target

_CHUNKS = 0.375  # of the record's chunk
_LEAST_CHUNKS = 16  # unless chunks then have fewer cycles than `costs.least_chunk`
_MOST_WRITTEN = 1200  # unrolled multiply-adds of all bodies together
# Accumulators of one plane from which on its multiply-adds hide the branch of an input row as well
# as those of a second plane would.
_MANY_SUMS = 8

# The uses of one input row: the output rows of a tile that read it, each with its kh.
Row = list[tuple[int, int]]
Uses = dict[int, Row]


@dataclass(frozen=True)
class PlanarDepthwise(GroupedConv):
    """One depthwise convolution's code, lanes along output columns.

    The window is flat: its depth is 1. Columns are neighbours in x and y.

    Attributes:
        lanes: lanes of the vectors used, those of a register or half of them.
        planes: channels of one tile, a divisor of the channels.
        rows: output rows of one tile.
        vectors: vectors of columns of one tile.
        plane_block: tiles of channels of one chunk.
        row_block: tiles of rows of one chunk.
        overlaps: whether the last tiles of rows and of columns may overlap those before them: one
            code serves most sizes. It adds no residual, which may lie in y.
        holds_weights: whether the weights of a tile's channels stay in registers.
    """

    VARIES = True

    lanes: int
    planes: int
    rows: int
    vectors: int
    plane_block: Count
    row_block: Count
    overlaps: bool = False
    holds_weights: bool = False

    @property
    def tile_text(self) -> str:
        """The tile, for people."""
        return f"{self.planes} channels x {self.rows} rows x {self.vectors} vectors of {self.lanes}"

    @property
    def row_tiles(self) -> int:
        """Tiles along the rows, the last one perhaps lower."""
        return ceil_div(self.conv.window.out[1], self.rows)

    @property
    def grid(self) -> tuple[int, ...]:
        """Images by blocks of channels by blocks of rows."""
        channels = ceil_div(self.conv.groups // self.planes, self.plane_block)
        return self.conv.batch, channels, ceil_div(self.row_tiles, self.row_block)

    def uses(self, rows: int) -> Uses:
        """Return for each input row, counted from a tile's first, its uses: (output row, kh)."""
        conv = self.conv
        found: Uses = {}
        for r in range(rows):
            for kh in range(conv.window.kernel[1]):
                position = r * conv.window.stride[1] + kh * conv.window.dilation[1]
                found.setdefault(position, []).append((r, kh))
        return dict(sorted(found.items()))

    def emit(self, target: Target) -> str:
        """Emit the loops: chunks, channels, tiles of rows, tiles of columns."""
        e = Function(self.NAME)
        pointers = self.addresses(e)
        tiles = self.conv.groups // self.planes
        with e.chunks(*self.grid) as chunk:
            n, block, part = chunk
            last = e.smin((block + 1) * self.plane_block, tiles)
            with e.loop("plane", last, start=block * self.plane_block) as plane:
                body = _PlaneTiles(e, self, target, pointers, n, plane * self.planes)
                for row, rows in self._tiles_of_rows(e, part):
                    body.rows(row, rows)
        return e.finish()

    def _tiles_of_rows(self, e: Function, part: Value) -> Iterator[tuple[Value, int]]:
        """Emit the body for the tiles of a chunk: the first row, and how many there are."""
        of_chunk = part, self.row_block, self.conv.window.out[1], self.rows
        if self.overlaps and self.conv.window.out[1] >= self.rows:
            yield from ((row, self.rows) for row in overlapping_tiles(e, "rows", *of_chunk))
            return
        for index, rows in tiles_of_chunk(e, "rows", *of_chunk):
            yield e.i64(index * self.rows), fixed(rows)


class _PlaneTiles:
    """Emits the tiles of a few channels."""

    def __init__(
        self,
        e: Function,
        kernel: PlanarDepthwise,
        target: Target,
        pointers: dict[str, Pointer],
        n: Value,
        channel: Value,
    ) -> None:
        conv = kernel.conv
        self.e, self.kernel, self.target, self.pointers = e, kernel, target, pointers
        self.kind = vector(conv.dtype.llvm, kernel.lanes)
        self.out = n * conv.y.image + channel * conv.y.block_stride
        self.channel = channel
        self.taps = conv.window.kernel[1] * conv.window.kernel[2]
        self.tiles = row_tiles(conv.window, kernel.lanes, kernel.vectors, target, kernel.overlaps)
        image = pointers["x"].at(n * conv.x.image)
        self.x = [image.at((channel + p) * conv.x.block_stride) for p in range(kernel.planes)]
        self.w = pointers["w"].at(channel * self.taps)
        count = kernel.planes * self.taps if kernel.holds_weights else 0
        self.held = [e.broadcast(self.w.at(tap), self.kind) for tap in range(count)]

    def rows(self, row: Value, rows: int) -> None:
        """Emit all columns of `rows` output rows from `row` on."""
        for column, tile in each_tile_of_row(self.e, self.tiles, self.kernel.lanes):
            self._tile(row, rows, column, tile)

    def _tile(self, row: Value, rows: int, column: Value, tile: ColumnVectors) -> None:
        conv, kernel, e, window = self.kernel.conv, self.kernel, self.e, self.kernel.conv.window
        vectors = len(tile.live)
        self.masks = TileMasks(e, tile, window, self.kind, self.target)
        bias = channel_address(self.pointers, "bias", self.channel)
        starts = start_planes(e, self.kind, bias, kernel.planes)
        acc = [start for start in starts for _ in range(rows * vectors)]
        top = row * window.stride[1] - window.pad[1]
        left = column * window.stride[2] - window.pad[2]
        corner = top * conv.x.spatial[1] + left
        corners = [x.at(corner) for x in self.x]
        for position, uses in kernel.uses(rows).items():
            line = top + position
            inside = line.compare("ult", window.size[1])  # unsigned: sees both ends
            for p in range(kernel.planes):
                # The branches also keep LLVM from hoisting loads of inputs and weights until
                # registers spill.
                with e.when(inside, [acc]):
                    at = corners[p].at(position * conv.x.spatial[1])
                    self._line(tile, acc, at, p, p * rows * vectors, uses)
        place = row * conv.y.spatial[1] + column
        self._store(acc, place, rows, tile)

    def _line(
        self,
        tile: ColumnVectors,
        acc: list[Value],
        at: Pointer,
        plane: int,
        slot: int,
        uses: list[tuple[int, int]],
    ) -> None:
        """Emit the products of one input row; its accumulators begin at acc[slot]."""
        kernel, e, window = self.kernel, self.e, self.kernel.conv.window
        vectors, width = len(tile.live), window.kernel[2]
        for base, kws in shared_loads(window).items():
            here = at.at(base * window.dilation[2])
            parts = [
                self.masks.load(here.at(v * window.stride[2] * kernel.lanes), tile.masks[base][v])
                for v in range(vectors)
            ]
            for kw, phase in kws:
                inputs = [deinterleave(e, part, phase) if part else None for part in parts]
                for r, kh in uses:
                    weight = self._weight(plane * self.taps + kh * width + kw)
                    for v, x in enumerate(inputs):
                        if x is not None:
                            place = slot + r * vectors + v
                            acc[place] = e.fma(x, weight, acc[place])

    def _weight(self, tap: int) -> Value:
        return self.held[tap] if self.held else self.e.broadcast(self.w.at(tap), self.kind)

    def _store(self, acc: list[Value], place: Value, rows: int, tile: ColumnVectors) -> None:
        kernel, e = self.kernel, self.e
        output = ColumnOutput(
            e, kernel, self.target, self.kind, self.pointers, self.channel, kernel.planes
        )
        values = iter(acc)
        for p in range(kernel.planes):
            for r in range(rows):
                line = (
                    self.out + place + p * kernel.conv.y.block_stride + r * kernel.conv.y.spatial[1]
                )
                for v, live in enumerate(tile.live):
                    output.store(next(values), p, line + v * kernel.lanes, live)
        output.finish(kernel.lanes - 1)


def plan_planar_depthwise(
    kernel: PlanarDepthwise, target: Target
) -> tuple[PlanarDepthwise, float] | None:
    """Choose tile and chunks; also the estimated cycles of one core.

    Returns:
        None if every tile has too much code.
    """
    choices = _choices(kernel, target)
    if not choices:
        return None
    cycles, tile = min(choices, key=lambda choice: choice[0])
    return _in_chunks(tile, cycles, target)


def _choices(kernel: PlanarDepthwise, target: Target) -> list[tuple[float, PlanarDepthwise]]:
    """The tiles that do not have too much code, with the cycles of one channel of one image."""
    return [
        (cycles, tile)
        for tile in _tiles(kernel, target)
        if (cycles := _plane_cycles(tile, target)) is not None
    ]


def good_tiles(usual: list[PlanarDepthwise], target: Target) -> list[PlanarDepthwise]:
    """Kernels of few tiles, of which one is good for each of these sizes."""

    def best(size: PlanarDepthwise) -> PlanarDepthwise | None:
        found = min(_choices(size, target), key=lambda choice: choice[0], default=None)
        return None if found is None else found[1]

    return good_choices(
        usual, best, lambda size, tile: _plane_cycles(_with_tile(size, tile), target)
    )


def _with_tile(kernel: PlanarDepthwise, tile: PlanarDepthwise) -> PlanarDepthwise:
    chosen = {
        name: getattr(tile, name)
        for name in ("lanes", "planes", "rows", "vectors", "holds_weights")
    }
    return replace(kernel, **chosen)


def of_any_size(
    kernel: PlanarDepthwise, tiles: list[PlanarDepthwise], known: PlanarDepthwise, target: Target
) -> tuple[PlanarDepthwise, float] | None:
    """Choose tile and chunks of a kernel whose code is to serve all sizes.

    Args:
        kernel: of a size that may be open.
        tiles: kernels with the tiles to consider.
        known: the kernel of the size for which one of them is chosen.
        target: the machine.

    Returns:
        The kernel, with the estimated cycles of one core; None if every tile has too much code.
    """
    known = replace(known, overlaps=kernel.overlaps)
    found = ((_plane_cycles(_with_tile(known, tile), target), tile) for tile in tiles)
    choices = [(own, tile) for own, tile in found if own is not None]
    if not choices:
        return None
    own, tile = min(choices, key=lambda choice: choice[0])
    height, width = known.conv.window.out[1:]
    planned = _in_chunks_of_any_size(_with_tile(kernel, tile), own / (height * width), target)
    planes = planned.conv.batch * planned.conv.groups
    if isinstance(planes * planned.conv.window.out[1] * planned.conv.window.out[2], Symbol):
        return planned, 0.0
    # Cycles of its own extents: narrow rows waste lanes. The kernel is that for symbols.
    return planned, planes * (_plane_cycles(planned, target) or own)


def _in_chunks_of_any_size(
    planned: PlanarDepthwise, each: float, target: Target
) -> PlanarDepthwise:
    """Choose the chunks by the cycles of one output, in integers: extents may be symbols."""
    conv = planned.conv
    tiles, (_, height, width) = conv.groups // planned.planes, conv.window.out
    outputs = conv.batch * conv.groups * height * width
    even = least(_LEAST_CHUNKS, outputs // ceil(target.costs.least_chunk / each))
    chunks = outputs // ceil(_CHUNKS * target.costs.chunk / each)
    wanted = ceil_div(most(1, even, chunks), conv.batch)
    plane_blocks = least(tiles, wanted)
    row_blocks = least(planned.row_tiles, ceil_div(wanted, plane_blocks))
    return replace(
        planned,
        plane_block=ceil_div(tiles, plane_blocks),
        row_block=ceil_div(planned.row_tiles, row_blocks),
    )


def _in_chunks(
    planned: PlanarDepthwise, cycles: float, target: Target
) -> tuple[PlanarDepthwise, float]:
    """Choose the chunks of a kernel whose tile is chosen; also the estimated cycles of one core."""
    tiles = planned.conv.groups // planned.planes
    total = cycles * planned.conv.batch * planned.conv.groups
    even = min(_LEAST_CHUNKS, round(total / target.costs.least_chunk))
    chunks = round(total / (_CHUNKS * target.costs.chunk))
    wanted = ceil_div(max(1, even, chunks), planned.conv.batch)
    plane_blocks = min(tiles, wanted)
    row_blocks = min(planned.row_tiles, ceil_div(wanted, plane_blocks))
    planned = replace(
        planned,
        plane_block=ceil_div(tiles, plane_blocks),
        row_block=ceil_div(planned.row_tiles, row_blocks),
    )
    return planned, total


def _tiles(kernel: PlanarDepthwise, target: Target) -> list[PlanarDepthwise]:
    """Every tile whose sums and inputs fit the registers beside one weight, or all of them."""
    conv = kernel.conv
    full = target.vector_bytes // conv.dtype.bytes
    stride = conv.window.stride[2]
    read = stride + (stride > 1)  # for a vector of columns, those loaded and the one made of them
    narrow = conv.window.out[2] <= full // 2
    halves = (full // 2,) if narrow or target.splits_vectors else ()
    widths = (*halves, full) if narrow else (full, *halves)
    tiles = []
    for lanes in widths:
        for vectors in range(1, min(8, ceil_div(conv.window.out[2], lanes)) + 1):
            for rows in range(1, min(8, conv.window.out[1]) + 1):
                for planes in (1, 2):
                    if conv.groups % planes:
                        continue
                    used = planes * rows * vectors + vectors * read + 2
                    for held in (0, planes * prod(conv.window.kernel)):
                        if used + held <= target.usable_registers:
                            tile = replace(kernel, lanes=lanes, planes=planes, rows=rows)
                            tile = replace(tile, vectors=vectors, holds_weights=held > 0)
                            tiles.append(tile)
    return tiles


def _plane_cycles(kernel: PlanarDepthwise, target: Target) -> float | None:
    """Estimated cycles of one channel of one image; None if the code would be too long."""
    conv, window, costs = kernel.conv, kernel.conv.window, target.costs
    half = kernel.lanes * conv.dtype.bytes < target.vector_bytes
    units = target.fma_units * (2 if half and target.splits_vectors else 1)
    # Unaligned vectors of a whole line always touch two lines.
    whole_line = kernel.lanes * conv.dtype.bytes == ALIGNMENT
    slots = costs.unaligned_line if whole_line else costs.unaligned_part
    whole, rest = divmod(window.out[1], kernel.rows)
    if kernel.overlaps and whole and rest:
        whole, rest = whole + 1, 0
    if kernel.planes * min(kernel.rows, window.out[1]) * prod(window.kernel) > _MOST_WRITTEN:
        return None
    tiles = row_tiles(window, kernel.lanes, kernel.vectors, target, kernel.overlaps)
    written = 0
    cycles = 0.0
    loads = len(shared_loads(window)) * window.stride[2] * slots
    hidden = kernel.planes if kernel.rows * kernel.vectors < _MANY_SUMS else 1
    for rows, starts in ((kernel.rows, range(whole)), (rest, range(whole, whole + bool(rest)))):
        if not starts:
            continue
        uses = kernel.uses(rows)
        products = sum(len(u) for u in uses.values()) * window.kernel[2]
        for tile in tiles:
            vectors = len(tile.live)
            written += kernel.planes * products * vectors
            for count, inside in _met(kernel, uses, starts):
                met = sum(map(len, inside)) * window.kernel[2]
                loaded = 0 if kernel.holds_weights else met
                arithmetic = max(
                    met * vectors / units,
                    (len(inside) * loads * vectors + loaded) / costs.loads_per_cycle,
                    met * target.fma_latency / (rows * kernel.planes),
                )
                overhead = costs.row_jump * len(inside) / hidden
                overhead += costs.store * rows * vectors
                cycles += count * tile.count * (arithmetic + overhead)
    return cycles if written <= _MOST_WRITTEN else None


def _met(kernel: PlanarDepthwise, uses: Uses, tiles: range) -> Iterator[tuple[int, list[Row]]]:
    """The uses of the input rows inside the plane, for each of these tiles along the rows.

    Consecutive tiles with the same uses, such as all between the ends of a plane, are yielded once
    with their number.
    """
    window = kernel.conv.window
    step, pad, size = kernel.rows * window.stride[1], window.pad[1], window.size[1]
    first = min(max(tiles.start, ceil_div(pad, step)), tiles.stop)
    stop = max(first, min(tiles.stop, (size - 1 - max(uses) + pad) // step + 1))
    if first < stop:
        yield stop - first, list(uses.values())
    for tile, end in ((tiles.start, first), (stop, tiles.stop)):
        while tile < end:
            top = tile * step - pad
            # Until a row comes into the plane, or leaves it.
            ahead = [edge - top - i for i in uses for edge in (0, size) if top + i < edge]
            alike = min([end - tile, *(ceil_div(rows, step) for rows in ahead)])
            yield alike, [use for i, use in uses.items() if 0 <= top + i < size]
            tile += alike
