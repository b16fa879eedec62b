"""Offsets of buffers in one arena: those that live at once do not overlap.

A result takes over the memory of an operand that dies at the same call, where the kernel allows it:
the operand must be no array of the user's, of the result's size, and read by nothing else there.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Generic, TypeVar

from leanconv.records import dataclass, field
from leanconv.spec.format import ALIGNMENT

_TRIES = 300
_PROMOTIONS = 10  # orders after a shuffled one, each from what did not fit in the one before
_COMPARISONS = 20_000_000  # of buffers in all tries: a few seconds at most


@dataclass(frozen=True)
class Lifetime:
    """A buffer: its size, and the first and last call during which it holds something.

    `scratch` says that it holds no value, but what a call's threads work in; `streamed` that it
    holds weights that each run reads from a file.
    """

    name: str
    bytes: int
    first: int
    last: int
    scratch: bool = False
    streamed: bool = False


PlacedBuffers = tuple[tuple[Lifetime, int], ...]  # buffers of an arena, each with its offset


def largest_live_set(lifetimes: Sequence[Lifetime]) -> int:
    """Bytes alive at once, at most: no arena can be smaller."""
    events: dict[int, int] = {}
    for one in lifetimes:
        events[one.first] = events.get(one.first, 0) + one.bytes
        events[one.last + 1] = events.get(one.last + 1, 0) - one.bytes
    most = alive = 0
    for time in sorted(events):
        alive += events[time]
        most = max(most, alive)
    return most


def assign_offsets(lifetimes: Sequence[Lifetime]) -> tuple[dict[str, int], int]:
    """Place buffers in an arena.

    Greedy by size, then by other orders until the largest live set is reached (it need not be
    reachable): each time those that ended above it come first in the next order, and where that
    comes to nothing by sizes that are shuffled, the same way every time. The buffers that did not
    fit are the ones to place early (Joslin and Clements, "Squeaky wheel" optimization, JAIR 1999).

    Returns:
        The offset of each buffer, and the arena's bytes.
    """
    bound, sizes = largest_live_set(lifetimes), [b.bytes for b in lifetimes]
    beside, numbers = _living_together(lifetimes), range(len(lifetimes))
    spans = [(b.first, b.last) for b in lifetimes]
    orders = [
        sorted(numbers, key=lambda i: (-sizes[i], spans[i][0])),
        sorted(numbers, key=lambda i: (spans[i][0] - spans[i][1], -sizes[i])),
        sorted(numbers, key=lambda i: (spans[i][0], -sizes[i])),
    ]
    best: tuple[list[int], int] | None = None
    shuffler = random.Random(0)
    tries = min(_TRIES, len(orders) + _COMPARISONS // max(1, len(lifetimes)) ** 2)
    promoted = orders[0]
    for attempt in range(tries):
        if attempt < len(orders):
            order = orders[attempt]
        elif attempt % _PROMOTIONS:
            order = promoted
        else:
            order = sorted(numbers, key=lambda i: -sizes[i] * shuffler.uniform(0.5, 1.5))
        offsets, end = _place(order, sizes, beside)
        if best is None or end < best[1]:
            best = offsets, end
        if best[1] == bound:
            break
        if attempt == 0 or attempt >= len(orders):
            above = [offset + size > bound for offset, size in zip(offsets, sizes, strict=True)]
            promoted = [i for i in order if above[i]] + [i for i in order if not above[i]]
    assert best is not None
    return {b.name: offset for b, offset in zip(lifetimes, best[0], strict=True)}, best[1]


def check_offsets(
    lifetimes: Sequence[Lifetime], offsets: Mapping[str, int]
) -> tuple[dict[str, int], int] | None:
    """Offsets from elsewhere with the arena's bytes; None if they do not fit these buffers.

    They are if each buffer has one, on a cache line, no two that live at once overlap, and the
    arena is no larger than all buffers side by side.
    """
    if set(offsets) != {b.name for b in lifetimes}:
        return None
    if any(offset < 0 or offset % ALIGNMENT for offset in offsets.values()):
        return None
    opens = sorted(lifetimes, key=lambda b: b.first)
    alive: list[Lifetime] = []
    for buffer in opens:
        alive = [other for other in alive if other.last >= buffer.first]
        begin, end = offsets[buffer.name], offsets[buffer.name] + buffer.bytes
        if any(offsets[o.name] < end and begin < offsets[o.name] + o.bytes for o in alive):
            return None
        alive.append(buffer)
    end = max((offsets[b.name] + b.bytes for b in lifetimes), default=0)
    return (dict(offsets), end) if end <= sum(b.bytes for b in lifetimes) else None


def _living_together(lifetimes: Sequence[Lifetime]) -> list[list[int]]:
    """For each buffer, by its number, those that live at the same time."""
    beside: list[list[int]] = [[] for _ in lifetimes]
    alive: list[int] = []
    for number in sorted(range(len(lifetimes)), key=lambda i: lifetimes[i].first):
        first = lifetimes[number].first
        alive = [other for other in alive if lifetimes[other].last >= first]
        for other in alive:
            beside[other].append(number)
        beside[number] += alive
        alive.append(number)
    return beside


def _place(
    order: Sequence[int], sizes: Sequence[int], beside: Sequence[Sequence[int]]
) -> tuple[list[int], int]:
    """Give each buffer in turn the lowest gap among those that live at the same time."""
    offsets, end = [0] * len(sizes), 0
    busy: list[list[tuple[int, int]]] = [[] for _ in sizes]
    for number in order:
        place, size = 0, sizes[number]
        for start, stop in sorted(busy[number]):
            if place + size <= start:
                break
            place = max(place, stop)
        offsets[number] = place
        end = max(end, place + size)
        for other in beside[number]:
            busy[other].append((place, place + size))
    return offsets, end


# -- lifetimes, from the calls that use buffers --------------------------------------------------
Buffer = TypeVar("Buffer", bound=Hashable)


@dataclass(frozen=True)
class BufferUse(Generic[Buffer]):
    """The buffers that one call reads, writes and works in.

    Attributes:
        reads: in the order of its operands, None for constants.
        results: the buffers that it writes, one or more.
        in_place: positions in `reads` whose memory the first result may take over.
        scratch_bytes: of one thread.
        alive: others that hold something during the call.
    """

    reads: tuple[Buffer | None, ...]
    results: tuple[Buffer, ...]
    in_place: tuple[int, ...]
    scratch_bytes: int
    alive: tuple[Buffer, ...] = ()

    @property
    def buffers(self) -> tuple[Buffer | None, ...]:
        """All buffers of the call."""
        return (*self.reads, *self.results, *self.alive)


@dataclass
class Lifetimes(Generic[Buffer]):
    """The result of `lifetimes`.

    Attributes:
        first, last: call at which each buffer first and last holds something, in order of `first`;
            those that took over another's memory are counted as that one.
        owner: of each buffer that took over memory, the one that it belongs to.
    """

    first: dict[Buffer, int] = field(default_factory=dict)
    last: dict[Buffer, int] = field(default_factory=dict)
    owner: dict[Buffer, Buffer] = field(default_factory=dict)


def lifetimes(
    uses: Sequence[BufferUse[Buffer]],
    bytes_of: Mapping[Buffer, int],
    before: Collection[Buffer] = (),
    after: Collection[Buffer] = (),
) -> Lifetimes[Buffer]:
    """Follow the calls: which memory each result takes, and from when to when it is needed.

    Args:
        uses: of each call, in the order in which they run.
        bytes_of: size of every buffer but the user's arrays.
        before: buffers that hold something when the first call begins.
        after: buffers that are read after the last call.
    """
    found: Lifetimes[Buffer] = Lifetimes({buffer: -1 for buffer in before if buffer in bytes_of})
    first, last, owner = found.first, found.last, found.owner
    for time, use in enumerate(uses):
        last.update((buffer, time) for buffer in use.buffers if buffer is not None)
    last.update(dict.fromkeys(after, len(uses)))
    for time, use in enumerate(uses):
        result = owner.get(use.results[0], use.results[0])
        if result in bytes_of and result not in first:
            operand = _dying_operand(use, time, bytes_of, found)
            if operand is not None:
                owner[result] = operand
                last[operand] = last[result]
        for buffer in use.buffers:
            if buffer is not None and buffer in bytes_of:
                first.setdefault(owner.get(buffer, buffer), time)
    for buffer in first:
        last.setdefault(buffer, -1)
    return found


def _dying_operand(
    use: BufferUse[Buffer], time: int, bytes_of: Mapping[Buffer, int], found: Lifetimes[Buffer]
) -> Buffer | None:
    """The operand whose memory the result of a call takes over; None if there is none."""
    owners = [None if b is None else found.owner.get(b, b) for b in use.reads]
    for index in use.in_place:
        operand = owners[index]
        if operand is None or operand not in found.first or found.last[operand] != time:
            continue
        alone = operand not in owners[:index] + owners[index + 1 :]
        if alone and bytes_of[operand] == bytes_of[use.results[0]]:
            return operand
    return None


def peak_bytes(
    uses: Sequence[BufferUse[Buffer]],
    bytes_of: Mapping[Buffer, int],
    threads: int,
    before: Collection[Buffer] = (),
    after: Collection[Buffer] = (),
) -> int:
    """The most bytes that calls need at once, scratch of all threads included.

    Args:
        uses, bytes_of, before, after: as `lifetimes` takes them.
        threads: how many need scratch.
    """
    found = lifetimes(uses, bytes_of, before, after)
    spans = [(bytes_of[b], first, found.last[b]) for b, first in found.first.items()]
    peak = 0
    for time, use in enumerate(uses):
        alive = sum(size for size, first, last in spans if first <= time <= last)
        peak = max(peak, alive + use.scratch_bytes * threads)
    return peak
