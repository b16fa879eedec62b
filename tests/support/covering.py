"""Few cases in place of all combinations: every pair of values of two parameters is in one.

For parameters that meet in the code two at a time at most. Three that meet are one parameter, of
all their combinations, so that each of these meets each value of the others.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Any

import pytest


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


def covering(cases: Sequence[Sequence[Hashable]]) -> set[int]:
    """Those of some cases in which any two values meet that meet in any of them.

    Args:
        cases: a value of each parameter; not all combinations need be among them.

    Returns:
        Their numbers, always the same: in rounds over all cases, those which have as many pairs
        that are in none before as the round asks for, first all, then one less.
    """
    pairs = [set(itertools.combinations(enumerate(case), 2)) or {tuple(case)} for case in cases]
    met: set[object] = set()
    found: set[int] = set()
    for least in range(max(map(len, pairs), default=0), 0, -1):
        for number, each in enumerate(pairs):
            if len(each - met) >= least:
                found.add(number)
                met |= each
    return found


def leave_pairs(items: Sequence[pytest.Item]) -> None:
    """Mark the cases of tests that are marked `pairs` as exhaustive, but for those that cover.

    Args:
        items: of a session; the parameters that a mark names together are one parameter.
    """
    tests: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("pairs"):
            tests[item.nodeid.partition("[")[0]].append(item)
    for cases in tests.values():
        kept = covering([_values(item) for item in cases])
        for number, item in enumerate(cases):
            if number not in kept:
                item.add_marker(pytest.mark.exhaustive)


def _values(item: pytest.Function) -> tuple[Hashable, ...]:
    """The objects that are the values of each parameter; those of one decorator are one."""
    left = {name: id(value) for name, value in item.callspec.params.items()}
    together = [names for mark in item.iter_markers("pairs") for names in mark.args]
    named = [mark.args[0] for mark in item.iter_markers("parametrize")]
    split = [names.split(",") if isinstance(names, str) else names for names in named]
    values = [
        tuple(left.pop(name) for name in map(str.strip, names) if name in left)
        for names in (*together, *split)
    ]
    return tuple(value for value in values if value)


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
