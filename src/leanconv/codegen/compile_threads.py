"""Compilation of kernels' texts to machine code on several threads at once.

Only queues that are written in C connect the threads: an exception of a signal handler may come
between any two lines of the waiting thread, and a condition or a future that is left half done
then would keep the others waiting for ever.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import logging
from collections.abc import Generator, Iterable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from leanconv.codegen.host import usable_cores
from leanconv.codegen.machine_code import compile_text
from leanconv.codegen.process_limits import affordable_threads
from leanconv.target import Target

log = logging.getLogger(__name__)

_Item = TypeVar("_Item")
_Task = tuple[Any, str]  # item, text
_Result = tuple[Any, "bytes | BaseException"]
_END: _Task = (None, "")


def compiled(
    texts: Iterable[tuple[_Item, str | None]], most: int, target: Target
) -> Generator[tuple[_Item, bytes | None], None, None]:
    """Compile texts while they are being made, on this thread as well once all are made.

    An exception, such as a KeyboardInterrupt, comes through when what the other threads are
    compiling is done: nothing interrupts LLVM.

    Args:
        texts: items with their LLVM IR, made one by one; None where there is nothing to compile.
        most: the most texts that there may be.
        target: the machine to compile for.

    Returns:
        Items with their object files, in any order; those without a text come at once.

    Raises:
        CompileError, OutOfMemoryError: as for `compile_text`.
    """
    tasks: SimpleQueue[_Task] = SimpleQueue()
    results: SimpleQueue[_Result | None] = SimpleQueue()
    others, running, count = -1, 0, 0
    try:
        for item, text in texts:
            if text is None:
                yield item, None
                continue
            tasks.put((item, text))
            count += 1
            if others < 0:
                others = affordable_threads(min(usable_cores(), most) - 1, allocating=True)
            if running < min(others, count):
                if _started(tasks, results, target):
                    running += 1
                else:
                    others = running
        _put_longest_first(tasks)
        for _ in range(count):
            done = _made_here(tasks, target) or results.get()
            assert done is not None, "threads end when they are told to, below"
            item, body = done
            if isinstance(body, BaseException):
                raise body
            yield item, body
    finally:
        _taken(tasks)
        for _ in range(running):
            tasks.put(_END)
        while running:
            running -= results.get() is None


def _started(
    tasks: SimpleQueue[_Task], results: SimpleQueue[_Result | None], target: Target
) -> bool:
    """Start a thread that compiles; False where the system starts no more."""
    try:
        _thread.start_new_thread(_compile, (tasks, results, target))
    except (RuntimeError, MemoryError) as error:
        if not refused(error):
            raise
        _warn(str(error))
        return False
    return True


def refused(error: RuntimeError | MemoryError) -> bool:
    """Return whether a thread could not start; else the error is a signal handler's."""
    return isinstance(error, MemoryError) or "new thread" in str(error)


def _compile(
    tasks: SimpleQueue[_Task], results: SimpleQueue[_Result | None], target: Target
) -> None:
    """Run a thread: compile texts until the queue says that there are no more."""
    while (task := tasks.get()) is not _END:
        item, text = task
        try:
            results.put((item, compile_text(text, target)))
        except BaseException as error:
            results.put((item, error))
    results.put(None)


def _made_here(tasks: SimpleQueue[_Task], target: Target) -> _Result | None:
    """The next text, compiled on this thread; None if all are taken."""
    try:
        item, text = tasks.get_nowait()
    except Empty:
        return None
    return item, compile_text(text, target)


def _put_longest_first(tasks: SimpleQueue[_Task]) -> None:
    """Have the longest of the texts taken first: no thread begins one when all others are done."""
    for task in sorted(_taken(tasks), key=lambda task: len(task[1]), reverse=True):
        tasks.put(task)


def _taken(tasks: SimpleQueue[_Task]) -> list[_Task]:
    """Take all that no thread has taken yet."""
    taken: list[_Task] = []
    with contextlib.suppress(Empty):
        while True:
            taken.append(tasks.get_nowait())
    return taken


@functools.cache
def _warn(reason: str) -> None:
    log.warning(
        "kernels are compiled on fewer threads than this process has cores: the system starts no "
        "more (%s); raise `ulimit -u` or the control group's pids.max",
        reason,
    )
