"""The shape of the general direct kernel: register tile, bands of rows, loop order."""

from __future__ import annotations

from math import prod

from leanconv.algorithms.direct.packed import PackedConv
from leanconv.codegen.dot import Dot, Way, dot_of, group_by
from leanconv.codegen.half_stored import HALF_PRODUCTS
from leanconv.codegen.microkernel import UNROLL_LIMIT
from leanconv.codegen.partial_sums import LENGTH
from leanconv.codegen.tiling import Tile
from leanconv.records import dataclass
from leanconv.spec.conv import sum_flops
from leanconv.spec.format import ALIGNMENT, ceil_div
from leanconv.symbolic import Count, Extent


@dataclass(frozen=True, kw_only=True)
class DirectShape(PackedConv):
    """One convolution, and how the general kernel cuts it.

    Attributes:
        tile: the register tile.
        rows: output rows of one chunk.
        panels_inside: whether a chunk computes all panels of its rows (weights small), or one.
        unroll: most steps of the reduction's inner loops that are written out.
        fetch: whether the next tile's input is prefetched while a tile is computed.
        weights_ahead: elements from the weights that a step loads to those that it prefetches; 0:
            none.
        panel_ahead: whether the tiles of a panel prefetch the next panel's weights, each tile other
            lines of them; where tiles are too few for all lines, `weights_ahead` holds as well.
        channels_ahead: where channels are planes, from the one whose pixels a step loads to the one
            whose pixels it prefetches; 0: none.
        prefetches_residual: whether a tile prefetches its residual before it begins its sums.
        bands: equal parts of an image's rows. All chunks of one band come before those of the next,
            so that of two threads that claim from both ends each computes its own band.
        any_width: whether the code is that of all widths: tiles overlap at the end of a row.
        columns: of all rows together, where the last row may be shorter than the others and there
            are any number of columns; 0: all rows are whole.
        by_lane: whether multiply-adds take lanes of vectors of the input.
        way: of the target to multiply and add (`codegen.dot`).
        folded: whether the bias takes off the surplus of a shift of the codes.
        piece: products that are summed in float16, at most, before float32 takes over; 0: none.
            `lanes` are those of float16 then, twice as many as of sums (`codegen.half_stored`).
    """

    tile: Tile
    rows: Count
    panels_inside: bool
    unroll: int = UNROLL_LIMIT
    fetch: bool = False
    weights_ahead: int = 0
    panel_ahead: bool = False
    channels_ahead: int = 0
    prefetches_residual: bool = False
    bands: Count = 1
    any_width: bool = False
    columns: Extent = 0
    by_lane: bool = False
    way: Way = "fma"
    folded: bool = False
    piece: int = 0

    @property
    def dot(self) -> Dot:
        """Product that a step of the reduction adds to its sums."""
        if self.piece:
            return HALF_PRODUCTS
        return dot_of(self.conv.precision, self.way, self.folded)

    @property
    def dot_group(self) -> int:
        """Input channels that one step multiplies."""
        return HALF_PRODUCTS.group if self.piece else group_by(self.conv.precision, self.way)

    @property
    def sum_lanes(self) -> int:
        """Lanes of a vector of finished sums."""
        return self.lanes // 2 if self.piece else self.lanes

    @property
    def code_shift(self) -> int:
        """Number that the dot product adds to every code of x if the bias takes it off; else 0."""
        return self.dot.shift if self.folded else 0

    @property
    def flops(self) -> int:
        """Operations of the plain sums, padding counted."""
        if not self.columns:
            return super().flops
        return sum_flops(
            self.phases * self.conv.batch, self.conv.out_channels, (self.columns,), self.reduction
        )

    @property
    def panel_vectors(self) -> int:
        """Vectors of output channels of one panel: those of a tile."""
        return self.tile.vectors

    @property
    def step_lines(self) -> int:
        """Cache lines of weights that a step of the reduction reads."""
        return ceil_div(self.panel_lanes * self.dot_group * self.conv.precision.w.bytes, ALIGNMENT)

    @property
    def band_rows(self) -> int:
        """Output rows of one band."""
        return self.conv.row_count // self.bands

    @property
    def row_blocks(self) -> int:
        """Chunks along the rows of one band."""
        return ceil_div(self.band_rows, self.rows)

    @property
    def in_parts(self) -> bool:
        """True if a sum is made of partial sums; sums of integers are exact without them."""
        if self.piece:
            return True
        return self.reduction > LENGTH and self.conv.precision.accumulate.is_float

    @property
    def two_parts(self) -> bool:
        """True if a sum is one run of channels in two partial sums: one tap, inside the input."""
        conv = self.conv
        if not self.in_parts or self.piece or self.dot_group > 1:
            return False
        inside = all(conv.window.always_full(axis) for axis in range(3))
        run = inside and prod(conv.window.kernel) == 1 and conv.inputs % conv.x.block == 0
        return run and conv.inputs <= 2 * LENGTH and LENGTH % conv.x.block == 0

    @property
    def tiles_across(self) -> int:
        """Register tiles of one row of output columns."""
        return ceil_div(self.conv.window.out[2], self.tile.rows)

    @property
    def grid(self) -> tuple[int, ...]:
        """Phases by images, groups, bands, panels (unless inside), blocks of rows."""
        images, panels = self.phases * self.conv.batch, 1 if self.panels_inside else self.panels
        return images, self.conv.groups, self.bands, panels, self.row_blocks
