"""Layout of a col2im kernel: extents, panels, bands, the table of runs, and bytes of all these.

A run is a range of a panel's columns that are neighbours in y; the table says where it is added.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from leanconv.codegen.epilogue import Epilogue
from leanconv.codegen.geometry import Access, Window
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.tiling import Tile
from leanconv.records import dataclass
from leanconv.spec.conv import sum_flops
from leanconv.spec.format import ceil_div
from leanconv.symbolic import Count, Extent
from leanconv.types import INT64, DType

RUN = 6  # numbers of a run: column, length, block of outputs, and its place along d, h and w
PLACE = 4  # numbers of a pixel: where its columns begin along d, h and w, and in y


def run_table(
    kernel: tuple[int, int, int], dilation: tuple[int, int, int], block: int, unit: int, width: int
) -> tuple[np.ndarray, np.ndarray]:
    """The runs of a unit's columns (output, kd, kh, kw, channel of the block), cut at panels.

    Args:
        kernel, dilation: along depth, height and width.
        block: channels of a block of y, 1 in planes.
        unit: blocks of outputs, or outputs in planes.
        width: columns of a panel.

    Returns:
        (panels, 2): each panel's first run, and the one past its last; and (runs, RUN).
    """
    (down, high, across), apart = kernel, dilation
    beside = across if apart[2] == 1 else 1  # taps of a run
    length = beside * block
    shape = (unit, down, high, across // beside)
    columns = int(np.prod(shape)) * length
    # Runs begin at multiples of their length, and again where a panel begins inside one.
    starts = np.unique(np.concatenate([np.arange(0, columns, n) for n in (length, width)]))
    numbers, inside = np.divmod(starts, length)
    output, d, h, w = np.unravel_index(numbers, shape)
    table = np.empty((len(starts), RUN), np.int64)
    table[:, 0] = starts % width
    table[:, 1] = np.diff(starts, append=columns)
    table[:, 2], table[:, 3], table[:, 4] = output, d * apart[0], h * apart[1]
    table[:, 5] = w * apart[2] * block + inside
    firsts = np.searchsorted(starts, np.arange(0, columns + width, width))
    panels = ceil_div(columns, width)
    return np.stack([firsts[:panels], firsts[1 : panels + 1]], axis=1), table


@dataclass(frozen=True)
class Col2ImLayout(Kernel):
    """One transposed convolution by col2im, without its code.

    Attributes:
        dtype: of everything.
        lanes: of a vector.
        batch, groups: N and g.
        inputs: channels of one group.
        units: of outputs, of one group; each has panels of its own.
        unit: blocks of outputs, or outputs in planes, of one unit.
        panels: of one unit.
        runs: of all panels of a unit.
        axis: along which the output is cut in bands.
        bands: number of bands.
        window: of the transposed convolution: its input and output extents, kernel, stride,
            dilation and padding.
        x, y: strides of input and output; y is in planes, or in blocks of a vector.
        epilogue: bias, activation.
        tile: pixels and vectors of a register tile; there are as many pixels at least.
        packed: whether a chunk copies its part of x to the scratch, so that a tile's pixels lie
            beside each other channel by channel. For x in planes, whose channels are pages of their
            own.
    """

    VARIES = True

    dtype: DType
    lanes: int
    batch: Count
    groups: Extent
    inputs: Extent
    units: Extent
    unit: Extent
    panels: Extent
    runs: Count
    axis: int
    bands: Count
    window: Window
    x: Access
    y: Access
    epilogue: Epilogue
    tile: Tile
    packed: bool = False

    @property
    def operands(self) -> tuple[str, ...]:
        """Input, packed weights, what the epilogue needs, the table of runs, output."""
        return ("x", "w", *self.epilogue.operands, "runs", "y")

    @property
    def width(self) -> int:
        """Columns of a panel."""
        return self.tile.vectors * self.lanes

    @property
    def grid(self) -> tuple[int, ...]:
        return self.batch, self.groups, self.units, self.bands

    @property
    def pixels(self) -> int:
        """Pixels of one image of the input."""
        d, h, w = self.window.size
        return d * h * w

    @property
    def halo(self) -> int:
        """Input positions before a band, along its axis, that reach into it."""
        window, axis = self.window, self.axis
        return (window.kernel[axis] - 1) * window.dilation[axis] // window.stride[axis]

    @property
    def inner(self) -> int:
        """Pixels of one position along the axis of the bands."""
        inner = 1
        for extent in self.window.size[self.axis + 1 :]:
            inner = inner * extent
        return inner

    @property
    def cols_bytes(self) -> int:
        """A tile's columns, and a vector beyond them that may be loaded."""
        return (self.tile.rows * self.width + self.lanes) * self.dtype.bytes

    @property
    def band_pixels(self) -> int:
        """The most pixels that a band reads."""
        positions = ceil_div(self.window.size[self.axis], self.bands) + self.halo
        return positions * self.inner

    @property
    def places_bytes(self) -> int:
        """The places of a band's pixels."""
        return self.band_pixels * PLACE * INT64.bytes

    @property
    def offsets_bytes(self) -> int:
        """Bytes of the offsets in y, one for each run."""
        return self.runs * INT64.bytes

    @property
    def scratch_bytes(self) -> int:
        """Columns of a tile, places of pixels, offsets of runs, and a part of x if it is packed."""
        size = self.cols_bytes + self.places_bytes + self.offsets_bytes
        if not self.packed:
            return size
        tiles = ceil_div(self.band_pixels, self.tile.rows)
        return size + tiles * self.tile.rows * self.inputs * self.dtype.bytes

    @property
    def flops(self) -> int:
        """Operations of the products, without those that a band computes again."""
        columns = self.groups * self.units * self.panels * self.width
        return sum_flops(self.batch, columns, self.window.size, self.inputs)

    @property
    def constant_bytes(self) -> dict[str, int]:
        """Panels of weights, numbers of channels in whole blocks, the table."""
        blocks = self.groups * self.units
        weights = blocks * self.panels * self.inputs * self.width * self.dtype.bytes
        channels = blocks * self.unit * self.y.block
        sizes = {"w": weights, "runs": (2 * self.panels + RUN * self.runs) * INT64.bytes}
        return sizes | self.epilogue.channel_bytes(self.dtype, channels)

    @property
    def packing(self) -> Hashable:
        """Channels, taps and the width of a panel."""
        channels = self.groups, self.inputs, self.units, self.unit, self.y.block
        taps = self.window.kernel, self.window.dilation, self.panels, self.tile.vectors
        return type(self), channels, taps, self.lanes, self.dtype, self.epilogue.operands
