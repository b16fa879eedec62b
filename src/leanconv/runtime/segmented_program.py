"""Programs in segments: stages that run several times, weights that are read while they run.

Each iteration of a loop is a native call of its own, so that what interrupts Python, such as
Ctrl-C, is seen between two of them; where one takes long, it is cut into several
(`runtime/program`). Operands may move by a number of bytes from one to the next.

Weights that come from a file are read before the stage that needs them:

    stages    | 0  1 | 2  3 | 4    | 5 ...     each segment begins with a stage that needs a load
    reader      [  A  ][  B  ][  C  ]          A: for stage 2, into bytes that are free from 0 on

Loads have places in the arena, as values between layers have, each with a first and a last stage. A
thread reads them in the order in which they are needed, each as soon as the stages before its first
one have run, while the stages of the segment before are computed.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from leanconv.codegen.compile_threads import refused
from leanconv.codegen.linking import Library
from leanconv.errors import InputError
from leanconv.interrupts import asking, check
from leanconv.records import dataclass
from leanconv.runtime import native as n
from leanconv.runtime.file_block import FileBlock
from leanconv.runtime.memory import ArenaPart
from leanconv.runtime.portable import RepeatedStages, StreamedConstant
from leanconv.runtime.program import LONG_NS, PIECE_NS, Program, Sized, Stage, pieces_end
from leanconv.spec.format import ceil_div

# Bytes of a load, and loads, that are timed.
_RATE_PIECE, _RATE_LOADS = 4 * 2**20, 16
# A byte of a program's constants, as a file in this process that has it and the byte there.
Files = Callable[[int], tuple[FileBlock, int]]


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
        pauses: as for `Program`; none amid a repeat.
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
        pauses: Sequence[int] = (),
    ) -> None:
        super().__init__(stages, library, slots, 0, 0, threads, arena=arena)
        self._pausing, cuts = frozenset(pauses), sorted({*cuts, *pauses})
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

    def run(self, addresses: Sequence[int], sized: Sized | None = None) -> int:
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
                    if sized is not None and segment.first in self._pausing:
                        self._place(sized(segment.first))
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


class StreamProgram(LoopProgram):
    """A `LoopProgram` that reads weights while it runs.

    Args:
        stages, library, slots, threads, arena, repeats, pauses: as for `LoopProgram`.
        loads: constants to read, in the order in which they are needed; a repeat
            that overlaps a load's stages from `free` to `needed` contains both.
        files: to read from.
    """

    _cuts_bodies = False  # loads count the stages of a loop as one

    def __init__(
        self,
        stages: Sequence[Stage],
        library: Library,
        slots: int,
        threads: int,
        arena: ArenaPart,
        repeats: Sequence[RepeatedStages],
        loads: Sequence[StreamedConstant],
        files: Files,
        pauses: Sequence[int] = (),
    ) -> None:
        begins = sorted({0, *(load.needed for load in loads), *(load.free for load in loads)})
        cuts = [begin for begin in begins if not any(_inside(begin, each) for each in repeats)]
        super().__init__(stages, library, slots, threads, arena, repeats, cuts, pauses)
        self._loads, self._files = tuple(loads), files
        self._reader: _Reader | None = None

    def _bind(self, addresses: Sequence[int]) -> None:
        super()._bind(addresses)
        self._finish()  # of a run that an exception has ended
        assert self._arena is not None
        self._reader = _Reader(self._loads, self._files, self._arena.address())

    def _iterations(self, segments: Sequence[Segment]) -> Iterator[Segment]:
        """Yield the segments that run without a break, each when its weights are in memory."""
        reader = self._reader
        assert reader is not None
        reader.start()  # here, where an exception ends it
        for segment in super()._iterations(segments):
            reader.wait_for(segment.first)
            yield segment
            reader.has_run(segment.first + segment.stages)

    def _finish(self) -> None:
        """End the reading; only when it has ended may others use the arena."""
        reader = self._reader
        if reader is not None:
            reader.stop()
            self._reader = None


def _inside(stage: int, repeat: RepeatedStages) -> bool:
    return repeat.first < stage < repeat.first + repeat.stages


class _Reader:
    """Reads the loads of one run, in a thread of its own where the system gives one."""

    def __init__(self, loads: Sequence[StreamedConstant], files: Files, arena: int) -> None:
        self._loads, self._files, self._arena = loads, files, arena
        self._changed = threading.Condition()
        self._run = 0  # stages before this one have run
        self._read = 0  # loads before this one are there
        self._begun = self._stopped = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to read, if that is still to be done."""
        if self._begun:
            return
        self._begun = True
        thread = threading.Thread(target=self._work, name="leanconv-weights", daemon=True)
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:
            if not refused(error):
                raise
            return  # `wait_for` reads then
        self._thread = thread

    def wait_for(self, stage: int) -> None:
        """Return when all that a stage reads is there.

        Raises:
            InputError: it cannot be read.
        """
        needed = self._read
        while needed < len(self._loads) and self._loads[needed].needed <= stage:
            needed += 1
        if self._thread is None:
            self._read_up_to(needed)
        with self._changed:
            self._changed.wait_for(lambda: self._read >= needed or self._error is not None)
        if self._read < needed:
            raise InputError(
                f"weights could not be read from their file ({self._error}); expected a disk that "
                "gives what was written to it: load the network anew"
            ) from self._error

    def _read_up_to(self, needed: int) -> None:
        try:
            while self._read < needed:
                self._load(self._loads[self._read])
                self._read += 1
        except OSError as error:
            self._error = error

    def has_run(self, stage: int) -> None:
        """All stages before this one have run."""
        with self._changed:
            self._run = max(self._run, stage)
            self._changed.notify_all()

    def stop(self) -> None:
        """Return when nothing more is read."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        try:
            for load in self._loads:
                if not self._may_begin(load):
                    return
                self._load(load)
                with self._changed:
                    self._read += 1
                    self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _may_begin(self, load: StreamedConstant) -> bool:
        """Wait for the place of a load; return whether the run goes on."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._run >= load.free)
            return not self._stopped

    def _load(self, load: StreamedConstant) -> None:
        place: Any = (ctypes.c_uint8 * load.bytes).from_address(self._arena + load.offset)
        file, start = self._files(load.start)
        file.read_into(start, np.frombuffer(place, np.uint8))


def reading_rate(loads: Sequence[StreamedConstant], files: Files) -> float:
    """Bytes a nanosecond at which files are read now: from the page cache, if they fit there."""
    buffer, done = np.empty(_RATE_PIECE, np.uint8), 0
    start = time.perf_counter_ns()
    for load in loads[:_RATE_LOADS]:
        size = min(load.bytes, _RATE_PIECE)
        file, first = files(load.start)
        file.read_into(first, buffer[:size])
        done += size
    return max(1, done) / max(1, time.perf_counter_ns() - start)
