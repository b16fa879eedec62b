"""Which buffers share memory and when each holds something, from the calls that use them.

A result takes over the memory of an operand that dies at the same call, where the kernel allows it:
the operand must be no array of the user's, of the result's size, and read by nothing else there.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import field
from typing import Generic, TypeVar

from leanconv.records import dataclass

Buffer = TypeVar("Buffer", bound=Hashable)


@dataclass(frozen=True)
class BufferUse(Generic[Buffer]):
    """What one call does with buffers.

    Attributes:
        reads: in the order of its operands, None for constants.
        results: what it writes, one or more.
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
        """All of them."""
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
