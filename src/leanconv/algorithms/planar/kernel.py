"""The general kernel for tensors in planes: chunks, rows of a few output channels, tiles.

Weights are what is broadcast, so any number of channels in a group costs the same for each product.

Rows of any width are cut into whole tiles of columns, the last ones overlapping.
The first tile masks what padding leaves out at the start of a row, the last one what it leaves out
at the end; those between load whole vectors. Where the width is no multiple of a tile, columns are
computed twice, with the same result: no tail is masked, and no remainder of the width is asked for.
"""

from __future__ import annotations

from leanconv.algorithms.common.conv import GroupedConv, Taps
from leanconv.algorithms.planar.columns import (
    NO_LANES,
    ColumnOutput,
    ColumnVectors,
    Lanes,
    Masks,
    TileMasks,
    column_vectors,
    each_tile_of_row,
    shared_loads,
)
from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.geometry import PhasedAccess, Window
from leanconv.codegen.microkernel import channel_address, start_planes
from leanconv.codegen.shuffles import deinterleave, interleave
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.symbolic import Count, Symbol, fixed, least, most
from leanconv.target import Target


def row_tiles(
    window: Window, lanes: int, vectors: int, target: Target, overlaps: bool
) -> tuple[ColumnVectors, ...]:
    """Cut a row of output columns into tiles.

    Args:
        window: the sliding window.
        lanes, vectors: of a tile.
        target: the machine.
        overlaps: whether columns may be computed and stored twice.
    """
    fitting = overlapping_vectors(window, lanes, vectors) if overlaps else 0
    if fitting:
        return _overlapping_tiles(window, lanes, fitting)
    return column_vectors(window, lanes, 1 if overlaps else vectors, target)


def overlapping_vectors(window: Window, lanes: int, vectors: int) -> int:
    """The vectors of tiles that may overlap: fewer in a narrow row, 0 if it has no such tile."""
    width, (before, after) = window.out[2], _masked_columns(window)
    while vectors:
        span = vectors * lanes
        if before + after <= span and width >= span + max(before, after):
            break
        vectors //= 2
    return vectors


def _masked_columns(window: Window) -> tuple[int, int]:
    """Columns at both ends of a row, of which loads reach beyond the input."""
    stride, pad = window.stride[2], window.pad[2]
    reach, beyond = (window.kernel[2] - 1) * window.dilation[2], _beyond(window)
    return ceil_div(max(pad, 0), stride), max(0, ceil_div(reach - pad - beyond, stride))


def _beyond(window: Window) -> int:
    """Input columns less the stride times the output columns."""
    return fixed(window.size[2] - window.out[2] * window.stride[2])


def _overlapping_tiles(window: Window, lanes: int, vectors: int) -> tuple[ColumnVectors, ...]:
    """The tiles of a row, all of so many vectors."""
    width, stride, pad = window.out[2], window.stride[2], window.pad[2]
    span, reach = vectors * lanes, (window.kernel[2] - 1) * window.dilation[2]
    (before, after), beyond = _masked_columns(window), _beyond(window)
    live = (lanes,) * vectors

    def edge(first: int, masks: tuple[tuple[Masks, ...], ...]) -> ColumnVectors:
        return ColumnVectors(first, 1, live, masks, lanes)

    def masks(inside: tuple[int, int]) -> tuple[tuple[Masks, ...], ...]:
        return tuple(
            tuple(
                tuple(
                    _lanes(inside, kw * window.dilation[2] + (v * stride + part) * lanes, lanes)
                    for part in range(stride)
                )
                for v in range(vectors)
            )
            for kw in range(window.kernel[2])
        )

    far = span * stride + reach + stride
    left, right = (pad, far), (0, span * stride + beyond + pad)
    ends = span * bool(before), span * bool(after)
    count = most(0, ceil_div(width - sum(ends), span))
    between = ColumnVectors(
        ends[0], count, live, masks((0, far)), lanes, latest=width - span - after
    )
    tiles = [edge(0, masks(left))] * bool(before) + [between]
    return (*tiles, *[edge(width - span, masks(right))] * bool(after))


def _lanes(inside: tuple[int, int], at: int, lanes: int) -> Lanes:
    """The lanes of a vector loaded from column `at` on that are inside."""
    low, high = max(0, inside[0] - at), min(lanes, inside[1] - at)
    return Lanes(low, high) if low < high else NO_LANES


_TAPS_WRITTEN = 4  # taps without masks that are unrolled instead of looped over


@dataclass(frozen=True)
class PlanarConv(GroupedConv):
    """One convolution's code, lanes along output columns; weights are read as they are given.

    Columns are neighbours in x and y.

    Attributes:
        lanes: lanes of a vector.
        channels: output channels of one tile, a divisor of `outputs`.
        vectors: vectors of columns of one tile.
        rows: output rows of one chunk.
        overlaps: whether tiles of columns may overlap: one code serves most widths. It adds no
            residual, which may lie in y.
    """

    VARIES = True

    lanes: int
    channels: int
    vectors: int
    rows: Count
    overlaps: bool = False

    @property
    def row_tiles(self) -> int:
        """Tiles along a row that all have `vectors` vectors, rounded up."""
        return ceil_div(self.conv.window.out[2], self.vectors * self.lanes)

    @property
    def grid(self) -> tuple[int, ...]:
        """Images by groups by tiles of output channels by blocks of rows."""
        conv, row_blocks = self.conv, ceil_div(self.conv.row_count, self.rows)
        return conv.batch, conv.groups, conv.outputs // self.channels, row_blocks

    def emit(self, target: Target) -> str:
        """Emit the loops: chunks, rows, tiles."""
        conv, e = self.conv, Function(self.NAME)
        pointers = self.addresses(e)
        with e.chunks(*self.grid) as (n, g, part, block):
            first = block * self.rows
            last = e.smin(first + self.rows, conv.row_count)
            channel = g * conv.outputs + part * self.channels
            body = _ChannelRows(e, self, target, pointers, n, g, channel)
            with e.loop("row", last, start=first) as row:
                body.row(row)
        return e.finish()


class _ChannelRows:
    """Emits one row of a few output channels."""

    def __init__(
        self,
        e: Function,
        kernel: PlanarConv,
        target: Target,
        pointers: dict[str, Pointer],
        n: Value,
        g: Value,
        channel: Value,
    ) -> None:
        conv = kernel.conv
        self.e, self.kernel, self.target = e, kernel, target
        self.tiles = row_tiles(conv.window, kernel.lanes, kernel.vectors, target, kernel.overlaps)
        self.kind = vector(conv.dtype.llvm, kernel.lanes)
        self.per_output = kernel.reduction
        place = n * conv.x.image + g * (conv.inputs * conv.x.block_stride)
        self.x = pointers["x"].at(place)
        self.w = pointers["w"].at(channel * self.per_output)
        out = n * conv.y.image
        if isinstance(conv.y, PhasedAccess):
            out = out + conv.y.panel(channel // kernel.channels, kernel.channels)
        else:
            out = out + channel * conv.y.block_stride
        outputs = dict(pointers)
        for name in ("y", "residual"):
            if name in pointers:
                outputs[name] = pointers[name].at(out)
        bias = channel_address(pointers, "bias", channel)
        self.starts = start_planes(e, self.kind, bias, kernel.channels)
        self.output = ColumnOutput(e, kernel, target, self.kind, outputs, channel, kernel.channels)

    def row(self, row: Value) -> None:
        conv, kernel, e, window = self.kernel.conv, self.kernel, self.e, self.kernel.conv.window
        od, oh = e.split(row, *window.out[:2])
        self.taps = [Taps(e, window, axis, o) for axis, o in ((0, od), (1, oh))]
        starts = [t.start * conv.x.spatial[axis] for axis, t in enumerate(self.taps)]
        self.row_x = self.x.at(starts[0] + starts[1])
        self.place = od * conv.y.spatial[0] + oh * conv.y.spatial[1]
        for column, tile in each_tile_of_row(e, self.tiles, kernel.lanes):
            self._tile(column, tile)

    def _tile(self, column: Value, tile: ColumnVectors) -> None:
        conv, e, window = self.kernel.conv, self.e, self.kernel.conv.window
        x = self.row_x.at(column * window.stride[2] - window.pad[2])
        vectors = len(tile.live)
        self.masks = TileMasks(e, tile, window, self.kind, self.target)
        acc = [start for start in self.starts for _ in range(vectors)]
        depth, height = self.taps
        kd, kh, kw = window.kernel
        with depth.guard(e, acc), height.guard(e, acc):
            planes = depth.loop("kd", window.dilation[0] * conv.x.spatial[0], kh * kw)
            lines = height.loop("kh", window.dilation[1] * conv.x.spatial[1], kw)
            with e.loop("kd", planes.extent, [acc], start=planes.start) as d:
                with e.loop("kh", lines.extent, [acc], start=lines.start) as h:
                    line = x.at(d * planes.a_stride + h * lines.a_stride)
                    taps = self.w.at(d * planes.b_stride + h * lines.b_stride)
                    with e.loop("c", conv.inputs, [acc]) as c:
                        self._columns(
                            tile,
                            acc,
                            line.at(c * conv.x.block_stride),
                            taps.at(c * (kd * kh * kw)),
                        )
        self._store(tile, acc, self.place + column * conv.y.spatial[2])

    def _columns(self, tile: ColumnVectors, acc: list[Value], line: Pointer, taps: Pointer) -> None:
        """Emit the taps along a row: a loop where no lane is masked, else unrolled."""
        kernel, e = self.kernel, self.e
        whole = (Lanes(0, kernel.lanes),) * kernel.conv.window.stride[2]
        groups = list(shared_loads(kernel.conv.window).items())
        index = 0
        while index < len(groups):
            kw, shared = groups[index]
            alike = 0  # whole groups from here on
            for first, group in groups[index:]:
                if len(group) < len(shared) or any(m != whole for m in tile.masks[first]):
                    break
                alike += 1
            masks = tile.masks[kw]
            if alike > 1 and alike * len(shared) > _TAPS_WRITTEN:
                step = groups[index + 1][0] - kw
                with e.loop("kw", kw + alike * step, [acc], start=kw, step=step) as tap:
                    self._taps(tile, masks, acc, line, taps, tap, shared)
                index += alike
            else:
                self._taps(tile, masks, acc, line, taps, e.i64(kw), shared)
                index += 1

    def _taps(
        self,
        tile: ColumnVectors,
        masks: tuple[Masks, ...],
        acc: list[Value],
        line: Pointer,
        taps: Pointer,
        kw: Value,
        shared: list[tuple[int, int]],
    ) -> None:
        """Emit the taps that use the vectors loaded for tap kw."""
        kernel, e = self.kernel, self.e
        vectors, stride = len(tile.live), kernel.conv.window.stride[2]
        at = line.at(kw * kernel.conv.window.dilation[2])
        parts = [
            self.masks.load(at.at(v * stride * kernel.lanes), masks[v]) for v in range(vectors)
        ]
        for _, phase in shared:
            inputs = [deinterleave(e, part, phase) if part else None for part in parts]
            for k in range(kernel.channels):
                tap = taps.at(kw + phase).at(k * self.per_output)
                weight = e.broadcast(tap, self.kind)
                for v, x in enumerate(inputs):
                    if x is not None:
                        acc[k * vectors + v] = e.fma(x, weight, acc[k * vectors + v])

    def _store(self, tile: ColumnVectors, acc: list[Value], place: Value) -> None:
        conv, kernel = self.kernel.conv, self.kernel
        if isinstance(conv.y, PhasedAccess):
            self._store_phases(conv.y, tile, acc, place)
            return
        for k in range(kernel.channels):
            channel = place + k * conv.y.block_stride
            for v, live in enumerate(tile.live):
                out = channel + v * kernel.lanes
                self.output.store(acc[k * len(tile.live) + v], k, out, live)
        self.output.finish(kernel.lanes - 1)

    def _store_phases(
        self, access: PhasedAccess, tile: ColumnVectors, acc: list[Value], place: Value
    ) -> None:
        """Store the channels of a row of phases interleaved, so that their columns are one run."""
        kernel, e = self.kernel, self.e
        vectors, across = len(tile.live), access.phases[1]
        for first in range(0, kernel.channels, across):
            row = place + access.channel(first)
            for v, live in enumerate(tile.live):
                run = interleave(e, [acc[(first + k) * vectors + v] for k in range(across)])
                for index, value in enumerate(run):
                    done = index * kernel.lanes
                    count: int = least(kernel.lanes, most(0, live * across - done))
                    if isinstance(count, Symbol) or count:
                        at = row + v * kernel.lanes * across + done
                        self.output.store_some(value, first, at, count)
