"""Padding with what the image shows: as `np.pad`, PyTorch, SciPy and OpenCV name it."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import leanconv as lc
from leanconv.api import borders
from leanconv.errors import BudgetError, InputError, SpecError
from leanconv.reference.direct import convolve

MODES = {"reflect": "reflect", "replicate": "edge", "circular": "wrap", "symmetric": "symmetric"}


def whole(shape: tuple[int, ...], seed: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)


def expected(x: np.ndarray, w: np.ndarray, widths: Any, mode: str, **options: Any) -> np.ndarray:
    axes = [(0, 0), (0, 0), *widths]
    if options.get("layout") == "NHWC":
        axes = [(0, 0), *widths, (0, 0)]
    padded = np.pad(x.astype(np.float64), axes, mode=MODES[mode])
    spec = lc.plan_conv2d(padded.shape, w.astype(np.float64), **options).spec
    return convolve(spec, padded, w.astype(np.float64))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("size", "kernel", "padding", "widths"),
    [
        ((9, 11), (3, 3), 1, [(1, 1), (1, 1)]),
        ((9, 11), (5, 4), (0, 3, 2, 1), [(0, 2), (3, 1)]),
        ((1, 2), (3, 3), (4, 5), [(4, 4), (5, 5)]),  # wider than the image
        ((7,), (3,), 2, [(2, 2)]),
        ((3, 4, 5), (3, 1, 2), (1, 0, 2), [(1, 1), (0, 0), (2, 2)]),
        ((8, 6), (4, 3), "same", [(1, 2), (1, 1)]),
    ],
)
def test_borders_of_any_width(
    mode: str, size: tuple[int, ...], kernel: tuple[int, ...], padding: Any, widths: Any
) -> None:
    x, w = whole((2, 3, *size), 0), whole((4, 3, *kernel), 1)
    right = expected(x, w, widths, mode)
    found = lc.conv2d(x, w, padding=padding, padding_mode=mode)
    np.testing.assert_array_equal(found, right)
    plan = lc.plan_conv2d(x.shape, w, padding=padding, padding_mode=mode)
    out = np.full(right.shape, np.nan, np.float32)
    assert plan(x, out=out) is out
    np.testing.assert_array_equal(out, right)
    assert plan.memory_bytes == plan.used_bytes
    np.testing.assert_array_equal(lc.conv2d(x[0], w, padding=padding, padding_mode=mode), right[0])
    assert lc.conv2d(x[:0], w, padding=padding, padding_mode=mode).shape == (0, *right.shape[1:])


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16, np.int8])
def test_element_types_and_options(dtype: Any) -> None:
    x, w = whole((1, 9, 11, 4), 0, dtype), whole((2, 4, 3, 3), 1, dtype)
    options = {"layout": "NHWC", "stride": (2, 1)}
    right = expected(x, w, [(1, 1), (1, 1)], "reflect", **options)
    found = lc.conv2d(x, w, padding=1, padding_mode="reflect", **options)
    assert found.dtype == (np.int32 if dtype == np.int8 else dtype)
    np.testing.assert_array_equal(found.astype(np.float64), right)


def test_residual_and_activation() -> None:
    x, w, added = whole((1, 3, 8, 8), 0), whole((3, 3, 3, 3), 1), whole((1, 3, 8, 8), 2)
    options: dict[str, Any] = {"padding": 1, "padding_mode": "replicate", "activation": "relu"}
    right = np.maximum(expected(x, w, [(1, 1), (1, 1)], "replicate") + added, 0)
    np.testing.assert_array_equal(lc.conv2d(x, w, residual=added, **options), right)
    plan = lc.plan_conv2d(x.shape, w, residual=True, **options)
    np.testing.assert_array_equal(plan(x, residual=added), right)


def test_a_limit_counts_the_image_with_its_border() -> None:
    x, w = whole((1, 8, 40, 40), 0), whole((8, 8, 3, 3), 1)
    options: dict[str, Any] = {"padding": 1, "padding_mode": "symmetric"}
    with pytest.raises(BudgetError, match="the image with its border takes") as caught:
        lc.plan_conv2d(x.shape, w, memory_limit=1000, **options)
    least = caught.value.smallest_bytes
    plan = lc.plan_conv2d(x.shape, w, memory_limit=least, **options)
    assert plan.memory_bytes == least
    assert lc.conv2d(x, w, memory_limit=least, **options).shape == x.shape
    with pytest.raises(BudgetError):
        lc.conv2d(x, w, memory_limit=least - 1, **options)


def test_what_does_not_fit_a_limit_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = whole((1, 1, 8, 8), 0), whole((1, 1, 3, 3), 1)
    monkeypatch.setattr(borders.Border, "empty", None)  # whoever calls it fails
    for dtype in (np.float32, np.int8):
        with pytest.raises(BudgetError, match="the image with its border takes"):
            lc.conv2d(
                x.astype(dtype),
                w.astype(dtype),
                padding=10_000,
                padding_mode="replicate",
                memory_limit="1 MiB",
            )


def test_what_makes_no_sense() -> None:
    x, w = whole((1, 3, 8, 8), 0), whole((3, 3, 3, 3), 1)
    for mode in ("mirror", 5, None):
        with pytest.raises(SpecError, match="padding_mode is .*; expected 'zeros', 'reflect'"):
            lc.conv2d(x, w, padding_mode=mode)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="expected a NumPy array"):
        lc.conv2d([[1.0]], w, padding_mode="reflect")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="w is list"):
        lc.conv2d(x, [[1.0]], padding_mode="reflect")  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="pad x yourself"):
        lc.plan_conv2d(x.shape, w, padding_mode="reflect", device="cuda")
    with pytest.raises(InputError, match="expected float32"):
        lc.plan_conv2d(x.shape, w, padding=1, padding_mode="reflect")(x[..., :7])
