"""Fused Winograd convolution: transform a block of tiles, multiply, transform back, store.

With V = B^T d B for each tile and channel, U = G g G^T (offline), and M[xi] = V[xi] · U[xi]:

    y(tile) = A^T M A,   M[xi][tile, k] = sum over c of V[xi][tile, c] · U[xi][c, k]

One chunk is a block of `tiles` tiles and a part of the output channels. Its V and M stay in the
thread's scratch, sized for the second cache, so the workspace does not grow with the image, and
nothing is shared between threads.

    V  [xi][channel block][tile][lane]      broadcasts walk along lanes, stores along tiles
    U  [panel][xi][channel][vectors·lanes]  one straight stream
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
from leanconv.codegen.emitter import Function, Value, vector
from leanconv.codegen.epilogue import Epilogue
from leanconv.codegen.geometry import Access
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.microkernel import ReductionLoop, RegisterTile, multiply_accumulate
from leanconv.codegen.partial_sums import LENGTH, PartialSums
from leanconv.codegen.types import ELEMENT, ITEMSIZE
from leanconv.spec.format import aligned, ceil_div
from leanconv.target import Target
from leanconv.winograd.matrices import Transform, transform

Pair = tuple[int, int]


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
        x_offset, y_offset: elements from the tensors' starts to where this convolution's lie.
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
    x_offset: int = 0
    y_offset: int = 0

    # -- facts -----------------------------------------------------------------------------
    @property
    def operands(self) -> tuple[str, ...]:
        """Input, transformed weights, what the epilogue needs, output."""
        return ("x", "w", *self.epilogue.operands, "y")

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
        return transform(self.m[0], self.taps[0]), transform(self.m[1], self.taps[1])

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

    def reduction_runs(self) -> list[tuple[int, int, int]]:
        """Channel blocks as runs (first block, blocks, lanes that hold channels)."""
        if self.planar:
            lines, per = self.phases[0] * self.inputs, self.lines
            whole, rest = divmod(lines, per)
            runs = [(0, whole, self.lanes)] if whole else []
            return runs + ([(whole, 1, rest * self.grain)] if rest else [])
        whole, rest = divmod(self.inputs, self.lanes)
        per_phase = ceil_div(self.inputs, self.lanes)
        if not rest:
            return [(0, self.phases[0] * self.phases[1] * whole, self.lanes)]
        runs = []
        for phase in range(self.phases[0] * self.phases[1]):
            if whole:
                runs.append((phase * per_phase, whole, self.lanes))
            runs.append((phase * per_phase + whole, 1, rest))
        return runs

    @property
    def channel_blocks(self) -> int:
        """Vectors of (phase, channel) pairs."""
        return sum(blocks for _, blocks, _ in self.reduction_runs())

    @property
    def steps(self) -> int:
        """Length of the reduction: (phase, channel) pairs."""
        return sum(blocks * lanes for _, blocks, lanes in self.reduction_runs())

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
        """Groups by parts of the output channels by blocks of tiles."""
        return self.groups * self.parts * self.blocks

    @property
    def point_stride(self) -> int:
        """Elements of V between two points; a line more than needed, against cache aliasing."""
        return self.channel_blocks * self.tiles * self.lanes + 64 // ITEMSIZE[self.dtype]

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
            aligned(self.points * self.tiles * self.panel_lanes * item),
            self.between_bytes,
        )

    @property
    def scratch_bytes(self) -> int:
        """V, M and the transforms' own scratch of one thread."""
        return sum(self._areas())

    @property
    def flops(self) -> int:
        """Operations of the plain sum that this replaces, padding counted."""
        taps = self.inputs * prod(self.kernel)
        return 2 * self.batch * self.groups * self.outputs * prod(self.out) * taps

    @property
    def weight_bytes(self) -> int:
        """Bytes of the transformed weights."""
        panels = self.groups * self.panels * self.panel_lanes
        return self.points * self.steps * panels * ITEMSIZE[self.dtype]

    # -- packing ---------------------------------------------------------------------------
    def pack_weights(self, w: np.ndarray) -> np.ndarray:
        """Transform weights (K, C/g, kh, kw) in float64 and pack them as the kernel reads them."""
        return np.concatenate([self._pack_group(u, w.dtype) for u in self.transformed(w)])

    def transformed(self, w: np.ndarray) -> np.ndarray:
        """U of weights (K, C/g, kh, kw): (g, points, steps, K/g), float64."""
        grouped = w.reshape(self.groups, self.outputs, *w.shape[1:])
        return np.stack([self._transform_group(group) for group in grouped])

    def _transform_group(self, w: np.ndarray) -> np.ndarray:
        (rh, rw), (ph, pw) = self.taps, self.stride
        padded = np.zeros((*w.shape[:2], rh * ph, rw * pw))
        padded[:, :, : self.kernel[0], : self.kernel[1]] = w
        phased = padded.reshape(*w.shape[:2], rh, ph, rw, pw)
        g_h, g_w = (np.array(t.g, float) for t in self.transforms())
        # (K, C, i, p, j, q) -> (u, v, (p, q, C) in the order of the reduction, K)
        u = np.einsum("ui,kcipjq,vj->uvkcpq", g_h, phased, g_w, optimize=True)
        u = u[..., : self.phases[0], : (self.grain if self.planar else self.phases[1])]
        order = (0, 1, 4, 3, 5, 2) if self.planar else (0, 1, 4, 5, 3, 2)
        return np.asarray(u.transpose(order).reshape(self.points, self.steps, self.outputs))

    def _pack_group(self, u: np.ndarray, dtype: np.dtype[np.generic]) -> np.ndarray:
        packed = np.zeros((self.points, self.steps, self.panels * self.panel_lanes), dtype)
        packed[..., : self.outputs] = u
        split = packed.reshape(self.points, self.steps, self.panels, self.panel_lanes)
        return np.ascontiguousarray(split.transpose(2, 0, 1, 3)).reshape(-1)

    def pack_channels(self, values: np.ndarray) -> np.ndarray:
        """Pack one number for each output channel, zero past the last of each group."""
        packed = np.zeros((self.groups, self.panels * self.panel_lanes), values.dtype)
        packed[:, : self.outputs] = values.reshape(self.groups, self.outputs)
        return packed.reshape(-1)

    # -- code ------------------------------------------------------------------------------
    def emit(self, target: Target) -> str:
        """Emit the loops: chunks; transform; panels of products and transforms back."""
        from leanconv.algorithms.winograd_input import InputTransform
        from leanconv.algorithms.winograd_output import OutputTransform

        e = Function(self.NAME)
        pointers = {name: e.pointer(i) for i, name in enumerate(self.operands)}
        v_bytes, m_bytes, _ = self._areas()
        areas = (e.scratch, e.scratch.at(v_bytes), e.scratch.at(v_bytes + m_bytes))
        v, m, between = areas
        element = ELEMENT[self.dtype]
        per_part = ceil_div(self.panels, self.parts)
        stream = self.points * self.steps * self.panel_lanes
        with e.chunks(self.groups, self.parts, self.blocks) as (g, part, block):
            into = InputTransform(e, self, pointers["x"], g, v, between)
            back = OutputTransform(e, self, pointers, g, m, between)
            u = pointers["w"].at(g * (self.panels * stream), element)
            first = block * self.tiles
            live = e.smin(e.const("i64", self.tile_count) - first, self.tiles)
            with e.loop("tile", live) as t:
                into.tile(first + t, t)
            start = part * per_part
            stop = e.smin(start + per_part, self.panels)
            with e.when(start.compare("slt", stop)), e.loop("panel", stop, start=start) as panel:
                self._products(e, v, u.at(panel * stream, element), m)
                with e.loop("tile", live) as t:
                    back.tile(first + t, t, panel)
        return e.finish()

    def _products(self, e: Function, v: Value, u: Value, m: Value) -> None:
        """M[xi] = V[xi] · U[xi] for every point, panel by panel of tiles."""
        element = ELEMENT[self.dtype]
        kind = vector(element, self.lanes)
        width = self.panel_lanes
        tile = RegisterTile(element, kind, self.lanes, self.vectors, self.lanes)
        with e.loop("xi", self.points) as xi:
            a = v.at(xi * self.point_stride, element)
            b = u.at(xi * (self.steps * width), element)
            out = m.at(xi * (self.tiles * width), element)
            with e.loop("rows", self.tiles // self.rows) as r:
                a_r = a.at(r * (self.rows * self.lanes), element)
                acc = [e.zero(kind)] * (self.rows * self.vectors)
                sums = PartialSums(e, tile, acc) if self.steps > LENGTH else None
                done = 0
                for start, blocks, lanes in self.reduction_runs():
                    over = ReductionLoop("cb", blocks, self.tiles * self.lanes, lanes * width)
                    inside = ReductionLoop("c", lanes, 1, width)
                    a_s = a_r.at(start * self.tiles * self.lanes, element)
                    b_s = b.at(done * width, element)
                    loops = [over, inside] if blocks > 1 else [inside]
                    if sums:
                        sums.add(range(self.rows), a_s, b_s, loops)
                    else:
                        multiply_accumulate(e, tile, acc, range(self.rows), a_s, b_s, loops)
                    done += blocks * lanes
                acc = sums.values() if sums else acc
                place = out.at(r * (self.rows * width), element)
                for i in range(self.rows):
                    for j in range(self.vectors):
                        at = place.at(i * width + j * self.lanes, element)
                        e.store(acc[i * self.vectors + j], at)


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
