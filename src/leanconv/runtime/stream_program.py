"""A program whose weights come from a file while it runs: each stage's are read before it.

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
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from leanconv.codegen.compile_threads import refused
from leanconv.codegen.linking import Library
from leanconv.errors import InputError
from leanconv.runtime.file_block import FileBlock
from leanconv.runtime.loop_program import LoopProgram, Segment
from leanconv.runtime.portable import RepeatedStages, StreamedConstant
from leanconv.runtime.program import Stage
from leanconv.runtime.shared_arena import ArenaPart

# Bytes of a load, and loads, that are timed.
_RATE_PIECE, _RATE_LOADS = 4 * 2**20, 16


# A byte of a program's constants, as a file in this process that has it and the byte there.
Files = Callable[[int], tuple[FileBlock, int]]


class StreamProgram(LoopProgram):
    """A `LoopProgram` that reads weights while it runs.

    Args:
        stages, library, slots, threads, arena, repeats: as for `LoopProgram`.
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
    ) -> None:
        begins = sorted({0, *(load.needed for load in loads), *(load.free for load in loads)})
        cuts = [begin for begin in begins if not any(_inside(begin, each) for each in repeats)]
        super().__init__(stages, library, slots, threads, arena, repeats, cuts)
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
