"""Tasks of Dask's workers: a network, sent by its model and options and made once in each process,
and windows, put together from the blocks of Dask arrays that they touch.
"""

from __future__ import annotations

import hashlib
import pickle
import sys
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import accumulate, product
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from leanconv.api.cpu_backend import CpuBackend
from leanconv.api.inputs import InputSpec
from leanconv.api.network import Network
from leanconv.api.tile_arrays import read
from leanconv.api.tile_backend import tile_backend
from leanconv.errors import SpecError, UnsupportedError
from leanconv.graph.network_inputs import Names
from leanconv.planner.decisions import Decision
from leanconv.planner.image_tiles.windows import Index
from leanconv.records import dataclass
from leanconv.runtime.calibration import planning_target
from leanconv.runtime.locks import Lock

_MOST_KEPT = 2  # networks that a process keeps for the next graph of tasks
_living: WeakValueDictionary[str, WorkerNetwork] = WeakValueDictionary()
_kept: deque[WorkerNetwork] = deque(maxlen=_MOST_KEPT)
_lock = Lock("the list of networks for Dask")
Key = tuple[Any, ...]
"""Of a task, or of a block of a Dask array."""


class WorkerNetwork:
    """A network that is pickled as its recipe, and of which each process makes one.

    Copies that come to a process where there is one already are that one: its tasks share the
    packed weights and the arena, and take turns.

    Args:
        key: of all that decides what is computed.
        backend, name: of the network, which is planned in each process.
        threads: that take part; None for as many as the worker's Dask threads are.
        machine: the facts of the sender's CPU that decide the bits.
    """

    def __init__(
        self,
        key: str,
        backend: CpuBackend,
        name: str,
        threads: int | None,
        machine: tuple[str, int],
    ) -> None:
        self._sent = key, backend, name, threads, machine
        self._lock = Lock("the making of a network for Dask")
        self._network: Network | None = None

    @property
    def key(self) -> str:
        """A digest of all that decides what is computed."""
        return self._sent[0]

    def __reduce__(self) -> tuple[Any, ...]:
        return _known, self._sent

    def __dask_tokenize__(self) -> str:
        return self.key

    def run(self, arrays: Any) -> dict[str, Any]:
        """The outputs by name, for all inputs by name.

        Raises:
            UnsupportedError: this machine would give other bits.
        """
        return self._made().run(arrays)

    def run_on(self, x: Any) -> dict[str, Any]:
        """The outputs by name, for the only input by itself, or for all by name."""
        net = self._made()
        names = Names(tuple(each.name for each in net.inputs), ())
        return net.run(dict(zip(names.inputs, names.arrays(x), strict=True)))

    def _made(self) -> Network:
        with self._lock.held:
            if self._network is None:
                self._network = self._make()
        return self._network

    def _make(self) -> Network:
        _, backend, name, threads, machine = self._sent
        if machine != _machine():
            raise UnsupportedError(
                f"the network was planned for {_text(machine)}, and this worker has "
                f"{_text(_machine())}, whose results differ by rounding; plan for a CPU that all "
                "workers are, or can stand for: LEANCONV_TARGET=haswell, for one, in the "
                "environment of the workers and of what plans"
            )
        return Network(backend.with_threads(threads or _own_threads(backend)), name)


def worker_network(net: Network) -> WorkerNetwork:
    """Make a network to be sent, which plans by itself, with the threads that it has here.

    Raises:
        SpecError: net is no network for the CPU.
    """
    if not isinstance(net, Network) or not isinstance(net.backend, CpuBackend):
        raise SpecError(f"net is {net!r}; expected a network for the CPU, from leanconv.load")
    _, (backend, name) = net.__reduce__()
    return _sent(backend, name, net.backend.threads)


def worker_tiles(
    net: Network, decisions: tuple[Decision, ...], threads: int | None
) -> WorkerNetwork:
    """Make a network to be sent whose windows are computed as a plan says.

    Args:
        net: the network.
        decisions: of the plan.
        threads: see `WorkerNetwork`.
    """
    return _sent(tile_backend(net).pinning(decisions), "tiles", threads)


def _sent(backend: CpuBackend, name: str, threads: int | None) -> WorkerNetwork:
    sent = backend, name, threads, _machine()
    return _known(_digest(sent), *sent)


def _known(key: str, *sent: Any) -> WorkerNetwork:
    """The network of this process, made if there is none."""
    with _lock.held:
        found = _living.get(key)
        if found is None:
            found = _living[key] = WorkerNetwork(key, *sent)
        if found not in _kept:
            _kept.append(found)
        return found


def _digest(what: Sequence[Any]) -> str:
    """A digest of objects, of whose arrays no copy is made."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(what, 5, buffer_callback=buffers.append)
    digest = hashlib.sha256(head)
    for each in buffers:
        digest.update(each.raw())
    return digest.hexdigest()[:32]


def _machine() -> tuple[str, int]:
    """Return what decides the bits of a choice: the instruction set, and a vector's bytes."""
    target = planning_target()
    return target.isa, target.vector_bytes


def _text(machine: tuple[str, int]) -> str:
    isa, size = machine
    return f"{isa} with vectors of {size} bytes"


def _own_threads(backend: CpuBackend) -> int:
    """Return the threads of this process's Dask worker; outside one, the network's own."""
    distributed = sys.modules.get("distributed")
    if distributed is not None:
        try:
            return int(distributed.get_worker().state.nthreads)
        except ValueError:  # no worker runs this
            pass
    return backend.threads


@dataclass(frozen=True, eq=False)
class BlocksPart:
    """A part that is put together from blocks.

    Attributes:
        shape: of the part.
        dtype: that the network takes.
        places: for each block its slices in the part, and the slices of the block that go there.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    places: tuple[tuple[Index, Index], ...]

    def array(self, given: Sequence[Any]) -> np.ndarray:
        """The part, from the blocks in the order of `places`."""
        if len(given) == 1:  # often: its own window, read in place where it fits
            return np.ascontiguousarray(np.asarray(given[0])[self.places[0][1]], self.dtype)
        part = np.empty(self.shape, self.dtype)
        for block, (to, index) in zip(given, self.places, strict=True):
            part[to] = np.asarray(block)[index]
        return part


@dataclass(frozen=True, eq=False)
class StoredPart:
    """A part that the worker itself reads of an array that it can open.

    Attributes:
        index: of the array.
        spec: of the input.
    """

    index: Index
    spec: InputSpec

    def array(self, given: Any) -> np.ndarray:
        """The part, from the array."""
        return read(given, self.index, self.spec)


@dataclass(frozen=True, eq=False)
class Window:
    """One window as a task has it.

    Attributes:
        inputs: names and parts.
        outputs: names, and the slices of each result that are right and this window's own.
    """

    inputs: tuple[tuple[str, BlocksPart | StoredPart], ...]
    outputs: tuple[tuple[str, Index], ...]

    def run(self, network: WorkerNetwork, given: Sequence[Any]) -> list[np.ndarray]:
        """Compute all outputs, cut to this window's part."""
        pairs = zip(self.inputs, given, strict=True)
        found = network.run({name: part.array(each) for (name, part), each in pairs})
        return [np.ascontiguousarray(found[name][index]) for name, index in self.outputs]

    def run_of_one(self, network: WorkerNetwork, given: Sequence[Any]) -> np.ndarray:
        """The output of a network that has one output."""
        return self.run(network, given)[0]


class Blocks:
    """The blocks of a Dask array, found by what they hold.

    Args:
        name: of the array.
        chunks: the extents of its blocks, axis by axis.
        dtype: that the network takes.
    """

    def __init__(self, name: str, chunks: tuple[tuple[int, ...], ...], dtype: Any) -> None:
        self._name, self._dtype = name, np.dtype(dtype)
        self._ends = [list(accumulate(each)) for each in chunks]

    def part(self, index: Index) -> tuple[BlocksPart, list[Key]]:
        """Return the part at an index as put together from blocks, and the keys of these."""
        axes = [list(_pieces(each, ends)) for each, ends in zip(index, self._ends, strict=True)]
        chosen = list(product(*axes))
        keys = [(self._name, *(number for number, _, _ in pieces)) for pieces in chosen]
        places = tuple(
            (tuple(to for _, to, _ in pieces), tuple(own for _, _, own in pieces))
            for pieces in chosen
        )
        shape = tuple(each.stop - each.start for each in index)
        return BlocksPart(shape, self._dtype, places), keys


def _pieces(wanted: slice, ends: Sequence[int]) -> list[tuple[int, slice, slice]]:
    """The blocks along one axis that a slice touches: number, place in the slice, own indices."""
    found = []
    number = bisect_right(ends, wanted.start)
    while number < len(ends):
        begin = ends[number - 1] if number else 0
        if begin >= wanted.stop:
            break
        first, end = max(begin, wanted.start), min(ends[number], wanted.stop)
        if first < end:
            place = slice(first - wanted.start, end - wanted.start)
            found.append((number, place, slice(first - begin, end - begin)))
        number += 1
    return found
