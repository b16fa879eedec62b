"""Balancing moves powers of two and nothing else."""

from __future__ import annotations

import math

import pytest

from leanconv.winograd.error import gamma_squared
from leanconv.winograd.matrices import Transform, balance, transform, transpose, verify
from support.published import rationals

UNEVEN = transform(8, 3, rationals("0 1 -1 1/2 -1/2 2 -2 -1/4 4"))


def spread(made: Transform) -> float:
    """The largest ratio, over k, of the root mean squares of the rows that belong together."""
    ratios = []
    for rows in zip(transpose(made.at), made.g, made.bt, strict=True):
        norms = [math.sqrt(sum(v * v for v in row) / len(row)) for row in rows]
        ratios.append(max(norms) / min(norms))
    return max(ratios)


@pytest.mark.parametrize(
    "made", [UNEVEN, transform(6, 3), transform(5, 3), transform(4, 1)], ids=str
)
def test_rows_become_even(made: Transform) -> None:
    balanced = balance(made)
    verify(balanced)
    assert spread(balanced) <= 4
    assert gamma_squared(balanced) == gamma_squared(made)


def test_factors_are_powers_of_two() -> None:
    balanced = balance(UNEVEN)
    for row, before in zip(balanced.bt, UNEVEN.bt, strict=True):
        factors = {a / b for a, b in zip(row, before, strict=True) if b}
        assert len(factors) == 1
        factor = factors.pop()
        power = factor.numerator * factor.denominator
        assert power & (power - 1) == 0
        assert min(factor.numerator, factor.denominator) == 1


def test_there_was_something_to_balance() -> None:
    assert spread(UNEVEN) > 100


def test_rows_of_a_pair_stay_alike() -> None:
    balanced = balance(transform(6, 3))
    for k in (1, 3, 5):
        assert [abs(v) for v in balanced.bt[k]] == [abs(v) for v in balanced.bt[k + 1]]
