"""Winograd's gradient of weights in blocks of tiles: their sizes and costs, and all kernels."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from math import prod
from typing import NamedTuple

from leanconv.algorithms.common.conv import Conv
from leanconv.algorithms.interface import KernelUse
from leanconv.algorithms.problem import Problem
from leanconv.algorithms.weight_gradient.winograd_products import Ahead
from leanconv.algorithms.weight_gradient.winograd_sums import PointSums, WeightSums
from leanconv.algorithms.weight_gradient.winograd_tiles import WeightTiles
from leanconv.algorithms.weight_gradient.winograd_transform import TileTransform
from leanconv.algorithms.winograd.shape import Pair
from leanconv.algorithms.winograd.sizes import Piece, split
from leanconv.codegen.partial_sums import LENGTH
from leanconv.codegen.tiling import rank_tiles
from leanconv.records import replace
from leanconv.spec.format import ALIGNMENT, ceil_div
from leanconv.target import Target

_L1_PARTS = 4  # of which strips of x or dy may fill one, beside V or U
_L2_PARTS = 2  # of which M of a chunk may fill one
_BLOCK_SHARES = (2, 4, 8)  # parts of L2 of which V and U of a block may fill one
_PAGE, _FAR_PAGES = 4096, 32  # bytes; pages of the last TLB for each of the first, at least
_LEAST_CHUNKS = 8
LEAST_TILES = 16  # of a block that is one of several
_SHOWN = 0.25  # of what is moved beside products, the part that they do not hide
_STREAMS = 2  # parts of L3's share: M, and what passes through, x and dy
_MOST_PARTS = 4  # of the panels of a point


class Part(NamedTuple):
    """Taps that are computed together.

    Attributes:
        work: these taps, with a register tile.
        places: the convolution, or one for each residue of its dilation.
        any_size: whether the register tile is that of all sizes of images.
    """

    work: WeightTiles
    places: tuple[Conv, ...]
    any_size: bool

    def grid(self, place: Conv) -> Pair:
        """Rows of tiles of all images, and tiles of a row."""
        (_, height, width), (mh, mw) = place.window.out, self.work.m
        return place.batch * ceil_div(height, mh), ceil_div(width, mw)

    @property
    def tiles(self) -> int:
        """Tiles of all residues."""
        return sum(prod(self.grid(place)) for place in self.places)

    @property
    def widest(self) -> int:
        """Tiles of a row."""
        return max(self.grid(place)[1] for place in self.places)


def parts_of(problem: Problem, target: Target, m: Pair) -> list[Part]:
    """The parts of a kernel, one where it has few taps, for tiles of m outputs."""
    pieces = sorted(split(problem), key=lambda piece: piece.cut)
    return [_part(problem, list(found), target, m) for _, found in groupby(pieces, lambda p: p.cut)]


def _part(problem: Problem, pieces: list[Piece], target: Target, m: Pair) -> Part:
    conv = pieces[0].problem.conv
    _, height, width = problem.conv.window.kernel
    _, *stride = conv.window.stride
    work = WeightTiles(
        groups=conv.groups,
        inputs=conv.inputs,
        outputs=conv.outputs,
        kernel=(height, width),
        taps=pieces[0].taps,
        stride=(stride[0], stride[1]),
        m=m,
        dtype=conv.dtype,
        lanes=conv.lanes(target),
    )
    return Part(work, tuple(piece.problem.conv for piece in pieces), bool(problem.any_size))


# -- blocks --------------------------------------------------------------------------------------
def _tile_bytes(work: WeightTiles) -> int:
    """Bytes of V and U of one tile."""
    return work.groups * work.points * (work.v_row + work.u_row) * work.dtype.bytes


def block_sizes(part: Part, target: Target) -> list[int]:
    """Tiles of a block that may be the fastest: all, or whole rows of them for L2."""
    rows = ceil_div(part.tiles, part.widest)
    few_pages = part.tiles * _tile_bytes(part.work) <= _FAR_PAGES * target.costs.tlb_pages * _PAGE
    sizes = [part.tiles] if few_pages or rows == 1 else []
    row = _tile_bytes(part.work) * part.widest
    rooms = (target.l2_bytes // share // row for share in _BLOCK_SHARES)
    least = ceil_div(LEAST_TILES, part.widest)
    for most in dict.fromkeys((*(max(room, least) for room in rooms), least)):
        if most < rows:
            sizes.append(ceil_div(rows, ceil_div(rows, most)) * part.widest)
    return list(dict.fromkeys(sizes)) or [part.tiles]


def with_tile(part: Part, tiles: int, target: Target) -> tuple[float, WeightTiles]:
    """The cycles of all products of a block, and the register tile that has these."""
    work, (_, rows) = part.work, part.work.v_runs
    steps = LENGTH if part.any_size else min(tiles, LENGTH)
    cycles, tile = rank_tiles(target, rows, work.out_vectors, steps)[0]
    each = ceil_div(rows, ceil_div(rows, tile.rows))
    sums = tiles / steps if part.any_size else ceil_div(tiles, steps)
    count = work.groups * work.products * sums
    return count * cycles, replace(work, rows=each, vectors=tile.vectors)


def block_cycles(part: Part, tiles: int, target: Target) -> float:
    """Estimated cycles of one core with blocks of so many tiles."""
    work, costs = part.work, target.costs
    blocks = ceil_div(part.tiles, tiles)
    conv, into = part.places[0], 0.0
    sides = (conv.x, work.v_vectors), (conv.y, work.out_vectors)
    for access, vectors in sides:
        gathered = 0.0 if access.lanes_contiguous else costs.winograd_gather
        into += vectors * (costs.winograd_input + gathered)
    into *= work.groups * work.points * part.tiles
    products = blocks * with_tile(part, tiles, target)[0]
    vectors = work.groups * work.inputs * work.out_vectors
    back = vectors * work.runs * work.points * costs.winograd_output
    back += vectors * prod(work.extent) * costs.transposed_vector
    return into + products + back + _traffic(part, tiles, target) + 3 * blocks * costs.stage


def _traffic(part: Part, tiles: int, target: Target) -> float:
    """Cycles to read x and dy, and to move V, U and M where L2 does not hold them.

    Most of that is prefetched beside the products. What L2 holds costs nothing more: transforms and
    products are measured with it.
    """
    work, costs, item = part.work, target.costs, part.work.dtype.bytes
    blocks, size = ceil_div(part.tiles, tiles), tiles * _tile_bytes(work)
    images = sum(place.input_bytes + place.output_bytes for place in part.places)
    sums = work.m_elements * item if blocks > 1 else 0

    def beyond(held: float, room: float) -> float:
        """The share that is not there when it is used again, after so many bytes."""
        return max(0.0, 1 - room / held)

    reads = [1, 1]
    if blocks == 1:  # by each chunk of the sums
        work = with_tile(part, tiles, target)[1]
        channels, panels = _chunk(work, target)
        reads = [ceil_div(work.panels, panels), ceil_div(work.inputs, channels)]
    v, u = (work.elements(part.tiles, row) * item for row in (work.v_row, work.u_row))
    again = 2 * (blocks - 1) * sums
    moved = v * (1 + reads[0]) + u * (1 + reads[1]) + again
    near = costs.l2_share * target.l2_bytes
    cycles = moved * beyond(size + sums + images // blocks, near) / costs.l3_copy
    # The points of a tile are lines of as many pages.
    cycles += (v + u) * beyond(size, near) * costs.strided_line / ALIGNMENT
    cycles += images / costs.l3_or_dram_read(images, target.l3_bytes)
    # Each block reads all of M: nothing is prefetched early enough from DRAM.
    far = beyond(size + sums, costs.l3_share * target.l3_bytes / _STREAMS)
    return _SHOWN * cycles + again * far * max(0.0, 1 / costs.dram_copy - 1 / costs.l3_copy)


def _chunk(work: WeightTiles, target: Target) -> tuple[int, int]:
    """Input channels and panels of a chunk of `WeightSums`."""
    room = target.l2_bytes // _L2_PARTS // (work.points * work.dtype.bytes)
    each = work.runs * work.panel_lanes
    channels, panels = work.inputs, work.panels

    def chunks() -> int:
        return work.groups * ceil_div(work.inputs, channels) * ceil_div(work.panels, panels)

    def halved(count: int, unit: int) -> int:
        return ceil_div(ceil_div(count, 2), unit) * unit

    while channels * panels * each > room or chunks() < _LEAST_CHUNKS:
        wide = panels * work.panel_lanes > channels
        if panels > 1 and (wide or channels <= work.lanes):
            panels = halved(panels, 1)
        elif channels > work.lanes:
            channels = halved(channels, work.lanes)
        else:
            break
    return channels, panels


# -- the candidate -------------------------------------------------------------------------------
class _Segment(NamedTuple):
    """Neighbouring rows of tiles of a residue: its number, the first row, and how many."""

    place: int
    first: int
    rows: int


def _blocks(part: Part, tiles: int) -> Iterator[list[_Segment]]:
    """The rows of tiles of all residues, cut into blocks of at most so many tiles."""
    block: list[_Segment] = []
    room = tiles
    for number, place in enumerate(part.places):
        first, (rows, width) = 0, part.grid(place)
        while first < rows:
            if room < width:
                yield block
                block, room = [], tiles
            taken = min(room // width, rows - first)
            block.append(_Segment(number, first, taken))
            first, room = first + taken, room - taken * width
    yield block


def kernel_uses(
    part: Part, tiles: int, target: Target, sums_dy: bool = False
) -> Iterator[KernelUse]:
    """The kernels of a part, in blocks of so many tiles; with sums of dy, if these are wanted."""
    work = with_tile(part, tiles, target)[1]
    channels, panels = _chunk(work, target)
    blocks = list(_blocks(part, tiles))
    flops = sum(place.flops for place in part.places)
    far = int(tiles * _tile_bytes(work) > target.l2_bytes)
    made = [[_transform(part, place, x, target) for x in (True, False)] for place in part.places]
    sum_rows = 0
    for number, block in enumerate(blocks):
        at = 0
        for segment in block:
            for whole in made[segment.place]:
                first, count = segment.first, segment.rows
                kernel = replace(whole, first=first, count=count, at=at, held=tiles)
                if sums_dy and not whole.of_x:
                    kernel = replace(kernel, sums_dy=True, sums_at=sum_rows)
                    sum_rows += kernel.sum_rows
                images = ("x", "V") if whole.of_x else ("dy", "U")
                yield KernelUse(kernel, (*images, *kernel.operands[2:]))
            at += segment.rows * part.grid(part.places[segment.place])[1]
        last, adds = number == len(blocks) - 1, int(number > 0)
        share = flops * at // part.tiles
        summed = ("V", "U", "M" if len(blocks) > 1 else "V")  # a single block adds to nothing
        if last:
            sums = WeightSums(work, at, tiles, adds, share, far, channels, panels)
            yield KernelUse(sums, (*summed, "dw"))
        else:
            parts = min(work.panels, _MOST_PARTS)
            following = blocks[number + 1][0]
            x, dy = (_ahead(part, following, of_x) for of_x in (True, False))
            added = PointSums(work, at, tiles, adds, share, far, parts, x, dy)
            yield KernelUse(added, (*summed, "x", "dy", "M"))


def _ahead(part: Part, segment: _Segment, of_x: bool) -> Ahead:
    """The lines that rows of tiles read, those of one image."""
    conv, work = part.places[segment.place], part.work
    access, window = (conv.x, conv.window) if of_x else (conv.y, conv.window)
    (_, height, _), offset = (window.size, conv.x_offset) if of_x else (window.out, conv.y_offset)
    tiles = part.grid(conv)[0] // conv.batch
    image, row = divmod(segment.first, tiles)
    rows = min(segment.rows, tiles - row)
    step, span = (work.stride[0], work.alpha[0]) if of_x else (1, work.m[0])
    first = max(0, row * work.m[0] * step - (window.pad[1] if of_x else 0))
    count = min(((rows - 1) * work.m[0] + span) * step, height - first)
    if count < 1:
        return Ahead()
    channels = conv.in_channels if of_x else conv.out_channels
    blocks = 1 if access.block == 1 == access.block_stride else ceil_div(channels, access.block)
    place = offset + image * access.image + first * access.spatial[1]
    elements = ALIGNMENT // work.dtype.bytes
    return Ahead(place, blocks, access.block_stride, ceil_div(count * access.spatial[1], elements))


def _transform(part: Part, place: Conv, of_x: bool, target: Target) -> TileTransform:
    """The transform of x or dy, with the rows and columns of tiles of a chunk."""
    work, (rows, width) = part.work, part.grid(place)
    kernel = TileTransform(work, place, of_x, 0, rows, 0, 0, 1, width)
    while kernel.columns > 1 and kernel.scratch_bytes > target.l1_bytes // _L1_PARTS:
        kernel = replace(kernel, columns=ceil_div(kernel.columns, 2))
    cycles = work.points * width * target.costs.winograd_input
    each = max(1, round(target.costs.chunk / cycles))
    return replace(kernel, rows=min(each, kernel.tiles[0]))


def held_tiles(part: Part, tiles: int) -> int:
    """Tiles of a block, where so many are asked for."""
    return max(part.widest, min(tiles, part.tiles))
