"""Sums over thousands of channels keep their precision: they are added up in parts."""

from __future__ import annotations

import numpy as np
import pytest

import leanconv as lc


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
