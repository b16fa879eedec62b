"""Groups of few channels: lanes along channels, every way in which a row of taps is added."""

from __future__ import annotations

import numpy as np
import pytest

import leanconv as lc
from leanconv.codegen.host import host
from leanconv.reference.direct import convolve

pytestmark = pytest.mark.vectors
# Inputs and outputs of a group, taps, stride, padding, dilation.
CASES = (
    (2, 2, 5, 1, 2, 1),
    (4, 4, 3, 1, 1, 1),
    (4, 2, 3, 1, 0, 1),
    (2, 4, 7, 2, 3, 1),
    (4, 8, 3, 1, 1, 1),
    (1, 2, 23, 1, 11, 1),
    (4, 4, 19, 1, 0, 1),
    (4, 4, 3, 2, 1, 1),
    (4, 4, 3, 1, 2, 2),
    (8, 8, 1, 1, 0, 1),
    (3, 2, 11, 1, 10, 1),
)


@pytest.mark.drawn
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_sums_are_exact(case: tuple[int, ...]) -> None:
    inputs, outputs, taps, stride, padding, dilation = case
    draw = np.random.default_rng(0)
    for groups, width, dtype in ((5, 41, np.float32), (16, 9, np.float32), (4, 27, np.float64)):
        if host().vector_bytes < outputs * np.dtype(dtype).itemsize:
            continue  # a group's outputs are lanes of one vector
        size = max(width, (taps - 1) * dilation + 1 - 2 * padding)
        x = draw.integers(-3, 4, (2, groups * inputs, 3, size)).astype(dtype)
        w = draw.integers(-3, 4, (groups * outputs, inputs, 2, taps)).astype(dtype)
        given = ((1, stride), (0, padding), (1, dilation), groups)
        last = np.ascontiguousarray(np.moveaxis(x, 1, -1))
        plan = lc.plan_conv2d(last.shape, w, None, *given, layout="NHWC", algorithm="depthwise")
        exact = convolve(plan.spec, last.astype(np.int64), w.astype(np.int64))
        out = np.full(exact.shape, np.nan, dtype)
        assert np.array_equal(plan(last, out=out), exact)


@pytest.mark.parametrize("given", [(4, 1, 131, 1, 0), (3, 2, 130, 4, 0), (2, 1, 100, 1, 50)])
def test_long_rows_of_taps_in_planes(given: tuple[int, ...]) -> None:
    inputs, outputs, taps, stride, padding = given
    draw = np.random.default_rng(0)
    for width in (taps, taps + 37, 700):
        x = draw.integers(-3, 4, (1, 2 * inputs, width)).astype(np.float32)
        w = draw.integers(-3, 4, (2 * outputs, inputs, taps)).astype(np.float32)
        plan = lc.plan_conv2d(x.shape, w, None, stride, padding, groups=2, algorithm="planar")
        exact = convolve(plan.spec, x.astype(np.int64), w.astype(np.int64))
        assert np.array_equal(plan(x, out=np.full(exact.shape, np.nan, np.float32)), exact)
