"""How many bytes packed constants will take, without packing them."""

from __future__ import annotations

from math import prod

import numpy as np

from leanconv.algorithms.depthwise import DepthwiseConv
from leanconv.algorithms.direct_kernel import DirectConv
from leanconv.algorithms.fft import FftConv
from leanconv.algorithms.fft_multiply import weight_elements as fft_weight_elements
from leanconv.algorithms.inverted_residual_rows import channel_elements, weight_elements
from leanconv.algorithms.planar import PlanarConv
from leanconv.algorithms.problem import Candidate, Problem
from leanconv.algorithms.winograd_kernel import WinogradConv
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.types import ITEMSIZE

_GIVEN = ("x", "y", "residual")
_CHANNELS = ("bias", "slope")


def packed_bytes(problem: Problem, candidate: Candidate) -> dict[str, int]:
    """Bytes of each constant, by role, that the candidate's `pack` will return."""
    sizes: dict[str, int] = {}
    for piece in candidate.pieces:
        for operand, role in zip(piece.kernel.operands, piece.roles, strict=True):
            if role in _GIVEN or role in candidate.temporaries:
                continue
            size = _size(problem, piece.kernel, operand)
            if size is None:
                return _packed(problem, candidate)
            sizes[role] = size
    return sizes


def _size(problem: Problem, kernel: Kernel, operand: str) -> int | None:
    """Bytes of one constant operand of a kernel; None where only packing can tell."""
    item = ITEMSIZE[problem.spec.dtype]
    per_channel = operand in _CHANNELS
    if isinstance(kernel, PlanarConv):
        taps = 1 if per_channel else problem.group_inputs * prod(problem.window.kernel)
        return problem.spec.out_channels * taps * item
    if isinstance(kernel, DirectConv):
        count = channel_elements(kernel) if per_channel else weight_elements(kernel)
        return kernel.groups * count * item
    if isinstance(kernel, DepthwiseConv):
        if per_channel:
            return channel_elements(kernel) * item
        return weight_elements(kernel) * kernel.group_inputs * item
    if isinstance(kernel, WinogradConv):
        panels = kernel.groups * kernel.panels * kernel.panel_lanes
        return panels * item if per_channel else kernel.weight_bytes
    if isinstance(kernel, FftConv):
        if not per_channel:
            return fft_weight_elements(kernel.layout) * item
        values = np.zeros(problem.spec.out_channels, problem.spec.dtype)
        return int(kernel.pack_channels(values).nbytes)
    return None


def _packed(problem: Problem, candidate: Candidate) -> dict[str, int]:
    """The bytes of constants that were packed to see how many they are."""
    spec = problem.spec
    rank = len(spec.kernel)
    kernel = problem.window.kernel[3 - rank :]
    w = np.zeros((spec.out_channels, problem.group_inputs, *kernel), spec.dtype)
    channels = {"bias": np.zeros(spec.out_channels, spec.dtype)} if spec.bias else {}
    if spec.activation is not None and spec.activation.kind == "prelu":
        channels["slope"] = np.zeros(spec.out_channels, spec.dtype)
    return {role: array.nbytes for role, array in candidate.pack(w, channels).items()}
