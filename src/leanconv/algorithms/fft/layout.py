"""Memory layout of a block of tiles that is convolved in the frequency domain.

    slot b + 1:  X[bin b]   [tile][re, im(, re + im)][phase][channel]      written by the transform
    slot b:      Y[bin b]   [tile][re, im][output channel]                 written by the product

The products of bin b read slot b + 1 and write slot b, which was read for bin b - 1: inputs and
results share one buffer of bins + 1 slots. A slot is an odd number of cache lines, so that the
bins of one tile do not fall into the same sets of a cache.

A real T x T transform has T*T independent numbers. Its bins: columns 0 and T/2 of the spectrum
have T/2 + 1 each (the others are their conjugates), the columns between them T each.

`PlaneLayout`: lanes are tiles of one channel. A channel that meets no other fills one lane where
lanes are channels; its tiles fill all of them:
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

from collections.abc import Hashable

from leanconv.algorithms.common.conv import Conv
from leanconv.algorithms.fft.overlap_save import Axis
from leanconv.algorithms.problem import Problem
from leanconv.codegen.geometry import PhasedAccess
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.tiling import Tile
from leanconv.records import dataclass
from leanconv.spec.format import ALIGNMENT, ceil_div
from leanconv.target import Target


def bin_count(length: int) -> int:
    """Independent complex numbers of the transform of length x length real ones."""
    half = length // 2
    return 2 * (half + 1) + (half - 1) * length


def odd_lines(elements: int, item: int) -> int:
    """Round up to an odd number of cache lines, in elements."""
    return (ceil_div(elements * item, ALIGNMENT) | 1) * (ALIGNMENT // item)


@dataclass(frozen=True)
class CutConv:
    """A convolution whose axes are cut for transforms of T x T numbers.

    Attributes:
        conv: the convolution, of float32 or float64.
        height, width: the axes, cut.
        lanes: lanes of a vector.
    """

    conv: Conv
    height: Axis
    width: Axis
    lanes: int

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
    def images(self) -> int:
        """Images by residues of a dilated convolution."""
        return self.conv.batch * self.height.residues * self.width.residues

    @property
    def item(self) -> int:
        """Bytes of an element."""
        return self.conv.dtype.bytes

    @property
    def mid_row(self) -> int:
        """Elements from one row of half-transformed tiles to the next: T vectors and one."""
        return (self.length + 1) * self.lanes


@dataclass(frozen=True)
class CutKernel(Kernel):
    """The code of a convolution by transforms."""

    VARIES = True

    layout: CutConv

    @property
    def operands(self) -> tuple[str, ...]:
        """Input, transformed weights, what the epilogue needs, output."""
        return ("x", "w", *self.layout.conv.epilogue.operands, "y")

    @property
    def flops(self) -> int:
        """Operations of the plain sum, padding counted, as for every algorithm."""
        return self.layout.conv.flops

    @property
    def packed_axes(self) -> Hashable:
        """Taps and transform; the step where it cuts the kernel."""
        return tuple(
            (a.kernel, a.stride, a.dilation, a.length, a.parts, a.parts > 1 and a.step)
            for a in (self.layout.height, self.layout.width)
        )


@dataclass(frozen=True)
class FftLayout(CutConv):
    """One convolution in the frequency domain: sizes, places, and the block that a chunk computes.

    Attributes:
        tile: register tile of the products; rows are real and imaginary parts of tiles.
        block_height, block_width: output tiles of one chunk; (1, R) is R tiles in a row over
            tile rows, residues and images where the kernel is one part.
        splits: slices of a group's output channels, each a chunk of its own: the inputs are
            transformed for each, the weights read once.
        products: real multiplications for a complex one, 4 or 3.
    """

    tile: Tile
    block_height: int = 1
    block_width: int = 1
    splits: int = 1
    products: int = 4

    @property
    def depthwise(self) -> bool:
        """True if groups have one input and one output: lanes along groups, products by element."""
        conv = self.conv
        return conv.inputs == conv.outputs == 1 < conv.groups

    @property
    def phases(self) -> int:
        """Phases of a strided convolution along both axes."""
        return self.height.phases * self.width.phases

    # -- blocks of tiles -------------------------------------------------------------------
    @property
    def flat(self) -> bool:
        """True if a block is a run of tiles over all images, not a rectangle of one image."""
        return self.parts == (1, 1)

    @property
    def input_width(self) -> int:
        """Input tiles of a block along the width."""
        return self.block_width + self.width.parts - 1

    @property
    def input_tiles(self) -> int:
        """Input tiles of a block."""
        return (self.block_height + self.height.parts - 1) * self.input_width

    @property
    def output_tiles(self) -> int:
        """Output tiles of a block."""
        return self.block_height * self.block_width

    @property
    def blocks(self) -> tuple[int, int, int]:
        """Blocks over images, height and width."""
        tiles = self.height.tiles * self.width.tiles
        if self.flat:
            return 1, 1, ceil_div(self.images * tiles, self.output_tiles)
        down = ceil_div(self.height.tiles, self.block_height)
        return self.images, down, ceil_div(self.width.tiles, self.block_width)

    @property
    def outer(self) -> int:
        """Groups, or vectors of channels if depthwise: independent of each other."""
        return ceil_div(self.conv.groups, self.lanes) if self.depthwise else self.conv.groups

    # -- channels --------------------------------------------------------------------------
    @property
    def input_vectors(self) -> int:
        """Vectors of input channels that a chunk transforms."""
        return 1 if self.depthwise else ceil_div(self.conv.inputs, self.lanes)

    @property
    def output_vectors(self) -> int:
        """Vectors of output channels that a chunk transforms back: those of one slice."""
        return (
            1 if self.depthwise else ceil_div(ceil_div(self.conv.outputs, self.lanes), self.splits)
        )

    @property
    def group_vectors(self) -> int:
        """Vectors of output channels of all slices of a group."""
        return self.splits * self.output_vectors

    # -- products --------------------------------------------------------------------------
    @property
    def reduction_steps(self) -> int:
        """Terms of one complex output."""
        return self.conv.inputs * self.phases * self.height.parts * self.width.parts

    @property
    def passes(self) -> int:
        """Real reductions that make up a complex one."""
        return 3 if self.products == 3 else 2

    @property
    def bin_weights(self) -> int:
        """Packed weight elements of one bin of one slice of a group's outputs."""
        return self.passes * self.reduction_steps * self.output_vectors * self.lanes

    @property
    def weight_elements(self) -> int:
        """Packed weight elements in all."""
        return self.outer * self.splits * self.bins * self.bin_weights

    # -- memory, in elements ---------------------------------------------------------------
    @property
    def planes(self) -> int:
        """Numbers kept of each complex input: real, imaginary, and their sum where it is used."""
        return 3 if self.products == 3 else 2

    @property
    def x_phase(self) -> int:
        """Elements from one phase's channels to the next one's."""
        return self.input_vectors * self.lanes

    @property
    def x_row(self) -> int:
        """Elements from one plane of an input tile to the next."""
        row = self.phases * self.x_phase
        lines = ceil_div(row * self.item, ALIGNMENT)
        return odd_lines(row, self.item) if lines % 8 == 0 else row

    @property
    def x_tile(self) -> int:
        """Elements from one input tile to the next."""
        return self.planes * self.x_row

    @property
    def y_row(self) -> int:
        """Elements from one plane of an output tile to the next."""
        return self.output_vectors * self.lanes

    @property
    def slot(self) -> int:
        """Elements from one bin to the next."""
        most = max(self.input_tiles * self.x_tile, self.output_tiles * 2 * self.y_row)
        return odd_lines(most, self.item)

    @property
    def margin(self) -> int:
        """Vectors before and after the T of the row buffer, for loads that reach over its ends."""
        return self.lanes

    @property
    def scratch_offsets(self) -> tuple[int, int, int]:
        """Offsets of the half-transformed tile, of the row buffer, and of the scratch's end."""
        buffer = (self.bins + 1) * self.slot
        row = buffer + self.length * self.mid_row
        return buffer, row, row + (self.length + 2 * self.margin) * self.lanes


def lanes_are_tiles(problem: Problem, target: Target) -> bool:
    """Return whether each channel is filtered by itself, and they are too few for a vector."""
    conv = problem.conv
    alone = conv.inputs == conv.outputs == 1
    plain = conv.x.block == conv.y.block == 1 and not isinstance(conv.y, PhasedAccess)
    return alone and plain and conv.groups < conv.lanes(target)


@dataclass(frozen=True)
class PlaneLayout(CutConv):
    """Sizes and places; channels are groups, and a chunk is a vector of tiles of one channel."""

    products = 4  # real multiplications for a complex one

    @property
    def terms(self) -> tuple[int, int, int, int]:
        """Parts and phases along both axes, in the order of the weights."""
        return (*self.parts, self.height.phases, self.width.phases)

    @property
    def reduction_steps(self) -> int:
        """Terms of one complex output."""
        down, across, rows, columns = self.terms
        return down * across * rows * columns

    # -- tiles -----------------------------------------------------------------------------
    @property
    def image_tiles(self) -> int:
        """Tiles of one image and residue."""
        return self.height.tiles * self.width.tiles

    @property
    def tiles(self) -> int:
        """Tiles of one channel: of all images and residues of a dilated convolution."""
        return self.images * self.image_tiles

    @property
    def vectors(self) -> int:
        """Vectors of tiles of one channel."""
        return ceil_div(self.tiles, self.lanes)

    # -- memory, in elements ---------------------------------------------------------------
    @property
    def weight_elements(self) -> int:
        """Packed weights: [channel][frequency][term][re, im]."""
        return 2 * self.conv.groups * self.bins * self.reduction_steps

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
        """Elements from a lane's line to the next: its span, a vector before and one behind."""
        return max(self.span + 2 * self.lanes, ALIGNMENT // self.item)

    @property
    def scratch_offsets(self) -> tuple[int, int, int, int, int]:
        """Offsets of transposed lines, input bins, output bins and `mid`, and the scratch's end."""
        turned = self.lanes * self.line
        bins = turned + self.span * self.lanes
        column = 2 * self.length * self.lanes
        results = bins + (column if self.reduction_steps > 1 else 0)  # else they replace inputs
        mid = results + column
        return turned, bins, results, mid, mid + self.reduction_steps * self.length * self.mid_row
