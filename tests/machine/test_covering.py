"""Few cases in place of many leave no pair out."""

from __future__ import annotations

import itertools

import pytest

from support.covering import dealt, pairwise

PARAMETERS = ("ab", range(3), [None, "x", (1, 2), 4.5], "pqrstuv", [True, False])


def test_any_two_values_meet() -> None:
    cases = pairwise(*PARAMETERS)
    for a, b in itertools.combinations(range(len(PARAMETERS)), 2):
        met = {(case[a], case[b]) for case in cases}
        assert met == set(itertools.product(PARAMETERS[a], PARAMETERS[b]))
    assert len(cases) == len(set(cases)) < 40  # of 336, and 28 are needed
    assert cases == pairwise(*PARAMETERS)


def test_every_case_stays_and_meets_one_value() -> None:
    cases = list(itertools.product("abcd", range(4), (True, False)))
    found = dealt(cases, [5, 6, 7])
    assert [case[:-1] for case in found] == cases
    for place, values in enumerate(("abcd", range(4), (True, False))):
        met = {(case[place], case[-1]) for case in found}
        assert met == set(itertools.product(values, [5, 6, 7]))


def test_too_few_cases_are_refused() -> None:
    with pytest.raises(ValueError, match=r"2 cases do not meet .*'a', 7.*expected more"):
        dealt([("a", 1), ("a", 2)], [5, 6, 7])
