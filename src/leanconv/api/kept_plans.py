"""Plans of calls, found again by what a call is given; packed again when its weights have changed.

What `conv2d` and `conv_transpose2d` are given is checked once and remembered as it came. The plan
is then found by the spec, the options and the address of the weights, and a copy of the weights
tells whether they are still those that it packed.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

import numpy as np

from leanconv.algorithms.magnitudes import are_small
from leanconv.api.conv_arguments import Constants
from leanconv.api.options import PlanOptions
from leanconv.api.packed_constants import PackedConstants
from leanconv.api.plan_cache import PlanCache
from leanconv.errors import memory_reported
from leanconv.runtime.arrays import Lookup
from leanconv.runtime.locks import Lock
from leanconv.runtime.memory import Held
from leanconv.spec import Activation, ConvSpec
from leanconv.spec.arguments import is_plain
from leanconv.spec.transposed import TransposedSpec
from leanconv.types import as_dtype

# Of values that are equal where their types are: what is remembered of a call has these alone.
_PLAIN = frozenset({int, float, bool, str, tuple, type(None), Activation})
_MOST_CALLS = 1024  # whose arguments are remembered


class _Keepable(Protocol):
    @property
    def memory_bytes(self) -> int:
        """Workspace and packed weights."""

    def __call__(
        self, x: np.ndarray, out: np.ndarray | None = None, residual: np.ndarray | None = None
    ) -> np.ndarray:
        """Convolve."""


_Plan = TypeVar("_Plan", bound=_Keepable)


class ConstantsCopy:
    """A copy of the constants that are given, and what plans have packed of them.

    Attributes:
        bytes: of the copy.
        small: whether the weights are so small that transforms would lose them.
    """

    @memory_reported("copying weights")
    def __init__(self, constants: Constants) -> None:
        self._arrays = list(map(bytearray, _memory(constants)))
        self.bytes = sum(map(len, self._arrays))
        self.small = are_small(constants.w)
        self._packed: dict[Hashable, weakref.ref[PackedConstants]] = {}

    def holds(self, constants: Constants) -> bool:
        """Whether these are, bit by bit, the constants that were copied."""
        return self._arrays == _memory(constants)

    def packed(self, recipe: Hashable, make: Callable[[], PackedConstants]) -> PackedConstants:
        """What a plan that lives has packed by the same recipe, or what `make` packs."""
        ref = self._packed.get(recipe)
        known = None if ref is None else ref()
        if known is None:
            known = make()
            if recipe is not None:
                self._packed[recipe] = weakref.ref(known)
        return known


class KeptPlan(Generic[_Plan]):
    """A plan with a copy of the constants that it packed; the caller may change the originals.

    Args:
        plan: the plan.
        copy: the constants.
        packed: what is packed of them, if plans for other sizes share it and the copy.
        repack: packs others in their place; None if that cannot be.
        copied: copies others.

    Attributes:
        lock: for whoever compares the constants, packs others or runs the plan.
    """

    def __init__(
        self,
        plan: _Plan,
        copy: ConstantsCopy,
        packed: PackedConstants | None = None,
        repack: Callable[..., None] | None = None,
        copied: Callable[[Constants], ConstantsCopy] = ConstantsCopy,
    ) -> None:
        self.plan, self.copy, self.packed = plan, copy, packed
        self._repack, self._copied = repack, copied
        self.lock = Lock("a call of the same convolution")
        self._whole = True  # whether all that the copy holds is packed

    @property
    def held(self) -> Held:
        """Bytes of the plan and of the copy."""
        if self.packed is None:
            return Held(self.plan.memory_bytes + self.copy.bytes)
        shared = {id(self.packed): self.packed.bytes, id(self.copy): self.copy.bytes}
        return Held(self.plan.memory_bytes - self.packed.bytes, shared)

    def packs(self, constants: Constants) -> bool:
        """Whether these constants are packed: they were, bit by bit, or are now."""
        if self._whole and self.copy.holds(constants):
            return True
        if self._repack is None:
            return False
        copied = self._copied(constants)  # before packing: the next call notices a change
        self._whole = False  # whatever ends the packing
        self._repack(*constants)
        self.copy, self._whole = copied, True
        return True


class Layer(Generic[_Plan]):
    """What a call computes: its arguments, checked. Those of equal spec and options are equal.

    Args:
        spec, options: of the plan.
        make: makes it with constants.
    """

    def __init__(
        self,
        spec: ConvSpec | TransposedSpec,
        options: PlanOptions,
        make: Callable[[Constants], KeptPlan[_Plan]],
    ) -> None:
        self.spec, self.make = spec, make
        self._key = spec, options
        self._hash = hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layer) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    def run(
        self,
        cache: PlanCache[KeptPlan[_Plan]],
        x: np.ndarray,
        residual: np.ndarray | None,
        constants: Constants,
        address: int,
    ) -> np.ndarray:
        """Run the plan that is kept for weights at an address, or a new one.

        Weights that have changed are packed again in the place of the others where no plan for
        another size shares it. Calls from several threads run in turn; one of a signal handler
        that interrupts such a call has a plan of its own.
        """
        key = self, address
        kept = cache.get(key)
        if kept is not None and not kept.lock.mine():
            with kept.lock.bare:
                if kept.packs(constants):
                    return kept.plan(x, None, residual)
        kept = self.make(constants)
        try:
            return kept.plan(x, None, residual)
        finally:
            held = kept.held
            cache.put(key, kept, held.own_bytes, held.blocks)


class KnownCalls(Generic[_Plan]):
    """Layers by what calls were given, as it came: types and values, shapes and types of arrays."""

    def __init__(self) -> None:
        self._layers: dict[Hashable, tuple[Layer[_Plan], Lookup]] = {}

    def run(
        self,
        cache: PlanCache[KeptPlan[_Plan]],
        arguments: tuple[object, ...],
        x: np.ndarray,
        residual: np.ndarray | None,
        constants: Constants,
    ) -> np.ndarray | None:
        """Run a call that is known; None for any other.

        Args:
            cache: of the plans.
            arguments: all but the arrays.
            x, residual, constants: the arrays, as they were given.
        """
        try:
            known = self._layers.get(_given(arguments, x, residual, constants))
        except TypeError:  # a value that may change
            return None
        if known is None:
            return None
        layer, find = known
        address = find(constants.w) or constants.w.ctypes.data
        return layer.run(cache, x, residual, constants, address)

    def add(
        self,
        layer: Layer[_Plan],
        arguments: tuple[object, ...],
        x: np.ndarray,
        residual: np.ndarray | None,
        constants: Constants,
    ) -> None:
        """Remember a call whose arguments have been checked."""
        given, w = _given(arguments, x, residual, constants), constants.w
        if given is None or not _PLAIN.issuperset(map(type, arguments)):
            return
        if all(is_plain(value) for value in arguments if type(value) is tuple):
            if len(self._layers) >= _MOST_CALLS:
                self._layers.clear()
            self._layers[given] = layer, Lookup(w.shape, as_dtype(w.dtype))


def _given(
    arguments: tuple[object, ...],
    x: np.ndarray,
    residual: np.ndarray | None,
    constants: Constants,
) -> Hashable:
    """What decides what a call computes; None where an array is of another class than NumPy's."""
    w, bias, slope = constants
    if type(x) is not np.ndarray or type(w) is not np.ndarray:
        return None
    beside = None
    if bias is not None or slope is not None:
        given = bias, slope
        if not all(array is None or type(array) is np.ndarray for array in given):
            return None
        beside = tuple(None if array is None else (array.shape, array.dtype) for array in given)
    kinds = [*map(type, arguments)]
    if tuple in kinds:  # whose numbers may be equal, and of other types
        kinds += [type(n) for value in arguments if type(value) is tuple for n in value]
    arrays = x.shape, x.dtype, w.shape, w.dtype, beside, residual is not None
    return arrays, arguments, tuple(kinds)


def _memory(constants: Constants) -> list[memoryview]:
    """The memory of each array given; comparing it with a `bytearray` is a `memcmp`."""
    return [_bytes(array) for array in constants if array is not None]


def _bytes(array: np.ndarray) -> memoryview:
    try:
        found = array.data
        if found.c_contiguous:
            return found
    except ValueError:  # arrays of the package ml_dtypes are no buffers
        pass
    return np.ascontiguousarray(array).view(np.uint8).data
