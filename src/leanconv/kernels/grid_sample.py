"""GridSample: an image read at places that are data.

    y[n, c, p] = x[n, c, places[n, p, :]], between pixels and beyond the image as `sampling` says

A place is given from -1 to 1 along each axis, the last axis first.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.extents import Extent, Extents
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.lowered import Call, Lowered
from leanconv.errors import UnsupportedError
from leanconv.graph.ir import Graph, Node
from leanconv.graph.ops.sampling import FARTHEST
from leanconv.kernels.copy_plan import row_major
from leanconv.kernels.register_transpose import power_below
from leanconv.kernels.sampling import (
    TAPS,
    TILE,
    Axis,
    Mode,
    Padding,
    Table,
    planes,
    scratch_bytes,
    taps_along,
    vectors,
)
from leanconv.records import dataclass
from leanconv.spec.format import Format, ceil_div
from leanconv.target import Target
from leanconv.types import DType

MOST_CELLS = 1 << 31  # of a plane: offsets have 32 bits


@dataclass(frozen=True)
class GridSample(Kernel):
    """Reading at places.

    Attributes:
        dtype: of image and places.
        mode, padding, align: as ONNX has them.
        images: how many there are.
        channels: planes of an image, of blocks of channels or of one.
        block: channels in a block, 1 in plain planes.
        extents: of the image's axes.
        places: of an image.
    """

    VARIES = True

    dtype: DType
    mode: Mode
    padding: Padding
    align: bool
    images: Extent
    channels: Extent
    block: int
    extents: Extents
    places: Extent

    @property
    def operands(self) -> tuple[str, ...]:
        return ("x", "grid", "y")

    @property
    def taps(self) -> int:
        """Cells of a place."""
        return int(TAPS[self.mode] ** len(self.extents))

    @property
    def tiles(self) -> int:
        """Tiles of an image's places."""
        return ceil_div(self.places, TILE)

    @property
    def chunks(self) -> int:
        return self.images * self.tiles

    @property
    def scratch_bytes(self) -> int:
        return scratch_bytes(self.dtype, self.taps)

    @property
    def flops(self) -> int:
        return 2 * self.taps * self.images * self.channels * self.block * self.places

    def emit(self, target: Target) -> str:
        e = Function(self.NAME)
        x, grid, y = (e.pointer(number, self.dtype.llvm) for number in range(3))
        table = Table(e, self.dtype, self.taps, self.mode != "nearest")
        lanes = power_below(self.places, target.lanes(self.dtype))
        plane, axes = prod(self.extents) * self.block, len(self.extents)
        with e.chunks(self.images, self.tiles) as (image, tile):
            first = tile * self.places // self.tiles
            count = (tile + 1) * self.places // self.tiles - first
            source = x.at(image * (self.channels * plane))
            out = y.at((image * self.channels * self.places + first) * self.block)
            listed = grid.at((image * self.places + first) * axes)
            for at in vectors(e, count, lanes):
                self._find(e, table, listed.at(at * axes), at, lanes)
            for number in planes(e, self.channels):
                own, result = source.at(number * plane), out.at(number * self.places * self.block)
                if self.block == 1:
                    for at in vectors(e, count, lanes):
                        table.mix_lanes(own, result, at, lanes)
                else:
                    with e.loop("place", count) as at:
                        table.mix_block(own, result, at, self.block)
        return e.finish()

    def _find(self, e: Function, table: Table, listed: Pointer, at: Value, lanes: int) -> None:
        """The taps of a vector of places."""
        axes = len(self.extents)
        whole = e.load(listed, vector(self.dtype.llvm, lanes * axes))
        found = []
        for number, extent in enumerate(self.extents):
            given = axes - 1 - number  # the last axis is given first
            if lanes == 1:
                place = e.extract(whole, given)
            else:
                place = e.shuffle(whole, None, range(given, lanes * axes, axes))
            axis = Axis(extent, self.padding, self.align)
            found.append(taps_along(e, self._cell(e, place + 1.0, extent), axis, self.mode))
        table.put(found, list(row_major(self.extents)), at)

    def _cell(self, e: Function, place: Value, extent: int) -> Value:
        """A place from 0 to 2, in cells; as in ONNX Runtime the first one if it is no number."""
        cell = place * 0.5 * (extent - 1) if self.align else (place * extent - 1.0) * 0.5
        near = e.unary("fabs", cell).compare("olt", FARTHEST)
        return e.select(near, cell, e.const(cell.kind, 0.0 if self.align else -0.5))


def accepts_blocked(node: Node, graph: Graph, block: int) -> bool:
    """Images may be in blocks; the places are a matrix."""
    del node, graph, block
    return True


def lower(node: Node, graph: Graph, formats: Mapping[str, Format], target: Target) -> Lowered:
    """One kernel."""
    del target
    (x, grid), y = node.inputs, node.output
    source, result, form = graph.types[x], graph.types[y], formats[x]
    if source.elements >= MOST_CELLS:
        raise UnsupportedError(
            f"node {node.name or node.key!r}: {node.op} of {source}; expected fewer than "
            f"{MOST_CELLS} elements"
        )
    block, attributes = form.block or 1, node.attributes
    kernel = GridSample(
        source.dtype,
        attributes["mode"],
        attributes["padding_mode"],
        bool(attributes["align_corners"]),
        source.shape[0],
        form.physical_shape(source.shape)[1],
        block,
        source.shape[2:],
        prod(result.shape[2:]),
    )
    return Lowered((Call(kernel, (x, grid, y)),), algorithm="grid sample")
