"""Sums over thousands of channels keep their precision: they are added up in parts."""

from __future__ import annotations

import numpy as np
import pytest

import leanconv as lc
from leanconv.algorithms.problem import default_error
from leanconv.algorithms.select import choose
from leanconv.api.conv_choice import conv_problem
from leanconv.codegen.host import host
from leanconv.spec import ConvSpec
from leanconv.target import preset
from leanconv.types import FLOAT32, FLOAT64


@pytest.mark.parametrize("channels", [512, 1000, 1280, 1281, 25088])
@pytest.mark.parametrize("batch", [1, 5])
def test_a_dense_layer(channels: int, batch: int) -> None:
    random = np.random.default_rng(channels)
    x = random.standard_normal((batch, channels, 1, 1)).astype("f4")
    w = random.standard_normal((40, channels, 1, 1)).astype("f4")
    exact = x[:, :, 0, 0].astype("f8") @ w[:, :, 0, 0].astype("f8").T
    y = lc.plan_conv2d(x.shape, w, algorithm="direct")(x)[:, :, 0, 0]
    error = np.sqrt(np.square(y - exact).mean() / np.square(exact).mean())
    assert error < 5.5e-7  # one chain of additions would give 6e-7 for 1280, 3e-6 for 25088


@pytest.mark.parametrize("channels", [511, 512, 513, 768, 1000])
def test_parts_are_exact_on_whole_numbers(channels: int) -> None:
    random = np.random.default_rng(channels)
    for layout in ("NCHW", "NHWC"):
        shape = (3, channels, 1, 1) if layout == "NCHW" else (3, 1, 1, channels)
        x = random.integers(-4, 5, shape).astype("f4")
        w = random.integers(-4, 5, (33, channels, 1, 1)).astype("f4")
        y = lc.conv2d(x, w, layout=layout, algorithm="direct")
        expected = x.reshape(3, channels) @ w.reshape(33, channels).T
        assert np.array_equal(y.reshape(3, 33), expected)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
@pytest.mark.parametrize(
    "line",
    [
        "ic2id40ih40iw40oc3od8oh8ow8kd33kh33kw33",
        "ic16id40ih40iw40oc8od8oh8ow8kd33kh33kw33",
        "ic2048iw1000oc4ow901kw100",
        "ic16384ih16oc16kh3ph1",
        "ic1000000ih1iw1oc8kh1",
    ],
)
def test_default_plans_of_long_sums_state_no_more_than_the_default(
    line: str, dtype: str, layout: str
) -> None:
    problem = conv_problem(ConvSpec.parse(line, dtype=dtype, layout=layout), None)
    for name in ("znver4", "haswell"):
        candidate = choose(problem, preset(name))
        assert candidate.choice.error <= default_error(problem.conv.precision), candidate.choice


@pytest.mark.parametrize("algorithm", [None, "winograd:m=6,sums=128", "winograd:m=7x5"])
def test_a_large_image_at_stride_2_errs_as_little_as_stated(algorithm: str | None) -> None:
    """One phase of a 3x3 kernel at stride 2 has 4 taps, one has 1: that one rounds most."""
    if algorithm and not host().runtime_masks:
        pytest.skip("Winograd in planes needs masks computed at run time")
    random = np.random.default_rng(0)
    x = random.standard_normal((1, 64, 152, 190)).astype("f4")
    w = random.standard_normal((64, 64, 3, 3)).astype("f4")
    plan = lc.plan_conv2d(x.shape, w, stride=2, padding=1, algorithm=algorithm)
    doubles = x.astype("f8"), w.astype("f8")
    exact = lc.conv2d(*doubles, stride=2, padding=1, algorithm="direct")
    error = np.abs(plan(x) - exact).max() / np.abs(exact).max()
    assert error < 0.95 * plan.predicted_error < 5 * error
