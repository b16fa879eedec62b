"""A network as calls over values, and the constants that these read.

Weights are in memory once: what was packed must be let go at once. Whoever has to let go owns the
arrays here and gives them up by `take`; graphs and lowered graphs are never changed.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from leanconv.codegen.kernel import Kernel
from leanconv.codegen.lowered import Call, PackCall, Packing, Repeat
from leanconv.graph.ir import Graph, number_of
from leanconv.planner.storage import Views
from leanconv.records import dataclass, replace
from leanconv.runtime.memory import Block
from leanconv.spec.format import aligned, aligned_offsets


@dataclass(frozen=True, eq=False)
class Step:
    """One operation of the network, or a reorder between two.

    Attributes:
        name: of the node in the file.
        op: the operation, `"Reorder"` for a change of layout.
        algorithm: its name, for people.
        calls: kernels over values.
        output: the first value that it defines.
        weight_bytes: packed constants that it reads.
        output_bytes: bytes of its results.
        repeats: calls that run several times; before those inside them.
    """

    name: str
    op: str
    algorithm: str
    calls: tuple[Call, ...]
    output: str
    weight_bytes: int
    output_bytes: int
    repeats: tuple[Repeat, ...] = ()

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernel of each call."""
        return tuple(call.kernel for call in self.calls)

    @property
    def flops(self) -> int:
        """Floating point operations of all calls, each as often as it runs."""
        flops = [call.kernel.flops for call in self.calls]
        for each in self.repeats:
            for number in range(each.first, each.first + each.calls):
                flops[number] *= each.times
        return sum(flops)


@dataclass(frozen=True, eq=False)
class LoweredGraph:
    """A network as calls over values.

    Attributes:
        steps: in order.
        bytes: size of every value that is computed or given, in its format.
        views: values that are bytes of another one.
        constants: by the names that calls use; `fill_weights` takes them out.
        inputs, outputs: names of what the user gives and gets, plain.
    """

    steps: tuple[Step, ...]
    bytes: Mapping[str, int]
    views: Views[str]
    constants: ConstantPool
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def all_repeats(steps: Sequence[Step]) -> tuple[Repeat, ...]:
    """Return the repeats of all steps, with calls numbered through the network."""
    found: list[Repeat] = []
    before = 0
    for step in steps:
        found += [replace(each, first=before + each.first) for each in step.repeats]
        before += len(step.calls)
    return tuple(found)


# -- large arrays between the passes and the packed weights of a plan ----------------------------
class OwnedGraph:
    """The one reference to a graph that is to be planned.

    A caller that keeps only this, and no reference to the graph, holds no weights once the plan
    has taken it.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph: Graph | None = graph

    @property
    def graph(self) -> Graph:
        """The graph, until it is taken."""
        assert self._graph is not None, "the graph was taken already"
        return self._graph

    def take(self) -> Graph:
        """Return the graph and forget it: it stays in memory as long as the caller keeps it."""
        graph, self._graph = self.graph, None
        return graph


@dataclass(frozen=True, eq=False)
class PackedWeights:
    """The constants of one packing in memory, for all plans that read the same.

    Attributes:
        block: where they are; it is released with the last plan.
        addresses: by name.
        bytes: of all of them, as they are aligned.
        digest: of what they were packed from and how; empty where nobody asks for it.
    """

    block: Block
    addresses: Mapping[str, int]
    bytes: int
    digest: str = ""


# A packing whose constants are to be shared once they are in memory: the key by which other plans
# find them, None if they cannot, their digest, and the bytes of each constant, by name.
Offered = tuple[Hashable, str, Mapping[str, int]]
Digest = Callable[[Packing], str]
# Finds constants that no plan of this process has packed, by their digest and bytes.
Elsewhere = Callable[[str, Sequence[int]], "tuple[Block, Sequence[int]] | None"]


class WeightStore:
    """Packed weights of a network's plans: equal ones are in memory once.

    Args:
        digest: gives a packing's, by which other processes know it; None asks for none.
        elsewhere: finds constants in snapshots' memory; None where there are no snapshots.
    """

    def __init__(self, digest: Digest | None = None, elsewhere: Elsewhere | None = None) -> None:
        self.digest, self._elsewhere = digest, elsewhere
        self._held: weakref.WeakValueDictionary[Hashable, PackedWeights]
        self._held = weakref.WeakValueDictionary()

    def find(self, packing: Packing) -> PackedWeights | None:
        """Return the packed weights that equal those of a packing, if there are any."""
        key, names = packing_key(packing), tuple(packing.bytes)
        if key is None:
            return None
        found = self._held.get((key, names))
        if found is None and self.digest is not None and self._elsewhere is not None:
            sizes, digest = [*packing.bytes.values()], self.digest(packing)
            place = self._elsewhere(digest, sizes)
            if place is not None:
                block, addresses = place
                at = dict(zip(names, addresses, strict=True))
                found = PackedWeights(block, at, sum(map(aligned, sizes)), digest)
                self._held[key, names] = found
        return found

    def keep(
        self, offered: Iterable[Offered], block: Block, places: Mapping[str, int]
    ) -> list[PackedWeights]:
        """Offer packed weights in a block to other plans, as long as the result is kept."""
        kept = []
        for key, digest, sizes in offered:
            addresses = {name: block.address + places[name] for name in sizes}
            weights = PackedWeights(block, addresses, sum(map(aligned, sizes.values())), digest)
            if key is not None:
                self._held[key, tuple(sizes)] = weights
            kept.append(weights)
        return kept


def packing_key(packing: Packing) -> Hashable:
    """Return a key of equal packings, whatever their constants' names; None if it has none."""
    if packing.recipe is None:
        return None
    sizes = tuple(packing.bytes.values())
    return packing.recipe, sizes, tuple(map(number_of, packing.sources))


class ConstantPool:
    """The constants that a lowered graph's calls name, until they are taken.

    Args:
        constants: arrays by name.
        packings: weights that are packed when there is a place for them.

    Attributes:
        arrays: constants that are not packed and not taken yet, by name.
        packings: constants that are yet to be packed.
        bytes: of every constant, by name; those included that are yet to be packed.
    """

    def __init__(
        self, constants: Mapping[str, np.ndarray], packings: Sequence[Packing] = ()
    ) -> None:
        self.arrays, self.packings = dict(constants), deque(packings)
        packed = {name: size for packing in packings for name, size in packing.bytes.items()}
        self.bytes = {**{name: array.nbytes for name, array in constants.items()}, **packed}

    def take_shared(self, store: WeightStore) -> list[PackedWeights]:
        """Remove the packings whose weights other plans have in memory; return these weights."""
        found = [store.find(packing) for packing in self.packings]
        pairs = list(zip(self.packings, found, strict=True))
        self.packings = deque(packing for packing, weights in pairs if weights is None)
        for packing, weights in pairs:
            for name in packing.bytes if weights else ():
                del self.bytes[name]
        return [weights for weights in found if weights is not None]

    def leave(self, packings: Sequence[Packing]) -> None:
        """Remove packings that others make."""
        self.packings = deque(each for each in self.packings if each not in packings)
        for packing in packings:
            for name in packing.bytes:
                del self.bytes[name]

    def offered(self, digest: Digest | None = None) -> list[Offered]:
        """Return keys, digests and sizes of the constants that others may share once packed."""
        return [
            (key, digest(each) if digest and key is not None else "", dict(each.bytes))
            for each in self.packings
            for key in (packing_key(each),)
        ]

    def kernels(self, known: set[Hashable] | None = None) -> list[Kernel]:
        """The compiled code that packs constants that are not packed yet.

        Args:
            known: recipes whose kernels are left out; the recipes of this pool's kernels are added.
        """
        found: list[Kernel] = []
        for packing in self.packings:
            if known is not None and packing.recipe is not None:
                if packing.recipe in known:
                    continue
                known.add(packing.recipe)
            found += [call.kernel for calls in packing.calls().values() for call in calls]
        return found

    def tables(self) -> list[str]:
        """The constants that may hold places in memory: integers of more than 8 bits."""
        found = [name for name, array in self.arrays.items() if _may_be_places(array)]
        for packing in self.packings:
            for name, calls in packing.calls().items():
                if any(_may_be_places(call.source()) for call in calls):
                    found.append(name)
        return found

    def places(self) -> tuple[dict[str, int], int]:
        """Offsets of all constants in one block, and its bytes; one array is stored once."""
        first: dict[int, str] = {}
        named = ((name, number_of(array)) for name, array in self.arrays.items())
        same = {name: first.setdefault(number, name) for name, number in named}
        stored = {n: size for n, size in self.bytes.items() if same.get(n, n) == n}
        places, end = aligned_offsets(stored)
        return {name: places[same.get(name, name)] for name in self.bytes}, end

    def take(self) -> Iterator[tuple[str, np.ndarray | PackCall]]:
        """Yield and forget all constants, piece by piece: (name, array or what packs one)."""
        while self.arrays:
            name = next(iter(self.arrays))
            yield name, self.arrays.pop(name)
        while self.packings:
            packing = self.packings.popleft()
            for name, calls in packing.calls().items():
                yield from ((name, call) for call in calls)

    def drop(self) -> None:
        """Forget all constants that are not taken: they are in memory already."""
        self.arrays.clear()
        self.packings.clear()


def _may_be_places(array: np.ndarray) -> bool:
    return array.dtype.kind in "iu" and array.itemsize > 1
