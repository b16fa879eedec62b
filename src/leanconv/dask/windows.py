"""What a task computes: a window, put together from the blocks of Dask arrays that it touches."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, product
from typing import Any, Protocol

import numpy as np

from leanconv.api.inputs import InputSpec
from leanconv.api.tile_arrays import read
from leanconv.dask.workers import WorkerNetwork
from leanconv.planner.tiles.windows import Index
from leanconv.records import dataclass

Key = tuple[Any, ...]
"""Of a task, or of a block of a Dask array."""


class Part(Protocol):
    """How a window's part of one input comes from what a task is given for it."""

    def array(self, given: Any) -> np.ndarray: ...


@dataclass(frozen=True, eq=False)
class BlocksPart:
    """A part that is put together from blocks.

    Attributes:
        shape: of the part.
        dtype: that the network takes.
        places: of each block, where it lies in the part, and what of it does.
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
        outputs: names, and what of each result is right and this window's own.
    """

    inputs: tuple[tuple[str, Part], ...]
    outputs: tuple[tuple[str, Index], ...]

    def run(self, network: WorkerNetwork, given: Sequence[Any]) -> list[np.ndarray]:
        """All outputs, cut to what is this window's."""
        pairs = zip(self.inputs, given, strict=True)
        found = network.run({name: part.array(each) for (name, part), each in pairs})
        return [np.ascontiguousarray(found[name][index]) for name, index in self.outputs]


def run_window(window: Window, network: WorkerNetwork, given: Sequence[Any]) -> list[np.ndarray]:
    """The task of a window: all its outputs."""
    return window.run(network, given)


def run_window_of_one(window: Window, network: WorkerNetwork, given: Sequence[Any]) -> np.ndarray:
    """The task of a window of a network of one output."""
    return window.run(network, given)[0]


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
        """How a part comes from blocks, and the keys of these."""
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
