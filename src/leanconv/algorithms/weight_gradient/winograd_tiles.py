"""Sizes of Winograd's gradient of weights: tiles, points, and the rows of V, U and M.

    V[xi][b, s] = (B^T d B)[xi] of tile b of x, step s          alpha_h · alpha_w points xi
    U[xi][b, k] = (G g G^T)[xi] of tile b of dy, channel k      m_h · m_w outputs each
    M[xi][s, k] = sum over tiles b of V[xi][b, s] · U[xi][b, k]

A step s is a pair (phase, channel): the phases of a stride are convolutions of their own with some
of the taps. Each phase begins a vector of V, but for channels that are fewer than a vector has
lanes: those of all phases follow each other. Rows of V and U are whole vectors, which lie an odd
number of cache lines apart where they are long: so a panel of many tiles fills all sets of L1.
"""

from __future__ import annotations

from math import prod

from leanconv.algorithms.decompose import Range, phase_count, phase_taps
from leanconv.algorithms.winograd.shape import Pair
from leanconv.records import cached_property, dataclass
from leanconv.spec.format import ALIGNMENT, aligned, ceil_div
from leanconv.types import DType
from leanconv.winograd.matrices import Transform, transform

_LONG_ROW = 8  # cache lines of a row of V or U, from which on their number is made odd


def row_elements(channels: int, lanes: int, dtype: DType) -> int:
    """Elements from one tile's row of V or U to the next one's."""
    size = aligned(ceil_div(channels, lanes) * lanes * dtype.bytes)
    lines = size // ALIGNMENT
    return (lines + (lines >= _LONG_ROW and lines % 2 == 0)) * ALIGNMENT // dtype.bytes


def point_elements(tiles: int, row: int, dtype: DType) -> int:
    """Elements from one point of V or U to the next; a line more avoids cache aliasing."""
    return tiles * row + ALIGNMENT // dtype.bytes


@dataclass(frozen=True)
class WeightTiles:
    """Weights whose gradient is summed over tiles, and how the products are cut.

    Attributes:
        groups, inputs, outputs: groups, and channels of one.
        kernel: all taps of the weights (h, w).
        taps: those that are computed: first, and one past the last, along height and width.
        stride: of the sliding window (h, w), without dilation.
        m: outputs of a tile (h, w).
        dtype: of everything.
        lanes: of a vector.
        rows, vectors: the register tile: steps by vectors of output channels.
    """

    groups: int
    inputs: int
    outputs: int
    kernel: Pair
    taps: tuple[Range, Range]
    stride: Pair
    m: Pair
    dtype: DType
    lanes: int
    rows: int = 1
    vectors: int = 1

    @property
    def extent(self) -> Pair:
        """Taps that are computed (h, w)."""
        (top, bottom), (left, right) = self.taps
        return bottom - top, right - left

    @cached_property
    def transforms(self) -> tuple[Transform, Transform]:
        """F(r, m) along height and width, r the taps of the longest phase."""
        axes = zip(self.extent, self.stride, self.m, strict=True)
        height, width = (transform(phase_taps(k, s), m) for k, s, m in axes)
        return height, width

    @property
    def alpha(self) -> Pair:
        """Points along height and width."""
        height, width = self.transforms
        return height.alpha, width.alpha

    @property
    def points(self) -> int:
        """Products of one pair of tiles."""
        return prod(self.alpha)

    @property
    def phases(self) -> Pair:
        """Phases of the stride that have taps."""
        (kh, kw), (sh, sw) = self.extent, self.stride
        return phase_count(kh, sh), phase_count(kw, sw)

    @property
    def runs(self) -> int:
        """Phases, each of which has all channels."""
        return prod(self.phases)

    @property
    def whole(self) -> Pair:
        """Phases (h, w) that have the most taps. Those after them have one less.

        What these have not is the tap that alone takes products at the last point, infinity.
        """
        axes = zip(self.extent, self.stride, self.phases, strict=True)
        height, width = (min(n, k - (phase_taps(k, s) - 1) * s) for k, s, n in axes)
        return height, width

    @property
    def products(self) -> int:
        """Pairs of a point and a run of steps that take products there."""
        if self.together:
            return self.points
        axes = zip(self.alpha, self.phases, self.whole, strict=True)
        return prod(alpha * phases - (phases - whole) for alpha, phases, whole in axes)

    @property
    def steps(self) -> int:
        """Pairs of phase and channel."""
        return self.runs * self.inputs

    @property
    def together(self) -> bool:
        """Whether the channels of all phases follow each other in a row of V."""
        return self.runs > 1 and self.inputs < self.lanes

    @property
    def v_runs(self) -> tuple[int, int]:
        """Runs of steps that follow each other in a row of V, and the steps of one."""
        return (1, self.steps) if self.together else (self.runs, self.inputs)

    @property
    def run_lanes(self) -> int:
        """Elements of a row of V from one run to the next: whole vectors."""
        return ceil_div(self.v_runs[1], self.lanes) * self.lanes

    @property
    def v_vectors(self) -> int:
        """Vectors of a row of V."""
        return self.v_runs[0] * self.run_lanes // self.lanes

    @property
    def v_row(self) -> int:
        """Elements of a row of V."""
        return row_elements(self.v_vectors * self.lanes, self.lanes, self.dtype)

    @property
    def u_row(self) -> int:
        """Elements of a row of U."""
        return row_elements(self.outputs, self.lanes, self.dtype)

    @property
    def out_vectors(self) -> int:
        """Vectors of output channels."""
        return ceil_div(self.outputs, self.lanes)

    @property
    def panel_lanes(self) -> int:
        """Output channels of one panel."""
        return self.vectors * self.lanes

    @property
    def panels(self) -> int:
        """Panels of output channels."""
        return ceil_div(self.out_vectors, self.vectors)

    @property
    def m_point(self) -> int:
        """Elements of M of one point: [panel][step][lanes of a panel]."""
        return self.panels * self.steps * self.panel_lanes

    @property
    def m_elements(self) -> int:
        """Elements of M."""
        return self.groups * self.points * self.m_point

    def elements(self, tiles: int, row: int) -> int:
        """Elements of V or U of so many tiles."""
        return self.groups * self.points * point_elements(tiles, row, self.dtype)
