"""Phases, parts and multiplications."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leanconv.errors import SpecError
from leanconv.winograd.counts import (
    Part,
    axis_parts,
    multiplications,
    phase_taps,
    saving,
    split_multiplications,
)
from support.float_conv import direct


def test_tiles() -> None:
    assert multiplications(2, 2, 3, 3) == 16
    assert multiplications(4, 4, 3, 3) == 36
    assert multiplications(6, 2, 3, 5) == 8 * 6
    assert saving(2, 2, (3, 3)) == 2.25
    assert saving(4, 4, (3, 3)) == 4
    assert round(saving(6, 6, (3, 3)), 2) == 5.06


def test_phases() -> None:
    assert phase_taps(3, 2) == (2, 1)
    assert phase_taps(5, 2) == (3, 2)
    assert phase_taps(7, 2) == (4, 3)
    assert phase_taps(11, 4) == (3, 3, 3, 2)
    assert phase_taps(2, 5) == (1, 1)
    assert phase_taps(4, 1) == (4,)


# Reduction of the multiplications in 2-D for m = 2, 3, 4, 6. (7, 2) at m = 3 is (21 / 11)^2; other
# tables print 3.65.
STRIDED = {
    (3, 2): (1.44, 1.65, 1.78, 1.92),
    (5, 2): (2.04, 2.78, 3.31, 4.00),
    (7, 2): (2.42, 3.64, 4.64, 6.10),
    (11, 4): (2.15, 3.02, 3.66, 4.53),
}


@pytest.mark.parametrize(("kernel", "stride"), STRIDED)
def test_strided_savings_are_as_published(kernel: int, stride: int) -> None:
    found = [saving(m, m, (kernel,) * 2, (stride,) * 2) for m in (2, 3, 4, 6)]
    assert found == [pytest.approx(value, abs=0.0051) for value in STRIDED[kernel, stride]]


def test_short_phases_leave_points_out() -> None:
    assert split_multiplications(4, 4, (7, 7), (2, 2)) == (7 + 6) ** 2
    assert split_multiplications(4, 4, (6, 6), (2, 2)) == (2 * 6) ** 2


def test_large_kernels_fall_into_equal_parts() -> None:
    assert [part.taps for part in axis_parts(11, most_taps=7)] == [6, 5]
    assert [part.taps for part in axis_parts(7, most_taps=7)] == [7]
    assert [part.taps for part in axis_parts(31, most_taps=7)] == [7, 6, 6, 6, 6]
    assert [(p.phase, p.start, p.taps) for p in axis_parts(9, 2, 3)] == [
        (0, 0, 3),
        (0, 3, 2),
        (1, 0, 2),
        (1, 2, 2),
    ]
    assert saving(4, 4, (9, 9), most_taps=3) == 4
    assert round(saving(2, 2, (11, 11), most_taps=3), 2) == round(22**2 / 15**2, 2)


def kernel_taps(part: Part, stride: int) -> range:
    """The indices of the kernel's taps that a part covers."""
    first = part.phase + stride * part.start
    return range(first, first + stride * part.taps, stride)


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 9))
def test_parts_cover_every_tap_once(kernel: int, stride: int, most: int) -> None:
    parts = axis_parts(kernel, stride, most)
    taps = [tap for part in parts for tap in kernel_taps(part, stride)]
    assert sorted(taps) == list(range(kernel))
    assert all(1 <= part.taps <= most for part in parts)
    for phase in {part.phase for part in parts}:
        sizes = [part.taps for part in parts if part.phase == phase]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("kernel", "stride", "most"), [(7, 2, 7), (11, 4, 2), (13, 3, 2), (9, 1, 4)]
)
def test_the_parts_add_up_to_the_convolution(kernel: int, stride: int, most: int) -> None:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((2, 40, 37))
    w = generator.standard_normal((3, 2, kernel, kernel))
    expected = direct(x, w)[:, ::stride, ::stride]
    total = np.zeros_like(expected)
    height, width = expected.shape[1:]
    for row in axis_parts(kernel, stride, most):
        for column in axis_parts(kernel, stride, most):
            phase = x[:, row.phase :: stride, column.phase :: stride]
            used = phase[:, row.start :, column.start :]
            taps = w[:, :, list(kernel_taps(row, stride))][..., list(kernel_taps(column, stride))]
            total += direct(used, taps)[:, :height, :width]
    np.testing.assert_allclose(total, expected, atol=1e-12)


def test_nonsense_is_refused() -> None:
    with pytest.raises(SpecError, match="stride must be at least 1, got 0"):
        phase_taps(3, 0)
    with pytest.raises(SpecError, match="most_taps must be at least 1"):
        axis_parts(3, 1, 0)
    with pytest.raises(SpecError, match="m must be at least 1"):
        multiplications(0, 2, 3, 3)
