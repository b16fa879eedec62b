"""Reading an image between its pixels, and GridSample, whose places are data.

    y[n, c, p] = x[n, c, places[n, p, :]]     GridSample: places from -1 to 1, the last axis first

A tile of places is done in two steps. First its taps are found, with lanes along the places: for
each tap of each place the offset of a cell within a plane, -1 for one that is outside and counts as
zero, and a weight. They lie in the scratch. Then the channels are mixed:

    y[c, p] = sum over t of  weight[t, p] * x[c, offset[t, p]]

with lanes along places, gathered, in plain planes, and along channels in blocks of them. Places
that are no numbers or far outside are brought near the image first: nothing beside it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from math import prod
from typing import Literal

from leanconv.codegen.emitter import Function, Pointer, Value, lanes_of, vector
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.lowered import Call, Lowered
from leanconv.codegen.shuffles import power_below
from leanconv.codegen.tails import where_any
from leanconv.errors import UnsupportedError
from leanconv.graph.ops.sampling import FARTHEST, TAPS
from leanconv.kernels import KernelContext, any_blocks
from leanconv.kernels.copy_plan import row_major
from leanconv.records import dataclass
from leanconv.spec.format import aligned, ceil_div
from leanconv.symbolic import Extent, Extents
from leanconv.target import Target
from leanconv.types import INT32, DType

Mode = Literal["nearest", "linear", "cubic"]
Padding = Literal["zeros", "border", "reflection"]
TILE = 128  # places
_A = -0.75  # of Keys' kernel


@dataclass(frozen=True)
class Tap:
    """One cell along one axis, for a vector of places.

    Attributes:
        cell: int32, within the axis.
        there: whether it counts; None where all do.
        weight: of the dtype; None for one.
    """

    cell: Value
    there: Value | None
    weight: Value | None


@dataclass(frozen=True)
class Axis:
    """An axis of an image, and how it is continued beyond its ends.

    Attributes:
        extent: cells.
        padding: zeros, the border's cells, or the image reflected.
        align: whether it is reflected at the middles of the outer cells, not at their ends.
    """

    extent: int
    padding: Padding
    align: bool


# -- taps of an axis ----------------------------------------------------------------------------
def taps_along(e: Function, place: Value, axis: Axis, mode: Mode) -> list[Tap]:
    """The cells that a place on an axis mixes.

    Args:
        e: the function under construction.
        place: floats; cell i is around i.
        axis: its extent and padding.
        mode: the nearest cell, or two or four cells with their weights.
    """
    last = axis.extent - 1
    if mode == "nearest":
        place = e.unary("rint", place)
    if axis.padding == "border" and mode != "cubic":  # each tap is, too
        place = limited(e, place, 0.0, last)
    elif axis.padding == "reflection":
        place = _reflected(e, place, axis)
    place = limited(e, place, -3.0, axis.extent + 2)
    low = e.unary("floor", place)
    if mode == "nearest":
        return [_tap(e, low, axis, None)]
    part = place - low
    if mode == "linear":
        weights = [1.0 - part, part]
        return [_tap(e, low + float(t), axis, w) for t, w in enumerate(weights)]
    one = 1.0 - part
    weights = [_far(part + 1.0), _near(part), _near(one), _far(one + 1.0)]
    return [_tap(e, low + (t - 1.0), axis, w) for t, w in enumerate(weights)]


def limited(e: Function, place: Value, low: int | float, high: int | float) -> Value:
    """Return a place brought between two numbers; NaN becomes the lower one."""
    lowest, highest = (e.const(place.kind, each) for each in (low, high))
    return e.minimum(e.maximum(place, lowest), highest)


def _reflected(e: Function, place: Value, axis: Axis) -> Value:
    """A place mirrored at the ends of an axis until it is within."""
    low = 0.0 if axis.align else -0.5
    width = axis.extent - 1 if axis.align else axis.extent
    if axis.align and axis.extent == 1:
        return e.const(place.kind, 0.0)
    period = e.const(place.kind, 2 * width)
    distance = e.unary("fabs", place - low)
    distance = distance - e.unary("floor", distance / period) * period
    back = period - distance
    return e.minimum(distance, back) + low


def _tap(e: Function, cell: Value, axis: Axis, weight: Value | None) -> Tap:
    """A tap of a cell that may be outside."""
    there = None
    if axis.padding == "reflection":
        cell = _reflected(e, cell, axis)
    lanes = lanes_of(cell.kind)
    number = e.convert("fptosi", cell, vector("i32", lanes))
    if axis.padding == "zeros":
        there = number.compare("ult", axis.extent)
    inside = e.smin(e.smax(number, 0), axis.extent - 1)
    return Tap(inside, there, weight)


def _near(d: Value) -> Value:
    """Keys' kernel of a distance up to 1."""
    return ((d * (_A + 2)) - (_A + 3)) * d * d + 1.0


def _far(d: Value) -> Value:
    """Keys' kernel of a distance between 1 and 2."""
    return (((d - 5.0) * d + 8.0) * d - 4.0) * _A


# -- tables -------------------------------------------------------------------------------------
class Table:
    """Offsets and weights of a tile's taps, in the scratch.

    Args:
        e: the function under construction.
        dtype: of the weights.
        taps: of a place.
        weighted: whether taps have weights; without any there is one tap.
    """

    def __init__(self, e: Function, dtype: DType, taps: int, weighted: bool) -> None:
        self.e, self.taps, self.weighted = e, taps, weighted
        self.offsets = e.scratch.of(INT32.llvm)
        self.weights = e.scratch.at(aligned(taps * TILE * INT32.bytes)).of(dtype.llvm)

    def put(self, axes: list[list[Tap]], strides: list[int], at: Value) -> None:
        """Keep the taps of a vector of places, of all combinations of taps of the axes.

        Args:
            axes: the taps along each axis, slowest first.
            strides: cells from one to the next along each axis.
            at: the first place, within the tile.
        """
        e = self.e
        for number, chosen in enumerate(product(*axes)):
            offset, there, weight = None, None, None
            for tap, stride in zip(chosen, strides, strict=True):
                part = tap.cell * stride
                offset = part if offset is None else offset + part
                if tap.there is not None:
                    there = tap.there if there is None else there & tap.there
                if tap.weight is not None:
                    weight = tap.weight if weight is None else weight * tap.weight
            assert offset is not None
            if there is not None:
                offset = e.select(there, offset, e.const(offset.kind, -1))
            e.store(offset, self.offsets.at(at + number * TILE))
            if weight is not None:
                e.store(weight, self.weights.at(at + number * TILE))

    def scale(self, factor: Value, at: Value) -> None:
        """Multiply the weights of a vector of places."""
        for number in range(self.taps):
            place = self.weights.at(at + number * TILE)
            self.e.store(self.e.load(place, factor.kind) * factor, place)

    # -- mixing ---------------------------------------------------------------------------------
    def mix_lanes(self, x: Pointer, y: Pointer, at: Value, lanes: int) -> None:
        """A vector of places in one plane."""
        e, kind = self.e, vector(x.element, lanes)

        def found(number: int) -> Value:
            offset = e.load(self.offsets.at(at + number * TILE), vector("i32", lanes))
            return self._gathered(x, offset)

        def weight(number: int) -> Value:
            return e.load(self.weights.at(at + number * TILE), kind)

        e.store(self._mixed(found, weight), y.at(at))

    def mix_block(self, x: Pointer, y: Pointer, at: Value, block: int) -> None:
        """One place in a plane of blocks of channels."""
        e, kind = self.e, vector(x.element, block)

        def found(number: int) -> Value:
            offset = e.load(self.offsets.at(at + number * TILE))
            there = offset.compare("sge", 0)
            inside = e.index(e.convert("sext", e.smax(offset, 0), "i64"))
            return e.select(there, e.load(x.at(inside * block), kind), e.zero(kind))

        def weight(number: int) -> Value:
            return e.broadcast(self.weights.at(at + number * TILE), kind)

        e.store(self._mixed(found, weight), y.at(at * block))

    def _mixed(self, found: Callable[[int], Value], weight: Callable[[int], Value]) -> Value:
        """Return the sum of the taps' values, each by its weight."""
        total = found(0)
        if not self.weighted:
            assert self.taps == 1
            return total
        total *= weight(0)
        for number in range(1, self.taps):
            total = self.e.fma(found(number), weight(number), total)
        return total

    def _gathered(self, x: Pointer, offset: Value) -> Value:
        e = self.e
        there = offset.compare("sge", 0)
        if lanes_of(offset.kind) > 1:
            return e.gather(x, offset, there)
        place = x.at(e.index(e.convert("sext", e.smax(offset, 0), "i64")))
        return e.select(there, e.load(place), e.zero(x.element))


def scratch_bytes(dtype: DType, taps: int) -> int:
    """Return the bytes of a table."""
    return aligned(taps * TILE * INT32.bytes) + aligned(taps * TILE * dtype.bytes)


def vectors(e: Function, count: Value, lanes: int) -> Iterator[Value]:
    """Emit the body for where each vector of a tile begins; the last overlaps the one before."""
    with e.loop("vector", (count + (lanes - 1)) // lanes) as number:
        yield e.smin(number * lanes, count - lanes)


def planes(e: Function, count: int) -> Iterator[Value]:
    """Emit the body for each plane."""
    for _ in where_any(e, count):
        with e.loop("plane", count) as plane:
            yield plane


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
    operands = ("x", "grid", "y")

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
    def taps(self) -> int:
        """Cells of a place."""
        return int(TAPS[self.mode] ** len(self.extents))

    @property
    def tiles(self) -> int:
        """Tiles of an image's places."""
        return ceil_div(self.places, TILE)

    @property
    def grid(self) -> tuple[int, ...]:
        return self.images, self.tiles

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
        with e.chunks(*self.grid) as (image, tile):
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


accepts_blocked = any_blocks  # images may be; the places are a matrix


def lower(context: KernelContext) -> Lowered:
    """Return one call, of a `GridSample`."""
    node, graph, formats = context.node, context.graph, context.formats
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
