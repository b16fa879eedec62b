"""A matrix times a vector as straight-line code with common terms shared.

`compile_matrix` looks for a short sequence of additions, subtractions, multiplications by a
constant and fused multiply-adds. Zeros and factors of ±1 cost nothing. It works in two steps:

1. Two rows whose half sum and half difference have no column in common, such as those of ±p in
   B^T, become (even + c odd, even - c odd), the two parts computed once.
2. Of all `x_i + c x_j` that occur, up to a factor, in two rows or more, the most frequent becomes a
   value of its own, again and again. This finds the sums and differences of the columns of ±p in
   A^T, and whatever else several rows share.

Ties are broken by place, so the same matrix always gives the same program. Breaking them at random,
or leaving out the first step, never gave a shorter one for alpha from 3 to 12, but up to four ops
more.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from leanconv.errors import SpecError
from leanconv.records import dataclass
from leanconv.winograd.matrices import Matrix

Kind = Literal["add", "sub", "mul", "neg", "fma", "fms"]
_ONE = Fraction(1)


@dataclass(frozen=True)
class Op:
    """One operation on values, which are numbered: the inputs first, then the ops in order.

    Attributes:
        kind: `add` a + b, `sub` a - b, `mul` constant · a, `neg` -a, `fma` constant · a + b,
            `fms` constant · a - b. The last two round once.
        a: first operand.
        b: second operand; equal to `a` in `mul` and `neg`, which have one.
        constant: 1 in `add`, `sub` and `neg`, which have none; else never 0 or 1, and -1 only in a
            `mul`, where it is a negation.
    """

    kind: Kind
    a: int
    b: int
    constant: Fraction = _ONE


@dataclass(frozen=True)
class LinearProgram:
    """Straight-line code for y = M x.

    Attributes:
        inputs: length of x, skipped inputs counted.
        ops: in the order of execution; value `inputs + i` is the result of `ops[i]`.
        outputs: for each row requested, the value that holds it, or None where it is always zero.
    """

    inputs: int
    ops: tuple[Op, ...]
    outputs: tuple[int | None, ...]


def compile_matrix(matrix: Matrix) -> LinearProgram:
    """Return a short program for y = matrix x.

    Args:
        matrix: rows of rationals, all of one length.

    Raises:
        SpecError: the matrix is empty or ragged.
    """
    widths = {len(row) for row in matrix}
    if len(widths) != 1 or widths == {0}:
        raise SpecError(f"a matrix has rows of one length of at least 1, got lengths {widths}")
    rows = tuple(tuple((j, c) for j, c in enumerate(row) if c) for row in matrix)
    return _compiled(widths.pop(), rows)


Rows = tuple[tuple[tuple[int, Fraction], ...], ...]
_Sum = dict[int, Fraction]  # factors by value: the sum of factor times value


@lru_cache(maxsize=512)
def _compiled(width: int, rows: Rows) -> LinearProgram:
    sharing = _Sharing(width, rows)
    emit = _Emit(width, sharing.shared)
    outputs = tuple(emit.sum(row) if row else None for row in sharing.rows)
    return LinearProgram(width, tuple(emit.ops), outputs)


class _Sharing:
    """Rows rewritten over more and more shared values.

    Value j is input j where j < width, else `shared[j - width]`: a sum itself, which may be
    rewritten in turn.
    """

    def __init__(self, width: int, rows: Rows) -> None:
        self._width = width
        self.rows: list[_Sum] = [dict(row) for row in rows]
        self.shared: list[_Sum] = []
        self._ratios: dict[tuple[Fraction, Fraction], Fraction] = {}
        self._share_halves()
        while self._share_pair():
            pass

    def _share(self, total: _Sum) -> int:
        self.shared.append(total)
        return self._width + len(self.shared) - 1

    def _share_halves(self) -> None:
        """Rewrite pairs of rows as even ± c odd."""
        waiting = list(self.rows)
        while waiting:
            row = waiting.pop(0)
            for other in waiting:
                if row.keys() != other.keys() or any(abs(row[k]) != abs(other[k]) for k in row):
                    continue
                even = {k: c for k, c in row.items() if c == other[k]}
                odd = {k: c for k, c in row.items() if c != other[k]}
                if len(even) + len(odd) < 3 or not even or not odd:
                    continue
                self._rewrite(row, other, even, odd)
                waiting = [kept for kept in waiting if kept is not other]
                break

    def _rewrite(self, row: _Sum, other: _Sum, even: _Sum, odd: _Sum) -> None:
        # One part keeps its scale, so that both rows end in a fused multiply-add: the part that
        # has a factor of 1 and is cheaper for it.
        keep_even = len(even) > 1 and (_has_unit(even) or not _has_unit(odd))
        even_value, even_factor = self._part(even, keep_even)
        odd_value, odd_factor = self._part(odd, not keep_even)
        row.clear()
        other.clear()
        row.update({even_value: even_factor, odd_value: odd_factor})
        other.update({even_value: even_factor, odd_value: -odd_factor})

    def _part(self, part: _Sum, keep: bool) -> tuple[int, Fraction]:
        """Return a value and its factor that make up one half of two rows."""
        highest = max(part)
        if len(part) == 1:
            return highest, part[highest]
        factor = part[highest]
        if keep:
            factor = -_ONE if -1 in part.values() and 1 not in part.values() else _ONE
        return self._share({k: c / factor for k, c in part.items()}), factor

    def _share_pair(self) -> bool:
        """Make the most frequent pair of terms a value; False if none occurs twice."""
        groups: dict[tuple[int, int, Fraction], list[_Sum]] = {}
        for total in (*self.rows, *self.shared):
            terms = sorted(total.items())
            for place, (i, a) in enumerate(terms):
                for j, b in terms[place + 1 :]:
                    groups.setdefault((i, j, self._ratio(b, a)), []).append(total)
        most = max(map(len, groups.values()), default=0)
        if most < 2:
            return False
        tied = [key for key, users in groups.items() if len(users) == most]
        i, j, ratio = max(tied, key=lambda key: _units(key[:2], groups[key]))
        users = groups[i, j, ratio]
        # The value is x_i + ratio x_j or x_j + x_i / ratio, whichever leaves more factors of ±1.
        first, second, factor = i, j, ratio
        if _units((i,), users) < _units((j,), users):
            first, second, factor = j, i, 1 / ratio
        value = self._share({first: _ONE, second: factor})
        for total in users:
            total[value] = total.pop(first)
            del total[second]
        return True

    def _ratio(self, b: Fraction, a: Fraction) -> Fraction:
        """b / a, remembered: the same few coefficients meet again and again."""
        key = (b, a)
        if key not in self._ratios:
            self._ratios[key] = b / a
        return self._ratios[key]


def _units(values: Sequence[int], users: Sequence[_Sum]) -> int:
    """The most factors of ±1 that one of the values has in these sums."""
    return max(sum(abs(total[value]) == 1 for total in users) for value in values)


def _has_unit(total: _Sum) -> bool:
    return any(abs(factor) == 1 for factor in total.values())


class _Emit:
    """Writes ops, each different one once."""

    def __init__(self, width: int, shared: Sequence[_Sum]) -> None:
        self.ops: list[Op] = []
        self._width = width
        self._shared = shared
        self._places: dict[int, int] = {}
        self._known: dict[Op, int] = {}

    def sum(self, terms: _Sum) -> int:
        """Emit a sum of at least one term; return the value that holds it.

        It costs one op less than it has terms if a factor is ±1, else as many. Only a sum in
        which every factor is -1 costs a negation besides.
        """
        order = sorted(terms, key=lambda value: (terms[value] != 1, terms[value] != -1))
        first, rest = order[0], order[1:]
        factor = terms[first]
        total = self._value(first)
        sign = 1
        if factor == -1:
            scaled = [value for value in rest if abs(terms[value]) != 1]
            if scaled:  # c y - x
                rest.remove(scaled[0])
                total = self._op(Op("fms", self._value(scaled[0]), total, terms[scaled[0]]))
            else:  # add up and negate
                sign = -1
        elif factor != 1:
            total = self._op(Op("mul", total, total, factor))
        for value in rest:
            operand, c = self._value(value), terms[value]
            if abs(c) == 1:
                total = self._op(Op("add" if c == sign else "sub", total, operand))
            else:
                total = self._op(Op("fma", operand, total, c))
        return total if sign == 1 else self._op(Op("mul", total, total, Fraction(-1)))

    def _value(self, value: int) -> int:
        """Return the program's number of a value, emitting it if it is a new shared one."""
        if value < self._width:
            return value
        if value not in self._places:
            self._places[value] = self.sum(self._shared[value - self._width])
        return self._places[value]

    def _op(self, op: Op) -> int:
        if op not in self._known:
            self._known[op] = self._width + len(self.ops)
            self.ops.append(op)
        return self._known[op]
