"""MaxPool with places, and of integers, exactly as the reference gives them: all attributes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from leanconv.codegen.host import host
from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph.ir import TensorType
from leanconv.kernels import plane_pool, pool
from leanconv.target import Target, preset
from leanconv.types import FLOAT32, FLOATS, INT8, INT64, UINT8, DType
from support.forms import shared
from support.listing import assembly
from support.nodes import Case
from support.pools import window, with_ties

# This machine, and AVX2 where it can run that.
RUN = [host()] if host().isa == "neon" else [host(), preset("haswell")]
TARGETS = pytest.mark.parametrize("target", RUN, ids=lambda t: t.name)
TYPES = (*FLOATS, INT8, UINT8)


CASES = [
    ((2, 3, 9, 9), window((3, 3), (2, 2), (1, 1, 1, 1))),
    ((1, 5, 56, 56), window((2, 2), (2, 2))),
    ((1, 33, 7, 7), window((7, 7))),
    ((1, 3, 12, 11), window((3, 2), (1, 3), (1, 0, 2, 1), ceil=True)),
    ((1, 2, 13, 14), window((3, 3), (2, 2), (2, 1, 1, 2), (2, 3))),
    ((1, 2, 13, 13), window((13, 13), (1, 1), (6, 6, 6, 6))),
    ((1, 2, 5, 70), window((2, 40), (1, 1), (1, 39, 1, 39))),
    ((1, 2, 3, 300), window((1, 20), (1, 11), (0, 19, 0, 19))),
    ((1, 2, 3, 131), window((1, 4), (1, 4))),
    ((1, 2, 3, 257), window((2, 3), (2, 8), (0, 2, 0, 2))),
    ((3, 7, 10), window((4,), (3,), (1, 2), ceil=True)),
    ((2, 3, 4, 5, 6), window((2, 3, 3), (2, 1, 2), (1, 0, 1, 0, 2, 1))),
    ((1, 2, 6, 7, 8), window((3, 3, 3), (2, 2, 2), (1, 1, 1, 1, 1, 1), ceil=True)),
    ((1, 1, 1, 1), window((1, 1))),
    ((1, 2, 4, 4), window((2, 2), (5, 5), (0, 0, 1, 1), ceil=True)),
    ((1, 3, 1, 2), window((5, 4), (5, 3), (1, 0, 0, 0), ceil=True)),
    (
        (1, 2, 1, 1),
        window((2, 2), (1, 1), (2, 2, 2, 2), (2, 2)),
    ),  # some windows touch nothing
    ((4, 16, 40, 40), window((3, 3))),
]


def numbers(shape: tuple[int, ...], dtype: DType, seed: int = 0) -> np.ndarray:
    return with_ties(shape, dtype, seed, ends=5)


def check(x: np.ndarray, attributes: dict[str, Any], target: Target) -> None:
    for order in (0, 1):
        case = Case(plane_pool, "MaxPoolWithIndices", [x], {**attributes, "storage_order": order})
        (values, places), (wanted, expected) = case.run_all(target), case.expected_all()
        assert places.dtype == INT64
        assert values.dtype == x.dtype
        np.testing.assert_array_equal(values, wanted)
        np.testing.assert_array_equal(places, expected, err_msg=f"storage_order={order}")


@pytest.mark.drawn
@pytest.mark.pairs
@TARGETS
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("shape", "attributes"), CASES, ids=str)
def test_places(
    shape: tuple[int, ...], attributes: dict[str, Any], dtype: DType, target: Target
) -> None:
    check(numbers(shape, dtype), attributes, target)


@pytest.mark.drawn
@TARGETS
@pytest.mark.parametrize(("shape", "attributes"), CASES, ids=str)
def test_integers_without_places(
    shape: tuple[int, ...], attributes: dict[str, Any], target: Target
) -> None:
    for dtype in (INT8, UINT8):
        case = Case(pool, "MaxPool", [numbers(shape, dtype)], attributes)
        assert case.accepts(target)
        for blocked in (False, True):
            found, wanted = case.run(target, blocked), case.expected()
            assert found.dtype == dtype
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("number", [0, 3, 4, 11])
def test_narrow_vectors_without_masks(number: int) -> None:
    shape, attributes = CASES[number]
    for dtype in (FLOAT32, INT8):
        check(numbers(shape, dtype), attributes, preset("neoverse-n1"))


@pytest.mark.drawn
@TARGETS
@pytest.mark.parametrize("width", [1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 129])
def test_widths(width: int, target: Target) -> None:
    for stride in (1, 2, 3, 9):
        attributes = window((2, 3), (1, stride), (0, 2, 1, 2))
        for dtype in (FLOAT32, UINT8):
            check(numbers((2, 3, 4, width), dtype), attributes, target)


@TARGETS
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("number", [0, 1, 3, 6, 10, 12])
def test_the_first_nan_of_a_window_counts(number: int, dtype: DType, target: Target) -> None:
    shape, attributes = CASES[number]
    x = numbers(shape, dtype)
    random = np.random.default_rng(number)
    places = random.permutation(x.size)[: max(3, x.size // 10)]
    x.reshape(-1)[places] = np.nan
    check(x, attributes, target)
    check(np.full(shape, np.nan, dtype), attributes, target)
    check(np.full(shape, -np.inf, dtype), attributes, target)


def test_any_window() -> None:
    taken = []

    @st.composite
    def drawn(draw: st.DrawFn) -> tuple[tuple[int, ...], dict[str, Any]]:
        axes = []
        for _ in range(draw(st.integers(1, 3))):
            kernel, dilation = draw(st.integers(1, 5)), draw(st.integers(1, 3))
            most = (kernel - 1) * dilation
            pads = draw(st.integers(0, most)), draw(st.integers(0, most))
            axes.append(
                (kernel, draw(st.integers(1, 4)), dilation, *pads, draw(st.integers(1, 19)))
            )
        kernel, strides, dilations, before, after, extents = zip(*axes, strict=True)
        shape = (draw(st.integers(1, 2)), draw(st.integers(1, 5)), *extents)
        return shape, window(kernel, strides, before + after, dilations, draw(st.booleans()))

    @settings(max_examples=60, deadline=None)
    @given(drawn())
    def each(case: tuple[tuple[int, ...], dict[str, Any]]) -> None:
        shape, attributes = case
        try:
            check(numbers(shape, FLOAT32), attributes, host())
        except ModelError as error:
            if "does not fit an input of extent" not in str(error):
                raise
            return
        taken.append(case)

    each()
    assert len(taken) >= 20


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("ceil", [0, 1])
def test_places_are_onnxruntimes(ceil: int, order: int) -> None:
    x = numbers((2, 3, 11, 10), FLOAT32)
    names = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 0, 1, 1], "ceil_mode": ceil}
    node = helper.make_node("MaxPool", ["x"], ["y", "i"], storage_order=order, **names)
    tensors = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "xy"]
    tensors.append(helper.make_tensor_value_info("i", TensorProto.INT64, None))
    graph = helper.make_graph([node], "g", tensors[:1], tensors[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    attributes = window((3, 3), (2, 2), (1, 0, 1, 1), ceil=bool(ceil))
    case = Case(plane_pool, "MaxPoolWithIndices", [x], {**attributes, "storage_order": order})
    for found, wanted in zip(case.run_all(host()), session.run(None, {"x": x}), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_maps_of_all_sizes_share_a_form() -> None:
    def kernel(planes: int, height: int, width: int) -> plane_pool.PlanePool:
        x = np.zeros((1, planes, height, width), np.float32)
        attributes = {**window((3, 3), (2, 2), (1, 1, 1, 1)), "storage_order": 0}
        case = Case(plane_pool, "MaxPoolWithIndices", [x], attributes)
        found = case.lower(host(), False).calls[0].kernel
        assert isinstance(found, plane_pool.PlanePool)
        return found

    assert shared(kernel(*size) for size in ((3, 40, 50), (5, 37, 65), (2, 200, 161)))


def test_maps_of_too_many_pixels_are_refused() -> None:
    attributes = {**window((2, 2), (2, 2)), "storage_order": 0}
    case = Case(plane_pool, "MaxPoolWithIndices", [numbers((1, 1, 4, 4), UINT8)], attributes)
    case.graph.types["x0"] = TensorType((1, 1, 1 << 16, 1 << 15), UINT8)  # type: ignore[index]
    with pytest.raises(UnsupportedError, match="maps of 2147483648 pixels; expected fewer than"):
        case.lower(host(), False)


def test_nothing_is_called_on_any_machine() -> None:
    for name in ("neoverse-n1", "icelake-server", "haswell"):
        target = preset(name)
        for dtype in TYPES:
            attributes = {**window((3, 3), (2, 2), (1, 1, 1, 1)), "storage_order": 1}
            case = Case(
                plane_pool, "MaxPoolWithIndices", [numbers((1, 2, 9, 70), dtype)], attributes
            )
            text = assembly(case.lower(target, False).calls[0].kernel, target)
            assert "call" not in text
            assert "\tbl\t" not in text
