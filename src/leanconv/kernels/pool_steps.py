"""What the kernels of MaxPool and AveragePool share: rows, joining taps, and which taps count."""

from __future__ import annotations

from math import prod

from leanconv.codegen import math
from leanconv.codegen.emitter import Function, Value, vector
from leanconv.codegen.extents import Extent
from leanconv.codegen.geometry import Window
from leanconv.kernels.items import OfItems
from leanconv.kernels.typed_steps import extreme
from leanconv.records import dataclass
from leanconv.target import Target
from leanconv.types import INT32, DType


@dataclass(frozen=True)
class PoolOfRows(OfItems):
    """Pool `planes` (images times channels) between plain tensors, row by row of results.

    Attributes:
        dtype: of the elements.
        planes: number of maps.
        window: extents before and after, kernel, strides, dilations and padding before.
    """

    VARIES = True

    dtype: DType
    planes: Extent
    window: Window

    @property
    def items(self) -> int:
        """Rows of results in all."""
        return self.planes * self.window.out[0] * self.window.out[1]

    @property
    def flops(self) -> int:
        return self.items * self.window.out[2] * prod(self.window.kernel)


class RowLoops:
    """What the loops of such a kernel are written with.

    Attributes:
        e: the function that they are written to.
        w: the window.
        lanes, element, kind: of a vector along columns.
    """

    def __init__(self, kernel: PoolOfRows, target: Target) -> None:
        self.e, self.w = Function(kernel.NAME), kernel.window
        self.lanes, self.element = lanes_of(kernel.dtype, target), kernel.dtype.llvm
        self.kind = vector(self.element, self.lanes)

    def plane(self, row: Value) -> Value:
        """The map of a row of results."""
        return row // (self.w.out[0] * self.w.out[1])

    def place(self, row: Value, axis: int) -> Value:
        """The depth (axis 0) or height (1) of a row of results in its map."""
        depths, heights = self.w.out[:2]
        return row % heights if axis else row // heights % depths


def lanes_of(dtype: DType, target: Target) -> int:
    """Elements of a vector along columns: as many as there are positions of 32 bits in one."""
    return target.lanes(dtype if dtype.bytes >= INT32.bytes else INT32)


def start(e: Function, dtype: DType, average: bool, kind: str) -> Value:
    """What a window without taps holds: 0, or the least number."""
    if not dtype.is_float:
        return e.const(kind, int(dtype.low))
    return e.const(kind, 0.0 if average else float("-inf"))


def joined(
    e: Function, dtype: DType, average: bool, acc: Value, a: Value, b: Value | None = None
) -> Value:
    """The sum or the maximum with one tap more, or with two; `maximum(a, acc)` keeps NaN."""
    if average:
        return acc + a if b is None else acc + a + b
    if not dtype.is_float:
        for x in (a, b):
            acc = acc if x is None else extreme(e, dtype, "max", acc, x)
        return acc
    if b is None:
        return math.larger(e, a, acc)
    return e.select(a.compare("uno", b), a + b, e.maximum(e.maximum(a, b), acc))


def taps_within(
    e: Function, w: Window, axis: int, o: Value, low: int, high: int
) -> tuple[Value, Value]:
    """The first tap whose input coordinate is in [low, high), and one past the last."""
    step = w.dilation[axis]
    begin = o * w.stride[axis] - w.pad[axis]
    before = e.smax(low - begin, 0)
    room = e.smax(high - begin, 0)
    first = (before + (step - 1)) // step
    return first, e.smin((room + (step - 1)) // step, w.kernel[axis])
