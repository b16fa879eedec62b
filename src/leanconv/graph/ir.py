"""The network as data: frozen nodes over named values, every shape a constant."""

from __future__ import annotations

import math
import mmap
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import chain, count
from types import MappingProxyType
from typing import Any

import numpy as np

from leanconv.records import cached_property, dataclass, field, replace
from leanconv.symbolic import Trace, Values
from leanconv.types import FLOAT32, FLOATS, HALVES, DType
from leanconv.units import type_text

Attributes = Mapping[str, Any]


@dataclass(frozen=True)
class TensorType:
    """The type of a value: `shape` (all extents known) and `dtype`."""

    shape: tuple[int, ...]
    dtype: DType

    @property
    def elements(self) -> int:
        """The number of elements; 1 for a scalar."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def bytes(self) -> int:
        """Bytes of the plain row-major array."""
        return self.elements * self.dtype.bytes

    def __str__(self) -> str:
        return type_text(self.dtype, self.shape)


def is_filled(array: np.ndarray) -> bool:
    """Return whether a constant is one number, repeated by strides of 0: it takes no memory."""
    steps = zip(array.strides, array.shape, strict=True)
    return array.size > 1 and all(stride == 0 or extent == 1 for stride, extent in steps)


class _Spread(mmap.mmap):
    """Memory of zeros, of which pages that nothing writes take none."""


_LEAST_SPREAD = 1 << 20  # bytes


def spread_zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """An array of zeros for a constant of which a file has few numbers.

    Where it is large, a page of it takes memory when something is written there, and `is_spread`
    tells it from others.

    Raises:
        ValueError: there are no arrays of that shape.
        MemoryError: there are too few addresses for it.
    """
    size = dtype.itemsize * math.prod(shape)
    if size < _LEAST_SPREAD:
        return np.zeros(shape, dtype)
    private = {"flags": mmap.MAP_PRIVATE} if hasattr(mmap, "MAP_PRIVATE") else {}
    try:
        memory = _Spread(-1, size, **private)
    except OSError as error:
        raise MemoryError(str(error)) from error
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with suppress(OSError):  # where pages are small in any case
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype).reshape(shape)


def is_spread(array: np.ndarray) -> bool:
    """Return whether a large constant lies in memory of `spread_zeros`."""
    if array.nbytes < _LEAST_SPREAD:
        return False
    base = owner(array).base
    return isinstance(base.obj if isinstance(base, memoryview) else base, _Spread)


def takes_no_memory(array: np.ndarray) -> bool:
    """Return whether a constant takes none but for a few numbers, however large it is."""
    return is_filled(array) or is_spread(array)


def in_rows(array: np.ndarray) -> np.ndarray:
    """An array in row-major order; one that repeats a number takes no memory still."""
    return array if is_filled(array) else np.require(array, requirements=["C"])


_numbers: dict[int, tuple[weakref.ref[np.ndarray], int]] = {}  # by `id`: arrays have no hash
_next_number = count(1)
_PRUNED = 4096  # entries at which those of freed arrays are looked for


def number_of(array: np.ndarray) -> int:
    """The number that names an array in keys, in whichever graphs and plans it is.

    No other array has it, ever: not even one that lies where this one was freed.
    """
    known = _numbers.get(id(array))
    if known is None or known[0]() is not array:
        if len(_numbers) % _PRUNED == _PRUNED - 1:
            for key in [key for key, (ref, _) in list(_numbers.items()) if ref() is None]:
                _numbers.pop(key, None)
        known = _numbers[id(array)] = weakref.ref(array), next(_next_number)
    return known[1]


def owner(array: np.ndarray) -> np.ndarray:
    """The array that has the memory."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


Wiring = tuple[str, tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True, eq=False)
class Node:
    """One operation.

    Attributes:
        op: name in ONNX's words, in the one normal form that `graph.ops` documents.
        inputs: names of the values it reads; `""` means an absent optional one.
        outputs: names of the values it defines.
        attributes: the constants of the operation, normalised (tuples, floats, strings).
        name: where it came from in the file, for messages and profiles.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Attributes = field(default_factory=lambda: MappingProxyType({}))
    name: str = ""

    def input(self, index: int) -> str:
        """The name of an input, `""` when it is absent."""
        return self.inputs[index] if index < len(self.inputs) else ""

    @property
    def output(self) -> str:
        """The one value that it defines; only for operations that have one output."""
        assert len(self.outputs) == 1, f"node {self.name!r} ({self.op}) defines {self.outputs}"
        return self.outputs[0]

    @property
    def key(self) -> str:
        """The node's name in a graph, in plans and in reports: its first output."""
        return self.outputs[0]

    @property
    def wiring(self) -> Wiring:
        """The operation, its inputs and its outputs."""
        return self.op, self.inputs, self.outputs


@dataclass(frozen=True, eq=False)
class Origin:
    """A graph with symbols, from which others were filled in with numbers.

    Attributes:
        positions: of its nodes, by their wiring.
        values: of the expressions in it, each once.
        symbolic: makes the graph with symbols of a trace, the variables `v` of these values.
        memo: results that hold for all graphs filled in from it.
        extents: the open extents of the inputs, each with its axis.
        at: the graph for others in place of `extents`; None where it does not hold for them.
        is_whole: whether the graph has all its nodes as they were filled in; see `Graph.edited`.
    """

    positions: Mapping[Wiring, int]
    values: Values
    symbolic: Callable[[Trace], Graph]
    memo: dict[Any, Any]
    extents: tuple[tuple[int, int], ...] = ()
    at: Callable[[Values], Graph | None] = lambda _: None
    is_whole: bool = True


Cut = tuple[str, str, str, int]  # names: of a result, its room, how many there are; along an axis


@dataclass(frozen=True, eq=False)
class Graph:
    """A network whose nodes are in an order in which they can run.

    Attributes:
        inputs, outputs: names of the values that the user gives and gets.
        nodes: in topological order; each value is defined once.
        types: the type of every value: inputs, constants and node outputs.
        constants: arrays known at load: weights and folded values (read-only arrays, row-major
            unless they are `is_filled`).
        open_axes: the axes of each value whose extents are others for other shapes of the inputs,
            where these are open and the network was bound with symbols for them.
        origin: the template it was filled in from then.
        from_sizes: bound with symbols, the graph that computes its last inputs, which follow from
            sizes alone; filled in, they are constants.
        late: the numbers of the file's nodes that are no part of it, since they compute with
            extents or constants that are known when it has run, and why; "" where they read what
            another one of them gives. What they read, it gives as further outputs.
        cuts: of those of them that it computes with room for all, what is cut of each result.
        dropped: channels of convolutions that `passes.drop_channels` has left out.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    types: Mapping[str, TensorType]
    constants: Mapping[str, np.ndarray]
    open_axes: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))
    origin: Origin | None = None
    from_sizes: Graph | None = None
    late: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))
    cuts: Mapping[int, tuple[Cut, ...]] = field(default_factory=lambda: MappingProxyType({}))
    dropped: int = 0

    @cached_property
    def dtype(self) -> DType:
        """The float type that is computed in: that most nodes give, or else the first input has.

        Halves are computed in float32.

        Values of it may be in blocks of channels.
        """
        given = Counter(self.types[node.key].dtype for node in self.nodes)
        given[FLOAT32] += sum(given.pop(kind, 0) for kind in HALVES)
        computed = (kind for kind, count in given.most_common() if count)
        kinds = chain(computed, (self.types[name].dtype for name in self.inputs))
        return next((kind for kind in kinds if kind in FLOATS), FLOAT32)

    @cached_property
    def coarsest(self) -> DType:
        """The least precise float type that a node gives: errors are counted in its roundoff."""
        given = {self.types[node.key].dtype for node in self.nodes}
        floats = sorted(kind for kind in given if kind.is_float)
        return max(floats, key=lambda kind: kind.roundoff, default=self.dtype)

    def edited(self, **changes: Any) -> Graph:
        """The graph with other nodes, and all else that changes with them."""
        if self.origin is not None:
            changes["origin"] = replace(self.origin, is_whole=False)
        return replace(self, **changes)

    def producer(self) -> dict[str, Node]:
        """Map each value that a node defines to that node."""
        return {out: node for node in self.nodes for out in node.outputs}

    def users(self) -> dict[str, list[Node]]:
        """Map each value to the nodes that read it, in order, once per use."""
        result: dict[str, list[Node]] = {name: [] for name in self.types}
        for node in self.nodes:
            for name in node.inputs:
                if name:
                    result[name].append(node)
        return result
