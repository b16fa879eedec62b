"""Strips: pixels of some channels, copied from any layout to where a register tile finds them.

    strip[j][c] = x[channel + c, first + j·step]        zero where the image has no such column

Planes (NCHW) are transposed in registers, squares of as many channels as columns; few channels are
interleaved. Channels that lie side by side (NHWC, blocks) are copied pixel by pixel, or whole rows
at once where a strip is what lies in memory. No vector reaches past what is copied, in the tensor
or in the strip.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import gcd

from leanconv.codegen.emitter import Function, Pointer, Value, element_of, lanes_of, vector
from leanconv.codegen.geometry import Access
from leanconv.codegen.shuffles import interleave, power_below, transpose
from leanconv.target import Target

_LARGEST_STEP = 4  # elements between columns that are picked from whole vectors
INTERLEAVED = 4  # channels; shuffles grow with their square, unlike those of a transpose


def _pieces(start: int, stop: int, most: int, run: int = 0) -> Iterator[tuple[int, int]]:
    """Vectors of powers of two that cover elements, within runs of a length: place, lanes."""
    while start < stop:
        left = min(stop - start, run - start % run) if run else stop - start
        lanes = power_below(left, most)
        yield start, lanes
        start += lanes


def are_alike(access: Access, channels: int) -> bool:
    """Return whether rows of a tensor lie as a strip of so many channels, which are all it has."""
    return access.block == access.block_stride == 1 and access.spatial[2] == channels


def store_lanes(e: Function, value: Value, to: Pointer, count: int) -> None:
    """Store the first lanes of a vector, by powers of two: no masks, which some cores lack.

    Args:
        e: the function to append to.
        value: the vector.
        to: address of its first lane.
        count: of the lanes that are stored.
    """
    whole = lanes_of(value.kind)
    for at, lanes in _pieces(0, count, whole):
        part = value
        if lanes == 1:
            part = e.extract(value, at)
        elif lanes < whole:
            part = e.shuffle(value, None, range(at, at + lanes))
        e.store(part, to.at(at))


class StripCopy:
    """Copies rows of pixels of one tensor into strips.

    Elements of the strip beyond the channels that are copied become zeros, up to `width`.

    Args:
        e: the function to append to.
        target: the machine.
        access: strides of the tensor.
        kind: type of a whole vector of elements in registers.
        channels: how many are copied.
        width: elements from one column of the strip to the next; at least the channels.
        step: columns of the image from one that is copied to the next.
        grain: a number that divides the first channel of each copy; 0: that is always the first.
    """

    def __init__(
        self,
        e: Function,
        target: Target,
        access: Access,
        kind: str,
        channels: int,
        width: int,
        *,
        step: int = 1,
        grain: int = 0,
    ) -> None:
        self.e, self.target, self.access, self.kind = e, target, access, kind
        self.channels, self.width, self.step = channels, width, step
        self.lanes, self._element = lanes_of(kind), element_of(kind)
        self._apart = step * access.spatial[2]  # elements
        # Channels that lie side by side from a first one on; 0: all of them.
        self._run = gcd(access.block, grain) if access.block > 1 else 0
        self._planes = access.block == 1 and access.block_stride != 1
        self._alike = width == channels and step == 1 and are_alike(access, channels)

    def row(
        self,
        line: Pointer,
        to: Pointer,
        channel: Value | int,
        *,
        first: Value | int,
        columns: Value | int,
        size: int,
        inside: Value | None = None,
        full: bool = False,
    ) -> None:
        """Copy a row of an image, with zeros for the columns on both sides of it.

        Args:
            line: address of the row's first column, of channel 0.
            to: address of the strip's first column.
            channel: the first channel that is copied.
            first: column of the image that the strip begins with; negative in the padding.
            columns: of the strip, one at least.
            size: columns of the image.
            inside: whether the image has this row, else all are zeros; None: it has.
            full: whether the image has all these columns.
        """
        e, step = self.e, self.step
        if inside is not None:
            with e.when(inside, otherwise=lambda: self.zeros(to, 0, columns)):
                self.row(line, to, channel, first=first, columns=columns, size=size, full=full)
            return
        first = e.i64(first)
        if full:
            self.pixels(line.at(first * self.access.spatial[2]), to, channel, columns)
            return
        low = e.smin(e.smax(0 - first + (step - 1), 0) // step, columns)
        past = e.smax(e.i64(size) - first + (step - 1), 0) // step
        high = e.smax(e.smin(past, columns), low)
        self.zeros(to, 0, low)
        begin = (first + low * step) * self.access.spatial[2]
        with e.when(low.compare("ult", high)):
            self.pixels(line.at(begin), to.at(low * self.width), channel, high - low)
        self.zeros(to, high, columns)

    def zeros(self, to: Pointer, start: Value | int, stop: Value | int) -> None:
        """Write zeros for the columns from `start` to `stop`, if there are any."""
        e = self.e
        with e.when(e.i64(start).compare("ult", stop)):
            with e.loop("zeros", stop, start=start) as j:
                self._fill(to.at(j * self.width), 0)

    def pixels(
        self, source: Pointer, to: Pointer, channel: Value | int, count: Value | int
    ) -> None:
        """Copy columns that all exist.

        Args:
            source: address of the first of them, of channel 0.
            to: address of the first in the strip.
            channel: the first channel that is copied.
            count: of columns, one at least.
        """
        channel, count = self.e.i64(channel), self.e.i64(count)
        if self._alike and self.width % self.lanes:
            elements, lanes = count * self.width, self.lanes
            pixels = partial(self._side_by_side, source, to, channel, count)
            with self.e.when(elements.compare("uge", lanes), otherwise=pixels):
                with self.e.loop("elements", elements, step=lanes) as index:
                    at = self.e.smin(index, elements - lanes)
                    self.e.store(self.e.load(source.at(at), self.kind), to.at(at))
            return
        if not self._planes:
            self._side_by_side(source, to, channel, count)
            return
        plane = source.at(channel * self.access.block_stride)
        if self._apart <= min(_LARGEST_STEP, self.lanes):
            self._squares(plane, to, count)
        else:
            self._single(plane, to, count)

    def _fill(self, to: Pointer, start: int) -> None:
        """Write zeros from an element of a column on."""
        for at, lanes in _pieces(start, self.width, self.lanes):
            self.e.store(self.e.zero(vector(self._element, lanes)), to.at(at))

    # -- channels that lie side by side ----------------------------------------------------
    def _side_by_side(self, source: Pointer, to: Pointer, channel: Value, count: Value) -> None:
        """Copy pixel by pixel; the places of runs of channels are computed before."""
        e, moved = self.e, []
        for at, lanes in _pieces(0, self.channels, self.lanes, self._run):
            moved.append((source.at(self._place(channel, at)), at, lanes))
        with e.loop("column", count) as j:
            column = to.at(j * self.width)
            for place, at, lanes in moved:
                value = e.load(place.at(j * self._apart), vector(self._element, lanes))
                e.store(value, column.at(at))
            self._fill(column, self.channels)

    def _place(self, channel: Value, at: int) -> Value:
        """The offset of a channel by its number after the first one."""
        block, stride = self.access.block, self.access.block_stride
        if block == 1:
            return channel + at
        if self._run == block:  # the first one begins a block
            return channel // block * stride + self.access.channel(at)
        return (channel + at) // block * stride + (channel + at) % block

    # -- channels in planes ----------------------------------------------------------------
    def _single(self, source: Pointer, to: Pointer, count: Value) -> None:
        """Copy element by element."""
        e = self.e
        with e.loop("column", count) as j:
            with e.loop("channel", self.channels) as c:
                at = source.at(j * self._apart + c * self.access.block_stride)
                e.store(e.load(at, self._element), to.at(j * self.width + c))
            self._fill(to.at(j * self.width), self.channels)

    def _squares(self, source: Pointer, to: Pointer, count: Value) -> None:
        """Copy squares of columns and channels; the last columns overlap those before them."""
        e, lanes = self.e, self.lanes
        many = count.compare("uge", lanes)
        with e.when(many):
            for plane, strip, live, wide in self._blocks(source, to):
                with e.loop("columns", count, step=lanes) as j:
                    start = e.smin(j, count - lanes)
                    rows = self._load(plane.at(start * self._apart), live, None)
                    self._store(rows, strip.at(start * self.width), wide, None)
        with e.when(many ^ 1):
            if not self.target.runtime_masks:
                self._single(source, to, count)
                return
            for plane, strip, live, wide in self._blocks(source, to):
                self._store(self._load(plane, live, count), strip, wide, count)

    def _blocks(self, source: Pointer, to: Pointer) -> Iterator[tuple[Pointer, Pointer, int, int]]:
        """Vectors of a strip's columns: plane, strip, channels that exist, elements written."""
        lanes, whole = self.lanes, self.channels // self.lanes
        step = lanes * self.access.block_stride
        if whole:
            with self.e.loop("channels", whole) as index:
                yield source.at(index * step), to.at(index * lanes), lanes, lanes
        for first in range(whole * lanes, self.width, lanes):
            live = max(0, self.channels - first)
            at = source.at(whole * step)
            yield at, to.at(first), live, min(lanes, self.width - first)

    def _load(self, plane: Pointer, rows: int, count: Value | None) -> list[Value]:
        """Load a vector of columns of each channel: all lanes, or the first `count`."""
        e, lanes, apart = self.e, self.lanes, self._apart
        masks: list[Value] = []
        if count is not None:
            needed = count * apart - (apart - 1)
            masks = [e.first_lanes(needed - part * lanes, lanes) for part in range(apart)]
        found = []
        for row in range(rows):
            at = plane.at(row * self.access.block_stride)
            result = e.poison(self.kind)
            for part in range(apart):
                if count is None:
                    live = lanes * apart - (apart - 1) - part * lanes
                    loaded = e.load_first(at.at(part * lanes), self.kind, min(lanes, live))
                else:
                    loaded = e.masked_load(at.at(part * lanes), self.kind, masks[part])
                result = self._picked(result, loaded, part) if apart > 1 else loaded
            found.append(result)
        return found

    def _picked(self, result: Value, loaded: Value, part: int) -> Value:
        """Add to a vector of columns those that a vector of their row holds."""
        picks = []
        for lane in range(self.lanes):
            from_part, inside = divmod(lane * self._apart, self.lanes)
            here = self.lanes + inside if from_part == part else lane
            picks.append(here if from_part <= part else -1)
        return self.e.shuffle(result, loaded, picks)

    def _store(self, rows: list[Value], to: Pointer, wide: int, count: Value | None) -> None:
        """Store vectors of columns, one for each channel, as columns of `wide` elements."""
        e, lanes = self.e, self.lanes
        if count is None and len(rows) == self.width <= INTERLEAVED:
            for part, value in enumerate(interleave(e, rows)):
                e.store(value, to.at(part * lanes))
            return
        square = rows + [e.zero(self.kind)] * (lanes - len(rows))
        for j, column in enumerate(transpose(e, square)):
            if count is not None and j:
                with e.when(count.compare("ugt", j)):
                    store_lanes(e, column, to.at(j * self.width), wide)
            else:
                store_lanes(e, column, to.at(j * self.width), wide)
