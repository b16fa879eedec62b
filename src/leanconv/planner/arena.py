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
    bound = largest_live_set(lifetimes)
    orders = [
        sorted(lifetimes, key=lambda b: (-b.bytes, b.first)),
        sorted(lifetimes, key=lambda b: (b.first - b.last, -b.bytes)),
        sorted(lifetimes, key=lambda b: (b.first, -b.bytes)),
    ]
    best: tuple[dict[str, int], int] | None = None
    shuffler = random.Random(0)
    tries = min(_TRIES, len(orders) + _COMPARISONS // max(1, len(lifetimes)) ** 2)
    promoted = orders[0]
    for attempt in range(tries):
        if attempt < len(orders):
            order = orders[attempt]
        elif attempt % _PROMOTIONS:
            order = promoted
        else:
            order = sorted(lifetimes, key=lambda b: -b.bytes * shuffler.uniform(0.5, 1.5))
        placed = _place(order)
        if best is None or placed[1] < best[1]:
            best = placed
        if best[1] == bound:
            break
        if attempt == 0 or attempt >= len(orders):
            promoted = sorted(order, key=lambda b: placed[0][b.name] + b.bytes <= bound)
    assert best is not None
    return best


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


def _place(order: Sequence[Lifetime]) -> tuple[dict[str, int], int]:
    """Give each buffer in turn the lowest gap among those that live at the same time."""
    offsets: dict[str, int] = {}
    done: list[Lifetime] = []
    end = 0
    for buffer in order:
        busy = sorted(
            (offsets[o.name], o.bytes)
            for o in done
            if o.first <= buffer.last and buffer.first <= o.last
        )
        place = 0
        for start, size in busy:
            if place + buffer.bytes <= start:
                break
            place = max(place, start + size)
        offsets[buffer.name] = place
        done.append(buffer)
        end = max(end, place + buffer.bytes)
    return offsets, end
