"""Sums of rounded quotients in closed form: what counts taps without walking over positions."""

from __future__ import annotations


def floor_sum(count: int, step: int, start: int, divisor: int) -> int:
    """The sum of `(start + i * step) // divisor` for i < count, in steps like Euclid's algorithm.

    Args:
        count, step, start: not negative.
        divisor: positive.
    """
    total = 0
    while count > 0:
        total += count * (count - 1) // 2 * (step // divisor) + count * (start // divisor)
        step, start = step % divisor, start % divisor
        # Points below the line, counted along the other axis: quotients become positions.
        last = step * count + start
        count, start, step, divisor = last // divisor, last % divisor, divisor, step
    return total


def residues_below(count: int, step: int, start: int, divisor: int, bound: int) -> int:
    """How many of `(start + i * step) % divisor`, i < count, are less than `bound`.

    Args:
        count, step: not negative.
        start: of any sign.
        divisor: positive.
        bound: from 0 to `divisor`.
    """
    start %= divisor
    above = floor_sum(count, step, start + divisor, divisor)
    return above - floor_sum(count, step, start + divisor - bound, divisor)


def first_residue_below(count: int, step: int, start: int, divisor: int, bound: int) -> int:
    """The least i with `(start + i * step) % divisor < bound`; `count` if none is less than that.

    Args:
        count, step, start, divisor, bound: as of `residues_below`.
    """
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if residues_below(middle + 1, step, start, divisor, bound):
            high = middle
        else:
            low = middle + 1
    return low
