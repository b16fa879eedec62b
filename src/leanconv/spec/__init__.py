"""Specs of convolutions, and the layouts of tensors in memory."""

from leanconv.spec.activation import Activation
from leanconv.spec.conv import ConvSpec, effective_extent, output_extent
from leanconv.spec.format import NHWC, PLAIN, Format, ceil_div

__all__ = [
    "NHWC",
    "PLAIN",
    "Activation",
    "ConvSpec",
    "Format",
    "ceil_div",
    "effective_extent",
    "output_extent",
]
