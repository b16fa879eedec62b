"""The numbers of expressions for values of their variables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from leanconv.symbolic.expressions import (
    BEYOND,
    GROWING,
    SIGNS,
    VARIABLE,
    Expression,
    Step,
    Values,
    depth_of,
    fits_64_bits,
    steps_of,
)

_DEEP = 64  # expressions that are deeper are not evaluated by recursion
_OFTEN = 4  # how often a function is asked before it is compiled
_MOST_COMPILED = 4096  # steps
_GROWING = frozenset(SIGNS[apply] for apply in GROWING)


class Evaluated(dict[Expression, float]):
    """Numbers of expressions for values of the variables, each found when it is asked for.

    Looking one up raises ArithmeticError where an operation has no number, or one that is an
    integer and no int64, and IndexError where there is no such variable.

    Args:
        values: of the variables.
    """

    def __init__(self, values: Values) -> None:
        super().__init__()
        self._values = values

    def __missing__(self, wanted: Expression) -> float:
        if wanted.depth > _DEEP:  # a file decides how deep expressions are: no recursion
            pending = [wanted]
            while pending:
                deep = [e for e in pending[-1].operands if depth_of(e) > _DEEP and e not in self]
                if deep:
                    pending += deep
                else:
                    self._find(pending.pop())
        return self._find(wanted)

    def _find(self, node: Expression) -> float:
        apply, operands = node.apply, node.operands
        if apply is None:
            number: float = self._values[operands[0]]
        else:
            number = apply(*[self[e] if type(e) is Expression else e for e in operands])
            if apply in GROWING and type(number) is int and not fits_64_bits(number):
                raise OverflowError("int64 has no such number")
        self[node] = number
        return number


def guarded(
    guards: Mapping[Expression, float], expressions: Iterable[Expression]
) -> Callable[[Values], Values | None]:
    """A function of the variables that gives the expressions' numbers.

    It gives None where a guard does not hold, or an operation has no number.

    Args:
        guards: expressions and what they must be, checked in this order.
        expressions: of the results.
    """
    return _Guarded(tuple(guards.items()), tuple(expressions))


class _Guarded:
    """See `guarded`; what is asked for often is compiled, what is not is not worth the time."""

    def __init__(
        self, tests: tuple[tuple[Expression, float], ...], results: tuple[Expression, ...]
    ) -> None:
        self._tests, self._results = tests, results
        self._asked = 0
        self._compiled: Callable[[Values], Values | None] | None = None

    def __call__(self, values: Values) -> Values | None:
        try:
            if self._compiled is not None:
                return self._compiled(values)
            self._asked += 1
            if self._asked == _OFTEN:
                self._compiled = _compiled(self._tests, self._results)
            return self._evaluated(values)
        except ArithmeticError:
            return None

    def _evaluated(self, values: Values) -> Values | None:
        known = Evaluated(values)
        for expression, wanted in self._tests:
            if known[expression] != wanted:
                return None
        return tuple([known[expression] for expression in self._results])


def _compiled(
    tests: Sequence[tuple[Expression, float]], results: Sequence[Expression]
) -> Callable[[Values], Values | None] | None:
    """Python code that does as `_Guarded._evaluated`; None where it would be long.

    Its text is one assignment for each step, of signs and numbers that were checked when the
    expressions were made.
    """
    steps, numbers = steps_of((*(expression for expression, _ in tests), *results))
    if len(steps) > _MOST_COMPILED:
        return None
    lines, done = ["def found(v):"], 0

    def assign_until(number: int) -> None:
        nonlocal done
        for each in range(done, number + 1):
            lines.append(f" a{each} = {_code(steps[each])}")
            if steps[each][0] in _GROWING:
                lines.append(f" if not -{BEYOND} <= a{each} < {BEYOND} and type(a{each}) is int:")
                lines.append("  return None")
        done = max(done, number + 1)

    for number, (_, wanted) in zip(numbers, tests, strict=False):
        assign_until(number)
        lines.append(f" if a{number} != {wanted!r}: return None")
    assign_until(len(steps) - 1)
    lines.append(f" return ({''.join(f'a{number}, ' for number in numbers[len(tests) :])})")
    names: dict[str, Any] = {"inf": math.inf, "nan": math.nan}
    # Of compiled code: a KeyboardInterrupt that passes through `exec` of a text makes Python end by
    # SIGINT, though somebody has caught it.
    exec(compile("\n".join(lines), "<expressions>", "exec"), names)
    found: Callable[[Values], Values | None] = names["found"]
    return found


def _code(step: Step) -> str:
    sign, *operands = step
    if sign == VARIABLE:
        return f"v[{operands[0]}]"
    texts = [f"a{each}" if isinstance(each, int) else f"({each[0]!r})" for each in operands]
    if len(texts) == 1:
        return f"-{texts[0]}"
    if sign in ("min", "max"):
        return f"{sign}({', '.join(texts)})"
    return f"{texts[0]} {sign} {texts[1]}"
