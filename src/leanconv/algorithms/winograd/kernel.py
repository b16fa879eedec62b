"""Fused Winograd convolution: transform a block of tiles, multiply, transform back, store.

With V = B^T d B for each tile and channel, U = G g G^T (offline), and M[xi] = V[xi] · U[xi]:

    y(tile) = A^T M A,   M[xi][tile, k] = sum over c of V[xi][tile, c] · U[xi][c, k]

One chunk is a block of `tiles` tiles and a part of the output channels. Its V and M stay in the
thread's scratch, sized for the second cache, so the workspace does not grow with the image, and
nothing is shared between threads.

    V  [xi][channel block][tile][lane]      broadcasts walk along lanes, stores along tiles; large
                                            ones [xi][tiles / rows][channel block][row][lane], so
                                            that reads of a register tile are one straight stream
    U  [panel][xi][channel][vectors·lanes]  one straight stream; channels of short phases are left
                                            out at the points where they are zero
    M  [xi][tile][vectors·lanes]            of one panel of output channels

A stride is taken apart into phases (polyphase): the stride-1 convolutions of x[p::sh, q::sw] with
w[p::sh, q::sw] add up to the result, so phases are nothing but more input channels, and all of
them share one transform back.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from leanconv.algorithms.problem import Problem
from leanconv.algorithms.winograd.edge_tiles import order_of
from leanconv.algorithms.winograd.reduction import (
    kept_steps,
    reduction_runs,
    regions,
    steps_of,
    steps_of_points,
)
from leanconv.codegen.emitter import Function, Value
from leanconv.codegen.epilogue import Epilogue
from leanconv.codegen.geometry import Access
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.partial_sums import LENGTH
from leanconv.codegen.types import ELEMENT, ITEMSIZE
from leanconv.spec.format import aligned, ceil_div
from leanconv.target import Target
from leanconv.winograd.matrices import Transform, transform
from leanconv.winograd.narrow import as_accurate, narrowed, ordered

Pair = tuple[int, int]
# Weights of so many second caches are asked for that far ahead, into the second cache: 3 to 8 % of
# cv11, 0 to 5 % of cv5, cv6 and cv12. Nearer, or into the first cache, it loses up to 30 %.
_STREAMED, _AHEAD_BYTES = 4, 16384
_LARGE_V_BYTES = 640 * 1024  # V that does not stay in the second cache beside its weights
_FEW_BLOCKS = 4  # of tiles, up to which neighbouring ones are computed at the same time


@dataclass(frozen=True)
class WinogradConv(Kernel):
    """One convolution's code.

    Attributes:
        batch, groups: N and g.
        inputs, outputs: channels of one group.
        size, out: input and output extents (h, w).
        kernel, stride, pad: of the sliding window (h, w); pad before.
        m: outputs of a tile (h, w).
        x, y: where input and output lie; a residual lies like y.
        dtype: `"float32"` or `"float64"`.
        lanes: lanes of a vector.
        tiles: tiles of one block, a multiple of `rows`.
        rows, vectors: the register tile of the products.
        parts: parts into which the panels of output channels are split.
        epilogue: bias, residual, activation.
        sums: products of one partial sum, at most.
        x_offset, y_offset: elements from the tensors' starts to where this convolution's lie.
        narrow: whether tiles that have fewer outputs, at the far edges, leave points out.
        places: how many convolutions there are that differ in nothing but where they lie: so many
            elements further on in x and y than an operand of pairs of 64-bit numbers says.
    """

    batch: int
    groups: int
    inputs: int
    outputs: int
    size: Pair
    out: Pair
    kernel: Pair
    stride: Pair
    pad: Pair
    m: Pair
    x: Access
    y: Access
    dtype: str
    lanes: int
    tiles: int
    rows: int
    vectors: int
    parts: int
    epilogue: Epilogue
    sums: int = LENGTH
    x_offset: int = 0
    y_offset: int = 0
    narrow: bool = False
    places: int = 1

    # -- facts -----------------------------------------------------------------------------
    @property
    def operands(self) -> tuple[str, ...]:
        """Input, transformed weights, what the epilogue needs, places, output."""
        places = ("places",) * (self.places > 1)
        return ("x", "w", *self.epilogue.operands, *places, "y")

    @property
    def taps(self) -> Pair:
        """Taps of one phase's filter (h, w)."""
        return ceil_div(self.kernel[0], self.stride[0]), ceil_div(self.kernel[1], self.stride[1])

    @property
    def alpha(self) -> Pair:
        """Points along each axis: m + r - 1."""
        return self.m[0] + self.taps[0] - 1, self.m[1] + self.taps[1] - 1

    @property
    def points(self) -> int:
        """Products of one tile and channel pair."""
        return self.alpha[0] * self.alpha[1]

    def transforms(self) -> tuple[Transform, Transform]:
        """F(m, r) along height and width."""
        height, width = (
            ordered(m, r, m - gone) if gone else transform(m, r)
            for m, r, gone in zip(self.m, self.taps, self.left_out, strict=True)
        )
        return height, width

    def narrow_transforms(self) -> tuple[Transform, Transform]:
        """F of the last tiles along height and width, at the last points of `transforms`."""
        height, width = (
            narrowed(made, made.m - gone) if gone else made
            for made, gone in zip(self.transforms(), self.left_out, strict=True)
        )
        return height, width

    @property
    def left_out(self) -> Pair:
        """Points that the last tiles along height and width leave out."""
        if not self.narrow:
            return 0, 0
        height, width = (
            grid * m - out if grid > 1 and min(r, m) > 1 else 0
            for grid, m, out, r in zip(self.grid, self.m, self.out, self.taps, strict=True)
        )
        kept = zip((height, width), self.m, self.taps, strict=True)
        low, slim = (gone if gone and as_accurate(m, r, m - gone) else 0 for gone, m, r in kept)
        return low, slim

    @property
    def edges(self) -> str:
        """How tiles at the far edges are computed, as the user selects it."""
        return "narrow" if self.narrow else "whole"

    @property
    def tile_points(self) -> int:
        """Points of all tiles together."""
        sides = zip(self.grid, self.alpha, self.left_out, strict=True)
        return self.batch * prod(grid * alpha - gone for grid, alpha, gone in sides)

    @property
    def grid(self) -> Pair:
        """Tiles along height and width."""
        return ceil_div(self.out[0], self.m[0]), ceil_div(self.out[1], self.m[1])

    @property
    def tile_count(self) -> int:
        """Tiles of the whole batch."""
        return self.batch * prod(self.grid)

    @property
    def blocks(self) -> int:
        """Blocks of tiles."""
        return ceil_div(self.tile_count, self.tiles)

    @property
    def planar(self) -> bool:
        """Whether input channels lie in planes, so that vectors must be gathered by transposing."""
        return not self.x.lanes_contiguous

    @property
    def phases(self) -> Pair:
        """Phases of the stride that have taps."""
        return min(self.stride[0], self.kernel[0]), min(self.stride[1], self.kernel[1])

    @property
    def grain(self) -> int:
        """Neighbouring columns that become lanes of one vector (planar input only)."""
        return self.stride[1]

    @property
    def lines(self) -> int:
        """Rows of the image that one vector's lanes come from (planar input only)."""
        return self.lanes // self.grain

    @property
    def few_lines(self) -> bool:
        """Whether vectors take channels of several phases, since one phase's fill none."""
        return self.planar and self.inputs < self.lines

    @property
    def channel_blocks(self) -> int:
        """Vectors of (phase, channel) pairs."""
        return sum(run.vectors for run in reduction_runs(self))

    @property
    def steps(self) -> int:
        """Length of the reduction: (phase, channel) pairs."""
        return steps_of(reduction_runs(self))

    @property
    def all_steps(self) -> int:
        """Steps of all points together: fewer at those where short phases have no part."""
        return steps_of_points(self)

    @property
    def panel_lanes(self) -> int:
        """Output channels of one panel."""
        return self.vectors * self.lanes

    @property
    def panels(self) -> int:
        """Panels of output channels."""
        return ceil_div(self.outputs, self.panel_lanes)

    @property
    def chunks(self) -> int:
        """Places by groups by parts of the output channels by blocks of tiles."""
        return self.places * self.groups * self.parts * self.blocks

    @property
    def point_stride(self) -> int:
        """Elements of V between two points; a line more than needed, against cache aliasing."""
        return self.channel_blocks * self.tiles * self.lanes + 64 // ITEMSIZE[self.dtype]

    @property
    def v_rows(self) -> int:
        """Tiles that lie side by side in V: all of a block, or a register tile's if V is large."""
        if self.narrow:  # register tiles differ
            return self.tiles
        v_bytes = self.points * self.point_stride * ITEMSIZE[self.dtype]
        return self.rows if v_bytes > _LARGE_V_BYTES else self.tiles

    @property
    def m_stride(self) -> int:
        """Elements of M between two points; a line more than needed, against cache aliasing."""
        return self.tiles * self.panel_lanes + 64 // ITEMSIZE[self.dtype]

    @property
    def between_bytes(self) -> int:
        """Bytes between the two passes of a transform."""
        between = max(self.alpha[0], self.m[0]) * self.alpha[1] * self.lanes
        return aligned(between * ITEMSIZE[self.dtype])

    def _areas(self) -> tuple[int, int, int]:
        """Bytes of V, of M and of the transforms' scratch."""
        item = ITEMSIZE[self.dtype]
        return (
            aligned(self.points * self.point_stride * item),
            aligned(self.points * self.m_stride * item),
            self.between_bytes,
        )

    @property
    def scratch_bytes(self) -> int:
        """V, M and the transforms' own scratch of one thread."""
        return sum(self._areas())

    @property
    def x_bytes(self) -> int:
        """Bytes of the input."""
        values = self.batch * self.groups * self.inputs * prod(self.size)
        return values * ITEMSIZE[self.dtype]

    @property
    def flops(self) -> int:
        """Operations of the plain sum that this replaces, padding counted."""
        taps = self.inputs * prod(self.kernel)
        outputs = self.places * self.batch * self.groups * self.outputs * prod(self.out)
        return 2 * outputs * taps

    @property
    def weight_bytes(self) -> int:
        """Bytes of the transformed weights."""
        panels = self.groups * self.panels * self.panel_lanes
        return self.all_steps * panels * ITEMSIZE[self.dtype]

    # -- packing ---------------------------------------------------------------------------
    def pack_weights(self, w: np.ndarray) -> np.ndarray:
        """Transform weights (K, C/g, kh, kw) in float64 and pack them as the kernel reads them."""
        width, matrix = self.panel_lanes, self._transform_matrix()
        packed = np.empty((self.groups, self.panels, self.all_steps * width), w.dtype)
        taps = np.zeros((matrix.shape[1], self.steps, width))
        kept = self._kept_steps()
        for g, group in enumerate(w.reshape(self.groups, self.outputs, *w.shape[1:])):
            for panel in range(self.panels):
                part = group[panel * width : (panel + 1) * width]
                taps[..., len(part) :] = 0.0
                taps[..., : len(part)] = self._taps_first(part)
                if kept is None:
                    shape = (self.points, self.steps * width)
                    packed[g, panel].reshape(shape)[...] = matrix @ taps.reshape(len(taps), -1)
                else:
                    u = (matrix @ taps.reshape(len(taps), -1)).reshape(-1, width)
                    packed[g, panel].reshape(-1, width)[...] = u[kept]
        return packed.reshape(-1)

    def _kept_steps(self) -> np.ndarray | None:
        """Which of (points, steps), flat, have a place in U; None if all have one."""
        if self.all_steps == self.points * self.steps:
            return None
        kept = [
            kept_steps(self, (rows.last, columns.last)) + (i * self.alpha[1] + j) * self.steps
            for rows in regions(self, 0)
            for i in range(rows.first, rows.first + rows.points)
            for columns in regions(self, 1)
            for j in range(columns.first, columns.first + columns.points)
        ]
        return np.concatenate(kept)

    def transformed(self, w: np.ndarray) -> np.ndarray:
        """U of weights (K, C/g, kh, kw): (g, points, steps, K/g), float64."""
        matrix = self._transform_matrix()
        u = [
            matrix @ self._taps_first(group).reshape(matrix.shape[1], -1)
            for group in w.reshape(self.groups, self.outputs, *w.shape[1:])
        ]
        return np.stack(u).reshape(self.groups, self.points, self.steps, self.outputs)

    def _transform_matrix(self) -> np.ndarray:
        """G of both axes as one matrix (points, taps of a phase)."""
        g_h, g_w = (np.array(t.g, float) for t in self.transforms())
        return np.asarray(np.kron(g_h, g_w))

    def _taps_first(self, w: np.ndarray) -> np.ndarray:
        """Weights (K, C, kh, kw) of a group as (taps of a phase, steps, K), float64."""
        (rh, rw), (ph, pw) = self.taps, self.stride
        padded = np.zeros((rh * ph, rw * pw, *w.shape[1::-1]))
        padded[: self.kernel[0], : self.kernel[1]] = w.transpose(2, 3, 1, 0)
        # (i, p, j, q, C, K) -> (i, j, (p, q, C in the order of the reduction), K)
        phased = padded.reshape(rh, ph, rw, pw, *w.shape[1::-1])
        columns = self.grain if self.planar else self.phases[1]
        phased = phased[:, : self.phases[0], :, :columns]
        order = (0, 2, 1, 4, 3, 5) if self.planar else (0, 2, 1, 3, 4, 5)
        return np.asarray(phased.transpose(order).reshape(rh * rw, self.steps, w.shape[0]))

    def pack_channels(self, values: np.ndarray) -> np.ndarray:
        """Pack one number for each output channel, zero past the last of each group."""
        packed = np.zeros((self.groups, self.panels * self.panel_lanes), values.dtype)
        packed[:, : self.outputs] = values.reshape(self.groups, self.outputs)
        return packed.reshape(-1)

    # -- code ------------------------------------------------------------------------------
    def _ahead(self, target: Target) -> int:
        """Elements of U to ask for ahead of their use, where they come from the third cache."""
        from_l3 = self.weight_bytes > _STREAMED * target.l2_bytes
        return _AHEAD_BYTES // ITEMSIZE[self.dtype] if from_l3 else 0

    def _walked(
        self, target: Target, block: Value, index: Value, start: Value, stop: Value
    ) -> Value:
        """The panel to take: of few blocks every other one begins in the middle.

        Two threads on neighbouring blocks then neither write the same lines at the same time nor
        both bring the same weights from memory: 2 to 6 % of cv5, cv9 and cv10. With many blocks
        it gains nothing, and longer weights are better walked in step, so that each thread reads
        what the other has brought into the third cache.
        """
        if not 1 < self.blocks <= _FEW_BLOCKS or 2 * self.weight_bytes > target.l3_bytes:
            return index
        count = stop - start
        return start + (index - start + block % 2 * (count // 2)) % count

    def _placed(
        self, e: Function, pointers: dict[str, Value], index: Value | None = None
    ) -> dict[str, Value]:
        """The operands' addresses for one of the places, where there are several."""
        if index is None:
            return pointers
        pair, element = pointers["places"].at(index * 2, "i64"), ELEMENT[self.dtype]
        x, y = (e.load(pair.at(i, "i64"), "i64", align=8) for i in (0, 1))
        moved = {"x": x, "y": y, **({"residual": y} if "residual" in pointers else {})}
        return pointers | {role: pointers[role].at(by, element) for role, by in moved.items()}

    def emit(self, target: Target) -> str:
        """Emit the loops: chunks; transform; panels of products and transforms back."""
        from leanconv.algorithms.winograd.input import InputTransform
        from leanconv.algorithms.winograd.output import OutputTransform
        from leanconv.algorithms.winograd.products import Products

        e = Function(self.NAME)
        pointers = {name: e.pointer(i) for i, name in enumerate(self.operands)}
        v_bytes, m_bytes, _ = self._areas()
        areas = (e.scratch, e.scratch.at(v_bytes), e.scratch.at(v_bytes + m_bytes))
        v, m, between = areas
        element = ELEMENT[self.dtype]
        numbers = order_of(self)
        order = e.table(numbers) if numbers else None
        per_part = ceil_div(self.panels, self.parts)
        stream = self.all_steps * self.panel_lanes
        places = (self.places,) * (self.places > 1)
        with e.chunks(*places, self.groups, self.parts, self.blocks) as (*at, g, part, block):
            here = self._placed(e, pointers, *at)
            into = InputTransform(e, self, here["x"], g, v, between, order)
            into.far = self.planar and self.x_bytes > target.l2_bytes
            back = OutputTransform(e, self, here, g, m, between, order)
            u = pointers["w"].at(g * (self.panels * stream), element)
            first = block * self.tiles
            live = e.smin(e.const("i64", self.tile_count) - first, self.tiles)
            into.block(first, live)
            start = part * per_part
            stop = e.smin(start + per_part, self.panels)
            with e.when(start.compare("slt", stop)), e.loop("panel", stop, start=start) as index:
                panel = self._walked(target, block, index, start, stop)
                u_panel = u.at(panel * stream, element)
                Products(e, self, v, u_panel, m, live, target, self._ahead(target)).emit()
                back.block(first, live, panel)
        return e.finish()


def unplanned(problem: Problem, m: Pair, lanes: int) -> WinogradConv:
    """The code for a tile of m outputs (h, w), with its blocks and register tile still to choose.

    Args:
        problem: without dilation or depth.
        m: outputs of a tile.
        lanes: of a vector.
    """
    spec, window = problem.spec, problem.window
    return WinogradConv(
        batch=spec.batch,
        groups=spec.groups,
        inputs=problem.group_inputs,
        outputs=problem.group_outputs,
        size=window.size[1:],
        out=window.out[1:],
        kernel=window.kernel[1:],
        stride=window.stride[1:],
        pad=window.pad[1:],
        m=m,
        x=problem.x,
        y=problem.y,
        dtype=spec.dtype,
        lanes=lanes,
        tiles=1,
        rows=1,
        vectors=1,
        parts=1,
        epilogue=problem.epilogue,
        x_offset=problem.x_offset,
        y_offset=problem.y_offset,
    )
