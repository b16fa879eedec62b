"""One channel in the frequency domain: lanes are tiles of its plane.

A channel that meets no other fills one lane where lanes are channels. Its tiles fill all of them:
lane l of vector v is tile v * lanes + l of the channel's images, in their order.

    lines    [lane][T positions of a row, a margin on both sides]      as they lie in the tensor
    turned   [position][lane]                                          what a transform reads
    mid      [term][row][T numbers of its spectrum][lane]              half-transformed tiles
    bins     [frequency][re, im][lane]                                 of one column at a time

A term is a part of the kernel and a phase of its stride: the input that it reads begins elsewhere,
and products of all terms add up. As no channel meets another, a column of the spectrum is
transformed, multiplied and transformed back before the next: what a thread needs is `mid`.
"""

from __future__ import annotations

from leanconv.algorithms.fft.layout import bin_count
from leanconv.algorithms.fft.tiles import Axis
from leanconv.algorithms.problem import Problem
from leanconv.codegen.epilogue import Epilogue
from leanconv.codegen.extents import Extent
from leanconv.codegen.geometry import Access, PhasedAccess
from leanconv.records import dataclass
from leanconv.spec.format import ALIGNMENT, ceil_div
from leanconv.target import Target
from leanconv.types import DType


def lanes_are_tiles(problem: Problem, target: Target) -> bool:
    """Whether channels are filtered each by itself, and are too few to fill a vector."""
    alone = problem.group_inputs == problem.group_outputs == 1
    plain = problem.x.block == problem.y.block == 1 and not isinstance(problem.y, PhasedAccess)
    return alone and plain and problem.groups < problem.lanes(target)


@dataclass(frozen=True)
class PlaneLayout:
    """Sizes and places; a chunk is a vector of tiles of one channel.

    Attributes:
        batch, groups: images N, and channels.
        height, width: the axes, cut.
        x, y: where input and output (and residual) lie.
        dtype: of all values, float32 or float64.
        lanes: lanes of a vector.
        epilogue: bias, residual, activation.
        x_offset, y_offset: elements from the tensors' starts to the first ones concerned.
    """

    batch: Extent
    groups: int
    height: Axis
    width: Axis
    x: Access
    y: Access
    dtype: DType
    lanes: int
    epilogue: Epilogue
    x_offset: Extent
    y_offset: Extent

    @property
    def length(self) -> int:
        """T."""
        return self.width.length

    @property
    def bins(self) -> int:
        """Independent frequencies."""
        return bin_count(self.length)

    @property
    def parts(self) -> tuple[int, int]:
        """Parts of the kernel along both axes."""
        return self.height.parts, self.width.parts

    @property
    def terms(self) -> tuple[int, int, int, int]:
        """Parts and phases along both axes, in the order of the weights."""
        return (*self.parts, self.height.phases, self.width.phases)

    @property
    def reduction_steps(self) -> int:
        """Terms of one complex output."""
        down, across, rows, columns = self.terms
        return down * across * rows * columns

    @property
    def products(self) -> int:
        """Real multiplications for a complex one."""
        return 4

    # -- tiles -----------------------------------------------------------------------------
    @property
    def image_tiles(self) -> int:
        """Tiles of one image and residue."""
        return self.height.tiles * self.width.tiles

    @property
    def tiles(self) -> int:
        """Tiles of one channel: of all images and residues of a dilated convolution."""
        return self.batch * self.height.residues * self.width.residues * self.image_tiles

    @property
    def vectors(self) -> int:
        """Vectors of tiles of one channel."""
        return ceil_div(self.tiles, self.lanes)

    # -- memory, in elements ---------------------------------------------------------------
    @property
    def item(self) -> int:
        """Bytes of an element."""
        return self.dtype.bytes

    @property
    def weight_elements(self) -> int:
        """Packed weights: [channel][frequency][term][re, im]."""
        return 2 * self.groups * self.bins * self.reduction_steps

    @property
    def kept(self) -> int:
        """Columns that are transformed back, in whole squares of `lanes`."""
        return self.lanes * int(ceil_div(self.width.kept, self.lanes))

    @property
    def span(self) -> int:
        """Positions of a line without its margins."""
        return self.lanes * int(ceil_div(self.length, self.lanes))

    @property
    def line(self) -> int:
        """From one lane's line to the next: a vector before its positions and one behind them."""
        return max(self.span + 2 * self.lanes, ALIGNMENT // self.item)

    @property
    def mid_row(self) -> int:
        """From one row of half-transformed tiles to the next: T vectors and one."""
        return (self.length + 1) * self.lanes

    @property
    def scratch_offsets(self) -> tuple[int, int, int, int, int]:
        """Where lines, turned ones, bins of inputs and of outputs and `mid` start; their end."""
        turned = self.lanes * self.line
        bins = turned + self.span * self.lanes
        column = 2 * self.length * self.lanes
        results = bins + (column if self.reduction_steps > 1 else 0)  # else they replace inputs
        mid = results + column
        return turned, bins, results, mid, mid + self.reduction_steps * self.length * self.mid_row
