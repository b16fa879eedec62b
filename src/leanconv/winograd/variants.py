"""F(m, r) for tiles of fewer outputs, and in integers.

Fewer outputs: row k of G depends on the point p_k alone, but for a factor. A tile that has only
m' < m outputs, as the last ones of a row often do, can therefore leave m - m' points out: the
others, with B^T of their own, whose rows take up the factors, and the left part of A^T, are an
F(m', r) with the same transformed weights.

Integers: exact with 16-bit operands and sums modulo 2^32.

    s · y = A^T [(G' g) * (B^T d)]        A^T, G', B^T integers; along both axes S = s_h · s_w

Points are small integers. Rows of G times a common factor s are integers; the row at infinity is
divided by what makes it needlessly large, which its column of A^T makes up for. F(2, 3) and F(4, 3)
are ncnn's (`reference/int8_winograd`). Products and the transform back are modulo 2^32. There
S·y times the inverse of S's odd part is 2^k · y, and an arithmetic shift by k leaves y, if that has
32 - k bits. Tiles of fewer outputs leave points out here, too, with the same U: what rows of G lack
for the same s goes into A^T, which is modulo 2^32 anyway.

`docs/algorithms.md` has a table of the bits of every form.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from math import lcm

from leanconv.records import dataclass, replace
from leanconv.winograd.error import gamma_squared, peak_amplification
from leanconv.winograd.matrices import Matrix, Row, Transform, transform, verify

_LARGEST = 2**15 - 1  # of a transformed operand
_WEIGHTS = 2**7  # the largest int8 by magnitude
# Finite points of m + r - 1, in this order: each ± pair is whole but perhaps the last.
_POINTS = (0, 1, -1, 2, -2)


@lru_cache(maxsize=512)
def ordered(m: int, r: int, outputs: int) -> Transform:
    """Return F(m, r) with the points first that tiles of `outputs` outputs leave out best.

    Pairs ±p and zero are kept whole where their number allows it; of these choices it is the one
    that amplifies rounding least.

    Args:
        m: outputs of a whole tile.
        r: taps, at least 2.
        outputs: of a narrow one, 1 to m.
    """
    made = transform(m, r)
    groups: list[Row] = []
    for point in made.points:
        if groups and groups[-1] == (-point,):
            groups[-1] += (point,)
        else:
            groups.append((point,))
    dropped = m - outputs
    chosen = [sum(some, ()) for n in range(len(groups) + 1) for some in combinations(groups, n)]
    even = [some for some in chosen if len(some) == dropped]
    if not even:  # one point of a pair has to go alone
        less = [some for some in chosen if len(some) == dropped - 1]
        even = [(*some, p) for some in less for p in made.points if p not in some]
    rests = {some: tuple(p for p in made.points if p not in some) for some in even}
    best = min(even, key=lambda some: gamma_squared(transform(outputs, r, rests[some])))
    return transform(m, r, (*best, *rests[best])) if dropped else made


@lru_cache(maxsize=512)
def narrowed(made: Transform, outputs: int) -> Transform:
    """Return F(outputs, r) without the first points of `made`, rows of G unchanged.

    Args:
        made: an F(m, r) by points.
        outputs: 1 to m.
    """
    dropped = made.m - outputs
    if not dropped:
        return made
    small = transform(outputs, made.r, made.points[dropped:])
    # The first elements of the rows of G are never zero, but for the point at infinity.
    factors = [
        a[0] / b[0] if b[0] else Fraction(1) for a, b in zip(small.g, made.g[dropped:], strict=True)
    ]
    bt = tuple(tuple(f * c for c in row) for f, row in zip(factors, small.bt, strict=True))
    result = replace(small, g=made.g[dropped:], bt=bt)
    verify(result)
    return result


@lru_cache(maxsize=512)
def as_accurate(m: int, r: int, outputs: int) -> bool:
    """Return whether narrow tiles amplify rounding no more than whole ones; a few tiny ones do."""
    whole = ordered(m, r, outputs)
    return peak_amplification(narrowed(whole, outputs)) <= peak_amplification(whole)


@dataclass(frozen=True)
class IntegerTransform:
    """The matrices of one F(m, r) in integers.

    Attributes:
        exact: A^T, G' and B^T, whose elements are integers.
        scale: s, a factor of the outputs.
    """

    exact: Transform
    scale: int


@lru_cache(maxsize=64)
def integer_transform(m: int, r: int) -> IntegerTransform | None:
    """F(m, r) in integers, points that narrow tiles leave out first; None beyond six points."""
    if min(m, r) == 1:
        return IntegerTransform(transform(m, r), 1)
    if m + r - 2 > len(_POINTS):
        return None
    points: Row = tuple(Fraction(p) for p in reversed(_POINTS[: m + r - 2]))
    made = transform(m, r, points)
    scale = lcm(*(c.denominator for row in made.g for c in row))
    finite = [tuple(scale * c for c in row) for row in made.g[:-1]]
    most = max(sum(map(abs, row)) for row in finite)
    less = next(d for d in range(1, scale + 1) if scale % d == 0 and scale // d <= most)
    g = (*finite, tuple(scale // less * c for c in made.g[-1]))
    at = tuple((*row[:-1], less * row[-1]) for row in made.at)
    return _checked(Transform(m, r, points, at=at, g=g, bt=made.bt), scale)


@lru_cache(maxsize=64)
def narrowed_integers(made: IntegerTransform, outputs: int) -> IntegerTransform | None:
    """F(outputs, r) without the first points of `made`, rows of G' and s unchanged.

    None where A^T would be no integers.
    """
    whole = made.exact
    dropped = whole.m - outputs
    if not dropped:
        return made
    small, g = transform(outputs, whole.r, whole.points[dropped:]), whole.g[dropped:]
    factors = [made.scale * _ratio(a, b) for a, b in zip(small.g, g, strict=True)]
    if any(f.denominator != 1 for f in factors):
        return None
    at = tuple(tuple(f * c for f, c in zip(factors, row, strict=True)) for row in small.at)
    return _checked(replace(small, at=at, g=g), made.scale)


def _ratio(a: Row, b: Row) -> Fraction:
    """Return a row's factor over another that is proportional to it."""
    return next(x / y for x, y in zip(a, b, strict=True) if y)


def _checked(made: Transform, scale: int) -> IntegerTransform:
    numbers = [c for matrix in (made.at, made.g, made.bt) for row in matrix for c in row]
    assert all(c.denominator == 1 for c in numbers), f"{made} is not in integers"
    verify(replace(made, at=tuple(tuple(c / scale for c in row) for row in made.at)))
    return IntegerTransform(made, scale)


@dataclass(frozen=True)
class Division:
    """Division that makes y of S·y modulo 2^32: times `inverse`, then shifted right by `shift`."""

    inverse: int
    shift: int

    @property
    def bits(self) -> int:
        """Bits that y may have, its sign counted."""
        return 32 - self.shift


def division(scale: int) -> Division:
    """The exact division by a scale S."""
    shift = (scale & -scale).bit_length() - 1
    return Division(pow(scale >> shift, -1, 2**32), shift)


def operands_fit(height: Transform, width: Transform, low: int, high: int) -> bool:
    """Return whether transformed inputs from `low` to `high`, and int8 weights, have 16 bits."""
    weights, least, most = operand_bounds(height, width, low, high)
    return weights <= _LARGEST and most <= _LARGEST and -least <= _LARGEST + 1


def operand_bounds(
    height: Transform, width: Transform, low: int, high: int
) -> tuple[Fraction, int, int]:
    """The largest magnitude of transformed weights (int8); the least and the largest input."""
    weights = _WEIGHTS * _peak(height.g) * _peak(width.g)
    return weights, *_extremes(height.bt, width.bt, low, high)


def _peak(matrix: Matrix) -> Fraction:
    return max(sum((abs(c) for c in row), Fraction(0)) for row in matrix)


def _extremes(height: Matrix, width: Matrix, low: int, high: int) -> tuple[int, int]:
    """The least and the largest number that a transform of both axes gives."""
    found = []
    for a in height:
        for b in width:
            terms = [x * y for x in a for y in b]
            up, down = sum(t for t in terms if t > 0), sum(t for t in terms if t < 0)
            found += [low * up + high * down, high * up + low * down]
    return int(min(found)), int(max(found))
