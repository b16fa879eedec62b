"""The shapes of a model that are planned, and their bytes.

Requests whose inputs differ in their first extent alone, where that is a batch, are a **group**:
they are computed together, in batches of a few planned sizes. A network whose first extent is
fixed, or no batch, has a group for each shape (and for each value of an input that decides what is
computed), of one size.
"""

from __future__ import annotations

import logging
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from leanconv.api.backend import Backend, Compiled
from leanconv.api.inputs import InputSpec, Shape
from leanconv.api.network import Network
from leanconv.errors import BudgetError, LeanConvError, ModelError
from leanconv.graph.ir import TensorType
from leanconv.graph.network_inputs import is_small
from leanconv.records import dataclass
from leanconv.runtime.locks import Lock
from leanconv.server.libraries import LibraryNetwork, LibraryPlan
from leanconv.server.limits import BUSY, RefusedError
from leanconv.units import format_bytes

log = logging.getLogger(__name__)

# What a plan takes beside its counted memory: tables, loaded code, Python's objects.
_OVERHEAD_BYTES = 64 * 2**10
Key = tuple[object, ...]
Plan: TypeAlias = "Compiled | LibraryPlan"


@dataclass(frozen=True)
class Wanted:
    """The plan that a request needs.

    Attributes:
        key: of its group.
        shapes: of its inputs; in a group that is batched, of one image.
        known: arrays of small inputs, whose values may decide what is computed.
        rows: how many images it has; 1 where they are not batched.
        batched: whether its images may be computed with those of others.
    """

    key: Key
    shapes: tuple[Shape, ...]
    known: Mapping[str, np.ndarray]
    rows: int
    batched: bool


@dataclass(frozen=True, eq=False)
class Group:
    """Plans for requests that may be computed together.

    Attributes:
        sizes: of batches, ascending; (1,) where requests are computed one by one.
        plans: by batch size.
        batched: whether requests are computed together.
    """

    sizes: tuple[int, ...]
    plans: Mapping[int, Plan]
    batched: bool

    def size_for(self, rows: int) -> int:
        """The largest batch that `rows` images fill, else the smallest, which zeros fill up."""
        return max((size for size in self.sizes if size <= rows), default=self.sizes[0])

    @property
    def smallest(self) -> Plan:
        """The plan of its smallest batch."""
        return self.plans[self.sizes[0]]

    def outputs(self, rows: int) -> list[TensorType | None]:
        """Types of the results for as many images; None where they follow from values."""
        times = -(-rows // self.sizes[0])
        found = list(self.smallest.outputs.values())
        if times == 1:
            return found
        return [k and TensorType((k.shape[0] * times, *k.shape[1:]), k.dtype) for k in found]


class Plans:
    """The groups of a network, the least recently used one evicted first.

    A group that is evicted is counted as long as requests that are queued hold it.

    Args:
        network: from `leanconv.load`; its own cache of plans is not used. Or a library, whose
            shapes all are planned; its requests are computed one by one.
        most: how many groups are kept, those made at the start not counted.
        batch: images that are computed together at most.

    Attributes:
        inputs, outputs: of the network.
        small: names of inputs whose values may decide what is computed.
        may_batch: whether the first extent may be a batch, as far as the file says.
    """

    def __init__(self, network: Network | LibraryNetwork, most: int, batch: int) -> None:
        self._backend: Backend | LibraryNetwork = network.compiler
        self._most = most
        library = isinstance(network, LibraryNetwork)
        self.inputs: Sequence[InputSpec] = network.inputs
        self.outputs: Sequence[InputSpec] = network.outputs
        decides = () if library else self.inputs
        self.small = [s.name for s in decides if is_small(s.shape, s.dtype)]
        self._sizes = (*(2**n for n in range((batch - 1).bit_length())), batch)
        fixed = all(isinstance(e, int) for s in self.inputs for e in s.shape or (None,))
        self._at_load = network.in_use if fixed and not self.small else None
        self._groups: OrderedDict[Key, Group] = OrderedDict()
        self._evicted: weakref.WeakSet[Group] = weakref.WeakSet()  # those that something holds
        self._kept: set[Key] = set()
        self._lock = Lock("the plans of a served model")
        self.may_batch = batch > 1 and not (library or self.small) and self._has_batch()

    def _has_batch(self) -> bool:
        """Return whether the file leaves the first extent of all inputs and outputs open."""
        shapes = [spec.shape for spec in (*self.inputs, *self.outputs)]
        return all(s is None or (len(s) > 0 and not isinstance(s[0], int)) for s in shapes) and all(
            spec.shape is not None for spec in self.inputs
        )

    def wanted(self, arrays: Sequence[np.ndarray]) -> Wanted:
        """Return the plan that arrays need, which fit the inputs."""
        shapes = tuple(tuple(array.shape) for array in arrays)
        rows = {shape[0] if shape else 0 for shape in shapes}
        if self.may_batch and len(rows) == 1:
            ones = tuple((1, *shape[1:]) for shape in shapes)
            group = self.found((ones,))
            if group is None or group.batched:
                return Wanted((ones,), ones, {}, rows.pop(), batched=True)
        names = [spec.name for spec in self.inputs]
        known = {name: arrays[names.index(name)] for name in self.small}
        return Wanted(self._backend.deciding.key(shapes, known), shapes, known, 1, batched=False)

    def found(self, key: Key) -> Group | None:
        """The group of a key, now the most recently used one; None if it is not planned."""
        with self._lock.held:
            group = self._groups.get(key)
            if group is not None:
                self._groups.move_to_end(key)
            return group

    def plan(self, wanted: Wanted, limit: int | None, keep: bool = False) -> Group:
        """Plan for a request, and for all batch sizes with it.

        Args:
            wanted: of `wanted`.
            limit: the most that all plans of this network may take; None for any.
            keep: whether the group is never evicted.

        Returns:
            Its group. Where images turn out to be mixed, the requests of several need others:
            `wanted` says then which.

        Raises:
            LeanConvError: the network does not take it, or it does not fit the limit.
            RefusedError: the plan does not fit until requests for evicted groups are answered.
        """
        make = self._batched if wanted.batched else self._single
        group = make(wanted, limit)
        key = wanted.key
        if not wanted.batched:  # what decides is known by now
            key = self._backend.deciding.key(wanted.shapes, wanted.known)
        with self._lock.held:
            self._groups[key] = group
            if keep:
                self._kept.add(key)
            for old in self._evictable()[: -max(1, self._most)]:
                self._evict(old)
        return group

    def _evictable(self) -> list[Key]:
        """Groups that may go, the oldest first; only under the lock."""
        return [key for key in self._groups if key not in self._kept]

    def _evict(self, key: Key) -> None:
        """Let a group go; only under the lock."""
        self._evicted.add(self._groups.pop(key))

    def _single(self, wanted: Wanted, limit: int | None) -> Group:
        compiled = self._compiled(wanted.shapes, wanted.known, limit)
        return Group((1,), {1: compiled}, batched=False)

    def _batched(self, wanted: Wanted, limit: int | None) -> Group:
        """Plans for all batch sizes that fit, if an image gets the same bits in each."""
        plans: dict[int, Plan] = {}
        for size in self._sizes:
            shapes = tuple((size, *shape[1:]) for shape in wanted.shapes)
            compared = comparison_bytes(plans[1], size) if plans else 0
            try:
                plans[size] = self._compiled(shapes, {}, limit, plans.values(), compared)
            except (BudgetError, ModelError, RefusedError) as error:
                if not plans:
                    raise
                log.warning("no batches of %d: %s", size, error)
                break
            if None in plans[size].outputs.values():  # values of all images decide together
                log.warning("requests are computed one by one: outputs follow from values")
                return Group((1,), plans, batched=False)
        if len(plans) > 1 and alike(plans, wanted.shapes, self.inputs):
            return Group(tuple(plans), plans, batched=True)
        log.warning(
            "requests are computed one by one: %s",
            "in a batch, results would differ" if len(plans) > 1 else "no batch fits the limit",
        )
        return Group((1,), {1: plans[1]}, batched=False)

    def _compiled(
        self,
        shapes: tuple[Shape, ...],
        known: Mapping[str, np.ndarray],
        limit: int | None,
        beside: Iterable[Plan] = (),
        compared_bytes: int = 0,
    ) -> Plan:
        """A plan for shapes; where it does not fit beside others, the oldest groups go.

        Args:
            shapes, known: of all inputs.
            limit: of all plans of this network; None for any.
            beside: plans of the group that is being made.
            compared_bytes: that comparing it with those takes.

        Raises:
            BudgetError: the plan does not fit all the same.
            RefusedError: the plan does not fit until requests for evicted groups are answered.
        """
        found: Plan | None = self._at_load
        if found is None or not found.is_for(shapes, known):
            found = self._made(shapes, known, limit)
        if limit is not None:
            self._make_room([found, *beside], limit - compared_bytes)
        return found

    def _made(
        self, shapes: tuple[Shape, ...], known: Mapping[str, np.ndarray], limit: int | None
    ) -> Plan:
        """A compiled network: by snapshots, until one of a shape is missing."""
        while True:
            if limit is not None:
                self._backend.limit_to(limit)  # refused before it is allocated
            found = self._backend.compile(shapes, known)
            if found is not None:
                return found
            self._backend = self._backend.whole

    def _make_room(self, made: Sequence[Plan], limit: int) -> None:
        """Evict the oldest groups until plans fit; none, if that would not do.

        Raises:
            BudgetError: the plans do not fit beside those that are never evicted.
            RefusedError: bytes do not fit yet, since requests use evicted groups.
        """
        with self._lock.held:
            kept = [group for key, group in self._groups.items() if key in self._kept]
            least = _bytes(kept, made)
            if least > limit:
                raise BudgetError(
                    f"the plans of the model would take {format_bytes(least)}; "
                    f"{format_bytes(max(0, limit))} are left for them",
                    least,
                )
            for old in self._evictable():
                if self._bytes(made) <= limit:
                    return
                self._evict(old)
            if self._bytes(made) > limit:
                raise RefusedError(
                    BUSY,
                    "there is no memory for a new shape until requests for earlier ones are "
                    "answered; try again later",
                    retry_s=1,
                )

    @property
    def held_bytes(self) -> int:
        """Bytes of all plans, their code and packed weights; what they share counts once."""
        with self._lock.held:
            return self._bytes()

    def _bytes(self, made: Iterable[Plan] = ()) -> int:
        """Bytes of all groups, evicted ones that are in use, and new plans; under the lock."""
        return _bytes([*self._groups.values(), *self._evicted], made)

    def groups(self) -> list[tuple[Key, Group]]:
        """All groups that are planned."""
        with self._lock.held:
            return list(self._groups.items())

    def run(self, group: Group, size: int, arrays: Sequence[Any]) -> list[np.ndarray]:
        """The outputs of a batch of a planned size; types are those of memory.

        Raises:
            LeanConvError: the network's computation refuses values.
        """
        return group.plans[size].run(self._backend.validated(arrays))


def _bytes(groups: Iterable[Group], made: Iterable[Plan]) -> int:
    """Bytes of the plans of groups, and of others; blocks that plans share count once."""
    held = [plan.held for group in groups for plan in group.plans.values()]
    held += [plan.held for plan in made]
    blocks: dict[int, int] = {}
    for each in held:
        blocks.update(each.blocks)
    own = sum(each.own_bytes + _OVERHEAD_BYTES for each in held)
    return own + sum(blocks.values()) + max((each.working_bytes for each in held), default=0)


def comparison_bytes(one: Plan, size: int) -> int:
    """Return the memory that `alike` takes for batches of up to `size`.

    Args:
        one: the plan of one image.
        size: of the largest batch.

    Returns:
        Bytes of the images, of three steps in float32 to one of them, of the results of a batch
        and of one image.
    """
    images = sum(kind.bytes for kind in one.inputs.values())
    largest = max((kind.elements for kind in one.inputs.values()), default=0)
    results = sum(kind.bytes for kind in one.outputs.values() if kind is not None)
    return size * images + 3 * 4 * largest + (size + 1) * results


def alike(plans: Mapping[int, Plan], shapes: Sequence[Shape], inputs: Sequence[InputSpec]) -> bool:
    """Return whether each image gets in all batch sizes the bits that it gets alone.

    Kernels of plans that are `reproducible` see to that; what is found here is a network that mixes
    images, for example by a mean over all of them.

    Args:
        plans: by batch size, 1 among them.
        shapes: of one image's inputs, with a first extent of 1.
        inputs: of the network.
    """
    random, most = np.random.default_rng(0), max(plans)
    pairs = zip(shapes, inputs, strict=True)
    arrays = [_images(random, most, shape, spec) for shape, spec in pairs]
    try:
        for size, plan in plans.items():
            together = plan.run([array[:size] for array in arrays])
            if any(result.shape[:1] != (size,) for result in together):
                return False
            for n in range(size):  # one at a time: no limit counts the memory of these results
                alone = plans[1].run([array[n : n + 1] for array in arrays])
                found = zip(together, alone, strict=True)
                if not all(_same_bits(batch[n : n + 1], one) for batch, one in found):
                    return False
    except LeanConvError as error:  # of values: there are networks that random numbers do not suit
        log.warning("whether images may be computed together is not known: %s", error)
        return False
    return True


def _same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    """Return whether arrays of a dtype are equal, NaN and signs of zeros compared, too."""
    codes = np.dtype(f"u{one.itemsize}")
    return np.array_equal(one.view(codes), other.view(codes))


def _images(random: np.random.Generator, count: int, shape: Shape, spec: InputSpec) -> np.ndarray:
    """Random images, each of another scale; made one after the other, as memory is counted."""
    kind = np.dtype(spec.dtype.numpy)
    images = np.empty((count, *shape[1:]), kind)
    for n in range(count):
        numbers = random.standard_normal(shape[1:], np.float32) * np.float32(n + 1)
        if spec.dtype.held != spec.dtype:  # bfloat16: the upper half of float32's bits
            images[n] = np.atleast_1d(numbers).view(np.uint32).reshape(shape[1:]) >> 16
        else:
            images[n] = numbers if spec.dtype.is_float else np.abs(numbers) % 2
    return images
