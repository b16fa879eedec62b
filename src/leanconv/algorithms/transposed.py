"""Transposed convolutions as ordinary ones: one for each phase of the output."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import gcd

import numpy as np

from leanconv.algorithms.problem import DEFAULT_ERROR, Problem
from leanconv.codegen.geometry import Access, Triple, Window, triple
from leanconv.errors import UnsupportedError
from leanconv.graph.ir import Graph, Node
from leanconv.spec import ConvSpec
from leanconv.spec.format import ceil_div

_MOST_PHASES = 1024  # a stride of 32 along two axes


def phases(
    node: Node, graph: Graph, x: Access, y: Access, w: np.ndarray, max_error: float | None
) -> list[tuple[Problem, np.ndarray]]:
    """Split a transposed convolution by the output's position modulo the stride.

    Output o (one axis) gets x[i]·w[k] for o + pad = i·stride + k·dilation: at the positions of one
    phase that is an ordinary convolution of stride 1 with some of the taps, backwards.

    Args:
        node: a ConvTranspose.
        graph: types of its values.
        x, y: where input and output lie.
        w: weights (C, K / groups, k…).
        max_error: relative error accepted of the layer; the default of one layer if None.

    Returns:
        Each phase with its weights (K, C / groups, taps…).

    Raises:
        UnsupportedError: there are too many phases.
    """
    attributes = node.attributes
    in_shape, out_shape = graph.types[node.inputs[0]].shape, graph.types[node.outputs[0]].shape
    rank, groups = len(in_shape) - 2, attributes["group"]
    size, out = triple(in_shape[2:], 1), triple(out_shape[2:], 1)
    kernel, stride = triple(w.shape[2:], 1), triple(tuple(attributes["strides"]), 1)
    dilation = triple(tuple(attributes["dilations"]), 1)
    pad = triple(tuple(attributes["pads"][:rank]), 0)
    axes = [
        [
            phase
            for p in range(stride[a])
            if (phase := _phase(size[a], out[a], kernel[a], stride[a], dilation[a], pad[a], p))
        ]
        for a in range(3)
    ]
    count = len(axes[0]) * len(axes[1]) * len(axes[2])
    if count > _MOST_PHASES:
        raise UnsupportedError(
            f"node {node.name!r} (ConvTranspose): strides {attributes['strides']} split the output "
            f"into {count} phases with a kernel each; expected at most {_MOST_PHASES}"
        )
    # (C, K/g, k…) -> (g, C/g, K/g, k…) -> (K, C/g, k…)
    outputs = w.shape[1]
    grouped = w.reshape(groups, w.shape[0] // groups, outputs, *kernel).swapaxes(1, 2)
    turned = grouped.reshape(groups * outputs, w.shape[0] // groups, *kernel)
    spec = ConvSpec(
        batch=in_shape[0],
        in_channels=in_shape[1],
        out_channels=out_shape[1],
        size=size,
        kernel=(1, 1, 1),
        stride=(1, 1, 1),
        dilation=(1, 1, 1),
        pad_begin=(0, 0, 0),
        pad_end=(0, 0, 0),
        groups=groups,
        dtype=graph.types[node.inputs[0]].dtype,
        bias=bool(node.input(2)),
        activation=attributes["activation"],
    )
    limit = DEFAULT_ERROR[spec.dtype] if max_error is None else max_error
    pieces = []
    for d in axes[0]:
        for h in axes[1]:
            for v in axes[2]:
                part = (d, h, v)
                taps = turned[:, :, d.taps][:, :, :, h.taps][:, :, :, :, v.taps]
                window = Window(
                    size,
                    _triple(p.count for p in part),
                    _triple(len(p.taps) for p in part),
                    (1, 1, 1),
                    _triple(p.dilation for p in part),
                    _triple(p.pad for p in part),
                )
                steps = _triple(s * t for s, t in zip(y.spatial, stride, strict=True))
                offset = sum(p.first * s for p, s in zip(part, y.spatial, strict=True))
                place = replace(y, spatial=steps)
                problem = Problem(spec, x, place, window, offset, limit)
                pieces.append((problem, np.ascontiguousarray(taps)))
    return pieces


def _triple(values: Iterable[int]) -> Triple:
    d, h, w = values
    return d, h, w


@dataclass(frozen=True)
class _Phase:
    """One phase along one axis.

    Attributes:
        first, count: its outputs `first + i * stride`, i < count.
        taps: its taps, last first.
        dilation, pad: of the convolution of stride 1 that computes it.
    """

    first: int
    count: int
    taps: list[int]
    dilation: int
    pad: int


def _phase(
    size: int, out: int, kernel: int, stride: int, dilation: int, pad: int, p: int
) -> _Phase | None:
    """The phase p: outputs o with (o + pad) % stride == p; None if there are none."""
    start = max(0, ceil_div(pad - p, stride))
    first = start * stride + p - pad
    count = ceil_div(out - first, stride) if first < out else 0
    if count <= 0:
        return None
    taps = [k for k in range(kernel) if (k * dilation - p) % stride == 0]
    if not taps:
        # One tap that never touches the input: the output is the bias alone.
        return _Phase(first, count, [0], 1, -size - count)
    step = dilation // gcd(dilation, stride)
    begin = (taps[0] * dilation - p) // stride
    # i = start + u - begin - t·step for tap t; backwards, tap t' = T-1-t adds t'·step.
    reach = begin + (len(taps) - 1) * step
    return _Phase(first, count, taps[::-1], step, reach - start)
