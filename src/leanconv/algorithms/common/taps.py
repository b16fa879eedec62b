"""The taps of a window that touch the input at one output row, as values that a kernel computes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from leanconv.codegen.emitter import Function, Value
from leanconv.codegen.geometry import Window
from leanconv.codegen.microkernel import ReductionLoop


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
