"""Stated errors hold for results and inputs of the stated sizes, and for weights of any size."""

from __future__ import annotations

import functools
import re

import numpy as np
import pytest

import leanconv as lc
from leanconv.reference.direct import convolve
from leanconv.types import FLOAT32, FLOAT64
from support.onnx_models import Const, single

METHODS = (
    "naive", "direct", "planar", "depthwise", "im2col", "mec", "im2win", "winograd", "winograd:m=2",
    "winograd:form=stages", "fft:tile=16", "fft:tile=32",
)  # fmt: skip
# Powers of two, so that nothing is rounded before it vanishes.
SMALL = {FLOAT32: (-66, -83, -93, -97, -100, -103, -106, -110, -113, -116, -120, -123)}
SMALL[FLOAT64] = (-930, -960, -970, -980, -990, -1000, -1010, -1016)
HUGE = {FLOAT32: (66, 90, 97, 100, 103, 106, 110, 114, 117, 120), FLOAT64: (930, 970, 1000)}
FLOOR = {FLOAT32: 1e-28, FLOAT64: 1e-289}  # for data and weights of size 1
CEILING = {FLOAT32: 1e27, FLOAT64: 1e295}


@functools.cache
def _case(algorithm: str, dtype: str) -> tuple[lc.ConvPlan, np.ndarray, np.ndarray]:
    """A plan, its input, and what is exact: in float64, or with an error far below the stated."""
    groups, layout = (16, "NHWC") if algorithm == "depthwise" else (1, "NCHW")
    draw = np.random.default_rng(3)
    x = draw.standard_normal((1, 17, 19, 16) if groups > 1 else (1, 16, 17, 19)).astype(dtype)
    w = draw.standard_normal((16, 16 // groups, 3, 3)).astype(dtype)
    plan = lc.plan_conv2d(
        x.shape, w, padding=1, groups=groups, algorithm=algorithm, threads=1, layout=layout
    )
    wide = np.longdouble if dtype == "float64" else np.float64
    return plan, x, convolve(plan.spec, x.astype(wide), w.astype(wide))


def _error(y: np.ndarray, exact: np.ndarray) -> float:
    return float(np.abs(y - exact).max() / np.abs(exact).max())


@pytest.mark.drawn
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
@pytest.mark.parametrize("algorithm", METHODS)
def test_small_data_keep_the_error_down_to_the_least_result(algorithm: str, dtype: str) -> None:
    plan, x, exact = _case(algorithm, dtype)
    least, largest = plan.magnitudes.least_result, float(np.abs(exact).max())
    assert least < FLOOR[dtype]
    outside = []
    for exponent in SMALL[dtype]:
        factor = np.ldexp(1.0, exponent)
        y = plan(x * x.dtype.type(factor))
        error = _error(np.ldexp(y.astype(exact.dtype), -exponent), exact)
        if largest * factor >= least:
            assert error <= plan.predicted_error, exponent
        else:
            outside.append(error)
    assert max(outside) > plan.predicted_error, "the least result could be a smaller one"


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
@pytest.mark.parametrize("algorithm", METHODS)
def test_huge_data_keep_the_error_up_to_the_largest_input(algorithm: str, dtype: str) -> None:
    plan, x, exact = _case(algorithm, dtype)
    most, largest = plan.magnitudes.most_input, float(np.abs(x).max())
    assert most > CEILING[dtype]
    inside = 0
    for exponent in HUGE[dtype]:
        if largest * np.ldexp(1.0, exponent) > most:
            continue
        y = plan(x * x.dtype.type(np.ldexp(1.0, exponent)))
        error = _error(np.ldexp(y.astype(exact.dtype), -exponent), exact)
        assert error <= plan.predicted_error, exponent
        inside += 1
    assert inside > 1


@functools.cache
def _gradient(
    algorithm: str, need: str, dtype: str
) -> tuple[lc.GradientPlan, list[np.ndarray], np.ndarray]:
    """A plan, what it reads, and what is exact."""
    groups = 16 if algorithm == "depthwise" else 1
    shapes, draw = ((2, 16, 17, 19), (16, 16 // groups, 3, 3)), np.random.default_rng(3)

    def plan(of: str, name: str) -> lc.GradientPlan:
        given = {"padding": 1, "groups": groups, "needs": (need,), "dtype": of, "threads": 1}
        return lc.plan_conv2d_backward(*shapes, **given, algorithm=name)  # type: ignore[arg-type]

    made = plan(dtype, algorithm)
    arrays = [draw.standard_normal(each).astype(dtype) for each in (*shapes, made.dy_shape)]
    wide = [np.asarray(each, np.float64) for each in arrays]
    exact = next(each for each in plan("float64", "naive")(*wide) if each is not None)
    return made, arrays, exact


@pytest.mark.parametrize(
    ("algorithm", "need"),
    [(name, "w") for name in ("direct", "winograd", "mec", "im2col", "naive", "depthwise")]
    + [(name, "x") for name in ("direct", "winograd", "planar", "naive")],
)
def test_gradients_keep_the_error_between_their_magnitudes(algorithm: str, need: str) -> None:
    plan, (x, w, dy), exact = _gradient(algorithm, need, FLOAT32)
    given, sums = (x, np.abs(dy).sum((0, 2, 3))) if need == "w" else (dy, np.abs(w).sum((0, 2, 3)))
    bounds, largest = plan.magnitudes, float(np.abs(exact).max())
    assert bounds.least_result < FLOOR[FLOAT32]
    assert f"errors are {bounds}" in plan.explain()
    most = bounds.most_input / max(1.0, float(sums.max()))
    inside, below = 0, []
    for exponent in (*SMALL[FLOAT32], *HUGE[FLOAT32]):
        factor = float(np.ldexp(1.0, exponent))
        scaled = given * np.float32(factor)
        with np.errstate(all="ignore"):
            found = plan(scaled, w, dy) if need == "w" else plan(x, w, scaled)
            result = next(each for each in found if each is not None)
            error = _error(np.ldexp(result.astype(np.float64), -exponent), exact)
        if largest * factor < bounds.least_result:
            below.append(error)
        elif float(np.abs(given).max()) * factor <= most:
            assert error <= plan.predicted_error, exponent
            inside += 1
    assert inside > 5
    assert max(below) > plan.predicted_error, "the least result could be a smaller one"


@pytest.mark.parametrize("exponent", range(-126, -50, 4))
def test_small_weights_are_not_transformed(exponent: int) -> None:
    draw = np.random.default_rng(5)
    x = draw.standard_normal((1, 32, 40, 40)).astype(np.float32)
    w = draw.standard_normal((32, 32, 3, 3)).astype(np.float32)
    small = np.ldexp(w, exponent)
    plan = lc.plan_conv2d(x.shape, small, padding=1)
    exact = convolve(plan.spec, x.astype(np.float64), small.astype(np.float64))
    error = _error(plan(x).astype(np.float64), exact)
    if np.abs(exact).max() >= plan.magnitudes.least_result:
        assert error <= plan.predicted_error
    else:
        assert exponent < -100, plan.magnitudes
    if exponent < -84:  # the largest weight is some 4
        assert plan.algorithm not in ("winograd", "fft")
        assert "winograd: weights so small" in plan.explain()


def test_weights_of_zeros_are_not_small() -> None:
    shape = (1, 32, 40, 40)
    zeros = np.zeros((32, 32, 3, 3), np.float32)
    assert lc.plan_conv2d(shape, zeros, padding=1).algorithm == "sparse"
    none = lc.plan_conv2d(shape, zeros, padding=1, algorithm="winograd")
    assert none.magnitudes.least_result == 0


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
@pytest.mark.parametrize("value", ["max", "tiny", "inf", "nan"])
def test_weights_at_the_ends_of_the_range_are_planned(dtype: str, value: str) -> None:
    number = getattr(np, value) if value in ("inf", "nan") else getattr(np.finfo(dtype), value)
    w = np.full((16, 16, 3, 3), number, dtype)
    plan = lc.plan_conv2d((1, 16, 20, 20), w, padding=1)
    assert "the error is" in plan.explain()
    if value in ("tiny", "inf"):
        assert plan.magnitudes.least_result == np.inf


def test_a_named_transform_of_lost_weights_states_nothing() -> None:
    w = np.full((16, 16, 3, 3), 1e-30, np.float32)
    plan = lc.plan_conv2d((1, 16, 20, 20), w, padding=1, algorithm="winograd")
    assert plan.magnitudes.least_result == np.inf
    assert "the error is not stated" in plan.explain()
    plan.repack(np.ones_like(w), None)
    assert plan.magnitudes.least_result < 1e-28


@pytest.mark.parametrize("memory_limit", [None, "10 MiB"])
@pytest.mark.parametrize("scale", [1.0, 1e-30])
def test_a_network_says_where_its_errors_hold(scale: float, memory_limit: str | None) -> None:
    draw = np.random.default_rng(7)
    w = (draw.standard_normal((32, 32, 3, 3)) * scale).astype(np.float32)
    x = draw.standard_normal((1, 32, 40, 40)).astype(np.float32)
    model, _ = single("Conv", (x, Const(w)), 17, pads=[1, 1, 1, 1])
    net = lc.load(model, memory_limit=memory_limit)
    net(x)
    found = re.search(
        r"largest results of at least (\S+) and inputs of at most (\S+) ", net.explain()
    )
    assert found
    assert 1e-33 < float(found[1]) < 1e-28
    assert 1e28 < float(found[2]) < 1e39
    (algorithm,) = {step.algorithm for step in net.plan.steps if step.op == "Conv"}
    assert scale == 1.0 or algorithm not in ("winograd", "fft")
