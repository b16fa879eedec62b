"""How many bytes packed constants will take, without packing them."""

from __future__ import annotations

from math import prod

from leanconv.algorithms.depthwise.kernel import DepthwiseConv
from leanconv.algorithms.direct.packed import PackedConv
from leanconv.algorithms.fft.kernel import FftConv
from leanconv.algorithms.fft.multiply import weight_elements as fft_weight_elements
from leanconv.algorithms.fused.rows import channel_elements, weight_elements
from leanconv.algorithms.interface import Candidate
from leanconv.algorithms.naive import NaiveConv
from leanconv.algorithms.planar.depthwise import PlanarDepthwise
from leanconv.algorithms.planar.kernel import PlanarConv
from leanconv.algorithms.planar.pointwise import PlanarPointwise
from leanconv.algorithms.problem import Problem
from leanconv.algorithms.unfold.kernels import BlockConv, ImageProduct, Serial
from leanconv.algorithms.unfold.window_dot import WindowDot
from leanconv.algorithms.winograd.kernel import WinogradConv
from leanconv.algorithms.winograd.stages import Gather, PointProducts
from leanconv.codegen.kernel import Kernel
from leanconv.dtypes import ITEMSIZE

_GIVEN = ("x", "y", "residual")
# Weights stand as they are given, or in another order; bias and slopes as they are given.
_AS_GIVEN = (PlanarConv, PlanarPointwise, PlanarDepthwise, NaiveConv, WindowDot)
_CHANNELS = ("bias", "slope")
_NUMBER_BYTES = 8  # of an image's number or a phase's place, an int64


def packed_bytes(problem: Problem, candidate: Candidate) -> dict[str, int]:
    """Bytes of each constant, by role, that the candidate's `pack` will return."""
    sizes: dict[str, int] = {}
    for use in candidate.kernels:
        for operand, role in zip(use.kernel.operands, use.roles, strict=True):
            if role in _GIVEN or role in candidate.temporaries:
                continue
            sizes[role] = _size(problem, use.kernel, operand)
    return sizes


def _size(problem: Problem, kernel: Kernel, operand: str) -> int:
    """Bytes of one constant operand of a kernel."""
    item = ITEMSIZE[problem.spec.dtype]
    per_channel = operand in _CHANNELS
    kernel, groups = _product(kernel), problem.spec.groups
    if operand == "image":
        return _NUMBER_BYTES
    if isinstance(kernel, PackedConv):
        if operand == "offsets":
            return kernel.phases * _NUMBER_BYTES
        if per_channel:
            return groups * channel_elements(kernel) * item
        return kernel.phases * groups * weight_elements(kernel) * item
    if isinstance(kernel, DepthwiseConv):
        if per_channel:
            return channel_elements(kernel) * item
        return weight_elements(kernel) * kernel.group_inputs * item
    if isinstance(kernel, WinogradConv | Gather):
        conv = kernel.conv if isinstance(kernel, Gather) else kernel.shape
        if operand == "places":
            return 2 * conv.places * _NUMBER_BYTES
        panels = conv.groups * conv.panels * conv.panel_lanes
        return panels * item if per_channel else conv.weight_bytes
    if isinstance(kernel, PointProducts):
        return kernel.points * kernel.whole.group_weights * item
    if isinstance(kernel, FftConv):
        layout = kernel.layout
        if not per_channel:
            return fft_weight_elements(layout) * item
        vectors = layout.outer if layout.depthwise else layout.groups * layout.group_vectors
        return vectors * layout.lanes * item
    assert isinstance(kernel, _AS_GIVEN), f"{kernel.NAME} {type(kernel).__name__}"
    taps = 1 if per_channel else problem.group_inputs * prod(problem.window.kernel)
    return problem.spec.out_channels * taps * item


def _product(kernel: Kernel) -> Kernel:
    """The kernel whose constants another one takes."""
    if isinstance(kernel, Serial):
        return _product(kernel.kernel)
    if isinstance(kernel, BlockConv):
        return kernel.whole.product
    return kernel.product if isinstance(kernel, ImageProduct) else kernel
