"""RoiAlign: regions of images, each as a small map of bins, read between pixels.

    y[r, c, i, j] = the mean, or largest, over the samples of bin (i, j) of region r, of x[image, c]

Lanes run along channels in blocks; a few blocks are kept in registers while the samples of a bin
go by. Samples more than a pixel outside count as 0, and are not visited where the region's size
decides their number: what a region costs is bounded by the image, whatever its numbers are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf, prod

from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.lowered import Call, Lowered
from leanconv.codegen.tails import where_any
from leanconv.kernels import KernelContext, any_blocks
from leanconv.kernels.sampling import limited
from leanconv.records import dataclass
from leanconv.symbolic import Extent, Extents
from leanconv.target import Target
from leanconv.types import INT64, DType

_UNITS = 8  # blocks of channels in registers
_MOST = 1 << 24  # samples along an axis


@dataclass(frozen=True)
class RoiAlign(Kernel):
    """Regions of images.

    Attributes:
        dtype: of images and regions.
        largest: the largest weighted cell, not the mean.
        half: whether regions are moved by half a pixel, and may be smaller than one.
        ratio: samples of a bin along an axis; 0 for as many as it has pixels.
        images: how many there are.
        units: of an image, of blocks of channels or of one.
        block: channels in a block, 1 in plain planes.
        extents: of the images.
        bins: of a region, along height and width.
        regions: how many there are.
        scale: from the regions' coordinates to pixels.
    """

    VARIES = True
    operands = ("x", "regions", "images", "y")

    dtype: DType
    largest: bool
    half: bool
    ratio: int
    images: Extent
    units: Extent
    block: int
    extents: Extents
    bins: Extents
    regions: Extent
    scale: float

    @property
    def index_ranges(self) -> list[tuple[int, int]]:
        return [(0, self.images - 1)]

    @property
    def grid(self) -> tuple[int, ...]:
        return self.regions, self.bins[0]

    @property
    def flops(self) -> int:
        samples = max(self.ratio, 2) ** 2
        return 8 * samples * self.regions * self.units * self.block * prod(self.bins)

    def emit(self, target: Target) -> str:
        del target  # a block is its vector
        return _Nest(self).emit()


@dataclass(frozen=True)
class _Span:
    """The samples of a bin along one axis: the first place, the step, and which are visited."""

    first: Value
    step: Value
    begin: Value
    end: Value
    count: Value  # of all, as a float
    missed: Value  # how many are not visited; 1 if there are none


class _Nest:
    def __init__(self, kernel: RoiAlign) -> None:
        self.k, self.e = kernel, Function(kernel.NAME)
        self.kind = vector(kernel.dtype.llvm, kernel.block)

    def emit(self) -> str:
        e, k = self.e, self.k
        x, regions, y = (e.pointer(number, k.dtype.llvm) for number in (0, 1, 3))
        images, area = e.pointer(2, INT64.llvm), prod(k.bins)
        with e.chunks(*k.grid) as (region, row):
            number = e.load_index(images.at(region))
            with e.when(number.compare("uge", k.images)):
                e.store(number, e.pointer(4, INT64.llvm))
            image = e.smin(e.smax(number, 0), k.images - 1)
            source = x.at(image * (k.units * prod(k.extents) * k.block))
            out = y.at((region * (k.units * area) + row * k.bins[1]) * k.block)
            sides = [self._side(regions.at(region * 4), axis) for axis in (0, 1)]
            down = self._span(*sides[0], row, 0)
            with e.loop("column", k.bins[1]) as column:
                across = self._span(*sides[1], column, 1)
                self._channels(source, out.at(column * k.block), down, across)
        return e.finish()

    def _side(self, region: Pointer, axis: int) -> tuple[Value, Value]:
        """Return where a region begins along an axis, and the extent of a bin, in pixels."""
        e, k = self.e, self.k
        moved = 0.5 if k.half else 0.0
        start, end = (e.load(region.at(place)) * k.scale - moved for place in (1 - axis, 3 - axis))
        extent = end - start
        if not k.half:
            extent = e.maximum(extent, e.const(extent.kind, 1.0))
        return start, extent / k.bins[axis]

    def _span(self, start: Value, extent: Value, number: Value, axis: int) -> _Span:
        e, k = self.e, self.k
        corner = start + e.convert("uitofp", number, k.dtype.llvm) * extent
        if k.ratio:
            count = e.const(k.dtype.llvm, float(k.ratio))
            step = extent / count
            return _Span(corner + step * 0.5, step, e.i64(0), e.i64(k.ratio), count, e.i64(0))
        count = limited(e, e.unary("ceil", extent), 0.0, float(_MOST))
        step = extent / count
        first = corner + step * 0.5
        # The first and one past the last sample within a pixel of the image, and one more of each.
        begin = limited(e, (-1.0 - first) / step - 1.0, 0.0, float(_MOST))
        end = limited(e, (k.extents[axis] - first) / step + 2.0, 0.0, float(_MOST))
        whole = [e.index(e.convert("fptosi", each, "i64")) for each in (begin, end, count)]
        stop = e.smin(whole[1], whole[2])
        missed = e.smax(whole[0] + (whole[2] - stop), 1 - whole[2])
        return _Span(first, step, whole[0], stop, count, missed)

    def _channels(self, x: Pointer, y: Pointer, down: _Span, across: _Span) -> None:
        """One bin of all channels, a few blocks of them at once."""
        e, k = self.e, self.k
        plane, area = prod(k.extents) * k.block, prod(k.bins) * k.block
        groups = k.units // _UNITS
        for _ in where_any(e, groups):
            with e.loop("units", groups) as group:
                first = group * _UNITS
                self._bin(x.at(first * plane), y.at(first * area), down, across, _UNITS)
        for _ in where_any(e, k.units - groups * _UNITS):
            with e.loop("unit", k.units, start=e.i64(groups * _UNITS)) as unit:
                self._bin(x.at(unit * plane), y.at(unit * area), down, across, 1)

    def _bin(self, x: Pointer, y: Pointer, down: _Span, across: _Span, units: int) -> None:
        e, k = self.e, self.k
        total = [e.const(self.kind, -inf if k.largest else 0.0) for _ in range(units)]
        with self._samples(down, "i", total) as i, self._samples(across, "j", total) as j:
            self._sample(x, self._at(down, i), self._at(across, j), total)
        if k.largest:  # samples that are not visited are 0, and so is a bin without any
            missed = (down.missed | across.missed).compare("ne", 0)
            total[:] = [e.select(missed, self._at_least_zero(each), each) for each in total]
        else:
            number = e.maximum(down.count * across.count, e.const(k.dtype.llvm, 1.0))
            total[:] = [each / e.splat(number, k.block) for each in total]
        for unit, value in enumerate(total):
            e.store(value, y.at(unit * prod(k.bins) * k.block))

    def _at_least_zero(self, value: Value) -> Value:
        return self.e.maximum(value, self.e.zero(self.kind))

    @contextmanager
    def _samples(self, span: _Span, label: str, total: list[Value]) -> Iterator[Value]:
        """Emit the body for the samples along an axis that are visited."""
        e = self.e
        with (
            e.when(span.begin.compare("slt", span.end), [total]),
            e.loop(label, span.end, [total], start=span.begin) as number,
        ):
            yield number

    def _at(self, span: _Span, number: Value) -> Value:
        return span.first + self.e.convert("sitofp", number, self.k.dtype.llvm) * span.step

    def _sample(self, x: Pointer, down: Value, across: Value, total: list[Value]) -> None:
        """Take a sample; one that is outside is 0."""
        e, k = self.e, self.k
        inside: Value | None = None
        sides: list[list[tuple[Value, Value]]] = []
        for place, extent in zip((down, across), k.extents, strict=True):
            high = e.const(place.kind, extent)
            within = place.compare("oge", -1.0) & place.compare("ole", high)
            inside = within if inside is None else inside & within
            near = limited(e, place, 0.0, extent - 1)
            low = e.index(e.convert("fptosi", near, "i64"))
            part = near - e.unary("floor", near)
            sides.append([(low, 1.0 - part), (e.smin(low + 1, extent - 1), part)])
        assert inside is not None
        with e.when(inside, [total]):
            self._mix(x, sides, total)
        if k.largest:
            with e.when(inside ^ 1, [total]):
                total[:] = [self._at_least_zero(each) for each in total]

    def _mix(self, x: Pointer, sides: list[list[tuple[Value, Value]]], total: list[Value]) -> None:
        """Add four weighted cells, or take the largest of them."""
        e, k = self.e, self.k
        plane = prod(k.extents) * k.block
        cells = [
            (x.at((row * k.extents[1] + column) * k.block), e.splat(share * part, k.block))
            for row, share in sides[0]
            for column, part in sides[1]
        ]
        for unit in range(len(total)):
            for place, weight in cells:
                value = e.load(place.at(unit * plane), self.kind)
                if k.largest:
                    total[unit] = e.maximum(value * weight, total[unit])
                else:
                    total[unit] = e.fma(value, weight, total[unit])


accepts_blocked = any_blocks  # images may be; regions are a matrix


def lower(context: KernelContext) -> Lowered:
    """Return one call, of a `RoiAlign`."""
    node, graph, formats = context.node, context.graph, context.formats
    x, y, attributes, form = node.inputs[0], node.output, node.attributes, formats[node.inputs[0]]
    source, result = graph.types[x], graph.types[y]
    kernel = RoiAlign(
        source.dtype,
        attributes["mode"] == "max",
        bool(attributes["half_pixel"]),
        attributes["sampling_ratio"],
        source.shape[0],
        form.physical_shape(source.shape)[1],
        form.block or 1,
        source.shape[2:],
        result.shape[2:],
        result.shape[0],
        attributes["spatial_scale"],
    )
    return Lowered((Call(kernel, (*node.inputs, y)),), algorithm="roi align")
