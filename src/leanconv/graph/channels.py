"""Which channels of a network's values must be there, and which are one number everywhere.

A channel is an index along axis 1. Channels that only leave together, such as those that a residual
adds, are one class; an array of the numbers of its channels' classes stands for each value. Class 0
stays in any case. Values that have no such array keep all channels.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from leanconv.graph.edit import Array
from leanconv.graph.ir import Graph
from leanconv.records import dataclass

Mask = npt.NDArray[np.bool_]
Ids = npt.NDArray[np.int64]

_MOST_CHANNELS = 1 << 20  # of all values together; further values keep theirs
_BLOCKS = (16, 8, 4)  # channels of a block of float32, by the width of vectors
_ROUNDS = 4  # in which values get whole blocks
_LEAST_PART = 1 / 16  # of the largest number, of one that stands for others


@dataclass(frozen=True, eq=False)
class Known:
    """The channels of a value that are one number everywhere.

    Attributes:
        numbers: (C,), in the value's type.
        sure: which of them are known, (C,).
    """

    numbers: Array
    sure: Mask


@dataclass(frozen=True, eq=False)
class Read:
    """A convolution of one group, as it reads channels.

    Attributes:
        inputs, outputs: the classes of what it reads and gives, (C,) and (K,).
        nonzero: where filters have weights that are not 0, (K, C).
        folds: input channels whose part is one number for each output, (C,).
        stands: input channels of which one can stand for all: known ones behind padding, (C,).
        known: what is known of the input.
    """

    inputs: Ids
    outputs: Ids
    nonzero: Mask
    folds: Mask
    stands: Mask
    known: Known

    def standing(self, live: Mask) -> int:
        """The channel that stands for all of `stands`: one that stays, if its number is large."""
        sizes = np.where(self.stands, np.abs(self.known.numbers.astype(np.float64)), 0)
        staying = np.where(live, sizes, 0)
        enough = staying.max() >= sizes.max() * _LEAST_PART
        return int(np.argmax(staying if enough else sizes))


class Channels:
    """The channels of a graph's values: their classes, what is known of them, and which stay.

    Rules of `channel_rules` fill it, node by node, and then call `settle`.

    Args:
        graph: a verified graph.

    Attributes:
        types, constants: of the graph.
        classes: of each value whose channels may leave, (C,).
        known: the channels that are numbers, of values where there are any.
        reads: the convolutions of one group that read such values, by their keys.
        nonzero: where filters have taps that are not 0, (groups, outputs, inputs), by the name of
            the weights, the operator and the number of groups.
    """

    def __init__(self, graph: Graph) -> None:
        self.types, self.constants = graph.types, graph.constants
        self.classes: dict[str, Ids] = {}
        self.known: dict[str, Known] = {}
        self.reads: dict[str, Read] = {}
        self.nonzero: dict[tuple[str, str, int], Mask] = {}
        self._made: list[Ids] = []  # each array of classes once, but for inputs
        self._parents = [0]
        self._count = 0
        for name in graph.inputs:
            shape = graph.types[name].shape
            if len(shape) > 1 and isinstance(shape[1], int) and self.may_have(shape[1]):
                self.classes[name] = np.zeros(shape[1], np.int64)

    def mask(self, name: str) -> Mask | None:
        """The channels of a value that stay, (C,); None where all do."""
        classes = self.classes.get(name)
        live = None if classes is None else self._staying(classes)
        return None if live is None or live.all() else live

    # -- classes ------------------------------------------------------------------------------
    def may_have(self, channels: int) -> bool:
        """Count channels of a further value; return whether there may be so many."""
        self._count += channels
        return self._count <= _MOST_CHANNELS

    def add(self, name: str, count: int) -> Ids:
        """Give a value channels, each a class of its own."""
        first = len(self._parents)
        made = self.classes[name] = np.arange(first, first + count)
        self._parents.extend(made.tolist())
        self._made.append(made)
        return made

    def give(self, name: str, classes: Ids, numbers: Array, sure: Mask) -> None:
        """Give a value channels of classes in an order of its own, and what is known of them."""
        self.classes[name] = classes
        self._made.append(classes)
        self.know(name, numbers, sure)

    def tie(self, ones: Ids, others: Ids) -> None:
        """Let channels leave only together, pair by pair."""
        apart = ones != others
        for one, other in zip(ones[apart].tolist(), others[apart].tolist(), strict=True):
            a, b = self._root(one), self._root(other)
            self._parents[max(a, b)] = min(a, b)  # so that 0 stays a root

    def pin(self, name: str) -> None:
        """Keep all channels of a value."""
        classes = self.classes.get(name)
        if classes is not None:
            self.tie(classes, np.zeros_like(classes))

    def _root(self, number: int) -> int:
        parents = self._parents
        while parents[number] != number:
            parents[number] = parents[parents[number]]
            number = parents[number]
        return number

    # -- numbers ------------------------------------------------------------------------------
    def known_of(self, name: str, channels: int) -> Known:
        """What is known of a value of so many channels."""
        return self.known.get(name) or self.unknown(name, channels)

    def unknown(self, name: str, channels: int) -> Known:
        """Say of so many channels of a value's type that nothing is known."""
        return Known(np.zeros(channels, self.types[name].dtype.numpy), np.zeros(channels, bool))

    def know(self, name: str, numbers: Array, sure: Mask) -> None:
        """Keep the finite numbers of a value that are sure."""
        if numbers.dtype.kind == "f":
            sure = sure & np.isfinite(numbers)
        if sure.any():
            self.known[name] = Known(np.where(sure, numbers, 0).astype(numbers.dtype), sure)

    # -- which stay ---------------------------------------------------------------------------
    def settle(self) -> None:
        """Find the classes that stay: what is read, whole blocks, and one channel of each value."""
        self._roots = np.array([self._root(n) for n in range(len(self._parents))])
        self._live = np.zeros(len(self._roots), bool)
        self._live[0] = True
        self._writers: dict[int, list[str]] = defaultdict(list)
        self._done: dict[str, Mask] = {}
        for key, read in self.reads.items():
            self._done[key] = np.zeros(len(read.outputs), bool)
            for root in set(self._roots[read.outputs].tolist()):
                self._writers[root].append(key)
        self._follow(reversed(self.reads))
        for _ in range(_ROUNDS):
            filled = [self._fill(self._roots[classes]) for classes in reversed(self._made)]
            if not any(filled):
                break

    def _staying(self, classes: Ids) -> Mask:
        """Which channels of those classes stay."""
        found: Mask = self._live[self._roots[classes]]
        return found

    def _follow(self, keys: Iterator[str]) -> None:
        """Keep what convolutions read for outputs that stay."""
        queue = deque(dict.fromkeys(keys))
        waiting = set(queue)
        while queue:
            key = queue.popleft()
            waiting.remove(key)
            read, done = self.reads[key], self._done[key]
            rows = self._staying(read.outputs) & ~done
            if not rows.any():
                continue
            done |= rows
            needed = read.nonzero[rows].any(axis=0) & ~read.folds
            if (needed & read.stands).any():
                needed &= ~read.stands
                needed[read.standing(self._staying(read.inputs))] = True
            for writer in self._keep(self._roots[read.inputs[needed]]):
                if writer not in waiting:
                    waiting.add(writer)
                    queue.append(writer)

    def _keep(self, roots: Ids) -> list[str]:
        """Keep classes; return the convolutions that make some that did not stay before."""
        new = np.unique(roots[~self._live[roots]]).tolist()
        self._live[new] = True
        return [key for root in new for key in self._writers.get(root, ())]

    def _fill(self, roots: Ids) -> bool:
        """Keep more channels of a value, to whole blocks; return whether there was need."""
        count, live = len(roots), self._live[roots]
        block = next((block for block in _BLOCKS if count % block == 0), 1)
        missing = max(1, -(-int(live.sum()) // block)) * block - int(live.sum())
        if not count or missing <= 0:
            return False
        dead, first, times = np.unique(roots[~live], return_index=True, return_counts=True)
        order = np.argsort(first)
        enough = int(np.searchsorted(np.cumsum(times[order]), missing)) + 1
        self._follow(iter(self._keep(dead[order[:enough]])))
        return True
