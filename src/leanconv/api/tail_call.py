"""A compiled network and what NumPy computes after it, since that depends on values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from leanconv.api.fast_call import FastCall, Given
from leanconv.api.segment_networks import SegmentNetworks
from leanconv.graph.convert.selection import cut
from leanconv.graph.ir import TensorType
from leanconv.graph.late import Tail
from leanconv.graph.late_stages import Stages
from leanconv.planner.compiled_network import CompiledNetwork
from leanconv.planner.network_plan import NetworkPlan
from leanconv.runtime.arrays import Lookup


class TailCall(FastCall):
    """A compiled network whose last outputs a tail computes.

    Args:
        given: what it is compiled for.
        network: gives what the tail reads.
        tail: what runs after it.
        inputs: types of what is given, by name.
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
        inputs: Mapping[str, TensorType],
        outputs: Sequence[str],
        segments: SegmentNetworks,
        room: int | None,
    ) -> None:
        super().__init__(given, network)
        self._tail, self._outputs, self._segments = tail, outputs, segments
        self._room = room
        # Where outputs are found, or the room that they are cut from, how many there are, the axis.
        places = {name: number for number, name in enumerate(network.plan.results)}
        cuts = {name: (places[room], places[n], axis) for name, room, n, axis in tail.cuts}
        self._cuts = [cuts.get(name) or (places[name], -1, 0) for name in outputs] if cuts else []
        plan = network.plan
        small = plan.late_bounded and plan.late_bytes <= tail.limits.late_bytes
        self._stages = Stages(tail, bounded=small)
        read = ((n, name) for n, name in enumerate(given.names) if name in tail.reads)
        self._late = [(n, name, Lookup(inputs[name].shape, inputs[name].dtype)) for n, name in read]
        # What the network gives, and which of it to the tail alone.
        self._made = tuple(places)
        self._hidden = [number for name, number in places.items() if name not in outputs]
        self._hides_all = len(self._hidden) == len(places)

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
        """As `FastCall`; nothing, too, where each node of the tail is bound in a run."""
        read: dict[str, np.ndarray] = {}
        for index, name, lookup in self._late:
            array: Any = arrays[index]
            if not lookup(array):
                return None
            read[name] = array
        made = self._called(arrays) if self._stages.serve or self._cuts else None
        if made is None:
            return None
        results = self._cut(made[0]) if self._cuts else self._finished(read, made[0])
        if self._hides_all and not [each for each in results if each.base is not None]:
            self._spare_outputs.append(made)  # else a user has some of them
        return results

    def _cut(self, found: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs, where all that is left to do is to cut arrays."""
        return [
            found[number] if count < 0 else cut(found[number], found[count].item(), axis)
            for number, count, axis in self._cuts
        ]

    def run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs for contiguous arrays of the right shapes and dtype."""
        found = super().run(arrays)
        read = {name: arrays[index] for index, name, _ in self._late}
        return self._cut(found) if self._cuts else self._finished(read, found)

    def _finished(
        self, read: Mapping[str, np.ndarray], found: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """The outputs, of inputs that the tail reads and of what the network gives."""
        tail, room = self._tail, self._room
        given = dict(zip(self._made, found, strict=True))
        values = {**read, **given} if read else given
        most = tail.limits.late_bytes
        most = most if room is None else min(most, room - self._segments.bytes)
        lent = found if self._hides_all else [found[number] for number in self._hidden]
        made = self._stages.run(values, most, lent)
        if made is None:
            made = tail.run(values, self._segments, room)
        return [made[name] if name in made else given[name] for name in self._outputs]
