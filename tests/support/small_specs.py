"""Random specs for the reference algorithms: small, since some of them are seven Python loops."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from leanconv.spec import Activation, ConvSpec
from leanconv.spec.conv import effective_extent
from leanconv.types import FLOAT64


@st.composite
def specs(
    draw: st.DrawFn, plain: bool, most_taps: int = 5, activations: tuple[str | None, ...] = (None,)
) -> ConvSpec:
    """A convolution; `plain` ones are what the documents have: two axes, no padding, one group."""
    rank = 2 if plain else draw(st.integers(1, 3))
    axes = []
    for _ in range(rank):
        kernel, stride = draw(st.integers(1, most_taps)), draw(st.integers(1, 4))
        dilation = 1 if plain else draw(st.integers(1, 4))
        span = effective_extent(kernel, dilation)
        begin, end = (0, 0) if plain else (draw(st.integers(0, span)), draw(st.integers(0, span)))
        least = max(1, span - begin - end)
        axes.append((draw(st.integers(least, least + 6)), kernel, stride, dilation, begin, end))
    size, kernels, strides, dilations, begins, ends = zip(*axes, strict=True)
    groups = 1 if plain else draw(st.integers(1, 3))
    return ConvSpec(
        draw(st.integers(1, 2)),
        groups * draw(st.integers(1, 3)),
        groups * draw(st.integers(1, 3)),
        size,
        kernels,
        strides,
        dilations,
        begins,
        ends,
        groups,
        FLOAT64,
        "NCHW" if plain else draw(st.sampled_from(["NCHW", "NHWC"])),
        not plain and draw(st.booleans()),
        not plain and draw(st.booleans()),
        Activation.parse(draw(st.sampled_from(activations))),
    )


def operands(spec: ConvSpec, whole: bool, seed: int = 0) -> list[np.ndarray | None]:
    """x, w, bias, residual and slope of a spec: int64, or float64 between -1 and 1."""
    rng = np.random.default_rng(seed)
    channels = (spec.out_channels,)
    prelu = spec.activation is not None and spec.activation.kind == "prelu"
    shapes = (
        spec.input_shape,
        spec.weight_shape,
        channels if spec.bias else None,
        spec.output_shape if spec.residual else None,
        channels if prelu else None,
    )
    return [
        None
        if shape is None
        else rng.integers(-9, 10, shape)
        if whole
        else rng.uniform(-1, 1, shape)
        for shape in shapes
    ]
