"""A network's plan for some input shapes, and the short way to call it with one array."""

from __future__ import annotations

from math import prod

import numpy as np

from leanconv.api.inputs import Shape
from leanconv.planner.network_plan import BoundNetwork
from leanconv.runtime.arrays import Lookup
from leanconv.runtime.memory import new_array

# Small outputs are made several at a time: just after a run, when the caches hold little of NumPy,
# one takes 28 us.
_MOST_ROOMS, _ROOMS_BYTES = 8, 64 * 1024


class Bound:
    """A plan with the input shapes that it was made for, and a short way to call it.

    Args:
        shapes: of the inputs.
        network: the plan.
        dtype: of the inputs.
    """

    def __init__(self, shapes: tuple[Shape, ...], network: BoundNetwork, dtype: str) -> None:
        self.shapes, self.network = shapes, network
        kinds = tuple(network.plan.outputs.values())
        self._lookup = Lookup(shapes[0], dtype) if len(shapes) == len(kinds) == 1 else None
        self._rooms: list[tuple[np.ndarray, int]] = []
        size = sum(prod(kind.shape) * np.dtype(kind.dtype).itemsize for kind in kinds)
        self._made = max(1, min(_MOST_ROOMS, _ROOMS_BYTES // max(1, size)))

    def call(self, x: object) -> np.ndarray | None:
        """Run on one array that the kernels can read as it is; None for any other."""
        start = self._lookup(x) if self._lookup else 0
        if not start:
            return None
        try:
            y, address = self._rooms.pop()
        except IndexError:
            (y, address), *others = [self._room() for _ in range(self._made)]
            self._rooms += others
        self.network.run((start, address))
        return y

    def _room(self) -> tuple[np.ndarray, int]:
        (y,) = self.results()
        return y, y.ctypes.data

    def results(self) -> list[np.ndarray]:
        """Room for the outputs of a run."""
        outputs = self.network.plan.outputs.values()
        return [new_array(kind.shape, kind.dtype) for kind in outputs]
