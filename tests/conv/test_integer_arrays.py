"""`conv2d` of bytes by bytes: exact sums in int32, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import leanconv as lc
from leanconv.errors import InputError, LeanConvError, SpecError

RNG = np.random.default_rng(0)
CASES: list[dict[str, Any]] = [
    {"x": (2, 3, 13, 17), "w": (5, 3, 3, 3), "stride": 2, "padding": 1},
    {"x": (1, 16, 9, 9), "w": (16, 1, 3, 3), "padding": 1, "groups": 16},
    {"x": (2, 8, 7, 7), "w": (12, 2, 5, 5), "padding": 9, "dilation": 2, "groups": 4},
    {"x": (1, 1, 1, 1), "w": (1, 1, 1, 1)},
    {"x": (1, 20, 11), "w": (7, 20, 3), "padding": 1},
]
TYPES = [(x, w) for x in ("uint8", "int8") for w in ("uint8", "int8")]


def any_bytes(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    kind = np.iinfo(dtype)
    return RNG.integers(kind.min, kind.max + 1, shape, dtype)


def exact(x: np.ndarray, w: np.ndarray, bias: np.ndarray | None = None, **more: Any) -> np.ndarray:
    added = None if bias is None else bias.astype(np.float64)
    return lc.conv2d(x.astype(np.float64), w.astype(np.float64), added, algorithm="naive", **more)


@pytest.mark.parametrize(("x_type", "w_type"), TYPES)
def test_sums_are_exact(x_type: str, w_type: str) -> None:
    for case in CASES:
        more = {name: value for name, value in case.items() if name not in ("x", "w")}
        x, w = any_bytes(case["x"], x_type), any_bytes(case["w"], w_type)
        bias = RNG.integers(-1000, 1000, len(w)).astype(np.int32)
        right = exact(x, w, bias, **more)
        found = lc.conv2d(x, w, bias, **more)
        assert found.dtype == np.int32
        assert np.array_equal(found, right)
        last = np.ascontiguousarray(np.moveaxis(x, 1, -1))
        found = lc.conv2d(last, w, bias, layout="NHWC", **more)
        assert np.array_equal(np.moveaxis(found, -1, 1), right)


@pytest.mark.parametrize("algorithm", ["direct", "winograd:m=2", "winograd:m=4"])
def test_an_algorithm_is_chosen_by_name(algorithm: str) -> None:
    x, w = any_bytes((1, 24, 15, 18), "uint8"), any_bytes((20, 24, 3, 3), "int8")
    plan = lc.plan_conv2d(x.shape, w, padding=1, algorithm=algorithm, threads=2)
    y = np.full((1, 20, 15, 18), -1, np.int32)
    assert plan(x, out=y) is y
    assert np.array_equal(y, exact(x, w, padding=1))
    assert plan.used_bytes == plan.memory_bytes
    assert plan.algorithm == algorithm.split(":")[0]
    assert plan.selector.startswith(algorithm)
    assert plan.predicted_error == 0


def test_changed_weights_and_other_types_are_noticed() -> None:
    x, w = any_bytes((1, 4, 6, 6), "uint8"), any_bytes((4, 4, 3, 3), "int8")
    lc.conv2d(x, w)
    w[...] = 1
    assert np.array_equal(lc.conv2d(x, w), exact(x, w))
    signed = x.view(np.int8)
    assert np.array_equal(lc.conv2d(signed, w), exact(signed, w))
    plan = lc.plan_conv2d(x.shape, w, x_dtype="int8")
    assert np.array_equal(plan(signed), exact(signed, w))
    with pytest.raises(InputError, match="x is uint8.*expected int8"):
        plan(x)


def test_one_image_and_no_images() -> None:
    x, w = any_bytes((4, 6, 6), "uint8"), any_bytes((5, 4, 3, 3), "int8")
    assert np.array_equal(lc.conv2d(x, w), exact(x, w))
    assert lc.conv2d(np.zeros((0, 4, 6, 6), np.uint8), w).shape == (0, 5, 4, 4)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"activation": "relu"}, "activation is given for weights of int8; expected none"),
        ({"precision": "float16"}, "precision is given for weights of int8"),
        ({"tune": True}, "tune is given for weights of int8"),
        ({"bias": np.zeros(5, np.float32)}, "bias is float32.*expected int32"),
        ({"residual": np.zeros((1, 5, 4, 4), np.int32)}, "residual is given"),
    ],
)
def test_what_integers_do_not_take_is_refused(more: dict[str, Any], message: str) -> None:
    x, w = any_bytes((1, 4, 6, 6), "uint8"), any_bytes((5, 4, 3, 3), "int8")
    with pytest.raises(LeanConvError, match=message):
        lc.conv2d(x, w, **more)


def test_floats_by_integers_are_refused() -> None:
    w = any_bytes((5, 4, 3, 3), "int8")
    with pytest.raises(InputError, match="x is float32 and w int8; expected x of uint8 or int8"):
        lc.conv2d(np.zeros((1, 4, 6, 6), np.float32), w)
    with pytest.raises(SpecError, match="x_dtype is 'uint8' for w of float32"):
        lc.plan_conv2d((1, 4, 6, 6), w.astype(np.float32), x_dtype="uint8")
