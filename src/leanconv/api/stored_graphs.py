"""The graph of a network whose values may be stored in halves: in which, or whether at all.

What is asked for, and what a file has, is a half precision that values *may* be stored in; so it is
with a `max_error` that allows it. Halves take half the bytes, but kernels that compute in float32
convert what they read and write, so that they can be slower. The faster of both by estimate is
taken, within the limits of bytes and error, and what was asked for where both take as long; of a
plan file, what its plan has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from leanconv.errors import BudgetError, LeanConvError
from leanconv.graph.ir import Graph
from leanconv.graph.onnx_import import Model
from leanconv.graph.passes.store_in_halves import store_in_halves
from leanconv.graph.template import Templates
from leanconv.graph.verify import verify
from leanconv.types import DType

Shape = tuple[int, ...]
Known = Mapping[str, np.ndarray]
_ALIKE = 1.03  # times that are taken for alike


class StoredGraphs:
    """A network's graphs for input shapes, with values in halves where that is no slower.

    Args:
        model: what the file says.
        bound: the network for input shapes, after the passes, all floats in float32.
        halves: the half precisions that are considered.
        asked: whether halves are what is asked for, and not float32.
        compares: whether the other one is considered, too.
        time: estimated nanoseconds of a run of a graph.
        names: the values that may be stored in halves; None for all.

    Raises of `time`: `BudgetError`, where no plan keeps the limits.
    """

    def __init__(
        self,
        model: Model,
        bound: Callable[..., Graph],
        halves: Sequence[DType],
        asked: bool,
        compares: bool,
        time: Callable[[Graph], float],
        names: Collection[str] | None = None,
    ) -> None:
        self._bound, self._time, self._inputs = bound, time, model.inputs
        self._names = names
        self._asked = halves[0] if asked else None
        self._storages = (*halves, None) if compares else (self._asked,)
        self._templates = {half: Templates(model, self._stored_by(half)) for half in self._storages}
        self._decided: dict[tuple[Shape, ...], DType | None] = {}

    @property
    def templates(self) -> Sequence[Templates]:
        """Those of each way to store values."""
        return tuple(self._templates.values())

    def graph(self, shapes: Sequence[Shape], known: Known) -> Graph:
        """The graph for the shapes of all inputs, and for known values of some."""
        if len(self._storages) == 1:
            return self._templates[self._storages[0]].graph(shapes, known)
        usual = self._usual(shapes)
        if usual == tuple(shapes) or known:
            plain = self._templates[None].graph(shapes, known)
            half, graph = self._faster(plain)
            if plain.origin is None:
                return graph
        else:
            if usual not in self._decided:
                self._decided[usual] = self._faster_at(usual)
            half = self._decided[usual]
        return self._templates[half].graph(shapes, known)

    def all(self, shapes: Sequence[Shape], known: Known) -> list[Graph]:
        """The graph in each of the ways that values may be stored."""
        return [self._templates[half].graph(shapes, known) for half in self._storages]

    def _stored_by(self, half: DType | None) -> Callable[..., Graph]:
        if half is None:
            return self._bound
        return lambda *given: self._in_halves(self._bound(*given), half)

    def _in_halves(self, graph: Graph, half: DType) -> Graph:
        return verify(store_in_halves(graph, half, self._names))

    def _usual(self, shapes: Sequence[Shape]) -> tuple[Shape, ...]:
        """What is decided for shapes like these: open extents are powers of 2, from these on."""
        found = []
        for declared, shape in zip(self._inputs, shapes, strict=True):
            given = declared.shape or (None,) * len(shape)
            pairs = zip(given, shape, strict=False)
            found.append(tuple(n if isinstance(g, int) else _power_of_2(n) for g, n in pairs))
        return tuple(found)

    def _faster_at(self, shapes: tuple[Shape, ...]) -> DType | None:
        """What is faster at these shapes; what is asked for where the network takes others.

        It does not depend on which shapes are asked for first.
        """
        named = {each.name: shape for each, shape in zip(self._inputs, shapes, strict=True)}
        try:
            return self._faster(self._bound(named))[0]
        except LeanConvError:
            return self._asked

    def _faster(self, plain: Graph) -> tuple[DType | None, Graph]:
        """In which half precision the network is fastest within its limits; None: in float32.

        Returns:
            The precision, and the graph in it.
        """
        least, found = math.inf, (self._asked, plain)
        for half in self._storages:
            graph = plain if half is None else self._in_halves(plain, half)
            try:
                time = self._time(graph)
            except BudgetError:
                if half is not None and half == self._asked:
                    return half, graph  # whose limits the error that is raised names
                continue
            if half == self._asked:
                time /= _ALIKE
            if time < least:
                least, found = time, (half, graph)
        return found


def _power_of_2(extent: int) -> int:
    return 1 << max(0, extent - 1).bit_length() if extent else 0
