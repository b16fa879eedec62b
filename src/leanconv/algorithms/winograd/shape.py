"""The shape of fused Winograd: sizes of the convolution, tiles, blocks and buffers.

Nothing is emitted here. `reduction` says which (phase, channel) pairs are summed, `edge_tiles` in
which order tiles are placed in blocks; `kernel` emits the code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from leanconv.algorithms.common.conv import Conv
from leanconv.algorithms.decompose import phase_taps
from leanconv.algorithms.problem import Problem
from leanconv.algorithms.winograd.reduction import Reduction
from leanconv.codegen.dot import group_of
from leanconv.codegen.emitter import Function, Pointer
from leanconv.codegen.partial_sums import LENGTH
from leanconv.records import cached_property, dataclass
from leanconv.spec.format import ALIGNMENT, aligned, ceil_div
from leanconv.symbolic import Count, fixed
from leanconv.types import FLOAT32, INT16, DType, Precision
from leanconv.winograd import variants
from leanconv.winograd.matrices import Transform, transform

Pair = tuple[int, int]
_LARGE_V_BYTES = 640 * 1024  # V that does not stay in L2 beside its weights


@dataclass(frozen=True)
class WinogradShape:
    """A convolution without dilation or depth, and how fused Winograd cuts it.

    It is of one float for everything; or of int8 weights, with sums in int32.

    Attributes:
        conv: the convolution.
        m: outputs of a tile (h, w).
        lanes: lanes of a vector.
        tiles: tiles of one block, a multiple of `rows`.
        rows, vectors: the register tile of the products.
        parts: parts into which the panels of output channels are split.
        sums: products of one partial sum, at most.
        narrow: whether tiles of fewer outputs, at the far edges, skip points.
        residues: the number of convolutions that differ only in their offsets in x and y. If
            several, one more operand, `offsets`, has for each a pair of i64: its two offsets in
            elements.
        any_size: whether the code serves all sizes: nothing in it tells where tiles fit exactly.
    """

    conv: Conv
    m: Pair
    lanes: int
    tiles: int = 1
    rows: int = 1
    vectors: int = 1
    parts: Count = 1
    sums: int = LENGTH
    narrow: bool = False
    residues: int = 1
    any_size: bool = False

    @staticmethod
    def of(problem: Problem, m: Pair, lanes: int, sums: int = LENGTH) -> WinogradShape:
        """The shape for tiles of m outputs (h, w), blocks and register tile still to choose.

        Args:
            problem: without dilation or depth.
            m: outputs of a tile.
            lanes: of a vector.
            sums: products of one partial sum.
        """
        return WinogradShape(problem.conv, m, lanes, sums=sums, any_size=bool(problem.any_size))

    @property
    def size(self) -> Pair:
        """Input extents (h, w)."""
        return self.conv.window.size[1:]

    @property
    def out(self) -> Pair:
        """Output extents (h, w)."""
        return self.conv.window.out[1:]

    @property
    def kernel(self) -> Pair:
        """Taps (h, w)."""
        return self.conv.window.kernel[1:]

    @property
    def stride(self) -> Pair:
        """Steps between windows (h, w)."""
        return self.conv.window.stride[1:]

    @cached_property
    def reduction(self) -> Reduction:
        """The (phase, channel) pairs that are summed at each point."""
        return Reduction(
            inputs=ceil_div(self.conv.inputs, self.dot_group) * self.dot_group,
            lanes=self.lanes,
            planar=self.planar,
            kernel=self.kernel,
            stride=self.stride,
            m=self.m,
            dropped_points=self.dropped_points,
        )

    @cached_property
    def transformed(self) -> DType:
        """Element type of V and U, the transformed inputs and weights."""
        return self.conv.precision.x if self.conv.precision.accumulate.is_float else INT16

    @cached_property
    def products(self) -> Precision:
        """Element types of the products and their sums."""
        operand, total = self.transformed, self.conv.precision.accumulate
        return Precision(operand, operand, total, total)

    @cached_property
    def dot_group(self) -> int:
        """Channels that one step of the products multiplies."""
        return group_of(self.products)

    @cached_property
    def taps(self) -> Pair:
        """Taps of one phase's filter (h, w)."""
        (kh, kw), (sh, sw) = self.kernel, self.stride
        return phase_taps(kh, sh), phase_taps(kw, sw)

    @cached_property
    def alpha(self) -> Pair:
        """Points along each axis: m + r - 1."""
        return self.m[0] + self.taps[0] - 1, self.m[1] + self.taps[1] - 1

    @property
    def points(self) -> int:
        """Products of one tile and channel pair."""
        return self.alpha[0] * self.alpha[1]

    def transforms(self) -> tuple[Transform, Transform]:
        """F(m, r) along height and width."""
        if not self.conv.precision.accumulate.is_float:
            whole_h, whole_w = self._integer_transforms()
            return whole_h.exact, whole_w.exact
        return transforms_of(self.m, self.taps, self.dropped_points)

    def _integer_transforms(self) -> tuple[variants.IntegerTransform, variants.IntegerTransform]:
        height, width = map(variants.integer_transform, self.m, self.taps)
        assert height
        assert width
        return height, width

    @property
    def division(self) -> variants.Division | None:
        """Division that makes outputs of integer sums transformed back; None for floats."""
        if self.conv.precision.accumulate.is_float:
            return None
        height, width = self._integer_transforms()
        return variants.division(height.scale * width.scale)

    def narrow_transforms(self) -> tuple[Transform, Transform]:
        """F of the last tiles along height and width, at the last points of `transforms`."""
        if not self.conv.precision.accumulate.is_float:
            pairs = zip(self._integer_transforms(), self.dropped_points, strict=True)
            one, other = (
                variants.narrowed_integers(made, made.exact.m - less) for made, less in pairs
            )
            assert one
            assert other
            return one.exact, other.exact
        height, width = (
            variants.narrowed(made, made.m - dropped) if dropped else made
            for made, dropped in zip(self.transforms(), self.dropped_points, strict=True)
        )
        return height, width

    @property
    def dropped_points(self) -> Pair:
        """Points that the last tiles along height and width skip, if they may be narrow.

        No points where skipping them would amplify rounding more than whole tiles do.
        """
        if not self.narrow:
            return 0, 0
        sides = zip(self.grid, self.m, self.out, self.taps, strict=True)
        may = variants.as_accurate if self.conv.precision.accumulate.is_float else _is_exact
        height, width = (_dropped(grid, m, out, taps, may) for grid, m, out, taps in sides)
        return height, width

    @property
    def edges(self) -> str:
        """Tiles at the far edges, as the user selects them: `"narrow"` or `"whole"`."""
        return "narrow" if self.narrow else "whole"

    @property
    def tile_points(self) -> int:
        """Points of all tiles together."""
        sides = zip(self.grid, self.alpha, self.dropped_points, strict=True)
        return self.conv.batch * prod(grid * alpha - dropped for grid, alpha, dropped in sides)

    @property
    def grid(self) -> Pair:
        """Tiles along height and width."""
        return ceil_div(self.out[0], self.m[0]), ceil_div(self.out[1], self.m[1])

    @property
    def tile_count(self) -> int:
        """Tiles of the whole batch."""
        return self.conv.batch * prod(self.grid)

    @property
    def blocks(self) -> int:
        """Blocks of tiles."""
        return ceil_div(self.tile_count, self.tiles)

    @property
    def planar(self) -> bool:
        """True if input channels lie in planes, so that vectors must be gathered by transposing."""
        return not self.conv.x.lanes_contiguous

    @property
    def phases(self) -> Pair:
        """Phases of the stride that have taps."""
        return self.reduction.phases

    @cached_property
    def channel_blocks(self) -> int:
        """Vectors of (phase, channel) pairs."""
        return sum(run.vectors for run in self.reduction.runs())

    @cached_property
    def steps(self) -> int:
        """Length of the reduction: (phase, channel) pairs."""
        return self.reduction.steps_at()

    @property
    def all_steps(self) -> int:
        """Steps of all points together; points at infinity have fewer, without short phases."""
        return self.reduction.steps_of_points()

    @property
    def panel_lanes(self) -> int:
        """Output channels of one panel."""
        return self.vectors * self.lanes

    @property
    def panels(self) -> int:
        """Panels of output channels."""
        return ceil_div(self.conv.outputs, self.panel_lanes)

    @property
    def point_stride(self) -> int:
        """Elements of V between two points; one line of padding avoids cache aliasing."""
        return self.channel_blocks * self.tiles * self.lanes + ALIGNMENT // self.transformed.bytes

    @property
    def v_rows(self) -> int:
        """Tiles contiguous in V: all of a block, or those of a register tile if V is large."""
        if self.narrow:  # register tiles differ
            return self.tiles
        v_bytes = self.points * self.point_stride * self.transformed.bytes
        return self.rows if v_bytes > _LARGE_V_BYTES else self.tiles

    @property
    def m_stride(self) -> int:
        """Elements of M between two points; one line of padding avoids cache aliasing."""
        return self.tiles * self.panel_lanes + ALIGNMENT // self.conv.precision.accumulate.bytes

    @property
    def between_bytes(self) -> int:
        """Bytes between the two passes of a transform."""
        between = max(self.alpha[0], self.m[0]) * self.alpha[1] * self.lanes
        return aligned(between * self.conv.precision.accumulate.bytes)

    def areas(self) -> tuple[int, int, int]:
        """Bytes of V, of M and of the transforms' scratch."""
        return (
            aligned(self.points * self.point_stride * self.transformed.bytes),
            aligned(self.points * self.m_stride * self.conv.precision.accumulate.bytes),
            self.between_bytes,
        )

    @property
    def flops(self) -> int:
        """Operations of the plain sum that this replaces, padding counted."""
        return self.residues * self.conv.flops

    @property
    def packed_channels(self) -> int:
        """Output channels in whole panels, all groups together."""
        return self.conv.groups * self.panels * self.panel_lanes

    @property
    def weight_bytes(self) -> int:
        """Bytes of the transformed weights."""
        return self.all_steps * self.packed_channels * self.transformed.bytes


def transforms_of(m: Pair, taps: Pair, dropped: Pair) -> tuple[Transform, Transform]:
    """F(m, r) of floats along height and width, the points first that narrow tiles skip."""
    height, width = (
        variants.ordered(one, r, one - less) if less else transform(one, r)
        for one, r, less in zip(m, taps, dropped, strict=True)
    )
    return height, width


def operand_pointers(
    e: Function, shape: WinogradShape, operands: Sequence[str]
) -> dict[str, Pointer]:
    """Addresses of a kernel's operands, each of its own element type."""
    types = shape.conv.precision
    others = {
        "x": types.x.llvm,
        "V": shape.transformed.llvm,
        "w": shape.transformed.llvm,
        "residual": types.y.llvm,
        "scale": FLOAT32.llvm,
        "quantisation": FLOAT32.llvm,
        "y": types.y.llvm,
        "offsets": "i64",
    }
    return e.pointers(operands, types.accumulate.llvm, **others)


def _is_exact(m: int, r: int, outputs: int) -> bool:
    """Return whether narrow tiles of integers are exact."""
    made = variants.integer_transform(m, r)
    return made is not None and variants.narrowed_integers(made, outputs) is not None


def _dropped(grid: int, m: int, out: int, taps: int, may: Callable[[int, int, int], bool]) -> int:
    """Points that the last tile along an axis skips."""
    spare = fixed(grid * m - out) if grid > 1 and min(taps, m) > 1 else 0
    return spare if spare and may(m, taps, m - spare) else 0
