"""Expressions over variables: shared nodes of bounded size, and the evaluator of their numbers.

A node is an operation and its operands, each a number or another node. A table makes each node
once, so an expression that reads another one twice does not hold it twice, and two expressions of
one table are equal where they are the same object. A file decides what is computed with its
extents: a table has at most `MOST_NODES` nodes, and an operation on integers whose result is no
int64 has no number.

Where they are computed, kept on disk or compared with those of another table, they are steps: an
operation's sign and its operands each, where an integer is the number of an earlier step and `[7]`
the number 7.

A `Guarded` is steps, guards and results; from a trace or from the disk it is the same. It is
computed step by step, over values of the variables, as far as the first guard that does not hold.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from leanconv.errors import UnsupportedError
from leanconv.records import cached_property

MOST_NODES = 2**18  # of one table, of some 300 bytes each; a network of 1,000 layers has 10,000
BEYOND = 2**63  # the least positive integer that int64 has not
_SHOWN = 40  # nodes that a text has; what lies below is "…"
VARIABLE = "v"
SIGNS: dict[Any, str] = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.floordiv: "//",
    operator.mod: "%",
    operator.truediv: "/",
    operator.neg: "neg",
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
    operator.eq: "==",
    operator.ne: "!=",
    min: "min",
    max: "max",
}
OPERATIONS = {sign: operation for operation, sign in SIGNS.items()}
MANY = (min, max)  # of two operands or more
_BINDING = {"+": 1, "-": 1, "*": 2, "//": 2, "%": 2, "/": 2, "neg": 3}  # comparisons: 0

Values = tuple[float, ...]
Operand: TypeAlias = "Expression | float"
Step = tuple[Any, ...]


class NeedsNumberError(Exception):
    """An operation on a symbol needs its number.

    What was being made with symbols is then made without, for each size by itself. It is no
    LeanConvError, so that nobody who handles those takes it for an answer.
    """


class BeyondBoundsError(NeedsNumberError, UnsupportedError):
    """A number or a table of expressions would be larger than the bounds say."""


class Expression:
    """A node; made by `Expressions` and `read_steps` alone.

    Attributes:
        apply: the operation, None for a variable.
        operands: nodes and numbers; of a variable its index alone.
    """

    __slots__ = ("apply", "operands")

    def __init__(self, apply: Callable[..., Any] | None, operands: tuple[Any, ...]) -> None:
        self.apply, self.operands = apply, operands

    def __repr__(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        """The expression as Python over `v`, for people; long text is cut."""
        steps, (number,) = steps_of([self])
        return text_of(steps, number)


class Expressions:
    """A table of nodes, each of which is made once."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[Any, ...], Expression] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def variable(self, index: int) -> Expression:
        """The variable of that index."""
        key = None, index
        found = self._nodes.get(key)
        return found or self._keep(key, Expression(None, (index,)))

    def node(self, apply: Callable[..., Any], *operands: Operand) -> Expression:
        """An operation on nodes of this table and numbers.

        Raises:
            BeyondBoundsError: the table is full.
        """
        key = (apply, *operands)
        if apply in MANY:  # which give back an operand: 2 is not 2.0
            key += tuple(map(type, operands))
        found = self._nodes.get(key)
        return found or self._keep(key, Expression(apply, operands))

    def _keep(self, key: tuple[Any, ...], made: Expression) -> Expression:
        if len(self._nodes) >= MOST_NODES:
            raise BeyondBoundsError(
                f"got more than {MOST_NODES} different expressions of open extents; expected "
                "fewer: give the file fixed extents"
            )
        self._nodes[key] = made
        return made


# -- as data -------------------------------------------------------------------------------
def steps_of(expressions: Iterable[Expression]) -> tuple[tuple[Step, ...], tuple[int, ...]]:
    """Expressions as steps, each after those that it reads, and which of them they are.

    Two sequences of expressions have the same steps exactly if they are equal one by one.
    """
    numbers: dict[Expression, int] = {}
    steps: list[Step] = []
    roots = tuple(expressions)
    for root in roots:
        pending = [root]
        while pending:
            node = pending[-1]
            missing = [e for e in _nodes(node) if e not in numbers]
            if missing and node not in numbers:
                pending += missing
                continue
            pending.pop()
            if node not in numbers:
                numbers[node] = len(steps)
                steps.append(_step(node, numbers))
    return tuple(steps), tuple(numbers[root] for root in roots)


def checked_steps(steps: object, variables: int) -> tuple[Step, ...]:
    """Steps that come from elsewhere, checked.

    Args:
        steps: anything; lists and tuples are the same.
        variables: their number.

    Raises:
        ValueError: they are no steps over so many variables, or beyond the bounds.
    """
    if not isinstance(steps, (list, tuple)) or len(steps) > MOST_NODES:
        raise ValueError("no list of so many steps")
    return tuple(_checked(step, number, variables) for number, step in enumerate(steps))


def _checked(step: object, number: int, variables: int) -> Step:
    if not (isinstance(step, (list, tuple)) and len(step) > 1 and isinstance(step[0], str)):
        raise ValueError("no step")
    sign, *operands = step
    if sign == VARIABLE:
        (index,) = operands
        return sign, index_within(index, variables)
    apply = OPERATIONS.get(sign)
    if apply is None or not _fits(apply, len(operands)):
        raise ValueError(f"no operation on {len(operands)} operands: {sign[:20]!r}")
    return sign, *(_checked_operand(each, number) for each in operands)


def fits_64_bits(number: int) -> bool:
    """Return whether int64 has this number."""
    return -BEYOND <= number < BEYOND


def is_bounded_number(value: object) -> bool:
    """Return whether a guard may ask for this number: it is finite, and an int64 if an integer."""
    if isinstance(value, int):
        return fits_64_bits(value)
    return isinstance(value, float) and math.isfinite(value)


def index_within(index: object, count: int) -> int:
    """Return an index of `count` things, checked.

    Raises:
        ValueError: it is no index of so many things.
    """
    if type(index) is not int or not 0 <= index < count:
        raise ValueError(f"no index below {count}")
    return index


def _nodes(node: Expression) -> list[Expression]:
    return [each for each in node.operands if type(each) is Expression]


def _step(node: Expression, numbers: Mapping[Expression, int]) -> Step:
    if node.apply is None:
        return (VARIABLE, node.operands[0])
    operands = (
        numbers[each] if isinstance(each, Expression) else (each,) for each in node.operands
    )
    return (SIGNS[node.apply], *operands)


def _checked_operand(value: object, earlier: int) -> int | tuple[float]:
    if isinstance(value, (list, tuple)):
        (number,) = value
        if not is_bounded_number(number):
            raise ValueError("no number of bounded size")
        return (number,)
    return index_within(value, earlier)


def _fits(apply: Callable[..., Any], count: int) -> bool:
    if apply in MANY:
        return count > 1
    return count == (1 if apply is operator.neg else 2)


# -- texts ---------------------------------------------------------------------------------
def text_of(steps: Sequence[Step], number: int, names: Sequence[str] = ()) -> str:
    """Return a step as text for people; long text is cut.

    Args:
        steps: the step and those before it.
        number: of the step.
        names: of the variables; else they are `v[0]` and so on.
    """
    left = _SHOWN

    def text(operand: Any, binding: int = 0) -> str:
        """An operand, in brackets where the operation around it binds more tightly."""
        nonlocal left
        if isinstance(operand, tuple):
            return repr(operand[0])
        left -= 1
        sign, *operands = steps[operand]
        if sign == VARIABLE:
            return names[operands[0]] if names else f"{VARIABLE}[{operands[0]}]"
        if left < 0:
            return "…"
        if sign == "+" and isinstance(operands[1], tuple) and operands[1][0] < 0:
            sign, operands[1] = "-", (-operands[1][0],)
        if OPERATIONS[sign] in MANY:
            return f"{sign}({', '.join(map(text, operands))})"
        own = _BINDING.get(sign, 0)
        if len(operands) == 1:
            found = f"-{text(operands[0], own)}"
        else:  # of equal ones the left one is computed first
            found = f"{text(operands[0], own)} {sign} {text(operands[1], own + 1)}"
        return f"({found})" if own < binding else found

    return text(number)


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
