"""Where every value of a lowered graph stands: the user's arrays, the arena, the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from leanconv.planner.arena import (
    Lifetime,
    assign_offsets,
    check_offsets,
    largest_live_set,
)
from leanconv.planner.lowering import LoweredGraph
from leanconv.runtime.program import Slot
from leanconv.spec.format import aligned


@dataclass(frozen=True)
class Storage:
    """The places of a network's values.

    Attributes:
        offsets: place in the arena of each value that stands there.
        slots: the user's array (inputs first, then outputs) of each value that stands in one.
        scratch: place in the arena of each call's scratch, of all threads one after the other.
        arena_bytes: size of the arena.
        peak_bytes: the most bytes that are needed at once; no arena can be smaller.
        lifetimes: the arena's buffers, scratch among them, each with the calls between which it
            lives.
        begins: the offset of each of them.
    """

    offsets: Mapping[str, int]
    slots: Mapping[str, Slot]
    scratch: tuple[int, ...]
    arena_bytes: int
    peak_bytes: int
    lifetimes: tuple[Lifetime, ...]
    begins: tuple[int, ...]

    @property
    def places(self) -> dict[str, int]:
        """The offset of every buffer."""
        return {
            buffer.name: offset for buffer, offset in zip(self.lifetimes, self.begins, strict=True)
        }

    @property
    def live_bytes(self) -> int:
        """The largest set of values alive at once."""
        return largest_live_set([b for b in self.lifetimes if not b.scratch])

    @property
    def scratch_bytes(self) -> int:
        """The most scratch of one call, of all threads together."""
        return max((b.bytes for b in self.lifetimes if b.scratch), default=0)


def place(
    lowered: LoweredGraph, threads: int = 0, wanted: Mapping[str, int] | None = None
) -> Storage:
    """Assign storage: views share it, results take over operands that die, the rest is packed.

    Args:
        lowered: the network.
        threads: how many need scratch.
        wanted: offsets by buffer, taken if they serve every buffer.
    """
    root = {name: name for name in lowered.bytes}

    def find(name: str) -> str:
        while root[name] != name:
            root[name] = root[root[name]]
            name = root[name]
        return name

    for view, of in lowered.views.items():
        if of in root:
            root[find(view)] = find(of)
    ends = [*lowered.inputs, *lowered.outputs]
    slots = {find(name): Slot(i) for i, name in enumerate(ends)}
    calls = [call for step in lowered.steps for call in step.calls]
    last: dict[str, int] = {}
    for time, call in enumerate(calls):
        for name in call.values:
            if name in root:
                last[find(name)] = time
    first: dict[str, int] = {}
    size: dict[str, int] = {}
    for name in lowered.bytes:
        size[find(name)] = max(size.get(find(name), 0), lowered.bytes[name])
    for time, call in enumerate(calls):
        result = find(call.values[-1])
        if result not in first and result not in slots:
            for index in call.in_place:
                if call.values[index] not in root:
                    continue
                operand = find(call.values[index])
                dies = last[operand] == time and operand in first
                others = [v for i, v in enumerate(call.values[:-1]) if i != index and v in root]
                alone = all(find(v) != operand for v in others)
                if dies and alone and size[result] == size[operand]:
                    root[result] = operand
                    last[operand] = last.get(result, time)
                    result = operand
                    break
        for name in call.values:
            if name in root and find(name) not in slots:
                first.setdefault(find(name), time)
    lifetimes = [
        Lifetime(name, aligned(size[name]), begin, last[name]) for name, begin in first.items()
    ]
    scratch = [aligned(call.kernel.scratch_bytes) * threads for call in calls]
    names = [_scratch_name(time, lowered) for time in range(len(calls))]
    lifetimes += [
        Lifetime(names[time], bytes_, time, time, scratch=True)
        for time, bytes_ in enumerate(scratch)
        if bytes_
    ]
    placed = None if wanted is None else check_offsets(lifetimes, wanted)
    if placed is None:
        placed = assign_offsets(lifetimes) if lifetimes else ({}, 0)
    offsets, total = placed
    return Storage(
        {name: offsets[find(name)] for name in lowered.bytes if find(name) in offsets},
        {name: slots[find(name)] for name in lowered.bytes if find(name) in slots},
        tuple(offsets.get(name, 0) for name in names),
        total,
        largest_live_set(lifetimes),
        tuple(lifetimes),
        tuple(offsets[buffer.name] for buffer in lifetimes),
    )


def _scratch_name(time: int, lowered: LoweredGraph) -> str:
    """A name that no value has, whatever the file calls its values."""
    name = f"scratch of call {time}"
    while name in lowered.bytes:
        name += "'"
    return name
