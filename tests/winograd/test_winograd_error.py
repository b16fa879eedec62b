"""gamma^2 is the literature's, and the error it predicts is the error that is measured."""

from __future__ import annotations

import numpy as np
import pytest

from leanconv.errors import SpecError
from leanconv.types import FLOAT16, FLOAT64
from leanconv.winograd.error import (
    amplification,
    error_estimate,
    gamma_squared,
    output_gamma_squared,
    peak_amplification,
)
from leanconv.winograd.matrices import Transform, transform
from support.float_conv import direct, winograd
from support.published import GAMMA_SQUARED, rationals


def rounded(value: float, like: str) -> str:
    digits = len(like.split(".")[1]) if "." in like else 0
    return f"{value:.{digits}f}"


@pytest.mark.parametrize(("m", "r", "points", "printed"), GAMMA_SQUARED)
def test_gamma_squared_is_as_published(m: int, r: int, points: str, printed: str) -> None:
    assert rounded(float(gamma_squared(transform(m, r, rationals(points)))), printed) == printed


def test_without_transforms_nothing_is_amplified() -> None:
    assert gamma_squared(transform(5, 1)) == gamma_squared(transform(1, 5)) == 1
    assert amplification() == peak_amplification() == 1
    assert error_estimate(reduction=9) < error_estimate(transform(2, 3), reduction=9)


def test_axes_multiply() -> None:
    a, b = transform(4, 3), transform(2, 5)
    assert amplification(a, a) == pytest.approx(float(gamma_squared(a)))
    assert amplification(a, b) == pytest.approx(float(gamma_squared(a) * gamma_squared(b)) ** 0.5)
    assert peak_amplification(a, a) == pytest.approx(float(max(output_gamma_squared(a))))
    assert len(output_gamma_squared(a)) == 4
    assert sum(output_gamma_squared(a)) / 4 == gamma_squared(a)


@pytest.mark.parametrize(("m", "r", "filters"), [(6, 2, (2, 1)), (5, 4, (4, 3)), (3, 3, (3, 2, 2))])
def test_short_phases_of_a_stride_round_more_than_their_share(
    m: int, r: int, filters: tuple[int, ...]
) -> None:
    """By its definition: the variance that roundings of U, V and M bring to each output."""
    made = transform(m, r)
    a, g, b = (np.array(matrix, dtype=float) for matrix in (made.at, made.g, made.bt))
    variance, taps = np.zeros(m), 0
    for count in filters:
        u = np.square(g[:, :count]).sum(axis=1)  # of random taps, the others zero
        variance += np.square(a) @ (u * np.square(b).sum(axis=1))
        taps += count
    exact = output_gamma_squared(made, filters)
    np.testing.assert_allclose(np.array(exact, dtype=float), variance / taps)
    whole = peak_amplification(made, made)
    assert peak_amplification(made, made, filters=(filters, filters)) > 1.05 * whole
    assert peak_amplification(made, filters=[(r, r)]) == peak_amplification(made)


def test_float64_errs_as_much_less_as_it_rounds() -> None:
    a = transform(4, 3)
    ratio = error_estimate(a, a, reduction=64) / error_estimate(a, a, reduction=64, dtype=FLOAT64)
    assert ratio == 2**29


def test_nonsense_is_refused() -> None:
    with pytest.raises(SpecError, match="got float16 and 3"):
        error_estimate(reduction=3, dtype=FLOAT16)
    with pytest.raises(SpecError, match="got float32 and 0"):
        error_estimate(reduction=0)


def measured(rows: Transform, columns: Transform, channels: int, seed: int) -> tuple[float, float]:
    """The largest error over the largest output, and the relative RMS error."""
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((channels, 20, 22)).astype(np.float32)
    w = generator.standard_normal((8, channels, rows.r, columns.r)).astype(np.float32)
    exact = direct(x, w)
    error = winograd(x, w, rows, columns) - exact
    return (
        float(np.abs(error).max() / np.abs(exact).max()),
        float(np.sqrt((error**2).mean() / (exact**2).mean())),
    )


TILES = [(2, 3), (3, 3), (4, 3), (5, 3), (6, 3), (7, 3), (8, 3), (4, 4), (4, 5), (5, 5), (2, 7)]


@pytest.mark.parametrize("channels", [3, 16, 64, 200, 512])
@pytest.mark.parametrize(("m", "r"), TILES)
def test_stated_errors_hold_and_are_not_loose(m: int, r: int, channels: int) -> None:
    made = transform(m, r)
    peak, rms = measured(made, made, channels, seed=m + 10 * r)
    stated = error_estimate(made, made, reduction=channels)
    assert peak < stated < 10 * peak
    expected = error_estimate(made, made, reduction=channels, peak=False)
    assert rms < 1.35 * expected
    assert expected < 1.6 * rms


@pytest.mark.parametrize("points", ["0 1 -1 2 -2", "0 3 -3 1/2 -4"])
def test_the_statement_holds_for_poor_points_too(points: str) -> None:
    made = transform(4, 3, rationals(points))
    peak, _ = measured(made, made, 64, seed=0)
    assert peak < error_estimate(made, made, reduction=64) < 20 * peak


@pytest.mark.parametrize(
    ("rows", "columns"), [((1, 1), (5, 3)), ((6, 3), (2, 3)), ((1, 1), (4, 7)), ((8, 2), (3, 5))]
)
def test_rectangles_and_single_axes(rows: tuple[int, int], columns: tuple[int, int]) -> None:
    axes = transform(*rows), transform(*columns)
    peak, _ = measured(*axes, 48, seed=3)
    used = [axis for axis in axes if axis.alpha > 1]
    assert peak < error_estimate(*used, reduction=48) < 20 * peak


def test_the_direct_sum() -> None:
    generator = np.random.default_rng(0)
    for length in (3, 27, 144, 576, 4608):
        a = generator.standard_normal((400, length)).astype(np.float32)
        b = generator.standard_normal((length,)).astype(np.float32)
        total = np.zeros(400, np.float32)
        for k in range(length):
            total += a[:, k] * b[k]
        exact = a.astype(np.float64) @ b.astype(np.float64)
        error = np.abs(total - exact).max() / np.abs(exact).max()
        assert error < error_estimate(reduction=length) < 20 * error
