"""One form for sums, extremes, softmax and response norms of all sizes; the bits of constants."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from leanconv.codegen.kernel import Kernel
from leanconv.kernels.arg_max import ExtremePlaces
from leanconv.kernels.lane_reduce import ReduceOp
from leanconv.kernels.lrn import ResponseNorm
from leanconv.kernels.reduce import Reduction
from leanconv.kernels.softmax import Softmax
from leanconv.kernels.top_k import TopLanes, TopSort
from leanconv.kernels.top_k_scan import TopScan
from leanconv.types import FLOAT32
from support.forms import constant, shared
from support.kernel_runner import run_kernel


def filled(size: int, kernel: Kernel, results: int) -> tuple[np.ndarray, ...]:
    """What a form and constants make of one operand, and of a result of NaN."""
    x = np.random.default_rng(size).standard_normal(size).astype("f4")
    arrays = x, np.full(results, np.nan, "f4")
    return run_kernel(kernel, *arrays), run_kernel(constant(kernel), *arrays)


@pytest.mark.parametrize("how", ["mean", "max"])
@pytest.mark.parametrize(
    ("extents", "reduced"),
    [
        ((3, 35), (False, True)),
        ((3, 5), (False, True)),
        *(((2, n, 24), (False, True, False)) for n in (2, 3, 4, 5, 6, 7, 255, 511, 512, 767, 768)),
        ((3, 2 * 8192 + 37), (False, True)),
        ((5, 37), (True, False)),
        ((2, 601, 131), (False, True, False)),
        ((3, 4, 5, 6), (True, False, True, False)),
        ((4, 513, 64), (False, True, False)),
    ],
)
def test_reductions_words_give_the_bits_of_constants(
    how: ReduceOp, extents: tuple[int, ...], reduced: tuple[bool, ...]
) -> None:
    kernel = Reduction(FLOAT32, how, extents, reduced)
    kept = [n for n, summed in zip(extents, reduced, strict=True) if not summed]
    np.testing.assert_array_equal(*filled(prod(extents), kernel, prod(kept)))


def test_reductions_of_all_sizes_share_forms() -> None:
    sums = Reduction(FLOAT32, "mean", (8, 1028, 16), (False, True, False))
    maps = [(8, 1028), (12, 2052), *((3, count) for count in range(2, 600, 7))]
    assert shared(replace(sums, extents=(n, m, 16)) for n, m in maps)
    rows = replace(sums, extents=(8, 130), reduced=(False, True))
    assert shared(replace(rows, extents=(7, n)) for n in (2, 3, 8, 17, 131, 195, 259, 9000))


@pytest.mark.parametrize("logarithm", [True, False])
@pytest.mark.parametrize(
    "shape",
    [
        (3, 5, 1),
        (7, 197, 1),
        *((2, count, 1) for count in (8, 16, 24, 31, 32, 4096, 9000)),
        (3, 21, 150),
        (2, 2, 8),
    ],
)
def test_softmax_words_give_the_bits_of_constants(
    shape: tuple[int, int, int], logarithm: bool
) -> None:
    kernel = Softmax(FLOAT32, logarithm, *shape)
    np.testing.assert_array_equal(*filled(prod(shape), kernel, prod(shape)))


def test_softmax_of_all_sizes_shares_a_form() -> None:
    shapes = [(3, 197, 1), (8, 261, 1), *((5, count, 1) for count in range(2, 400, 5))]
    assert shared(Softmax(FLOAT32, False, *shape) for shape in shapes)


@pytest.mark.parametrize("size", [3, 4, 11])
@pytest.mark.parametrize("shape", [(2, 9, 150), (3, 2, 7), (2, 33, 64)])
def test_response_norm_words_give_the_bits_of_constants(
    shape: tuple[int, int, int], size: int
) -> None:
    kernel = ResponseNorm(FLOAT32, *shape, size, 1e-4, 0.75, 1.0)
    np.testing.assert_array_equal(*filled(prod(shape), kernel, prod(shape)))


def test_response_norms_of_all_sizes_share_a_form() -> None:
    shapes = [(2, 64, 129), (3, 64, 257), (5, 64, 321)]
    assert shared(ResponseNorm(FLOAT32, *s, 5, 1e-4, 0.75, 1.0) for s in shapes)


def test_top_of_all_sizes_shares_forms() -> None:
    lines = [(7, n) for n in (45, 64, 300, 9000)]
    assert shared(TopScan(FLOAT32, True, outer, n, 1, 20) for outer, n in lines)
    assert shared(TopSort(FLOAT32, True, outer, n, 1, n // 2 + 1) for outer, n in lines)
    assert shared(TopSort(FLOAT32, True, outer, n, 7, 40) for outer, n in lines)
    assert shared(TopLanes(FLOAT32, True, outer, n, 128, 3) for outer, n in lines)
    places = [ExtremePlaces(FLOAT32, False, False, *line, 1) for line in lines]
    assert shared(places)
