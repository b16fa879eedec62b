"""Operations on codes have the bits of ONNX Runtime's fused operators."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from leanconv.graph.ops import evaluate
from leanconv.graph.ops.quantised import fma
from leanconv.graph.passes.expand_quantised import expand_quantised
from leanconv.types import FLOAT32, INT8, UINT8, DType
from support.interpret import interpret
from support.nodes import one_node
from support.quantised_models import microsoft, model, peer

F = np.float32
CODES = pytest.mark.parametrize("dtype", [UINT8, INT8])
_SEEDS = st.integers(0, 1 << 32)


def all_codes(dtype: DType) -> np.ndarray:
    return np.arange(int(dtype.low), int(dtype.high) + 1).astype(dtype)


def drawn(seed: int, dtype: DType, count: int) -> tuple[np.random.Generator, dict[str, Any]]:
    """Scales (equal ones, and powers of two, too: halves are frequent then) and zero points."""
    rng = np.random.default_rng(seed)
    scales = rng.uniform(0.001, 0.1, count).astype(F)
    if rng.integers(3) == 0:
        scales[:] = scales[0]
    elif rng.integers(2):
        scales[:] = F(2.0) ** rng.integers(-8, -2, count)
    zeros = rng.integers(int(dtype.low), int(dtype.high) + 1, count)
    numbers = {"scales": tuple(map(float, scales)), "zeros": tuple(map(int, zeros))}
    return rng, {**numbers, "low": int(dtype.low), "high": int(dtype.high), "dtype": dtype}


def quantisation(attributes: dict[str, Any], names: str) -> dict[str, np.ndarray]:
    """Constants `as`, `az`, ... for the tensors that are called by these letters."""
    held = {}
    for name, scale, zero in zip(names, attributes["scales"], attributes["zeros"], strict=True):
        held[f"{name}s"], held[f"{name}z"] = F(scale), np.array(zero, attributes["dtype"])
    return held


@CODES
@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("seed", range(12))
def test_all_pairs_of_codes(op: str, dtype: DType, seed: int) -> None:
    _, attributes = drawn(seed, dtype, 3)
    codes = all_codes(dtype)
    a, b = np.repeat(codes, 256), np.tile(codes, 256)
    node = microsoft(op, ["a", "as", "az", "b", "bs", "bz", "ys", "yz"])
    made = model([node], {"a": a, "b": b}, quantisation(attributes, "aby"))
    (expected,) = peer(made, {"a": a, "b": b})
    (found,) = evaluate(op, [a, b], attributes)
    np.testing.assert_array_equal(found, expected)


@CODES
@given(seed=_SEEDS)
def test_quantise_and_dequantise(dtype: DType, seed: int) -> None:
    rng, attributes = drawn(seed, dtype, 1)
    x = (rng.standard_normal(300) * 200 * attributes["scales"][0]).astype(F)
    x[:6] = 0.0, -0.0, np.inf, -np.inf, np.nan, F(3.4e38)
    held = quantisation(attributes, "y")
    names = ["ys", "yz"]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", *names], ["y"]),
        helper.make_node("DequantizeLinear", ["c", *names], ["z"]),
    ]
    given_ = {"x": x, "c": all_codes(dtype)}
    q, d = peer(model(nodes, given_, held, ("y", "z")), given_)
    parameters = [held[name] for name in names]
    np.testing.assert_array_equal(evaluate("QuantizeLinear", [x, *parameters], {"axis": 0})[0], q)
    made = evaluate("DequantizeLinear", [given_["c"], *parameters], {"axis": 0, "dtype": FLOAT32})
    np.testing.assert_array_equal(made[0], d)


@CODES
@given(seed=_SEEDS)
def test_global_average_pool(dtype: DType, seed: int) -> None:
    rng, attributes = drawn(seed, dtype, 2)
    shape = (1, 20, *rng.integers(1, 9, 2))
    x = rng.integers(int(dtype.low), int(dtype.high) + 1, shape).astype(dtype)
    node = microsoft("QLinearGlobalAveragePool", ["x", "xs", "xz", "ys", "yz"], channels_last=0)
    (expected,) = peer(model([node], {"x": x}, quantisation(attributes, "xy")), {"x": x})
    (found,) = evaluate("QLinearGlobalAveragePool", [x], attributes)
    np.testing.assert_array_equal(found, expected)


@CODES
@given(seed=_SEEDS)
def test_average_pool(dtype: DType, seed: int) -> None:
    rng, attributes = drawn(seed, dtype, 2)
    x = rng.integers(int(dtype.low), int(dtype.high) + 1, (1, 5, 9, 8)).astype(dtype)
    kernel = tuple(map(int, rng.integers(1, 4, 2)))
    window = {
        "kernel_shape": kernel,
        "strides": tuple(map(int, rng.integers(1, 3, 2))),
        "pads": tuple(int(rng.integers(0, k)) for k in kernel * 2),
        "ceil_mode": 0,
        "count_include_pad": int(rng.integers(2)),
    }
    node = microsoft("QLinearAveragePool", ["x", "xs", "xz", "ys", "yz"], **window)
    (expected,) = peer(model([node], {"x": x}, quantisation(attributes, "xy")), {"x": x})
    full = {**attributes, **window, "dilations": (1, 1)}
    (found,) = evaluate("QLinearAveragePool", [x], full)
    np.testing.assert_array_equal(found, expected)


@CODES
@given(seed=_SEEDS)
def test_softmax(dtype: DType, seed: int) -> None:
    rng, attributes = drawn(seed, dtype, 2)
    if rng.integers(2):  # the result's steps are usually those of 0 to 1, and may be any
        attributes["scales"] = (attributes["scales"][0], float(F(rng.choice([1 / 256, 1e-6, 3.0]))))
    x = rng.integers(int(dtype.low), int(dtype.high) + 1, (2, int(rng.integers(1, 40)), 3))
    axis = int(rng.integers(3))
    node = microsoft("QLinearSoftmax", ["x", "xs", "xz", "ys", "yz"], axis=axis, opset=13)
    x = x.astype(dtype)
    (expected,) = peer(model([node], {"x": x}, quantisation(attributes, "xy")), {"x": x})
    (found,) = evaluate("QLinearSoftmax", [x], {**attributes, "axis": axis})
    np.testing.assert_array_equal(found, expected)


@CODES
def test_softmax_of_equal_codes(dtype: DType) -> None:
    """Shares are halves of a code then, so that the last bit of each step decides."""
    rng = np.random.default_rng(0)
    for scale, count in itertools.product((1 / 256, 0.0086, 1e-3, 1e-4), (2, 3, 5, 8, 11)):
        x = (rng.integers(0, 3, (4000, count)) + int(dtype.low)).astype(dtype)
        scales = (float(F(rng.uniform(0.001, 0.05))), float(F(scale)))
        attributes = {"scales": scales, "zeros": (0, int(dtype.low)), "dtype": dtype}
        attributes |= {"low": int(dtype.low), "high": int(dtype.high)}
        node = microsoft("QLinearSoftmax", ["x", "xs", "xz", "ys", "yz"], axis=1, opset=13)
        (expected,) = peer(model([node], {"x": x}, quantisation(attributes, "xy")), {"x": x})
        (found,) = evaluate("QLinearSoftmax", [x], {**attributes, "axis": 1})
        np.testing.assert_array_equal(found, expected)


@CODES
@given(seed=_SEEDS)
def test_matmul(dtype: DType, seed: int) -> None:
    rng, attributes = drawn(seed, dtype, 3)
    m, k, n = rng.integers(1, 20, 3)
    codes = int(dtype.low), int(dtype.high) + 1
    a = rng.integers(*codes, (2, m, k)).astype(dtype)
    b = rng.integers(*codes, (2, k, n)).astype(dtype)
    node = helper.make_node("QLinearMatMul", ["a", "as", "az", "b", "bs", "bz", "ys", "yz"], ["y"])
    given_ = {"a": a, "b": b}
    (expected,) = peer(model([node], given_, quantisation(attributes, "aby")), given_)
    (found,) = evaluate("QLinearMatMul", [a, b], attributes)
    np.testing.assert_array_equal(found, expected)


@CODES
def test_a_table_is_read_by_bytes(dtype: DType) -> None:
    table = np.arange(256, dtype=F)
    (found,) = evaluate("Lookup", [all_codes(dtype), table], {})
    np.testing.assert_array_equal(found, all_codes(dtype).view(np.uint8))


def test_sums_are_rounded_once() -> None:
    """1 + 2^-24 + 2^-60 lies above the middle of two numbers, which float64 cannot tell."""
    a, one = np.array(F(2.0**-30)), np.array(F(1 + 2.0**-23))
    assert fma(a, a, one) == F(1 + 2.0**-23)
    half = np.array(F(2.0**-24))
    assert fma(half, np.array(F(1 + 2.0**-23)), np.array(F(1.0))) == F(1 + 2.0**-23)


@pytest.mark.parametrize("shape", [(1,), (7,), (2, 3, 5)])
@pytest.mark.parametrize("odd", [0.0, np.inf, np.nan])
def test_both_ends_are_two_reductions_where_no_kernel_takes_them_at_once(
    shape: tuple[int, ...], odd: float
) -> None:
    x = np.random.default_rng(0).normal(size=shape).astype(F)
    x.flat[-1] += F(odd)
    graph = one_node("Extremes", {"x": x}, {}, ("x",), {})[1]
    expanded = expand_quantised(graph)
    assert "Extremes" not in {node.op for node in expanded.nodes}
    for each in (graph, expanded):
        (found,) = interpret(each, {"x": x}).values()
        np.testing.assert_array_equal(found, [x.min(), x.max()])
