"""Resize against NumPy: nearest exactly, linear to rounding, every mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from leanconv.codegen.host import host
from leanconv.codegen.lowered import View
from leanconv.graph.ops.resize import COORDINATE_MODES, NEAREST_MODES, nearest_cells
from leanconv.kernels import resize
from leanconv.kernels.resize import Repeat
from leanconv.kernels.resize_maps import ResizeMaps
from leanconv.target import Target, preset
from leanconv.types import FLOAT32, FLOAT64, INT64, UINT8, DType
from support.nodes import DTYPES, TARGETS, Case, distinct

targets = pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
dtypes = pytest.mark.parametrize("dtype", DTYPES)


def attributes_of(
    shape: tuple[int, ...],
    scales: tuple[float, ...],
    mode: str = "nearest",
    coordinates: str = "half_pixel",
    nearest: str = "round_prefer_floor",
) -> dict[str, Any]:
    return {
        "mode": mode,
        "sizes": tuple(int(n * s) for n, s in zip(shape, scales, strict=True)),
        "scales": scales,
        "coordinate_transformation_mode": coordinates,
        "nearest_mode": nearest,
    }


def check(case: Case, target: Target, blocked: bool) -> None:
    wanted = case.expected()
    exact = case.node.attributes["mode"] == "nearest"
    assert case.accepts(target) == blocked
    for chosen in [False, True][: 1 + blocked]:
        got = case.run(target, chosen)
        error = np.abs(got - wanted).max() / np.abs(wanted).max()
        assert np.array_equal(got, wanted) if exact else error < 8 * np.finfo(got.dtype).eps


SHAPES = [
    ((2, 17, 5, 7), (1.0, 1.0, 2.0, 2.0)),
    ((1, 16, 13, 9), (1.0, 1.0, 0.5, 1.7)),
    ((1, 33, 4, 6), (1.0, 1.0, 1.0, 3.0)),
    ((1, 15, 4, 6), (1.0, 1.0, 2.5, 1.0)),
    ((2, 9, 8), (1.0, 1.0, 1.5)),
    ((2, 7, 5, 37), (1.0, 1.6, 2.0, 1.0)),
    ((1, 4, 6, 3), (1.0, 1.6, 0.5, 1.0)),
    ((1, 8, 3, 4, 5), (1.0, 1.0, 2.0, 1.5, 0.6)),
    ((2, 8, 1, 1), (2.0, 1.0, 4.0, 4.0)),
]


@pytest.mark.drawn
@pytest.mark.pairs(("target", "dtype"))  # the lanes
@targets
@dtypes
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(("shape", "scales"), SHAPES, ids=str)
def test_resize(
    target: Target, dtype: str, mode: str, shape: tuple[int, ...], scales: tuple[float, ...]
) -> None:
    x = distinct(shape, dtype, 1)
    check(Case(resize, "Resize", [x], attributes_of(shape, scales, mode)), target, scales[1] == 1)


@targets
def test_maps_have_the_bits_of_every_cell(target: Target) -> None:
    """Plain maps: products and sums in the order of ONNX Runtime's, in rectangles of any size."""
    for size, scale in (((1, 1), 3), ((5, 37), 2), ((140, 3), 1.3), ((3, 600), 2), ((7, 9), 8)):
        x = np.random.default_rng(1).standard_normal((3, *size), np.float32)
        case = Case(resize, "Resize", [x], attributes_of(x.shape, (1, scale, scale), "linear"))
        assert isinstance(case.lower(target, False).calls[0].kernel, ResizeMaps)
        np.testing.assert_array_equal(case.run(target, False), case.expected())


@pytest.mark.drawn
@targets
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64, UINT8, INT64])
@pytest.mark.parametrize("times", [(2, 2), (1, 2), (3, 3), (4, 8), (2, 1)], ids=str)
def test_elements_of_maps_are_repeated(
    target: Target, dtype: DType, times: tuple[int, int]
) -> None:
    for width in (1, 2, 7, 16, 17, 33, 64, 130):
        x = distinct((2, 3, 3, width), dtype, 1)
        scales = (1.0, 1.0, float(times[0]), float(times[1]))
        for coordinates in ("asymmetric", "half_pixel"):
            nearest = "floor" if coordinates == "asymmetric" else "round_prefer_floor"
            attributes = attributes_of(x.shape, scales, "nearest", coordinates, nearest)
            case = Case(resize, "Resize", [x], attributes)
            (call,) = case.lower(target, False).calls
            assert isinstance(call.kernel, Repeat) == (times[1] > 1)
            np.testing.assert_array_equal(case.run(target, False), case.expected())


def test_other_cells_are_looked_up() -> None:
    """The nearest cell by other rules than the next one below, sizes that are no multiple."""
    for scales, nearest in (((1.0, 1.0, 2.0, 2.0), "ceil"), ((1.0, 1.0, 2.0, 1.5), "floor")):
        x = distinct((1, 2, 4, 6), FLOAT32, 1)
        attributes = attributes_of(x.shape, scales, "nearest", "asymmetric", nearest)
        case = Case(resize, "Resize", [x], attributes)
        assert not isinstance(case.lower(host(), False).calls[0].kernel, Repeat)
        np.testing.assert_array_equal(case.run(host(), False), case.expected())


@targets
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_channels_and_short_ranks_are_plain(target: Target, mode: str) -> None:
    for shape, scales in [
        ((2, 3, 4, 5), (1.0, 2.0, 2.0, 1.0)),
        ((1, 4, 3), (2.0, 1.5, 1.0)),
        ((6, 7), (0.5, 2.0)),
        ((5,), (1.8,)),
    ]:
        x = distinct(shape, FLOAT32, 1)
        check(Case(resize, "Resize", [x], attributes_of(shape, scales, mode)), target, False)


@pytest.mark.parametrize("coordinates", COORDINATE_MODES)
@pytest.mark.parametrize("nearest", [*NEAREST_MODES, "linear"])
def test_every_mode(coordinates: str, nearest: str) -> None:
    shape = (1, 18, 6, 7)
    mode = "linear" if nearest == "linear" else "nearest"
    nearest = "floor" if nearest == "linear" else nearest
    for scales in [(1.0, 1.0, 2.0, 1.6), (1.0, 1.0, 0.5, 0.4)]:
        attributes = attributes_of(shape, scales, mode, coordinates, nearest)
        check(Case(resize, "Resize", [distinct(shape, FLOAT32, 1)], attributes), host(), True)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric", "align_corners"])
def test_resize_is_onnxruntimes(mode: str, coordinates: str) -> None:
    x = np.random.default_rng(1).standard_normal((1, 19, 6, 8)).astype(np.float32)
    scales = np.array([1, 1, 2, 1.5], np.float32)
    node = helper.make_node(
        "Resize", ["x", "", "s"], ["y"], mode=mode, coordinate_transformation_mode=coordinates
    )
    tensors = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "xy"]
    fixed = helper.make_tensor("s", TensorProto.FLOAT, [4], scales)
    graph = helper.make_graph([node], "g", tensors[:1], tensors[1:], [fixed])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (wanted,) = session.run(None, {"x": x})
    attributes = attributes_of(x.shape, tuple(map(float, scales)), mode, coordinates)
    got = Case(resize, "Resize", [x], attributes).run(host(), True)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    ("extent", "size", "nearest", "cell", "copied"),
    [
        (30, 39, "round_prefer_floor", 19, 14),  # 14.500001 in float32
        (26, 37, "round_prefer_floor", 18, 12),
        (20, 58, "round_prefer_ceil", 43, 15),  # 14.499999
        (14, 1, "round_prefer_ceil", 0, 7),
    ],
)
def test_ties_by_rounding_are_ties(
    extent: int, size: int, nearest: str, cell: int, copied: int
) -> None:
    assert nearest_cells(extent, size, size / extent, "half_pixel", nearest)[cell] == copied


def test_nothing_to_resize_is_a_view() -> None:
    x = distinct((1, 4, 3, 3), FLOAT32)
    case = Case(resize, "Resize", [x], attributes_of(x.shape, (1.0,) * 4))
    assert case.lower(host(), True).views == {"y": View("x0")}


def test_resize_is_emitted_for_neon() -> None:
    x = distinct((1, 8, 3, 3), FLOAT32)
    case = Case(resize, "Resize", [x], attributes_of(x.shape, (1.0, 1.0, 2.0, 2.0), "linear"))
    assert "fmul" in case.assembles(preset("neoverse-n1"), True)
