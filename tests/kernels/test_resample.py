"""Resample against NumPy: windows of all sizes, along every axis, in every format."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from leanconv.graph.ops.resample import window
from leanconv.kernels import resample
from leanconv.kernels.resample import Resample
from leanconv.target import Target
from leanconv.types import FLOAT32, FLOAT64
from support.forms import shared
from support.nodes import TARGETS, Case, distinct

targets = pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)


def attributes_of(
    axes: tuple[int, ...], extents: tuple[int, ...], sizes: tuple[int, ...], **changes: Any
) -> dict[str, Any]:
    return {
        "axes": axes,
        "sizes": sizes,
        "scales": tuple(size / extents[axis] for axis, size in zip(axes, sizes, strict=True)),
        "rois": ((0.0, 1.0),) * len(axes),
        "mode": "cubic",
        "coordinate_transformation_mode": "half_pixel",
        "cubic_coeff_a": -0.75,
        "exclude_outside": False,
        "antialias": False,
        **changes,
    }


Axes = int | tuple[int, int]


def check(x: np.ndarray, axis: Axes, size: Axes, target: Target, **changes: Any) -> None:
    axes = axis if isinstance(axis, tuple) else (axis,)
    sizes = size if isinstance(size, tuple) else (size,)
    attributes = attributes_of(axes, x.shape, sizes, **changes)
    case = Case(resample, "Resample", [x], attributes)
    wanted = case.expected("float64")
    assert case.accepts(target) == (x.ndim >= 3 and 1 not in axes)
    for blocked in [False, True][: 1 + case.accepts(target)]:
        found = case.run(target, blocked)
        error = np.abs(found - wanted).max() / np.abs(x).max()
        assert error < 20 * np.finfo(x.dtype).eps


@pytest.mark.drawn
@targets
@pytest.mark.parametrize("shape", [(2, 17, 5, 7), (1, 16, 13, 9), (3, 5, 33), (9, 65), (7,)])
def test_axes_and_sizes(shape: tuple[int, ...], target: Target) -> None:
    for axis, extent in enumerate(shape):
        for size in {1, extent, 2 * extent, extent // 2 + 1, 3 * extent + 1}:
            dtype = FLOAT64 if size % 2 else FLOAT32
            check(distinct(shape, dtype, 1), axis, size, target)
            check(distinct(shape, dtype, 1), axis, size, target, antialias=True, mode="linear")


@pytest.mark.drawn
@targets
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_codes(dtype: str, target: Target) -> None:
    """All lanes and tails, along every axis, in both formats; equal to NumPy."""
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max + 1
    for shape in ((2, 17, 5, 7), (3, 5, 33), (9, 65), (7,)):
        x = np.random.default_rng(1).integers(low, high, shape).astype(dtype)
        for axis, extent in enumerate(shape):
            for size in (1, extent // 2 + 1, 2 * extent + 1):
                given = attributes_of((axis,), shape, (size,), antialias=True)
                case = Case(resample, "Resample", [x], given)
                for blocked in [False, True][: 1 + case.accepts(target)]:
                    np.testing.assert_array_equal(case.run(target, blocked), case.expected())


@pytest.mark.drawn
@targets
@pytest.mark.parametrize("shape", [(2, 3, 5, 37), (1, 17, 13, 6), (4, 1, 3), (70, 65), (1, 1)])
def test_two_axes(shape: tuple[int, ...], target: Target) -> None:
    factors = ((2, 2), (4, 0.4), (0.5, 3), (0.3, 0.3), (1, 1.7))
    for first, factor in product(range(len(shape) - 1), factors):
        axes = first, first + 1
        size = tuple(max(1, int(shape[a] * f)) for a, f in zip(axes, factor, strict=True))
        x = distinct(shape, FLOAT64 if size[0] % 2 else FLOAT32, 1)
        check(x, axes, size, target, antialias=factor[0] < 1)


def test_rectangles() -> None:
    """Results of more than a rectangle, crops that run backwards, and one cell."""
    x = distinct((3, 40, 90), FLOAT32, 1)
    check(x, (1, 2), (300, 1100), TARGETS[0])
    back = {"coordinate_transformation_mode": "tf_crop_and_resize", "rois": ((0.9, 0.1), (1.2, 0))}
    check(x, (1, 2), (70, 1500), TARGETS[0], **back)
    check(x, (1, 2), (30, 1500), TARGETS[0], **back)
    check(distinct((300, 1100), FLOAT32, 1), (0, 1), (140, 40), TARGETS[0], antialias=True)


@targets
def test_wide_windows(target: Target) -> None:
    for axis in range(3):
        check(distinct((50, 40, 130), FLOAT32, 1), axis, 3, target, antialias=True)


def test_many_chunks() -> None:
    for shape in ((40, 60, 70), (3, 1000, 9), (700, 2, 50)):
        for axis in range(3):
            check(distinct(shape, FLOAT32, 1), axis, 2 * shape[axis] - 3, TARGETS[0])


def test_sizes_share_a_form() -> None:
    assert shared(Resample(FLOAT32, *size, 4) for size in ((9, 20, 64, 40), (3, 70, 200, 90)))


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("size", [1, 2, 5, 9, 30])
def test_windows_are_within_the_axis_and_whole(mode: str, size: int) -> None:
    for extent in (1, 2, 3, 9, 40):
        for antialias in (False, True):
            for exclude in (False, True):
                given = {"antialias": antialias, "exclude_outside": exclude, "mode": mode}
                first, weights = window(attributes_of((0,), (extent,), (size,), **given), 0, extent)
                assert (first >= 0).all()
                assert (first + weights.shape[1] <= extent).all()
                np.testing.assert_allclose(weights.sum(axis=1), 1)


def test_cells_far_outside_of_the_input_weigh_nothing() -> None:
    crop = {"coordinate_transformation_mode": "tf_crop_and_resize", "rois": ((3.0, 4.0),)}
    attributes = attributes_of((0,), (5,), (4,), exclude_outside=True, **crop)
    with np.errstate(all="raise"):
        _, weights = window(attributes, 0, 5)
    assert not weights.any()
