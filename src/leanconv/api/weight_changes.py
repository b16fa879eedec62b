"""Whether the weights of a kept plan have changed: they are packed again when they have."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, Protocol, TypeVar

import numpy as np

from leanconv.algorithms.magnitudes import are_small
from leanconv.api.conv_arguments import Constants
from leanconv.api.packed_constants import PackedConstants
from leanconv.api.plan_cache import PlanCache
from leanconv.errors import memory_reported
from leanconv.records import dataclass
from leanconv.runtime.memory import Held


class _Sized(Protocol):
    @property
    def memory_bytes(self) -> int:
        """Workspace and packed weights."""


_Plan = TypeVar("_Plan", bound=_Sized)


class ConstantsCopy:
    """A copy of the constants that are given, and what plans have packed of them.

    Attributes:
        bytes: of the copy.
        small: whether the weights are so small that transforms would lose them.
    """

    @memory_reported("copying weights")
    def __init__(self, constants: Constants) -> None:
        self._arrays = tuple(map(bytearray, _bytes(constants)))
        self.bytes = sum(map(len, self._arrays))
        self.small = are_small(constants.w)
        self._packed: dict[Hashable, weakref.ref[PackedConstants]] = {}

    def holds(self, constants: Constants) -> bool:
        """Whether these are, bit by bit, the constants that were copied."""
        return all(map(operator.eq, self._arrays, _bytes(constants)))

    def packed(self, recipe: Hashable, make: Callable[[], PackedConstants]) -> PackedConstants:
        """What a plan that lives has packed by the same recipe, or what `make` packs."""
        ref = self._packed.get(recipe)
        known = None if ref is None else ref()
        if known is None:
            known = make()
            if recipe is not None:
                self._packed[recipe] = weakref.ref(known)
        return known


@dataclass(frozen=True)
class KeptPlan(Generic[_Plan]):
    """A plan with a copy of the constants that it packed; the caller may change the originals.

    Attributes:
        plan: the plan.
        copy: the constants.
        packed: what is packed of them, if plans for other sizes share it and the copy.
    """

    plan: _Plan
    copy: ConstantsCopy
    packed: PackedConstants | None = None

    @property
    def held(self) -> Held:
        """Bytes of the plan and of the copy."""
        if self.packed is None:
            return Held(self.plan.memory_bytes + self.copy.bytes)
        shared = {id(self.packed): self.packed.bytes, id(self.copy): self.copy.bytes}
        return Held(self.plan.memory_bytes - self.packed.bytes, shared)

    def holds(self, constants: Constants) -> bool:
        """Whether these are, bit by bit, the constants that are packed."""
        return self.copy.holds(constants)


def _bytes(constants: Constants) -> Iterator[memoryview]:
    """The memory of each array given; comparing it with a `bytearray` is a `memcmp`.

    As bytes: arrays of the package ml_dtypes are no buffers.
    """
    given = (np.ascontiguousarray(array) for array in constants if array is not None)
    return (array.view(np.uint8).data for array in given)


def keep(cache: PlanCache[KeptPlan[_Plan]], key: object, kept: KeptPlan[_Plan]) -> None:
    """Put a plan into a cache, with the bytes that it holds."""
    held = kept.held
    cache.put(key, kept, held.own_bytes, held.blocks)
