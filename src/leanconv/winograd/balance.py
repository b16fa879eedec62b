"""Powers of two between A^T, G and B^T, so that no intermediate value is much larger than others.

For each k, row k of G, row k of B^T and column k of A^T may be scaled by any factors of product 1
without changing the result, nor gamma^2. In float32 nothing is gained and additions may become
multiplications. Where values are stored in fewer bits, unequal rows overflow or vanish: with the
points 0, ±1, ±2, ±1/2, -1/4, 4 the rows of U differ by 10^3. Powers of two change no digits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from leanconv.winograd.matrices import Transform, transpose, verify


def balance(made: Transform) -> Transform:
    """Return the same F(m, r) with the norms of its rows made as equal as powers of two can.

    For each k the norms of column k of A^T and of rows k of G and B^T, each divided by the root of
    its length, become equal within a factor of four.
    """
    scaled = []
    for rows in zip(transpose(made.at), made.g, made.bt, strict=True):
        factors = [Fraction(2) ** shift for shift in _shifts([_exponent(row) for row in rows])]
        pairs = zip(factors, rows, strict=True)
        scaled.append([tuple(factor * value for value in row) for factor, row in pairs])
    columns_a, g, bt = zip(*scaled, strict=True)
    balanced = replace(made, at=transpose(columns_a), g=g, bt=bt)
    verify(balanced)
    return balanced


def _exponent(row: Sequence[Fraction]) -> float:
    """log2 of the root mean square of a row."""
    return math.log2(sum(value * value for value in row) / len(row)) / 2


def _shifts(exponents: Sequence[float]) -> list[int]:
    """Integers of sum 0 that bring the exponents as near to their mean as they can."""
    mean = sum(exponents) / len(exponents)
    wanted = [mean - exponent for exponent in exponents]
    shifts = [math.floor(value) for value in wanted]
    # The remainders sum to a whole number: round up where most is missing. Sorting is stable, so
    # rows of ±p, whose norms are equal, get the same factors.
    missing = round(sum(wanted)) - sum(shifts)
    by_need = sorted(range(len(wanted)), key=lambda i: shifts[i] - wanted[i])
    for i in by_need[:missing]:
        shifts[i] += 1
    return shifts
