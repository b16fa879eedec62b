"""Local response normalisation across channels of a plain tensor.

    y[n, c, i] = x[n, c, i] / (bias + alpha / size * sum_j x[n, j, i]^2) ^ beta

with j from c - floor((size - 1) / 2) to c + ceil((size - 1) / 2), cut at the ends (Krizhevsky et
al. 2012, section 3.3, as ONNX has it). Lanes run along i, the merged spatial axes. The squares of
the window stay in registers and move on by one channel a step; a window too long for that is
summed anew for each channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from leanconv.codegen import math
from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.lowered import Call, Lowered
from leanconv.kernels import KernelContext, OfItems
from leanconv.kernels.lane_reduce import TILE, each_column
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.symbolic import Extent
from leanconv.target import Target
from leanconv.types import DType

# Elements of one chunk.
PIECE = 16384
# The longest window that is carried in registers.
LONGEST = 9


@dataclass(frozen=True)
class ResponseNorm(OfItems):
    """Local response normalisation of (images, channels, inner).

    Attributes:
        dtype: of all values, float32 or float64.
        images, channels, inner: the shape.
        size: channels of the window.
        alpha, beta, bias: as in the formula.
    """

    VARIES = True
    operands = ("x", "y")

    dtype: DType
    images: Extent
    channels: Extent
    inner: Extent
    size: int
    alpha: float
    beta: float
    bias: float

    @property
    def before(self) -> int:
        """Channels of the window before the one in the middle."""
        return (self.size - 1) // 2

    @property
    def after(self) -> int:
        """Channels of the window after the one in the middle."""
        return self.size // 2

    @property
    def tiles(self) -> int:
        """Tiles of columns in each image."""
        tiles = ceil_div(self.inner, TILE)
        return 1 if tiles == 1 else tiles

    @property
    def items(self) -> int:
        return self.images * self.tiles

    @property
    def group(self) -> int:
        return max(1, PIECE // (self.channels * min(self.inner, TILE)))

    @property
    def chunks(self) -> int:
        if not self.channels * self.inner:
            return 0
        return super().chunks

    @property
    def flops(self) -> int:
        return self.images * self.channels * self.inner * (self.size + 4)

    def emit(self, target: Target) -> str:
        e = Function(self.NAME)
        nest = _Nest(self, e, target.lanes(self.dtype))
        column = nest.rolling if self.size <= LONGEST else nest.summed
        x, y = e.pointer(0, self.dtype.llvm), e.pointer(1, self.dtype.llvm)
        with self.each_item(e) as item:
            image = item // self.tiles * (self.channels * self.inner)

            def body(offset: Value, count: Value | int, image: Value = image) -> None:
                at = image + offset
                column(x.at(at), y.at(at), count)

            each_column(e, item % self.tiles, self.inner, self.dtype, target, body)
        return e.finish()


class _Nest:
    def __init__(self, kernel: ResponseNorm, e: Function, lanes: int) -> None:
        self.k, self.e, self.lanes = kernel, e, lanes
        self.kind = vector(kernel.dtype.llvm, lanes)

    def _load(self, x: Pointer, channel: Value | int, count: Value | int) -> Value:
        address = x.at(self._offset(channel))
        return self.e.load_first(address, self.kind, count)

    def _offset(self, channel: Value | int) -> Value | int:
        return channel * self.k.inner

    def rolling(self, x: Pointer, y: Pointer, count: Value | int) -> None:
        """Carry the squares of the window: load one channel a step, nothing twice but the middle.

        Each channel is read before it is overwritten, so the result may be written over x.
        """
        k, e = self.k, self.e
        zero = e.const(self.kind, 0.0)
        ahead = [self._square(x, c, count) for c in range(min(k.after, k.channels))]
        ahead += [zero] * (k.after - len(ahead))
        window = [*[zero] * (k.before + 1), *ahead]  # the last `size` squares, oldest first
        with_more = max(0, k.channels - k.after)
        if with_more:
            with e.loop("c", with_more, [window]) as c:
                newest = self._load(x, c + k.after, count)
                window[:] = [*window[1:], newest * newest]
                self._finish(x, y, c, self._sum(window), count)
        for channel in (with_more + i for i in range(k.channels - with_more)):
            window = [*window[1:], zero]
            self._finish(x, y, channel, self._sum(window), count)

    def summed(self, x: Pointer, y: Pointer, count: Value | int) -> None:
        k, e = self.k, self.e
        with e.loop("c", k.channels) as c:
            first = e.smax(c - k.before, 0)
            last = e.smin(c + (k.after + 1), k.channels)
            total = [e.const(self.kind, 0.0)]
            with e.loop("j", last, [total], start=first) as j:
                v = self._load(x, j, count)
                total[0] = e.fma(v, v, total[0])
            self._finish(x, y, c, total[0], count)

    def _square(self, x: Pointer, channel: int, count: Value | int) -> Value:
        v = self._load(x, channel, count)
        return v * v

    def _sum(self, values: Sequence[Value]) -> Value:
        while len(values) > 1:
            pairs = [a + b for a, b in zip(values[::2], values[1::2], strict=False)]
            values = [*pairs, *values[len(values) // 2 * 2 :]]
        return values[0]

    def _finish(
        self, x: Pointer, y: Pointer, channel: Value | int, total: Value, count: Value | int
    ) -> None:
        k, e = self.k, self.e
        scale = e.fma(total, e.const(self.kind, k.alpha / k.size), e.const(self.kind, k.bias))
        result = self._divided(self._load(x, channel, count), scale)
        e.store_first(result, y.at(self._offset(channel)), count)

    def _divided(self, x: Value, scale: Value) -> Value:
        """x / scale^beta; the usual beta, 3/4, needs square roots only."""
        e, beta = self.e, self.k.beta
        if beta == 1.0:
            return x / scale
        if beta not in (0.5, 0.75):
            return x * math.exp(e, math.log(e, scale) * -beta)
        root = e.unary("sqrt", scale)
        return x / (root if beta == 0.5 else root * e.unary("sqrt", root))


def lower(context: KernelContext) -> Lowered:
    """Return one call, of a `ResponseNorm`."""
    node, graph = context.node, context.graph
    (x,), y = node.inputs, node.output
    kind, a = graph.types[x], node.attributes
    images, channels, *spatial = kind.shape
    shape = (images, channels, prod(spatial))
    numbers = (float(a["alpha"]), float(a["beta"]), float(a["bias"]))
    kernel = ResponseNorm(kind.dtype, *shape, int(a["size"]), *numbers)
    in_place = (0,) if kernel.size <= LONGEST else ()
    return Lowered((Call(kernel, (x, y), in_place),), algorithm="lrn")
