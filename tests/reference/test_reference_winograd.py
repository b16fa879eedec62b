"""Winograd as the document writes it: F(2, 3), its nested form, the four stages, int8."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formulas import multiplications_saved
from leanconv.reference import int8_winograd, winograd
from leanconv.reference.direct import polyphase, seven_loops, split_kernel
from leanconv.reference.im2col import convolve as plain
from leanconv.reference.int8_winograd import F23, F43, IntegerForm
from leanconv.winograd.matrices import transform
from leanconv.winograd.program import compile_matrix

RNG = np.random.default_rng(7)


def test_f_2_3_by_its_four_products() -> None:
    d, g = RNG.uniform(-1, 1, 4), RNG.uniform(-1, 1, 3)
    m1 = (d[0] - d[2]) * g[0]
    m2 = (d[1] + d[2]) * (g[0] + g[1] + g[2]) / 2
    m3 = (d[2] - d[1]) * (g[0] - g[1] + g[2]) / 2
    m4 = (d[1] - d[3]) * g[2]
    y = winograd.one_dimension(d, g, winograd.Matrices.of(2, 3, (0, 1, -1)))
    np.testing.assert_allclose(y, [m1 + m2 + m3, m2 - m3 - m4], atol=1e-15)
    np.testing.assert_allclose(y, np.correlate(d, g), atol=1e-15)
    compiled = transform(2, 3)
    online = [compile_matrix(matrix).ops for matrix in (compiled.bt, compiled.at)]
    assert sum(map(len, online)) == 8, "additions beside the four products"


@pytest.mark.parametrize(("m", "r"), [(2, 3), (4, 3), (6, 3), (3, 2), (4, 5), (5, 1), (1, 4)])
def test_one_dimension(m: int, r: int) -> None:
    d, g = RNG.uniform(-1, 1, m + r - 1), RNG.uniform(-1, 1, r)
    y = winograd.one_dimension(d, g, winograd.Matrices.of(m, r))
    np.testing.assert_allclose(y, np.correlate(d, g), atol=1e-11)


def test_nested_has_matrices_of_its_own_along_each_axis() -> None:
    rows, columns = winograd.Matrices.of(2, 3), winograd.Matrices.of(4, 2)
    d, k = RNG.uniform(-1, 1, (4, 5)), RNG.uniform(-1, 1, (3, 2))
    y = winograd.nested(d, k, rows, columns)
    np.testing.assert_allclose(y, seven_loops(d[None, None], k[None, None])[0, 0], atol=1e-13)


def test_matrices_are_the_documents() -> None:
    """Equal but for the signs of the row and column of infinity (and the order of points)."""
    f = winograd.Matrices.of(4, 3, (0, 1, -1, 2, -2))
    np.testing.assert_array_equal(np.abs(f.bt), np.abs(F43.bt))
    exact = np.array([[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]]) / 24
    np.testing.assert_allclose(np.abs(f.g), np.abs(exact), rtol=1e-15)
    assert multiplications_saved((2, 2), (3, 3)) == Fraction(36, 16) == Fraction(9, 4)
    assert multiplications_saved((4, 4), (3, 3)) == 4
    assert float(multiplications_saved((6, 6), (3, 3))) == pytest.approx(5.06, abs=0.005)


def test_example_of_alphago_zero() -> None:
    """19 × 19 outputs by F(4×4, 3×3): 5 × 5 tiles over 20 × 20, the last row and column cut."""
    f = winograd.Matrices.of(4, 3)
    x, w = RNG.uniform(-1, 1, (1, 18, 21, 21)), RNG.uniform(-1, 1, (8, 18, 3, 3))
    assert winograd.input_tiles(x, f, f).shape == (1, 18, 5, 5, 6, 6)
    y = winograd.four_stages(x, w, f, f)
    assert y.shape == (1, 8, 19, 19)
    np.testing.assert_allclose(y, plain(x, w), atol=1e-11)


def test_polyphase_of_11_taps_by_4_has_phases_of_3_3_3_2() -> None:
    seen = []

    def core(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        seen.append(w.shape[2:])
        return plain(x, w)

    x, w = RNG.integers(-9, 9, (1, 2, 31, 27)), RNG.integers(-9, 9, (3, 2, 11, 3))
    np.testing.assert_array_equal(polyphase(core, x, w, (4, 2)), plain(x, w, (4, 2)))
    assert seen == [(h, v) for h in (3, 3, 3, 2) for v in (2, 1)]


@given(st.integers(1, 31), st.integers(1, 7))
@settings(deadline=None, max_examples=50)
def test_split_kernels_have_nearly_equal_pieces(taps: int, most: int) -> None:
    seen = []

    def core(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        seen.append(w.shape[3])
        return plain(x, w)

    x, w = RNG.integers(-9, 9, (1, 1, 1, taps + 4)), RNG.integers(-9, 9, (1, 1, 1, taps))
    np.testing.assert_array_equal(split_kernel(core, x, w, most), plain(x, w))
    assert sum(seen) == taps
    assert max(seen) <= most
    assert max(seen) - min(seen) <= 1


# -- int8 ------------------------------------------------------------------------------------
def int8(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-127, 128, shape).astype(np.int8)


@pytest.mark.parametrize("form", [F23, F43], ids=["F(2,3)", "F(4,3)"])
@pytest.mark.parametrize("channels", [1, 5, 233])
def test_int8_is_exact(form: IntegerForm, channels: int) -> None:
    x, w = int8((2, channels, 9, 12)), int8((3, channels, 3, 3), 1)
    y = int8_winograd.convolve(x, w, form)
    assert y.dtype == np.int32
    np.testing.assert_array_equal(y, plain(x, w))


@pytest.mark.parametrize("form", [F23, F43], ids=["F(2,3)", "F(4,3)"])
def test_int8_is_exact_for_the_largest_sums(form: IntegerForm) -> None:
    for sign in (1, -1):
        x = np.full((1, form.channels, 3, 3), 127, np.int8)
        w = np.full((1, form.channels, 3, 3), 127 * sign, np.int8)
        y = int8_winograd.convolve(x, w, form)
        np.testing.assert_array_equal(y, sign * form.channels * 9 * 127 * 127)
    # One channel more in one block would be too many: 2^31 / 4 and 2^25 are passed.
    limit = 2**29 if form is F23 else 2**25
    assert form.channels * 9 * 127**2 < limit <= (form.channels + 1) * 9 * 127**2


@pytest.mark.parametrize(
    ("form", "most_u", "most_v"), [(F23, 1143, 508), (F43, 18288, 12700)], ids=["F(2,3)", "F(4,3)"]
)
def test_int8_ranges_are_those_stated(form: IntegerForm, most_u: int, most_v: int) -> None:
    """The largest |U| and |V| over all int8 data, from the signs of the matrices' rows."""
    u = 127 * np.outer(np.abs(form.g).sum(1), np.abs(form.g).sum(1)).max()
    v = 127 * np.outer(np.abs(form.bt).sum(1), np.abs(form.bt).sum(1)).max()
    assert (u, v) == (most_u, most_v)
    assert max(u, v) < 2**15
    g = np.sign(np.outer(form.g[1], form.g[1])) * 127
    assert int8_winograd.transform_filters(g[None, None].astype(np.int8), form).max() == most_u


def test_int8_refuses_what_would_not_be_exact() -> None:
    x, w = int8((1, 1, 5, 5)), int8((1, 1, 3, 3))
    with pytest.raises(ValueError, match="expected int8 between -127 and 127"):
        int8_winograd.convolve(x.astype(np.int16), w)
    with pytest.raises(ValueError, match="expected int8 between -127 and 127"):
        int8_winograd.convolve(np.full_like(x, -128), w)
    with pytest.raises(ValueError, match="expected kernels of 3x3"):
        int8_winograd.convolve(x, w[:, :, :2])
