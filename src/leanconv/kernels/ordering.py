"""Which of two numbers comes first: the larger or the smaller one, NaN before all numbers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from leanconv.codegen.emitter import Value
from leanconv.codegen.values import Predicate
from leanconv.types import DType

# By whether the least comes first, and whether ties count. Of floats `u` is: or one is NaN.
_SIGNED: Mapping[tuple[bool, bool], Predicate] = MappingProxyType(
    {(False, False): "sgt", (False, True): "sge", (True, False): "slt", (True, True): "sle"}
)
_OTHER: Mapping[tuple[bool, bool], Predicate] = MappingProxyType(
    {(False, False): "ugt", (False, True): "uge", (True, False): "ult", (True, True): "ule"}
)


def precedes(dtype: DType, x: Value, other: Value, *, least: bool, ties: bool = False) -> Value:
    """Whether `x` comes before another number of its type, lane by lane.

    Args:
        dtype: of both.
        x, other: scalars, or vectors.
        least: whether smaller numbers come before larger ones.
        ties: the answer for equal numbers, and for two NaN.
    """
    how = (_SIGNED if dtype.kind == "int" else _OTHER)[least, ties]
    found = x.compare(how, other)
    if not dtype.is_float:
        return found
    allowed = other.compare("ord", other)
    return found & (allowed | x.compare("uno", x) if ties else allowed)


def precedes_at(
    dtype: DType,
    x: tuple[Value, Value],
    other: tuple[Value, Value],
    *,
    least: bool,
    last: bool = False,
) -> Value:
    """As `precedes`, but of (number, place): of equal numbers that of the first, or last, place."""
    before = precedes(dtype, x[0], other[0], least=least)
    not_after = precedes(dtype, x[0], other[0], least=least, ties=True)
    return before | (not_after & x[1].compare("sgt" if last else "slt", other[1]))
