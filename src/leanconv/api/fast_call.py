"""A network compiled for some input shapes, and the fast paths to call it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes import string_at
from math import prod
from typing import Generic, Protocol, TypeVar

import numpy as np

from leanconv.api.inputs import Known, Shape
from leanconv.graph.ir import TensorType
from leanconv.records import dataclass
from leanconv.runtime.arrays import Lookup
from leanconv.runtime.memory import ArenaPart, Held, Memory, Outputs
from leanconv.types import as_dtype

# Small outputs are allocated several at a time: right after a run, when the caches hold little of
# NumPy, one takes 28 us.
_MOST_SPARE, _SPARE_BYTES = 8, 64 * 1024
Made = tuple[list[np.ndarray], list[int]]  # arrays, and where they lie


@dataclass(frozen=True, eq=False)
class Given:
    """The input shapes, and the values of some inputs, that a network is compiled for.

    Attributes:
        names: of its inputs.
        shapes: of the inputs.
        known: values of those that it does not read, because they decided what it computes.
    """

    names: tuple[str, ...]
    shapes: tuple[Shape, ...]
    known: Known


class Runnable(Protocol):
    """A network in memory: planned in this process, or from a snapshot of another one's plan."""

    memory: Memory
    outputs: Outputs
    arena: ArenaPart
    blocks: Mapping[int, int]
    code_bytes: int
    shared_bytes: int

    @property
    def inputs(self) -> Mapping[str, TensorType]:
        """Types of the arrays that it reads, by name."""

    @property
    def results(self) -> Mapping[str, TensorType]:
        """Types of the arrays that it gives, by name."""

    def run(self, addresses: Sequence[int]) -> None:
        """Run on arrays at these addresses: inputs, then outputs."""


_Runs = TypeVar("_Runs", bound=Runnable)


class FastCall(Generic[_Runs]):
    """A compiled network, and fast paths to call it.

    Args:
        given: shapes and values that it is compiled for.
        network: the compiled network.
    """

    def __init__(self, given: Given, network: _Runs) -> None:
        self.given, self.network = given, network
        kinds = tuple(network.results.values())
        self._read = [n for n, name in enumerate(given.names) if name not in given.known]
        read = network.inputs.values()
        self._lookups = [Lookup(kind.shape, kind.dtype) for kind in read]
        self._pairs = list(zip(self._lookups, self._read, strict=True))
        self._makers = [network.outputs.maker(kind.shape, kind.dtype) for kind in kinds]
        self._single = len(given.names) == len(read) == len(kinds) == 1
        self._values = [
            (given.names.index(name), Lookup(array.shape, as_dtype(array.dtype)), array.tobytes())
            for name, array in given.known.items()
        ]
        self._spare_outputs: list[Made] = []
        size = sum(prod(kind.shape) * kind.dtype.bytes for kind in kinds)
        self._allocated_at_once = max(1, min(_MOST_SPARE, _SPARE_BYTES // max(1, size)))

    def is_for(self, shapes: tuple[Shape, ...], known: Known) -> bool:
        """Return whether it was compiled for these shapes, and these values of deciding inputs."""
        if self.given.shapes != shapes:
            return False
        pairs = self.given.known.items()
        return all(n in known and known[n].tobytes() == a.tobytes() for n, a in pairs)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The shapes of all inputs."""
        return self.given.shapes

    @property
    def inputs(self) -> Mapping[str, TensorType]:
        """Types of the arrays that it reads, by name."""
        return self.network.inputs

    @property
    def outputs(self) -> Mapping[str, TensorType | None]:
        """Types of the outputs by name; None where the extents follow from values in a run."""
        return self.network.results

    @property
    def used_bytes(self) -> int:
        """Bytes of weights and arena, counted as they were allocated for this or another plan."""
        network = self.network
        return network.memory.used_bytes + network.shared_bytes + network.arena.bytes

    @property
    def held(self) -> Held:
        """Code, blocks of packed weights, and its part of the arena."""
        network = self.network
        return Held(network.code_bytes, network.blocks, network.arena.bytes)

    def call(self, x: object) -> np.ndarray | None:
        """Run on one array that the kernels can read in place; None for any other."""
        start = self._lookups[0](x) if self._single else 0
        if not start:
            return None
        try:
            (y,), (address,) = self._spare_outputs.pop()
        except IndexError:
            (y,), (address,) = self._first_of_several()
        self.network.run((start, address))
        return y

    def call_all(self, arrays: Sequence[object]) -> list[np.ndarray] | None:
        """Run on arrays that the kernels can read in place; None for any others."""
        addresses = self._found(arrays)
        if addresses is None:
            return None
        results, places = self._taken()
        self.network.run((*addresses, *places))
        return results

    def _found(self, arrays: Sequence[object]) -> list[int] | None:
        """Where arrays lie that the kernels can read in place; None for any others."""
        for index, lookup, value in self._values:
            address = lookup(arrays[index])
            if not address or string_at(address, len(value)) != value:
                return None
        addresses = [lookup(arrays[index]) for lookup, index in self._pairs]
        return None if 0 in addresses else addresses

    def _taken(self) -> Made:
        """Arrays for the outputs of a run."""
        try:
            return self._spare_outputs.pop()
        except IndexError:
            return self._first_of_several()

    def run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs for contiguous arrays of the right shapes and dtype."""
        results = self.new_outputs()
        self.run_into(arrays, results)
        return results

    def run_into(self, arrays: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> None:
        """Run as `run` does, into arrays from `new_outputs`."""
        self.network.run(self._addresses(arrays, results))

    def _addresses(
        self, arrays: Sequence[np.ndarray], results: Sequence[np.ndarray] = ()
    ) -> list[int]:
        read = [arrays[index] for index in self._read]
        return [array.ctypes.data for array in (*read, *results)]

    def _first_of_several(self) -> Made:
        """New arrays for the outputs; more of them are kept for later calls."""
        first, *others = [self._placed_outputs() for _ in range(self._allocated_at_once)]
        self._spare_outputs += others
        return first

    def _placed_outputs(self) -> Made:
        made = [make() for make in self._makers]
        return [array for array, _ in made], [address for _, address in made]

    def new_outputs(self) -> list[np.ndarray]:
        """Arrays for the outputs."""
        return [make()[0] for make in self._makers]
