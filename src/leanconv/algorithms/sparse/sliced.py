"""The kernel of few pixels that skips zeros: lanes along output channels, slices of `graph.slices`.

    for chunk (some pixels, some slices):
        copy the input of each pixel into scratch, channel by channel
        for slice:  for step:
            load the weights of 32 outputs, and the places of their inputs in the step's span
            for pixel:  look the inputs up in the span, which registers hold; FMA
        activation; each lane goes to its output

An output whose row waits has a weight of 0, of which nothing is multiplied: its input becomes 0, as
an infinite one would make NaN of it.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import prod

from leanconv.algorithms.common.conv import GroupedConv
from leanconv.codegen.activations import finish
from leanconv.codegen.emitter import Function, Pointer, Value, bytes_of, element_of, vector
from leanconv.graph.slices import ROWS, slice_count
from leanconv.records import dataclass
from leanconv.spec.format import aligned, ceil_div
from leanconv.symbolic import Count
from leanconv.target import Target
from leanconv.types import INT16, INT32, UINT8

_PERMUTES = {  # of the elements of one register, of two
    ("avx512", "<16 x float>"): ("avx512.permvar.sf.512", "avx512.vpermi2var.ps.512"),
    ("avx512", "<8 x double>"): ("avx512.permvar.df.512", "avx512.vpermi2var.pd.512"),
    ("avx2", "<8 x float>"): ("avx2.permps",),
}


def permutations(kind: str, target: Target) -> tuple[str, ...]:
    """The instructions that look elements up in one register and in two, if there are such."""
    return _PERMUTES.get((target.isa, kind), ())


@dataclass(frozen=True)
class SlicedConv(GroupedConv):
    """One convolution's code; one pixel's output is a product of a matrix and a vector.

    Attributes:
        lanes: of a vector.
        pixels: of all images, that a chunk computes.
        inputs: products of one output.
        span: inputs of a step.
        contiguous: whether these inputs are neighbours in memory, else a channel is a plane.
        slices_each: slices of a chunk.
        steps: of all slices; no code depends on them.
    """

    VARIES = True

    lanes: int
    pixels: int
    inputs: int
    span: int
    contiguous: bool
    slices_each: Count
    steps: Count

    @property
    def operands(self) -> tuple[str, ...]:
        """Input, weights, their places, spans, the heads of slices; the epilogue's; output."""
        return ("x", "w", "places", "firsts", "heads", *self.conv.epilogue.operands, "y")

    @property
    def operand_types(self) -> dict[str, str]:
        """LLVM type of the elements of each operand."""
        others = {"places": UINT8.llvm, "firsts": INT16.llvm, "heads": INT32.llvm}
        return {**super().operand_types, **others}

    @property
    def packing(self) -> Hashable:
        """Outputs and inputs, the span: slices are those of the pattern."""
        return super().packing, self.inputs, self.span

    @property
    def constant_bytes(self) -> dict[str, int]:
        """Of each step its weights, their places and the span; of a slice its end and its rows."""
        return {
            **super().constant_bytes,
            "w": self.steps * ROWS * self.conv.precision.w.bytes,
            "places": self.steps * ROWS * UINT8.bytes,
            "firsts": self.steps * INT16.bytes,
            "heads": (self.slices * (1 + ROWS) + 1) * INT32.bytes,
        }

    @property
    def tile(self) -> str:
        """The tile, for people."""
        pixels = f"{self.pixels} pixels" if self.pixels > 1 else "1 pixel"
        return f"{ROWS} outputs of {pixels} at once"

    @property
    def kind(self) -> str:
        """LLVM type of a vector."""
        return vector(self.conv.dtype.llvm, self.lanes)

    @property
    def slices(self) -> int:
        """Slices of all outputs."""
        return slice_count(self.conv.outputs)

    @property
    def grid(self) -> tuple[int, ...]:
        """Some pixels each, some slices each."""
        count = self.conv.batch * prod(self.conv.window.out)
        return ceil_div(count, self.pixels), ceil_div(self.slices, self.slices_each)

    @property
    def strip_bytes(self) -> int:
        """Bytes of a pixel's input in scratch: spans may begin at the last one."""
        return aligned((self.inputs + self.span) * self.conv.dtype.bytes)

    @property
    def scratch_bytes(self) -> int:
        """The inputs of a chunk's pixels."""
        return self.pixels * self.strip_bytes

    def emit(self, target: Target) -> str:
        """Emit the loops: chunks, slices, steps."""
        e = Function(self.NAME)
        pointers = self.addresses(e)
        with e.chunks(*self.grid) as (pixels, part):
            _Chunk(e, self, target, pointers, pixels * self.pixels).emit(part)
        return e.finish()


class _Chunk:
    """Emits one chunk."""

    def __init__(
        self,
        e: Function,
        kernel: SlicedConv,
        target: Target,
        pointers: dict[str, Pointer],
        first: Value,
    ) -> None:
        self.e, self.kernel, self.target, self.pointers = e, kernel, target, pointers
        conv, lanes = kernel.conv, kernel.lanes
        self.kind, self.places = kernel.kind, vector("i32", lanes)
        x, y, stride, out = conv.x, conv.y, conv.window.stride, conv.window.out
        last = conv.batch * prod(out) - 1
        self.x: list[Pointer] = []
        self.y: list[Value] = []
        for number in range(kernel.pixels):
            # Where there are fewer pixels the last one is computed again.
            n, *at = e.split(e.smin(first + number, last), conv.batch, *out)
            source, place = n * x.image, n * y.image
            for axis, position in enumerate(at):
                source = source + position * (stride[axis] * x.spatial[axis])
                place = place + position * y.spatial[axis]
            self.x.append(pointers["x"].at(source))
            self.y.append(place)
        each = kernel.strip_bytes
        self.strips = [e.scratch.at(i * each).of(conv.dtype.llvm) for i in range(kernel.pixels)]

    def emit(self, part: Value) -> None:
        e, kernel = self.e, self.kernel
        for source, strip in zip(self.x, self.strips, strict=True):
            self._copy(source, strip)
        first = part * kernel.slices_each
        last = e.smin(first + kernel.slices_each, kernel.slices)
        vectors, heads = ROWS // kernel.lanes, self.pointers["heads"]
        with e.loop("slice", last, start=first) as number:
            begin, end = (
                e.index(e.convert("zext", e.load(heads.at(number + i)), "i64")) for i in (0, 1)
            )
            at = heads.at(number * ROWS + (kernel.slices + 1))
            rows = [e.load(at.at(v * kernel.lanes), self.places) for v in range(vectors)]
            acc = [self._of_rows("bias", each) for each in rows] * kernel.pixels
            with e.when(begin.compare("ult", end), [acc]):
                with e.loop("step", end, [acc], start=begin) as step:
                    self._step(step, acc)
            self._store(rows, acc)

    def _copy(self, source: Pointer, strip: Pointer) -> None:
        """Bring the input of a pixel into scratch."""
        e, kernel = self.e, self.kernel
        if not kernel.contiguous:
            with e.loop("c", kernel.inputs) as c:
                e.store(e.load(source.at(c * kernel.conv.x.block_stride)), strip.at(c))
            return
        whole, rest = divmod(kernel.inputs, kernel.lanes)
        if whole:
            with e.loop("c", whole) as c:
                e.store(e.load(source.at(c * kernel.lanes), self.kind), strip.at(c * kernel.lanes))
        if rest:
            begin = whole * kernel.lanes
            e.store(e.load_first(source.at(begin), self.kind, rest), strip.at(begin))

    def _of_rows(self, name: str, rows: Value) -> Value:
        """The numbers of a vector of output channels; 0 where there are none."""
        e = self.e
        if name not in self.pointers:
            return e.zero(self.kind)
        return e.gather(self.pointers[name], rows, rows.compare("sge", 0))

    def _step(self, step: Value, acc: list[Value]) -> None:
        """Add the products of a step of all rows and pixels."""
        e, kernel = self.e, self.kernel
        first = e.index(e.convert("zext", e.load(self.pointers["firsts"].at(step)), "i64"))
        held = [self._weights(step, v) for v in range(ROWS // kernel.lanes)]
        for number, strip in enumerate(self.strips):
            span = _Span(self, strip.at(first))
            for v, (weights, there, places) in enumerate(held):
                at = number * len(held) + v
                x = e.select(there, span.at(places), e.zero(self.kind))
                acc[at] = e.fma(x, weights, acc[at])

    def _weights(self, step: Value, v: int) -> tuple[Value, Value, Value]:
        """A step's weights of a vector of rows, which are not 0, and the places of their inputs."""
        e, at = self.e, step * ROWS + v * self.kernel.lanes
        weights = e.load(self.pointers["w"].at(at), self.kind)
        places = e.load(self.pointers["places"].at(at), vector("i8", self.kernel.lanes))
        return weights, weights.compare("une", 0.0), e.convert("zext", places, self.places)

    def _store(self, rows: list[Value], acc: list[Value]) -> None:
        """Finish the sums of a slice, and store each where its output is."""
        e, epilogue, step = self.e, self.kernel.conv.epilogue, self.kernel.conv.y.block_stride
        slopes = [self._of_rows("slope", each) if epilogue.has_slope else None for each in rows]
        for v, each in enumerate(rows):
            there = each.compare("sge", 0)
            offsets = each * e.convert("trunc", e.splat(e.i64(step), self.kernel.lanes), each.kind)
            for number, place in enumerate(self.y):
                residual = None
                if epilogue.residual:
                    residual = e.gather(self.pointers["residual"].at(place), offsets, there)
                value = acc[number * len(rows) + v]
                value = finish(e, value, epilogue.activation, slopes[v], residual)
                e.scatter(value, self.pointers["y"].at(place), offsets, there)


class _Span:
    """A span of inputs in registers, where the target permutes such; else in memory."""

    def __init__(self, chunk: _Chunk, begin: Pointer) -> None:
        self.e, self.kind, self.begin, self.lanes = chunk.e, chunk.kind, begin, chunk.kernel.lanes
        self.names = permutations(self.kind, chunk.target)
        firsts = range(0, chunk.kernel.span, self.lanes) if self.names else ()
        self.tables = [self.e.load(begin.at(first), self.kind) for first in firsts]

    def at(self, place: Value) -> Value:
        """The inputs at places of the span, i32."""
        e, kind, lanes, found = self.e, self.kind, self.lanes, self.tables
        if not self.names:
            return e.gather(self.begin, place, e.const(vector("i1", lanes), 1))
        wanted = vector(f"i{8 * bytes_of(element_of(kind))}", lanes)
        index = place if wanted == place.kind else e.convert("zext", place, wanted)
        together = min(len(self.names), len(found))
        name, size = f"llvm.x86.{self.names[together - 1]}", together * lanes
        if together == 2:
            pairs = zip(found[::2], found[1::2], strict=True)
            found = [e.intrinsic(name, kind, a, index, b) for a, b in pairs]
        else:
            found = [e.intrinsic(name, kind, table, index) for table in found]
        while len(found) > 1:
            upper = (place & size).compare("ne", 0)
            pairs = zip(found[::2], found[1::2], strict=True)
            found, size = [e.select(upper, b, a) for a, b in pairs], 2 * size
        return found[0]
