"""Progress of long work: logged after more than a second, and reported to the user's function.

What loads, plans, tunes and compiles calls `step` as it goes; around it, `working` says what the
work is for and who wants to know. Runs call neither. `spending` says on what time is spent, for
those who ask with `spent`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from leanconv.errors import LeanConvError, SpecError, short

log = logging.getLogger(__name__)

Progress = Callable[[str, int, int], object]
"""The user's function: it is given a stage, how much of it is done, and how much there is of it."""

_Part = TypeVar("_Part")

_PATIENCE_NS = 1_000_000_000  # shorter work is not logged, and longer work not more often
_MOST_STAGES = 16  # summed up in one line
_clock = time.monotonic_ns


class _Work:
    """Running work, in one thread.

    Attributes:
        telling: whether the user's function is being called.
    """

    def __init__(self, name: str, progress: Progress | None) -> None:
        self._name, self._progress, self.telling = name, progress, False
        self._start = self._logged = self._last = _clock()
        self._stage = ""
        self._spent: dict[str, int] = {}  # nanoseconds by stage

    def step(self, stage: str, done: int, total: int) -> None:
        now = _clock()
        if done or stage == self._stage:
            self._spent[stage] = self._spent.get(stage, 0) + now - self._last
        self._stage, self._last = stage, now
        if now - self._logged >= _PATIENCE_NS:
            self._logged = now
            seconds = (now - self._start) * 1e-9
            log.info("%s: %s, %d of %d after %.1f s", self._name, stage, done, total, seconds)
        if self._progress is not None:
            self.telling = True
            try:
                self._progress(stage, done, total)
            finally:
                self.telling = False

    def end(self) -> None:
        elapsed = _clock() - self._start
        if elapsed >= _PATIENCE_NS:
            longest = sorted(self._spent.items(), key=lambda pair: -pair[1])[:_MOST_STAGES]
            parts = ", ".join(f"{stage} {spent * 1e-9:.1f} s" for stage, spent in longest)
            log.info("%s: ready after %.1f s (%s)", self._name, elapsed * 1e-9, parts)


_current: ContextVar[_Work | None] = ContextVar("leanconv.progress", default=None)


@contextmanager
def working(name: str, progress: Progress | None = None) -> Iterator[None]:
    """Say what the steps in a `with` block are for, unless they are part of other work under way.

    Args:
        name: of the network or problem, as the log shows it.
        progress: is called at every step, by the thread that works and before the work continues;
            what it raises ends the work.

    Raises:
        LeanConvError: the user's function starts such work itself, within that which is reported.
    """
    under_way = _current.get()
    if under_way is not None:
        if under_way.telling:
            raise LeanConvError(
                f"a `progress` function asked leanconv to plan {name} amid other work; expected "
                "such calls before or after that; what is planned already may run meanwhile"
            )
        yield
        return
    work = _Work(name, progress)
    outer = _current.set(work)
    try:
        yield
        work.end()
    finally:
        _current.reset(outer)


def step(stage: str, done: int, total: int) -> None:
    """Report a step, if anybody listens: `done` of the `total` parts of a stage, at first 0."""
    work = _current.get()
    if work is not None:
        work.step(stage, done, total)


def steps(stage: str, parts: Iterable[_Part], total: int) -> Iterator[_Part]:
    """The parts of a stage one by one, each reported when it is done."""
    if total:
        step(stage, 0, total)
    for done, part in enumerate(parts, start=1):
        yield part
        step(stage, done, total)


class Spent:
    """Time spent by purpose, in one thread.

    Attributes:
        ns: nanoseconds by purpose; of what is done for another purpose, none twice.
        kernels, compiled: numbers of kernels that were loaded, and of those compiled for that.
    """

    def __init__(self) -> None:
        self.ns: dict[str, int] = {}
        self.kernels = self.compiled = 0
        self._purpose = ""
        self._since = time.perf_counter_ns()

    def turn(self, purpose: str) -> str:
        """Spend time on another purpose from now on; returns the one before."""
        now, before = time.perf_counter_ns(), self._purpose
        if before:
            self.ns[before] = self.ns.get(before, 0) + now - self._since
        self._purpose, self._since = purpose, now
        return before


_spent: ContextVar[Spent | None] = ContextVar("leanconv.spent", default=None)


@contextmanager
def spent() -> Iterator[Spent]:
    """Measure the time by purpose of the work within a `with` block, in this thread."""
    found = Spent()
    outer = _spent.set(found)
    try:
        yield found
    finally:
        _spent.reset(outer)


@contextmanager
def spending(purpose: str) -> Iterator[None]:
    """Count the time of a `with` block for a purpose, and no longer for that around it."""
    found = _spent.get()
    if found is None:
        yield
        return
    before = found.turn(purpose)
    try:
        yield
    finally:
        found.turn(before)


def count_kernels(kernels: int, compiled: int) -> None:
    """Count kernels that are loaded, and those of them that were compiled."""
    found = _spent.get()
    if found is not None:
        found.kernels += kernels
        found.compiled += compiled


def checked_progress(progress: Any) -> Progress | None:
    """The user's function, or None.

    Raises:
        SpecError: it cannot be called.
    """
    if progress is None or callable(progress):
        found: Progress | None = progress
        return found
    raise SpecError(
        f"progress is {short(progress)}; expected a function of (stage, done, total), or None"
    )
