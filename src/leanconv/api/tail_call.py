"""A compiled network and what NumPy computes after it, since that depends on values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from leanconv.api.fast_call import FastCall
from leanconv.api.inputs import Shape
from leanconv.graph.late import Tail
from leanconv.planner.compiled_network import CompiledNetwork


class TailCall(FastCall):
    """A compiled network whose last outputs a tail computes.

    Args:
        shapes: of the inputs.
        network: gives what the tail reads.
        tail: what runs after it.
        outputs: names of what both give, in order.
    """

    def __init__(
        self,
        shapes: tuple[Shape, ...],
        network: CompiledNetwork,
        tail: Tail,
        outputs: Sequence[str],
    ) -> None:
        super().__init__(shapes, network)
        self._tail, self._outputs = tail, outputs

    def call(self, x: object) -> None:
        """Nothing: only the general path has a tail."""

    def run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs for contiguous arrays of the right shapes and dtype."""
        values = dict(zip(self.plan.inputs, arrays, strict=True))
        values.update(zip(self.plan.outputs, super().run(arrays), strict=True))
        made = self._tail.run(values)
        return [made[name] if name in made else values[name] for name in self._outputs]

    def explain(self) -> str:
        """Say how every step is computed, with its bytes, and what makes the memory."""
        return f"{super().explain()}\n{self._tail}"
