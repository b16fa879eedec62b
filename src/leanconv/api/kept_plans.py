"""Plans of calls, found again by what a call is given; packed again when its weights have changed.

What `conv2d` and `conv_transpose2d` are given is checked once and remembered as it came. How a
layer is computed is found by its spec and options, for any weights. A plan is that with packed
weights: it is found by their address, too, and a copy of them tells whether they are still those
that it packed.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Hashable
from dataclasses import fields
from typing import Any, TypeAlias, TypeVar

import numpy as np

from leanconv.api.compiled_conv import compiled_layer, traits_of
from leanconv.api.conv_arguments import Constants
from leanconv.api.layer_plan import CompiledLayer, LayerPlan, LayerSpec, PackedConstants
from leanconv.api.options import PlanOptions
from leanconv.api.plan_cache import PlanCache
from leanconv.errors import ReentrantCallError, memory_reported
from leanconv.progress import working
from leanconv.runtime.arrays import Lookup
from leanconv.runtime.locks import Lock
from leanconv.runtime.memory import Outputs
from leanconv.settings import current_settings
from leanconv.spec import Activation, ConvSpec
from leanconv.spec.arguments import is_plain
from leanconv.spec.transposed import TransposedSpec
from leanconv.types import INT32, as_dtype

_Result = TypeVar("_Result")
Memory: TypeAlias = list[Any]  # a buffer of each constant that is given, contiguous

# Of values that are equal where their types are: what is remembered of a call has these alone.
_PLAIN = frozenset({int, float, bool, str, tuple, type(None), Activation})
_MOST_CALLS = 1024  # whose arguments are remembered
MOST_LAYERS = 1024
# Of a spec, what differs between sizes.
_SIZES = frozenset({"batch", "size", "pad_begin", "pad_end", "input_shape", "output_shape"})
# How layers are computed, by spec, options, and what else decides; kept by their plans.
_compiled: weakref.WeakValueDictionary[Hashable, CompiledLayer] = weakref.WeakValueDictionary()


class ConstantsCopy:
    """A copy of constants, and what plans have packed of them.

    Attributes:
        lock: for whoever compares the constants, packs others or runs what is packed.
        bytes: of the copy.
        version: another one when the constants have changed.
        traits: properties of the weights that decide how they are computed.
    """

    @memory_reported("copying weights")
    def __init__(self, constants: Constants, traits_of: Callable[[np.ndarray], Hashable]) -> None:
        self.lock = Lock("a call of the same convolution")
        self._arrays = list(map(bytearray, memory_of(constants)))
        self.bytes = sum(map(len, self._arrays))
        self._traits_of, self.version = traits_of, 1
        self.traits = traits_of(constants.w)
        self._packed: dict[Hashable, weakref.ref[PackedConstants]] = {}

    def follow(self, memory: Memory, constants: Callable[[], Constants]) -> None:
        """Copy constants anew where their memory has changed; under the lock."""
        if self._arrays != memory:
            self.traits = self._traits_of(constants().w)
            self.version += 1  # before copying: whatever ends that, all is packed again
            for kept, given in zip(self._arrays, memory, strict=True):
                kept[:] = given

    def packed(self, recipe: Hashable, make: Callable[[], PackedConstants]) -> PackedConstants:
        """Return the constants that a living plan has packed by a recipe, or else `make`'s."""
        ref = self._packed.get(recipe)
        known = None if ref is None else ref()
        if known is None:
            known = make()
            if recipe is not None:
                self._packed[recipe] = weakref.ref(known)
        return known


class LayerSizes:
    """The compiled layers and the packed constants of one layer, for all sizes of its images."""

    def __init__(self) -> None:
        self._first: LayerSpec | None = None
        self._copy: weakref.ref[ConstantsCopy] | None = None

    def copied(
        self, constants: Constants, traits_of: Callable[[np.ndarray], Hashable]
    ) -> ConstantsCopy:
        """A copy of the constants: the one that other plans have; under its lock it follows."""
        known = None if self._copy is None else self._copy()
        if known is None:
            known = ConstantsCopy(constants, traits_of)
            self._copy = weakref.ref(known)
        return known

    def is_first(self, spec: LayerSpec, options: PlanOptions) -> bool:
        """Return whether a size has a plan of its own: the first, or a tuned or reproducible one.

        So has every size of integers and of transposed convolutions.
        """
        if isinstance(spec, TransposedSpec) or spec.precision.accumulate == INT32:
            return True
        self._first = self._first or spec
        return self._first == spec or options.tune or options.reproducible


def layer_sizes(spec: LayerSpec, options: PlanOptions, place: int) -> LayerSizes:
    """Return the `LayerSizes` of a layer with weights at an address."""
    return _layer((sizeless(spec), options, place))


def sizeless(spec: LayerSpec) -> Hashable:
    """What the specs of a layer have in common, whatever the size of its images."""
    each = (field.name for field in fields(spec) if field.name not in _SIZES)
    return type(spec), *(getattr(spec, name) for name in each)


def second_size(spec: ConvSpec, *others: Hashable) -> ConvSpec | None:
    """Return the second size that a layer has come with, for any but the first; None for that.

    Args:
        spec: of the layer with some size, which counts as one that it has come with.
        others: what else tells layers apart.
    """
    sizes = _sizes(sizeless(spec), *others)
    if spec not in sizes and len(sizes) < 2:
        sizes.append(spec)
    return None if spec == sizes[0] else sizes[1]


@functools.lru_cache(MOST_LAYERS)
def _sizes(*layer: Hashable) -> list[ConvSpec]:
    """The first two sizes of a layer."""
    del layer
    return []


@functools.lru_cache(MOST_LAYERS)
def _layer(key: Hashable) -> LayerSizes:
    del key
    return LayerSizes()


class KeptPlan:
    """A plan with a copy of the constants that it packed; the caller may change the originals.

    Args:
        plan: the plan.
        copy: the constants.
    """

    def __init__(self, plan: LayerPlan, copy: ConstantsCopy) -> None:
        self.plan, self.copy, self._traits = plan, copy, copy.traits

    @property
    def blocks(self) -> dict[int, int]:
        """Bytes of the plan and of the copy; other plans may hold any of them, too."""
        layer, packed, copy = self.plan.layer, self.plan.packed, self.copy
        return {id(layer): layer.workspace_bytes, id(packed): packed.bytes, id(copy): copy.bytes}

    def run(
        self,
        memory: Memory,
        constants: Callable[[], Constants],
        call: Callable[[LayerPlan], _Result],
    ) -> _Result | None:
        """Run the plan, with constants that have changed packed again in the place of the others.

        Calls from several threads run in turn.

        Args:
            memory: of the constants, as `memory_of` gives it.
            constants: gives them, of the shapes and types of those that were packed.
            call: runs the plan.

        Returns:
            What `call` returns; None where the constants have become such that they are computed
            otherwise.

        Raises:
            ReentrantCallError: a signal handler interrupts such a call by another one.
        """
        copy, packed = self.copy, self.plan.packed
        if copy.lock.mine():
            raise copy.lock.reentrant()
        with copy.lock.bare:
            copy.follow(memory, constants)
            if copy.traits != self._traits:
                return None
            if packed.version != copy.version:
                packed.fill(constants())
                packed.version = copy.version
            return call(self.plan)


class Layer:
    """A layer that calls compute: checked arguments. Those of equal spec and options are equal."""

    def __init__(self, spec: LayerSpec, options: PlanOptions) -> None:
        self.spec, self.options = spec, options
        self._key = spec, options
        self._hash = hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layer) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    def run(
        self,
        call: Callable[[LayerPlan], _Result],
        address: int,
        memory: Memory,
        constants: Callable[[], Constants],
    ) -> _Result:
        """Run the plan that is kept for weights at an address, or a new one, by calling `call`.

        A call of a signal handler that interrupts one of the same layer has a plan of its own.

        Args:
            call: runs a plan.
            address: of the weights, which finds the plan.
            memory, constants: as `KeptPlan.run` takes them.
        """
        key, cache = (self, address), kept_plans()
        kept, alone = cache.get(key), False
        while True:
            if kept is not None:
                try:
                    y = kept.run(memory, constants, call)
                except ReentrantCallError:
                    if alone:
                        raise
                    y, alone = None, True
                if y is not None:
                    return y
            kept = self._planned(constants(), address, alone)
            cache.put(key, kept, 0, kept.blocks)

    def _planned(self, constants: Constants, address: int, alone: bool) -> KeptPlan:
        """A plan for these constants, which shares what it can; None if it is to be alone."""
        sizes = LayerSizes() if alone else layer_sizes(self.spec, self.options, address)
        copy = sizes.copied(constants, traits_of(self.spec, self.options))
        with copy.lock.held:
            copy.follow(memory_of(constants), lambda: constants)
        shares, traits = not sizes.is_first(self.spec, self.options), copy.traits
        key = self._key, shares, traits
        layer = None if alone else _compiled.get(key)
        if layer is None:
            with working(str(self.spec)):
                layer = compiled_layer(self.spec, constants, self.options, shares)
        if not alone:
            _compiled[key] = layer
        packed = copy.packed(layer.recipe, layer.unfilled)
        return KeptPlan(LayerPlan(layer, packed, _outputs()), copy)


@functools.cache
def kept_plans() -> PlanCache[KeptPlan]:
    """The plans that `conv2d` and `conv_transpose2d` made."""
    return PlanCache(current_settings().plan_cache_bytes, keep_newest=False)


@functools.cache
def _outputs() -> Outputs:
    """The memory of large results."""
    return Outputs()


class KnownCalls:
    """Layers by the arguments of calls: types and values, shapes and types of arrays."""

    def __init__(self) -> None:
        self._layers: dict[Hashable, tuple[Layer, Lookup]] = {}

    def run(
        self,
        arguments: tuple[object, ...],
        x: np.ndarray,
        residual: np.ndarray | None,
        constants: Constants,
    ) -> np.ndarray | None:
        """Run a call that is known; None for any other.

        Args:
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
        given = memory_of(constants), lambda: constants
        return layer.run(lambda plan: plan(x, None, residual), address, *given)

    def add(
        self,
        layer: Layer,
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
    """Return a key of a call; None where an array is of another class than NumPy's."""
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


def memory_of(constants: Constants) -> Memory:
    """The memory of each array that is given; comparing it with a `bytearray` is a `memcmp`."""
    return [_bytes(array) for array in constants if array is not None]


def _bytes(array: np.ndarray) -> memoryview:
    try:
        found = array.data
        if found.c_contiguous:
            return found
    except ValueError:  # arrays of the package ml_dtypes are no buffers
        pass
    return np.ascontiguousarray(array).view(np.uint8).data
