"""F(m', r) of fewer outputs at some of the points of F(m, r), with the same transformed weights.

Row k of G depends on the point p_k alone, but for a factor. A tile that has only m' < m outputs,
as the last ones of a row often do, can therefore leave m - m' points out: the others, with
B^T of their own, whose rows take up the factors, and the left part of A^T, are an F(m', r).
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from itertools import combinations

from leanconv.winograd.error import gamma_squared, peak_amplification
from leanconv.winograd.matrices import Row, Transform, transform, verify


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
