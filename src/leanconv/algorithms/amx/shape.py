"""Division of a convolution by matrix tiles, and layout of its operands in scratch and weights.

    input rows of a chunk   [C in parts of 64][row][column][64]                      in scratch
                            [row][kw / taps][output column][64]                      of C < 33
    w       [group][pair of panels][C / 64][kh][kw / taps][panel][16][16 outputs][4]

That is of bytes; of bfloat16 there are 32 in a row, and two in a group. A tile's row is 64 bytes: a
part of the channels of one pixel. With fewer than 33 channels a pixel
has 32, 16, 8 or 4 bytes, and the row is a window of neighbouring pixels, as many taps in one step:
of bytes of several rows of the image, where there is room for more than one row of the kernel.
A window is stored for each output column: rows of a tile that begin within a line of the cache are
loaded six times as slowly.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import prod

import numpy as np

from leanconv.algorithms.common.conv import GroupedConv
from leanconv.codegen.lowered import PackCall
from leanconv.codegen.matrix_tiles import COLUMNS, ROW_BYTES, ROWS, TILE_BYTES, factors
from leanconv.kernels.packing import channels, panels
from leanconv.records import dataclass
from leanconv.spec.format import ALIGNMENT, aligned, ceil_div
from leanconv.symbolic import Count, least
from leanconv.types import DType

_GROUP_BYTES = 4  # that one lane of a product adds up
COLUMNS_TOGETHER = 4  # in the epilogue
COLUMNS_OF_PLANES = 16  # of an input in planes that are repacked together
_WORD = 8  # bytes


@dataclass(frozen=True, kw_only=True)
class TileShape(GroupedConv):
    """One convolution, and how it is cut.

    Attributes:
        pixels: output columns of one tile, at most 16.
        tiles: tiles of columns whose sums are computed together.
        panels: panels of 16 outputs whose sums are computed together.
        rows: output rows of a chunk.
        panel_blocks: parts of the outputs; a chunk has one of them.
        ahead: bytes from the weights that a step multiplies to those that it prefetches; 0: none.
            Those of the next panels are shared among the blocks that multiply these, nearer ones
            are all prefetched by the first block.
        flat: whether the rows of a tile go on in the next row of the image, over the padding
            between them, whose sums are computed in vain; strides are 1.
        any_width: whether the code is that of rows of any width.
    """

    wants_consecutive_chunks = True  # those of the same rows share what is repacked of the input

    pixels: int
    tiles: int
    panels: int
    rows: Count
    panel_blocks: Count = 1
    ahead: int = 0
    flat: bool = False
    any_width: bool = False

    # -- chunks ----------------------------------------------------------------------------
    @property
    def tiles_across(self) -> int:
        """Tiles of one row of output columns."""
        return ceil_div(self.conv.window.out[2], self.pixels)

    @property
    def row_blocks(self) -> int:
        """Chunks along the rows of one image."""
        return ceil_div(self.conv.window.out[1], self.rows)

    @property
    def chunks(self) -> int:
        """Images by groups by blocks of rows by blocks of outputs."""
        return self.conv.batch * self.conv.groups * self.row_blocks * self.panel_blocks

    @property
    def panel_pairs(self) -> int:
        """Groups of `panels` panels that cover the outputs of a convolution's group."""
        return ceil_div(self.conv.outputs, COLUMNS * self.panels)

    # -- the input in scratch --------------------------------------------------------------
    @property
    def factor(self) -> DType:
        """Type of the repacked input's elements."""
        return factors(self.conv.precision)[0]

    @property
    def pixel_bytes(self) -> int:
        """Bytes of one part of a pixel."""
        size = _GROUP_BYTES
        while size < min(self.conv.inputs * self.factor.bytes, ROW_BYTES):
            size *= 2
        return size

    @property
    def pixel(self) -> int:
        """Channels of one part of a pixel."""
        return self.pixel_bytes // self.factor.bytes

    @property
    def parts(self) -> int:
        """Parts of the input channels."""
        return ceil_div(self.conv.inputs, self.pixel)

    @property
    def taps(self) -> int:
        """Taps of a row that one tile multiplies."""
        dense = self.conv.window.dilation[2] == 1
        return min(ROW_BYTES // self.pixel_bytes, self.conv.window.kernel[2]) if dense else 1

    @property
    def tap_rows(self) -> int:
        """Rows of the kernel whose taps one tile multiplies.

        Of floats one: what follows them in a window may be NaN, and no weight of 0 hides that.
        """
        if self.factor.is_float or not self.windows:
            return 1
        if self.tap_groups > 1 or self.conv.window.dilation[1] > 1:
            return 1
        return min(self.conv.window.kernel[1], ROW_BYTES // (self.taps * self.pixel_bytes))

    @property
    def row_groups(self) -> int:
        """Steps along the rows of the kernel."""
        return ceil_div(self.conv.window.kernel[1], self.tap_rows)

    @property
    def row_step(self) -> int:
        """Input rows from one row of windows to the next, in scratch."""
        if self.tap_rows == 1:
            return 1
        stride = self.conv.window.stride[1]
        if self.row_groups == 1 or self.tap_rows % stride == 0:
            return stride
        return self.tap_rows if stride % self.tap_rows == 0 else 1

    @property
    def columns(self) -> int:
        """Input columns of a row, in scratch: those of whole tiles, and what a row reads beyond."""
        conv = self.conv
        stride, apart = conv.window.stride[2], conv.window.dilation[2]
        if self.flat:
            return self.out_columns + (conv.window.kernel[2] - 1) * apart
        reach = (self.tap_groups * self.taps - 1) * apart + ROW_BYTES // self.pixel_bytes
        return (self.out_columns - 1) * stride + reach

    @property
    def out_columns(self) -> int:
        """Output columns of a row, in whole tiles if these end with it."""
        if self.flat:
            return self.conv.window.out[2]
        return self.tiles_across * self.pixels

    @property
    def windows(self) -> bool:
        """True if scratch holds windows of pixels."""
        return self.pixel_bytes < ROW_BYTES

    @property
    def input_rows(self) -> int:
        """Input rows of a chunk."""
        window = self.conv.window
        return (self.rows - 1) * window.stride[1] + (window.kernel[1] - 1) * window.dilation[1] + 1

    @property
    def stored_rows(self) -> int:
        """Rows of a chunk's input in scratch."""
        if self.tap_rows == 1:
            return self.input_rows
        last = (self.rows - 1) * self.conv.window.stride[1] + (self.row_groups - 1) * self.tap_rows
        return last // self.row_step + 1

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of one part of the channels, in scratch."""
        rows = self.tap_groups * self.out_columns if self.windows else self.columns
        return rows * ROW_BYTES

    @property
    def column_bytes(self) -> int:
        """Bytes from one output column's input to the next one's."""
        return ROW_BYTES if self.windows else self.conv.window.stride[2] * ROW_BYTES

    @property
    def tap_bytes(self) -> int:
        """Bytes from one group of taps to the next."""
        return (self.out_columns if self.windows else self.conv.window.dilation[2]) * ROW_BYTES

    @property
    def line_bytes(self) -> int:
        """Bytes of a row with its padding, from which windows are taken."""
        if not self.windows:
            return 0
        beyond = COLUMNS_OF_PLANES if self.conv.x.block == 1 else 0
        return aligned((self.columns + beyond) * self.pixel_bytes)

    @property
    def lines(self) -> int:
        """Rows from which windows are taken: one after the other, or all those of a chunk."""
        if self.tap_rows == 1:
            return 1
        return (self.rows - 1) * self.conv.window.stride[1] + self.row_groups * self.tap_rows

    @property
    def part_bytes(self) -> int:
        """Bytes of all rows of one part of the channels, in scratch."""
        return self.stored_rows * self.row_bytes

    # -- the reduction ---------------------------------------------------------------------
    @property
    def tap_groups(self) -> int:
        """Steps along the taps of a row."""
        return ceil_div(self.conv.window.kernel[2], self.taps)

    @property
    def step_lines(self) -> int:
        """Cache lines of the weights of one step."""
        return self.panels * TILE_BYTES // ALIGNMENT

    @property
    def pair_bytes(self) -> int:
        """Bytes of the weights of the panels whose sums are computed together."""
        return self.steps * self.panels * TILE_BYTES

    @property
    def steps(self) -> int:
        """Products of tiles that are summed for one output tile."""
        return self.row_groups * self.tap_groups * self.parts

    @property
    def segments(self) -> int:
        """Runs of columns of one row, at most, in a tile."""
        if not self.flat:
            return 1
        if self.columns >= self.pixels - 1:  # one code for all but narrow maps
            return 2
        return ceil_div(self.pixels - 1, self.columns) + 1

    @property
    def jobs(self) -> int:
        """Runs of columns in the tiles whose sums are computed together."""
        return self.tiles * self.panels * self.segments

    @property
    def quads(self) -> int:
        """Groups of four columns of one run, a power of 2."""
        longest = self.pixels if self.any_width else least(self.pixels, self.conv.window.out[2])
        size = 1
        while size * COLUMNS_TOGETHER < longest:
            size *= 2
        return size

    # -- scratch ---------------------------------------------------------------------------
    @property
    def sums_bytes(self) -> int:
        """Bytes of the sums that are computed together."""
        return self.tiles * self.panels * TILE_BYTES

    @property
    def jobs_at(self) -> int:
        """Offset in scratch of the places of finished sums, behind two buffers of sums."""
        return 2 * self.sums_bytes

    @property
    def offsets_at(self) -> int:
        """Offset in scratch of the table of the steps' offsets."""
        return self.jobs_at + 2 * self.jobs * JOB_BYTES

    @property
    def line_at(self) -> int:
        """Offset in scratch of rows before windows are taken from them."""
        return aligned(self.offsets_at + self.steps * _WORD)

    @property
    def input_at(self) -> int:
        """Offset in scratch of the repacked input."""
        return self.line_at + self.lines * self.line_bytes

    @property
    def scratch_bytes(self) -> int:
        """Sums, their places, the steps' offsets, and the input rows of a chunk."""
        beyond = TILE_BYTES if self.flat else 0  # of the last tile's rows
        return self.input_at + self.parts * self.part_bytes + beyond

    # -- constants -------------------------------------------------------------------------
    @property
    def group_outputs(self) -> int:
        """Outputs of a group, in whole panels."""
        return self.panel_pairs * self.panels * COLUMNS

    @property
    def packed_channels(self) -> int:
        """Outputs in whole panels, all groups together."""
        return self.conv.groups * self.group_outputs

    @property
    def group_weights(self) -> int:
        """Packed weights of a group."""
        return self.panel_pairs * self.pair_bytes

    @property
    def constant_bytes(self) -> dict[str, int]:
        """Tiles of weights, bias and slopes in whole panels."""
        conv = self.conv
        sizes = {"w": conv.groups * self.group_weights}
        return sizes | conv.epilogue.channel_bytes(conv.precision.accumulate, self.packed_channels)

    @property
    def packing(self) -> Hashable:
        """Channels and taps."""
        conv = self.conv
        taps = self.tap_rows, self.taps
        shape = conv.groups, conv.inputs, conv.outputs, conv.window.kernel, taps
        return TileShape, shape, self.panels, conv.precision, conv.epilogue.operands

    def weight_calls(self, w: np.ndarray) -> list[PackCall]:
        """Return the calls that pack weights (K, C/g, 1, kh, kw) into tiles."""
        conv = self.conv
        grouped = w.reshape(conv.groups, conv.outputs, conv.inputs, *conv.window.kernel[1:])
        width, pair = self.panels * COLUMNS, self.pair_bytes // self.factor.bytes
        return panels(grouped, width, self._pairs, lambda k: ceil_div(k, width) * pair, self.factor)

    def _pairs(self, w: np.ndarray) -> np.ndarray:
        """The order of the weights (k, C/g, kh, kw) of some outputs of a group."""
        width = self.panels * COLUMNS
        return np.concatenate([self._pair(w[k : k + width]) for k in range(0, len(w), width)])

    def _pair(self, outputs: np.ndarray) -> np.ndarray:
        """The tiles of the outputs (k, C/g, kh, kw) of `panels` panels."""
        _, _, height, width = outputs.shape
        pixel, taps, panels = self.pixel, self.taps, self.panels
        down, across = (self.row_groups, self.tap_rows), (self.tap_groups, taps)
        channels = self.parts * pixel
        padded = np.zeros((panels * COLUMNS, channels, prod(down), prod(across)), outputs.dtype)
        padded[: len(outputs), : self.conv.inputs, :height, :width] = outputs
        split = padded.reshape(panels, COLUMNS, self.parts, pixel, *down, *across)
        # [part][row group][tap group][panel][row, tap of the group][channel][output]
        filled = self.tap_rows * taps * pixel
        rows = split.transpose(2, 4, 6, 0, 5, 7, 3, 1).reshape(-1, filled, COLUMNS)
        size = self.factor.bytes
        tiles = np.zeros((self.steps * panels, ROW_BYTES // size, COLUMNS), outputs.dtype)
        tiles[:, :filled] = rows
        groups = tiles.reshape(-1, ROWS, _GROUP_BYTES // size, COLUMNS)
        return np.asarray(groups.swapaxes(-1, -2).reshape(-1))

    def channel_calls(self, values: np.ndarray) -> list[PackCall]:
        """Return the calls that pack one number per output channel (bias, slope), then zeros."""
        return channels(values, self.conv.outputs, self.group_outputs)


JOB_WORDS = 4  # bytes from a buffer's start to the sums, those of y, columns, first channel
JOB_BYTES = JOB_WORDS * _WORD
