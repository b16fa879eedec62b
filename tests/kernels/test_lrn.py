"""Local response normalisation against float64 NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from leanconv.kernels import KernelContext
from leanconv.kernels.lrn import lower
from leanconv.spec.format import Format
from leanconv.target import Target, preset
from leanconv.types import FLOAT32, FLOAT64
from support.listing import assembly
from support.nodes import TARGETS, one_node, run_in_place, run_node


def numbers(*shape: int, dtype: str = "float32") -> np.ndarray:
    generator = np.random.default_rng(len(shape) * 1000 + sum(shape))
    return generator.normal(0, 3, shape).astype(dtype)


def check(y: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(y, expected, rtol=16 * float(np.finfo(y.dtype).eps))


@pytest.mark.drawn
@pytest.mark.pairs
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 9, 10, 13, 40])
def test_window_sizes(size: int, dtype: str, target: Target) -> None:
    for channels in (1, 2, 5, 19):
        outcome = run_node(
            lower,
            *("LRN", {"x": numbers(2, channels, 3, 7, dtype=dtype)}),
            target=target,
            size=size,
            alpha=0.3,
            beta=0.75,
            bias=1.5,
        )
        check(outcome.y, outcome.expected)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("beta", [0.5, 0.75, 1.0, 0.6, 2.0, 0.0])
def test_betas(beta: float, target: Target) -> None:
    for size in (5, 11):
        outcome = run_node(
            lower,
            *("LRN", {"x": numbers(1, 24, 5, 5)}),
            target=target,
            size=size,
            alpha=0.3,
            beta=beta,
            bias=1.0,
        )
        check(outcome.y, outcome.expected)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("inner", [1, 3, 4, 5, 8, 9, 15, 16, 17, 63, 64, 65, 127, 128, 129, 3025])
def test_sizes_of_the_image(inner: int, target: Target) -> None:
    outcome = run_node(
        lower,
        *("LRN", {"x": numbers(2, 11, inner)}),
        target=target,
        parts=(0.3, 0.6),
        size=5,
        alpha=1e-4,
        beta=0.75,
        bias=1.0,
    )
    check(outcome.y, outcome.expected)


@pytest.mark.parametrize("size", [5, 11])
@pytest.mark.parametrize("name", ["neoverse-n1", "icelake-server", "haswell"])
def test_emission_for_other_targets(name: str, size: int) -> None:
    attributes = {"size": size, "alpha": 0.1, "beta": 0.7, "bias": 1.0}
    node, graph = one_node("LRN", {"x": numbers(1, 9, 77)}, {}, "x", attributes)
    lowered = lower(KernelContext(node, graph, {"x": Format(), "y": Format()}, preset(name)))
    text = assembly(lowered.calls[0].kernel, preset(name))
    assert "call" not in text
    assert "\tbl\t" not in text


@pytest.mark.parametrize("size", [1, 2, 5, 9])
def test_in_place(size: int) -> None:
    for channels in (2, 19):
        x = numbers(2, channels, 70)
        outcome = run_node(lower, "LRN", {"x": x}, size=size, alpha=0.3, beta=0.75, bias=1.0)
        np.testing.assert_array_equal(run_in_place(outcome, 0, x), outcome.y)
