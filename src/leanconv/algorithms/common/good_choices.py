"""Few choices for a layer of any size, of which one is good for each of its sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeVar

_Size = TypeVar("_Size")
_Choice = TypeVar("_Choice")
_GOOD = 1.05  # times the cycles of the best


def good_choices(
    sizes: Iterable[_Size],
    best: Callable[[_Size], _Choice | None],
    cycles: Callable[[_Size, _Choice], float | None],
) -> list[_Choice]:
    """Choices of which one is about as good for each size as its best one.

    Args:
        sizes: the usual ones, in the order in which choices are added for them.
        best: the best choice for a size; None if there is none.
        cycles: estimated, of a choice for a size; None if it cannot be made for it.
    """
    kept: list[_Choice] = []
    for size in sizes:
        own = best(size)
        if own is not None and _least(size, kept, cycles) > _GOOD * _least(size, [own], cycles):
            kept.append(own)
    return kept


def _least(
    size: _Size, choices: list[_Choice], cycles: Callable[[_Size, _Choice], float | None]
) -> float:
    found = (cycles(size, each) for each in choices)
    return min((one for one in found if one is not None), default=math.inf)
