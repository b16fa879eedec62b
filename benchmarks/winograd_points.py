"""Find points of F(m, r) that amplify rounding least, for the table of `winograd/matrices`.

    python benchmarks/winograd_points.py 6 3       the points, and gamma^2 of the real optimum

The best sets found are symmetric (p with -p) and hold 0 just when the number of finite points is
odd. What is left to find is one number per pair: first as reals, by a coordinate search over
log p from several starts, then as the simplest rationals that lose no more than a percent.
It takes seconds for alpha = 16.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Sequence
from fractions import Fraction

from leanconv.winograd.matrices import tangent_pairs

_TOLERANCE = 1.01


def symmetric_gamma_squared(m: int, r: int, pairs: Sequence[float], zero: bool) -> float:
    """Return gamma^2 of F(m, r) with points ±pairs (and 0), in floating point."""
    squares = [p * p for p in pairs]
    total = 0.0
    whole = _expand(squares)
    if zero:  # A^T, G and B^T of the point 0; f_0 is the product of the squares
        total += sum(c * c for c in whole) / (math.prod(squares) ** 2 or 1e-300)
    total += sum(c * c for c in whole)  # infinity
    for k, square in enumerate(squares):
        others = squares[:k] + squares[k + 1 :]
        scale = 2 * pairs[k] * math.prod(square - other for other in others)
        if zero:
            scale *= pairs[k]
        if scale == 0.0:
            return math.inf
        coefficients = sum(c * c for c in _expand(others)) * (1 + square)
        total += 2 * _norm(square, m) * _norm(square, r) * coefficients / scale**2
    return total / (m * r)


def _norm(square: float, count: int) -> float:
    return sum(square**k for k in range(count))


def _expand(squares: Sequence[float]) -> list[float]:
    """Coefficients of prod (x - square)."""
    coefficients = [1.0]
    for square in squares:
        coefficients = [
            a - square * b for a, b in zip([0.0, *coefficients], [*coefficients, 0.0], strict=True)
        ]
    return coefficients


def search(m: int, r: int, seed: int = 0, starts: int = 4) -> tuple[tuple[Fraction, ...], float]:
    """Return simple rational pairs for F(m, r) and the real optimum of gamma^2 that they approach.

    Args:
        m, r: at least 2 each.
        seed: of the perturbed starts.
        starts: descents, the first from `tangent_pairs`.

    Returns:
        The positive points of the ± pairs, ascending, with gamma^2 within one percent of the
        second value: the least found over the reals. 0 belongs to the set if m + r is odd.
    """
    finite = m + r - 2
    count, zero = divmod(finite, 2)
    generator = random.Random(seed)
    base = [math.log(p) for p in tangent_pairs(count, bool(zero))]
    best, least = base, math.inf
    for start in range(starts):
        jitter = 0.0 if start == 0 else 0.15
        begin = [x + generator.gauss(0.0, jitter) for x in base]
        found, value = _descend(m, r, begin, bool(zero))
        if value < least:
            best, least = found, value
    return _simplest(m, r, [math.exp(x) for x in best], least, bool(zero)), least


def _descend(m: int, r: int, logs: list[float], zero: bool) -> tuple[list[float], float]:
    """Pattern search over log p: a step along each axis or pair of axes while it helps."""
    step = 0.1
    value = symmetric_gamma_squared(m, r, [math.exp(x) for x in logs], zero)
    moves = [{k: s} for k in range(len(logs)) for s in (1, -1)]
    moves += [{k: s, k + 1: t} for k in range(len(logs) - 1) for s in (1, -1) for t in (1, -1)]
    while step > 1e-4:
        improved = False
        for move in moves:
            trial = [x + step * move.get(k, 0) for k, x in enumerate(logs)]
            there = symmetric_gamma_squared(m, r, [math.exp(x) for x in trial], zero)
            if there < value:
                logs, value, improved = trial, there, True
        if not improved:
            step /= 2
    return sorted(logs), value


def _simplest(
    m: int, r: int, pairs: Sequence[float], least: float, zero: bool
) -> tuple[Fraction, ...]:
    """Round to rationals with the smallest numerators and denominators that lose little."""
    for limit in range(1, 65):
        grid = sorted({Fraction(n, d) for n in range(1, limit + 1) for d in range(1, limit + 1)})
        near = [[q for q in grid if 0.75 < q / p < 1.33] for p in pairs]
        if not all(near):
            continue
        chosen = [_nearest(options, p) for options, p in zip(near, pairs, strict=True)]
        value = symmetric_gamma_squared(m, r, [float(q) for q in chosen], zero)
        improved = True
        while improved:
            improved = False
            for k, options in enumerate(near):
                for option in options:
                    trial = [*chosen[:k], option, *chosen[k + 1 :]]
                    there = symmetric_gamma_squared(m, r, [float(q) for q in trial], zero)
                    if there < value * (1 - 1e-9):
                        chosen, value, improved = trial, there, True
        if value <= least * _TOLERANCE:
            return tuple(sorted(chosen))
    raise AssertionError(f"no rationals near {pairs} for F({m}, {r})")


def _nearest(options: Sequence[Fraction], value: float) -> Fraction:
    return min(options, key=lambda option: abs(option - value))


if __name__ == "__main__":
    found, optimum = search(int(sys.argv[1]), int(sys.argv[2]))
    print(*found, f"  {optimum:.4g}")
