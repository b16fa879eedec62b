"""Softmax and log-softmax against float64 NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from leanconv.kernels import KernelContext
from leanconv.kernels.softmax import Softmax, lower
from leanconv.spec.format import Format
from leanconv.target import Target, preset
from leanconv.types import FLOAT32, FLOAT64, DType
from support.kernel_runner import run_kernel
from support.listing import assembly
from support.nodes import TARGETS, one_node, run_in_place, run_node

OPS = ("Softmax", "LogSoftmax")


def numbers(*shape: int, dtype: str = "float32") -> np.ndarray:
    generator = np.random.default_rng(len(shape) * 1000 + sum(shape))
    return generator.normal(0, 4, shape).astype(dtype)


def check(y: np.ndarray, expected: np.ndarray) -> None:
    eps = float(np.finfo(y.dtype).eps)
    # x - max is rounded before its exponential is taken: as many eps as the difference is large
    np.testing.assert_allclose(y, expected, rtol=40 * eps, atol=4 * eps)


SIZES = (1, 2, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 127, 128, 129, 1000, 8200)


@pytest.mark.drawn
@pytest.mark.pairs(("target", "dtype"))  # the lanes
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("op", OPS)
def test_last_axis(op: str, size: int, dtype: str, target: Target) -> None:
    outcome = run_node(
        lower, op, {"x": numbers(5, size, dtype=dtype)}, target=target, parts=(0.5,), axis=1
    )
    check(outcome.y, outcome.expected)


@pytest.mark.drawn
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        *(((3, 19, n), 1) for n in (1, 2, 7, 15, 16, 17, 63, 64, 65, 128, 129)),
        *(((2, 21, 30, 31), 1), ((19, 4), 0), ((19,), 0), ((2, 600, 3), 1), ((3, 1, 5), 1)),
    ],
    ids=str,
)
def test_other_axes(shape: tuple[int, ...], axis: int, dtype: str, target: Target) -> None:
    # Both have the loops of one kernel, and each meets every shape with some lanes.
    op = OPS[(sum(shape) + TARGETS.index(target) + (dtype == FLOAT64)) % len(OPS)]
    x = numbers(*shape, dtype=dtype)
    outcome = run_node(lower, op, {"x": x}, target=target, parts=(0.3, 0.6), axis=axis)
    check(outcome.y, outcome.expected)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("axis", [0, 1])
def test_stable_for_any_size_of_numbers(op: str, axis: int) -> None:
    x = numbers(40, 40)
    for large in (x * 1e4, x + 1e6, x - 3e38):
        outcome = run_node(lower, op, {"x": large.astype(np.float32)}, axis=axis)
        check(outcome.y, outcome.expected)


@pytest.mark.parametrize("axis", [0, 1])
def test_infinities_and_nan(axis: int) -> None:
    x = numbers(20, 20)
    x[3, 4] = -np.inf
    x[7, 8] = np.nan
    x[9, 10] = np.inf
    x[19, 19] = np.nan
    outcome = run_node(lower, "Softmax", {"x": x}, axis=axis)
    np.testing.assert_array_equal(np.isnan(outcome.y), np.isnan(outcome.expected))
    check(np.nan_to_num(outcome.y), np.nan_to_num(outcome.expected))
    assert outcome.y[3, 4] == 0


def test_probabilities_sum_to_one() -> None:
    y = run_node(lower, "Softmax", {"x": numbers(4, 1000)}, axis=1).y
    np.testing.assert_allclose(y.astype(np.float64).sum(axis=1), 1, rtol=3e-7)


def test_results_do_not_depend_on_the_cuts() -> None:
    x = numbers(300, 70)
    kernel = Softmax(FLOAT32, False, 300, 70, 1)
    assert kernel.chunks > 2
    whole = run_kernel(kernel, x, np.full_like(x, np.nan))
    cut = run_kernel(kernel, x, np.full_like(x, np.nan), parts=range(1, kernel.chunks))
    np.testing.assert_array_equal(whole, cut)


@pytest.mark.parametrize("name", ["neoverse-n1", "icelake-server", "haswell"])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("axis", [1, 2])
def test_emission_for_other_targets(op: str, axis: int, name: str) -> None:
    node, graph = one_node(op, {"x": numbers(2, 35, 77)}, {}, "x", {"axis": axis})
    lowered = lower(KernelContext(node, graph, {"x": Format(), "y": Format()}, preset(name)))
    text = assembly(lowered.calls[0].kernel, preset(name))
    assert "call" not in text
    assert "\tbl\t" not in text
    assert len(text.splitlines()) < 1200


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("axis", [1, 2])
def test_in_place(op: str, axis: int) -> None:
    x = numbers(3, 35, 77)
    outcome = run_node(lower, op, {"x": x}, axis=axis)
    np.testing.assert_array_equal(run_in_place(outcome, 0, x), outcome.y)


@pytest.mark.drawn
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
def test_a_line_in_registers_has_the_bits_of_one_that_is_walked(
    dtype: DType, target: Target
) -> None:
    for op in OPS:
        for size in (1, 7, 16, 24, 30, 45, 64, 90):
            x = numbers(5, size, dtype=dtype)
            node, graph = one_node(op, {"x": x}, {}, "x", {"axis": 1})
            held = (
                lower(KernelContext(node, graph, {"x": Format(), "y": Format()}, target))
                .calls[0]
                .kernel
            )
            assert isinstance(held, Softmax)
            vectors = -(-size // target.lanes(dtype))
            assert held.held == (vectors if vectors <= target.registers // 4 else 0)
            both = held, replace(held, held=0)
            some, same = (run_kernel(k, x, np.full_like(x, np.nan), target=target) for k in both)
            np.testing.assert_array_equal(some, same)
