"""Matrix products against NumPy: exact on small whole numbers, bounded against float64."""

from __future__ import annotations

import re
from dataclasses import fields, replace

import numpy as np
import pytest

from leanconv.codegen.host import host
from leanconv.kernels import matmul
from leanconv.kernels.matmul_kernel import InPlaceMatMul, MatMul
from leanconv.target import Target, preset
from leanconv.types import FLOAT32
from support.covering import pairwise
from support.kernel_runner import run_kernel
from support.nodes import DTYPES, TARGETS, Case, integers

targets = pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
dtypes = pytest.mark.parametrize("dtype", DTYPES)


def check(case: Case, target: Target) -> None:
    assert not case.accepts(target)
    assert np.array_equal(case.run(target, False), case.expected("float64"))


@pytest.mark.drawn
@pytest.mark.pairs(("target", "dtype"))  # the lanes
@targets
@dtypes
@pytest.mark.parametrize("m", [1, 2, 13, 14, 15, 33])
@pytest.mark.parametrize("n", [1, 7, 8, 9, 15, 16, 17, 33, 130])
def test_matmul_extents(target: Target, dtype: str, m: int, n: int) -> None:
    for k in (1, 5, 40):
        arrays = [integers((m, k), dtype, 1), integers((k, n), dtype, 2)]
        check(Case(matmul, "MatMul", arrays, {}), target)


@pytest.mark.drawn
@pytest.mark.pairs
@targets
@dtypes
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 4, 5), (3, 5, 6)),
        ((2, 1, 4, 5), (3, 5, 6)),
        ((2, 3, 4, 5), (5, 20)),
        ((4, 5), (2, 3, 5, 6)),
        ((1, 2, 1, 3, 4), (5, 1, 2, 4, 9)),
        ((5,), (5,)),
        ((5,), (5, 20)),
        ((20, 5), (5,)),
        ((5,), (2, 5, 3)),
        ((3, 20, 5), (5,)),
        ((2, 1, 5), (2, 5, 1)),
        ((3, 20, 5), (3, 5, 1)),
    ],
    ids=str,
)
def test_matmul_broadcasts(
    target: Target, dtype: str, a: tuple[int, ...], b: tuple[int, ...]
) -> None:
    arrays = [integers(a, dtype, 1), integers(b, dtype, 2)]
    for constants in ([], [0], [1]):
        check(Case(matmul, "MatMul", arrays, {}, constants), target)


# How the factors lie in memory meets every size, and what is added every one of both: the tile
# begins with what is added, and reads it alike however the factors lie.
GEMMS = pairwise(
    [(0, 0), (0, 1), (1, 0), (1, 1)],
    [(1, 33, 20), (15, 17, 9), (29, 40, 33), (20, 1, 17), (1, 1, 1)],
    [None, "full", "row", "column", "scalar"],
)


@pytest.mark.drawn
@pytest.mark.pairs
@targets
@dtypes
@pytest.mark.parametrize(("transposed", "extents", "added"), GEMMS)
def test_gemm(
    target: Target,
    dtype: str,
    transposed: tuple[int, int],
    extents: tuple[int, int, int],
    added: str | None,
) -> None:
    (trans_a, trans_b), (m, n, k) = transposed, extents
    shapes = {"full": (m, n), "row": (n,), "column": (m, 1), "scalar": ()}
    a = integers((k, m) if trans_a else (m, k), dtype, 1)
    b = integers((n, k) if trans_b else (k, n), dtype, 2)
    c = integers(shapes[added], dtype, 3) if added else None
    attributes = {"transA": trans_a, "transB": trans_b, "alpha": 0.5, "beta": -2.0}
    for constants in ([], [1], [1, 2]):
        if c is not None or 2 not in constants:
            check(Case(matmul, "Gemm", [a, b, c], attributes, constants), target)


def test_gemm_without_beta_never_reads_c() -> None:
    a, b = integers((3, 4), FLOAT32, 1), integers((4, 5), FLOAT32, 2)
    attributes = {"transA": 0, "transB": 0, "alpha": 1.0, "beta": 0.0}
    case = Case(matmul, "Gemm", [a, b, np.full((3, 5), np.nan, np.float32)], attributes)
    assert np.array_equal(case.run(host(), False), a @ b)


@targets
def test_many_chunks_and_long_sums(target: Target) -> None:
    rng = np.random.default_rng(5)
    for constants in ([], [1]):
        a, b = (rng.standard_normal(s).astype(np.float32) for s in ((150, 700), (700, 210)))
        case = Case(matmul, "MatMul", [a, b], {}, constants)
        assert case.lower(target, False).calls[0].kernel.chunks > 2
        error = np.abs(case.run(target, False) - case.expected("float64")).max()
        # Each of 700 roundings of a sum of standard deviation up to 26, with random signs.
        assert error < 4 * 700 * np.finfo(np.float32).eps


def test_rows_that_share_a_cache_set_are_few() -> None:
    for k, few in ((1024, True), (1000, False)):
        a, b = integers((64, k), FLOAT32, 1), integers((k, 64), FLOAT32, 2)
        target = replace(preset("skylake-avx512"), costs=preset("znver4").costs)
        kernel = Case(matmul, "MatMul", [a, b], {}).lower(target, False).calls[0].kernel
        assert isinstance(kernel, matmul.MatMul)
        assert (kernel.tile.rows <= 6) == few


@pytest.mark.parametrize("dtype", DTYPES)
def test_inner_loop_has_no_spills(dtype: str) -> None:
    a, b = integers((256, 256), dtype, 1), integers((256, 256), dtype, 2)
    case = Case(matmul, "MatMul", [a, b], {})
    for name in ("skylake-avx512", "haswell"):
        text = case.assembles(preset(name), False)
        products = re.findall(r"vfmadd\w+.*", text)
        assert len(products) >= 10
        assert not [p for p in products if "%rsp" in p]
    assert "fmla" in case.assembles(preset("neoverse-n1"), False)
    case = Case(matmul, "MatMul", [a, b[:, :251]], {})
    assert "fmla" in case.assembles(preset("neoverse-n1"), False)


@pytest.mark.drawn
@targets
@dtypes
def test_few_rows_read_the_weights_where_they_lie(target: Target, dtype: str) -> None:
    rng = np.random.default_rng(6)
    for m, n in ((1, 300), (1, 5), (3, 130), (64, 130)):
        a, b = (rng.standard_normal(s).astype(dtype) for s in ((m, 77), (77, n)))
        kernel = Case(matmul, "MatMul", [a, b], {}).lower(target, False).calls[0].kernel
        assert isinstance(kernel, MatMul)
        assert isinstance(kernel, InPlaceMatMul) == (m < 64) == (not kernel.scratch_bytes)
        assert kernel.tile.rows * kernel.tile.vectors <= target.registers
        packing = MatMul(**{field.name: getattr(kernel, field.name) for field in fields(kernel)})
        y = np.full((m, n), np.nan, dtype)
        in_place, packed = (run_kernel(k, a, b, y, target=target) for k in (kernel, packing))
        np.testing.assert_array_equal(in_place, packed)


def test_few_rows_of_transposed_weights_are_packed() -> None:
    a, b = integers((1, 40), FLOAT32, 1), integers((50, 40), FLOAT32, 2)
    case = Case(matmul, "Gemm", [a, b], {"transA": 0, "transB": 1, "alpha": 1.0, "beta": 1.0})
    assert case.lower(host(), False).calls[0].kernel.scratch_bytes
