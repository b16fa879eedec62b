"""A program: stages run one after the other in one native call."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TypeAlias

from leanconv.codegen.kernel import Kernel
from leanconv.codegen.linking import KernelForm, Library
from leanconv.errors import InputError, SpecError, outside_text
from leanconv.interrupts import check
from leanconv.records import dataclass
from leanconv.runtime import native as n
from leanconv.runtime.locks import Lock
from leanconv.runtime.memory import ArenaPart
from leanconv.runtime.pool import Pacing, Pool, pool
from leanconv.spec.format import aligned, ceil_div

# Most chunks of a stage that two threads claim one by one; with more, as in a batch of eight, that
# gains nothing.
_MOST_ONE_BY_ONE = 256
_COUNT_WORD, _TABLE_WORD = 1, 2  # of the header
_ARGUMENTS_WORD, _SCRATCH_WORD = 1, 4  # of a stage in the table
_RUN = "a run of the same network"
# A run that takes long is cut into native calls that do not, so that handlers of signals and what
# ends runs are seen between them. Each costs 0.2 us, and 1 us more with several threads.
LONG_NS, PIECE_NS = 20_000_000, 5_000_000
_Words: TypeAlias = ctypes.Array[ctypes.c_int64]


@dataclass(frozen=True)
class Slot:
    """An operand that the caller passes to each run: its index among their arrays, and the offset.

    The operand begins `offset` bytes after the array does.
    """

    number: int
    offset: int = 0


@dataclass(frozen=True)
class Place:
    """An operand or scratch in the arena, which may move between runs: its offset."""

    offset: int


@dataclass(frozen=True)
class Constant:
    """An operand among a program's constants, the offset there: see `runtime/portable`."""

    offset: int


@dataclass(frozen=True)
class Stage:
    """One kernel, the addresses of its operands, and that of its threads' scratch.

    With `scratch` None the stage uses the program's scratch. Errors name its `label`.
    """

    kernel: Kernel | KernelForm
    operands: tuple[int | Slot | Place | Constant, ...]
    scratch: Place | None = None
    label: str = ""


@dataclass(frozen=True)
class OutsideIndex:
    """The word into which a kernel stores an index that lies outside of its axis: its number."""

    number: int


# What a run asks before a stage: numbers of slots, and where their arrays are from then on.
Sized: TypeAlias = Callable[[int], Iterable[tuple[int, int]]]
Argument: TypeAlias = "int | Slot | Place | Constant | OutsideIndex"


@dataclass(frozen=True)
class TableRow:
    """What the runtime reads of one round of a stage.

    Attributes:
        form: names the code.
        arguments: the number of the first argument that the code reads.
        chunks, first: how many chunks there are, and the first one.
        claim: how many a thread claims at once, or a `ClaimPolicy`.
        scratch: of the first thread; None for the program's.
        stride: bytes of scratch of each thread.
    """

    form: str
    arguments: int
    chunks: int
    claim: int
    scratch: Place | None
    stride: int
    first: int


@dataclass(frozen=True)
class StageTables:
    """The words that code and runtime read of stages, without an address in them.

    Attributes:
        arguments: of all stages, one after the other.
        rows: of the table, one for each round of a stage.
        entries: behind each stage: how many rows there are.
    """

    arguments: tuple[Argument, ...]
    rows: tuple[TableRow, ...]
    entries: tuple[int, ...]


def stage_tables(stages: Sequence[Stage], forms: Sequence[KernelForm], threads: int) -> StageTables:
    """Lay out the words of stages.

    Args:
        stages: in order.
        forms: what each one's kernel is.
        threads: that take part.

    Raises:
        SpecError: a stage has more chunks than the runtime counts.
    """
    spare = n.MAX_STAGES - len(stages)
    arguments: list[Argument] = []
    rows: list[TableRow] = []
    entries: list[int] = []
    outside = 0
    for stage, form in zip(stages, forms, strict=True):
        if form.chunks > n.MAX_CHUNKS:
            raise SpecError(
                f"a stage is made of {form.chunks} parts; expected at most {n.MAX_CHUNKS}: the "
                "output is too large, compute it in several pieces"
            )
        arguments += form.words
        # One thread does the rounds in one call, as do many threads where the table is full.
        rounds = form.rounds if threads > 1 and form.rounds - 1 <= spare else 1
        spare -= rounds - 1
        chunks = form.chunks // rounds
        claim = _claim(form, chunks, threads) if rounds == form.rounds else chunks
        stride = aligned(form.scratch_bytes)
        rows += (
            TableRow(form.form, len(arguments), chunks, claim, stage.scratch, stride, at * chunks)
            for at in range(rounds)
        )
        entries.append(len(rows))
        arguments += stage.operands
        count = len(form.index_ranges)
        arguments += map(OutsideIndex, range(outside, outside + count))
        outside += count
    return StageTables(tuple(arguments), tuple(rows), tuple(entries))


class _OutsideIndices:
    """Words into which kernels store indices that lie outside of their axes; 0 never does.

    Args:
        stages: of the program.

    Attributes:
        watched: whether any kernel stores such indices.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._ranges = [
            (stage.label, *ends) for stage in stages for ends in stage.kernel.index_ranges
        ]
        self._words = (ctypes.c_int64 * len(self._ranges))()
        self._bytes = memoryview(self._words).cast("B")
        self._none = self._bytes.tobytes()
        self.watched = bool(self._ranges)

    def addresses(self) -> list[int]:
        """Return the words' addresses, in order of the stages."""
        start = ctypes.addressof(self._words)
        return [start + 8 * number for number in range(len(self._ranges))]

    def forget(self) -> None:
        self._bytes[:] = self._none

    def check(self) -> None:
        """Raise if a run has stored an index.

        Raises:
            InputError: an index lies outside of its axis.
        """
        if self._bytes.tobytes() != self._none:
            found = zip(self._ranges, self._words, strict=True)
            label, least, most, index = next((*each, index) for each, index in found if index)
            raise InputError(f"{label}: {outside_text(index, least, most)}")


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
        arena: memory of its `Place`s; programs of one arena run in turn.
        pauses: stages before which a run may ask where arrays are; in order.
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
        arena: ArenaPart | None = None,
        pauses: Sequence[int] = (),
    ) -> None:
        if len(stages) > n.MAX_STAGES:
            raise SpecError(f"got {len(stages)} stages in one program, expected at most 4094")
        self._code = library.batches  # kernels are needed no more once the tables are filled
        self._pool: Pool = pool()
        self.threads = threads
        self.stages = len(stages)
        # For each slot the positions of its address in the arguments, each with an added offset.
        self._patches: list[list[tuple[int, int]]] = [[] for _ in range(slots)]
        self._arena, self._arena_version = arena, 0
        # Offsets of places by their positions in the arguments and in the table.
        self._places: tuple[dict[int, int], dict[int, int]] = ({}, {})
        self._scratch = scratch, scratch_stride
        self._entries = [0]  # of each stage, and behind the last: its first entry in the table
        self._outside = _OutsideIndices(stages)
        self._arguments, self._table = self._filled(stages, library)
        edges = [0, *pauses, len(stages)]
        runs = [(first, after - first) for first, after in pairwise(edges)] if pauses else []
        self._header = self._headers([(0, len(stages)), *runs])
        self._address = ctypes.addressof(self._header)
        size = 8 * n.HEADER_WORDS
        self._parts = [(edges[k], self._address + (k + 1) * size) for k in range(len(runs))]
        self._pauses = {self._entries[stage]: stage for stage in pauses}
        # True if a run is one native call. If not: the entries of each call; None until their times
        # are known, when each entry is a call.
        self._in_one = self._entries[-1] == 1
        self._pieces: list[tuple[int, int]] | None = None
        self._alone: _Words | None = None
        self._lock = arena.arena.lock if arena else Lock(_RUN)
        self._pacing = Pacing(threads)
        self._paced = paced and threads > 1
        # A worker that wakes late may still read these; it sees that the run is over and parks.
        self._pool.register(self, (self._header, self._table))
        self._native = n.native()

    def _headers(self, runs: Sequence[tuple[int, int]]) -> _Words:
        """Make the headers of native runs, for pairs of a first stage and a number of stages."""
        table, threads = ctypes.addressof(self._table), self.threads
        words: list[int] = []
        for first, count in runs:
            entry, end = self._entries[first], self._entries[first + count]
            begins = table + 8 * n.STAGE_WORDS * entry
            words += (self._pool.state, end - entry, begins, 0, 0, 2 * threads, threads, 0)
        return (ctypes.c_int64 * len(words))(*words)

    def _filled(self, stages: Sequence[Stage], library: Library) -> tuple[_Words, _Words]:
        """The arguments of all stages, the words of their forms before them; and their table."""
        forms = [
            s.kernel if isinstance(s.kernel, KernelForm) else library.form(s.kernel) for s in stages
        ]
        tables = stage_tables(stages, forms, self.threads)
        places, scratch_places = self._places
        self._entries += tables.entries
        outside = self._outside.addresses()
        arguments = []
        for position, word in enumerate(tables.arguments):
            if isinstance(word, Slot):
                self._patches[word.number].append((position, word.offset))
            elif isinstance(word, Place):
                places[position] = word.offset
            elif isinstance(word, OutsideIndex):
                word = outside[word.number]
            arguments.append(word if isinstance(word, int) else 0)
        words = (ctypes.c_int64 * max(1, len(arguments)))(*arguments)
        start = ctypes.addressof(words)
        table: list[int] = []
        for row in tables.rows:
            scratch = self._scratch
            if row.scratch is not None:
                scratch_places[len(table) + _SCRATCH_WORD] = row.scratch.offset
                scratch = 0, row.stride
            code, begin = library.address(row.form), start + 8 * row.arguments
            table += code, begin, row.chunks, row.claim, *scratch, row.first
        return words, (ctypes.c_int64 * max(1, len(table)))(*table)

    def _follow_arena(self, arena: ArenaPart) -> None:
        """Let all places be where the arena is now."""
        address = arena.address()
        self._arena_version = 0  # an interrupt may leave some at the old address
        for words, places in zip((self._arguments, self._table), self._places, strict=True):
            for position, offset in places.items():
                words[position] = address + offset
        self._arena_version = arena.arena.version

    def run(self, addresses: Sequence[int], sized: Sized | None = None) -> int:
        """Run all stages on the arrays at these addresses, one for each slot.

        Calls from several threads at once run one after the other.

        Args:
            addresses: of the arrays; of one that `sized` gives, any number.
            sized: asked before each of the `pauses`, once the stages before it have run.

        Returns:
            Nanoseconds that the stages took.

        Raises:
            InputError: an index lies outside of its axis; what was computed then is of no use.
            ReentrantCallError: a signal handler calls this while its thread is in it.
            TerminatedError: another thread ends it.
        """
        if not self.stages:
            return 0
        if self._lock.mine():
            raise self._lock.reentrant()
        with self._lock.bare:
            if self._arena is not None and self._arena.arena.version != self._arena_version:
                self._follow_arena(self._arena)
            for address, positions in zip(addresses, self._patches, strict=True):
                for position, offset in positions:
                    self._arguments[position] = address + offset
            ask = sized if self._parts else None
            if self._outside.watched:
                self._outside.forget()
            start = time.perf_counter_ns()
            together = self.threads > 1 and (not self._paced or self._pacing.together(start))
            if not self._in_one:
                together = self._run_in_pieces(together, ask)
            elif ask is not None:
                together = self._run_in_parts(together, ask)
            elif together:
                self._pool.ensure(self.threads)
                self._pool.wake(self.threads - 1)
                start = time.perf_counter_ns()
                together = bool(self._native.run(self._address))
            else:
                self._native.run_alone(self._address)
            end = time.perf_counter_ns()
            elapsed = end - start
            if elapsed > LONG_NS:
                self._in_one = False
            if self._paced:
                self._pacing.record(elapsed, together, end)
            if self._outside.watched:
                self._outside.check()
            return elapsed

    def _place(self, arrays: Iterable[tuple[int, int]]) -> None:
        """Let slots be at these addresses."""
        for slot, address in arrays:
            for position, offset in self._patches[slot]:
                self._arguments[position] = address + offset

    def _run_in_parts(self, together: bool, sized: Sized) -> bool:
        """Run in native calls from pause to pause; return whether the workers took part in all."""
        shared = together
        for stage, header in self._parts:
            if stage:
                self._place(sized(stage))
            if shared:
                self._pool.ensure(self.threads)
                self._pool.wake(self.threads - 1)
                together = bool(self._native.run(header)) and together
            else:
                self._native.run_alone(header)
        return together

    def _run_in_pieces(self, together: bool, sized: Sized | None) -> bool:
        """Run in native calls, cut the next run; return whether the workers took part in all."""
        known, last, shared, times = self._pieces, self._entries[-1], together, []
        for first, after in known or zip(range(last), range(1, last + 1), strict=True):
            check()
            if sized is not None and first in self._pauses:
                self._place(sized(self._pauses[first]))
            self._turn_to(first, after)
            begin = time.perf_counter_ns()
            if shared:
                self._pool.ensure(self.threads)
                self._pool.wake(self.threads - 1)
                together = bool(self._native.run(self._address)) and together
            else:
                self._native.run_alone(self._address)
            times.append(time.perf_counter_ns() - begin)
        if sum(times) < (PIECE_NS if known else LONG_NS):
            self._turn_to(0, last)
            self._in_one, self._pieces = True, None
        elif not known:
            edges = sorted({0, *pieces_end(times), *self._pauses, last})
            self._pieces = list(pairwise(edges))
        return together

    def _turn_to(self, first: int, after: int) -> None:
        """Let native runs be of some of the entries of the table.

        A worker that is late may read the header meanwhile, and finds that its ticket has gone.
        """
        begin = ctypes.addressof(self._table) + 8 * n.STAGE_WORDS * first
        self._header[_COUNT_WORD], self._header[_TABLE_WORD] = after - first, begin

    def time_stages(self, addresses: Sequence[int]) -> list[int]:
        """Run once, stage by stage, and return each stage's nanoseconds.

        Raises:
            ReentrantCallError: as for `run`.
        """
        start, size = ctypes.addressof(self._each_stage()), 8 * n.HEADER_WORDS
        with self._lock.held:
            if self._arena is not None:
                self._follow_arena(self._arena)
            for address, positions in zip(addresses, self._patches, strict=True):
                for position, offset in positions:
                    self._arguments[position] = address + offset
            return [self._timed(start + number * size) for number in range(self.stages)]

    def _each_stage(self) -> _Words:
        """A header for each stage; made at the first call."""
        if self._alone is None:
            self._alone = self._headers([(number, 1) for number in range(self.stages)])
            self._pool.register(self, (self._alone, self._table))
        return self._alone

    def _timed(self, header: int) -> int:
        """Run the stages of a header; return the nanoseconds."""
        if self.threads == 1:
            start = time.perf_counter_ns()
            self._native.run_alone(header)
            return time.perf_counter_ns() - start
        self._pool.ensure(self.threads)
        self._pool.wake(self.threads - 1)
        start = time.perf_counter_ns()
        self._native.run(header)
        return time.perf_counter_ns() - start


def pieces_end(times: Sequence[int]) -> Iterator[int]:
    """Yield after how many native calls each longer one, of `PIECE_NS` or more, ends.

    Args:
        times: nanoseconds of each.
    """
    passed = 0
    for number, took in enumerate(times):
        passed += took
        if passed >= PIECE_NS:
            passed = 0
            yield number + 1


def _claim(kernel: KernelForm, chunks: int, threads: int) -> int:
    """Return the number of chunks of a round that a thread claims at once, or a `ClaimPolicy`.

    A thread claims one long run where neighbouring chunks share work; else a decreasing number at
    a time (guided), so that all threads end at about the same time.
    """
    both = chunks <= n.MOST_FROM_BOTH_ENDS
    if kernel.reuses_scratch and threads == 2 and chunks <= _MOST_ONE_BY_ONE:
        return n.ClaimPolicy.ONE_FROM_BOTH_ENDS
    if kernel.wants_consecutive_chunks:
        return n.ClaimPolicy.HALVES if both and threads == 2 else ceil_div(chunks, threads)
    return n.ClaimPolicy.FROM_BOTH_ENDS if both else n.ClaimPolicy.GUIDED
