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

`TABLE` holds the best sets known for m + r - 1 up to 16 by gamma^2 (see `error`): symmetric ones,
with 0 just when m + r is odd. `benchmarks/winograd_points.py` found them, within one percent of the
real optimum. They are better than wincnn's 0, ±1, ±2, ±1/2, … and than those of Barabasz et al.
(2020) wherever these are not among them.

`balance` makes no intermediate value much larger than others, by powers of two, which change no
digits. For each k, row k of G, row k of B^T and column k of A^T may be scaled by any factors of
product 1 without changing the result, nor gamma^2. In float32 nothing is gained and additions may
become multiplications. Where values are stored in fewer bits, unequal rows overflow or vanish: with
the points 0, ±1, ±2, ±1/2, -1/4, 4 the rows of U differ by 10^3.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from math import lcm

from leanconv.errors import SpecError
from leanconv.records import dataclass, replace

# By (min(m, r), max(m, r)): the positive points of the ± pairs, and gamma^2.
TABLE: dict[tuple[int, int], tuple[str, float]] = {
    # alpha = 3
    (2, 2): ("2/3", 1.147),
    # alpha = 4
    (2, 3): ("1", 1.667),
    # alpha = 5
    (2, 4): ("2/5 5/4", 2.805),
    (3, 3): ("3/8 5/4", 2.622),
    # alpha = 6
    (2, 5): ("2/3 3/2", 5.326),
    (3, 4): ("2/3 3/2", 4.762),
    # alpha = 7
    (2, 6): ("2/7 6/7 7/4", 11.08),
    (3, 5): ("2/7 6/7 7/4", 9.532),
    (4, 4): ("2/7 6/7 7/4", 9.118),
    # alpha = 8
    (2, 7): ("1/2 1 2", 24.76),
    (3, 6): ("1/2 1 2", 20.63),
    (4, 5): ("1/2 1 2", 19.07),
    # alpha = 9
    (2, 8): ("2/9 7/10 10/9 11/5", 57.81),
    (3, 7): ("2/9 2/3 9/8 9/4", 47.47),
    (4, 6): ("2/9 2/3 9/8 9/4", 42.76),
    (5, 5): ("2/9 2/3 9/8 9/4", 41.4),
    # alpha = 10
    (2, 9): ("3/7 5/6 6/5 7/3", 140.1),
    (3, 8): ("3/7 4/5 5/4 7/3", 113.1),
    (4, 7): ("3/7 4/5 5/4 7/3", 100.3),
    (5, 6): ("2/5 4/5 5/4 5/2", 95.43),
    # alpha = 11
    (2, 10): ("1/5 4/7 9/10 4/3 5/2", 350.3),
    (3, 9): ("1/5 4/7 9/10 4/3 5/2", 279.6),
    (4, 8): ("1/5 4/7 9/10 4/3 8/3", 244.2),
    (5, 7): ("1/5 4/7 9/10 4/3 8/3", 227.2),
    (6, 6): ("1/5 4/7 9/10 4/3 8/3", 222),
    # alpha = 12
    (2, 11): ("3/8 5/7 1 7/5 8/3", 894.5),
    (3, 10): ("3/8 7/10 1 10/7 8/3", 710.3),
    (4, 9): ("4/11 7/10 1 10/7 11/4", 611.1),
    (5, 8): ("4/11 7/10 1 10/7 11/4", 562.2),
    (6, 7): ("4/11 9/13 1 13/9 11/4", 537.3),
    # alpha = 13
    (2, 12): ("1/6 1/2 4/5 12/11 3/2 3", 2332),
    (3, 11): ("1/6 1/2 4/5 12/11 3/2 3", 1834),
    (4, 10): ("1/6 1/2 7/9 12/11 11/7 3", 1570),
    (5, 9): ("1/6 1/2 7/9 11/10 11/7 3", 1425),
    (6, 8): ("1/6 1/2 7/9 11/10 11/7 3", 1347),
    (7, 7): ("1/6 1/2 7/9 11/10 11/7 3", 1324),
    # alpha = 14
    (2, 13): ("4/13 5/8 8/9 9/8 8/5 13/4", 6175),
    (3, 12): ("4/13 8/13 7/8 8/7 13/8 13/4", 4798),
    (4, 11): ("4/13 8/13 7/8 8/7 13/8 13/4", 4080),
    (5, 10): ("4/13 3/5 7/8 8/7 5/3 13/4", 3667),
    (6, 9): ("3/10 3/5 7/8 8/7 5/3 10/3", 3456),
    (7, 8): ("3/10 3/5 7/8 8/7 5/3 10/3", 3349),
    # alpha = 15
    (2, 14): ("2/13 4/9 5/7 13/14 6/5 12/7 10/3", 16580),
    (3, 13): ("1/7 4/9 5/7 13/14 6/5 7/4 10/3", 12880),
    (4, 12): ("1/7 4/9 7/10 12/13 11/9 7/4 10/3", 10900),
    (5, 11): ("2/13 3/7 7/10 12/13 11/9 7/4 10/3", 9705),
    (6, 10): ("2/13 3/7 7/10 12/13 11/9 7/4 10/3", 8998),
    (7, 9): ("2/13 3/7 7/10 12/13 11/9 7/4 10/3", 8622),
    (8, 8): ("2/13 3/7 7/10 12/13 11/9 7/4 10/3", 8504),
    # alpha = 16
    (2, 15): ("2/7 5/9 4/5 1 5/4 9/5 7/2", 44850),
    (3, 14): ("2/7 6/11 4/5 1 5/4 11/6 7/2", 34830),
    (4, 13): ("3/11 6/11 7/9 1 9/7 11/6 11/3", 29150),
    (5, 12): ("3/11 6/11 7/9 1 9/7 11/6 11/3", 25780),
    (6, 11): ("3/11 6/11 7/9 1 9/7 11/6 11/3", 23740),
    (7, 10): ("3/11 6/11 7/9 1 9/7 11/6 11/3", 22550),
    (8, 9): ("3/11 6/11 7/9 1 9/7 11/6 11/3", 22000),
}


def default_points(m: int, r: int) -> tuple[Fraction, ...]:
    """Return the m + r - 2 finite points that F(m, r) uses by default; m, r >= 2.

    From `TABLE` up to alpha = 16, beyond it tangents of equally spaced angles, compressed and
    rounded to simple rationals. Where 0 is a point it comes first; the points of a pair are
    neighbours, the positive one first. Without 0 the largest pair comes first, which makes f_0
    positive, so that no row is negated.
    """
    finite = m + r - 2
    count, zero = divmod(finite, 2)
    key = (min(m, r), max(m, r))
    if key in TABLE:
        pairs = [Fraction(text) for text in TABLE[key][0].split()]
    else:
        pairs = _simple(tangent_pairs(count, bool(zero)))
    points = [Fraction(0)] if zero else []
    for pair in pairs if zero else reversed(pairs):
        points += [pair, -pair]
    return tuple(points)


def tangent_pairs(count: int, zero: bool) -> list[float]:
    """Return `count` positive points that spread evenly over the projective line, compressed.

    tan of equally spaced angles, infinity among them, to a power: optimal points are somewhat
    nearer to 1 than the tangents do (exponents between 0.70 and 0.82 for alpha from 6 to 12).
    """
    alpha = 2 * count + zero + 1
    first = 1.0 if zero else 0.5
    return [math.tan(math.pi * (j + first) / alpha) ** 0.77 for j in range(count)]


def _simple(values: Sequence[float]) -> list[Fraction]:
    """Round each value to the simplest rational within a fifth of its distance to another."""
    rounded = []
    for k, value in enumerate(values):
        around = [
            abs(value - other) for other in (*values[max(k - 1, 0) : k], *values[k + 1 : k + 2])
        ]
        room = min([*around, value]) / 5
        limit = 1
        while abs(Fraction(value).limit_denominator(limit) - Fraction(value)) > room:
            limit += 1
        rounded.append(Fraction(value).limit_denominator(limit))
    return rounded


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
            None for those of `leanconv.winograd.matrices`. With None, F(m, 1) and F(1, r) are the
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
