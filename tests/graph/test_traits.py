"""What the table says of an operation is true of its numbers, and everything goes by it."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from leanconv.errors import ModelError
from leanconv.graph.ir import TensorType
from leanconv.graph.ops import OPS, UNARY, evaluate, infer
from leanconv.graph.ops.base import Halves
from leanconv.types import BOOL, FLOAT32, INT32

SUPPORT = Path(__file__).parents[1] / "support"
NUMBERS: dict[str, Any] = {
    "alpha": 0.25,
    "beta": 0.5,
    "approximate": "none",
    "min": -math.inf,
    "max": math.inf,
}
MOST = float(np.finfo(np.float16).max)


@pytest.mark.parametrize("script", ["made_up.py", "made_up_activation.py"])
def test_operations_that_are_made_up_are_treated_as_their_traits_say(script: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(SUPPORT / script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def computed(op: str, *arrays: np.ndarray) -> np.ndarray:
    attributes = {name: NUMBERS[name] for name in OPS[op].attributes}
    return np.asarray(evaluate(op, arrays, attributes)[0])


def pair(op: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Two matrices of which an operation computes another one; None for one of other inputs."""
    entry = OPS[op]
    if entry.attributes or (entry.least, entry.most) != (2, 2):
        return None
    dtype = next(each for each in (FLOAT32, INT32, BOOL) if each in entry.dtypes)
    random = np.random.default_rng(0)
    a, b = (random.integers(-9, 9, (9, 9)).astype(dtype.numpy) for _ in range(2))
    try:
        infer(op, [TensorType(a.shape, dtype)] * 2, {})
    except ModelError:
        return None
    return a, b


PAIRS = {op: given for op in OPS if (given := pair(op))}


@pytest.mark.parametrize("op", PAIRS)
def test_inputs_change_places_where_that_changes_nothing(op: str) -> None:
    a, b = PAIRS[op]
    same = np.array_equal(computed(op, a, b), computed(op, b, a), equal_nan=True)
    assert same == OPS[op].commutes


@pytest.mark.parametrize("op", [op for op, each in OPS.items() if each.neutral is not None])
def test_the_neutral_number_gives_back_the_first_input(op: str) -> None:
    a = PAIRS[op][0]
    np.testing.assert_array_equal(computed(op, a, np.full_like(a, OPS[op].neutral)), a)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("op", [op for op, each in OPS.items() if each.affine])
def test_a_constant_input_is_a_factor_and_a_summand(op: str, first: bool) -> None:
    x, c = (each.astype(np.float64) + 0.5 for each in PAIRS[op])
    affine = OPS[op].affine
    assert affine is not None
    found = affine(c, first)
    if found is None:
        assert (op, first) == ("Div", True)
        return
    y = computed(op, c, x) if first else computed(op, x, c)
    np.testing.assert_allclose(found[0] * x + found[1], y, rtol=1e-14)


@pytest.mark.parametrize("op", [op for op, each in OPS.items() if each.reduces])
def test_a_number_that_is_reduced_by_itself_is_given_back(op: str) -> None:
    x = np.linspace(-3, 3, 7, dtype=np.float32).reshape(7, 1)
    (y,) = evaluate(op, [x], {"axes": (1,), "keepdims": True})
    assert np.array_equal(x, y) == OPS[op].keeps_single


def test_results_in_halves_are_of_a_known_kind() -> None:
    assert {each.halves for each in OPS.values()} == {*get_args(Halves)}


@pytest.mark.parametrize("op", [op for op in UNARY if OPS[op].halves == "exact"])
def test_what_is_exact_in_halves_is_one(op: str) -> None:
    x = np.arange(1 << 16).astype(np.uint16).view(np.float16).astype(np.float32)
    y = computed(op, x[np.isfinite(x)])
    np.testing.assert_array_equal(y, y.astype(np.float16))


@pytest.mark.parametrize("op", [op for op in UNARY if OPS[op].halves in ("scaled", "rounded")])
def test_results_are_large_only_where_what_is_read_is(op: str) -> None:
    """Others overflow in halves, and have to say that they are wide."""
    sizes = 2.0 ** np.arange(-20, 16)
    x = np.concatenate([-sizes, sizes]).astype(np.float32)
    y = np.abs(computed(op, x))
    assert np.all(~np.isfinite(y) | (y <= 2 * np.abs(x) + 2))
    huge = np.abs(computed(op, np.float32([-1e8, 1e8])))
    assert OPS[op].halves == "scaled" or not np.any(huge > MOST)


def slope(op: str, x: np.ndarray) -> np.ndarray:
    """The slopes of a function of one number, where it has any."""
    with np.errstate(all="ignore"):
        found = (computed(op, x + 1e-7) - computed(op, x - 1e-7)) / 2e-7
    return np.nan_to_num(np.abs(found), nan=0.0, posinf=0.0)


@pytest.mark.parametrize("op", [op for op in UNARY if OPS[op].halves])
def test_errors_grow_where_it_is_said(op: str) -> None:
    """Relative errors of large numbers grow in waves and exponentials, absolute ones in roots."""
    near = np.linspace(-0.98765, 0.98543, 1000)  # beside the steps of Floor and its like
    far = 30 * near
    largest = np.abs(computed(op, far))
    large = np.max(np.abs(far) * slope(op, far)) / np.max(largest[np.isfinite(largest)])
    small = np.max(slope(op, np.append(near, [2e-7, 1 - 2e-7, 1 + 2e-7])))
    assert (large > 4 or small > 100) == bool(OPS[op].magnifies), (large, small)
