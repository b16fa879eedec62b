"""Sums of separable filters along depth and height, into a strip of scratch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from leanconv.algorithms.planar.columns import ColumnOutput
from leanconv.algorithms.separable.shape import StripShape
from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.target import Target


class Strip:
    """Emits what a chunk sums along columns: `borders`, and `down` for each tile and term."""

    def __init__(
        self,
        e: Function,
        kernel: StripShape,
        target: Target,
        pointers: dict[str, Pointer],
        *place: Value,
    ) -> None:
        self.e, self.kernel, self.target, self.pointers = e, kernel, target, pointers
        conv, window = kernel.conv, kernel.conv.window
        self.kind, element = vector(conv.dtype.llvm, kernel.lanes), conv.dtype.llvm
        n, self.channel, self.depth, self.block, strip = place
        self.column, read = strip * kernel.columns, kernel.columns * window.stride[2]
        # The first of a strip's columns is this one of the input, perhaps before it.
        first = strip * read - kernel.before
        group = self.channel // conv.outputs if conv.outputs > 1 else self.channel
        self.x = pointers["x"].at(n * conv.x.image + group * conv.x.block_stride + first)
        out = n * conv.y.image + self.channel * conv.y.block_stride
        self.out = out + self.depth * conv.y.spatial[0] + self.column
        self.taps = sum(window.kernel)
        self.w = pointers["w"].at(self.channel * (kernel.terms * self.taps * kernel.numbers))
        planes, _ = kernel.parts
        self.planes, self.strip = e.scratch.of(element), e.scratch.at(planes).of(element)
        # Vectors before the image, of the image, and where its last one is partly outside.
        vectors = kernel.vectors
        begin = kernel.before // kernel.lanes - strip * (read // kernel.lanes)
        end = begin + window.size[2] // kernel.lanes
        self.low = e.smin(e.smax(begin, 0), vectors)
        self.high = e.smin(e.smax(end, self.low), vectors)
        self.rest = e.i64(window.size[2]) % kernel.lanes
        partly = self.rest.compare("ne", 0) & end.compare("ult", vectors)
        self.partly = partly
        self.next = self.high + e.index(e.convert("zext", partly, "i64"))
        self.output = ColumnOutput(e, kernel, target, self.kind, pointers, self.channel, 1)

    def borders(self) -> None:
        """Clear the columns of scratch that are outside the image."""
        e, kernel = self.e, self.kernel
        rows = kernel.terms * kernel.rows, self.strip, kernel.apart
        three = kernel.conv.window.kernel[0] > 1
        for count, to, apart in [rows, (kernel.span, self.planes, 1)] if three else [rows]:
            with e.loop("row", count) as row:
                line = to.at(row * kernel.line)
                self._clear(line, e.i64(0), self.low, apart)
                self._clear(line, self.next, e.i64(kernel.vectors), apart)

    def _clear(self, line: Pointer, first: Value, stop: Value, apart: int) -> None:
        e = self.e
        with e.when(first.compare("ult", stop)):
            with e.loop("v", stop, start=first) as v:
                self._put(e.zero(self.kind), line, v, apart)

    def _put(self, value: Value, line: Pointer, v: Value, apart: int) -> None:
        """Store a vector of a row of scratch, where columns so far apart are neighbours."""
        e, lanes = self.e, self.kernel.lanes
        for first in range(apart):
            some = value
            if apart == lanes:
                some = e.extract(value, first)
            elif apart > 1:
                some = e.shuffle(value, None, range(first, lanes, apart))
            e.store(some, line.at(v * (lanes // apart) + first * self.kernel.plane))

    def numbers(self, at: Pointer, lane: Value | int) -> Value:
        """A number of a channel in all lanes; of several channels that of each, from a lane on."""
        several = self.kernel.step > 1
        return self.e.load(at.at(lane), self.kind) if several else self.e.broadcast(at, self.kind)

    def weights(
        self, first: int, taps: int, held: int, lane: Value | int = 0
    ) -> Callable[[int], Value]:
        """The taps of a factor: kept in registers if they fit beside others."""

        def load(tap: int) -> Value:
            return self.numbers(self.w.at((first + tap) * self.kernel.numbers), lane)

        if taps + held <= self.target.usable_registers:
            return [load(tap) for tap in range(taps)].__getitem__
        return load

    def _columns(
        self, first: int, taps: int, held: int
    ) -> Callable[[Value], Callable[[int], Value]]:
        """The same for the vectors of a row of the input: those of one kind have the same."""
        kernel = self.kernel
        if kernel.kinds == 1:
            kept = self.weights(first, taps, held)
            return lambda _: kept
        begin = -(kernel.before // kernel.lanes) % kernel.kinds

        def of_vector(v: Value) -> Callable[[int], Value]:
            return self.weights(first, taps, held, (v + begin) % kernel.kinds * kernel.lanes)

        return of_vector

    def _of_image(self, body: Callable[[Value, Callable[[Pointer], Value]], None]) -> None:
        """Emit a body for each vector of the image, with what loads it."""
        e = self.e
        with e.when(self.low.compare("ult", self.high)):
            with e.loop("v", self.high, start=self.low) as v:
                body(v, lambda at: e.load(at, self.kind))
        with e.when(self.partly):
            body(self.high, lambda at: e.load_first(at, self.kind, self.rest))

    def down(self, row: Value, term: int) -> None:
        """Sum a tile along depth and height into the strip of a term."""
        e, kernel, window = self.e, self.kernel, self.kernel.conv.window
        x, (kd, kh, _) = kernel.conv.x, window.kernel
        first, to = term * self.taps, self.strip.at(term * kernel.rows * kernel.line)
        top = row * window.stride[1] - window.pad[1]
        if kd > 1:
            self._depth(top, first)
        down = self._columns(first + kd, kh, kernel.rows + 1)
        if kd > 1:
            with e.loop("v", kernel.vectors) as v:
                at, load = self.planes.at(v * kernel.lanes), partial(e.load, kind=self.kind)
                self._rows(at, kernel.line, to, v, down(v), load, {})
            return
        depth = self.depth * window.stride[0] - window.pad[0]
        source = self.x.at(depth * x.spatial[0] + top * x.spatial[1])
        there = depth.compare("ult", window.size[0])
        inside = {at: (top + at).compare("ult", window.size[1]) & there for at in kernel.uses}
        whole = top.compare("sge", 0) & there
        whole = whole & (top + kernel.span).compare("sle", window.size[1])

        def rows(guards: dict[int, Value]) -> None:
            def body(v: Value, load: Callable[[Pointer], Value]) -> None:
                at = source.at(v * kernel.lanes)
                self._rows(at, x.spatial[1], to, v, down(v), load, guards)

            self._of_image(body)

        with e.when(whole, otherwise=lambda: rows(inside)):
            rows({})

    def _rows(
        self,
        source: Pointer,
        stride: Value | int,
        to: Pointer,
        v: Value,
        weights: Callable[[int], Value],
        load: Callable[[Pointer], Value],
        guards: dict[int, Value],
    ) -> None:
        """Sum one vector of each row of a tile along height."""
        e, kernel = self.e, self.kernel
        acc = [e.zero(self.kind)] * kernel.rows
        weights = weights if guards else cache(weights)  # the next rows of x need most of them, too

        def add(at: int, uses: list[tuple[int, int]]) -> None:
            x = load(source.at(stride * at))
            for row, kh in uses:
                acc[row] = e.fma(x, weights(kh), acc[row])

        for at, uses in kernel.uses.items():
            if not guards:
                add(at, uses)
                continue
            with e.when(guards[at], [acc]):
                add(at, uses)
        for row, value in enumerate(acc):
            self._put(value, to.at(row * kernel.line), v, kernel.apart)

    def _depth(self, top: Value, first: int) -> None:
        """Sum the input rows of a tile along depth."""
        e, kernel, window = self.e, self.kernel, self.kernel.conv.window
        x, taps = kernel.conv.x, window.kernel[0]
        weights = self._columns(first, taps, 3)
        start = self.depth * window.stride[0] - window.pad[0]
        depths = [start + tap * window.dilation[0] for tap in range(taps)]
        inside = [depth.compare("ult", window.size[0]) for depth in depths]
        with e.loop("row", kernel.span) as row:
            line = self.planes.at(row * kernel.line)
            at = top + row
            source = self.x.at(at * x.spatial[1])

            def body(v: Value, load: Callable[[Pointer], Value]) -> None:
                acc, column, of_vector = [e.zero(self.kind)], v * kernel.lanes, weights(v)
                for tap in range(taps):
                    with e.when(inside[tap], [acc]):
                        value = load(source.at(depths[tap] * x.spatial[0] + column))
                        acc[0] = e.fma(value, of_vector(tap), acc[0])
                self._put(acc[0], line, v, 1)

            missing = at.compare("uge", window.size[1])
            with e.when(missing, otherwise=lambda: self._of_image(body)):
                self._clear(line, self.low, self.next, 1)
