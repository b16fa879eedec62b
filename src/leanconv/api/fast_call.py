"""A network compiled for some input shapes, and the fast path to call it with one array."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from leanconv.api.inputs import Shape
from leanconv.planner.compiled_network import CompiledNetwork
from leanconv.planner.explain import explain_network, summary
from leanconv.planner.network_plan import NetworkPlan
from leanconv.runtime.arrays import Lookup
from leanconv.runtime.memory import Held, new_array

# Small outputs are allocated several at a time: right after a run, when the caches hold little of
# NumPy, one takes 28 us.
_MOST_SPARE, _SPARE_BYTES = 8, 64 * 1024


class FastCall:
    """A compiled network with its input shapes, and a fast path to call it.

    Args:
        shapes: of the inputs.
        network: the compiled network.
    """

    def __init__(self, shapes: tuple[Shape, ...], network: CompiledNetwork) -> None:
        self.shapes, self.network = shapes, network
        kinds = tuple(network.plan.outputs.values())
        given = tuple(network.plan.inputs.values())
        single = len(given) == len(kinds) == 1
        self._lookup = Lookup(given[0].shape, given[0].dtype) if single else None
        self._spare_outputs: list[tuple[np.ndarray, int]] = []
        size = sum(prod(kind.shape) * kind.dtype.bytes for kind in kinds)
        self._allocated_at_once = max(1, min(_MOST_SPARE, _SPARE_BYTES // max(1, size)))

    @property
    def plan(self) -> NetworkPlan:
        """What runs."""
        return self.network.plan

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
        start = self._lookup(x) if self._lookup else 0
        if not start:
            return None
        try:
            y, address = self._spare_outputs.pop()
        except IndexError:
            (y, address), *others = [self._new_output() for _ in range(self._allocated_at_once)]
            self._spare_outputs += others
        self.network.run((start, address))
        return y

    def run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs for contiguous arrays of the right shapes and dtype."""
        results = self._new_outputs()
        self.network.run([array.ctypes.data for array in (*arrays, *results)])
        return results

    def time_steps(self, arrays: Sequence[np.ndarray], repeats: int) -> list[list[int]]:
        """Run step by step: for each step the nanoseconds of every repeat."""
        results = self._new_outputs()  # a name, so that they live until all runs are done
        return self.network.time_steps(
            [array.ctypes.data for array in (*arrays, *results)], repeats
        )

    def step_estimates(self) -> tuple[int, ...]:
        """For each step the nanoseconds that the plan predicts."""
        return self.plan.step_estimates()

    def explain(self) -> str:
        """Say how every step is computed, with its bytes, and what makes the memory."""
        return summary(self.plan)

    def report(self, front: bool) -> dict[str, Any]:
        """Say of every layer which candidates there were and why all but one lost, as JSON."""
        return explain_network(self.plan, front)

    def _new_output(self) -> tuple[np.ndarray, int]:
        (y,) = self._new_outputs()
        return y, y.ctypes.data

    def _new_outputs(self) -> list[np.ndarray]:
        outputs = self.network.plan.outputs.values()
        return [new_array(kind.shape, kind.dtype) for kind in outputs]
