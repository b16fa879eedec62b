"""DeformColumns: the cells that a deformable convolution multiplies, as channels of an image.

    y[n, column(c, k), p] = mask[n, g, k, p] * x[n, c, place(p, k) + offset[n, g, k, :, p]]

with g the offset group of channel c, between pixels as `sampling` says, and zeros around. What
follows is a convolution of one pixel. Channels lie in runs: in a run all of them for one k, then
for the next, so that blocks of channels stay blocks.
"""

from __future__ import annotations

from math import prod

from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.lowered import Call, Lowered
from leanconv.codegen.shuffles import power_below
from leanconv.errors import UnsupportedError
from leanconv.graph.ir import Graph, Node
from leanconv.kernels import KernelContext
from leanconv.kernels.sampling import (
    MOST_CELLS,
    TILE,
    Axis,
    Table,
    scratch_bytes,
    taps_along,
    vectors,
)
from leanconv.records import dataclass
from leanconv.spec.format import aligned, ceil_div
from leanconv.symbolic import Extent, Extents
from leanconv.target import Target
from leanconv.types import DType

_TAPS = 4


@dataclass(frozen=True)
class DeformColumns(Kernel):
    """Columns of an image of two axes.

    Attributes:
        dtype: of all operands.
        images: how many there are.
        groups: of offsets.
        planes: of an image in one such group, of blocks of channels or of one.
        run: planes that stay together.
        block: channels in a block, 1 in plain planes.
        extents: of the image's axes.
        out: of the result's.
        kernel, strides, dilations, begins: along height and width; begins are the paddings.
        masked: whether there is a mask.
    """

    VARIES = True

    dtype: DType
    images: Extent
    groups: Extent
    planes: Extent
    run: int
    block: int
    extents: Extents
    out: Extents
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    begins: tuple[int, int]
    masked: bool

    @property
    def operands(self) -> tuple[str, ...]:
        return ("x", "offset", "mask", "y") if self.masked else ("x", "offset", "y")

    @property
    def places(self) -> int:
        """Pixels of the result."""
        return prod(self.out)

    @property
    def tiles(self) -> int:
        """Tiles of an image's places."""
        return ceil_div(self.places, TILE)

    @property
    def grid(self) -> tuple[int, ...]:
        return self.images, self.tiles

    @property
    def scratch_bytes(self) -> int:
        return self._table_bytes + 2 * self._line_bytes

    @property
    def _table_bytes(self) -> int:
        return scratch_bytes(self.dtype, _TAPS)

    @property
    def _line_bytes(self) -> int:
        return aligned(TILE * self.dtype.bytes)

    @property
    def flops(self) -> int:
        cells = self.images * self.groups * self.planes * self.block * self.places
        return 2 * _TAPS * cells * prod(self.kernel)

    def emit(self, target: Target) -> str:
        return _Nest(self, target).emit()


class _Nest:
    def __init__(self, kernel: DeformColumns, target: Target) -> None:
        self.k, self.e = kernel, Function(kernel.NAME)
        self.lanes = power_below(kernel.places, target.lanes(kernel.dtype))
        self.kind = vector(kernel.dtype.llvm, self.lanes)
        self.table = Table(self.e, kernel.dtype, _TAPS, weighted=True)
        scratch, table, line = self.e.scratch, kernel._table_bytes, kernel._line_bytes
        self.lines = [scratch.at(table + i * line).of(kernel.dtype.llvm) for i in range(2)]

    def emit(self) -> str:
        e, k = self.e, self.k
        pointers = e.pointers(k.operands, k.dtype.llvm)
        x, offset, mask, y = (pointers.get(name) for name in ("x", "offset", "mask", "y"))
        assert x is not None
        assert offset is not None
        assert y is not None
        taps, plane = prod(k.kernel), prod(k.extents) * k.block
        with e.chunks(*k.grid) as (image, tile):
            first = tile * k.places // k.tiles
            count = (tile + 1) * k.places // k.tiles - first
            for at in vectors(e, count, self.lanes):
                self._start(first + at, at)
            with e.loop("group", k.groups) as group:
                part = image * k.groups + group
                source = x.at(part * (k.planes * plane))
                with e.loop("tap", taps) as number:
                    row = part * taps + number
                    moved = offset.at(row * (2 * k.places) + first)
                    scale = mask.at(row * k.places + first) if mask is not None else None
                    for at in vectors(e, count, self.lanes):
                        self._find(number, moved, scale, at)
                    with e.loop("plane", k.planes) as index:
                        own = group * k.planes + index
                        column = (own // k.run) * (taps * k.run) + own % k.run + number * k.run
                        to = image * (k.groups * k.planes * taps) + column
                        result = y.at((to * k.places + first) * k.block)
                        self._mix(source.at(index * plane), result, count)
        return e.finish()

    def _start(self, place: Value, at: Value) -> None:
        """Store the first cells of the windows of a vector of places."""
        e, k, lanes = self.e, self.k, self.lanes
        numbers = e.splat(e.convert("trunc", place, "i32"), lanes)
        if lanes > 1:
            numbers = numbers + e.const(numbers.kind, range(lanes))
        for line, axis in zip(self.lines, (0, 1), strict=True):
            width = k.out[1]
            index = numbers % width if axis else numbers // width
            start = index * k.strides[axis] - k.begins[axis]
            e.store(e.convert("sitofp", start, self.kind), line.at(at))

    def _find(self, number: Value, moved: Pointer, scale: Pointer | None, at: Value) -> None:
        """The taps of a vector of places for one cell of the window."""
        e, k = self.e, self.k
        cells = (number // k.kernel[1], number % k.kernel[1])
        found = []
        for axis in (0, 1):
            place = e.load(self.lines[axis].at(at), self.kind)
            cell = e.convert("uitofp", cells[axis] * k.dilations[axis], k.dtype.llvm)
            place = place + e.splat(cell, self.lanes)
            place = place + e.load(moved.at(at + axis * k.places), self.kind)
            whole = Axis(k.extents[axis], "zeros", align=False)
            found.append(taps_along(e, place, whole, "linear"))
        self.table.put(found, [k.extents[1], 1], at)
        if scale is not None:
            self.table.scale(e.load(scale.at(at), self.kind), at)

    def _mix(self, x: Pointer, y: Pointer, count: Value) -> None:
        if self.k.block == 1:
            for at in vectors(self.e, count, self.lanes):
                self.table.mix_lanes(x, y, at, self.lanes)
            return
        with self.e.loop("place", count) as at:
            self.table.mix_block(x, y, at, self.k.block)


def accepts_blocked(node: Node, graph: Graph, block: int) -> bool:
    """Return whether blocks lie within a run and an offset group; offsets are a matrix."""
    channels = graph.types[node.inputs[0]].shape[1]
    run, groups = node.attributes["run"], node.attributes["offset_group"]
    return bool(run % block == 0 and channels // groups % block == 0)


def lower(context: KernelContext) -> Lowered:
    """Return one call, of a `DeformColumns`."""
    node, graph, formats = context.node, context.graph, context.formats
    x, y, attributes = node.inputs[0], node.output, node.attributes
    source, result = graph.types[x], graph.types[y]
    if max(source.elements, result.elements) >= MOST_CELLS:
        raise UnsupportedError(
            f"node {node.name or node.key!r}: {node.op} of {source} to {result}; expected fewer "
            f"than {MOST_CELLS} elements"
        )
    block, groups = formats[x].block or 1, attributes["offset_group"]
    kernel = DeformColumns(
        source.dtype,
        source.shape[0],
        groups,
        source.shape[1] // groups // block,
        attributes["run"] // block,
        block,
        source.shape[2:],
        result.shape[2:],
        attributes["kernel_shape"],
        attributes["strides"],
        attributes["dilations"],
        attributes["pads"][:2],
        len(node.inputs) > 2,
    )
    return Lowered((Call(kernel, (*node.inputs, y)),), algorithm="deform columns")
