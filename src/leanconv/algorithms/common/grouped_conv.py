"""Base of the kernels that take any number of groups, and what they share.

`Taps`: which taps touch the input at one output row. `batch_as_columns`: a batch of images that
give one pixel each, as the pixels of one image.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from math import prod
from typing import TypeVar

import numpy as np

from leanconv.codegen.emitter import Function, Pointer, Value
from leanconv.codegen.epilogue import Epilogue
from leanconv.codegen.extents import Extent
from leanconv.codegen.geometry import Access, Window
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.lowered import PackCall
from leanconv.codegen.microkernel import ReductionLoop
from leanconv.kernels import packing
from leanconv.records import dataclass
from leanconv.spec.amounts import reduction_length, sum_flops
from leanconv.types import FLOAT32, INT64, DType, Precision


@dataclass(frozen=True)
class GroupedConv(Kernel):
    """One convolution's code.

    Attributes:
        batch, groups: N and g.
        inputs, outputs: channels of one group.
        window: the sliding window.
        x, y: strides of input and output; a residual has those of y.
        precision: element types of operands and sums.
        epilogue: bias, residual, activation.
    """

    batch: Extent
    groups: int
    inputs: int
    outputs: int
    window: Window
    x: Access
    y: Access
    precision: Precision
    epilogue: Epilogue

    @property
    def operands(self) -> tuple[str, ...]:
        """Input, weights, what the epilogue needs, output."""
        return ("x", "w", *self.epilogue.operands, "y")

    @property
    def code_shift(self) -> int:
        """What the kernel adds to every code of x, so that the bias must take it off; mostly 0."""
        return 0

    @property
    def dtype(self) -> DType:
        """The one element type of everything, in kernels that take no other precision."""
        return self.precision.dtype

    @property
    def stored(self) -> DType | None:
        """The type of y and of a residual; None where it is that of the sums."""
        types = self.precision
        return None if types.y == types.accumulate else types.y

    @property
    def packing(self) -> Hashable:
        """Channels and taps: what packing looks at, and never the sizes of a map."""
        shape = self.groups, self.inputs, self.outputs, self.window.kernel
        return type(self), shape, self.precision, self.epilogue.operands

    @property
    def constant_bytes(self) -> dict[str, int]:
        """Weights, perhaps in another order than given; what channels have beside, as given."""
        weights = self.out_channels * self.reduction * self.precision.w.bytes
        return {
            "w": weights,
            **self.epilogue.channel_bytes(self.precision.accumulate, self.out_channels),
        }

    @property
    def out_channels(self) -> int:
        """Output channels of all groups."""
        return self.groups * self.outputs

    @property
    def row_count(self) -> int:
        """Output rows of one image: depth by height."""
        return self.window.out[0] * self.window.out[1]

    @property
    def reduction(self) -> int:
        """Products of one output, those with padding counted."""
        return reduction_length(self.inputs, self.window.kernel)

    @property
    def flops(self) -> int:
        """Operations of the plain sum, padding counted."""
        return sum_flops(self.batch, self.out_channels, self.window.out, self.reduction)

    @property
    def operand_types(self) -> dict[str, str]:
        """LLVM type of the elements of each operand."""
        types = self.precision
        others = {
            "x": types.x,
            "w": types.w,
            "residual": types.y,
            "scale": FLOAT32,
            "quantisation": FLOAT32,
            "y": types.y,
            "offsets": INT64,
        }
        return {name: others.get(name, types.accumulate).llvm for name in self.operands}

    def addresses(self, e: Function) -> dict[str, Pointer]:
        """Load the addresses of the operands, each of its type."""
        return e.pointers(self.operands, self.precision.accumulate.llvm, **self.operand_types)

    def weight_calls(self, w: np.ndarray) -> list[PackCall]:
        """What packs weights (K, C/g, kd, kh, kw), any view, as the kernel reads them: as given."""
        return packing.rows(w, self.precision.w)

    def channel_calls(self, values: np.ndarray) -> list[PackCall]:
        """What packs a number for each output channel (bias, slope), or several: as given."""
        return packing.copied(values)


K = TypeVar("K", bound=GroupedConv)


def gives_pixels(window: Window) -> bool:
    """Whether every image gives one pixel, and its window lies inside it."""
    return prod(window.out) == 1 and window.pad == (0, 0, 0)


def batch_as_columns(kernel: K) -> K:
    """A batch of such images as one row, whose columns are the images.

    The window then covers depth and height; the width becomes a part of the height, where it is one
    tap or there is no depth; the kernel is as it was where it cannot.
    """
    window = kernel.window
    if window.kernel[2] != 1 and window.kernel[0] != 1:
        return kernel
    a, b = (1, 2) if window.kernel[2] != 1 else (0, 1)  # (kh, kw) -> (kd, kh)
    size = window.size[a], window.size[b], kernel.batch
    taps = window.kernel[a], window.kernel[b], 1
    dilation = window.dilation[a], window.dilation[b], 1
    spatial = kernel.x.spatial[a], kernel.x.spatial[b], kernel.x.image
    out = 1, 1, kernel.batch
    return replace(
        kernel,
        batch=1,
        window=Window(size, out, taps, (1, 1, 1), dilation, (0, 0, 0)),
        x=replace(kernel.x, spatial=spatial, image=0),
        y=replace(kernel.y, spatial=(0, 0, kernel.y.image), image=0),
    )


class Taps:
    """Bounds of the taps along depth (axis 0) or height (axis 1) at output position `o`.

    Attributes:
        start: input position of tap 0, negative in the padding.
        low, high: first tap that touches the input, and one past the last.
    """

    def __init__(self, e: Function, window: Window, axis: int, o: Value) -> None:
        kernel, step = window.kernel[axis], window.dilation[axis]
        self.start = o * window.stride[axis] - window.pad[axis]
        self.low: Value | int = 0
        self.high: Value | int = kernel
        self._condition: Value | None = None
        if window.always_full(axis):
            return
        # ceil(-start / step) and floor((size - 1 - start) / step) + 1, kept from going negative
        low = e.smax(0 - self.start + (step - 1), 0) // step
        above = e.smax(window.size[axis] - 1 - self.start + step, 0) // step
        self.low, self.high = low, e.smin(above, kernel)
        if window.sometimes_empty(axis):
            self._condition = low.compare("slt", self.high)

    def loop(self, label: str, a_stride: int, b_stride: int) -> ReductionLoop:
        """The reduction loop over these taps."""
        return ReductionLoop(label, self.high, a_stride, b_stride, start=self.low)

    def guard(self, e: Function, acc: list[Value]) -> AbstractContextManager[None]:
        """Emit the body on the condition that a tap exists; the accumulators pass through."""
        return e.when(self._condition, [acc]) if self._condition else nullcontext()
