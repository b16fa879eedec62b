"""A compiled network and what NumPy computes after it, since that depends on values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from leanconv.api.fast_call import FastCall, Given
from leanconv.api.segment_networks import SegmentNetworks
from leanconv.graph.convert.selection import first_rows
from leanconv.graph.late import Tail
from leanconv.planner.compiled_network import CompiledNetwork
from leanconv.planner.network_plan import NetworkPlan


class TailCall(FastCall):
    """A compiled network whose last outputs a tail computes.

    Args:
        given: what it is compiled for.
        network: gives what the tail reads.
        tail: what runs after it.
        outputs: names of what both give, in order.
        segments: compiles parts of the tail.
        room: bytes that arrays and segments may take in a run; None where the plan bounds arrays,
            and where there is no memory limit.
    """

    def __init__(
        self,
        given: Given,
        network: CompiledNetwork,
        tail: Tail,
        outputs: Sequence[str],
        segments: SegmentNetworks,
        room: int | None,
    ) -> None:
        super().__init__(given, network)
        self._tail, self._outputs, self._segments = tail, outputs, segments
        self._room = room
        # Where outputs are found, or the rows of which they are the first, and how many these are.
        places = {name: number for number, name in enumerate(network.plan.outputs)}
        cuts = {name: (places[rows], places[count]) for name, rows, count in tail.cuts}
        self._cuts = [cuts.get(name) or (places[name], -1) for name in outputs] if cuts else []
        self._keeps_arrays = all(count >= 0 for _, count in self._cuts)

    @property
    def plan(self) -> NetworkPlan:
        """What runs, with the bytes of what runs have compiled until now."""
        plan, kept = self.network.plan, self._segments.bytes
        if plan.segment_bytes != kept:
            plan = self.network.plan = replace(plan, segment_bytes=kept)
        return plan

    @property
    def used_bytes(self) -> int:
        """Bytes of weights and arenas, and the most that the arrays behind them take in a run."""
        return super().used_bytes + self.network.plan.late_bytes + self._segments.bytes

    def call(self, x: object) -> None:
        """Nothing: only the general path has a tail."""

    def call_all(self, arrays: Sequence[object]) -> list[np.ndarray] | None:
        """As `FastCall`, where all that is left to do is to cut outputs; nothing elsewhere."""
        made = self._called(arrays) if self._cuts else None
        if made is None:
            return None
        found = made[0]
        results = [
            found[number] if count < 0 else first_rows(found[number], found[count])
            for number, count in self._cuts
        ]
        if self._keeps_arrays:  # else a user has some of them
            self._spare_outputs.append(made)
        return results

    def run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs for contiguous arrays of the right shapes and dtype."""
        values = dict(zip(self.given.names, arrays, strict=True))
        values.update(zip(self.plan.outputs, super().run(arrays), strict=True))
        made = self._tail.run(values, self._segments, self._room)
        return [made[name] if name in made else values[name] for name in self._outputs]
