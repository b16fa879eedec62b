"""Pools of codes: the bits of the reference, in plain tensors and in blocks of channels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from leanconv.kernels import global_pool, pool
from leanconv.target import Target
from leanconv.types import INT8, UINT8, DType
from support.nodes import TARGETS, Case

targets = pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
both = pytest.mark.parametrize("blocked", [False, True], ids=["plain", "blocked"])
WINDOWS = [
    {"kernel_shape": (3, 3), "strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)},
    {"kernel_shape": (2, 3), "strides": (2, 3), "pads": (0, 1, 1, 0), "dilations": (1, 2)},
    {"kernel_shape": (1, 18), "strides": (1, 1), "pads": (0, 9, 0, 9), "dilations": (1, 1)},
]


def codes(shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    drawn = np.random.default_rng(sum(shape)).integers(0, 256, shape).astype(np.uint8)
    return drawn.view(dtype.numpy)


def quantisation(dtype: DType, scales: tuple[float, float] = (0.0123, 0.0071)) -> dict[str, Any]:
    low = int(dtype.low)
    return {
        "scales": scales,
        "zeros": (low + 30, low + 99),
        "low": low + 3,
        "high": low + 249,
        "dtype": dtype,
    }


@targets
@both
@pytest.mark.parametrize("dtype", [UINT8, INT8])
def test_global_means(dtype: DType, blocked: bool, target: Target) -> None:
    for shape in ((1, 1, 1), (2, 19, 7, 7), (1, 33, 5, 13), (3, 16, 16), (1, 5, 2, 3, 4)):
        for scales in ((0.0123, 0.0071), (0.5, 0.25), (1.0, 1e-30)):
            given = quantisation(dtype, scales)
            case = Case(global_pool, "QLinearGlobalAveragePool", [codes(shape, dtype)], given)
            np.testing.assert_array_equal(case.run(target, blocked), case.expected())


@pytest.mark.drawn
@targets
@both
@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("dtype", [UINT8, INT8])
def test_means_of_windows(dtype: DType, counted: bool, blocked: bool, target: Target) -> None:
    for window in WINDOWS:
        given = {**window, "ceil_mode": False, "count_include_pad": counted}
        x = codes((2, 19, 6, 11), dtype)
        case = Case(pool, "QLinearAveragePool", [x], {**given, **quantisation(dtype)})
        np.testing.assert_array_equal(case.run(target, blocked), case.expected())


@targets
@pytest.mark.parametrize("dtype", [UINT8, INT8])
def test_maxima(dtype: DType, target: Target) -> None:
    for window in WINDOWS:
        given = {**window, "ceil_mode": False, "count_include_pad": False}
        case = Case(pool, "MaxPool", [codes((2, 19, 6, 11), dtype)], given)
        assert case.accepts(target)
        np.testing.assert_array_equal(case.run(target, True), case.expected())
