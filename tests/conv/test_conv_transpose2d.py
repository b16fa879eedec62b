"""`conv_transpose2d`: exact small integers, PyTorch's arguments; images without a batch axis."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper

import leanconv as lc
from support.onnx_models import model

# x, w, arguments: strides above, at and below the kernel; phases without taps; groups; dilations.
CASES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 8, 7, 9), (8, 3, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2}),
    ((1, 3, 5, 4), (3, 5, 2, 2), {"stride": 2}),
    ((1, 4, 1, 1), (4, 2, 5, 3), {}),
    ((3, 6, 4, 5), (6, 1, 3, 3), {"groups": 6, "padding": (0, 1, 2, 0)}),
    ((1, 2, 3, 5), (2, 7, 2, 2), {"stride": (3, 1), "output_padding": (2, 0)}),
    ((2, 5, 6, 3), (5, 4, 3, 2), {"dilation": (2, 3), "stride": (1, 2), "padding": 1}),
    ((1, 17, 4, 4), (17, 33, 4, 4), {"stride": 4, "bias": False}),
    ((2, 3, 9), (3, 4, 4), {"stride": 2, "padding": 1}),
    ((1, 2, 3, 4, 3), (2, 3, 2, 3, 2), {"stride": 2, "output_padding": 1, "dilation": 2}),
]


def expected(
    x: np.ndarray, w: np.ndarray, bias: np.ndarray | None, given: dict[str, Any]
) -> np.ndarray:
    rank = x.ndim - 2

    def each(name: str, default: int) -> list[int]:
        value = given.get(name, default)
        return [value] * rank if isinstance(value, int) else list(value)

    pads = each("padding", 0)
    node = helper.make_node(
        "ConvTranspose",
        ["x", "w", *(["bias"] if bias is not None else [])],
        ["y"],
        strides=each("stride", 1),
        dilations=each("dilation", 1),
        output_padding=each("output_padding", 0),
        pads=pads if len(pads) == 2 * rank else pads * 2,
        group=given.get("groups", 1),
    )
    constants = {"w": w} if bias is None else {"w": w, "bias": bias}
    elem = 1 if x.dtype == np.float32 else 11
    made = model([node], {"x": x.shape}, ["y"], constants, elem_type=elem)
    return np.asarray(onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": x})[0])


def whole(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


@pytest.mark.drawn
@pytest.mark.parametrize(("x_shape", "w_shape", "given"), CASES)
def test_integers_are_exact(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], given: dict[str, Any]
) -> None:
    given = dict(given)
    has_bias = given.pop("bias", True)
    x, w = whole(x_shape, "f4", 0), whole(w_shape, "f4", 1)
    bias = whole((w_shape[1] * given.get("groups", 1),), "f4", 2) if has_bias else None
    y = expected(x, w, bias, given)
    np.testing.assert_array_equal(lc.conv_transpose2d(x, w, bias, **given, threads=1), y)
    np.testing.assert_array_equal(lc.conv_transpose2d(x[0], w, bias, **given, threads=1), y[0])
    plan = lc.plan_conv_transpose2d(x.shape, w, bias, **given, threads=1)
    out = np.full(plan.spec.output_shape, np.nan, "f4")
    assert plan(np.asfortranarray(x), out=out) is out
    np.testing.assert_array_equal(out, y)
    assert plan.used_bytes == plan.memory_bytes
    assert "ConvTranspose" in plan.explain()
    assert lc.conv_transpose2d(x[:0], w, bias, **given).shape == (0, *y.shape[1:])


def test_doubles_and_rounding() -> None:
    random = np.random.default_rng(0)
    x, w = random.standard_normal((1, 12, 6, 7)), random.standard_normal((12, 5, 3, 3))
    y = lc.conv_transpose2d(x, w, stride=2, threads=1)
    assert y.dtype == np.float64
    found = lc.conv_transpose2d(x.astype("f4"), w.astype("f4"), stride=2, threads=1)
    assert abs(found - y).max() < 1e-5 * abs(y).max()


def test_arguments_are_in_the_order_of_pytorch() -> None:
    names = list(inspect.signature(lc.conv_transpose2d).parameters)[3:8]
    assert names == ["stride", "padding", "output_padding", "groups", "dilation"]
    planned = inspect.signature(lc.plan_conv_transpose2d).parameters
    convolved = inspect.signature(lc.conv_transpose2d).parameters
    apart = {"x_shape", "progress", "x", "w_shape", "x_dtype"}
    assert set(planned) ^ set(convolved) == apart
    assert all(
        convolved[n].default == planned[n].default for n in set(planned) & set(convolved) - {"w"}
    )


def test_weights_that_changed_are_packed_again() -> None:
    x, w = whole((1, 2, 3, 3), "f4", 0), whole((2, 2, 2, 2), "f4", 1)
    first = lc.conv_transpose2d(x, w)
    w *= 2
    np.testing.assert_array_equal(lc.conv_transpose2d(x, w), 2 * first)


X, W = np.zeros((1, 4, 5, 5), "f4"), np.zeros((4, 3, 3, 3), "f4")
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"output_padding": 1}, "output_padding is 1; expected 2 integer.s. of at least 0 and less"),
    ({"padding": 7}, "padding is 7; expected less: of 7x7 outputs it leaves"),
    ({"padding": "same"}, "padding is 'same'; expected one integer"),
    ({"stride": 0}, "stride is 0; expected 2 integer"),
    ({"groups": 3}, "groups that divide 4"),
    ({"w": W.swapaxes(0, 1)}, "w takes 3 .*give w.swapaxes"),
    ({"w": W[0, 0]}, "expected .N, C, spatial…. and .C, K/groups"),
    ({"w": W.astype("i4")}, "w is int32; expected float32 or float64"),
    ({"x": X.astype("f8")}, "x is float64.*expected float32"),
    ({"x": [1.0]}, "x is list; expected a NumPy array"),
    ({"bias": np.zeros(4, "f4")}, "bias is float32.4.; expected float32.3."),
    ({"w": W[:, :, :0]}, "expected extents of at least 1"),
    ({"memory_limit": 1}, "give memory_limit="),
    ({"threads": 0}, "threads is 0"),
]


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_wrong_arguments_are_refused_with_a_mend(given: dict[str, Any], message: str) -> None:
    with pytest.raises(lc.LeanConvError, match=message):
        lc.conv_transpose2d(**{"x": X, "w": W, **given})


def test_one_image_without_a_batch_axis() -> None:
    random = np.random.default_rng(1)
    x, w = random.standard_normal((3, 6, 7)).astype("f4"), np.ones((2, 3, 3, 3), "f4")
    np.testing.assert_array_equal(lc.conv2d(x, w), lc.conv2d(x[None], w)[0])
    added = np.ones((2, 4, 5), "f4")
    y = lc.conv2d(x, w, residual=added, activation="relu")
    np.testing.assert_array_equal(y, np.maximum(lc.conv2d(x, w) + 1, 0))
    last = np.ascontiguousarray(x.transpose(1, 2, 0))
    y = lc.conv2d(last, w, layout="NHWC")
    np.testing.assert_allclose(y.transpose(2, 0, 1), lc.conv2d(x, w), rtol=1e-5, atol=1e-5)
    one = lc.conv2d(x[:, 0], w[:, :, 0])
    np.testing.assert_array_equal(one, lc.conv2d(x[None, :, 0], w[:, :, 0])[0])
    with pytest.raises(lc.SpecError, match="with the same 1 to 3 spatial axes"):
        lc.plan_conv2d(x.shape, w)
