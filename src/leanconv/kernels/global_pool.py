"""QLinearGlobalAveragePool: the mean of each map of codes, as a code.

    y[n, c] = clamp(rint(float32(sum over p of x[n, c, p] - P * zero_x) * scale) + zero_y)

with P pixels and scale = scale_x / (scale_y * P), all of it float32, rint to the even one of two
neighbours. In blocks of channels lanes run along these, in plain tensors along pixels. Sums are
int32, modulo 2^32.
"""

from __future__ import annotations

from math import prod

import numpy as np

from leanconv.codegen.emitter import Carry, Function, Pointer, Value, lanes_of, vector
from leanconv.codegen.lowered import Call, Lowered
from leanconv.codegen.tails import where_any
from leanconv.kernels import KernelContext, OfItems, any_blocks
from leanconv.kernels.quantised_steps import as_codes, as_float
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.symbolic import Extent, Scalars
from leanconv.target import Target
from leanconv.types import FLOAT32, INT32, DType

CODES_IN_BLOCKS = True

_CHUNK_LOADS = 16 * 1024  # vectors of codes; 5 to 10 us
_SUMS = 4  # accumulators, to which pixels are added in turn


@dataclass(frozen=True)
class GlobalCodePool(OfItems):
    """The means of `planes` maps: images times channels, or times blocks of channels.

    Attributes:
        x, y: types of the codes.
        block: channels of a block; 1 in plain tensors.
        planes, pixels: number of maps, and of pixels in each.
        zero: of x.
        numbers: scales of x and y, zero of y, bounds of its codes.
    """

    VARIES = True
    operands = ("x", "y")

    x: DType
    y: DType
    block: int
    planes: Extent
    pixels: Extent
    zero: int
    numbers: Scalars

    @property
    def items(self) -> int:
        return self.planes

    @property
    def group(self) -> int:
        return ceil_div(_CHUNK_LOADS, self.pixels)

    @property
    def flops(self) -> int:
        return self.planes * self.pixels * self.block

    def emit(self, target: Target) -> str:
        e = Function(self.NAME)
        x, y = e.pointer(0, self.x.llvm), e.pointer(1, self.y.llvm)
        real = FLOAT32.llvm
        scale_x, scale_y, zero, low, high = (e.const(real, each) for each in self.numbers)
        scale = scale_x / (scale_y * e.convert("sitofp", e.i64(self.pixels), real))
        away = e.convert("trunc", e.i64(self.pixels) * self.zero, INT32.llvm)
        with self.each_item(e, "plane") as plane:
            maps = x.at(plane * (self.pixels * self.block))
            total = self._sum(e, maps, target)
            lanes = lanes_of(total.kind)
            factor, zeros, lows, highs = (e.splat(each, lanes) for each in (scale, zero, low, high))
            sums = as_float(e, total - e.splat(away, lanes), INT32)
            means = e.unary("rint", sums * factor) + zeros
            codes = as_codes(e, means, lows, highs, self.y)
            e.store(codes, y.at(plane * self.block))
        return e.finish()

    def _sum(self, e: Function, x: Pointer, target: Target) -> Value:
        """The sums of a map of vectors; of a plain map the sum of all its pixels."""
        if self.block > 1:
            return self._vectors(e, x, self.block, self.pixels)
        lanes = target.lanes(INT32)
        whole = self.pixels // lanes
        acc: Carry = [e.zero(INT32.llvm)]
        for _ in where_any(e, whole, [acc]):
            total = self._vectors(e, x, lanes, whole)
            acc[0] = e.intrinsic(f"llvm.vector.reduce.add.v{lanes}i32", INT32.llvm, total)
        for _ in where_any(e, self.pixels - whole * lanes, [acc]):
            with e.loop("pixel", self.pixels, [acc], start=e.i64(whole * lanes)) as pixel:
                acc[0] = acc[0] + self._wide(e, e.load(x.at(pixel)))
        return acc[0]

    def _vectors(self, e: Function, x: Pointer, lanes: int, count: int) -> Value:
        """The sum of `count` vectors that follow each other."""
        kind = vector(self.x.llvm, lanes)
        acc: Carry = [e.zero(vector(INT32.llvm, lanes))] * _SUMS
        whole = count // _SUMS
        for _ in where_any(e, whole, [acc]):
            with e.loop("four", whole, [acc]) as four:
                at = x.at(four * (_SUMS * lanes))
                for i in range(_SUMS):
                    acc[i] = acc[i] + self._wide(e, e.load(at.at(i * lanes), kind))
        total: Carry = [acc[0] + acc[1] + (acc[2] + acc[3])]
        for _ in where_any(e, count - whole * _SUMS, [total]):
            with e.loop("one", count, [total], start=e.i64(whole * _SUMS)) as one:
                total[0] = total[0] + self._wide(e, e.load(x.at(one * lanes), kind))
        return total[0]

    def _wide(self, e: Function, codes: Value) -> Value:
        op = "sext" if self.x.kind == "int" else "zext"
        return e.convert(op, codes, vector(INT32.llvm, lanes_of(codes.kind)))


accepts_blocked = any_blocks  # each lane is summed by itself


def lower(context: KernelContext) -> Lowered:
    """Return one call, of a `GlobalCodePool`."""
    node, graph, formats = context.node, context.graph, context.formats
    (x,), y, given = node.inputs, node.output, node.attributes
    source, result = graph.types[x], graph.types[y]
    images, channels, *spatial = source.shape
    block = formats[x].block or 1
    (scale_x, scale_y), (zero, zero_y) = given["scales"], given["zeros"]
    numbers = scale_x, scale_y, zero_y, given["low"], given["high"]
    kernel = GlobalCodePool(
        source.dtype,
        result.dtype,
        block,
        images * ceil_div(channels, block),
        prod(spatial),
        int(zero),
        tuple(float(np.float32(number)) for number in numbers),
    )
    return Lowered((Call(kernel, (x, y)),), algorithm="pool")
