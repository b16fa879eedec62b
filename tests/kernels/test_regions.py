"""RoiAlign and the columns of deformable convolutions, against NumPy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from leanconv.kernels import deform, roi_align
from leanconv.kernels.deform import DeformColumns
from leanconv.kernels.roi_align import RoiAlign
from leanconv.target import Target
from leanconv.types import FLOAT32, FLOAT64
from support.forms import shared
from support.kernel_runner import run_results
from support.nodes import TARGETS, Case

targets = pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)


def sixteenths(random: np.random.Generator, least: float, most: float, *shape: int) -> np.ndarray:
    """Places that every precision has exactly."""
    return np.round(random.uniform(least, most, shape) * 16) / 16


def check(case: Case, target: Target, blocked: bool) -> None:
    found, wanted = case.run(target, blocked), case.expected()
    tolerance = 2e-5 if found.dtype == np.float32 else 1e-12
    assert np.abs(found - wanted).max() <= tolerance * max(1, np.abs(wanted).max())


def regions(channels: int, dtype: str = FLOAT32, **changes: Any) -> Case:
    random = np.random.default_rng(channels)
    x = random.standard_normal((2, channels, 6, 8)).astype(dtype)
    first = sixteenths(random, -4, 8, 5, 2)
    given = np.concatenate([first, first + sixteenths(random, -1, 9, 5, 2)], axis=1)
    attributes = {"mode": "avg", "half_pixel": True, "sampling_ratio": 2, "spatial_scale": 0.5}
    attributes |= {"sizes": (2, 4), **changes}
    arrays = [x, given.astype(dtype), np.array([0, 1, 1, 1, 0])]
    return Case(roi_align, "RoiAlign", arrays, attributes)


@pytest.mark.drawn
@pytest.mark.pairs
@targets
@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("ratio", [0, 1, 2, 5])
def test_regions(mode: str, ratio: int, target: Target) -> None:
    for half in (False, True):
        for scale in (0.5, 2.0):
            how = {"mode": mode, "sampling_ratio": ratio, "half_pixel": half}
            for blocked in (False, True):
                check(regions(19, **how, spatial_scale=scale), target, blocked)
    for blocked in (False, True):
        check(regions(3, FLOAT64, mode=mode, sampling_ratio=ratio), target, blocked)


def test_many_channels_and_images_of_one_pixel() -> None:
    for blocked in (False, True):
        check(regions(300), TARGETS[0], blocked)
        case = regions(5, sizes=(1, 1))
        x = case.values["x0"][:, :, :1, :1].copy()
        arrays = [x, case.values["x1"], case.values["x2"]]
        check(Case(roi_align, "RoiAlign", arrays, case.node.attributes), TARGETS[0], blocked)


def test_images_that_are_not_there_are_reported() -> None:
    """What is read then is the nearest one."""
    case = regions(3)
    for images, reported in (([0, 1, 1, 1, 0], 0), ([0, 1, 1, 2, 0], 2), ([-5, 1, 1, 1, 0], -5)):
        x, given = case.values["x0"], case.values["x1"]
        made = Case(roi_align, "RoiAlign", [x, given, np.array(images)], case.node.attributes)
        (call,) = made.lower(TARGETS[0], False).calls
        assert list(call.kernel.index_ranges) == [(0, 1)]
        outside, result = np.empty(1, np.int64), np.empty(made.graph.types["y"].shape, x.dtype)
        results = run_results(call.kernel, *made.values.values(), result, outside=outside)
        assert outside == [reported]
        np.testing.assert_array_equal(results[0], case.run(TARGETS[0], False))


def test_huge_regions_end_soon() -> None:
    """What lies outside of the image is not visited; nothing strange is read."""
    case = regions(3, sampling_ratio=0)
    strange = [np.nan, np.inf, -np.inf, 1e30, -1e30, 1e7]
    given = np.array([(a, b, c, 3) for a in strange for b in strange for c in strange], np.float32)
    arrays = [case.values["x0"], given, np.zeros(len(given), np.int64)]
    made = Case(roi_align, "RoiAlign", arrays, case.node.attributes)
    for blocked in (False, True):
        made.run(TARGETS[0], blocked)


def columns(channels: int, dtype: str = FLOAT32, masked: bool = True, **changes: Any) -> Case:
    random = np.random.default_rng(channels)
    height, width = changes.pop("size", (7, 8))
    attributes = {"kernel_shape": (3, 2), "strides": (1, 1), "pads": (1, 0, 1, 1)}
    attributes |= {"dilations": (1, 1), "offset_group": 1, "run": 1, **changes}
    (kh, kw), groups = attributes["kernel_shape"], attributes["offset_group"]
    out = [
        (extent + before + after - (kernel - 1) * dilation - 1) // stride + 1
        for extent, before, after, kernel, dilation, stride in zip(
            (height, width),
            attributes["pads"][:2],
            attributes["pads"][2:],
            (kh, kw),
            attributes["dilations"],
            attributes["strides"],
            strict=True,
        )
    ]
    x = random.standard_normal((2, channels, height, width))
    rows, places = 2 * groups * kh * kw, int(np.prod(out))
    arrays = [x, sixteenths(random, -3, 3, rows * 2, places), random.random((rows, places))]
    given = [each.astype(dtype) for each in arrays[: 3 if masked else 2]]
    return Case(deform, "DeformColumns", given, attributes)


@targets
def test_columns(target: Target) -> None:
    for blocked in (False, True):
        check(columns(16, run=16), target, blocked)
        check(columns(32, run=16, offset_group=2, masked=False), target, blocked)
        check(columns(48, run=16, strides=(2, 1), dilations=(1, 2)), target, blocked)
        check(columns(16, FLOAT64, run=8, offset_group=2), target, blocked)
    assert not columns(6, run=2).accepts(target)
    check(columns(5), target, False)
    check(columns(6, run=2, offset_group=3, strides=(2, 3), kernel_shape=(1, 5)), target, False)
    for width in (1, 2, 3, 5, 9, 17, 33, 65, 130, 300):
        check(columns(2, kernel_shape=(1, 1), pads=(0,) * 4, size=(1, width)), target, False)


def test_sizes_share_forms() -> None:
    how = (FLOAT32, False, True, 2)
    sizes = [(2, 3, 16, (20, 30), (7, 7), 100), (3, 20, 16, (9, 30), (3, 2), 9)]
    assert shared(RoiAlign(*how, *size, 0.25) for size in sizes)
    window = ((3, 3), (1, 1), (1, 1), (1, 1))
    planes = [(2, 3, 4, 4, 16, (20, 30), (20, 30)), (4, 2, 9, 4, 16, (9, 50), (9, 50))]
    assert shared(DeformColumns(FLOAT32, *each, *window, True) for each in planes)
