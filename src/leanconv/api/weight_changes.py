"""Whether the weights of a kept plan have changed: they are packed again when they have."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

import numpy as np

from leanconv.api.conv_arguments import Constants
from leanconv.errors import memory_reported
from leanconv.records import dataclass


class _Sized(Protocol):
    @property
    def memory_bytes(self) -> int:
        """Workspace and packed weights."""


_Plan = TypeVar("_Plan", bound=_Sized)


@dataclass(frozen=True)
class KeptPlan(Generic[_Plan]):
    """A plan with a copy of the constants that it packed; the caller may change the originals."""

    plan: _Plan
    packed: tuple[bytearray, ...]

    @property
    def held_bytes(self) -> int:
        """Bytes of the plan and of the copy."""
        return self.plan.memory_bytes + sum(map(len, self.packed))

    def holds(self, constants: Constants) -> bool:
        """Whether these are, bit by bit, the constants that are packed."""
        return all(map(operator.eq, self.packed, _bytes(constants)))


@memory_reported("copying weights")
def copied_bytes(constants: Constants) -> tuple[bytearray, ...]:
    """A copy of the constants that are given."""
    return tuple(map(bytearray, _bytes(constants)))


def _bytes(constants: Constants) -> Iterator[memoryview]:
    """The memory of each array given; comparing it with a `bytearray` is a `memcmp`."""
    return (np.ascontiguousarray(array).data for array in constants if array is not None)
