"""The workers: Python threads that live in one native loop and park in a lock when idle.

Linux puts a woken thread on an idle core. In a virtual machine an idle core counts as taken while
the host does not run it, so the worker is put on the core of its caller, waits there for the end of
the caller's time slice, and is put there again when it has parked: for 10 ms and more, every run
takes as long as on one thread. A worker is therefore forbidden the caller's core until it runs.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import logging
import os
import threading
import time
from collections.abc import Callable

from leanconv.codegen.compile_threads import refused
from leanconv.codegen.host import usable_cores
from leanconv.codegen.process_limits import affordable_threads
from leanconv.interrupts import of_a_handler, owned
from leanconv.runtime import native as n
from leanconv.runtime.locks import Lock, Registry
from leanconv.settings import current_settings

_WINDOW = 8  # runs at least whose mean is judged
_PROBE = 4  # runs at least of a probe
_JUDGED_NS = 2_000_000  # and for so long at least: a few runs of 50 us say little
_SETTLE_NS = 1_000_000  # of a probe are not judged: parked workers come back, caches fill
_ALONE_NS = 50_000_000  # run alone for this long before the first probe, doubled up to the most
_ALONE_MOST_NS = 800_000_000
_WORSE = 1.12  # threads together must be slower than one by this: halves of one core are as fast
_DRIFT = 1.002  # by which the quiet time may rise with each run, to follow slow changes


class Cores:
    """The cores that a thread may run on, fewer while it is being woken.

    An interrupt may come between any two steps: what has not been undone then is recognised, and
    undone when the thread is woken the next time.
    """

    def __init__(self) -> None:
        self._all: set[int] = set()
        self._fewer: set[int] | None = None  # the cores it is limited to now

    def leave_this_one(self, thread: int) -> None:
        """Forbid a sleeping thread the core that the calling thread is on, where it has others.

        Args:
            thread: the system's number of the thread.
        """
        current = _current_core()
        if current is None:
            return
        try:
            now = os.sched_getaffinity(thread)
            if now != self._fewer:
                self._all = now
            others = self._all - {current()}
            if others:
                self._fewer = others
                os.sched_setaffinity(thread, others)
        except OSError as error:  # the thread has ended, or may not be moved
            if of_a_handler(error):
                raise

    def take_all(self) -> None:
        """Allow the calling thread, which is the one, its cores again; it stays where it is."""
        if self._fewer is not None:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, self._all)
            self._fewer = None


@functools.cache
def _current_core() -> Callable[[], int] | None:
    """The system's function that returns the core of the calling thread, None if there is none."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    try:
        function: Callable[[], int] = ctypes.CDLL(None).sched_getcpu
    except (OSError, TypeError, AttributeError):
        return None
    return function


log = logging.getLogger(__name__)

_RETRY_NS = 1_000_000_000  # between attempts to start workers that the system has refused


class _Worker:
    """One worker: its thread, the locked gate that it parks at, and its cores."""

    def __init__(self, number: int, work: Callable[[int, _Worker], None]) -> None:
        self._gate = threading.Lock()
        self._gate.acquire()
        self._cores = Cores()
        self._parked = False  # or all but
        self._claim = threading.Lock()
        self.started = False
        self.thread = threading.Thread(
            target=work, args=(number, self), name=f"leanconv-{number}", daemon=True
        )

    def begin(self) -> bool:
        """Claim the worker for the calling thread; False if the worker has been given up."""
        return self._claim.acquire(blocking=False)

    def give_up(self) -> bool:
        """Keep it from beginning; False if its thread was started.

        Where an exception of a signal handler has come out of the start, nobody knows whether the
        thread runs, and another worker must not get its number, and so its scratch.
        """
        return not self.started and self.begin()

    def wake(self) -> None:
        if self._parked:
            self._parked = False
            self._cores.leave_this_one(self.thread.native_id or -1)  # 0 would be the caller
        try:
            self._gate.release()
        except RuntimeError as error:  # it was not parked
            if of_a_handler(error):
                raise

    def park(self) -> None:
        self._parked = True
        self._gate.acquire()
        self._parked = False
        self._cores.take_all()


class Pool:
    """The process's workers and the state that they share with the caller.

    A program that runs while another one has the workers runs on its caller's thread alone; with
    fewer workers than wanted it is only slower.
    """

    def __init__(self) -> None:
        self._memory = ctypes.create_string_buffer(n.STATE_BYTES + 64)
        self.state = (ctypes.addressof(self._memory) + 63) & ~63
        self._words = (ctypes.c_uint64 * (n.STATE_BYTES // 8)).from_address(self.state)
        self._words[n.TICKET // 8] = n.CLOSED << 20
        self._words[n.YIELD // 8] = _system_yield()
        self._workers: list[_Worker] = []
        self._growing = threading.RLock()
        self._enough = 1  # threads, the caller counted, that are there or cannot be had
        self._retry_at, self._warned = 0, False
        self._patience = 0
        self._waking = False
        self._ended = False
        self._users: Registry[object] = Registry(self._nobody_inside)
        os.register_at_fork(after_in_child=self._after_fork)
        atexit.register(self.stop)

    def register(self, user: object, tables: object) -> None:
        """Take note of a program.

        Args:
            user: the program.
            tables: data that workers may still read for a moment after its end: kept until none
                can. Waiting for them then would be undone by an exception of a signal handler.
        """
        self._users.add(user, tables)

    def _nobody_inside(self) -> bool:
        return not self._words[n.INSIDE // 8]

    def ensure(self, threads: int) -> None:
        """Start workers until `threads` run in all, the caller counted, or the system refuses.

        A warning says so once; a second later, another call may try again.
        """
        if threads <= self._enough or self._ended:
            return
        # In a signal handler that interrupts `ensure`, or soon after a refusal: no more workers.
        if owned(self._growing)() or time.monotonic_ns() < self._retry_at:
            return
        with self._growing:
            if not self._patience:
                self._patience = _pauses_in(current_settings().spin_us)
            self._workers = [worker for worker in self._workers if not worker.give_up()]
            try:
                self._start(threads - 1)
            except (RuntimeError, MemoryError) as error:
                if not refused(error):
                    raise
                self._retry_at = time.monotonic_ns() + _RETRY_NS
                self._warn(threads, error)
            self._enough = 1 + len(self._workers)

    def _start(self, workers: int) -> None:
        # A function of its own: Python 3.13 leaves a lock taken where a handler's exception comes
        # at the end of a `while` loop under `with`.
        while len(self._workers) < workers:
            self._start_one()

    def _start_one(self) -> None:
        """Start one more worker.

        Raises:
            RuntimeError, MemoryError: the system starts no more threads.
        """
        if not affordable_threads(1, allocating=False):
            raise MemoryError("too little memory for a new thread")
        worker = _Worker(len(self._workers) + 1, self._work)
        self._workers.append(worker)
        try:
            worker.thread.start()
        except (RuntimeError, MemoryError) as error:
            if refused(error):
                self._workers.remove(worker)
            raise
        worker.started = True

    def _warn(self, threads: int, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "runs take %d of %d threads: the system starts no more (%s); results are the same, "
                "later; raise `ulimit -u` or the control group's pids.max (where memory is short, "
                "its limit), or give threads=%d",
                1 + len(self._workers),
                threads,
                error,
                1 + len(self._workers),
            )

    def _work(self, number: int, worker: _Worker) -> None:
        if not worker.begin():
            return
        serve, state, patience = n.native().serve, self.state, self._patience
        # The epoch that the worker saw must go back in: reading it anew after waking loses runs.
        seen = serve(state, patience, 0, number)
        while seen >= 0:
            worker.park()
            seen = serve(state, patience, seen, number)

    def wake(self, workers: int) -> None:
        """Release the first `workers` of them where any are parked.

        Whether the others are parked is not known then, and looked up again next time.
        """
        if self._words[n.SLEEPERS // 8] or self._waking:
            self._waking = True  # an exception may interrupt the loop: then all are woken next time
            self._words[n.SLEEPERS // 8] = workers < len(self._workers)
            for worker in self._workers[:workers]:
                worker.wake()
            self._waking = False

    def stop(self) -> None:
        """End the workers; a later `ensure` starts new ones."""
        workers = [worker for worker in self._workers if not worker.give_up()]
        self._workers = []
        self._enough, self._retry_at = 1, 0
        if not workers:
            return
        self._words[n.STOP // 8] = 1
        epoch = (self._words[n.TICKET // 8] >> 32) + 1
        self._words[n.TICKET // 8] = (epoch & 0xFFFFFFFF) << 32 | n.CLOSED << 20
        for worker in workers:
            worker.wake()
        for worker in workers:
            with contextlib.suppress(RuntimeError):  # another thread is just starting it
                worker.thread.join(timeout=1.0)
        # A worker that is still busy keeps its number, and so its scratch: no new ones then.
        self._ended = any(worker.thread.is_alive() for worker in workers)
        if not self._ended:
            self._words[n.STOP // 8] = 0

    def _after_fork(self) -> None:
        """Start without workers in a child: nobody finishes what the parent's threads had begun."""
        self._workers = []
        self._enough, self._retry_at, self._waking = 1, 0, False
        self._ended = False
        self._growing = threading.RLock()
        for field in (n.DONE, n.BUSY, n.SLEEPERS, n.STOP, n.INSIDE):
            self._words[field // 8] = 0
        self._words[n.TICKET // 8] |= n.CLOSED << 20


def _system_yield() -> int:
    """Address of a function that gives the core to another thread; does nothing if unknown."""
    try:
        function = ctypes.CDLL(None).sched_yield
    except (OSError, TypeError, AttributeError):
        return n.native().no_yield
    return ctypes.cast(function, ctypes.c_void_p).value or n.native().no_yield


def _pauses_in(microseconds: int) -> int:
    """Return the number of pauses that the native loop makes in that time on this machine."""
    count = 2000
    spin = n.native().spin
    spin(count)
    best = min(_timed(spin, count) for _ in range(3))
    return max(1, microseconds * 1000 * count // max(1, best))


def _timed(spin: object, count: int) -> int:
    start = time.perf_counter_ns()
    spin(count)  # type: ignore[operator]
    return time.perf_counter_ns() - start


_pool: Pool | None = None
_making = Lock("the start of the runtime")


def pool() -> Pool:
    """The process's pool; made, without workers, on first use."""
    global _pool
    if _pool is None:
        with _making.held:
            if _pool is None:
                _pool = Pool()
    return _pool


def default_threads() -> int:
    """Threads of a plan that does not say: the setting, else the cores of this process."""
    return current_settings().threads or usable_cores()


class Pacing:
    """Decides for each run whether the workers take part.

    Args:
        threads: threads of the program.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._quiet = 0.0  # ns of an undisturbed run together
        self._alone = 0.0  # ns of a run alone, 0 if unknown
        self._sum, self._count, self._most = 0.0, 0, 0
        self._rest_until = 0  # when the time to run alone ends, 0 if there is none
        self._patience = _ALONE_NS
        self._probing = False
        self._settled = 0  # when the runs of a probe begin to count
        self._unjudged: list[int] = []  # ns of the last runs together

    def together(self, now: int) -> bool:
        """Return whether the workers should take part in the run that begins at `now`, in ns."""
        if self._rest_until and now >= self._rest_until:
            self._rest_until, self._probing = 0, True
            self._settled = now + _SETTLE_NS
            self._sum, self._count, self._most = 0.0, 0, 0
        return not self._rest_until

    def record(self, elapsed: int, together: bool, now: int) -> None:
        """Learn from a run of `elapsed` ns that has ended at `now`."""
        if not together:
            self._alone = elapsed if not self._alone else 0.75 * self._alone + 0.25 * elapsed
            return
        # Most runs are only noted: after a run the caches hold little of Python.
        self._unjudged.append(elapsed)
        if len(self._unjudged) >= _WINDOW or self._probing:
            for each in self._unjudged:
                self._judge(each, now)
            self._unjudged.clear()

    def _judge(self, elapsed: int, now: int) -> None:
        """Learn from a run together; after a window of them, see whether they are worth it."""
        self._quiet = float(elapsed) if not self._quiet else min(self._quiet * _DRIFT, elapsed)
        if self._probing and now - elapsed < self._settled:
            return
        self._sum += elapsed
        self._count += 1
        self._most = max(self._most, elapsed)
        if self._count < (_PROBE if self._probing else _WINDOW) or self._sum < _JUDGED_NS:
            return
        # One long run in a window is an accident, such as a page fault, and is not counted.
        mean = (self._sum - self._most) / (self._count - 1)
        self._sum, self._count, self._most = 0.0, 0, 0
        expected = self._alone or self._threads * self._quiet
        if mean > _WORSE * expected:
            self._rest_until = now + self._patience
            self._patience = min(2 * self._patience, _ALONE_MOST_NS)
        else:
            self._patience = _ALONE_NS
            if not self._probing:
                self._alone = 0.0  # forget: it may have been measured in a disturbed time
        self._probing = False
