"""Values of a graph that is being built: what computes them is a node, or they are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from leanconv.graph.ir import TensorType
from leanconv.graph.ops.base import Array, numbers
from leanconv.records import cached_property, dataclass
from leanconv.symbolic import Symbol
from leanconv.types import BOOL


class Unmade:
    """A constant that is made when something reads its numbers.

    Args:
        make: makes it.
    """

    def __init__(self, make: Callable[[], Array]) -> None:
        self._make = make

    @cached_property
    def array(self) -> Array:
        """The constant."""
        return self._make()

    @property
    def is_made(self) -> bool:
        """Whether something has read it."""
        return "array" in self.__dict__


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor that becomes part of the graph: its type, and its array when it is known already.

    Attributes:
        type: its shape and dtype.
        held: None for what is computed at run time.
    """

    type: TensorType
    held: Array | Unmade | None = None

    @property
    def array(self) -> Array | None:
        """The array if it is known; of objects where integers hold symbols: see `numbers`."""
        return self.held.array if isinstance(self.held, Unmade) else self.held

    @property
    def is_known(self) -> bool:
        """Whether there is an array; to ask makes none."""
        return self.held is not None

    @property
    def is_unmade(self) -> bool:
        """Whether it is known, and nothing has read its numbers."""
        return isinstance(self.held, Unmade) and not self.held.is_made

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, all extents known."""
        return self.type.shape

    @property
    def numbers(self) -> Array | None:
        """The array with numbers for symbols: what is made of it is for these numbers only."""
        array = self.array
        return None if array is None else numbers(array, self.type.dtype)


def are_numbers(values: Sequence[Value | None]) -> bool:
    """Whether no constant among values holds symbols."""
    arrays = (value.array for value in values if value is not None)
    return not any(array is None or array.dtype == object for array in arrays)


def has_symbols(kind: TensorType) -> bool:
    """Whether an extent is a symbol."""
    return any(isinstance(extent, Symbol) for extent in kind.shape)


def known_if_empty(value: Value) -> Value:
    """A value; what has no elements is known, whatever makes it."""
    if value.is_known or value.type.elements:
        return value
    return Value(value.type, np.empty(value.shape, value.type.dtype.numpy))


@dataclass(frozen=True, eq=False)
class SequenceValue(Value):
    """A list of values; what holds it is no tensor, and no node computes it.

    Attributes:
        items: in order.
    """

    items: tuple[Value, ...] = ()

    @staticmethod
    def of(items: Sequence[Value]) -> SequenceValue:
        """A sequence of values."""
        return SequenceValue(TensorType((0,), BOOL), None, tuple(items))
