"""Resize of integers: as ONNX Runtime; to one step where they are mixed as floats and rounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import leanconv as lc
from leanconv.graph.ops.resample import window
from leanconv.graph.ops.resize import COORDINATE_MODES, CROP
from leanconv.types import UINT8
from support.onnx_models import Array, imported, model, reference


def made(x: Array, sizes: list[int], roi: list[float] | None = None, **attributes: Any) -> Any:
    node = helper.make_node("Resize", ["x", "roi" if roi else "", "", "sizes"], ["y"], **attributes)
    given = {"sizes": np.array(sizes)} | ({"roi": np.array(roi, np.float32)} if roi else {})
    proto = model([node], {"x": x.shape}, ["y"], given, 19)
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = kind
    return proto


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32"])
@pytest.mark.parametrize(
    ("attributes", "most"),
    [
        ({"mode": "nearest"}, 0),
        ({"mode": "linear"}, 1),
        ({"mode": "linear", "antialias": 1}, 1),
        ({"mode": "cubic", "antialias": 1}, 1),
    ],
    ids=str,
)
def test_as_onnx_runtime(dtype: str, attributes: dict[str, Any], most: int) -> None:
    """Its antialiasing takes what is below 0 for 0 in int8."""
    random = np.random.default_rng(1)
    least = 0 if "antialias" in attributes or dtype == "uint8" else -100
    x = random.integers(least, 120, (1, 3, 9, 7)).astype(dtype)
    for sizes in ([1, 3, 4, 3], [1, 3, 18, 21]):
        proto = made(x, sizes, **attributes)
        wanted = reference(proto, {"x": x})["y"]
        for found in (imported(proto, {"x": x})["y"], lc.load(proto, threads=1).run({"x": x})["y"]):
            assert found.dtype == wanted.dtype
            difference = np.abs(found.astype(int) - wanted)
            if dtype == "int8" and attributes["mode"] == "cubic":
                continue  # theirs differs from the other types' on the same numbers
            exact = "antialias" in attributes and x.dtype.itemsize == 1
            assert difference.max() <= (0 if exact else most)


@pytest.mark.parametrize("place", [*COORDINATE_MODES[:3], *COORDINATE_MODES[4:5], CROP])
def test_antialiased_codes_are_those_of_onnx_runtime(place: str) -> None:
    """Sizes, windows and crops at random, axes in front of the last one, too."""
    random = np.random.default_rng(len(place))
    for trial in range(10):
        high, wide, channels = (int(e) for e in random.integers(1, 40, 3))
        in_front = trial % 3 == 2 and place != CROP  # theirs fills other cells
        sizes = [int(e) for e in random.integers(1, 60, 2)]
        shape = (2, high, wide, channels) if in_front else (2, 3, high, wide)
        whole = [2, *sizes, channels] if in_front else [2, 3, *sizes]
        given = {
            "mode": "cubic" if trial % 2 else "linear",
            "antialias": 1,
            "exclude_outside": trial % 4 // 2,
            "coordinate_transformation_mode": place,
            "extrapolation_value": 7.0,
        }
        dtype = "int8" if trial % 4 == 0 else "uint8"
        x = random.integers(0, 128 if dtype == "int8" else 256, shape).astype(dtype)
        roi = [0, 0, -0.1, 0.2, 1, 1, 0.8, 1.1] if place == CROP else None
        proto = made(x, whole, roi, **given)
        wanted = reference(proto, {"x": x})["y"]
        for found in (imported(proto, {"x": x})["y"], lc.load(proto, threads=1).run({"x": x})["y"]):
            np.testing.assert_array_equal(found, wanted, strict=True, err_msg=f"{shape} {given}")


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_a_scale_that_leaves_no_rows(mode: str) -> None:
    """0.3 of 2 rows are none, as ONNX rounds down; of 4 it is one."""

    def scaled(rows: int | str) -> Any:
        node = helper.make_node("Resize", ["x", "", "s"], ["y"], mode=mode)
        return model([node], {"x": (1, 1, rows, 3)}, ["y"], {"s": scales}, 19)

    scales = np.array([1, 1, 0.3, 1], np.float32)
    network = lc.load(scaled("h"), threads=1)
    for rows, left in ((4, 1), (2, 0), (20, 6), (3, 0), (2, 0), (30, 9)):
        x = np.ones((1, 1, rows, 3), np.float32)
        wanted = reference(scaled(rows), {"x": x})["y"]
        assert wanted.shape == (1, 1, left, 3)
        for net in (network, lc.load(scaled(rows), threads=1)):
            np.testing.assert_allclose(net.run({"x": x})["y"], wanted, 1e-6, strict=True)


def test_long_axes_have_small_tables() -> None:
    x = np.random.default_rng(3).random((1, 1, 1, 100_000), np.float32)
    net = lc.load(made(x, [1, 1, 2, 300_000], mode="cubic"), threads=1)
    assert net.plan.memory_bytes < 10 << 20
    found = net.run({"x": x})["y"]
    wanted = lc.load(made(x[..., :60], [1, 1, 2, 180], mode="cubic"), threads=1)
    np.testing.assert_array_equal(found[..., :150], wanted.run({"x": x[..., :60]})["y"][..., :150])


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_a_crop_that_is_far_away_is_filled(dtype: str) -> None:
    x = np.random.default_rng(5).integers(0, 256, (1, 1, 40, 131)).astype(dtype)
    for begin, end in ((1e19, 2e19), (-1e30, -1e30), (1e30, 1e30)):
        roi = [0, 0, 0, begin, 1, 1, 1, end]
        place = {"coordinate_transformation_mode": CROP, "extrapolation_value": 7.0}
        proto = made(x, [1, 1, 4, 5], roi, mode="linear", antialias=1, **place)
        assert (lc.load(proto, threads=1).run({"x": x})["y"] == 7).all()


@pytest.mark.parametrize("extent", [2**24 + 4, 2**24 + 7, 2**26 + 5])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_windows_of_axes_that_float32_cannot_count_lie_within(mode: str, extent: int) -> None:
    for roi in ((0.9999999, 1.0), (0.99999, 1.2), (3.0, 4.0)):
        given = {"axes": (0,), "sizes": (4,), "scales": (1.0,), "rois": (roi,), "mode": mode}
        given |= {"cubic_coeff_a": -0.75, "exclude_outside": False, "antialias": True}
        begin, weights = window(given | {"coordinate_transformation_mode": CROP}, 0, extent, UINT8)
        assert begin.min() >= 0
        assert begin.max() + weights.shape[1] <= extent


def test_a_parameter_that_is_no_number_is_no_crash() -> None:
    x = np.full((1, 1, 8, 9), 3, np.uint8)
    proto = made(x, [1, 1, 4, 5], mode="cubic", antialias=1, cubic_coeff_a=float("nan"))
    assert lc.load(proto, threads=1).run({"x": x})["y"].shape == (1, 1, 4, 5)


def test_nearest_cells_of_every_type() -> None:
    for dtype in ("bool", "int16", "uint64", "float64"):
        x = np.random.default_rng(2).integers(0, 2, (1, 2, 3, 5)).astype(dtype)
        found = lc.load(made(x, [1, 2, 6, 10], mode="nearest"), threads=1).run({"x": x})["y"]
        wanted = x.repeat(2, axis=2).repeat(2, axis=3)
        np.testing.assert_array_equal(found, wanted, strict=True)
