"""Numbers of expressions that are found where all guards hold: one evaluator, of data.

A `Guarded` is steps, guards and results; from a trace or from the disk it is the same. It is
computed step by step, over values of the variables, as far as the first guard that does not hold.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from leanconv.records import cached_property
from leanconv.symbolic.expressions import (
    BEYOND,
    OPERATIONS,
    VARIABLE,
    Expression,
    Step,
    Values,
    checked_steps,
    index_within,
    is_bounded_number,
    steps_of,
    text_of,
)

Guards = Mapping[Expression, float]


class Record(NamedTuple):
    """Data of a `Guarded`, as JSON has it.

    Attributes:
        steps: of all expressions.
        guards: numbers of their steps, and their required values, in the order of the checks.
        results: numbers of their steps.
    """

    steps: tuple[Step, ...]
    guards: tuple[tuple[int, float], ...]
    results: tuple[int, ...]

    @staticmethod
    def of(guards: Guards, results: Iterable[Expression]) -> Record:
        """Make the record of a trace's expressions; equal expressions have equal records."""
        steps, numbers = steps_of((*guards, *results))
        tests = tuple(zip(numbers, guards.values(), strict=False))
        return Record(steps, tests, numbers[len(tests) :])

    @staticmethod
    def read(data: Any, variables: int) -> Record:
        """Make a record of data from elsewhere, checked.

        Raises:
            ValueError, TypeError: it is no record over so many variables.
        """
        steps, guards, results = data
        steps = checked_steps(steps, variables)
        tests = tuple((index_within(number, len(steps)), answer) for number, answer in guards)
        if not all(is_bounded_number(answer) for _, answer in tests):
            raise ValueError("no guard asks for such a number")
        return Record(steps, tests, tuple(index_within(number, len(steps)) for number in results))


class Guarded:
    """A function of the variables that gives the results' numbers.

    It gives None where a guard does not hold, where an operation has no number, or one that is an
    integer and no int64.

    Args:
        record: its steps, guards and results.
    """

    def __init__(self, record: Record) -> None:
        self.record = record

    def __call__(self, values: Values) -> Values | None:
        constants, variables, blocks, results = self._code
        numbers = [*constants, *values[:variables]]
        add = numbers.append
        try:
            for operations, tested, wanted in blocks:
                for apply, a, b in operations:
                    number = apply(numbers[a], numbers[b])
                    if type(number) is int and not -BEYOND <= number < BEYOND:
                        return None
                    add(number)
                if tested is not None and numbers[tested] != wanted:
                    return None
        except ArithmeticError:
            return None
        return tuple([numbers[place] for place in results])

    def texts(self, names: Sequence[str] = ()) -> list[str]:
        """The guards for people, by names of the variables."""
        steps = self.record.steps
        pairs = ((text_of(steps, number, names), answer) for number, answer in self.record.guards)
        return [_guard_text(text, answer) for text, answer in pairs]

    def result_texts(self, names: Sequence[str] = ()) -> list[str]:
        """The results' expressions for people, by names of the variables."""
        return [text_of(self.record.steps, number, names) for number in self.record.results]

    @cached_property
    def _code(self) -> _Code:
        return _code(self.record)


def guarded(guards: Guards, results: Iterable[Expression]) -> Guarded:
    """Make a `Guarded` of a trace's expressions."""
    return Guarded(Record.of(guards, results))


# -- steps for the loop that computes them: all of two operands, each a place in one list ---------
_Operation = tuple[Callable[[Any, Any], Any], int, int]
_Block = tuple[Sequence[_Operation], int | None, float]  # a guard's place and number come last
_Code = tuple[Sequence[float], int, Sequence[_Block], Sequence[int]]


def _code(record: Record) -> _Code:
    """Constants, the number of variables, blocks of operations, the places of results."""
    steps = record.steps
    constants = [*_MINUS, *(each[0] for step in steps for each in step if isinstance(each, tuple))]
    variables = 1 + max((step[1] for step in steps if step[0] == VARIABLE), default=-1)
    unread = itertools.count(1)  # places of constants, in order
    made = itertools.count(len(constants) + variables)
    found: list[int] = []  # places of the steps

    def until(number: int) -> Iterator[_Operation]:
        """The operations of the steps so far, for which there are none yet."""
        for sign, *operands in steps[len(found) : number + 1]:
            if sign == VARIABLE:
                found.append(len(constants) + operands[0])
                continue
            apply = OPERATIONS[sign]
            places = [found[each] if isinstance(each, int) else next(unread) for each in operands]
            if len(places) == 1:
                apply, places = OPERATIONS["*"], [*places, 0]
            first, *rest = places
            for each in rest:
                yield apply, first, each
                first = next(made)
            found.append(first)

    blocks: list[_Block] = [
        (list(until(number)), found[number], answer) for number, answer in record.guards
    ]
    blocks.append((list(until(len(steps) - 1)), None, 0))
    return constants, variables, blocks, [found[each] for each in record.results]


_MINUS = (-1,)  # an operand is negated by multiplying by it


def _guard_text(text: str, answer: float) -> str:
    if answer is True:
        return text
    return f"not {text}" if answer is False else f"{text} == {answer}"  # which bind less tightly
