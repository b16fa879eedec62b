"""The product of a lowered tensor, transposed, with the gradient of the output.

    for chunk (group, some channels, some panels of output channels):
        sums = 0                                   [panel][runs as lowered][vectors · lanes]
        for block of pixels (images, depth, rows, columns), for panel:
            copy dy's pixels                       [image][depth][row][column][vectors · lanes]
            for tap, for `rows` channels:          a register tile, over the block's pixels:
                sums[panel, tap, channel] += lowered[pixel, tap, channel] · dy[pixel]
        for panel: sums, transposed in registers, are dw, or are added to it

The lowered tensor is read where it lies: the elements of a tile's rows are neighbours there, and a
pixel is a run of elements at strides of its image, depth, row and column. Windows that share
elements are no more than strides that are smaller than the run. Sums of a block's pixels are added
to those of the blocks before, which is a partial sum of some 200 products each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import reduce
from itertools import product
from math import gcd, prod

from leanconv.algorithms.common.conv import Conv
from leanconv.algorithms.unfold.unfolding import nest
from leanconv.algorithms.weight_gradient.bias import RESULT, PanelSums
from leanconv.algorithms.weight_gradient.naive import GradientKernel, TapOutputs
from leanconv.algorithms.weight_gradient.strips import StripCopy
from leanconv.algorithms.weight_gradient.sums import Panels
from leanconv.codegen.dot import fma
from leanconv.codegen.emitter import Function, Pointer, Value
from leanconv.codegen.microkernel import ReductionLoop, RegisterTile, multiply_accumulate
from leanconv.codegen.tails import each_tile, tile_at, tiles_of_chunk
from leanconv.codegen.tiling import Tile
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.symbolic import Count, Counts
from leanconv.target import Target

_AXES = ("image", "od", "oh", "ow")


def run_elements(conv: Conv, run_taps: int, taps_first: bool, channels: int) -> int:
    """Elements of a chunk's channels that are neighbours in a lowered tensor, and in its sums.

    Args:
        conv, run_taps, taps_first: as of `LoweredProduct`.
        channels: of the chunk.
    """
    return channels * (run_taps if taps_first or channels == conv.inputs else 1)


@dataclass(frozen=True)
class LoweredProduct(GradientKernel):
    """The gradient of weights over a lowered tensor.

    Attributes:
        conv: the convolution over the lowered tensor, of some images; the kernel of its window has
            the taps that are strides there. A group of `conv.x` is a block of channels.
        run_taps: taps whose elements the lowered tensor holds apart.
        taps_first: whether a channel's such taps are neighbours in it; else a tap's channels are.
        lanes: of a vector.
        tile: rows are elements of the lowered tensor, vectors are output channels.
        channels: of a chunk.
        per_chunk: panels of a chunk.
        block: images, depth, rows and columns of outputs that are summed at a time.
        order: these axes, 0 to 3, the outermost first.
        first: image of dy that the lowered tensor begins with.
        adds: whether sums are added to dw.
        sums_dy: whether the gradient of the bias is summed, too.
    """

    VARIES = True

    run_taps: int
    taps_first: bool
    lanes: int
    tile: Tile
    channels: int
    per_chunk: int
    block: Counts
    order: tuple[int, ...]
    first: Count
    adds: bool
    sums_dy: bool = False

    @property
    def operands(self) -> tuple[str, ...]:
        """Lowered tensor, gradient of the output, gradients of the weights and of the bias."""
        return ("lowered", "dy", "dw", *((RESULT,) * self.sums_dy))

    @property
    def result_count(self) -> int:
        """The gradients."""
        return 1 + self.sums_dy

    @property
    def sums(self) -> Panels:
        """Where sums lie."""
        conv, taps = self.conv, prod(self.conv.window.kernel) * self.run_taps
        tile, chunk = (self.lanes, self.tile.vectors), (self.channels, 1, self.per_chunk)
        return Panels(conv.dtype, *tile, conv.inputs, conv.outputs, taps, *chunk)

    def run(self, channels: int) -> int:
        """Neighbours in the lowered tensor that a chunk has, of so many channels."""
        return run_elements(self.conv, self.run_taps, self.taps_first, channels)

    @property
    def grid(self) -> tuple[int, ...]:
        """Groups by blocks of channels by chunks of panels."""
        return self.conv.groups, *self.sums.chunks

    @property
    def scratch_bytes(self) -> int:
        """The sums of a chunk, and dy of a block of pixels."""
        elements = self.sums.chunk_elements + prod(self.block) * self.sums.wide
        elements += self.sums.bias_elements if self.sums_dy else 0
        return elements * self.conv.dtype.bytes

    @property
    def strips(self) -> int:
        """Blocks of pixels: the partial sums that are added up."""
        extents = (self.conv.batch, *self.conv.window.out)
        return prod(ceil_div(n, size) for n, size in zip(extents, self.block, strict=True))

    @property
    def flops(self) -> int:
        """Operations of the plain sums, padding counted."""
        return self.conv.flops * self.run_taps

    def emit(self, target: Target) -> str:
        """Emit the loops over chunks."""
        e, conv = Function(self.NAME), self.conv
        operands = e.pointers(self.operands, conv.dtype.llvm)
        with e.chunks(*self.grid) as (g, block, part):
            for channels in tile_at(e, block, conv.inputs, self.channels):
                _Chunk(e, target, self, operands, g, block, channels).emit(part)
        return e.finish()


def _is_one(extent: int) -> bool:
    """Return whether an extent is 1 in all code; symbols are not asked."""
    return isinstance(extent, int) and extent == 1


class _Chunk:
    """Emits a chunk of so many channels."""

    def __init__(
        self,
        e: Function,
        target: Target,
        kernel: LoweredProduct,
        operands: dict[str, Pointer],
        g: Value,
        block: Value,
        channels: int,
    ) -> None:
        self.e, self.target, self.kernel, self.channels = e, target, kernel, channels
        self.g, self.first_channel = g, block * kernel.channels
        self.lowered, self.dy, self.dw, *db = (operands[name] for name in kernel.operands)
        self.table = self._places() if kernel.taps_first else kernel.sums.table(e, channels)
        self.sums = e.scratch.of(kernel.conv.dtype.llvm)
        self.panel = self.sums.at(kernel.sums.chunk_elements)
        self.bias = None
        if kernel.sums_dy:
            held = self.panel.at(prod(kernel.block) * kernel.sums.wide)
            self.bias = PanelSums(e, kernel.sums, held, db[0], block)

    def _places(self) -> Pointer:
        """The places of a row's sums that lie as runs of channels, each with all of its taps."""
        run_taps, panels, places = self.kernel.run_taps, self.kernel.sums, list[int]()
        for c, t in product(range(self.channels), range(panels.taps)):
            outer, inner = divmod(t, run_taps)
            places.append(((outer * self.channels + c) * run_taps + inner) * panels.wide)
        return self.e.table(places)

    def emit(self, part: Value) -> None:
        """Emit the sums of some panels, and where they go."""
        e, panels = self.e, self.kernel.sums
        first = part * panels.panels_per_chunk
        with e.loop("clear", panels.chunk_elements, step=panels.lanes) as at:
            e.store(e.zero(panels.kind), self.sums.at(at))
        if self.bias:
            self.bias.clear()
        with self._blocks() as (start, counts):
            for number, outputs in self._each_panel(part):
                sums = self.sums.at(panels.place(0, number - first))
                self._copy(number, outputs, start, counts, first)
                self._products(sums, outputs, start, counts)
        for number, outputs in self._each_panel(part):
            sums = self.sums.at(panels.place(0, number - first))
            self._write(sums, number, outputs)
            if self.bias:
                k = self.g * panels.outputs + number * panels.wide
                self.bias.write(number - first, outputs, k, self.kernel.adds)

    def _each_panel(self, part: Value) -> Iterator[tuple[Value, int]]:
        """The panels of a chunk: index among those of a group, and outputs."""
        per, panels = self.kernel.per_chunk, self.kernel.sums
        for number, outputs in tiles_of_chunk(
            self.e, "panel", part, per, panels.outputs, panels.wide
        ):
            yield self.e.i64(number), outputs

    @contextmanager
    def _blocks(self) -> Iterator[tuple[list[Value], list[Value]]]:
        """Loop over blocks of pixels: the first of each axis, and how many."""
        e, kernel = self.e, self.kernel
        extents = (kernel.conv.batch, *kernel.conv.window.out)
        start, counts = [e.i64(0)] * 4, [e.i64(1)] * 4
        with ExitStack() as loops:
            for axis in kernel.order:
                size = kernel.block[axis]
                if _is_one(extents[axis]):
                    continue
                number = ceil_div(extents[axis], size)
                index = loops.enter_context(e.loop(f"{_AXES[axis]}s", number))
                start[axis] = index * size
                counts[axis] = e.smin(e.i64(extents[axis]) - start[axis], size)
            yield start, counts

    def _steps(self) -> list[int]:
        """Elements of a copied panel of dy from one image, depth, row and column to the next."""
        (_, depth, rows, columns), width = self.kernel.block, self.kernel.sums.wide
        return [depth * rows * columns * width, rows * columns * width, columns * width, width]

    def _copy(
        self,
        number: Value,
        outputs: int,
        start: list[Value],
        counts: list[Value],
        first: Value,
    ) -> None:
        """Copy a panel of dy of a block's pixels, and sum them; `first`: panel of the chunk."""
        e, kernel, y, steps = self.e, self.kernel, self.kernel.conv.y, self._steps()
        panels = kernel.sums
        grain = gcd(panels.outputs if kernel.conv.groups > 1 else 0, panels.wide)
        copy = StripCopy(e, self.target, y, panels.kind, outputs, panels.wide, grain=grain)
        channel = self.g * panels.outputs + number * panels.wide
        with ExitStack() as loops:
            n, d, h = (loops.enter_context(e.loop(_AXES[axis], counts[axis])) for axis in range(3))
            source = self.dy.at((start[0] + n + kernel.first) * y.image)
            for axis, index in ((1, d), (2, h)):
                source = source.at((start[axis] + index) * y.spatial[axis - 1])
            to = self.panel.at(n * steps[0] + d * steps[1] + h * steps[2])
            copy.pixels(source.at(start[3] * y.spatial[2]), to, channel, counts[3])
            if self.bias:
                self.bias.add(number - first, outputs, to, panels.wide, counts[3])

    def _products(
        self, sums: Pointer, outputs: int, start: list[Value], counts: list[Value]
    ) -> None:
        """Add the products of a block's pixels to the sums."""
        e, kernel, conv, run_taps = self.e, self.kernel, self.kernel.conv, self.kernel.run_taps
        window, x, channels, panels = conv.window, conv.x, self.channels, kernel.sums
        kd, kh, _ = window.kernel
        count = kernel.run(channels)
        runs = channels * run_taps // count  # as far apart as a tap's channels
        source = self.lowered.at(self.g * x.block_stride + start[0] * x.image)
        source = source.at(start[3] * (window.stride[2] * x.spatial[2]))
        source = source.at(self.first_channel * (run_taps if kernel.taps_first else 1))
        with nest(e, [("kd", kd), ("kh", kh), ("run", runs)]) as (d, h, i):
            a, bounds = self._outputs_of_taps(source, e.i64(d), e.i64(h), start, counts)
            row = (e.i64(d) * kh + h) * (run_taps * channels) + e.i64(i) * count
            of_run = sums.at(row * panels.wide)
            there = self._exist(bounds)
            with nullcontext() if there is None else e.when(there):
                self._tiles(a.at(e.i64(i) * conv.inputs), of_run, count, outputs, bounds)

    def _outputs_of_taps(
        self, a: Pointer, d: Value, h: Value, start: list[Value], counts: list[Value]
    ) -> tuple[Pointer, list[tuple[Value, Value]]]:
        """Where a block's first output reads at a tap, and the outputs of each axis that do."""
        e, conv, bounds = self.e, self.kernel.conv, [(self.e.i64(0), count) for count in counts]
        window = conv.window
        for axis, t in enumerate((d, h)):
            tap, at = TapOutputs(e, window, axis, t), start[axis + 1]
            a = a.at((at * window.stride[axis] + tap.shift) * conv.x.spatial[axis])
            if not window.always_full(axis):
                low, high = e.smax(tap.low - at, 0), e.smin(tap.high - at, counts[axis + 1])
                bounds[axis + 1] = low, high
        return a, bounds

    def _exist(self, bounds: list[tuple[Value, Value]]) -> Value | None:
        """Whether a block has outputs at which taps touch the input; None if it always has."""
        window = self.kernel.conv.window
        checks = [
            bounds[axis + 1][0].compare("slt", bounds[axis + 1][1])
            for axis in range(2)
            if not window.always_full(axis)
        ]
        return reduce(lambda a, b: a & b, checks) if checks else None

    def _tiles(
        self, a: Pointer, sums: Pointer, count: int, outputs: int, bounds: list[tuple[Value, Value]]
    ) -> None:
        """Register tiles over a run of elements."""
        e, kernel, conv, panels = self.e, self.kernel, self.kernel.conv, self.kernel.sums
        steps, strides = self._steps(), [conv.x.image]
        strides += [s * by for s, by in zip(conv.window.stride, conv.x.spatial, strict=True)]
        loops = [
            ReductionLoop(
                _AXES[axis], bounds[axis][1], strides[axis], steps[axis], start=bounds[axis][0]
            )
            for axis in kernel.order
            if not _is_one((conv.batch, *conv.window.out)[axis])
        ]
        vectors = ceil_div(outputs, kernel.lanes)
        tile = RegisterTile(fma(conv.dtype), kernel.lanes, vectors, 1)
        for index, rows in each_tile(e, "tile", count, kernel.tile.rows):
            at = index * kernel.tile.rows
            first = sums.at(at * panels.wide)
            acc = [e.zero(panels.kind)] * (rows * vectors)
            multiply_accumulate(e, tile, acc, range(rows), a.at(at), self.panel, loops)
            for slot, value in enumerate(acc):
                i, j = divmod(slot, vectors)
                place = first.at(i * panels.wide + j * kernel.lanes)
                e.store(e.load(place, panels.kind) + value, place)

    def _write(self, sums: Pointer, number: Value, outputs: int) -> None:
        """Write the sums of a panel to dw, or add them and leave zeros."""
        e, kernel, panels = self.e, self.kernel, self.kernel.sums
        k = self.g * panels.outputs + number * panels.wide
        dw = self.dw.at((k * panels.inputs + self.first_channel) * panels.taps)

        def load(places: Sequence[Value | int]) -> list[Value]:
            found = [e.load(sums.at(place), panels.kind) for place in places]
            for place in places if kernel.adds else ():
                e.store(e.zero(panels.kind), sums.at(place))
            return found

        panels.write(e, load, self.table, dw, self.channels, outputs, kernel.adds)
