"""Random convolutions for Hypothesis, their arrays, between guards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

import leanconv as lc
from leanconv.reference.direct import convolve
from leanconv.spec import Activation, ConvSpec
from leanconv.spec.conv import effective_extent
from leanconv.types import FLOAT32
from support.guarded import Guarded

CHANNELS = st.one_of(st.integers(1, 9), st.sampled_from([15, 16, 17, 31, 32, 33]))
COLUMNS = st.one_of(st.integers(1, 20), st.sampled_from([28, 31, 32, 33, 47, 49]))
# Activations that keep whole numbers whole, and the others.
EXACT: tuple[str | Activation | None, ...] = (
    None,
    "relu",
    "relu6",
    "clip:-3:11",
    "prelu",
    Activation("relu", affine=(3.0, -2.0)),
    Activation("clip", (-3.0, 11.0), before_residual=True),
    Activation("prelu", affine=(-2.0, 5.0), before_residual=True),
)
SMOOTH: tuple[str | Activation, ...] = (
    "leaky_relu:0.2",
    "sigmoid",
    "silu",
    "hard_sigmoid",
    "hard_swish",
    "tanh",
    "gelu",
    "gelu_tanh",
    "elu",
    "clip:-0.5:0.25",
    Activation("hard_swish", affine=(0.75, 0.5)),
    Activation("silu", before_residual=True),
)


@dataclass(frozen=True)
class Problem:
    """A spec, the arguments of `plan_conv2d` that mean it, and a seed for its arrays."""

    spec: ConvSpec
    seed: int

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of `plan_conv2d`, bias, slope and residual apart."""
        spec = self.spec
        activation = spec.activation
        return {
            "stride": spec.stride,
            "padding": spec.pad_begin + spec.pad_end,
            "dilation": spec.dilation,
            "groups": spec.groups,
            "activation": activation,
            "layout": spec.layout,
        }

    def arrays(self, whole: bool) -> Arrays:
        """Small whole numbers, or numbers between -1 and 1."""
        rng, spec = np.random.default_rng(self.seed), self.spec

        def draw(shape: tuple[int, ...]) -> np.ndarray:
            values = rng.integers(-3, 4, shape) if whole else rng.uniform(-1, 1, shape)
            return values.astype(spec.dtype)

        prelu = spec.activation is not None and spec.activation.kind == "prelu"
        return Arrays(
            Guarded(draw(spec.input_shape), aligned=False).array,
            draw(spec.weight_shape),
            draw((spec.out_channels,)) if spec.bias else None,
            draw(spec.output_shape) if spec.residual else None,
            draw((spec.out_channels,)) if prelu else None,
        )

    def expected(self, arrays: Arrays, whole: bool) -> np.ndarray:
        """The oracle's answer: int64 for whole numbers (prelu: exact in float64), else float64."""
        dtype = np.int64 if whole else np.float64
        given = (arrays.x, arrays.w, arrays.bias, arrays.residual, arrays.slope)
        return convolve(self.spec, *(None if a is None else a.astype(dtype) for a in given))


@dataclass(frozen=True)
class Arrays:
    """The operands of one call."""

    x: np.ndarray
    w: np.ndarray
    bias: np.ndarray | None
    residual: np.ndarray | None
    slope: np.ndarray | None


ANY_CHANNELS = ("dense", "dense", "grouped", "narrow", "depthwise")


@st.composite
def _channels(draw: st.DrawFn, kinds: tuple[str, ...]) -> tuple[int, int, int]:
    """Groups, input and output channels in all."""
    kind = draw(st.sampled_from(kinds))
    if kind == "dense":
        return 1, draw(CHANNELS), draw(CHANNELS)
    if kind == "depthwise":
        groups = draw(CHANNELS)
        return groups, groups, groups * draw(st.integers(1, 3))
    if kind == "narrow":
        groups, width = draw(st.integers(2, 12)), st.sampled_from([1, 2, 4, 8])
        return groups, groups * draw(width), groups * draw(width)
    groups = draw(st.integers(2, 4))
    return groups, groups * draw(CHANNELS), groups * draw(CHANNELS)


@st.composite
def _axis(draw: st.DrawFn, sizes: st.SearchStrategy[int], taps: int) -> tuple[int, ...]:
    """Size, kernel, stride, dilation, pads of one axis; the kernel fits."""
    size, kernel = draw(sizes), draw(st.integers(1, taps))
    stride, dilation = draw(st.sampled_from([1, 1, 1, 2, 2, 3, 5])), draw(st.integers(1, 3))
    span = effective_extent(kernel, dilation)
    most = draw(st.sampled_from([0, span - 1, span + 2]))  # none, usual, windows beside the input
    begin, end = draw(st.integers(0, most)), draw(st.integers(0, most))
    return size, kernel, stride, dilation, begin, max(end, span - size - begin)


@st.composite
def _epilogue(draw: st.DrawFn, activations: tuple[str | None, ...]) -> tuple[Any, ...]:
    """Layout, bias, residual, activation."""
    return (
        draw(st.sampled_from(["NCHW", "NHWC"])),
        draw(st.booleans()),
        draw(st.booleans()),
        Activation.parse(draw(st.sampled_from(activations))),
    )


@st.composite
def problems(
    draw: st.DrawFn,
    activations: tuple[str | None, ...],
    dtypes: tuple[str, ...] = (FLOAT32,),
    flat: bool = False,
    channels: tuple[str, ...] = ANY_CHANNELS,
) -> Problem:
    """Any convolution of item 3: rank, strides, dilations, pads, groups, layout, epilogue.

    Args:
        activations: to draw from.
        dtypes: to draw from.
        flat: one or two axes: what transforms are made for.
        channels: kinds of groups to draw from.
    """
    rank = draw(st.sampled_from([1, 2, 2] if flat else [1, 2, 2, 2, 3]))
    outer = st.integers(1, 9 if rank < 3 else 4)
    axes = [draw(_axis(outer, 5 if rank < 3 else 3)) for _ in range(rank - 1)]
    axes.append(draw(_axis(COLUMNS, 7 if rank < 3 else 3)))
    size, kernel, stride, dilation, begin, end = zip(*axes, strict=True)
    groups, inputs, outputs = draw(_channels(channels))
    batch = draw(st.sampled_from([1, 1, 2, 3]))
    spec = ConvSpec(
        batch,
        inputs,
        outputs,
        size,
        kernel,
        stride,
        dilation,
        begin,
        end,
        groups,
        draw(st.sampled_from(dtypes)),
        *draw(_epilogue(activations)),
    )
    return Problem(spec, draw(st.integers(0, 2**16)))


@st.composite
def long_kernels(
    draw: st.DrawFn,
    activations: tuple[str | None, ...],
    dtypes: tuple[str, ...] = (FLOAT32,),
) -> Problem:
    """Kernels of up to 31 x 31, over maps smaller and larger than they are; often depthwise."""
    rank = draw(st.sampled_from([1, 2, 2]))
    lengths = st.sampled_from([3, 7, 9, 11, 15, 16, 17, 20, 31])
    axes = []
    for _ in range(rank):
        kernel, size = draw(lengths), draw(st.integers(1, 70 if rank == 1 else 40))
        stride = draw(st.sampled_from([1, 1, 1, 2, 3]))
        dilation = draw(st.sampled_from([1, 1, 2])) if stride == 1 and kernel < 16 else 1
        span = effective_extent(kernel, dilation)
        begin, end = draw(st.integers(0, span - 1)), draw(st.integers(0, span - 1))
        axes.append((size, kernel, stride, dilation, begin, max(end, span - size - begin)))
    size, kernel, stride, dilation, begin, end = zip(*axes, strict=True)
    groups = draw(st.sampled_from([1, 1, 2, 5, 16, 17]))
    inputs, outputs = (1, 1) if groups > 2 else (draw(st.integers(1, 5)), draw(st.integers(1, 17)))
    spec = ConvSpec(
        draw(st.sampled_from([1, 1, 2])),
        groups * inputs,
        groups * outputs,
        size,
        kernel,
        stride,
        dilation,
        begin,
        end,
        groups,
        draw(st.sampled_from(dtypes)),
        *draw(_epilogue(activations)),
    )
    return Problem(spec, draw(st.integers(0, 2**16)))


def run_planned(
    problem: Problem, w: np.ndarray, algorithm: str, threads: int = 1, whole: bool = False
) -> tuple[np.ndarray, float]:
    """Plan, and run twice into a guarded array full of NaN; also the stated error.

    Args:
        problem, whole: of which all arrays but the weights are.
        w: the weights.
        algorithm: that is named.
        threads: that take part.
    """
    spec, arrays = problem.spec, problem.arrays(whole)
    plan = lc.plan_conv2d(
        spec.input_shape,
        w,
        arrays.bias,
        residual=spec.residual,
        slope=arrays.slope,
        algorithm=algorithm,
        threads=threads,
        **problem.options,
    )
    assert plan.algorithm == algorithm
    assert plan.used_bytes == plan.memory_bytes
    out = Guarded.unwritten(spec.output_shape, spec.dtype)
    for _ in range(2):  # nothing may depend on what an earlier run left in the workspace
        out.array[...] = np.nan
        plan(arrays.x, out=out.array, residual=arrays.residual)
    out.check()
    return out.array, plan.predicted_error
