"""Offsets in one arena, so that no two buffers that live at once overlap."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from leanconv.records import dataclass
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
    """Offsets from elsewhere with the arena's bytes, None if they are no offsets of these buffers.

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
