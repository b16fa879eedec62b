"""Base of the kernels that take any number of groups."""

from __future__ import annotations

from dataclasses import dataclass

from leanconv.codegen.epilogue import Epilogue
from leanconv.codegen.geometry import Access, Window
from leanconv.codegen.kernel import Kernel
from leanconv.dtypes import ITEMSIZE
from leanconv.spec.amounts import reduction_length, sum_flops


@dataclass(frozen=True)
class GroupedConv(Kernel):
    """One convolution's code.

    Attributes:
        batch, groups: N and g.
        inputs, outputs: channels of one group.
        window: the sliding window.
        x, y: strides of input and output; a residual has those of y.
        dtype: `"float32"` or `"float64"`.
        epilogue: bias, residual, activation.
    """

    batch: int
    groups: int
    inputs: int
    outputs: int
    window: Window
    x: Access
    y: Access
    dtype: str
    epilogue: Epilogue

    @property
    def operands(self) -> tuple[str, ...]:
        """Input, weights, what the epilogue needs, output."""
        return ("x", "w", *self.epilogue.operands, "y")

    @property
    def constant_bytes(self) -> dict[str, int]:
        """Weights, perhaps in another order than given; bias and slopes as given."""
        outputs = self.groups * self.outputs
        weights = outputs * self.reduction * ITEMSIZE[self.dtype]
        return {"w": weights, **self.epilogue.channel_bytes(self.dtype, outputs)}

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
        channels = self.groups * self.outputs
        return sum_flops(self.batch, channels, self.window.out, self.reduction)
