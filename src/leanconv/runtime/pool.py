"""The workers: Python threads that live in one native loop and park in a lock when idle."""

from __future__ import annotations

import _thread
import atexit
import contextlib
import ctypes
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from typing import Protocol

from leanconv.codegen.host import usable_cores
from leanconv.runtime import native as n
from leanconv.runtime.cores import Cores
from leanconv.runtime.locks import Lock
from leanconv.settings import current_settings


class AfterFork(Protocol):
    """Something that must be set right in a forked child."""

    def after_fork(self) -> None:
        """Forget what the parent's other threads were doing."""


class _Worker:
    """One worker: its thread, the locked gate that it parks at, and its cores."""

    def __init__(self, number: int, work: Callable[[int, _Worker], None]) -> None:
        self._gate = threading.Lock()
        self._gate.acquire()
        self._cores = Cores()
        self._parked = False  # or all but
        self.thread = threading.Thread(
            target=work, args=(number, self), name=f"leanconv-{number}", daemon=True
        )

    def wake(self) -> None:
        """Release it if it is parked."""
        if self._parked:
            self._parked = False
            self._cores.leave_this_one(self.thread.native_id or -1)  # 0 would be the caller
        try:  # noqa: SIM105 in every call, and `suppress` takes a microsecond
            self._gate.release()
        except RuntimeError:  # it was not parked
            pass

    def park(self) -> None:
        """Wait to be woken."""
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
        self._growing = threading.Lock()
        self._patience = 0
        self._ended = False
        self._dependants: weakref.WeakSet[AfterFork] = weakref.WeakSet()
        os.register_at_fork(after_in_child=self._after_fork)
        atexit.register(self.stop)

    def register(self, dependant: AfterFork) -> None:
        """Have `dependant.after_fork()` called in forked children while it lives."""
        self._dependants.add(dependant)

    def ensure(self, threads: int) -> None:
        """Start workers until `threads` run in all, the caller counted."""
        if self._ended or len(self._workers) >= threads - 1:
            return
        with self._growing:
            if not self._patience:
                self._patience = _pauses_in(current_settings().spin_us)
            while len(self._workers) < threads - 1:
                worker = _Worker(len(self._workers) + 1, self._work)
                self._workers.append(worker)
                worker.thread.start()

    def _work(self, number: int, worker: _Worker) -> None:
        serve, state, patience = n.native().serve, self.state, self._patience
        # The epoch that the worker saw must go back in: reading it anew after waking loses runs.
        seen = serve(state, patience, 0, number)
        while seen >= 0:
            worker.park()
            seen = serve(state, patience, seen, number)

    def wake(self, workers: int) -> None:
        """Release the first so many workers where any are parked.

        Those beyond stay parked; whether they are is then not known, and asked again next time.
        """
        if self._words[n.SLEEPERS // 8]:
            self._words[n.SLEEPERS // 8] = workers < len(self._workers)
            try:
                for worker in self._workers[:workers]:
                    worker.wake()
            except BaseException:  # Ctrl-C: those not released yet must be by the next call
                self._words[n.SLEEPERS // 8] = 1
                raise

    def drain(self) -> None:
        """Wait until no worker reads any program's tables; no run may be active.

        Programs end in `__del__`, where an exception is lost and what the workers read is freed
        after it: a KeyboardInterrupt that comes while waiting is raised a moment later instead.
        """
        interrupted = False
        while self._words[n.INSIDE // 8]:
            try:  # around the loop: it may come at the loop's jump back, not only in the call
                while self._words[n.INSIDE // 8]:
                    time.sleep(0)
            except KeyboardInterrupt:
                interrupted = True
        if interrupted:
            _thread.start_new_thread(_interrupt_soon, ())

    def stop(self) -> None:
        """End the workers; a later `ensure` starts new ones."""
        workers, self._workers = self._workers, []
        if not workers:
            return
        self._words[n.STOP // 8] = 1
        epoch = (self._words[n.TICKET // 8] >> 32) + 1
        self._words[n.TICKET // 8] = (epoch & 0xFFFFFFFF) << 32 | n.CLOSED << 20
        for worker in workers:
            worker.wake()
        for worker in workers:
            with contextlib.suppress(RuntimeError):  # Ctrl-C came before it was started
                worker.thread.join(timeout=1.0)
        # A worker that is still busy keeps its number, and so its scratch: no new ones then.
        self._ended = any(worker.thread.is_alive() for worker in workers)
        if not self._ended:
            self._words[n.STOP // 8] = 0

    def _after_fork(self) -> None:
        """The child has no workers, and nobody finishes what the parent's threads had begun."""
        self._workers = []
        self._ended = False
        self._growing = threading.Lock()
        for field in (n.DONE, n.BUSY, n.SLEEPERS, n.STOP, n.INSIDE):
            self._words[field // 8] = 0
        self._words[n.TICKET // 8] |= n.CLOSED << 20
        for dependant in list(self._dependants):
            dependant.after_fork()


def _interrupt_soon() -> None:
    """Raise KeyboardInterrupt in the main thread when it has come out of a `__del__`."""
    time.sleep(0.001)
    main = threading.main_thread().ident
    if main is not None and hasattr(signal, "pthread_kill"):
        signal.pthread_kill(main, signal.SIGINT)  # which ends what the thread waits for
    else:
        _thread.interrupt_main()


def _system_yield() -> int:
    """Address of a function that gives the core to another thread; does nothing if unknown."""
    try:
        function = ctypes.CDLL(None).sched_yield
    except (OSError, TypeError, AttributeError):
        return n.native().no_yield
    return ctypes.cast(function, ctypes.c_void_p).value or n.native().no_yield


def _pauses_in(microseconds: int) -> int:
    """How many pauses the native loop makes in that time on this machine."""
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
_making = Lock()


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
