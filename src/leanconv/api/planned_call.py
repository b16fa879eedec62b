"""Calls of a network that was planned in this process, with its plan, and with what is late."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from leanconv.api.fast_call import FastCall, Given, Made
from leanconv.api.inputs import Shape
from leanconv.api.segment_networks import SegmentNetworks
from leanconv.graph.convert.selection import LEAST_VIEW, cut, cut_shape
from leanconv.graph.data_dependent import Tail
from leanconv.graph.data_dependent_stages import Stages
from leanconv.graph.ir import TensorType
from leanconv.planner.compiled_network import CompiledNetwork
from leanconv.planner.explain import explain_network, summary
from leanconv.planner.network_plan import NetworkPlan
from leanconv.records import replace
from leanconv.runtime.arrays import Lookup
from leanconv.runtime.memory import Placed

_Maker = Callable[[Shape], Placed]
_NONE = np.empty(0, np.uint8), 0  # where an array is made in a run


class PlannedCall(FastCall[CompiledNetwork]):
    """A compiled network, fast paths to call it, and what its plan says."""

    @property
    def planned(self) -> PlannedCall:
        """Itself."""
        return self

    @property
    def plan(self) -> NetworkPlan:
        """The plan of the compiled network."""
        return self.network.plan

    @property
    def outputs(self) -> Mapping[str, TensorType | None]:
        """Types of the outputs by name; None where the extents follow from values in a run."""
        return self.plan.outputs

    @property
    def memory_bytes(self) -> int:
        """Bytes that its plan says that runs need besides the caller's arrays."""
        return self.plan.memory_bytes

    def time_steps(self, arrays: Sequence[np.ndarray], repeats: int) -> list[list[int]]:
        """Run step by step: for each step the nanoseconds of every repeat."""
        results = self.new_outputs()  # a name, so that they live until all runs are done
        return self.network.time_steps(self._addresses(arrays, results), repeats)

    def step_estimates(self) -> tuple[int, ...]:
        """For each step the nanoseconds that the plan predicts."""
        return self.plan.step_estimates()

    def explain(self) -> str:
        """Say how every step is computed, with its bytes, and what makes the memory."""
        return summary(self.plan, self.network.decided)

    def report(self, front: bool) -> dict[str, Any]:
        """Say of every layer which candidates there were and why all but one lost, as JSON."""
        return explain_network(self.plan, self.network.decided, front)


class TailCall(PlannedCall):
    """A compiled network whose last outputs a tail computes.

    Args:
        given: shapes and values that it is compiled for.
        network: gives what the tail reads.
        tail: nodes that run after the network.
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
        self._counted: dict[int, tuple[_Maker, Shape, int, int]] = {}
        self._before: dict[int, list[int]] = {}
        self._make_when_counted()
        plan = network.plan
        small = plan.late_bounded and plan.late_bytes <= tail.limits.late_bytes
        self._stages = Stages(tail, bounded=small)
        read = ((n, name) for n, name in enumerate(given.names) if name in tail.reads)
        self._late = [(n, name, Lookup(inputs[name].shape, inputs[name].dtype)) for n, name in read]
        # What the network gives, and which of it to the tail alone.
        self._made = tuple(places)
        self._hidden = [number for name, number in places.items() if name not in outputs]
        self._hides_all = len(self._hidden) == len(places)

    def _make_when_counted(self) -> None:
        """Let large results be made in a run once they are counted, so that nothing is cut of them.

        `_counted` has, by number, what makes one, the shape of its room, the number of the result
        that says how many there are, and the axis; `_before` their numbers by stage.
        """
        network = self.network
        kinds, rooms = list(network.results.values()), [room for room, _, _ in self._cuts]
        for output, (room, count, axis) in enumerate(self._cuts):
            kind = kinds[room]
            if count < 0 or kind.bytes < LEAST_VIEW or rooms.count(room) > 1:
                continue
            measure, stage = network.sized.get(room, (-1, 0))
            if measure == count:
                make = network.outputs.maker_of_any(len(kind.shape), kind.dtype)
                self._counted[room] = make, kind.shape, count, axis
                self._before.setdefault(stage, []).append(room)
                self._cuts[output] = room, -1, axis
        self._may_lend = not self._cuts or any(count >= 0 for _, count, _ in self._cuts)

    @property
    def plan(self) -> NetworkPlan:
        """The network's plan, with the bytes of the segments that runs have compiled until now."""
        plan, kept = self.network.plan, self._segments.bytes
        if plan.segment_bytes != kept:
            plan = self.network.plan = replace(plan, segment_bytes=kept)
        return plan

    @property
    def used_bytes(self) -> int:
        """Bytes of weights and arenas, and the most that the arrays behind them take in a run."""
        return super().used_bytes + self.network.plan.late_bytes + self._segments.bytes

    def call(self, x: object) -> None:
        """Return None: only the general path has a tail."""

    def call_all(self, arrays: Sequence[object]) -> list[np.ndarray] | None:
        """Run as a `FastCall` does; None, too, where each node of the tail is bound in a run."""
        read: dict[str, np.ndarray] = {}
        for index, name, lookup in self._late:
            array: Any = arrays[index]
            if not lookup(array):
                return None
            read[name] = array
        addresses = self._found(arrays) if self._stages.serve or self._cuts else None
        if addresses is None:
            return None
        made = self._taken()
        found = self._filled(addresses, made)
        results = self._cut(found) if self._cuts else self._finished(read, found)
        if self._hides_all and not (self._may_lend and any(map(_is_view, results))):
            self._spare_outputs.append(made)  # else a user has some of them
        return results

    def _placed_outputs(self) -> Made:
        made = [make() if n not in self._counted else _NONE for n, make in enumerate(self._makers)]
        return [array for array, _ in made], [address for _, address in made]

    def _filled(self, addresses: Sequence[int], made: Made) -> list[np.ndarray]:
        """Run the network on arrays at addresses.

        Args:
            addresses: of what it reads.
            made: arrays for its results, and where these lie.

        Returns:
            The results; of those that are made in a run what is found, and no more.
        """
        network, (results, places) = self.network, made
        if not self._counted:
            network.run((*addresses, *places))
            return results
        found, first = results.copy(), len(addresses)

        def sized(stage: int) -> list[tuple[int, int]]:
            placed = []
            for number in self._before.get(stage, ()):
                make, room, count, axis = self._counted[number]
                found[number], address = make(cut_shape(room, results[count].item(), axis))
                placed.append((first + number, address))
            return placed

        network.run((*addresses, *places), sized)
        return found

    def _cut(self, found: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs, where all that is left to do is to cut arrays."""
        return [
            found[number] if count < 0 else cut(found[number], found[count].item(), axis)
            for number, count, axis in self._cuts
        ]

    def run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs for contiguous arrays of the right shapes and dtype."""
        found = self._filled(self._addresses(arrays), self._placed_outputs())
        read = {name: arrays[index] for index, name, _ in self._late}
        return self._cut(found) if self._cuts else self._finished(read, found)

    def _finished(
        self, read: Mapping[str, np.ndarray], found: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """Compute the outputs of inputs that the tail reads and of the network's outputs."""
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


def _is_view(array: np.ndarray) -> bool:
    return array.base is not None
