"""Limits on the memory and time of this machine that a model file may use."""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterable, Sequence
from typing import Protocol

import numpy as np

from leanconv.errors import UnsupportedError
from leanconv.graph.ir import is_spread, owner
from leanconv.records import dataclass
from leanconv.symbolic import plain
from leanconv.units import format_bytes


@dataclass(frozen=True)
class Limits:
    """Bounds for reading a file that nobody has checked.

    Attributes:
        file_bytes: the largest model file, without external data (protobuf's own bound).
        fields: protobuf fields read in all; one takes at most a few hundred bytes of memory.
        nodes: the most nodes of a network.
        held_nodes: the most nodes of graphs that nodes hold, counted each time that such a graph
            is bound: as a branch that is taken, a loop's body, an iteration that is written out.
        metadata: the most key-value pairs that a file may say about itself.
        metadata_bytes: the most bytes that these may take together.
        fold_bytes: traffic of computing constants at load, whatever the model's size.
        fold_factor: additional traffic for each byte of the model.
        made_bytes: constants that are computed at load, there at once, and what NumPy works in.
        made_factor: additional bytes of these for each byte of the model.
        late_bytes: arrays that nodes may keep alive together that NumPy computes after the compiled
            part of a network.
        late_traffic_bytes: that these nodes may read and write in one run.
        late_nodes: the most of them in one run, each iteration of a loop counted.
        filled_bytes: constants that are one number repeated, as the file declares them, all
            together, and sparse ones as dense arrays. They take memory when they are packed, not at
            load: the published networks without weights have 36 such nodes for VGG-19's 548 MiB, in
            a file of 9 kB.
    """

    file_bytes: int = (2 << 30) - 1
    fields: int = 1_000_000
    nodes: int = 100_000
    held_nodes: int = 20_000
    metadata: int = 10_000
    metadata_bytes: int = 16 << 20
    fold_bytes: int = 64 << 20
    fold_factor: int = 8
    made_bytes: int = 48 << 20
    made_factor: int = 16
    filled_bytes: int = 1 << 30
    late_bytes: int = 1 << 30
    late_traffic_bytes: int = 64 << 30
    late_nodes: int = 250_000

    def fold_budget(self, model_bytes: int) -> int:
        """Bytes that computing constants may read and write for a model of that size."""
        return self.fold_bytes + self.fold_factor * model_bytes

    def made_budget(self, model_bytes: int) -> int:
        """Bytes that computing constants may take at once for a model of that size."""
        return self.made_bytes + self.made_factor * model_bytes


class SpentError(UnsupportedError):
    """The limit on the cost of computing constants is exceeded."""


class FoldBudget:
    """Bounds on computing constants: traffic, bytes at once, and those of filled ones.

    Args:
        allowed: bytes read and written.
        most: bytes of arrays that are there at once, and of what NumPy works in.
        filled: bytes of constants that repeat one number, which cost nothing until they are packed.
        nodes: of graphs that nodes hold, each time that they are bound.

    Attributes:
        peak_bytes: the most that arrays took at once.
    """

    def __init__(self, allowed: int, most: int, filled: int, nodes: int) -> None:
        self._nodes, self._nodes_left = nodes, nodes
        self._allowed, self._left = allowed, allowed
        self._filled, self._filled_left = filled, filled
        self._most = most
        self._bytes: dict[int, int] = {}
        self._given: frozenset[int] = frozenset()
        self._alive = self.peak_bytes = 0

    def charge(self, traffic_bytes: int) -> None:
        """Account for work that is about to be done.

        Raises:
            SpentError: the budget is spent.
        """
        self._left -= traffic_bytes
        if self._left < 0:
            raise SpentError(
                f"computing the constants of the model takes over {format_bytes(self._allowed)} of "
                "traffic; expected less for a file of its size; fold its constants before export"
            )

    def enter(self, nodes: int) -> None:
        """Account for the nodes of a graph that a node holds.

        Raises:
            SpentError: with all others they are too many.
        """
        self._nodes_left -= nodes + 1
        if self._nodes_left < 0:
            raise SpentError(
                f"the graphs that nodes hold become over {self._nodes} nodes where they are "
                "computed; expected at most that many: loops of fewer iterations; raise the limit "
                "`held_nodes` if you trust the file"
            )

    def fill(self, filled_bytes: int) -> None:
        """Account for a constant that repeats one number, or for sparse ones.

        Raises:
            SpentError: all of them together would take too many bytes.
        """
        self._filled_left -= filled_bytes
        if self._filled_left < 0:
            raise SpentError(
                "the constants that repeat one number, and sparse ones, take over "
                f"{format_bytes(self._filled)}; expected at most that many; store the weights in "
                "the file"
            )

    def expect(self, needed_bytes: int) -> None:
        """Refuse results that take too much at once before they are computed.

        Args:
            needed_bytes: of results, and of what NumPy works in.

        Raises:
            SpentError: the bytes are above the budget.
        """
        needed = self._alive + plain(needed_bytes)
        if needed > self._most:
            raise SpentError(
                f"computing the constants of the model takes {format_bytes(needed)} at once; "
                f"expected at most {format_bytes(self._most)} for a file of its size; fold its "
                "constants before export"
            )

    def alone(self, array: np.ndarray) -> np.ndarray:
        """An array that keeps no larger one in memory; at load, views cost nothing."""
        return array

    def given(self, arrays: Iterable[np.ndarray]) -> None:
        """Leave arrays out that others have and keep: what is made may be views of them."""
        self._given = frozenset(id(owner(array)) for array in arrays)

    def made(self, arrays: Sequence[np.ndarray]) -> None:
        """Account for arrays until they are freed."""
        for array in arrays:
            whole = owner(array)
            known = id(whole) in self._bytes or id(whole) in self._given or is_spread(whole)
            if whole.nbytes >= _COUNTED and not known:
                self._bytes[id(whole)] = whole.nbytes
                self._alive += whole.nbytes
                self.peak_bytes = max(self.peak_bytes, self._alive)
                weakref.finalize(whole, self._freed, id(whole)).atexit = False

    def _freed(self, number: int) -> None:
        self._alive -= self._bytes.pop(number)


class Kept(Protocol):
    """Memory that stays between runs, and that is given back where a run needs it."""

    @property
    def bytes(self) -> int:
        """Bytes of this memory."""

    def give_back(self, wanted: int) -> None:
        """Free at least as many bytes, or all."""


class RunBudget(FoldBudget):
    """Bounds on NumPy's work in a run: traffic, nodes, and the bytes that are alive at once.

    Args:
        limits: of the network.
        memory: bytes for arrays and what is kept, together; None for no limit but those above.
        kept: between runs; None for nothing.

    Attributes:
        used: keys of what this run has used of what is kept, in order.
    """

    def __init__(self, limits: Limits, memory: int | None = None, kept: Kept | None = None) -> None:
        traffic = limits.late_traffic_bytes
        super().__init__(traffic, limits.late_bytes, traffic, limits.late_nodes)
        self._memory, self._kept = memory, kept
        self.used: dict[Hashable, None] = {}

    def charge(self, traffic_bytes: int) -> None:
        """Account for work that is about to be done.

        Raises:
            UnsupportedError: the budget is spent.
        """
        self._left -= traffic_bytes
        if self._left < 0:
            raise UnsupportedError(
                f"what depends on values takes over {format_bytes(self._allowed)} of traffic in "
                "this run; expected less: fewer iterations, or smaller arrays"
            )

    def fill(self, filled_bytes: int) -> None:
        """Account for an array that repeats one number: whatever reads it may write it out."""
        self.expect(filled_bytes)

    @property
    def room(self) -> int | None:
        """Bytes that kept memory may have beside the arrays; None for no limit."""
        return None if self._memory is None else self._memory - self._alive

    def expect(self, needed_bytes: int) -> None:
        """Refuse results that take too much before they are computed.

        Args:
            needed_bytes: of results, and of what NumPy works in.

        Raises:
            UnsupportedError: the bytes are above the limit.
        """
        alive, most = self._alive + needed_bytes, self._most
        if self._memory is not None:
            most = min(most, self._memory)
            over = alive - self._memory + (self._kept.bytes if self._kept else 0)
            if self._kept and over > 0:
                self._kept.give_back(over)
        if alive > most:
            raise UnsupportedError(
                f"what depends on values takes {format_bytes(alive)} in this run; expected at "
                f"most {format_bytes(most)}: inputs that give fewer or smaller results, or a "
                "larger memory limit"
            )

    def alone(self, array: np.ndarray) -> np.ndarray:
        """The array, copied if it is a view of a larger one that it would keep in memory."""
        return array if id(owner(array)) in self._given else alone(array)


def is_large_part(array: np.ndarray, whole: np.ndarray) -> bool:
    """Return whether a view may stand for a copy, though it keeps the memory of the whole."""
    return bool(_MOST_KEPT * array.nbytes >= whole.nbytes)


_MOST_KEPT = 4  # times the bytes of a view


def alone(array: np.ndarray) -> np.ndarray:
    """The array, copied if it is a view of a larger one that it would keep in memory."""
    return array.copy() if owner(array).nbytes > max(array.nbytes, _COUNTED) else array


_COUNTED = 256  # bytes of an array that is worth counting
