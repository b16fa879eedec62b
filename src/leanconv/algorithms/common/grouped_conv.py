"""Base of the kernels that take any number of groups."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from leanconv.codegen.emitter import Function, Pointer
from leanconv.codegen.epilogue import Epilogue
from leanconv.codegen.extents import Extent
from leanconv.codegen.geometry import Access, Window
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.lowered import PackCall
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
