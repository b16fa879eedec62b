"""Programs: every chunk once, the same bits whoever runs them, an end in every case."""

from __future__ import annotations

import ctypes
import threading
import time
import weakref
from dataclasses import dataclass

import numpy as np
import pytest

from leanconv.codegen.compiler import load
from leanconv.codegen.emitter import Function
from leanconv.codegen.kernel import SCRATCH_OF_NEXT, SCRATCH_OF_PREVIOUS, Kernel
from leanconv.errors import SpecError
from leanconv.runtime import native as n
from leanconv.runtime.pool import pool
from leanconv.runtime.program import Program, Slot, Stage
from leanconv.target import Target
from support.tick_kernels import Chain, Count, InRounds, Mix, Square, counter, together, word
from support.waiting import HANG_S, wait_until


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
@pytest.mark.parametrize(
    ("stages", "chunks"), [(1, 1), (3, 2), (4, 7), (2, 1000), (2, 1023), (2, 1024)]
)
def test_every_chunk_is_done_once(threads: int, stages: int, chunks: int) -> None:
    program, counts = counter(threads, stages, chunks)
    together(program)
    for run in range(1, 60):
        assert program.run([]) > 0
        for count in counts:
            assert (count == run).all()


def test_same_bits_for_any_number_of_threads() -> None:
    x = np.random.default_rng(0).normal(size=500)
    results = []
    for threads in (1, 2, 3, 5):
        chain = Chain(threads)
        together(chain.program)
        results += [chain(x).tobytes() for _ in range(40)]
        assert np.allclose(chain(x), chain.expected(x), rtol=1e-12)
    assert len(set(results)) == 1


def test_stages_run_one_after_the_other() -> None:
    """Every element depends on its neighbour one stage before: an early start shows."""
    x = np.arange(300.0)
    chain = Chain(5, stages=40, count=300, delay=20)
    together(chain.program)
    expected = chain.expected(x)
    for _ in range(30):
        np.testing.assert_allclose(chain(x), expected, rtol=1e-12)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 7, 64])
def test_rounds_of_a_stage_run_one_after_the_other(threads: int, count: int) -> None:
    times, repeats = 60, 2 if count > 1 else n.MAX_STAGES // 60 + 2  # more than the table holds
    kernel = InRounds(count, times)
    y = [np.zeros((times + 1, count), np.int64) for _ in range(repeats)]
    stages = [Stage(kernel, (each.ctypes.data,)) for each in y]
    program = together(Program(stages, load([kernel]), 0, 0, 0, threads))
    for run in range(5):
        for each in y:
            each[0], each[1:] = np.arange(count) + run, -1
        program.time_stages([]) if run == 4 else program.run([])
        expected = y[0][0]
        for number in range(1, times + 1):
            expected = expected + np.roll(expected, -1)
            assert all((each[number] == expected).all() for each in y)


def test_the_longest_program_and_the_largest_stage() -> None:
    program, counts = counter(2, n.MAX_STAGES, 3)
    program.run([])
    program.run([])
    assert all((count == 2).all() for count in counts)
    program, (count,) = counter(2, 1, n.MAX_CHUNKS)
    together(program).run([])
    assert (count == 1).all()
    with pytest.raises(SpecError, match="4095 stages"):
        counter(1, n.MAX_STAGES + 1, 1)
    with pytest.raises(SpecError, match="parts; expected at most"):
        counter(1, 1, n.MAX_CHUNKS + 1)


def test_a_program_without_stages_does_nothing() -> None:
    assert Program([], load([Count(1)]), 0, 0, 0, 3).run([]) == 0


def test_the_wrong_number_of_arrays_is_our_own_error() -> None:
    chain = Chain(1)
    with pytest.raises(ValueError, match="argument"):
        chain.program.run([0])


def test_scratch_is_private_to_each_thread() -> None:
    """Each chunk writes its number to scratch, works, and reads it back."""

    @dataclass(frozen=True)
    class Scribble(Kernel):
        @property
        def operands(self) -> tuple[str, ...]:
            return ("y",)

        @property
        def chunks(self) -> int:
            return 200

        def emit(self, target: Target) -> str:
            e = Function(self.NAME)
            y = e.pointer(0, "i64")
            with e.chunks(200) as (i,):
                e.store(i, e.scratch)
                spent = [i]
                with e.loop("d", 3000, [spent]):
                    spent[0] = (spent[0] * 7 + 3) & 0xFFFF
                e.store(spent[0], e.scratch.at(64))
                e.store(e.load(e.scratch, "i64"), y.at(i))
            return e.finish()

    threads, y = 4, np.zeros(200, np.int64)
    scratch = np.zeros(128 * threads // 8 + 8, np.int64)
    start = (scratch.ctypes.data + 63) & ~63
    program = Program(
        [Stage(Scribble(), (y.ctypes.data,))], load([Scribble()]), 0, start, 128, threads
    )
    together(program)
    for _ in range(30):
        y[:] = -1
        program.run([])
        assert y.tolist() == list(range(200))


def test_a_call_is_given_whose_scratch_it_finds() -> None:
    """One thread goes up from the first chunk, the other down from the last, in every stage."""

    @dataclass(frozen=True)
    class Told(Kernel):
        @property
        def operands(self) -> tuple[str, ...]:
            return ("y",)

        @property
        def chunks(self) -> int:
            return 40

        @property
        def reuses_scratch(self) -> bool:
            return True

        def emit(self, target: Target) -> str:
            e = Function(self.NAME)
            y, chunk = e.pointer(0, "i64"), e.lo & (SCRATCH_OF_NEXT - 1)
            spent = [chunk]
            with e.loop("d", 3000, [spent]):
                spent[0] = (spent[0] * 7 + 3) & 0xFFFF
            e.store(e.lo - chunk + (spent[0] & 0), y.at(chunk))
            return e.finish()

    y = np.zeros((3, 40), np.int64)
    stages = [Stage(Told(), (row.ctypes.data,)) for row in y]
    program = Program(stages, load([Told()]), 0, 0, 0, 2)
    together(program)
    for _ in range(30):
        y[...] = -1
        program.run([])
        for row in y:
            marks = [SCRATCH_OF_NEXT, 0, SCRATCH_OF_PREVIOUS]
            kinds = [marks.index(mark) - 1 for mark in row]  # -1, 0, 1
            up = next((i for i in range(1, 40) if kinds[i] != 1), 40)
            assert kinds in ([0, *[1] * (up - 1), *[-1] * (39 - up), 0][:40], [0, *[1] * 39]) or (
                kinds == [*[-1] * 39, 0]
            ), kinds


# -- workers that are not there ------------------------------------------------------------
def test_ends_when_the_workers_sleep_or_are_gone() -> None:
    x = np.arange(500.0)
    chain = Chain(3)
    together(chain.program)
    expected = chain(x)
    for pause in (0.0, 0.001, 0.02, 0.05):  # from spinning to parked
        for _ in range(4):
            time.sleep(pause)
            assert np.array_equal(chain(x), expected)
    pool().stop()
    assert not [t for t in threading.enumerate() if t.name.startswith("leanconv")]
    chain.program._pool.ensure = lambda threads: None  # type: ignore[method-assign]
    try:
        for _ in range(20):
            assert np.array_equal(chain(x), expected)
    finally:
        del chain.program._pool.ensure


def test_the_pool_stops_and_starts_again() -> None:
    x = np.arange(500.0)
    chain = Chain(4)
    together(chain.program)
    expected = chain(x)
    for _ in range(15):
        assert np.array_equal(chain(x), expected)
        workers = [t for t in threading.enumerate() if t.name.startswith("leanconv")]
        assert len(workers) >= 3
        pool().stop()
        assert not [t for t in workers if t.is_alive()]
    pool().stop()
    assert np.array_equal(chain(x), expected)


def test_workers_take_part() -> None:
    """Two threads that are asked for are two threads that work: chunks end on both."""

    @dataclass(frozen=True)
    class Who(Kernel):
        @property
        def operands(self) -> tuple[str, ...]:
            return ("y",)

        @property
        def chunks(self) -> int:
            return 64

        def emit(self, target: Target) -> str:
            e = Function(self.NAME)
            y = e.pointer(0, "i64")
            with e.chunks(64) as (i,):
                spent = [i]
                with e.loop("d", 20000, [spent]):
                    spent[0] = (spent[0] * 7 + 3) & 0xFFFF
                with e.when(spent[0].compare("ult", 1 << 20)):
                    e.store(e.convert("ptrtoint", e.scratch, "i64"), y.at(i))
            return e.finish()

    y = np.zeros(64, np.int64)
    program = Program([Stage(Who(), (y.ctypes.data,))], load([Who()]), 0, 4096, 64, 2)
    together(program)
    seen: set[int] = set()

    def both() -> bool:
        program.run([])
        seen.update(y.tolist())
        return len(seen) > 1

    for pause in (0.0, 0.05, 0.05):  # a worker that is new, and one that was parked
        time.sleep(pause)
        seen.clear()
        wait_until(both)
        assert seen == {4096, 4096 + 64}


def nobody_inside() -> ctypes.c_uint64:
    """The count of workers that may be reading tables, once it is zero."""
    inside = ctypes.c_uint64.from_address(pool().state + n.INSIDE)
    wait_until(lambda: not inside.value)
    return inside


def test_tables_are_freed_only_when_no_worker_is_inside() -> None:
    """The end of a program waits for nobody, so that nothing can cut the waiting short."""
    chain = Chain(2)
    chain(np.arange(500.0))
    inside = nobody_inside()
    tables = [weakref.ref(chain.program._header), weakref.ref(chain.program._table)]
    try:
        inside.value = 1  # as if a worker were late
        del chain
        pool()._users.sweep()
        assert all(table() is not None for table in tables)
    finally:
        inside.value = 0
    pool()._users.sweep()
    assert all(table() is None for table in tables)


def test_nothing_is_left_open_after_a_run() -> None:
    chain = Chain(3)
    together(chain.program)
    chain(np.arange(500.0))
    state = pool().state
    assert (word(state, n.TICKET) >> 20) & 0xFFF == n.CLOSED
    assert word(state, n.BUSY) == 0
    assert word(state, n.DONE) == 0
    assert nobody_inside().value == 0


# -- several callers -----------------------------------------------------------------------
def test_one_program_from_several_python_threads() -> None:
    chain = Chain(3)
    together(chain.program)
    failures: list[str] = []

    def caller(seed: int) -> None:
        x = np.random.default_rng(seed).normal(size=500)
        expected, end = Chain(1)(x), time.monotonic() + 0.7
        while time.monotonic() < end and not failures:
            if not np.array_equal(chain(x), expected):
                failures.append(f"caller {seed} got another answer")

    callers = [threading.Thread(target=caller, args=(seed,)) for seed in range(3)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join(timeout=HANG_S)
        assert not thread.is_alive()
    assert not failures


def test_many_programs_at_once() -> None:
    """One has the workers, the others run alone; neither meets the other's tables."""
    failures: list[str] = []

    def caller(seed: int) -> None:
        chain = Chain(2 + seed, stages=3 + 4 * seed, count=200 + 50 * seed, delay=10)
        together(chain.program)
        x = np.random.default_rng(seed).normal(size=200 + 50 * seed)
        expected, end = chain.expected(x), time.monotonic() + 1.0
        while time.monotonic() < end and not failures:
            if not np.allclose(chain(x), expected, rtol=1e-12):
                failures.append(f"caller {seed} got another answer")

    callers = [threading.Thread(target=caller, args=(seed,)) for seed in range(3)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join(timeout=HANG_S)
        assert not thread.is_alive()
    assert not failures


def test_programs_come_and_go_while_others_run() -> None:
    """A program's tables are freed only when no worker can be reading them."""
    stop, failures = threading.Event(), []
    keeper = Chain(3, stages=10, delay=5)
    together(keeper.program)
    x = np.arange(500.0)
    expected = keeper(x)

    def caller() -> None:
        while not stop.is_set():
            if not np.array_equal(keeper(x), expected):
                failures.append("wrong")
                return

    thread = threading.Thread(target=caller)
    thread.start()
    for _ in range(100):
        chain = Chain(3, stages=4)
        together(chain.program)
        assert np.allclose(chain(x), chain.expected(x), rtol=1e-12)
        del chain
    stop.set()
    thread.join(timeout=HANG_S)
    assert not thread.is_alive()
    assert not failures


def test_time_stages_runs_the_same_stages() -> None:
    chain, x = Chain(2), np.arange(500.0)
    y = np.full_like(x, np.nan)
    times = chain.program.time_stages([x.ctypes.data, y.ctypes.data])
    assert len(times) == 6
    assert min(times) > 0
    assert np.array_equal(y, chain(x))


# -- floating point state ------------------------------------------------------------------
def _denormals_live() -> bool:
    tiny = np.full(64, 2e-38, "f4")
    return bool(((tiny * np.float32(0.1)) > 0).all()) and float(np.float32(1e-45)) > 0


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_denormals_are_flushed_inside_and_live_outside(threads: int) -> None:
    x = np.full(256, 1e-20, "f4")
    y = np.full(256, np.nan, "f4")
    program = Program(
        [Stage(Square(256), (Slot(0), Slot(1)))], load([Square(256)]), 2, 0, 0, threads
    )
    assert _denormals_live()
    assert (x * x > 0).all()
    for _ in range(50):
        y[:] = np.nan
        program.run([x.ctypes.data, y.ctypes.data])
        assert (y == 0).all()  # on whichever thread a chunk was done
        assert _denormals_live()


def test_denormals_live_after_a_run_beside_another() -> None:
    """The path of a caller that finds the workers taken restores the state too."""
    seen: list[bool] = []
    chains = [Chain(2, delay=200) for _ in range(2)]
    for chain in chains:
        together(chain.program)

    def caller(chain: Chain) -> None:
        x = np.arange(500.0)
        for _ in range(60):
            chain(x)
            seen.append(_denormals_live())

    callers = [threading.Thread(target=caller, args=(chain,)) for chain in chains]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join(timeout=HANG_S)
    assert seen == [True] * 120


def test_mix_is_what_it_says() -> None:
    x = np.array([1.0, 2.0, 4.0])
    assert Mix(3, 2.0).apply(x).tolist() == [4.0, 8.0, 9.0]
