"""Who owns the large arrays between the passes and the packed weights of a plan.

Weights are in memory once: what was packed must be let go at once. Whoever has to let go owns the
arrays here and gives them up by `take`; graphs and lowered graphs are never changed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from leanconv.codegen.lowered import Packing
from leanconv.graph.ir import Graph
from leanconv.spec.format import aligned_offsets


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
        """Give the graph up: it is in memory only as long as who took it keeps it."""
        graph, self._graph = self.graph, None
        return graph


class ConstantPool:
    """The constants that a lowered graph's calls name, until they are taken.

    Args:
        constants: arrays by name.
        packings: weights that are packed when there is a place for them.

    Attributes:
        bytes: of every constant, by name; those included that are yet to be packed.
    """

    def __init__(
        self, constants: Mapping[str, np.ndarray], packings: Sequence[Packing] = ()
    ) -> None:
        self._constants, self._packings = dict(constants), deque(packings)
        packed = {name: size for packing in packings for name, size in packing.bytes.items()}
        self.bytes = {**{name: array.nbytes for name, array in constants.items()}, **packed}

    def places(self) -> tuple[dict[str, int], int]:
        """Offsets of all constants in one block, and its bytes; one array is stored once."""
        first: dict[int, str] = {}
        same = {name: first.setdefault(id(a), name) for name, a in self._constants.items()}
        stored = {n: size for n, size in self.bytes.items() if same.get(n, n) == n}
        places, end = aligned_offsets(stored)
        return {name: places[same.get(name, name)] for name in self.bytes}, end

    def take(self) -> Iterator[tuple[str, np.ndarray]]:
        """Give up all constants, piece by piece: (name, array)."""
        while self._constants:
            name = next(iter(self._constants))
            yield name, self._constants.pop(name)
        while self._packings:
            yield from self._packings.popleft().pieces()
