"""F(m, r): m outputs of an r-tap filter with m + r - 1 multiplications, in exact rationals.

    y = A^T [(G g) * (B^T d)]        y_i = sum_k g_k d_{i+k},   i < m, k < r

Cook-Toom with the point at infinity (Winograd 1980; Lavin & Gray 2015; Blahut 2010, chapter 5).
With finite points p_0 … p_{a-2}, where a = m + r - 1, and f_k = prod_{j != k} (p_k - p_j):

    A^T (m x a): column k is 1, p_k, …, p_k^{m-1};            the last column is e_{m-1}
    G   (a x r): row k is (1, p_k, …, p_k^{r-1}) / f_k;       the last row is e_{r-1}
    B^T (a x a): row k holds the coefficients of prod_{j != k} (x - p_j), constant term first;
                 the last row those of the product over all finite points

These are wincnn's matrices, its signs included: where f_0 < 0 the first rows of G and B^T are both
negated. The form of Lavin & Gray for F(2, 3) has its last column of A^T and last row of B^T negated
instead of plain; any such pair of signs cancels. All fractions are in G, which is applied to
weights once; every row of B^T has a coefficient of 1 or -1 in front of its highest input.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from math import lcm

from leanconv.errors import SpecError
from leanconv.records import dataclass
from leanconv.winograd.points import default_points

Row = tuple[Fraction, ...]
Matrix = tuple[Row, ...]
Rational = Fraction | int | str
_NUMBER = re.compile(r"\s*[-+]?\d{1,9}(?:\.\d{1,9}|/\d{1,9})?\s*")


@dataclass(frozen=True)
class Transform:
    """The matrices of one F(m, r); see the module for their meaning.

    Attributes:
        m: outputs of a tile.
        r: taps of the filter.
        points: the alpha - 1 finite points; infinity is always the last. Empty where m or r is 1.
        at: A^T, m x alpha.
        g: G, alpha x r.
        bt: B^T, alpha x alpha.
    """

    m: int
    r: int
    points: Row
    at: Matrix
    g: Matrix
    bt: Matrix

    @property
    def alpha(self) -> int:
        """Multiplications of a tile, which is also the number of its inputs: m + r - 1."""
        return self.m + self.r - 1

    def __str__(self) -> str:
        return f"F({self.m}, {self.r})"


def transform(m: int, r: int, points: Sequence[Rational] | None = None) -> Transform:
    """Return F(m, r), checked exactly.

    Args:
        m: outputs of a tile, at least 1.
        r: taps of the filter, at least 1.
        points: m + r - 2 different finite points (`Fraction`, int, or text such as `"2/3"`), or
            None for those of `leanconv.winograd.points`. With None, F(m, 1) and F(1, r) are the
            trivial ones: A^T = B^T = I and G = B^T = I, which no choice of points improves.

    Raises:
        SpecError: m or r is below 1, a point is no rational or comes twice, or their number is
            wrong.
    """
    if points is None:
        return _default(*_checked(m, r))
    return _from_points(*_checked(m, r), _rationals(m, r, points))


def _checked(m: int, r: int) -> tuple[int, int]:
    for name, value in (("m", m), ("r", r)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise SpecError(f"F(m, r) takes integers of at least 1, got {name} = {value!r}")
    return m, r


def _rationals(m: int, r: int, points: Sequence[Rational]) -> Row:
    try:
        if any(isinstance(point, str) and not _NUMBER.fullmatch(point) for point in points):
            raise ValueError  # Fraction would write out the zeros of 1e1000000000
        values = tuple(Fraction(point) for point in points)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise SpecError(
            f"points {', '.join(map(str, points))} are not all rational; expected integers, "
            f"fractions or text such as '2/3'"
        ) from error
    if len(values) != m + r - 2:
        raise SpecError(
            f"F({m}, {r}) takes {m + r - 2} finite points (infinity is always there as well), "
            f"got {len(values)}"
        )
    if len(set(values)) != len(values):
        shown = ", ".join(map(str, values))
        raise SpecError(f"points of F({m}, {r}) must differ from one another, got {shown}")
    return values


@lru_cache(maxsize=512)
def _default(m: int, r: int) -> Transform:
    if m > 1 and r > 1:
        return _from_points(m, r, default_points(m, r))
    identity = _identity(m + r - 1)
    ones = ((Fraction(1),) * (m + r - 1),)
    if r == 1:
        made = Transform(m, r, (), at=identity, g=tuple(zip(*ones, strict=True)), bt=identity)
    else:
        made = Transform(m, r, (), at=ones, g=identity, bt=identity)
    verify(made)
    return made


@lru_cache(maxsize=512)
def _from_points(m: int, r: int, points: Row) -> Transform:
    at_columns: list[Row] = []
    g: list[Row] = []
    bt: list[Row] = []
    for k, point in enumerate(points):
        others = points[:k] + points[k + 1 :]
        scale = Fraction(1)
        for other in others:
            scale *= point - other
        coefficients = (*polynomial(others), Fraction(0))
        if k == 0 and scale < 0:
            scale, coefficients = -scale, tuple(-c for c in coefficients)
        at_columns.append(_powers(point, m))
        g.append(tuple(power / scale for power in _powers(point, r)))
        bt.append(coefficients)
    at_columns.append(_identity(m)[-1])
    g.append(_identity(r)[-1])
    bt.append(polynomial(points))
    at = tuple(zip(*at_columns, strict=True))
    made = Transform(m, r, points, at=at, g=tuple(g), bt=tuple(bt))
    verify(made)
    return made


def polynomial(roots: Sequence[Fraction]) -> Row:
    """Return the coefficients of prod (x - root), constant term first, the last one 1."""
    coefficients = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *coefficients]
        scaled = [*(root * c for c in coefficients), Fraction(0)]
        coefficients = [a - b for a, b in zip(shifted, scaled, strict=True)]
    return tuple(coefficients)


def _powers(base: Fraction, count: int) -> Row:
    return tuple(base**exponent for exponent in range(count))


def _identity(size: int) -> Matrix:
    return tuple(tuple(Fraction(int(i == j)) for j in range(size)) for i in range(size))


def transpose(matrix: Matrix) -> Matrix:
    """Return the matrix with rows and columns exchanged."""
    return tuple(zip(*matrix, strict=True))


def verify(made: Transform) -> None:
    """Check the bilinear identity sum_x A^T[i,x] G[x,k] B^T[x,j] = (j == i + k) for all i, k, j.

    It proves F(m, r) for every input. In integers, over the common denominator of each term x;
    m r alpha^2 products.

    Raises:
        AssertionError: the matrices are not those of an F(m, r), which is our own mistake.
    """
    columns, rows_g, rows_b, weights = [], [], [], []
    for x in range(made.alpha):
        column, a_scale = _integers([row[x] for row in made.at])
        row_g, g_scale = _integers(made.g[x])
        row_b, b_scale = _integers(made.bt[x])
        columns.append(column)
        rows_g.append(row_g)
        rows_b.append(row_b)
        weights.append(a_scale * g_scale * b_scale)
    unit = lcm(*weights)
    factors = [unit // weight for weight in weights]
    for i in range(made.m):
        for k in range(made.r):
            total = [0] * made.alpha
            for x, factor in enumerate(factors):
                product = columns[x][i] * rows_g[x][k] * factor
                if product:
                    total = [t + product * b for t, b in zip(total, rows_b[x], strict=True)]
            expected = [unit * (j == i + k) for j in range(made.alpha)]
            assert total == expected, f"{made} with points {made.points} is wrong at {(i, k)}"


def _integers(values: Sequence[Fraction]) -> tuple[list[int], int]:
    """Return the values times their common denominator, and that denominator."""
    scale = lcm(*(value.denominator for value in values))
    return [value.numerator * (scale // value.denominator) for value in values], scale
