"""Tiles of fewer outputs at some of the points of larger ones, with the same weights."""

from __future__ import annotations

from fractions import Fraction

import pytest

from leanconv.winograd.error import gamma_squared, peak_amplification
from leanconv.winograd.matrices import transform
from leanconv.winograd.variants import as_accurate, narrowed, ordered
from support.exact_linear import times

SIZES = [(m, r) for r in range(2, 8) for m in range(2, 11 - r)]


@pytest.mark.parametrize(("m", "r"), SIZES, ids=str)
def test_they_share_the_weights_and_are_no_less_accurate(m: int, r: int) -> None:
    for outputs in range(1, m + 1):
        whole = ordered(m, r, outputs)
        assert sorted(whole.points) == sorted(transform(m, r).points)
        assert gamma_squared(whole) == gamma_squared(transform(m, r))
        narrow = narrowed(whole, outputs)
        assert (narrow.m, narrow.r) == (outputs, r)
        assert narrow.g == whole.g[m - outputs :]
        worse = peak_amplification(narrow) > peak_amplification(whole)
        assert as_accurate(m, r, outputs) is not worse
        assert not worse or m == 2


def test_results_are_exact() -> None:
    whole = ordered(6, 3, 4)
    narrow = narrowed(whole, 4)
    data = [Fraction(x) for x in (3, -1, 4, 1, -5, 9)]
    taps = [Fraction(x) for x in (2, 7, -1)]
    expected = tuple(sum(taps[k] * data[i + k] for k in range(3)) for i in range(4))
    products = zip(times(narrow.g, taps), times(narrow.bt, data), strict=True)
    assert times(narrow.at, [u * v for u, v in products]) == expected
    u = times(whole.g, taps)[2:]  # the weights of whole tiles without their first points
    v = times(narrow.bt, data)
    assert times(narrow.at, [a * b for a, b in zip(u, v, strict=True)]) == expected


def test_whole_tiles_are_left_alone() -> None:
    assert ordered(4, 3, 4) is transform(4, 3)
    assert narrowed(transform(4, 3), 4) is transform(4, 3)
