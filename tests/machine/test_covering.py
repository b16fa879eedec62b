"""Few cases in place of many leave no pair out."""

from __future__ import annotations

import itertools

import pytest

from support.covering import covering, dealt, pairwise

PARAMETERS = ("ab", range(3), [None, "x", (1, 2), 4.5], "pqrstuv", [True, False])


def test_any_two_values_meet() -> None:
    cases = pairwise(*PARAMETERS)
    for a, b in itertools.combinations(range(len(PARAMETERS)), 2):
        met = {(case[a], case[b]) for case in cases}
        assert met == set(itertools.product(PARAMETERS[a], PARAMETERS[b]))
    assert len(cases) == len(set(cases)) < 40  # of 336, and 28 are needed
    assert cases == pairwise(*PARAMETERS)


def test_some_of_all_cases_hold_every_pair_that_any_holds() -> None:
    every = [case for case in itertools.product(*PARAMETERS) if case[0] == "a" or case[4]]
    found = [every[number] for number in sorted(covering(every))]
    for a, b in itertools.combinations(range(len(PARAMETERS)), 2):
        assert {(case[a], case[b]) for case in found} == {(case[a], case[b]) for case in every}
    assert len(found) < 45  # of 252
    assert covering([("a", 1), ("a", 2), ("b", 2)]) == {0, 1, 2}
    assert covering([(1,), (2,)]) == {0, 1}
    assert covering([]) == set()


SIZES = range(2), range(2), range(3), range(4)


@pytest.mark.pairs(("a", "b"))
@pytest.mark.parametrize("a", SIZES[0])
@pytest.mark.parametrize("b", SIZES[1])
@pytest.mark.parametrize("c", SIZES[2])
@pytest.mark.parametrize("d", SIZES[3])
def test_a_mark_leaves_the_rest_to_exhaustive_runs(
    request: pytest.FixtureRequest, a: int, b: int, c: int, d: int
) -> None:
    cases = [
        each.callspec.params
        for each in request.session.items
        if isinstance(each, pytest.Function) and each.function is request.function
    ]
    if len(cases) > 1:  # else it is chosen by its name
        assert {(one["a"], one["b"], one["c"]) for one in cases} == {*itertools.product(*SIZES[:3])}
        assert {(one["a"], one["b"], one["d"]) for one in cases} == {
            *itertools.product(*SIZES[:2], SIZES[3])
        }
        assert {(one["c"], one["d"]) for one in cases} == {*itertools.product(*SIZES[2:])}
        assert len(cases) < 24  # of 48


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
