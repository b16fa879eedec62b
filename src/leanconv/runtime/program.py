"""A program: stages run one after the other in one native call."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from leanconv.codegen.kernel import Kernel
from leanconv.codegen.linking import Library
from leanconv.codegen.reentrancy import owned, reentrant
from leanconv.errors import SpecError
from leanconv.runtime import native as n
from leanconv.runtime.pacing import Pacing
from leanconv.runtime.pool import Pool, pool
from leanconv.spec.format import aligned, ceil_div

# Most chunks of a stage that two threads claim one by one; with more, as in a batch of eight, that
# gains nothing.
_MOST_ONE_BY_ONE = 256


@dataclass(frozen=True)
class Slot:
    """An operand that the caller passes to each run: its index among the caller's arrays."""

    number: int


@dataclass(frozen=True)
class Stage:
    """One kernel, the addresses of its operands, and that of its threads' scratch.

    With `scratch` None the stage uses the program's scratch.
    """

    kernel: Kernel
    operands: tuple[int | Slot, ...]
    scratch: int | None = None


class Program:
    """Compiled stages with their tables.

    Args:
        stages: in order; every kernel is in the library.
        library: the compiled code.
        slots: number of arrays that the caller passes to each run.
        scratch: address of scratch memory for all threads.
        scratch_stride: bytes of it for each thread.
        threads: threads that take part, the caller counted.
        paced: whether fewer take part for a while when all together have become slower.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        library: Library,
        slots: int,
        scratch: int,
        scratch_stride: int,
        threads: int,
        paced: bool = True,
    ) -> None:
        if len(stages) > n.MAX_STAGES:
            raise SpecError(f"got {len(stages)} stages in one program, expected at most 4094")
        self._library = library
        self._pool: Pool = pool()
        self.threads = threads
        self.stages = tuple(stages)
        words = sum(len(s.operands) + len(library.words(s.kernel)) for s in stages)
        self._arguments = (ctypes.c_int64 * max(1, words))()
        self._table = (ctypes.c_int64 * max(1, n.STAGE_WORDS * len(stages)))()
        self._patches: list[list[int]] = [[] for _ in range(slots)]
        self._scratch = scratch, scratch_stride
        self._fill(stages)
        table = ctypes.addressof(self._table)
        header = (self._pool.state, len(stages), table, 0, 0, 2 * threads)
        self._header = (ctypes.c_int64 * n.HEADER_WORDS)(*header, threads, 0)
        self._address = ctypes.addressof(self._header)
        self._unlock()
        self._pacing = Pacing(threads)
        self._paced = paced and threads > 1
        # A worker that wakes late may still read these; it sees that the run is over and parks.
        self._pool.register(self, (self._header, self._table))
        self._native = n.native()

    def _fill(self, stages: Sequence[Stage]) -> None:
        arguments, position = ctypes.addressof(self._arguments), 0
        for i, stage in enumerate(stages):
            if stage.kernel.chunks > n.MAX_CHUNKS:
                raise SpecError(
                    f"a stage is made of {stage.kernel.chunks} parts; expected at most "
                    f"{n.MAX_CHUNKS}: the output is too large, compute it in several pieces"
                )
            for word in self._library.words(stage.kernel):
                self._arguments[position] = word
                position += 1
            words = (self._library.address(stage.kernel), arguments + 8 * position)
            scratch = self._scratch
            if stage.scratch is not None:
                scratch = stage.scratch, aligned(stage.kernel.scratch_bytes)
            self._table[n.STAGE_WORDS * i : n.STAGE_WORDS * (i + 1)] = [
                *words,
                stage.kernel.chunks,
                _claim(stage.kernel, self.threads),
                *scratch,
            ]
            for operand in stage.operands:
                if isinstance(operand, Slot):
                    self._patches[operand.number].append(position)
                else:
                    self._arguments[position] = operand
                position += 1

    def run(self, addresses: Sequence[int]) -> int:
        """Run all stages on the arrays at these addresses, one for each slot.

        Calls from several threads at once run one after the other.

        Returns:
            Nanoseconds that the stages took.

        Raises:
            ReentrantCallError: a signal handler calls this while its thread is in it.
        """
        if not self.stages:
            return 0
        if self._mine():
            raise reentrant("a run of the same network")
        with self._lock:
            for address, positions in zip(addresses, self._patches, strict=True):
                for position in positions:
                    self._arguments[position] = address
            start = time.perf_counter_ns()
            together = self.threads > 1 and (not self._paced or self._pacing.together(start))
            if together:
                self._pool.ensure(self.threads)
                self._pool.wake(self.threads - 1)
                start = time.perf_counter_ns()
                together = bool(self._native.run(self._address))
            else:
                self._native.run_alone(self._address)
            end = time.perf_counter_ns()
            elapsed = end - start
            if self._paced:
                self._pacing.record(elapsed, together, end)
            return elapsed

    def time_stages(self, addresses: Sequence[int]) -> list[int]:
        """Run once, stage by stage, and return each stage's nanoseconds.

        Raises:
            ReentrantCallError: as for `run`.
        """
        if self._mine():
            raise reentrant("a run of the same network")
        parts = self._parts()
        with self._lock:  # all runs use the same memory
            return [part.run(addresses) for part in parts]

    def _parts(self) -> list[Program]:
        return [
            Program([stage], self._library, len(self._patches), *self._scratch, self.threads)
            for stage in self.stages
        ]

    def after_fork(self) -> None:
        """In a forked child nobody holds the lock, whoever held it in the parent."""
        self._unlock()

    def _unlock(self) -> None:
        self._lock = threading.RLock()
        self._mine = owned(self._lock)


def _claim(kernel: Kernel, threads: int) -> int:
    """How many chunks a thread claims at once, or a `ClaimPolicy`.

    A thread claims one long run where neighbouring chunks share work; else a decreasing number at
    a time (guided), so that all threads end at about the same time.
    """
    if kernel.reuses_scratch and threads == 2 and kernel.chunks <= _MOST_ONE_BY_ONE:
        return n.ClaimPolicy.ONE_FROM_BOTH_ENDS
    if kernel.wants_consecutive_chunks:
        return ceil_div(kernel.chunks, threads)
    both = kernel.chunks <= n.MOST_FROM_BOTH_ENDS
    return n.ClaimPolicy.FROM_BOTH_ENDS if both else n.ClaimPolicy.GUIDED
