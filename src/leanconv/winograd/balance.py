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

from leanconv.errors import SpecError
from leanconv.winograd.matrices import Transform, transpose, verify

MATRICES = ("at", "g", "bt")


def balance(made: Transform, movable: Sequence[str] = MATRICES) -> Transform:
    """Return the same F(m, r) with the norms of its rows made as equal as powers of two can.

    For each k the norms of the movable ones among column k of A^T and rows k of G and B^T, each
    divided by the root of its length, become equal within a factor of two.

    Args:
        made: any transform.
        movable: which of `"at"`, `"g"`, `"bt"` may be scaled, at least two. `("at", "g")` leaves
            the code of the input transform as it is.

    Raises:
        SpecError: fewer than two are movable, or a name is unknown.
    """
    names = tuple(dict.fromkeys(movable))
    if len(names) < 2 or not set(names) <= set(MATRICES):
        raise SpecError(
            f"got {', '.join(map(repr, movable)) or 'none'} to move factors between; expected at "
            f"least two of {', '.join(MATRICES)}"
        )
    rows = {"at": transpose(made.at), "g": made.g, "bt": made.bt}
    scaled: dict[str, list[tuple[Fraction, ...]]] = {name: [] for name in MATRICES}
    for k in range(made.alpha):
        shifts = _shifts([_exponent(rows[name][k]) for name in names])
        factors = {name: Fraction(2) ** shift for name, shift in zip(names, shifts, strict=True)}
        for name in MATRICES:
            factor = factors.get(name, Fraction(1))
            scaled[name].append(tuple(factor * value for value in rows[name][k]))
    balanced = replace(
        made, at=transpose(tuple(scaled["at"])), g=tuple(scaled["g"]), bt=tuple(scaled["bt"])
    )
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
