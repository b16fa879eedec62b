"""The kernel of tiled Fourier transforms: a chunk takes a block of tiles through all steps.

Transform, products by the micro-kernel, transform back, epilogue: the workspace belongs to the
thread and does not grow with the image.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import prod

import numpy as np

from leanconv.algorithms.fft.layout import FftLayout
from leanconv.algorithms.fft.multiply import multiply
from leanconv.algorithms.fft.transform import Transforms
from leanconv.codegen.emitter import Function
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.lowered import PackCall
from leanconv.kernels.packing import channels
from leanconv.records import dataclass
from leanconv.spec.amounts import reduction_length, sum_flops
from leanconv.target import Target


@dataclass(frozen=True)
class FftConv(Kernel):
    """One convolution's code: a chunk is a block of tiles of one group."""

    VARIES = True

    layout: FftLayout

    @property
    def operands(self) -> tuple[str, ...]:
        """Input, transformed weights, what the epilogue needs, output."""
        return ("x", "w", *self.layout.epilogue.operands, "y")

    @property
    def chunks(self) -> int:
        """Groups (or vectors of channels) by slices of their outputs by blocks of tiles."""
        return self.layout.outer * self.layout.splits * prod(self.layout.blocks)

    @property
    def scratch_bytes(self) -> int:
        """The bins of a block, one half-transformed tile, one row."""
        return self.layout.scratch_offsets[2] * self.layout.item

    @property
    def flops(self) -> int:
        """Operations of the plain sum, padding counted, as for every algorithm."""
        layout = self.layout
        axes, channels = (layout.height, layout.width), layout.groups * layout.outputs
        reduction = reduction_length(layout.inputs, (axis.kernel for axis in axes))
        return sum_flops(layout.batch, channels, (axis.out for axis in axes), reduction)

    @property
    def packing(self) -> Hashable:
        """Channels, taps, transform and products; the step where it cuts the kernel."""
        layout = self.layout
        axes = [
            (a.kernel, a.stride, a.dilation, a.length, a.parts, a.parts > 1 and a.step)
            for a in (layout.height, layout.width)
        ]
        channels = layout.groups, layout.inputs, layout.outputs, layout.depthwise
        products = layout.products, layout.splits, layout.tile.vectors, layout.lanes
        operands = layout.epilogue.operands
        return FftConv, tuple(axes), channels, products, layout.dtype, operands

    @property
    def constant_bytes(self) -> dict[str, int]:
        """Transformed weights; bias and slopes in whole vectors."""
        layout = self.layout
        vectors = layout.outer if layout.depthwise else layout.groups * layout.group_vectors
        weights = layout.weight_elements * layout.item
        return {"w": weights, **layout.epilogue.channel_bytes(layout.dtype, vectors * layout.lanes)}

    def channel_calls(self, values: np.ndarray) -> list[PackCall]:
        """What packs a number for each output channel (bias, slope), zero past a group's last."""
        layout = self.layout
        if layout.depthwise:
            return channels(values, values.shape[-1], layout.outer * layout.lanes)
        return channels(values, layout.outputs, layout.group_vectors * layout.lanes)

    def emit(self, target: Target) -> str:
        """Emit: for each chunk transform, multiply, transform back."""
        layout = self.layout
        e = Function(self.NAME)
        pointers = e.pointers(self.operands, layout.dtype.llvm)
        with e.chunks(layout.outer, layout.splits, *layout.blocks) as (outer, split, *block):
            transforms = Transforms(e, layout, target, pointers, outer, split, block)
            transforms.forward()
            weights = (outer * layout.splits + split) * (layout.bins * layout.bin_weights)
            multiply(e, layout, pointers["w"].at(weights))
            transforms.inverse()
        return e.finish()
