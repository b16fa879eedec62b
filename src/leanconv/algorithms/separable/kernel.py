"""The kernel of separable filters: sums along columns in a strip of scratch, then along rows.

A chunk is one output channel of one image: some tiles of rows, in a strip of columns. Of a tile of
T rows a strip in scratch has for each term of the filter the sums along depth and height:

    planes    [input rows of the tile][column]         of filters along three axes: sums along depth
    strip     [term][row of the tile][column % apart][column // apart]

Columns of both are those of the input from a whole number of vectors before the first one on, so
that vectors of x, which begin where a row does, stay whole; those outside the image are 0. Along
rows, taps are vectors of the strip that begin at any column: loaded there, or shuffled of two.
With a stride, columns that are so far apart are neighbours in the strip. With stride 1 and two rows
of every second column, a vector that is loaded once serves two vectors of outputs.

Where channels are neighbours in memory (`as_rows`), a column is that of one channel, the channel
itself is a whole block or all of them, and factors have a number for each lane of each kind of
vectors: vectors of a kind have the same channels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from leanconv.algorithms.separable.shape import SETS, StripShape
from leanconv.algorithms.separable.strip import Strip
from leanconv.codegen.emitter import Function, Pointer, Value
from leanconv.codegen.microkernel import channel_address
from leanconv.records import dataclass
from leanconv.spec.format import ALIGNMENT, ceil_div
from leanconv.target import Target

_READS = 8  # of a row of the strip between which LLVM moves none, lest registers spill


@dataclass(frozen=True)
class SeparableConv(StripShape):
    """One convolution's code."""

    VARIES = True

    def emit(self, target: Target) -> str:
        """Emit the loops: chunks, tiles of rows, terms, columns."""
        e = Function(self.NAME)
        pointers = self.addresses(e)
        with e.chunks(*self.grid) as place:
            _Chunk(e, self, target, pointers, *place).emit()
        return e.finish()


class _Chunk(Strip):
    """Emits one chunk."""

    def emit(self) -> None:
        e, kernel, height = self.e, self.kernel, self.kernel.conv.window.out[1]
        self.borders()
        last = e.smin((self.block + 1) * kernel.tiles, ceil_div(height, kernel.rows))
        with e.loop("tile", last, start=self.block * kernel.tiles) as tile:
            row = tile * kernel.rows
            for term in range(kernel.terms):
                self.down(row, term)
            count = e.smin(height - row, kernel.rows)
            with e.loop("row", count) as i:
                self._across(i, self.out + (row + i) * kernel.conv.y.spatial[1])

    def _reader(self, line: Pointer) -> Callable[[int, bool], Value]:
        """What brings the vector that begins at a number of a row of the strip.

        Vectors of a whole cache line that begin within one take two loads. Every second one is made
        of vectors that are loaded once for all taps: shuffles and loads then go on side by side.
        """
        e, lanes, loaded = self.e, self.kernel.lanes, dict[int, Value]()
        lines = lanes * self.kernel.conv.dtype.bytes == ALIGNMENT

        def whole(number: int) -> Value:
            if number not in loaded:
                loaded[number] = e.load(line.at(number * lanes), self.kind)
            return loaded[number]

        def read(at: int, shuffled: bool) -> Value:
            number, lane = divmod(at, lanes)
            if lane == 0:
                return whole(number)
            if lines and shuffled:
                return e.shuffle(whole(number), whole(number + 1), range(lane, lane + lanes))
            return e.load(line.at(at), self.kind)

        return read

    def _gathered(self, first: Pointer, places: list[int]) -> Value:
        """The numbers at some places behind the first one."""
        e, lanes = self.e, self.kernel.lanes
        value = e.load(first, self.kind)
        for past in range(lanes, max(places) + 1, lanes):
            seen = range(lanes) if past > lanes else places
            order = [
                lane if place < past else place - past + lanes if place < past + lanes else -1
                for lane, place in zip(seen, places, strict=True)
            ]
            value = e.shuffle(value, e.load(first.at(past), self.kind), order)
        return value

    def _across(self, row: Value, out: Value) -> None:
        """Sum a row of the tile along itself, and store it: one kind of vectors after the other."""
        e, kernel, window = self.e, self.kernel, self.kernel.conv.window
        (kd, kh, kw), kinds, each = window.kernel, kernel.kinds, kernel.vectors_of_set
        held, outputs = kernel.terms * kw + SETS * each + 1, kernel.lanes * each
        live = e.smin(window.out[2] - self.column, kernel.columns)
        groups, sets = live // (outputs * SETS * kinds), (live + (outputs - 1)) // outputs

        def of_kind(kind: Value | int) -> None:
            lane = kind * kernel.lanes
            places = kernel.places(kind if isinstance(kind, int) else 0)
            first = places[0] if isinstance(kind, int) else lane
            some = partial(
                self._sets,
                lane=lane,
                places=[place - places[0] for place in places],
                weights=[
                    self.weights(term * self.taps + kd + kh, kw, held - kw, lane)
                    for term in range(kernel.terms)
                ],
            )
            line = self.strip.at(row * kernel.line + first)
            with e.when(groups.compare("ne", 0)):
                with e.loop("group", groups) as group:
                    number = group * (SETS * kinds) + kind
                    at, to = line.at(group * (SETS * kernel.advance)), out + number * outputs
                    some(at, SETS, to, outputs)
            # The sets that remain one by one; the last one may be partly outside.
            done, stop = groups * SETS, (sets - kind + (kinds - 1)) // kinds
            with e.when(done.compare("ult", stop)):
                with e.loop("set", stop, start=done) as index:
                    number = (index * kinds + kind) * outputs
                    some(line.at(index * kernel.advance), 1, out + number, live - number)

        if kernel.gathers or kinds == 1:
            for kind in range(kinds):
                of_kind(kind)
            return
        with e.loop("kind", kinds) as index:
            of_kind(index)

    def _sets(
        self,
        line: Pointer,
        count: int,
        out: Value,
        stored: Value | int,
        lane: Value | int,
        places: list[int],
        weights: list[Callable[[int], Value]],
    ) -> None:
        """Sum some sets of one kind, and store so many outputs of each."""
        e, kernel, lanes = self.e, self.kernel, self.kernel.lanes
        each, channel = kernel.vectors_of_set, self.channel * kernel.numbers
        bias = channel_address(self.pointers, "bias", channel)
        slope = channel_address(self.pointers, "slope", channel)
        acc = [self.numbers(bias, lane) if bias else e.zero(self.kind)] * (count * each)
        for term in range(kernel.terms):
            source = line.at(term * kernel.rows * kernel.line)
            read = self._reader(source)
            for number, (at, uses) in enumerate(kernel.reads.items()):
                if number % _READS == _READS - 1:
                    e.barrier()
                begin = at % kernel.apart * kernel.plane + at // kernel.apart
                for i in range(count):
                    place = begin + i * kernel.advance
                    if kernel.gathers:
                        value = self._gathered(source.at(place), places)
                    else:
                        value = read(place, number % 2 == 1)
                    for v, kw in uses:
                        a = i * each + v
                        acc[a] = e.fma(value, weights[term](kw), acc[a])
        if slope and kernel.step > 1:
            self.output.slopes = [self.numbers(slope, lane)]
        for i in range(count):
            sums = acc[i * each : (i + 1) * each]
            if each == 2:
                order = [lanes * (n % 2) + n // 2 for n in range(2 * lanes)]
                sums = [
                    e.shuffle(sums[0], sums[1], half) for half in (order[:lanes], order[lanes:])
                ]
            for v, value in enumerate(sums):
                live = stored - v * lanes
                if isinstance(live, Value):
                    live = e.smin(e.smax(live, 0), lanes)
                self.output.store(value, 0, out + (i * kernel.kinds * each + v) * lanes, live)
