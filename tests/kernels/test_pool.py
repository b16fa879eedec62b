"""Pooling against NumPy: exact for maxima and sums of whole numbers, all attributes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from leanconv.codegen.host import host
from leanconv.errors import ModelError
from leanconv.kernels import pool
from leanconv.target import Target, preset
from leanconv.types import FLOAT32, FLOAT64
from support.nodes import DTYPES, TARGETS, Case, distinct, integers
from support.pools import window

targets = pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
dtypes = pytest.mark.parametrize("dtype", DTYPES)
ops = pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])


def check(case: Case, target: Target) -> None:
    """A maximum is exact; a mean is one division away from an exact sum."""
    wanted = case.expected(FLOAT64)
    got = case.run(target, True)
    if case.node.op == "MaxPool":
        assert np.array_equal(got, wanted)
    else:
        scale = np.abs(case.values["x0"]).max()
        assert np.abs(got - wanted).max() <= 2 * np.finfo(got.dtype).eps * scale


CASES = [
    ((2, 17, 9, 9), window((3, 3), (2, 2), (1, 1, 1, 1))),
    ((1, 16, 56, 56), window((3, 3), (2, 2), (0, 0, 1, 1))),
    ((1, 33, 7, 7), window((7, 7))),
    ((2, 8, 6, 5), window((2, 2), (2, 2))),
    ((1, 15, 12, 11), window((3, 2), (1, 3), (1, 0, 2, 1), ceil=True)),
    ((1, 9, 13, 14), window((3, 3), (2, 2), (2, 1, 1, 2), (2, 3))),
    ((1, 16, 13, 13), window((13, 13), (1, 1), (6, 6, 6, 6))),
    ((1, 16, 5, 70), window((2, 40), (1, 1), (1, 39, 1, 39))),
    ((1, 16, 3, 40), window((1, 20), (1, 3))),
    ((1, 7, 10), window((4,), (3,), (1, 2), ceil=True)),
    ((2, 17, 4, 5, 6), window((2, 3, 3), (2, 1, 2), (1, 0, 1, 0, 2, 1))),
    ((1, 16, 6, 7, 8), window((3, 3, 3), (2, 2, 2), (1, 1, 1, 1, 1, 1), ceil=True)),
    ((1, 1, 1, 1), window((1, 1))),
    ((1, 16, 4, 4), window((2, 2), (5, 5), (0, 0, 1, 1), ceil=True)),
    ((1, 17, 2, 2), window((3, 3), (2, 2), (0, 0, 0, 0), ceil=True)),
    ((1, 3, 1, 2), window((5, 4), (5, 3), (1, 0, 0, 0), ceil=True)),
]


# A maximum counts no padding, whatever is said of it.
@pytest.mark.drawn
@pytest.mark.pairs(("target", "dtype"))  # the lanes
@pytest.mark.parametrize(
    ("op", "include"), [("MaxPool", True), ("AveragePool", False), ("AveragePool", True)]
)
@targets
@dtypes
@pytest.mark.parametrize(("shape", "attributes"), CASES, ids=str)
def test_pool(
    op: str,
    target: Target,
    dtype: str,
    include: bool,
    shape: tuple[int, ...],
    attributes: dict[str, Any],
) -> None:
    attributes = {**attributes, "count_include_pad": include}
    check(Case(pool, op, [integers(shape, dtype, most=99)], attributes), target)


def test_few_channels_and_large_windows_are_pooled_in_planes() -> None:
    cases = ((16, 3, 1, True), (9, 5, 1, True), (3, 3, 1, False), (64, 7, 1, False))
    for channels, taps, stride, blocked in (*cases, (64, 7, 7, True)):
        attributes = window((taps, taps), (stride, stride))
        case = Case(pool, "MaxPool", [integers((1, channels, 9, 9), FLOAT32)], attributes)
        assert case.accepts(preset("skylake-avx512")) == blocked


def axis_settings(draw: st.DrawFn) -> tuple[int, ...]:
    kernel, dilation = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    reach = (kernel - 1) * dilation
    return (
        kernel,
        draw(st.integers(1, 4)),
        dilation,
        draw(st.integers(0, reach)),
        draw(st.integers(0, reach)),
        draw(st.integers(1, 19)),
    )


@st.composite
def pool_cases(draw: st.DrawFn) -> tuple[str, tuple[int, ...], dict[str, Any]]:
    axes = [axis_settings(draw) for _ in range(draw(st.integers(1, 3)))]
    kernel, strides, dilations, before, after, extents = zip(*axes, strict=True)
    shape = (draw(st.integers(1, 2)), draw(st.integers(1, 17)), *extents)
    ceil, include = draw(st.booleans()), draw(st.booleans())
    attributes = window(kernel, strides, before + after, dilations, ceil, include)
    return draw(st.sampled_from(["MaxPool", "AveragePool"])), shape, attributes


def test_any_pool() -> None:
    taken = []

    @settings(max_examples=60, deadline=None)
    @given(pool_cases())
    def each(drawn: tuple[str, tuple[int, ...], dict[str, Any]]) -> None:
        op, shape, attributes = drawn
        try:
            case = Case(pool, op, [integers(shape, FLOAT32)], attributes)
        except ModelError as error:
            if "does not fit an input of extent" not in str(error):
                raise
            return
        check(case, host())
        taken.append(drawn)

    each()
    assert len(taken) >= 20


def test_windows_that_touch_nothing_hold_the_least_number() -> None:
    attributes = window((2, 2), (1, 1), (2, 2, 2, 2), (2, 2))
    x = integers((1, 16, 1, 1), FLOAT32)
    for op in ("MaxPool", "AveragePool"):
        case = Case(pool, op, [x], attributes)
        assert np.array_equal(case.run(host(), True), case.expected())


def test_infinities_and_unused_lanes() -> None:
    x = distinct((1, 5, 4, 4), FLOAT32)
    x[0, 0], x[0, 1, 0, 0] = -np.inf, np.inf
    for op in ("MaxPool", "AveragePool"):
        case = Case(pool, op, [x], window((2, 2), (2, 2)))
        assert np.array_equal(case.run(host(), True), case.expected())


@targets
@ops
@pytest.mark.parametrize("number", [0, 1, 3, 6, 9], ids=lambda n: str(CASES[n][1]["kernel_shape"]))
def test_nan_in_a_window_gives_nan_and_elsewhere_nothing(
    op: str, target: Target, number: int
) -> None:
    """Of either sign, at every tap of some window, beside infinities."""
    shape, attributes = CASES[number]
    x = integers(shape, FLOAT32, most=99)
    random = np.random.default_rng(number)
    places = random.permutation(x.size)[: max(2, x.size // 60)]
    x.reshape(-1)[places] = np.nan
    x.reshape(-1)[places[::2]] = -np.float32(np.nan)
    x.reshape(-1)[(places[::3] + 1) % x.size] = np.inf
    case = Case(pool, op, [x], attributes)
    with np.errstate(invalid="ignore"):
        wanted = case.expected()
    got = case.run(target, True)
    assert np.isnan(wanted).any()
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("include", [0, 1])
@pytest.mark.parametrize("ceil", [0, 1])
@ops
def test_pool_is_onnxruntimes(op: str, ceil: int, include: int) -> None:
    x = integers((1, 18, 11, 10), FLOAT32)
    names = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 0, 1, 1], "ceil_mode": ceil}
    if op == "AveragePool":
        names["count_include_pad"] = include
    node = helper.make_node(op, ["x"], ["y"], **names)
    tensors = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "xy"]
    graph = helper.make_graph([node], "g", tensors[:1], tensors[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (wanted,) = session.run(None, {"x": x})
    attributes = window((3, 3), (2, 2), (1, 0, 1, 1), ceil=bool(ceil), include=bool(include))
    got = Case(pool, op, [x], attributes).run(host(), True)
    assert np.allclose(got, wanted, rtol=1e-6, atol=1e-6)


@ops
def test_inner_loop_has_no_spills(op: str) -> None:
    attributes = window((3, 3), (2, 2), (1, 1, 1, 1))
    case = Case(pool, op, [integers((1, 64, 28, 28), FLOAT32)], attributes)
    for name in ("skylake-avx512", "haswell"):
        text = case.assembles(preset(name), True)
        assert not re.findall(r"v\w+\s+.*[yz]mm\d+, -?\d*\(%rsp\)", text)
    assert case.assembles(preset("neoverse-n1"), True)
