"""Register tiles of the direct gradient of weights: their loops, and what they prefetch meanwhile.

    for image, row, column:   acc[i][j] += broadcast(x[i]) · dy[j]

What is copied next, or read in place next, lies in L3 or DRAM: a copy would wait for each of its
lines. So the steps of all tiles prefetch it into L2, as evenly as they can: a burst would fill the
buffers in which the tiles' own lines wait. A stream has pieces, such as planes. Where pieces are
more than tiles, a tile walks along several of them at once, a step in each in turn; where they are
fewer, several tiles share a piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from leanconv.codegen.emitter import Carry, Function, Pointer, Value
from leanconv.codegen.geometry import Access
from leanconv.codegen.microkernel import RegisterTile, multiply_accumulate
from leanconv.spec.format import ALIGNMENT, ceil_div

_MOST_PIECES = 16  # of a tile: a line of float32 has as many columns


class Walk(NamedTuple):
    """An address, and elements from one image, row and column of a strip to the next."""

    address: Pointer
    image: Value | int
    row: Value | int
    column: Value | int

    def moved(self, by: Value | int) -> Walk:
        """Return the same walk, `by` elements further."""
        return self._replace(address=self.address.at(by))


class Extents(NamedTuple):
    """Images, rows and columns of a strip; a number that is 1 is no loop."""

    image: Value | int
    row: Value | int
    column: Value | int


def is_planes(access: Access) -> bool:
    """Return whether channels are planes, whose columns lie side by side."""
    return access.block == 1 and access.block_stride != 1


class Ahead(NamedTuple):
    """What the steps of a tile prefetch.

    Attributes:
        walk: as that of the operands; a column is a step.
        piece: elements from one piece to the next.
        pieces: of the tile, a power of two.
        shift: steps that prefetch one line, as a power of two.
    """

    walk: Walk
    piece: Value | int
    pieces: int
    shift: int

    def at(self, line: Pointer, first: Value | int, column: Value | int, e: Function) -> Pointer:
        """The address of a step.

        Args:
            line: of its row.
            first: steps of the piece before the row.
            column: of the row.
            e: the function to append to.
        """
        if self.shift:
            step = e.i64(first + column)
            return line.at((step // (1 << self.shift)) * self.walk.column)
        at = line.at(column * self.walk.column)
        if self.pieces == 1:
            return at
        return at.at((e.i64(column) & (self.pieces - 1)) * self.piece)


class Stream:
    """Channels of a strip that the tiles of another one prefetch.

    Args:
        e: the function to append to.
        access: strides of the tensor.
        address: of the strip's first pixel and first channel.
        item: bytes of an element.
        channels: how many.
        all_channels: whether these are all that the tensor has.
        tiles: register tiles that prefetch.
        rows: of the tensor for each of the strip, and how many of these are read.
        columns: of the tensor for each of the strip.
        extents: of the strip.
    """

    def __init__(
        self,
        e: Function,
        access: Access,
        address: Pointer,
        item: int,
        channels: int,
        all_channels: bool,
        tiles: int,
        rows: tuple[int, int],
        columns: int,
        extents: Extents,
    ) -> None:
        self.e, self._extents = e, extents
        pixel, line = access.spatial[2], ALIGNMENT // item
        run = channels if access.block_stride == 1 else access.block  # channels side by side
        self._pieces, self._piece = ceil_div(channels, run), access.block_stride
        self._each, self._shift, shared = 1, 0, 1
        step, row = rows[1] * columns * pixel, rows[0] * access.spatial[1]
        if run > 1 and run != pixel and not all_channels:  # lines of pixels that lie apart
            self._pieces, self._piece = ceil_div(channels, line), line
            shared = 1 << max(0, (tiles // self._pieces).bit_length() - 1)
            self._shift = shared.bit_length() - 1
            step = columns * pixel
        elif self._pieces < tiles:
            shared = max(1, min(tiles // self._pieces, step))
            step, row = ceil_div(step, shared), row // shared
        if self._pieces > tiles:
            wanted = ceil_div(self._pieces, tiles)
            self._each = min(_MOST_PIECES, 1 << (wanted - 1).bit_length())
        self._shared = shared
        self._walk = Walk(address, access.image, 0 if self._shift else row, step)

    def ahead(self, tile: Value, nothing: Pointer) -> Ahead:
        """What a tile prefetches, by its number; `nothing` is near, for tiles without a part."""
        e, shared, walk = self.e, self._shared, self._walk
        first = tile // shared * self._each
        part = tile % shared
        some = first.compare("ult", self._pieces)
        place = first * self._piece
        pixels = e.i64(self._extents.row) * self._extents.column
        pixels = part * pixels // shared if self._shift else part * pixels
        place = place + pixels * walk.column
        address = e.select(some, walk.address.at(place), nothing)
        image, row, step, piece = (
            e.select(some, e.i64(stride), e.i64(0))
            for stride in (walk.image, walk.row, walk.column, self._piece)
        )
        return Ahead(Walk(address, image, row, step), piece, self._each, self._shift)


def accumulate(
    e: Function,
    tile: RegisterTile,
    acc: Carry,
    rows: Sequence[int],
    x: Walk,
    dy: Walk,
    extents: Extents,
    ahead: Sequence[Ahead] = (),
) -> None:
    """Add the products of a strip to the accumulators of a tile.

    Args:
        e, tile, acc, rows: as in `multiply_accumulate`.
        x, dy: its operands.
        extents: of the strip.
        ahead: what to prefetch.
    """
    with _over(e, "image", extents.image, acc) as i:
        x_i, dy_i = x.address.at(i * x.image), dy.address.at(i * dy.image)
        images = [each.walk.address.at(i * each.walk.image) for each in ahead]
        with _over(e, "row", extents.row, acc) as r:
            a, b = x_i.at(r * x.row).frozen(), dy_i.at(r * dy.row).frozen()
            lines = [
                at.at(r * each.walk.row).frozen() for at, each in zip(images, ahead, strict=True)
            ]
            before = r * extents.column
            with _over(e, "column", extents.column, acc) as q:
                for line, each in zip(lines, ahead, strict=True):
                    e.prefetch(each.at(line, before, q, e), locality=2)
                at = a.at(q * x.column), b.at(q * dy.column)
                multiply_accumulate(e, tile, acc, rows, *at, ())


@contextmanager
def _over(e: Function, label: str, extent: Value | int, acc: Carry) -> Iterator[Value | int]:
    """Loop over an extent; an index of 0 where that is 1."""
    if isinstance(extent, int) and extent == 1:
        yield 0
        return
    with e.loop(label, extent, [acc]) as index:
        yield index
