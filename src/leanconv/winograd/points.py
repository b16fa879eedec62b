"""Which points F(m, r) uses.

`TABLE` holds the best sets known for m + r - 1 up to 16 by gamma^2 (see `error`): symmetric ones,
with 0 just when m + r is odd. `benchmarks/winograd_points.py` found them, within one percent of the
real optimum. They are better than wincnn's 0, ±1, ±2, ±1/2, … and than those of Barabasz et al.
(2020) wherever these are not among them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

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
