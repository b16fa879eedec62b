"""Products of two values of codes: the bits of the reference, for all signs and zeros."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from leanconv.codegen.host import host
from leanconv.kernels import code_matmul
from leanconv.target import Target, preset
from leanconv.types import INT8, UINT8, DType
from support.listing import assembly
from support.nodes import TARGETS, Case

SHAPES = [
    ((1, 1), (1, 1)),
    ((3, 5), (5, 7)),
    ((1, 64), (64, 17)),
    ((7, 3), (3, 1)),
    ((13, 34), (34, 50)),
    ((70, 16), (16, 16)),
    ((2, 3, 9, 6), (2, 3, 6, 33)),
    ((2, 1, 5, 8), (3, 8, 20)),
    ((4, 6, 7), (7, 9)),
]
NO_DOTS = replace(host(), name="no-vnni", extensions=())
PAIRS = [(UINT8, UINT8), (UINT8, INT8), (INT8, INT8), (INT8, UINT8)]


def codes(shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    generator = np.random.default_rng(sum(shape))
    drawn = generator.integers(0, 256, shape).astype(np.uint8)
    ends = generator.choice(np.array([0, 127, 128, 255], np.uint8), shape)
    return np.where(generator.random(shape) < 0.2, ends, drawn).view(dtype.numpy)


@pytest.mark.drawn
@pytest.mark.parametrize("target", [*TARGETS, NO_DOTS], ids=lambda t: t.name)
@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_products(a: DType, b: DType, target: Target) -> None:
    for number, (left, right) in enumerate(SHAPES):
        zeros = [(0, 0), (int(a.low) + 30, 0), (0, int(b.low) + 128), (100, 77)][number % 4]
        given = {"scales": (0.02, 0.017, 0.9), "zeros": (*zeros, 90), "dtype": UINT8}
        given |= {"low": 2, "high": 250}
        case = Case(code_matmul, "QLinearMatMul", [codes(left, a), codes(right, b)], given)
        np.testing.assert_array_equal(case.run(target, False), case.expected())


def test_dot_products_are_one_instruction() -> None:
    given = {"scales": (0.02, 0.017, 0.9), "zeros": (3, 128, 90), "dtype": INT8}
    given |= {"low": -128, "high": 127}
    arrays = [codes((64, 64), UINT8), codes((64, 64), UINT8)]
    for name, word in (("icelake-server", "vpdpbusd"), ("haswell", "vpmaddwd")):
        case = Case(code_matmul, "QLinearMatMul", arrays, given)
        (call,) = case.lower(preset(name), False).calls
        assert word in assembly(call.kernel, preset(name))
