"""Where every value of a lowered graph stands: the user's arrays, the arena, the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from leanconv.planner.arena import Lifetime, assign_offsets, largest_live_set
from leanconv.planner.lowering import LoweredGraph
from leanconv.runtime.program import Slot
from leanconv.spec.format import aligned


@dataclass(frozen=True)
class Storage:
    """The places of a network's values.

    Attributes:
        offsets: place in the arena of each value that stands there.
        slots: the user's array (inputs first, then outputs) of each value that stands in one.
        arena_bytes: size of the arena, scratch not counted.
        live_bytes: the largest set of values alive at once; no arena can be smaller.
        lifetimes: the arena's buffers, each with the calls between which it lives.
    """

    offsets: Mapping[str, int]
    slots: Mapping[str, Slot]
    arena_bytes: int
    live_bytes: int
    lifetimes: tuple[Lifetime, ...]


def place(lowered: LoweredGraph) -> Storage:
    """Assign storage: views share it, results take over operands that die, the rest is packed."""
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
                if dies and alone and size[result] <= size[operand]:
                    root[result] = operand
                    last[operand] = last.get(result, time)
                    result = operand
                    break
        for name in call.values:
            if name in root and find(name) not in slots:
                first.setdefault(find(name), time)
    lifetimes = tuple(
        Lifetime(name, aligned(size[name]), begin, last[name]) for name, begin in first.items()
    )
    offsets, total = assign_offsets(lifetimes) if lifetimes else ({}, 0)
    return Storage(
        {name: offsets[find(name)] for name in lowered.bytes if find(name) in offsets},
        {name: slots[find(name)] for name in lowered.bytes if find(name) in slots},
        total,
        largest_live_set(lifetimes),
        lifetimes,
    )
