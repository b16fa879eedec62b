"""Where every value of a lowered graph is stored: in the user's arrays or in the arena."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from leanconv.planner.arena import (
    Lifetime,
    PlacedBuffers,
    assign_offsets,
    check_offsets,
    largest_live_set,
)
from leanconv.planner.lifetimes import BufferUse, lifetimes
from leanconv.planner.views import Views
from leanconv.records import dataclass
from leanconv.runtime.program import Slot
from leanconv.spec.format import aligned


@dataclass(frozen=True)
class Storage:
    """The places of a network's values.

    Attributes:
        offsets: offset in the arena of each value that is stored there, and of each reading.
        slots: the user's array (inputs first, then outputs), and the offset there, of each value
            that is stored in one.
        scratch: place in the arena of each call's scratch, of all threads one after the other.
        arena_bytes: size of the arena.
        peak_bytes: the most bytes that are needed at once; no arena can be smaller.
        buffers: those of the arena, scratch among them, with their offsets.
    """

    offsets: Mapping[str, int]
    slots: Mapping[str, Slot]
    scratch: tuple[int, ...]
    arena_bytes: int
    peak_bytes: int
    buffers: PlacedBuffers

    @property
    def live_bytes(self) -> int:
        """The largest set of values alive at once."""
        return largest_live_set([b for b, _ in self.buffers if not b.scratch and not b.streamed])

    @property
    def scratch_bytes(self) -> int:
        """The most scratch of one call, of all threads together."""
        return max((b.bytes for b, _ in self.buffers if b.scratch), default=0)


class _Step(Protocol):
    """One operation of a lowered graph."""

    @property
    def calls(self) -> Sequence[_Call]:
        """Kernels over values."""


class _Call(Protocol):
    """One kernel over values."""

    @property
    def kernel(self) -> _Kernel:
        """The code."""

    @property
    def reads(self) -> tuple[str, ...]:
        """A value for each operand that it reads, in order; they come before the results."""

    @property
    def results(self) -> tuple[str, ...]:
        """A value for each operand that it writes."""

    @property
    def in_place(self) -> tuple[int, ...]:
        """Operands whose memory the first result may take over."""

    @property
    def alive(self) -> tuple[str, ...]:
        """Other values whose memory must be nothing else's."""


class _Kernel(Protocol):
    @property
    def scratch_bytes(self) -> int:
        """Of one thread."""


class Placeable(Protocol):
    """What storage needs to know of a lowered graph, for any device: see `LoweredGraph`."""

    @property
    def steps(self) -> Sequence[_Step]:
        """In order."""

    @property
    def bytes(self) -> Mapping[str, int]:
        """Size of every value."""

    @property
    def views(self) -> Views[str]:
        """Values that are bytes of another one."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """What the user gives."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """What the user gets."""


class _Reading(Protocol):
    """A constant that is read into the arena: see `weight_streaming.Reading`."""

    @property
    def name(self) -> str:
        """Of its buffer."""

    @property
    def bytes(self) -> int:
        """Of it."""

    @property
    def free(self) -> int:
        """The first call during which its place is its own."""

    @property
    def last(self) -> int:
        """The last one."""


def place(
    lowered: Placeable,
    threads: int = 0,
    pinned: PlacedBuffers | None = None,
    read: Sequence[_Reading] = (),
) -> Storage:
    """Assign storage: views share it, results take over operands that die, the rest is packed.

    Args:
        lowered: the network.
        threads: how many need scratch.
        pinned: buffers of a plan file, whose offsets are used if `check_offsets` accepts them.
        read: constants that each run reads into the arena.
    """
    parts = {name: lowered.views.find(name) for name in lowered.bytes}
    owner = {name: root for name, (root, _) in parts.items()}
    ends = [*lowered.inputs, *lowered.outputs]
    slots = {owner[name]: i for i, name in enumerate(ends)}
    bytes_of: dict[str, int] = {}
    for name, size in lowered.bytes.items():
        if owner[name] not in slots:
            bytes_of[owner[name]] = max(bytes_of.get(owner[name], 0), size)
    uses = _uses(lowered, owner)
    found = lifetimes(uses, bytes_of)
    owner = {name: found.owner.get(owner[name], owner[name]) for name in owner}
    values = [Lifetime(b, aligned(bytes_of[b]), t, found.last[b]) for b, t in found.first.items()]
    names = [_scratch_name(time, lowered) for time in range(len(uses))]
    scratch = [
        Lifetime(name, use.scratch_bytes * threads, time, time, scratch=True)
        for time, (name, use) in enumerate(zip(names, uses, strict=True))
        if use.scratch_bytes * threads
    ]
    streamed = [
        Lifetime(each.name, aligned(each.bytes), each.free, each.last, streamed=True)
        for each in read
    ]
    buffers = values + scratch + streamed
    placed = None
    if pinned is not None:
        placed = check_offsets(buffers, {buffer.name: offset for buffer, offset in pinned})
    if placed is None:
        placed = assign_offsets(buffers) if buffers else ({}, 0)
    offsets, total = placed
    return Storage(
        {
            name: offsets[owner[name]] + offset
            for name, (_, offset) in parts.items()
            if owner[name] in offsets
        }
        | {each.name: offsets[each.name] for each in read},
        {
            name: Slot(slots[owner[name]], offset)
            for name, (_, offset) in parts.items()
            if owner[name] in slots
        },
        tuple(offsets.get(name, 0) for name in names),
        total,
        largest_live_set(buffers),
        tuple((buffer, offsets[buffer.name]) for buffer in buffers),
    )


def _uses(lowered: Placeable, owner: Mapping[str, str]) -> list[BufferUse[str]]:
    """What each call reads and writes; values without an owner are constants.

    A result takes over memory only where both are all of a buffer.
    """
    sizes = lowered.bytes

    def is_whole(name: str) -> bool:
        return name in owner and sizes[name] == sizes[owner[name]]

    return [
        BufferUse(
            tuple(owner.get(name) for name in call.reads),
            tuple(owner[name] for name in call.results),
            tuple(i for i in call.in_place if is_whole(call.reads[i]))
            if is_whole(call.results[0])
            else (),
            aligned(call.kernel.scratch_bytes),
            tuple(owner[name] for name in call.alive),
        )
        for step in lowered.steps
        for call in step.calls
    ]


def _scratch_name(time: int, lowered: Placeable) -> str:
    """A name that no value has, whatever the file calls its values."""
    name = f"scratch of call {time}"
    while name in lowered.bytes:
        name += "'"
    return name
