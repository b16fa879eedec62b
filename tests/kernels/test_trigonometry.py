"""Trigonometric and hyperbolic functions against the math module, in both dtypes."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from leanconv.target import Target, preset
from leanconv.types import FLOAT32, FLOAT64
from support.listing import assembly
from support.nodes import TARGETS
from support.vector_functions import MathTestKernel, evaluate, exact, ulps

DTYPES = [FLOAT32, FLOAT64]
INF, NAN = math.inf, math.nan

# by name: the exact function, the ulps of a double, and the range that is tried evenly
FUNCTIONS: dict[str, tuple[Callable[[float], float], float, tuple[float, float]]] = {
    "sin": (math.sin, 1.0, (-30.0, 30.0)),
    "cos": (math.cos, 1.0, (-30.0, 30.0)),
    "tan": (math.tan, 2.0, (-30.0, 30.0)),
    "asin": (math.asin, 2.0, (-1.0, 1.0)),
    "acos": (math.acos, 2.0, (-1.0, 1.0)),
    "atan": (math.atan, 2.0, (-10.0, 10.0)),
    "sinh": (math.sinh, 4.0, (-80.0, 80.0)),
    "cosh": (math.cosh, 4.0, (-80.0, 80.0)),
    "asinh": (math.asinh, 4.0, (-100.0, 100.0)),
    "acosh": (math.acosh, 4.0, (1.0, 100.0)),
    "atanh": (math.atanh, 4.0, (-1.0, 1.0)),
}
FLOAT_ULPS = 0.6
UNBOUNDED = ("sin", "cos", "tan", "atan", "asinh", "acosh")


def numbers(name: str, dtype: str) -> np.ndarray:
    """Numbers of all sizes that a function takes."""
    generator = np.random.default_rng(3)
    low, high = FUNCTIONS[name][2]
    even = generator.uniform(low, high, 4000)
    least = np.log2(float(np.finfo(dtype).tiny)) + 20
    most = math.log2(np.finfo(dtype).max) - 1 if name in UNBOUNDED else math.log2(high)
    sizes = 2.0 ** generator.uniform(least, most, 4000)
    signed = sizes * generator.choice([-1.0, 1.0], 4000)
    near = [low, high, *(1 + generator.normal(0, 1e-4, 200)), *generator.normal(0, 1e-3, 200)]
    x = np.concatenate([even, signed, near])
    if name in ("sin", "cos", "tan"):  # multiples of pi/2, whose sines are the differences alone
        x = np.concatenate([x, np.arange(-200, 200) * (math.pi / 2)])
    bounded = name not in UNBOUNDED or name == "acosh"
    x = x[(x >= low) & (x <= max(high, 2.0**most))] if bounded else x
    return x.astype(dtype)


@pytest.mark.drawn
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_within_its_ulps(name: str, dtype: str, target: Target) -> None:
    function, bound, _ = FUNCTIONS[name]
    x = numbers(name, dtype)
    x = x[abs(x) != 1] if name == "atanh" else x
    found = evaluate(name, x, target=target)
    # the math module rounds, too
    assert ulps(found, exact(function, x)) <= (bound + 0.5 if dtype == FLOAT64 else FLOAT_ULPS)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_the_double_that_is_nearest_to_a_multiple_of_half_pi(target: Target) -> None:
    """J.-M. Muller, Elementary Functions, 3rd edition, section 11.2: others have 8 ulp here."""
    x = np.array([6381956970095103 * 2.0**797, -6381956970095103 * 2.0**797, 1.0])
    found = evaluate("cos", x, target=target)
    np.testing.assert_array_equal(found[:2], -4.6871659242546276e-19)


SPECIAL: dict[str, dict[float, float]] = {
    "sin": {0.0: 0.0, INF: NAN, -INF: NAN},
    "cos": {0.0: 1.0, INF: NAN, -INF: NAN},
    "tan": {0.0: 0.0, INF: NAN, -INF: NAN},
    "asin": {0.0: 0.0, 1.0: math.pi / 2, -1.0: -math.pi / 2, 1.5: NAN, -INF: NAN},
    "acos": {1.0: 0.0, -1.0: math.pi, 0.0: math.pi / 2, -1.5: NAN, INF: NAN},
    "atan": {0.0: 0.0, INF: math.pi / 2, -INF: -math.pi / 2},
    "sinh": {0.0: 0.0, INF: INF, -INF: -INF, -1e30: -INF},
    "cosh": {0.0: 1.0, INF: INF, -INF: INF, -1e30: INF},
    "asinh": {0.0: 0.0, INF: INF, -INF: -INF},
    "acosh": {1.0: 0.0, INF: INF, 0.5: NAN, -5.0: NAN, -1e30: NAN, -INF: NAN},
    "atanh": {0.0: 0.0, 1.0: INF, -1.0: -INF, 1.5: NAN, -INF: NAN},
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SPECIAL)
def test_special_values(name: str, dtype: str) -> None:
    x = np.array([*SPECIAL[name], NAN], dtype)
    expected = np.array([*SPECIAL[name].values(), NAN], dtype)
    np.testing.assert_array_equal(evaluate(name, x), expected)


def test_hyperbolic_functions_up_to_where_they_overflow() -> None:
    x = np.linspace(700, 710.4, 2000)
    x = np.concatenate([x, -x])
    for name, function in (("sinh", math.sinh), ("cosh", math.cosh)):
        assert ulps(evaluate(name, x), exact(function, x)) <= 8.0


@pytest.mark.parametrize("name", ["neoverse-n1", "haswell", "skylake-avx512"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_functions_call_nothing(dtype: str, name: str) -> None:
    for function in FUNCTIONS:
        text = assembly(MathTestKernel(function, dtype, 4), preset(name))
        assert "call" not in text
        assert "\tbl\t" not in text
