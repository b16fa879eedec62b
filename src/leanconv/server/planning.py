"""Shapes are planned by a thread of their own, so that requests for others go on meanwhile."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterable
from concurrent.futures import Future

from leanconv.errors import LeanConvError
from leanconv.progress import working
from leanconv.server.plans import Plans, Wanted
from leanconv.server.refusals import BUSY, FAILED, RefusedError

log = logging.getLogger(__name__)
Planned = Future[bool]  # and not of the group: what is evicted must not be held here


class _StoppedError(Exception):
    """Ends the planning when the server ends."""


class Planning:
    """The thread, and what waits for it; used by the event loop's thread alone.

    Args:
        most: groups that may wait.
        limit: the most that the plans of all networks may take together; None for any.
        networks: all of the server.
    """

    def __init__(self, most: int, limit: int | None, networks: Iterable[Plans]) -> None:
        self._most, self._limit, self._networks = most, limit, tuple(networks)
        self._waiting: dict[tuple[int, object], Planned] = {}
        self._work = queue.SimpleQueue[tuple[Plans, Wanted, Planned] | None]()
        self._stopping = False
        self._thread = threading.Thread(target=self._plan_all, name="leanconv-plans", daemon=True)
        self._thread.start()

    def planned(self, plans: Plans, wanted: Wanted) -> Planned:
        """What is done when the group of a request is planned: True then.

        Raises:
            RefusedError: too many are being planned.
        """
        key = id(plans), wanted.key
        self._waiting = {k: f for k, f in self._waiting.items() if not f.done()}
        found = self._waiting.get(key)
        if found is None:
            if len(self._waiting) >= self._most or self._stopping:
                raise RefusedError(
                    BUSY, f"{self._most} shapes are being planned; try again later", retry_s=5
                )
            found = self._waiting[key] = Future()
            self._work.put((plans, wanted, found))
        return found

    @property
    def waiting(self) -> int:
        """Groups that are being planned, or wait for it."""
        return sum(not future.done() for future in self._waiting.values())

    def close(self) -> None:
        """Give up what is being planned, and end the thread."""
        self._stopping = True
        self._work.put(None)
        self._thread.join()

    def _plan_all(self) -> None:
        while (work := self._work.get()) is not None:
            plans, wanted, future = work
            if not future.set_running_or_notify_cancel():
                continue
            try:
                with working("a new shape", self._look):
                    plans.plan(wanted, self._left(plans))
                future.set_result(True)
            except (LeanConvError, RefusedError) as error:
                future.set_exception(error)
            except _StoppedError:
                future.set_exception(RefusedError(BUSY, "the server is stopping", retry_s=5))
            except Exception as error:
                log.exception("planning failed")
                what = f"planning failed: {type(error).__name__}: {error}"
                future.set_exception(RefusedError(FAILED, what))

    def _left(self, plans: Plans) -> int | None:
        """The most that the plans of a network may take beside those of all others."""
        if self._limit is None:
            return None
        others = sum(each.held_bytes for each in self._networks if each is not plans)
        return self._limit - others

    def _look(self, _stage: str, _done: int, _total: int) -> None:
        if self._stopping:
            raise _StoppedError
