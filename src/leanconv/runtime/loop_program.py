"""A program some stages of which run several times: the iterations of a loop.

Each iteration is a native call of its own, so that what interrupts Python, such as Ctrl-C, is seen
between two of them; where one takes long, it is cut into several (`runtime/program`). Operands may
move by a number of bytes from one to the next.
"""

from __future__ import annotations

import ctypes
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from leanconv.codegen.linking import Library
from leanconv.interrupts import asking, check
from leanconv.records import dataclass
from leanconv.runtime import native as n
from leanconv.runtime.portable import RepeatedStages
from leanconv.runtime.program import LONG_NS, PIECE_NS, Program, Stage, pieces_end
from leanconv.runtime.shared_arena import ArenaPart
from leanconv.spec.format import ceil_div


@dataclass(frozen=True)
class Segment:
    """Stages that follow each other.

    Attributes:
        first, stages: the index of the first stage, and the number of stages.
        times: number of runs.
        moving: positions among the arguments, and by how much these move each time.
        parts: shorter segments in their place, where some of them run several times each time.
    """

    first: int
    stages: int
    times: int = 1
    moving: tuple[tuple[int, int], ...] = ()
    parts: tuple[Segment, ...] = ()


@dataclass(frozen=True, eq=False)
class _Calls:
    """The native calls of a run.

    Attributes:
        segments: stages of each call.
        headers: words that the calls read.
        starts: addresses of headers by the first stage.
    """

    segments: tuple[Segment, ...]
    headers: ctypes.Array[ctypes.c_int64]
    starts: dict[int, int]


class LoopProgram(Program):
    """A `Program` with stages that run several times.

    Args:
        stages, library, slots, threads, arena: as for `Program`.
        repeats: stages that run several times, in order.
        cuts: stages before which a native call ends; in order, none amid a repeat.
    """

    _cuts_bodies = True

    def __init__(
        self,
        stages: Sequence[Stage],
        library: Library,
        slots: int,
        threads: int,
        arena: ArenaPart,
        repeats: Sequence[RepeatedStages],
        cuts: Sequence[int] = (),
    ) -> None:
        super().__init__(stages, library, slots, 0, 0, threads, arena=arena)
        self._cuts, self._repeats = cuts, tuple(repeats)
        # In the first run each stage that runs once is a call, so that its time is known then.
        self._calls, self._timed_calls = self._calls_cut_at(range(len(stages))), False
        # Offsets of places that move: an interrupt may leave them elsewhere.
        places = self._places[0]
        moving = {
            self._position(stage, operand) for each in repeats for stage, operand, _ in each.moving
        }
        self._moved = [(position, places[position]) for position in moving if position in places]

    def _calls_cut_at(self, straight: Iterable[int], bodies: Iterable[int] = ()) -> _Calls:
        """The native calls of a run that end before some stages.

        Args:
            straight: cuts that count between repeats.
            bodies: cuts that count inside of it.
        """
        cuts, inside = sorted({*self._cuts, *straight}), sorted(bodies)
        segments = tuple(self._cut(0, self.stages, deque(self._repeats), cuts, inside))
        runs = list(_without_parts(segments))
        headers = self._headers([(each.first, each.stages) for each in runs])
        start, size = ctypes.addressof(headers), 8 * n.HEADER_WORDS
        starts = {each.first: start + number * size for number, each in enumerate(runs)}
        self._pool.register(self, (headers, self._table))
        return _Calls(segments, headers, starts)

    def _cut(
        self,
        begin: int,
        end: int,
        repeats: deque[RepeatedStages],
        cuts: Sequence[int],
        inside: Sequence[int],
    ) -> Iterator[Segment]:
        """Stages from one to another: those that run several times, and those between them."""
        while repeats and repeats[0].first < end:
            each = repeats.popleft()
            yield from _between(begin, each.first, cuts)
            begin = each.first + each.stages
            moving = tuple(
                (self._position(stage, operand), by) for stage, operand, by in each.moving
            )
            parts = tuple(self._cut(each.first, begin, repeats, inside, inside))
            alone = len(parts) == 1 and parts[0].times == 1
            yield Segment(each.first, each.stages, each.times, moving, () if alone else parts)
        yield from _between(begin, end, cuts)

    def _position(self, stage: int, operand: int) -> int:
        """Return the index of an operand's address among the arguments of all stages."""
        address: int = self._table[n.STAGE_WORDS * self._entries[stage] + 1]
        return (address - ctypes.addressof(self._arguments)) // 8 + operand

    def _bind(self, addresses: Sequence[int]) -> None:
        """Let all operands be where the first iterations have them."""
        arena = self._arena
        if arena is not None and arena.arena.version != self._arena_version:
            self._follow_arena(arena)
        elif arena is not None:
            address = arena.address()
            for position, offset in self._moved:
                self._arguments[position] = address + offset
        for address, positions in zip(addresses, self._patches, strict=True):
            for position, offset in positions:
                self._arguments[position] = address + offset

    def _iterations(self, segments: Sequence[Segment]) -> Iterator[Segment]:
        """Yield segments that run without a break, in order; move operands between iterations."""
        arguments = self._arguments
        for segment in segments:
            moving = segment.moving
            for iteration in range(segment.times):
                if iteration:
                    for position, by in moving:
                        arguments[position] += by
                if segment.parts:
                    yield from self._iterations(segment.parts)
                else:
                    yield segment
            for position, by in moving:  # for the next iteration of a loop around this one
                arguments[position] -= (segment.times - 1) * by

    def run(self, addresses: Sequence[int]) -> int:
        """Run all stages, as `Program.run`; an exception of a signal handler ends a loop."""
        if self._lock.mine():
            raise self._lock.reentrant()
        with self._lock.bare:
            self._bind(addresses)
            self._outside.forget()
            start = time.perf_counter_ns()
            together = self.threads > 1 and (not self._paced or self._pacing.together(start))
            shared = together
            calls, ending = self._calls, asking() is not None
            slowest: dict[int, int] | None = None if self._timed_calls else {}
            before = start
            try:
                for segment in self._iterations(calls.segments):
                    if ending:
                        check()
                    header = calls.starts[segment.first]
                    if shared:
                        self._pool.ensure(self.threads)
                        self._pool.wake(self.threads - 1)
                        together = bool(self._native.run(header)) and together
                    else:
                        self._native.run_alone(header)
                    if slowest is not None:
                        now = time.perf_counter_ns()
                        slowest[segment.first] = max(slowest.get(segment.first, 0), now - before)
                        before = now
            finally:
                self._finish()
            end = time.perf_counter_ns()
            if slowest is not None:
                self._cut_by(slowest)
            if self._paced:
                self._pacing.record(end - start, together, end)
            self._outside.check()
            return end - start

    def _cut_by(self, slowest: Mapping[int, int]) -> None:
        """Cut later runs where calls took long.

        Args:
            slowest: of each call's runs, by its first stage, in nanoseconds.
        """
        bodies: list[int] = []
        calls = self._calls.segments
        once = [each for each in calls if each.times == 1 and not each.parts]
        ends = pieces_end([slowest[each.first] for each in once])
        straight = [once[end - 1].first + once[end - 1].stages for end in ends]
        for each in _without_parts([each for each in calls if each.times > 1 or each.parts]):
            took = slowest.get(each.first, 0)
            if took > LONG_NS and self._cuts_bodies:
                pieces = min(each.stages, ceil_div(took, PIECE_NS))
                bodies += (each.first + each.stages * k // pieces for k in range(1, pieces))
        self._calls, self._timed_calls = self._calls_cut_at(straight, bodies), True

    def time_stages(self, addresses: Sequence[int]) -> list[int]:
        """Run once, stage by stage; each stage's nanoseconds, of all its iterations together."""
        start, size = ctypes.addressof(self._each_stage()), 8 * n.HEADER_WORDS
        total = [0] * self.stages
        with self._lock.held:
            self._bind(addresses)
            try:
                for segment in self._iterations(self._calls.segments):
                    for stage in range(segment.first, segment.first + segment.stages):
                        total[stage] += self._timed(start + stage * size)
            finally:
                self._finish()
        return total

    def _finish(self) -> None:
        """End what `_bind` has begun: nothing here."""


def _between(begin: int, end: int, cuts: Sequence[int]) -> Iterator[Segment]:
    """Stages that run once, cut where a native call ends."""
    edges = [begin, *(cut for cut in cuts if begin < cut < end), end]
    for first, last in pairwise(edges):
        if last > first:
            yield Segment(first, last - first)


def _without_parts(segments: Sequence[Segment]) -> Iterator[Segment]:
    """The segments that run without a break."""
    for each in segments:
        if each.parts:
            yield from _without_parts(each.parts)
        else:
            yield each
