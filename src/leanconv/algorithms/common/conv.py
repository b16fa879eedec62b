"""`Conv`, the record of a convolution, and `GroupedConv`, the base of kernels that hold one.

`Taps`: which taps touch the input at one output row. `batch_as_columns`: a batch of images that
give one pixel each, as the pixels of one image.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from math import prod
from typing import Any, TypeVar

import numpy as np

from leanconv.codegen.emitter import Function, Pointer, Value
from leanconv.codegen.epilogue import Epilogue
from leanconv.codegen.geometry import Access, PhasedAccess, Window, triple
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.lowered import PackCall
from leanconv.codegen.microkernel import ReductionLoop
from leanconv.kernels import packing
from leanconv.records import dataclass, replace
from leanconv.spec import ConvSpec
from leanconv.spec.conv import reduction_length, sum_flops, tensor_bytes
from leanconv.symbolic import Count, Extent
from leanconv.target import Target
from leanconv.types import FLOAT32, INT64, DType, Precision


@dataclass(frozen=True)
class Conv:
    """One convolution, or a part of one, with the strides of its operands.

    All sizes are those of the part: a phase of a transposed convolution, or a residue of a dilated
    one, is a convolution with a window of its own over tensors that it shares with the others.

    Attributes:
        batch, groups: images N and channel groups g.
        inputs, outputs: channels of one group.
        window: the sliding window along depth, height and width.
        x, y: strides of input and output; a residual has those of y.
        precision: element types of operands and sums.
        epilogue: bias, residual, activation.
        x_offset, y_offset: elements from the tensors' starts to the first ones read and written.
    """

    batch: Count
    groups: int
    inputs: int
    outputs: int
    window: Window
    x: Access
    y: Access
    precision: Precision
    epilogue: Epilogue
    x_offset: Extent = 0
    y_offset: Extent = 0

    @staticmethod
    def of(spec: ConvSpec, x: Access, y: Access) -> Conv:
        """The convolution of a spec whose operands have these strides."""
        window = Window(
            triple(spec.size, 1),
            triple(spec.output_size, 1),
            triple(spec.kernel, 1),
            triple(spec.stride, 1),
            triple(spec.dilation, 1),
            triple(spec.pad_begin, 0),
        )
        return Conv(
            batch=spec.batch,
            groups=spec.groups,
            inputs=spec.in_channels // spec.groups,
            outputs=spec.out_channels // spec.groups,
            window=window,
            x=x,
            y=y,
            precision=spec.precision,
            epilogue=Epilogue(spec.bias, spec.residual, spec.activation, spec.requantise),
        )

    @property
    def in_channels(self) -> int:
        """Input channels C of all groups."""
        return self.groups * self.inputs

    @property
    def out_channels(self) -> int:
        """Output channels K of all groups."""
        return self.groups * self.outputs

    @property
    def dtype(self) -> DType:
        """The one element type of everything.

        Raises:
            SpecError: operands have types of their own.
        """
        return self.precision.dtype

    @property
    def stored(self) -> DType | None:
        """The type of y and of a residual; None where it is that of the sums."""
        types = self.precision
        return None if types.y == types.accumulate else types.y

    def lanes(self, target: Target) -> int:
        """Lanes of a vector of sums."""
        return target.lanes(self.precision.accumulate)

    @property
    def row_count(self) -> int:
        """Output rows of one image: depth by height."""
        return self.window.out[0] * self.window.out[1]

    @property
    def reduction(self) -> int:
        """Products summed for one output, padding counted."""
        return reduction_length(self.inputs, self.window.kernel)

    @property
    def flops(self) -> int:
        """Floating point operations of the plain sum, padding counted."""
        return sum_flops(self.batch, self.out_channels, self.window.out, self.reduction)

    @property
    def input_bytes(self) -> int:
        """Bytes of the input."""
        return tensor_bytes((self.batch, self.in_channels, *self.window.size), self.precision.x)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights as given."""
        return tensor_bytes((self.out_channels, self.reduction), self.precision.w)

    @property
    def output_bytes(self) -> int:
        """Bytes of the output."""
        return tensor_bytes((self.batch, self.out_channels, *self.window.out), self.precision.y)


def merge_rows_of_columns(conv: Conv, width_of: Callable[[int], int]) -> Conv:
    """Make rows of another length where kernels are one tap wide: stride 1, no padding.

    Tap i of all outputs of an image of two axes is the same image, i rows further on: taps of a
    column become taps of the depth, which leads to these rows, and the rest is a 1x1 kernel.

    Args:
        conv, width_of: as of `merge_rows`.

    Returns:
        The same convolution with a kernel (kh, 1, 1) and one output along the depth, or itself.
    """
    window, x, y = conv.window, conv.x, conv.y
    _, taps, across = window.kernel
    _, h, w = window.out
    alone = window.is_flat and across == 1 < taps and window.stride == (1, 1, 1)
    if isinstance(y, PhasedAccess):
        return conv
    # Where the padding is less than none, rows begin behind the image's first.
    if not alone or window.size[2] != w or window.pad[1:] != (0, 0):
        return conv
    if not all(map(window.always_full, (1, 2))):
        return conv
    if any(access.spatial[1] != w * access.spatial[2] for access in (x, y)):
        return conv
    apart, width = window.dilation[1], width_of(h * w)
    rows = h * w // width
    merged = Window(
        size=((taps - 1) * apart + 1, rows, width),
        out=(1, rows, width),
        kernel=(taps, 1, 1),
        stride=(1, 1, 1),
        dilation=(apart, 1, 1),
        pad=(0, 0, 0),
    )

    def flatten(access: Access, depth: Extent) -> Access:
        step = access.spatial[2]
        return replace(access, spatial=(depth, width * step, step))

    x, y = flatten(x, x.spatial[1]), flatten(y, h * w * y.spatial[2])
    return replace(conv, window=merged, x=x, y=y)


def merge_rows(conv: Conv, width_of: Callable[[int], int] = lambda total: total) -> Conv:
    """Make rows of another length where that changes nothing: 1x1 kernels of stride 1.

    Args:
        conv: the convolution.
        width_of: chooses the new width, a divisor of the number of positions that it is given; one
            row if it is left out.

    Returns:
        The same convolution over (1, positions / width, width), or itself.
    """
    window, x, y = conv.window, conv.x, conv.y
    if not window.is_pointwise:
        return conv
    d, h, w = window.out
    for access in (x, y):
        step = access.spatial[2]
        if (h > 1 or d > 1) and access.spatial[1] != w * step:
            return conv
        if d > 1 and access.spatial[0] != h * w * step:
            return conv
    total = d * h * w
    width = width_of(total)
    flat = (1, total // width, width)

    def flatten(access: Access) -> Access:
        step = access.spatial[2]
        return replace(access, spatial=(total * step, width * step, step))

    flat_window = replace(window, size=flat, out=flat)
    return replace(conv, window=flat_window, x=flatten(x), y=flatten(y))


_Holder = TypeVar("_Holder")


def with_conv(holder: _Holder, **changes: Any) -> _Holder:
    """Replace fields of the `Conv` that a problem, shape or kernel holds."""
    held: Any = holder
    made: _Holder = replace(held, conv=replace(held.conv, **changes))
    return made


@dataclass(frozen=True)
class GroupedConv(Kernel):
    """The code of a convolution of any number of groups."""

    conv: Conv

    @property
    def operands(self) -> tuple[str, ...]:
        """Input, weights, what the epilogue needs, output."""
        return ("x", "w", *self.conv.epilogue.operands, "y")

    @property
    def code_shift(self) -> int:
        """Number that the kernel adds to every code of x; the bias must take it off. Mostly 0."""
        return 0

    @property
    def packing(self) -> Hashable:
        """Channels and taps, never the sizes of a map: all that packing depends on."""
        conv = self.conv
        shape = conv.groups, conv.inputs, conv.outputs, conv.window.kernel
        return type(self), shape, conv.precision, conv.epilogue.operands

    @property
    def constant_bytes(self) -> dict[str, int]:
        """Weights, perhaps in another order than given; what channels have beside, as given."""
        conv = self.conv
        weights = conv.out_channels * self.reduction * conv.precision.w.bytes
        channels = conv.epilogue.channel_bytes(conv.precision.accumulate, conv.out_channels)
        return {"w": weights, **channels}

    @property
    def reduction(self) -> int:
        """Products of one output, those with padding counted."""
        return self.conv.reduction

    @property
    def flops(self) -> int:
        """Operations of the plain sum, padding counted."""
        conv = self.conv
        return sum_flops(conv.batch, conv.out_channels, conv.window.out, self.reduction)

    @property
    def operand_types(self) -> dict[str, str]:
        """LLVM type of the elements of each operand."""
        types = self.conv.precision
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
        return e.pointers(self.operands, self.conv.precision.accumulate.llvm, **self.operand_types)

    def weight_calls(self, w: np.ndarray) -> list[PackCall]:
        """Return the calls that pack weights (K, C/g, kd, kh, kw), any view: as they are."""
        return packing.rows(w, self.conv.precision.w)

    def changing_weight_calls(self, w: np.ndarray) -> list[PackCall]:
        """Return the same calls for weights that change with each run."""
        return self.weight_calls(w)

    def channel_calls(self, values: np.ndarray) -> list[PackCall]:
        """Return the calls that pack one or more numbers per output channel: as they are."""
        return packing.copied(values)


K = TypeVar("K", bound=GroupedConv)


def gives_pixels(window: Window) -> bool:
    """Return whether every image gives one pixel, from a window that lies inside the image."""
    return prod(window.out) == 1 and window.pad == (0, 0, 0)


def batch_as_columns(kernel: K) -> K:
    """Make a batch of images that give one pixel each one row, whose columns are the images.

    The window then covers depth and height; the width becomes a part of the height, where it is one
    tap or there is no depth; the kernel is as it was where it cannot.
    """
    conv, window = kernel.conv, kernel.conv.window
    if window.kernel[2] != 1 and window.kernel[0] != 1:
        return kernel
    a, b = (1, 2) if window.kernel[2] != 1 else (0, 1)  # (kh, kw) -> (kd, kh)
    size = window.size[a], window.size[b], conv.batch
    taps = window.kernel[a], window.kernel[b], 1
    dilation = window.dilation[a], window.dilation[b], 1
    spatial = conv.x.spatial[a], conv.x.spatial[b], conv.x.image
    out = 1, 1, conv.batch
    return with_conv(
        kernel,
        batch=1,
        window=Window(size, out, taps, (1, 1, 1), dilation, (0, 0, 0)),
        x=replace(conv.x, spatial=spatial, image=0),
        y=replace(conv.y, spatial=(0, 0, conv.y.image), image=0),
    )


class Taps:
    """Bounds of the taps along depth (axis 0) or height (axis 1) at output position `o`.

    Args:
        e: the function under construction.
        window, axis: of the taps.
        o: the output position.
        any_size: whether one code is that of all sizes: it computes bounds even where all taps
            always touch the input.

    Attributes:
        start: input position of tap 0, negative in the padding.
        low, high: first tap that touches the input, and one past the last.
    """

    def __init__(
        self, e: Function, window: Window, axis: int, o: Value, any_size: bool = False
    ) -> None:
        kernel, step = window.kernel[axis], window.dilation[axis]
        self.start = o * window.stride[axis] - window.pad[axis]
        self.low: Value | int = 0
        self.high: Value | int = kernel
        self._condition: Value | None = None
        any_size = any_size and not window.size[axis] == 1 == window.out[axis]
        if not any_size and window.always_full(axis):
            return
        # ceil(-start / step) and floor((size - 1 - start) / step) + 1, kept from going negative
        low = e.smax(0 - self.start + (step - 1), 0) // step
        above = e.smax(window.size[axis] - 1 - self.start + step, 0) // step
        self.low, self.high = low, e.smin(above, kernel)
        if any_size or window.sometimes_empty(axis):
            self._condition = low.compare("slt", self.high)

    def loop(self, label: str, a_stride: int, b_stride: int) -> ReductionLoop:
        """The reduction loop over these taps."""
        return ReductionLoop(label, self.high, a_stride, b_stride, start=self.low)

    def guard(self, e: Function, acc: list[Value]) -> AbstractContextManager[None]:
        """Emit the body on the condition that a tap exists; the accumulators pass through."""
        return e.when(self._condition, [acc]) if self._condition else nullcontext()
