"""Unfolding: copying windows side by side, along all axes or only one.

    unfolded[c·channel + Σ_a (p_a·position[a] + k_a·tap[a])] =
        x[c, …, p_a·stride[a] + k_a·dilation[a] - pad[a], …]

for every axis `a` that is unfolded; along the others p_a is the input's own index and there is one
tap. im2col unfolds every axis, MEC the width, im2win the height. Windows that overlap along an axis
that is not unfolded share their elements: that saves memory over im2col.

Padding is written as zeros along unfolded axes, and not stored along the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import reduce
from math import prod

from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.geometry import Access, Triple, Window
from leanconv.codegen.shuffles import transpose, transpose_pieces
from leanconv.kernels.copy import cover
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.symbolic import Extent, Strides, fixed
from leanconv.types import DType

PIECE_BYTES = 16  # of taps that squares are made of: a segment of any vector
_LARGEST_STEP = 4  # strides that are picked from whole vectors
_WRITTEN_OUT = 8  # vectors of a run that are unrolled
_MOST_INTERLEAVED = 11  # rows; shuffles grow with their square, unlike those of a transpose


@contextmanager
def nest(e: Function, extents: Sequence[tuple[str, int]]) -> Iterator[list[Value | int]]:
    """Loop over several indices, the first outermost; an extent of one is no loop."""
    with ExitStack() as stack:
        yield [0 if n == 1 else stack.enter_context(e.loop(name, n)) for name, n in extents]


@dataclass(frozen=True)
class Unfolding:
    """The map from the elements of an input to those of an unfolded tensor.

    Attributes:
        window: the convolution's window.
        x: strides of the input.
        inputs: channels of one group.
        unfolded: for each axis, whether windows are copied side by side along it.
        channel, position, tap: strides in the unfolded tensor.
        dtype: of all values, float32 or float64.
        lanes: lanes of a vector.
    """

    window: Window
    x: Access
    inputs: int
    unfolded: tuple[bool, bool, bool]
    channel: Extent
    position: Strides
    tap: Triple
    dtype: DType
    lanes: int

    @property
    def view(self) -> Window:
        """The window of the unfolding itself: one tap along axes that are not unfolded."""
        w = self.window

        def pick(unfolded: Triple, else_: Triple) -> Triple:
            d, h, v = (
                a if on else b for a, b, on in zip(unfolded, else_, self.unfolded, strict=True)
            )
            return d, h, v

        ones = (1, 1, 1)
        return Window(
            w.size,
            pick(w.out, w.size),
            pick(w.kernel, ones),
            pick(w.stride, ones),
            pick(w.dilation, ones),
            pick(w.pad, (0, 0, 0)),
        )

    @property
    def elements(self) -> int:
        """Elements written for one image and group."""
        return self.inputs * prod(self.view.out) * prod(self.view.kernel)

    @property
    def run(self) -> str:
        """The unit of the copy: `"channels"`, `"taps"` of a row, squares, or `""`.

        Squares are transposed in registers. Of `"columns"` these are neighbours in x, and channels,
        or the taps along the height, in the unfolded tensor; of `"windows"` the taps of a row are
        neighbours in x, and columns in the unfolded tensor.
        """
        if self.channel == 1 and self.x.lanes_contiguous:
            return "channels"
        view = self.view
        if self.x.spatial[2] != 1:
            return ""
        if self.tap[2] == 1 and view.dilation[2] == 1 and view.kernel[2] > 1:
            return "taps"
        if self.position[2] == 1 and view.dilation[2] == 1 and view.kernel[2] > 1:
            return "windows"
        small = view.stride[2] <= _LARGEST_STEP
        return "columns" if small and 1 in (self.channel, self.tap[1]) else ""

    def interior(self) -> tuple[int, int]:
        """First column all of whose taps exist, and one past the last."""
        first, stop = self.view.full(2)
        return (first, stop) if first < stop else (0, 0)


class Mover:
    """Emission of an unfolding, row by row."""

    def __init__(self, e: Function, unfolding: Unfolding) -> None:
        self.e, self.u, self.view = e, unfolding, unfolding.view
        self.element = unfolding.dtype.llvm
        self.kind = vector(self.element, unfolding.lanes)

    def row(
        self, x: Pointer, y: Pointer, d: Value | int, h: Value, first: Value | int, count: int
    ) -> None:
        """Emit `count` columns from `first` on of the row at position (d, h).

        Args:
            x: address of the image's and group's first element.
            y: address to which column `first` of this row is copied.
            d, h: the row.
            first: a number, or a value if it is known at run time only.
            count: columns.
        """
        e = self.e
        low, high = self.u.interior()
        if not isinstance(first, Value):
            low, high = max(first, low), min(first + count, high)
            low, high = (low, high) if low < high else (first, first)
            self._edges(x, y, d, h, first, low, first)
            self._edges(x, y, d, h, high, first + count, first)
            if low == high:
                return
            begin: Value | int = low
            whole = self._rows_inside(d, h)
        else:
            begin, conditions = first, []
            high = high if low < high else 0
            if high < self.view.out[2]:
                conditions.append((first + count).compare("ule", high))
            if low:
                conditions.append(first.compare("uge", low))
            rows = self._rows_inside(d, h)
            conditions += [rows] if rows else []
            whole = reduce(lambda a, b: a & b, conditions) if conditions else None
            low, high = 0, count
        if whole is None:
            self._inside(x, y, d, h, begin, high - low, first)
            return
        with e.when(whole):
            self._inside(x, y, d, h, begin, high - low, first)
        with e.when(whole ^ 1):
            self._edges(x, y, d, h, begin, begin + (high - low), first)

    def _rows_inside(self, d: Value | int, h: Value) -> Value | None:
        """Return whether all taps along depth and height exist; None if they always do."""
        checks = []
        for axis, p in ((0, d), (1, h)):
            if self.view.always_full(axis):
                continue
            start = self._coordinate(axis, p, 0)
            last = start + (self.view.kernel[axis] - 1) * self.view.dilation[axis]
            checks += [start.compare("sge", 0), last.compare("slt", self.view.size[axis])]
        return reduce(lambda a, b: a & b, checks) if checks else None

    def _value(self, index: Value | int) -> Value:
        return index if isinstance(index, Value) else self.e.i64(index)

    def _coordinate(self, axis: int, p: Value | int, k: Value | int) -> Value:
        view = self.view
        place = self._value(p) * view.stride[axis] - view.pad[axis]
        return place + k * view.dilation[axis]

    def _source(self, x: Pointer, d: Value | int, h: Value, p: Value | int) -> Pointer:
        """The address of tap zero at a position."""
        for axis, index in enumerate((d, h, p)):
            x = x.at(self._coordinate(axis, index, 0) * self.u.x.spatial[axis])
        return x

    # -- columns whose taps all exist -------------------------------------------------------
    def _inside(
        self,
        x: Pointer,
        y: Pointer,
        d: Value | int,
        h: Value,
        begin: Value | int,
        count: int,
        first: Value | int,
    ) -> None:
        x = self._source(x, d, h, begin)
        y = y.at((self._value(begin) - first) * self.u.position[2])
        bodies = {
            "channels": self._channel_runs,
            "taps": self._tap_runs,
            "columns": self._squares,
            "windows": self._windows,
            "": self._single,
        }
        bodies[self.u.run](x, y, count)

    def _tap(self, x: Pointer, y: Pointer, axis: int, k: Value | int) -> tuple[Pointer, Pointer]:
        source = self.view.dilation[axis] * self.u.x.spatial[axis]
        return x.at(k * source), y.at(k * self.u.tap[axis])

    def _column(self, x: Pointer, y: Pointer, p: Value | int) -> tuple[Pointer, Pointer]:
        step = self.view.stride[2] * self.u.x.spatial[2]
        return x.at(p * step), y.at(p * self.u.position[2])

    def _channel_runs(self, x: Pointer, y: Pointer, count: int) -> None:
        u, kernel = self.u, self.view.kernel
        one_run = u.x.block == 1 and u.tap[2] == u.inputs
        one_run = one_run and self.view.dilation[2] * u.x.spatial[2] == u.inputs
        taps = 1 if one_run else kernel[2]
        loops = [("p", count), ("kd", kernel[0]), ("kh", kernel[1]), ("kw", taps)]
        with nest(self.e, loops) as (p, kd, kh, kw):
            x, y = self._column(x, y, p)
            for axis, k in enumerate((kd, kh, kw)):
                x, y = self._tap(x, y, axis, k)
            if one_run:
                self._copy(x, y, kernel[2] * u.inputs)
            else:
                self._copy_channels(x, y)

    def _tap_runs(self, x: Pointer, y: Pointer, count: int) -> None:
        kernel = self.view.kernel
        loops = [("p", count), ("c", self.u.inputs), ("kd", kernel[0]), ("kh", kernel[1])]
        with nest(self.e, loops) as (p, c, kd, kh):
            x, y = self._column(x, y, p)
            x, y = self._tap(*self._tap(x, y, 0, kd), 1, kh)
            x, y = self._channel(x, y, c)
            self._copy(x, y, kernel[2])

    def _channel(self, x: Pointer, y: Pointer, c: Value | int) -> tuple[Pointer, Pointer]:
        return (
            x.at(c * self.u.x.block_stride),
            y.at(c * self.u.channel),
        )

    def _single(self, x: Pointer, y: Pointer, count: int) -> None:
        kernel = self.view.kernel
        loops = [("p", count), ("kd", kernel[0]), ("kh", kernel[1]), ("kw", kernel[2])]
        with nest(self.e, loops) as (p, kd, kh, kw):
            x, y = self._column(x, y, p)
            for axis, k in enumerate((kd, kh, kw)):
                x, y = self._tap(x, y, axis, k)
            self._copy_channels(x, y)

    def _squares(self, x: Pointer, y: Pointer, count: int) -> None:
        """Squares of columns by channels (or by taps along the height), transposed in registers."""
        u, view, kernel = self.u, self.view, self.view.kernel
        if u.channel == 1:
            across, others = u.inputs, [("kh", kernel[1]), ("kw", kernel[2])]
            step = u.x.block_stride
        else:
            across, others = kernel[1], [("c", u.inputs), ("kw", kernel[2])]
            step = view.dilation[1] * u.x.spatial[1]
        interleaved = count >= u.lanes and across == u.position[2] <= _MOST_INTERLEAVED
        squares = 1 if interleaved else ceil_div(across, u.lanes)
        blocks = [("p", ceil_div(count, u.lanes)), ("q", squares)]
        with nest(self.e, [("kd", kernel[0]), *others, *blocks]) as (kd, other, kw, i, j):
            x, y = self._tap(*self._tap(x, y, 0, kd), 2, kw)
            x, y = self._tap(x, y, 1, other) if u.channel == 1 else self._channel(x, y, other)
            x, y = self._column(x, y, self._start(i, count))
            q = self._start(j, across)
            x, y = x.at(q * step), y.at(q)
            if interleaved:
                self._interleave(x, y, step, across)
            else:
                self._square(x, y, step, fixed(min(count, u.lanes)), min(across, u.lanes))

    def _windows(self, x: Pointer, y: Pointer, count: int) -> None:
        """Squares of columns by taps of a row, transposed in registers."""
        u, kernel, e = self.u, self.view.kernel, self.e
        loops = [("c", u.inputs), ("kd", kernel[0]), ("kh", kernel[1])]
        with nest(e, [*loops, ("p", ceil_div(count, u.lanes))]) as (c, kd, kh, i):
            x, y = self._tap(*self._tap(*self._channel(x, y, c), 0, kd), 1, kh)
            x, y = self._column(x, y, self._start(i, count))
            columns, piece = fixed(min(count, u.lanes)), min(u.lanes, PIECE_BYTES // u.dtype.bytes)
            taps = min(piece, kernel[2])
            kind = vector(self.element, piece)
            with nest(e, [("q", ceil_div(kernel[2], taps))]) as (q,):
                first = e.smin(q * taps, kernel[2] - taps) if isinstance(q, Value) else 0
                x, y = self._tap(x, y, 2, first)
                steps = [p * self.view.stride[2] for p in range(columns)]
                pieces = [e.load_first(x.at(step), kind, taps) for step in steps]
                pieces += [e.poison(kind)] * (u.lanes - columns)
                for k, tap in enumerate(transpose_pieces(e, pieces)[:taps]):
                    e.store_first(tap, y.at(k * u.tap[2]), columns)

    def _start(self, block: Value | int, count: int) -> Value | int:
        """Return the first index of a vector; the last vector overlaps the one before it."""
        if isinstance(block, int):
            return 0
        return self.e.smin(block * self.u.lanes, count - self.u.lanes)

    def _square(self, x: Pointer, y: Pointer, step: int, columns: int, rows: int) -> None:
        e, u = self.e, self.u
        loaded = [self._load(x.at(q * step), columns) for q in range(rows)]
        loaded += [e.poison(self.kind)] * (u.lanes - rows)
        for p, column in enumerate(transpose(e, loaded)[:columns]):
            e.store_first(column, y.at(p * u.position[2]), rows)

    def _interleave(self, x: Pointer, y: Pointer, step: int, rows: int) -> None:
        """Copy squares whose columns follow each other in the unfolded tensor: whole vectors."""
        e, lanes = self.e, self.u.lanes
        loaded = [self._load(x.at(q * step), lanes) for q in range(rows)]
        for part in range(rows):
            places = range(part * lanes, (part + 1) * lanes)
            result = e.poison(self.kind)
            for q, row in enumerate(loaded):
                picks = [
                    lanes + at // rows if at % rows == q else i if at % rows < q else -1
                    for i, at in enumerate(places)
                ]
                result = e.shuffle(result, row, picks)
            e.store(result, y.at(part * lanes))

    def _load(self, x: Pointer, count: int) -> Value:
        """Load every stride-th column, `count` of them, without reading past the last."""
        e, lanes, step = self.e, self.u.lanes, self.view.stride[2]
        if step == 1:
            return e.load_first(x, self.kind, count)
        needed, result = (count - 1) * step + 1, e.poison(self.kind)
        for part in range(ceil_div(needed, lanes)):
            at = x.at(part * lanes)
            loaded = e.load_first(at, self.kind, min(lanes, needed - part * lanes))
            picks = []
            for lane in range(lanes):
                from_part, inside = divmod(lane * step, lanes)
                here = from_part == part and lane < count
                picks.append(lanes + inside if here else lane if from_part < part else -1)
            result = e.shuffle(result, loaded, picks)
        return result

    # -- columns some of whose taps may lie in the padding -----------------------------------
    def _edges(
        self,
        x: Pointer,
        y: Pointer,
        d: Value | int,
        h: Value,
        begin: Value | int,
        end: Value | int,
        first: Value | int,
    ) -> None:
        if not isinstance(begin, Value) and not isinstance(end, Value) and begin >= end:
            return
        e, kernel = self.e, self.view.kernel
        with e.loop("p", end, start=begin) as p:
            x_p = self._source(x, d, h, p)
            y_p = y.at((p - first) * self.u.position[2])
            loops = [("kd", kernel[0]), ("kh", kernel[1]), ("kw", kernel[2])]
            with nest(e, loops) as taps:
                exists: list[Value] = []
                for axis, (index, k) in enumerate(zip((d, h, p), taps, strict=True)):
                    x_p, y_p = self._tap(x_p, y_p, axis, k)
                    if not self.view.always_full(axis):
                        place = self._coordinate(axis, index, k)
                        exists.append(place.compare("ult", self.view.size[axis]))
                if not exists:
                    self._copy_channels(x_p, y_p)
                    return
                touches = reduce(lambda a, b: a & b, exists)
                with e.when(touches):
                    self._copy_channels(x_p, y_p)
                with e.when(touches ^ 1):
                    self._zero_channels(y_p)

    # -- runs --------------------------------------------------------------------------------
    def _copy_channels(self, x: Pointer, y: Pointer) -> None:
        u = self.u
        if u.run != "channels":
            with nest(self.e, [("c", u.inputs)]) as (c,):
                source, result = self._channel(x, y, c)
                self.e.store(self.e.load(source), result)
            return
        if u.x.block == 1:
            self._copy(x, y, u.inputs)
            return
        blocks, rest = divmod(u.inputs, u.x.block)
        if blocks:
            with nest(self.e, [("cb", blocks)]) as (block,):
                at = x.at(block * u.x.block_stride)
                self._copy(at, y.at(block * u.x.block), u.x.block)
        if rest:
            at = x.at(blocks * u.x.block_stride)
            self._copy(at, y.at(blocks * u.x.block), rest)

    def _zero_channels(self, y: Pointer) -> None:
        if self.u.channel == 1:

            def clear(at: Value | int, n: int) -> None:
                zero = self.e.zero(vector(self.element, n))
                self.e.store(zero, y.at(at))

            cover(self.e, self.u.inputs, self.u.lanes, clear, _WRITTEN_OUT)
            return
        with nest(self.e, [("c", self.u.inputs)]) as (c,):
            self.e.store(self.e.zero(self.element), y.at(c * self.u.channel))

    def _copy(self, x: Pointer, y: Pointer, count: int) -> None:
        def move(at: Value | int, n: int) -> None:
            value = self.e.load(x.at(at), vector(self.element, n))
            self.e.store(value, y.at(at))

        cover(self.e, count, self.u.lanes, move, _WRITTEN_OUT)
