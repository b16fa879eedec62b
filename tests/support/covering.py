"""Few cases in place of all combinations: every pair of values of two parameters is in one.

For parameters that meet in the code two at a time at most. Three that meet are one parameter, of
all their combinations, so that each of these meets each value of the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any


def pairwise(*parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Cases with a value of each parameter, in which any two values of two parameters meet.

    Args:
        *parameters: the values of each.

    Returns:
        The cases, always the same: at each step that one of all combinations which has most pairs
        that are in none before.
    """
    left = {
        (a, i, b, j)
        for a, b in itertools.combinations(range(len(parameters)), 2)
        for i in range(len(parameters[a]))
        for j in range(len(parameters[b]))
    }
    every = [
        (case, {(a, case[a], b, case[b]) for a, b in itertools.combinations(range(len(case)), 2)})
        for case in itertools.product(*(range(len(values)) for values in parameters))
    ]
    found = []
    while left:
        case, pairs = max(every, key=lambda each: len(each[1] & left))
        left -= pairs
        found.append(tuple(values[i] for values, i in zip(parameters, case, strict=True)))
    return found


def dealt(cases: Sequence[tuple[Any, ...]], values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """One more value for each case, of which every one meets every value in a case's place.

    Args:
        cases: all of them stay; of values that can be compared.
        values: of the parameter that is added as the last one.

    Raises:
        ValueError: the cases are too few for that.
    """
    left = {
        (place, part, value)
        for case in cases
        for place, part in enumerate(case)
        for value in values
    }
    found = []
    for number, case in enumerate(cases):
        turn = [values[(number + i) % len(values)] for i in range(len(values))]
        parts = list(enumerate(case))
        value = max(turn, key=lambda each: len({(*part, each) for part in parts} & left))
        left -= {(*part, value) for part in parts}
        found.append((*case, value))
    if left:
        raise ValueError(f"{len(cases)} cases do not meet {sorted(left, key=str)}; expected more")
    return found
