"""The kernel of tiled Fourier transforms: a chunk takes a block of tiles through all steps.

Transform, products by the micro-kernel, transform back, epilogue: the workspace belongs to the
thread and does not grow with the image.

The products, for each bin:

Dense: Y[tile, k] = sum over parts p, q, phases and c of X[tile + (p, q), phase, c] · V[…, c, k],
complex numbers, by the micro-kernel on real ones.

Four multiplications: rows of the register tile alternate between real and imaginary parts of tiles.
The reduction with Im V leaves its parts of (Im Y, -Re Y) in each pair of rows; the two rows are
swapped and one is negated, then the reduction with Re V accumulates into them.

Three (Gauss): with S = Re X + Im X, stored by the transform,

    Re Y = S · Re V + Im X · (-(Re V + Im V)),      Im Y = S · Re V + Re X · (Im V - Re V).

Depthwise: the same sum without c and k, lanes along channels, element by element.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import numpy as np

from leanconv.algorithms.fft.layout import CutKernel, FftLayout
from leanconv.algorithms.fft.transform import Transforms
from leanconv.codegen.dot import fma
from leanconv.codegen.emitter import Carry, Function, Pointer, Value, vector
from leanconv.codegen.lowered import PackCall
from leanconv.codegen.math import negate
from leanconv.codegen.microkernel import ReductionLoop, RegisterTile, multiply_accumulate
from leanconv.codegen.tails import each_tile
from leanconv.kernels.packing import channels
from leanconv.records import dataclass
from leanconv.target import Target

_PARTS_UNROLLED = 16  # products of one depthwise output that are unrolled


def multiply(e: Function, layout: FftLayout, w: Pointer) -> None:
    """Emit the products of all bins; `w` is the address of the group's weights."""
    slots = e.scratch.of(layout.conv.dtype.llvm)
    with e.loop("bin", layout.bins) as number:
        y = slots.at(number * layout.slot)
        x = y.at(layout.slot)
        weights = w.at(number * layout.bin_weights)
        if layout.depthwise:
            _multiply_elements(e, layout, x, weights, y)
        else:
            _multiply_panels(e, layout, x, weights, y)


def _multiply_panels(e: Function, layout: FftLayout, x: Pointer, w: Pointer, y: Pointer) -> None:
    vectors = layout.tile.vectors
    size = layout.bin_weights // layout.output_vectors  # weights of one vector of outputs
    for panel, live in each_tile(e, "panel", layout.output_vectors, vectors):
        here = w.at(panel * (size * vectors))
        _PanelProducts(e, layout, live).emit(x, here, y.at(panel * (vectors * layout.lanes)))


class _PanelProducts:
    """Products of all tiles of a block and a panel of `vectors` vectors of output channels."""

    def __init__(self, e: Function, layout: FftLayout, vectors: int) -> None:
        self.e, self.layout, self.vectors = e, layout, vectors
        self.kind = vector(layout.conv.dtype.llvm, layout.lanes)
        self.width = vectors * layout.lanes
        self.loops = _loops(layout, self.width)

    def emit(self, x: Pointer, w: Pointer, y: Pointer) -> None:
        """Emit the loops over tiles; the addresses are those of the panel."""
        e, layout = self.e, self.layout
        per_tile, products = (2, self._four) if layout.products == 4 else (1, self._three)
        tiles = layout.tile.rows // per_tile  # of a register tile
        with e.loop("down", layout.block_height) as down:
            x_line = x.at(down * (layout.input_width * layout.x_tile))
            y_line = y.at(down * (layout.block_width * 2 * layout.y_row))
            for index, rows in each_tile(
                e, "rows", layout.block_width * per_tile, layout.tile.rows
            ):
                first = index * tiles
                a = x_line.at(first * layout.x_tile)
                products(a, w, y_line.at(first * (2 * layout.y_row)), rows)

    def _four(self, a: Pointer, b: Pointer, out: Pointer, rows: int) -> None:
        """Four multiplications: rows are real and imaginary parts of tiles in turn."""
        e, vectors, row = self.e, self.vectors, self.layout.x_row
        acc: Carry = [e.zero(self.kind)] * (rows * vectors)
        self._accumulate(acc, a, b, rows, row)
        swapped = list(acc)
        for i in range(0, rows * vectors, 2 * vectors):
            for j in range(i, i + vectors):
                swapped[j], swapped[j + vectors] = negate(e, acc[j + vectors]), acc[j]
        self._accumulate(swapped, a, self._weights(b, 1), rows, row)
        for number, value in enumerate(swapped):
            i, j = divmod(number, vectors)
            e.store(value, out.at(i * self.layout.y_row + j * self.layout.lanes))

    def _three(self, a: Pointer, b: Pointer, out: Pointer, rows: int) -> None:
        """Three multiplications (Gauss): rows are tiles."""
        e, layout = self.e, self.layout

        def places(plane: int) -> list[Pointer]:
            return [
                out.at((2 * i + plane) * layout.y_row + j * layout.lanes)
                for i in range(rows)
                for j in range(self.vectors)
            ]

        def accumulate(acc: Carry, plane: int, number: int) -> None:
            here = a.at(plane * layout.x_row)
            self._accumulate(acc, here, self._weights(b, number), rows, layout.x_tile)

        acc: Carry = [e.zero(self.kind)] * (rows * self.vectors)
        accumulate(acc, 2, 0)
        real, imaginary = places(0), places(1)
        for value, place in zip(acc, real, strict=True):
            e.store(value, place)  # more accumulators than these do not fit the registers
        accumulate(acc, 0, 1)
        for value, place in zip(acc, imaginary, strict=True):
            e.store(value, place)
        acc = [e.load(place, self.kind) for place in real]
        accumulate(acc, 1, 2)
        for value, place in zip(acc, real, strict=True):
            e.store(value, place)

    def _weights(self, b: Pointer, number: int) -> Pointer:
        return b.at(number * self.layout.reduction_steps * self.width)

    def _accumulate(self, acc: Carry, a: Pointer, b: Pointer, rows: int, row: int) -> None:
        """Emit one pass of the reduction; rows are `row` elements apart."""
        tile = RegisterTile(fma(self.layout.conv.dtype), self.layout.lanes, self.vectors, row)
        multiply_accumulate(self.e, tile, acc, range(rows), a, b, self.loops)


def _loops(layout: FftLayout, width: int) -> list[ReductionLoop]:
    """The loops of a reduction: parts, phases, channels; loops of one step are left out."""
    c, phases = layout.conv.inputs, layout.phases
    down, across = layout.parts
    extents = [
        ("p", down, layout.input_width * layout.x_tile, across * phases * c * width),
        ("q", across, layout.x_tile, phases * c * width),
        ("phase", phases, layout.x_phase, c * width),
        ("c", c, 1, width),
    ]
    if layout.x_phase == c:  # no gap between phases
        extents[2:] = [("c", phases * c, 1, width)]
    loops = [ReductionLoop(*entry) for entry in extents if entry[1] > 1]
    return loops or [ReductionLoop("c", 1, 1, width)]


def _multiply_elements(e: Function, layout: FftLayout, x: Pointer, w: Pointer, y: Pointer) -> None:
    lanes = layout.lanes
    kind = vector(layout.conv.dtype.llvm, lanes)
    down, across = layout.parts
    extents = [
        (down, layout.input_width * layout.x_tile, across * layout.phases),
        (across, layout.x_tile, layout.phases),
        (layout.phases, layout.x_phase, 1),
    ]

    def sums(acc: Carry, a: Pointer, b: Pointer, left: list[tuple[int, int, int]]) -> None:
        if not left:
            re, im = e.load(a, kind), e.load(a.at(layout.x_row), kind)
            v_re, v_im = e.load(b, kind), e.load(b.at(lanes), kind)
            acc[0] = e.fma(re, v_re, acc[0])
            acc[1] = e.fma(re, v_im, acc[1])
            acc[2] = e.fma(im, v_im, acc[2])
            acc[3] = e.fma(im, v_re, acc[3])
            return
        extent, a_step, b_step = left[0]
        for i in _repeat(e, acc, extent, extent * b_step <= _PARTS_UNROLLED):
            a_next = a.at(i * a_step)
            sums(acc, a_next, b.at(i * (b_step * 2 * lanes)), left[1:])

    with e.loop("down", layout.block_height) as i:
        with e.loop("across", layout.block_width) as j:
            a = x.at(i * (layout.input_width * layout.x_tile) + j * layout.x_tile)
            out = y.at((i * layout.block_width + j) * (2 * layout.y_row))
            acc: Carry = [e.zero(kind)] * 4
            sums(acc, a, w, extents)
            e.store(acc[0] - acc[2], out)
            e.store(acc[1] + acc[3], out.at(layout.y_row))


def _repeat(e: Function, acc: Carry, count: int, unrolled: bool) -> Iterator[Value | int]:
    """Emit the body `count` times, or in a loop that carries the accumulators."""
    if unrolled:
        yield from range(count)
        return
    with e.loop("part", count, [acc]) as index:
        yield index


@dataclass(frozen=True)
class FftConv(CutKernel):
    """One convolution's code: a chunk is a block of tiles of one group."""

    layout: FftLayout

    @property
    def grid(self) -> tuple[int, ...]:
        """Groups (or vectors of channels) by slices of their outputs by blocks of tiles."""
        return self.layout.outer, self.layout.splits, *self.layout.blocks

    @property
    def scratch_bytes(self) -> int:
        """The bins of a block, one half-transformed tile, one row."""
        return self.layout.scratch_offsets[2] * self.layout.item

    @property
    def packing(self) -> Hashable:
        """Channels, taps, transform and products; the step where it cuts the kernel."""
        conv, layout = self.layout.conv, self.layout
        channels = conv.groups, conv.inputs, conv.outputs, layout.depthwise
        products = layout.products, layout.splits, layout.tile.vectors, layout.lanes
        operands = conv.epilogue.operands
        return FftConv, self.packed_axes, channels, products, conv.dtype, operands

    @property
    def constant_bytes(self) -> dict[str, int]:
        """Transformed weights; bias and slopes in whole vectors."""
        conv, layout = self.layout.conv, self.layout
        vectors = layout.outer if layout.depthwise else conv.groups * layout.group_vectors
        weights = layout.weight_elements * layout.item
        return {"w": weights, **conv.epilogue.channel_bytes(conv.dtype, vectors * layout.lanes)}

    def channel_calls(self, values: np.ndarray) -> list[PackCall]:
        """Return the calls that pack one number per output channel, zeros after each group."""
        layout = self.layout
        if layout.depthwise:
            return channels(values, values.shape[-1], layout.outer * layout.lanes)
        return channels(values, layout.conv.outputs, layout.group_vectors * layout.lanes)

    def emit(self, target: Target) -> str:
        """Emit: for each chunk transform, multiply, transform back."""
        layout = self.layout
        e = Function(self.NAME)
        pointers = e.pointers(self.operands, layout.conv.dtype.llvm)
        with e.chunks(*self.grid) as (outer, split, *block):
            transforms = Transforms(e, layout, target, pointers, outer, split, block)
            transforms.forward()
            weights = (outer * layout.splits + split) * (layout.bins * layout.bin_weights)
            multiply(e, layout, pointers["w"].at(weights))
            transforms.inverse()
        return e.finish()
