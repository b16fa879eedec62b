"""The report's CUDA kernels as emitted ones: a work item computes one output pixel.

A CUDA thread becomes a work item, a warp a vector of items, a block of `block` x `block` threads a
chunk. Items of a block are numbered row by row, and a vector takes as many of them in a row as it
has lanes: pixels beside each other, several rows of them where the block is narrower than a vector.
Items outside the image are masked off; a vector without a live item is left out, as a warp is.

Tensors stand as planes of channels, each with a border of zeros (`Plane`), so that no kernel asks
whether a tap lies inside the image.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from leanconv.codegen.activations import apply
from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.kernel import Kernel
from leanconv.records import dataclass
from leanconv.spec import Activation
from leanconv.spec.format import ceil_div
from leanconv.target import Target
from leanconv.types import DType

# The cache of compiled objects knows the package's generators only: this one is in every kernel.
GENERATOR = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]
RELU6 = Activation("clip", (0.0, 6.0))
_GATHER = {"float": "f32", "double": "f64"}


@dataclass(frozen=True)
class Plane:
    """A tensor of one image: `channels` planes of `height` x `width` with a border of zeros."""

    channels: int
    height: int
    width: int
    border: int = 0

    @property
    def row(self) -> int:
        """Elements from one row to the next."""
        return self.width + 2 * self.border

    @property
    def size(self) -> int:
        """Elements of one channel."""
        return self.row * (self.height + 2 * self.border)

    @property
    def elements(self) -> int:
        """Elements of all channels."""
        return self.channels * self.size

    def first(self, reach: int = 0) -> int:
        """Offset of the first pixel, or of the corner `reach` pixels above and left of it."""
        assert reach <= self.border
        return (self.border - reach) * (self.row + 1)


@dataclass(frozen=True)
class Items:
    """The items of one vector in a block, as code that loads and stores them.

    Attributes:
        lanes: items of a vector.
        block: items along a side of a block.
    """

    lanes: int
    block: int

    @property
    def along(self) -> int:
        """Items of a vector that stand in one row."""
        return min(self.lanes, self.block)

    @property
    def vectors(self) -> int:
        """Vectors of a block."""
        return self.block * self.block // self.lanes

    def place(self, number: Value, by: Value, bx: Value) -> tuple[Value, Value]:
        """Row and column of the first item of a vector of the block (by, bx)."""
        first = number * self.lanes
        return by * self.block + first // self.block, bx * self.block + first % self.block

    def coordinates(self) -> list[tuple[int, int]]:
        """Row and column of every lane from the first one."""
        return [divmod(lane, self.block) for lane in range(self.lanes)]

    def mask(self, e: Function, rows: Value, columns: Value) -> Value | None:
        """Lanes inside the image, of which so many rows and columns are left; None for one lane."""
        if self.lanes == 1:
            return None
        kind = vector("i64", self.lanes)
        ys, xs = zip(*self.coordinates(), strict=True)
        inside = e.const(kind, xs).compare("slt", e.splat(columns, self.lanes))
        return inside & e.const(kind, ys).compare("slt", e.splat(rows, self.lanes))

    def load(
        self, e: Function, at: Pointer, element: str, row: int, step: int, mask: Value | None
    ) -> Value:
        """Load one element for each live item, `step` apart along both axes; zero elsewhere."""
        kind = vector(element, self.lanes)
        if mask is None:
            return e.load(at, element)
        if step > 1:
            offsets = [step * (y * row + x) for y, x in self.coordinates()]
            index = e.const(vector("i64", self.lanes), offsets)
            where = e.define(f"getelementptr {element}, {at}, {index}", vector("ptr", self.lanes))
            name = f"llvm.masked.gather.v{self.lanes}{_GATHER[element]}.v{self.lanes}p0"
            return e.intrinsic(name, kind, where, e.const("i32", 4), mask, e.zero(kind))
        parts = [
            e.masked_load(at.at(j * row), vector(element, self.along), live)
            for j, live in enumerate(self._by_rows(e, mask))
        ]
        while len(parts) > 1:
            width = 2 * self.lanes // len(parts)
            parts = [
                e.shuffle(a, b, range(width)) for a, b in zip(parts[::2], parts[1::2], strict=True)
            ]
        return parts[0]

    def store(
        self, e: Function, value: Value, at: Pointer, element: str, row: int, mask: Value | None
    ) -> None:
        """Store the live items."""
        if mask is None:
            e.store(value, at)
            return
        for j, live in enumerate(self._by_rows(e, mask)):
            lanes = range(j * self.along, (j + 1) * self.along)
            part = value if len(lanes) == self.lanes else e.shuffle(value, None, lanes)
            e.masked_store(part, at.at(j * row), live)

    def _by_rows(self, e: Function, mask: Value) -> list[Value]:
        count = self.lanes // self.along
        if count == 1:
            return [mask]
        return [
            e.shuffle(mask, None, range(j * self.along, (j + 1) * self.along)) for j in range(count)
        ]


@dataclass(frozen=True)
class ItemConv(Kernel):
    """Convolution, bias and ReLU6: one item for each output pixel.

        y[k, oh, ow] = act(bias[k] + sum over c, kh, kw of x[c, oh·s + kh - p, ow·s + kw - p] · w)

    Attributes:
        x, y: where input (with its padding as border) and output lie.
        kernel, stride, groups: of the convolution; the padding is half the kernel.
        clip: whether ReLU6 follows.
        per_channel: an item for each pixel and channel; else an item computes all its channels.
        plain: a loop over the input channels alone, for 1 x 1 kernels.
    """

    x: Plane
    y: Plane
    kernel: int
    stride: int
    groups: int
    clip: bool
    dtype: DType
    items: Items
    per_channel: bool
    plain: bool
    generator: str = GENERATOR

    @property
    def operands(self) -> tuple[str, ...]:
        """Input, weights (K, C/g, kh, kw), bias, output."""
        return ("x", "w", "bias", "y")

    @property
    def chunks(self) -> int:
        """Blocks of items, for each output channel if `per_channel`."""
        down, right = self._blocks
        return down * right * (self.y.channels if self.per_channel else 1)

    @property
    def flops(self) -> int:
        """Two for each product."""
        inputs = self.x.channels // self.groups * self.kernel * self.kernel
        return 2 * self.y.channels * self.y.height * self.y.width * inputs

    @property
    def _blocks(self) -> tuple[int, int]:
        return ceil_div(self.y.height, self.items.block), ceil_div(self.y.width, self.items.block)

    def emit(self, target: Target) -> str:
        """Emit: for each block, for each vector of items, for each of its channels."""
        del target
        e = Function(self.NAME)
        pointers = [e.pointer(i, self.dtype.llvm) for i in range(4)]
        outer = self.y.channels if self.per_channel else 1
        with e.chunks(outer, *self._blocks) as (channel, by, bx):
            with e.loop("vector", self.items.vectors) as number:
                oy, ox = self.items.place(number, by, bx)
                rows, columns = self.y.height - oy, self.y.width - ox
                with e.when(rows.compare("sgt", 0) & columns.compare("sgt", 0)):
                    mask = self.items.mask(e, rows, columns)
                    if self.per_channel:
                        self._pixel(e, pointers, channel, oy, ox, mask)
                    else:
                        with e.loop("k", self.y.channels) as k:
                            self._pixel(e, pointers, k, oy, ox, mask)
        return e.finish()

    def _pixel(
        self,
        e: Function,
        pointers: list[Pointer],
        k: Value,
        oy: Value,
        ox: Value,
        mask: Value | None,
    ) -> None:
        """Emit one channel of a vector of items."""
        x, w, bias, y = pointers
        element, lanes = self.dtype.llvm, self.items.lanes
        inputs = self.x.channels // self.groups
        first = k // (self.y.channels // self.groups) * inputs
        at = first * self.x.size + oy * (self.stride * self.x.row) + ox * self.stride
        x = x.at(at + self.x.first(self.kernel // 2))
        w = w.at(k * (inputs * self.kernel**2))
        acc = [e.broadcast(bias.at(k), vector(element, lanes))]
        with e.loop("c", inputs, [acc]) as c:
            a, b = x.at(c * self.x.size), w.at(c * self.kernel**2)
            if self.plain:
                self._tap(e, a, b, acc, mask)
            else:
                with e.loop("kh", self.kernel, [acc]) as kh, e.loop("kw", self.kernel, [acc]) as kw:
                    a = a.at(kh * self.x.row + kw)
                    self._tap(e, a, b.at(kh * self.kernel + kw), acc, mask)
        value = apply(e, acc[0], RELU6 if self.clip else None)
        at = k * self.y.size + oy * self.y.row + ox + self.y.first()
        self.items.store(e, value, y.at(at), element, self.y.row, mask)

    def _tap(
        self, e: Function, a: Pointer, b: Pointer, acc: list[Value], mask: Value | None
    ) -> None:
        element = self.dtype.llvm
        left = self.items.load(e, a, element, self.x.row, self.stride, mask)
        acc[0] = e.fma(left, e.broadcast(b, vector(element, self.items.lanes)), acc[0])


@dataclass(frozen=True)
class RowCopy(Kernel):
    """Copies row by row, each row a piece of work as each was a call of cudaMemcpy."""

    x: Plane
    y: Plane
    dtype: DType
    lanes: int
    generator: str = GENERATOR

    @property
    def operands(self) -> tuple[str, ...]:
        """From, to."""
        return ("x", "y")

    @property
    def chunks(self) -> int:
        """Rows of all channels."""
        return self.x.channels * self.x.height

    def emit(self, target: Target) -> str:
        """Emit: for each row, vectors and single elements."""
        del target
        e, element = Function(self.NAME), self.dtype.llvm
        x, y = e.pointer(0, element), e.pointer(1, element)
        with e.chunks(self.x.channels, self.x.height) as (c, h):
            a = x.at(c * self.x.size + h * self.x.row + self.x.first())
            b = y.at(c * self.y.size + h * self.y.row + self.y.first())
            along(e, self.x.width, self.lanes, element, lambda i, kind: _copy(e, a, b, i, kind))
        return e.finish()


@dataclass(frozen=True)
class ItemAdd(Kernel):
    """a + b, an item for each element."""

    a: Plane
    b: Plane
    y: Plane
    dtype: DType
    lanes: int
    generator: str = GENERATOR

    @property
    def operands(self) -> tuple[str, ...]:
        """Both terms and the sum."""
        return ("a", "b", "y")

    @property
    def chunks(self) -> int:
        """Rows of all channels."""
        return self.y.channels * self.y.height

    def emit(self, target: Target) -> str:
        """Emit: for each row, vectors and single elements."""
        del target
        e, element = Function(self.NAME), self.dtype.llvm
        planes = (self.a, self.b, self.y)
        with e.chunks(self.y.channels, self.y.height) as (c, h):
            a, b, y = (
                e.pointer(i, element).at(c * p.size + h * p.row + p.first())
                for i, p in enumerate(planes)
            )

            def add(i: Value, kind: str) -> None:
                left, right = (e.load(p.at(i), kind) for p in (a, b))
                e.store(left + right, y.at(i))

            along(e, self.y.width, self.lanes, element, add)
        return e.finish()


@dataclass(frozen=True)
class ItemMean(Kernel):
    """The mean of each channel, an item for each."""

    x: Plane
    dtype: DType
    generator: str = GENERATOR

    @property
    def operands(self) -> tuple[str, ...]:
        """Planes in, one number for each channel out."""
        return ("x", "y")

    @property
    def chunks(self) -> int:
        """Channels."""
        return self.x.channels

    def emit(self, target: Target) -> str:
        """Emit: for each channel, a sum over rows and columns."""
        del target
        e, element = Function(self.NAME), self.dtype.llvm
        x, y = e.pointer(0, element), e.pointer(1, element)
        with e.chunks(self.x.channels) as (c,):
            acc = [e.zero(element)]
            with e.loop("h", self.x.height, [acc]) as h, e.loop("w", self.x.width, [acc]) as w:
                at = c * self.x.size + h * self.x.row + w + self.x.first()
                acc[0] = acc[0] + e.load(x.at(at))
            e.store(acc[0] * (1.0 / (self.x.height * self.x.width)), y.at(c))
        return e.finish()


@dataclass(frozen=True)
class ItemDense(Kernel):
    """y = W x + bias, an item for each output; W stands turned, (inputs, outputs)."""

    inputs: int
    outputs: int
    dtype: DType
    lanes: int
    generator: str = GENERATOR

    @property
    def operands(self) -> tuple[str, ...]:
        """Input, weights, bias, output."""
        return ("x", "w", "bias", "y")

    @property
    def chunks(self) -> int:
        """Vectors of outputs."""
        return ceil_div(self.outputs, self.lanes)

    @property
    def flops(self) -> int:
        """Two for each product."""
        return 2 * self.inputs * self.outputs

    def emit(self, target: Target) -> str:
        """Emit: for each vector of outputs a sum over the inputs; the last vector overlaps."""
        del target
        e, element = Function(self.NAME), self.dtype.llvm
        x, w, bias, y = (e.pointer(i, element) for i in range(4))
        lanes = min(self.lanes, self.outputs)
        kind = vector(element, lanes)
        with e.chunks(self.chunks) as (j,):
            k = e.smin(j * self.lanes, self.outputs - lanes)
            acc = [e.load(bias.at(k), kind)]
            with e.loop("c", self.inputs, [acc]) as c:
                row = e.load(w.at(c * self.outputs + k), kind)
                acc[0] = e.fma(e.broadcast(x.at(c), kind), row, acc[0])
            e.store(acc[0], y.at(k))
        return e.finish()


def _copy(e: Function, a: Pointer, b: Pointer, i: Value, kind: str) -> None:
    e.store(e.load(a.at(i), kind), b.at(i))


def along(
    e: Function, count: int, lanes: int, element: str, body: Callable[[Value, str], None]
) -> None:
    """Run the body for vectors along a row, then for the elements that are left."""
    whole = count // lanes * lanes
    if whole:
        with e.loop("i", whole, step=lanes) as i:
            body(i, vector(element, lanes))
    if whole < count:
        with e.loop("i", count, start=whole) as i:
            body(i, element)
