"""Elementary functions and activations against float64 (and longer) NumPy and the math module."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from leanconv.codegen import math as vector_math
from leanconv.codegen.emitter import Function, vector
from leanconv.spec.activation import KINDS, Activation
from leanconv.target import Target, preset
from leanconv.types import FLOAT32, FLOAT64
from support.listing import assembly
from support.nodes import TARGETS
from support.vector_functions import MathTestKernel, evaluate, exact, ulps

DTYPES = [FLOAT32, FLOAT64]
INF, NAN = np.inf, np.nan


def test_functions_of_types_without_coefficients_are_refused() -> None:
    """They would be those of double, to no more than half of its digits."""
    e = Function("f", [("x", "ptr")])
    x = e.load(e.address(0, "half"), vector("half", 8))
    with pytest.raises(KeyError, match="half"):
        vector_math.exp(e, x)


def spread(dtype: str, low: float, high: float, count: int = 20001) -> np.ndarray:
    """Numbers evenly spread, and numbers of both signs evenly spread in their exponents."""
    generator = np.random.default_rng(7)
    even = generator.uniform(low, high, count)
    small = generator.choice([-1.0, 1.0], count) * 10.0 ** generator.uniform(-12, 0, count)
    return np.concatenate([even, small]).astype(dtype)


def stable_log1p_exp(v: float) -> float:
    return max(v, 0.0) + math.log1p(math.exp(-abs(v)))


def stable_sigmoid(v: float) -> float:
    return 1.0 / (1.0 + math.exp(-v)) if v > -700 else 0.0


FUNCTIONS: dict[str, tuple[Callable[[float], float], float, dict[str, tuple[float, float]]]] = {
    "exp": (math.exp, 1.5, {FLOAT32: (-86.5, 88.7), FLOAT64: (-707.0, 709.0)}),
    "expm1": (math.expm1, 2.0, {FLOAT32: (-20.0, 87.0), FLOAT64: (-40.0, 700.0)}),
    "tanh": (math.tanh, 2.5, {FLOAT32: (-12.0, 12.0), FLOAT64: (-25.0, 25.0)}),
    "erf": (math.erf, 6.0, {FLOAT32: (-5.0, 5.0), FLOAT64: (-7.0, 7.0)}),
    "sigmoid": (stable_sigmoid, 3.0, {FLOAT32: (-86.0, 90.0), FLOAT64: (-690.0, 700.0)}),
    "softplus": (stable_log1p_exp, 3.0, {FLOAT32: (-86.0, 90.0), FLOAT64: (-690.0, 700.0)}),
}


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_within_its_ulps(name: str, dtype: str, target: Target) -> None:
    function, bound, ranges = FUNCTIONS[name]
    x = spread(dtype, *ranges[dtype])
    if dtype == FLOAT64:
        bound += 0.5  # the math module rounds too
    assert ulps(evaluate(name, x, target=target), exact(function, x)) <= bound


@pytest.mark.parametrize("dtype", DTYPES)
def test_log_over_all_exponents(dtype: str) -> None:
    generator = np.random.default_rng(3)
    limits = np.log(np.finfo(dtype).tiny), np.log(np.finfo(dtype).max)
    x = np.exp(generator.uniform(*limits, 20000)).astype(dtype)
    near_one = (1 + generator.normal(0, 0.1, 20000)).astype(dtype)
    subnormal = (np.finfo(dtype).tiny * generator.uniform(0.001, 1, 100)).astype(dtype)
    x = np.concatenate([x, np.abs(near_one), subnormal])
    assert ulps(evaluate("log", x), exact(math.log, x)) <= 2.0


@pytest.mark.parametrize("target", TARGETS[:2], ids=lambda t: t.name)
def test_tanh_and_sigmoid_over_all_floats(target: Target) -> None:
    """Every 2003rd pattern of bits: bounds, NaN, subnormal numbers; all were tried once."""
    x = np.arange(0, 1 << 32, 2003, dtype=np.uint64).astype(np.uint32).view(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        wide = x.astype(np.float64)
        exactly = {"tanh": (np.tanh(wide), 2.5), "sigmoid": (1 / (1 + np.exp(-wide)), 3.0)}
    for name, (expected, bound) in exactly.items():
        y = evaluate(name, x, target=target)
        np.testing.assert_array_equal(np.isnan(y), np.isnan(x))
        there = ~np.isnan(x)
        assert np.abs(y[there]).max() <= 1
        there &= (name == "tanh") | (x > -86)  # below, sigmoid becomes 0
        assert ulps(y[there], expected[there]) <= bound


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", DTYPES)
def test_tanh_has_the_sign_of_what_it_is_of(dtype: str, target: Target) -> None:
    """Whatever its size: zeros have a sign, too."""
    x = np.concatenate((np.abs(spread(dtype, 0.0, 12.0)), np.array([0.0, 1e-30, np.inf], dtype)))
    above, below = (evaluate("tanh", each, target=target) for each in (x, -x))
    np.testing.assert_array_equal(below, -above)
    assert not np.signbit(above).any()
    assert np.signbit(below).all()


SPECIAL = {
    "exp": {0.0: 1.0, INF: INF, -INF: 0.0, 1e30: INF, -1e30: 0.0},
    "expm1": {0.0: 0.0, -INF: -1.0, -1e30: -1.0},
    "log": {0.0: -INF, 1.0: 0.0, INF: INF, -1.0: NAN, -INF: NAN},
    "tanh": {0.0: 0.0, INF: 1.0, -INF: -1.0, 1e30: 1.0, -1e30: -1.0},
    "erf": {0.0: 0.0, INF: 1.0, -INF: -1.0, 1e30: 1.0, -1e30: -1.0},
    "sigmoid": {0.0: 0.5, INF: 1.0, -INF: 0.0, 1e30: 1.0, -1e30: 0.0},
    "softplus": {INF: INF, -INF: 0.0, 1e30: 1e30, -1e30: 0.0},
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SPECIAL)
def test_special_values(name: str, dtype: str) -> None:
    x = np.array([*SPECIAL[name], NAN], dtype)
    expected = np.array([*SPECIAL[name].values(), NAN], dtype)
    np.testing.assert_array_equal(evaluate(name, x), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bounded_functions_stay_within_their_bounds(dtype: str) -> None:
    x = np.linspace(-30, 30, 100001).astype(dtype)
    for name, low in (("tanh", -1), ("erf", -1), ("sigmoid", 0)):
        y = evaluate(name, x)
        assert y.min() >= low
        assert y.max() <= 1


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", DTYPES)
def test_power(dtype: str, target: Target) -> None:
    generator = np.random.default_rng(5)
    x = np.exp(generator.uniform(-8, 8, 5000))
    y = generator.uniform(-8, 8, 5000)
    x[::5] *= -1
    y[::5] = np.rint(y[::5])
    x, y = x.astype(dtype), y.astype(dtype)
    expected = np.array([math.pow(a, b) for a, b in zip(x.tolist(), y.tolist(), strict=True)])
    got = evaluate("power", x, y, target=target)
    if dtype == FLOAT32:
        assert ulps(got, expected) <= 1.0
    else:
        bound = (np.abs(y * np.log(np.abs(x))) + 2) * 2.0**-52
        assert (np.abs(got / expected - 1) <= bound).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_power_special_values(dtype: str) -> None:
    cases = [
        *((0.0, 2.0), (0.0, -1.0), (0.0, 0.0), (INF, 2.0), (INF, -2.0), (INF, 0.0), (1.0, INF)),
        *((2.0, INF), (2.0, -INF), (0.5, INF), (0.5, -INF), (-1.0, INF), (-2.0, 3.0), (-2.0, 2.0)),
        *((-2.0, -3.0), (-INF, 3.0), (-INF, 2.0), (NAN, 0.0), (1.0, NAN), (NAN, 1.0), (2.0, NAN)),
        *((-2.0, 1e30), (3.0, 1e30)),
    ]
    x, y = (np.array(column, dtype) for column in zip(*cases, strict=True))
    with np.errstate(all="ignore"):
        expected = np.power(x.astype(np.float64), y.astype(np.float64)).astype(dtype)
    np.testing.assert_allclose(evaluate("power", x, y), expected, rtol=1e-6)
    assert np.isnan(evaluate("power", np.array([-2.0], dtype), np.array([0.5], dtype))).all()


def reference(activation: Activation, x: np.ndarray) -> np.ndarray:
    """The activation in float64, as ONNX and PyTorch define it."""
    p = activation.parameters
    erf = exact(math.erf, x / np.sqrt(2))
    inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    result: np.ndarray = {
        "relu": lambda: np.maximum(x, 0),
        "clip": lambda: np.clip(x, p[0], p[1]),
        "leaky_relu": lambda: np.where(x < 0, x * p[0], x),
        "sigmoid": lambda: 1 / (1 + np.exp(-x)),
        "silu": lambda: x / (1 + np.exp(-x)),
        "hard_sigmoid": lambda: np.clip(p[0] * x + p[1], 0, 1),
        "hard_swish": lambda: x * np.clip(x / 6 + 0.5, 0, 1),
        "tanh": lambda: np.tanh(x),
        "gelu": lambda: x * (1 + erf) / 2,
        "gelu_tanh": lambda: x * (1 + np.tanh(inner)) / 2,
        "elu": lambda: np.where(x < 0, p[0] * np.expm1(np.minimum(x, 0)), x),
    }[activation.kind]()
    return result


ACTIVATIONS = [
    *(Activation(kind) for kind in KINDS if kind != "prelu"),
    Activation("clip", (-INF, 1.0)),
    Activation("clip", (-0.5, INF)),
    Activation("leaky_relu", (0.0,)),
    Activation("leaky_relu", (-0.5,)),
    Activation("leaky_relu", (2.0,)),
    Activation("elu", (0.7,)),
    Activation("hard_sigmoid", (0.2, 0.5)),
]


@pytest.mark.pairs
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_activation(activation: Activation, dtype: str, target: Target) -> None:
    x = spread(dtype, -15.0, 15.0, 2000)
    expected = reference(activation, x.astype(np.float64))
    got = evaluate(activation, x, target=target)
    eps = float(np.finfo(dtype).eps)
    # cancellation near the tails of gelu is relative to x, not to the result
    bound = eps * (4 * np.abs(expected) + (3 * np.abs(x) if "gelu" in activation.kind else 0))
    bound += eps if activation.kind == "hard_sigmoid" else 0
    bound += eps * np.abs(x) if activation.kind == "hard_swish" else 0
    assert (np.abs(got - expected) <= bound).all()
    assert np.isnan(evaluate(activation, np.array([NAN], dtype), target=target)).all()


def test_prelu() -> None:
    x = np.array([-2.0, -1.0, 0.0, 1.0, 2.0, NAN], np.float32)
    slope = np.array([0.5, 2.0, 3.0, 4.0, 5.0, 6.0], np.float32)
    got = evaluate(Activation("prelu"), x, slope)
    np.testing.assert_array_equal(got, np.where(x < 0, x * slope, x))


def test_relu_is_one_instruction_and_clip_two() -> None:
    for activation, count in ((Activation("relu"), 1), (Activation("clip", (0.0, 6.0)), 2)):
        text = assembly(MathTestKernel(activation, FLOAT32, 4), preset("icelake-server"))
        assert text.count("vmaxps") + text.count("vminps") == count
        assert "cmp" not in text.replace("cmpq", "")


@pytest.mark.parametrize("name", ["neoverse-n1", "apple-m1", "haswell", "skylake-avx512"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_functions_call_nothing(dtype: str, name: str) -> None:
    for function in (*FUNCTIONS, "log", "power"):
        text = assembly(MathTestKernel(function, dtype, 4, function == "power"), preset(name))
        assert "call" not in text
        assert "\tbl\t" not in text
