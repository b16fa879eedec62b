"""Sequences of values, while a network is bound."""

from __future__ import annotations

from collections.abc import Sequence

from leanconv.graph.ir import TensorType
from leanconv.graph.value import Value
from leanconv.records import dataclass
from leanconv.types import BOOL


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
