"""Every algorithm in every form on random problems: error as stated, bytes as stated, no strays.

A few problems for each form always; thousands with `pytest -m exhaustive tests/conv`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, given, reject, seed, settings

from leanconv.algorithms import ALGORITHMS
from leanconv.errors import SpecError
from support.convolution_forms import FORMS, Form, cases
from support.problems import Problem
from support.stated import check_stated

FEW, MANY, ROUNDS = 4, 50, 3  # problems of a form: always, and in each round of all
always = settings(max_examples=FEW, deadline=None, suppress_health_check=list(HealthCheck))


def _keeps_its_word(form: Form) -> Callable[[], None]:
    """The test of one form; problems that it refuses are drawn anew."""

    @given(cases(form))
    def each(case: tuple[Problem, str, str]) -> None:
        problem, kind, algorithm = case
        try:
            plan = check_stated(problem, kind, algorithm=algorithm)
        except SpecError:
            reject()
        assert plan.algorithm == form.name

    return each


@pytest.mark.drawn
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_form_keeps_its_word(form: Form) -> None:
    always(_keeps_its_word(form))()


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_form_keeps_its_word_thousands_of_times(form: Form, number: int) -> None:
    phases = (Phase.generate,)  # a problem that fails is printed as it is: shrinking takes minutes
    many = settings(always, max_examples=MANY, derandomize=False, database=None, phases=phases)
    seed(number)(many(_keeps_its_word(form)))()


def test_every_parameter_is_in_some_form() -> None:
    for algorithm in ALGORITHMS.values():
        texts = [form.text for form in FORMS if form.name == algorithm.name]
        assert algorithm.name in texts, f"{algorithm.name} is not tried without parameters"
        # What float16 alone takes is tried in tests/algorithms/test_half_sums.
        for parameter in set(algorithm.parameters.names()) - {"halves"}:
            assert any(f"{parameter}=" in text for text in texts), f"{algorithm.name}:{parameter}"
