"""Where the elements of a tensor lie, and which taps of a window touch the input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from leanconv.spec import PLAIN, Format
from leanconv.spec.format import ceil_div

Triple = tuple[int, int, int]


def triple(values: tuple[int, ...], fill: int) -> Triple:
    """Extend a spatial tuple of one or two axes to (d, h, w)."""
    d, h, w = (fill,) * (3 - len(values)) + values
    return d, h, w


@dataclass(frozen=True)
class Access:
    """Addresses of a tensor with axes (image, channel, d, h, w), strides in elements.

    Element (n, c, d, h, w) lies at
    `n*image + c//block*block_stride + c%block + d*spatial[0] + h*spatial[1] + w*spatial[2]`;
    a block of one channel stands for a plain layout, `block_stride` apart.
    """

    image: int
    block: int
    block_stride: int
    spatial: Triple

    @property
    def lanes_contiguous(self) -> bool:
        """Whether a vector of channels can be loaded at once."""
        return self.block > 1 or self.block_stride == 1

    def channel(self, c: int) -> int:
        """Offset of a channel."""
        return c // self.block * self.block_stride + c % self.block

    @staticmethod
    def of_format(shape: tuple[int, ...], form: Format) -> Access:
        """Access of a tensor (N, C, spatial…) that stands plain or in blocks of channels."""
        channels, size = shape[1], triple(shape[2:], 1)
        block = form.block or 1
        h, w = size[1], size[2]
        spatial = (h * w * block, w * block, block)
        volume = prod(size) * block
        return Access(ceil_div(channels, block) * volume, block, volume, spatial)

    @staticmethod
    def planes(shape: tuple[int, ...]) -> Access:
        """Access of a plain tensor (N, C, spatial…)."""
        return Access.of_format(shape, PLAIN)

    @staticmethod
    def channels_last(shape: tuple[int, ...]) -> Access:
        """Access of a tensor whose memory order is (N, spatial…, C); shape is (N, C, spatial…)."""
        c, (d, h, w) = shape[1], triple(shape[2:], 1)
        return Access(c * d * h * w, 1, 1, (c * h * w, c * w, c))


@dataclass(frozen=True)
class Window:
    """The sliding window along (d, h, w); `pad` is what is imagined before, and may be negative."""

    size: Triple
    out: Triple
    kernel: Triple
    stride: Triple
    dilation: Triple
    pad: Triple

    def taps(self, axis: int, o: int) -> tuple[int, int]:
        """First tap, and one past the last, that touch the input at output position `o`."""
        start = o * self.stride[axis] - self.pad[axis]
        step = self.dilation[axis]
        low = max(0, ceil_div(-start, step))
        high = min(self.kernel[axis], (self.size[axis] - 1 - start) // step + 1)
        return low, max(low, high)

    def always_full(self, axis: int) -> bool:
        """Whether every tap touches the input at every output position."""
        full = (0, self.kernel[axis])
        return self.taps(axis, 0) == full and self.taps(axis, self.out[axis] - 1) == full

    def sometimes_empty(self, axis: int) -> bool:
        """Whether at some output position no tap touches the input."""
        bounds = (self.taps(axis, o) for o in range(self.out[axis]))
        return any(low >= high for low, high in bounds)


def merge_rows(
    window: Window, x: Access, y: Access, width_of: Callable[[int], int]
) -> tuple[Window, Access, Access]:
    """Make rows of another length where that changes nothing: 1x1 kernels of stride 1.

    Args:
        window: the sliding window.
        x, y: places of input and output.
        width_of: chooses the new width, a divisor of the number of positions that it is given.

    Returns:
        The same problem over (1, positions / width, width), or as it was.
    """
    plain = prod(window.kernel) == 1 and window.stride == (1, 1, 1) and window.pad == (0, 0, 0)
    if not plain or window.out != window.size:
        return window, x, y
    d, h, w = window.out
    for access in (x, y):
        step = access.spatial[2]
        if (h > 1 or d > 1) and access.spatial[1] != w * step:
            return window, x, y
        if d > 1 and access.spatial[0] != h * w * step:
            return window, x, y
    total = d * h * w
    width = width_of(total)
    flat = (1, total // width, width)

    def flatten(access: Access) -> Access:
        step = access.spatial[2]
        return replace(access, spatial=(total * step, width * step, step))

    return replace(window, size=flat, out=flat), flatten(x), flatten(y)


@dataclass(frozen=True)
class ColumnTile:
    """Output columns `first + i*pixels …` for i < count, computed by the same code.

    Attributes:
        first: column of the first tile.
        count: number of tiles, one after the other.
        pixels: columns of one tile.
        runs: taps in runs `(low, high, columns)`: the taps low … high-1 touch the input at exactly
            these columns of the tile.
        computed: instead of `runs`, the kernel computes each column's bounds when it runs; tiles
            of one column.
    """

    first: int
    count: int
    pixels: int
    runs: tuple[tuple[int, int, tuple[int, ...]], ...]
    computed: bool = False


_MOST_RUNS = 40  # written out one by one; with more, code and compile time would explode


def bounded_tiles(window: Window, pixels: int) -> list[ColumnTile]:
    """As `column_tiles`, but columns at the ends of a row compute their taps if there are many."""
    taps = window.kernel[2]
    edges = sum(window.taps(2, o) != (0, taps) for o in range(window.out[2]))
    if edges <= _MOST_RUNS:
        tiles = column_tiles(window, pixels)
        if sum(len(tile.runs) for tile in tiles) <= _MOST_RUNS:
            return tiles
    full = [o for o in range(window.out[2]) if window.taps(2, o) == (0, taps)]
    first, stop = (full[0], full[-1] + 1) if full else (window.out[2], window.out[2])
    whole, rest = divmod(stop - first, pixels)
    tiles = [ColumnTile(0, first, 1, (), computed=True)] if first else []
    for start, count, width in ((first, whole, pixels), (stop - rest, 1, rest)):
        if count and width:
            tiles.append(ColumnTile(start, count, width, ((0, taps, tuple(range(width))),)))
    if stop < window.out[2]:
        tiles.append(ColumnTile(stop, window.out[2] - stop, 1, (), computed=True))
    return tiles


def column_tiles(window: Window, pixels: int) -> list[ColumnTile]:
    """Cut the output columns into tiles; equal neighbours are merged into one with a count."""
    width, taps = window.out[2], window.kernel[2]
    bounds = [window.taps(2, o) for o in range(width)]
    tiles: list[ColumnTile] = []
    for first in range(0, width, pixels):
        here = bounds[first : first + pixels]
        touched = [
            tuple(p for p, (low, high) in enumerate(here) if low <= tap < high)
            for tap in range(taps)
        ]
        runs: list[tuple[int, int, tuple[int, ...]]] = []
        for tap, columns in enumerate(touched):
            if runs and runs[-1][1] == tap and runs[-1][2] == columns:
                runs[-1] = (runs[-1][0], tap + 1, columns)
            elif columns:
                runs.append((tap, tap + 1, columns))
        tile = ColumnTile(first, 1, len(here), tuple(runs))
        last = tiles[-1] if tiles else None
        if last and (last.pixels, last.runs) == (tile.pixels, tile.runs):
            tiles[-1] = ColumnTile(last.first, last.count + 1, last.pixels, last.runs)
        else:
            tiles.append(tile)
    return tiles
