"""Symbols, and the traces that hold the decisions on them."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any, TypeAlias

from leanconv.records import dataclass, field
from leanconv.symbolic.expressions import (
    BeyondBoundsError,
    Expression,
    Expressions,
    NeedsNumberError,
    fits_64_bits,
)


class Mark(Enum):
    """Mark in annotations of a record's fields: the kind of their numbers that become symbols.

    Numbers 0 and 1 do not, except of a COUNT; nor does the last one of STRIDES.
    """

    EXTENT = "extent"
    COUNT = "count"
    STRIDES = "strides"


# For annotations of a kernel's fields, and of the records that these are made of.
Extent: TypeAlias = Annotated[int, Mark.EXTENT]
Extents: TypeAlias = Annotated[tuple[int, ...], Mark.EXTENT]
# Numbers of rows in a chunk, of bands …: 0 and 1, too, are symbols.
Count: TypeAlias = Annotated[int, Mark.COUNT]
Counts: TypeAlias = Annotated[tuple[int, ...], Mark.COUNT]
# Along depth, height and width.
Sizes: TypeAlias = Annotated[tuple[int, int, int], Mark.EXTENT]
# The last one, of columns, is a plain number: it is form.
Strides: TypeAlias = Annotated[tuple[int, int, int], Mark.STRIDES]
# Factors.
Scalars: TypeAlias = Annotated[tuple[float, ...], Mark.EXTENT]


@dataclass
class Trace:
    """Guards and words of the symbols with which one thing is made.

    Attributes:
        guards: expressions and what they were, in the order in which they were asked.
        words: the table's words, an expression and LLVM's type each, and their positions.
        table: of the expressions; traces that share one have equal expressions in common.
    """

    guards: dict[Expression, float] = field(default_factory=dict)
    words: dict[tuple[Expression, str], int] = field(default_factory=dict)
    table: Expressions = field(default_factory=Expressions)

    def variable(self, index: int, value: float) -> Symbol:
        """The symbol of a variable that has this value now."""
        return Symbol(self, self.table.variable(index), value)

    def word(self, symbol: Symbol, kind: str) -> int:
        """The position of a word in the table; a new one if no other has its expression."""
        return self.words.setdefault((symbol.expression, kind), len(self.words))


class Symbol:
    """A number of which an expression is known.

    Sums, products, floored quotients and remainders of symbols and integers are symbols. A
    comparison is a decision, and what needs a plain number (`range`, `int`, `float`) decides on
    that number; both become guards. What would look at the number without leaving one raises
    NeedsNumberError: arithmetic with floats, a text, and the hash, by which tables of remembered
    results (`lru_cache`) look up their arguments.

    Attributes:
        trace: keeps guards and words.
        expression: its node in the trace's table.
        value: its number this time; reading it is no guard, so nothing made may follow from it.
            One that int64 does not have raises BeyondBoundsError: graphs compute with int64.
        base, factor: another symbol and an integer whose product it is; itself and 1 if there is no
            other. The code multiplies: a word for each multiple of a stride would fill the table.
    """

    __slots__ = ("_offset", "_start", "base", "expression", "factor", "trace", "value")

    def __init__(self, trace: Trace, expression: Expression, value: float) -> None:
        if type(value) is int and not fits_64_bits(value):
            raise BeyondBoundsError(
                f"got a size of {value.bit_length()} bits; expected at most 63, as int64 has: "
                "give smaller shapes"
            )
        self.trace, self.expression, self.value = trace, expression, value
        self.base, self.factor = self, 1
        self._start, self._offset = expression, 0  # the expression is their sum

    @property
    def text(self) -> str:
        """The expression for people."""
        return self.expression.text

    # -- expressions -----------------------------------------------------------------------
    def __add__(self, other: Any) -> Any:
        if isinstance(other, int):
            return self._moved(other)
        return self._made(operator.add, self, other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        if isinstance(other, int):
            return self._moved(-other)
        if isinstance(other, Symbol) and other.expression is self.expression:
            return 0
        return self._made(operator.sub, self, other)

    def __rsub__(self, other: Any) -> Any:
        return self._made(operator.sub, other, self)

    def __mul__(self, other: Any) -> Any:
        if _is(other, 0):
            return 0
        made = self if _is(other, 1) else self._made(operator.mul, self, other)
        if isinstance(other, int) and made is not self:
            made.base, made.factor = self.base, self.factor * other
        return made

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        return self if _is(other, 1) else self._made(operator.floordiv, self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return 0 if _is(other, 0) else self._made(operator.floordiv, other, self)

    def __mod__(self, other: Any) -> Any:
        return 0 if _is(other, 1) else self._made(operator.mod, self, other)

    def __rmod__(self, other: Any) -> Any:
        return self._made(operator.mod, other, self)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __truediv__(self, other: Any) -> Any:
        return self._made(operator.truediv, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._made(operator.truediv, other, self)

    def __neg__(self) -> Symbol:
        made = self.trace.table.node(operator.neg, self.expression)
        return Symbol(self.trace, made, -self.value)

    def __abs__(self) -> Symbol:
        return self if self >= 0 else -self

    def __pos__(self) -> Symbol:
        return self

    def _moved(self, by: int) -> Symbol:
        """Return this plus a number: x + 2 - 3 + 1 is x, so that equal sums are one node."""
        if by == 0:
            return self
        offset = self._offset + by
        start = self._start
        node = self.trace.table.node(operator.add, start, offset) if offset else start
        made = Symbol(self.trace, node, self.value + by)
        made._start, made._offset = self._start, offset
        return made

    def _made(self, apply: Callable[[Any, Any], Any], a: object, b: object) -> Any:
        if not (isinstance(a, (int, Symbol)) and isinstance(b, (int, Symbol))):
            if isinstance(a, float) or isinstance(b, float):
                raise NeedsNumberError(f"{a!r} and {b!r} in arithmetic with floats")
            return NotImplemented
        node = self.trace.table.node(apply, _operand(a), _operand(b))
        return Symbol(self.trace, node, apply(plain(a), plain(b)))

    # -- decisions -------------------------------------------------------------------------
    def __lt__(self, other: Any) -> Any:
        return self._decide(operator.lt, other)

    def __le__(self, other: Any) -> Any:
        return self._decide(operator.le, other)

    def __gt__(self, other: Any) -> Any:
        return self._decide(operator.gt, other)

    def __ge__(self, other: Any) -> Any:
        return self._decide(operator.ge, other)

    def __eq__(self, other: object) -> Any:
        return self._decide(operator.eq, other)

    def __ne__(self, other: object) -> Any:
        return self._decide(operator.ne, other)

    def __bool__(self) -> bool:
        return bool(self != 0)

    def _decide(self, apply: Callable[[Any, Any], bool], other: object) -> Any:
        if not isinstance(other, (int, float, Symbol)):
            return NotImplemented
        if isinstance(other, Symbol) and other.expression is self.expression:
            return apply(0, 0)
        node = self.trace.table.node(apply, self.expression, _operand(other))
        return self.trace.guards.setdefault(node, apply(self.value, plain(other)))

    def decided(self) -> float:
        """Return the symbol's number, which becomes a guard."""
        return self.trace.guards.setdefault(self.expression, self.value)

    def __index__(self) -> int:
        assert isinstance(self.value, int), f"{self!r} is no integer"
        self.decided()
        return self.value

    __int__ = __index__

    def __float__(self) -> float:
        return float(self.decided())

    # -- unsupported -----------------------------------------------------------------------
    def __hash__(self) -> int:
        frame = sys._getframe(1)  # it is often asked for by the hash of a record, in a C function
        while frame.f_back is not None and frame.f_code.co_name == "__hash__":
            frame = frame.f_back
        where = f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}"
        raise NeedsNumberError(f"{where} looks {self!r} up in a table of remembered results")

    def __repr__(self) -> str:
        return f"<{self.text} = {self.value}>"

    def __format__(self, spec: str) -> str:
        raise NeedsNumberError(f"{self!r} in a text; in an emitted one, without `Function.const`")

    def __str__(self) -> str:
        return format(self)


def least(*numbers: Any) -> Any:
    """The smallest of some numbers; with symbols among them an expression, and no guard."""
    return _extreme(min, numbers)


def most(*numbers: Any) -> Any:
    """The largest of some numbers; with symbols among them an expression, and no guard."""
    return _extreme(max, numbers)


def _extreme(apply: Callable[..., Any], numbers: tuple[Any, ...]) -> Any:
    trace = next((n.trace for n in numbers if isinstance(n, Symbol)), None)
    if trace is None:
        return apply(numbers)
    if len(numbers) == 1:
        return numbers[0]
    node = trace.table.node(apply, *map(_operand, numbers))
    return Symbol(trace, node, apply(map(plain, numbers)))


def plain(value: Any) -> Any:
    """The number that a symbol is this time, and no guard; anything else as it is."""
    return value.value if isinstance(value, Symbol) else value


def key(value: Any) -> Any:
    """Make a value that can be hashed: symbols in tuples by their expressions."""
    if isinstance(value, tuple):
        return tuple(key(item) for item in value)
    return (Symbol, value.expression) if isinstance(value, Symbol) else value


def require_numbers(what: str, *numbers: object) -> None:
    """Do nothing if these are numbers.

    Raises:
        NeedsNumberError: one is a symbol.
    """
    for each in numbers:
        if isinstance(each, Symbol):
            raise NeedsNumberError(f"{what} looks at the number of {each!r}")


def _is(value: object, number: int) -> bool:
    return isinstance(value, int) and value == number


def _operand(value: Any) -> Any:
    return value.expression if isinstance(value, Symbol) else value
