"""Rows, strip and constants of the kernel of separable filters: what is where, in which order.

Rows are those of planes, or of an image whose channels are neighbours: a row of W columns and C
channels is one of W·C numbers then, and taps are C numbers apart (`as_rows`).
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from leanconv.algorithms.common.conv import Conv, GroupedConv
from leanconv.codegen.geometry import Access, Triple
from leanconv.codegen.lowered import PackCall
from leanconv.kernels.packing import copied
from leanconv.records import cached_property, dataclass, replace
from leanconv.spec.format import aligned, ceil_div
from leanconv.symbolic import Count

SETS = 4  # of vectors of a row that are summed at once


def numbers_of_column(conv: Conv) -> int:
    """Neighbours in memory that are one column of both tensors: 1 in planes; 0 if they differ."""
    x, y = conv.x, conv.y
    widths = x.spatial[2], y.spatial[2]
    if x.block == y.block and widths == (x.block, x.block):
        return x.block if x.block == 1 or conv.outputs == 1 else 0
    last = x.block == y.block == x.block_stride == y.block_stride == 1
    return conv.groups if last and widths == (conv.in_channels, conv.groups) else 0


def as_rows(conv: Conv) -> Conv:
    """The same convolution with all numbers of a column in its rows.

    Its channels are blocks of channels, or one where all channels are neighbours.
    """
    step, window = numbers_of_column(conv), conv.window
    if step == 1:
        return conv

    def wide(sizes: Triple) -> Triple:
        return (sizes[0], sizes[1], sizes[2] * step)

    def plane(access: Access) -> Access:
        return replace(access, block=1, spatial=(*access.spatial[:2], 1))

    wider = replace(
        window,
        size=wide(window.size),
        out=wide(window.out),
        dilation=wide(window.dilation),
        pad=wide(window.pad),
    )
    blocks = ceil_div(conv.groups, step)
    return replace(conv, groups=blocks, window=wider, x=plane(conv.x), y=plane(conv.y))


@dataclass(frozen=True)
class StripShape(GroupedConv):
    """One convolution's tiles; one input channel a group.

    Attributes:
        conv: the convolution of `as_rows`.
        lanes: lanes of a vector.
        step: numbers of a column, 1 in planes.
        terms: products of one factor for each axis, whose sum a filter is.
        rows: of a tile.
        columns: outputs of a row of a strip, whole `sets` of all kinds.
        apart: columns of the input of which each has a row of the strip of its own: every second
            one, or fourth; 1 or a multiple of the stride.
        tiles: of rows, of a chunk.
    """

    lanes: int
    step: int
    terms: int
    rows: int
    columns: int
    apart: int
    tiles: Count

    @property
    def packing(self) -> Hashable:
        """Channels and taps, terms, and how numbers of columns fill vectors."""
        return super().packing, self.terms, self.step, self.lanes

    @property
    def kinds(self) -> int:
        """Vectors of a row until the first one's channels return: lanes are a power of two."""
        return self.step // min(self.lanes, self.step & -self.step)

    @property
    def numbers(self) -> int:
        """Numbers packed for one of a filter: that of each lane of all kinds of vectors."""
        return self.kinds * self.lanes if self.step > 1 else 1

    @property
    def vectors_of_set(self) -> int:
        """Vectors of neighbouring outputs that are summed of the same rows of the strip."""
        return max(1, self.apart // self.conv.window.stride[2])

    @property
    def advance(self) -> int:
        """Numbers of a row of the strip from a set to the next one of its kind."""
        numbers = self.kinds * self.lanes * self.conv.window.stride[2]
        return numbers * self.vectors_of_set // self.apart

    @property
    def gathers(self) -> bool:
        """Whether lanes of a vector of outputs are of numbers with others between."""
        one_column = self.step % self.lanes == 0
        return self.conv.window.stride[2] > self.apart == 1 and not one_column

    def places(self, kind: int) -> list[int]:
        """Numbers of a row of the strip below the lanes of the first vector of a kind."""
        ahead = self.step * (self.conv.window.stride[2] if self.gathers else 1)
        first = kind * self.lanes
        return [n // self.step * ahead + n % self.step for n in range(first, first + self.lanes)]

    @property
    def constant_bytes(self) -> dict[str, int]:
        """Factors of all terms of all filters; what channels have beside."""
        conv, copies = self.conv, self.conv.out_channels * self.numbers
        factors = copies * self.terms * sum(conv.window.kernel) * conv.precision.w.bytes
        return {**conv.epilogue.channel_bytes(conv.precision.accumulate, copies), "w": factors}

    def spread(self, values: np.ndarray) -> np.ndarray:
        """Values (K, …) of channels as (rows of numbers, `numbers`, …), 0 beyond the last one."""
        blocks = self.conv.out_channels
        padded = np.zeros((blocks * self.step, *values.shape[1:]), values.dtype)
        padded[: len(values)] = values
        places = np.arange(self.numbers) % self.step
        found: np.ndarray = padded.reshape(blocks, self.step, *values.shape[1:])[:, places]
        return found

    def channel_calls(self, values: np.ndarray) -> list[PackCall]:
        """Return the calls that pack a number per output channel."""
        return copied(self.spread(values))

    @property
    def grid(self) -> tuple[int, ...]:
        """Images, output channels, depths, blocks of tiles of rows, strips."""
        conv, (depth, height, width) = self.conv, self.conv.window.out
        blocks = ceil_div(ceil_div(height, self.rows), self.tiles)
        return conv.batch, conv.out_channels, depth, blocks, ceil_div(width, self.columns)

    @property
    def before(self) -> int:
        """Numbers from a strip's first one to the input below its first output."""
        return ceil_div(self.conv.window.pad[2], self.lanes) * self.lanes

    @property
    def vectors(self) -> int:
        """Vectors of the input that a row of a strip has."""
        window = self.conv.window
        reach = (window.kernel[2] - 1) * window.dilation[2]
        first = self.before - window.pad[2]
        vectors = ceil_div(first + self.columns * window.stride[2] + reach, self.lanes)
        return ceil_div(vectors + self.gathers, self.apart) * self.apart

    @property
    def span(self) -> int:
        """Input rows that a tile reaches over."""
        window = self.conv.window
        return (self.rows - 1) * window.stride[1] + (window.kernel[1] - 1) * window.dilation[1] + 1

    @cached_property
    def uses(self) -> dict[int, list[tuple[int, int]]]:
        """Input rows, counted from a tile's first: the rows of the tile that read it, with kh."""
        return self._taps(1, self.rows, 0)

    @cached_property
    def reads(self) -> dict[int, list[tuple[int, int]]]:
        """Numbers of a row of the strip: the vectors of a set that begin with it, with kw."""
        return self._taps(2, self.vectors_of_set, self.before - self.conv.window.pad[2])

    def _taps(self, axis: int, outputs: int, start: int) -> dict[int, list[tuple[int, int]]]:
        window, found = self.conv.window, dict[int, list[tuple[int, int]]]()
        for output in range(outputs):
            for tap in range(window.kernel[axis]):
                at = start + output * window.stride[axis] + tap * window.dilation[axis]
                found.setdefault(at, []).append((output, tap))
        return dict(sorted(found.items()))

    @property
    def plane(self) -> int:
        """Numbers of a row of the strip of which all columns are equally far from the first."""
        return self.vectors // self.apart * self.lanes

    @property
    def line(self) -> int:
        """Numbers from one row of scratch to the next: rows of whole pages would share sets."""
        whole = self.vectors % 8 == 0
        return (self.vectors + whole) * self.lanes

    @property
    def written(self) -> int:
        """Multiply-adds that the code has."""
        (kd, kh, kw), vectors = self.conv.window.kernel, (SETS + 1) * self.vectors_of_set
        vectors *= self.kinds if self.gathers else 1
        return self.terms * (4 * self.rows * kh + vectors * kw + 2 * kd)

    @property
    def parts(self) -> tuple[int, int]:
        """Bytes of planes and of the strip."""
        row = self.line * self.conv.dtype.bytes
        planes = self.span * row if self.conv.window.kernel[0] > 1 else 0
        return aligned(planes), aligned(self.terms * self.rows * row)

    @property
    def scratch_bytes(self) -> int:
        """Sums along depth, and along height."""
        return sum(self.parts)
