"""Plans kept for later calls, bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

from leanconv.runtime.locks import Lock

_Plan = TypeVar("_Plan")

# What a plan takes beside its counted memory: tables, loaded code, Python's objects. 56 KiB were
# measured for a plan of one convolution.
_OVERHEAD_BYTES = 64 * 2**10


class PlanCache(Generic[_Plan]):
    """Plans by key; the least recently used one is evicted first.

    A signal handler that interrupts a call of the cache on its thread finds it empty, and what it
    puts in is not kept.

    Args:
        limit_bytes: the most that all plans may hold together.
        keep_newest: keep the plan that was put last even if it alone is over the limit.
        most: how many plans are kept.
    """

    def __init__(self, limit_bytes: int, *, keep_newest: bool, most: int = 2**31) -> None:
        self._limit_bytes, self._keep_newest, self._most = limit_bytes, keep_newest, most
        self._plans: OrderedDict[object, tuple[_Plan, int]] = OrderedDict()
        self._held_bytes = 0
        self._lock = Lock("the cache of plans")

    def __len__(self) -> int:
        return len(self._plans)

    @property
    def held_bytes(self) -> int:
        """Bytes of all plans in the cache."""
        return self._held_bytes

    def get(self, key: object) -> _Plan | None:
        """The plan of a key, now the most recently used one, or None."""
        if self._lock.mine():
            return None
        with self._lock.bare:
            found = self._plans.get(key)
            if found is None:
                return None
            self._plans.move_to_end(key)
            return found[0]

    def take(self, key: object) -> _Plan | None:
        """Take a plan out, so that nobody else can use it meanwhile; None if there is none."""
        if self._lock.mine():
            return None
        with self._lock.bare:
            found = self._plans.pop(key, None)
            if found is None:
                return None
            self._held_bytes -= found[1]
            return found[0]

    def put(self, key: object, plan: _Plan, plan_bytes: int) -> None:
        """Keep a plan that holds `plan_bytes`, and evict others until all fit."""
        if self._lock.mine():
            return
        evicted = []  # freed outside the lock: what it holds may be large
        with self._lock.bare:
            before = self._plans.pop(key, None)
            if before is not None:
                self._held_bytes -= before[1]
                evicted.append(before)
            self._plans[key] = plan, plan_bytes + _OVERHEAD_BYTES
            self._held_bytes += plan_bytes + _OVERHEAD_BYTES
            if self._held_bytes > self._limit_bytes:  # an interrupted call may have lost count
                self._held_bytes = sum(size for _, size in self._plans.values())
            self._evict(evicted)
        del evicted

    def _evict(self, evicted: list[tuple[_Plan, int]]) -> None:
        """Move the oldest plans out until the others fit; only under the lock.

        A function of its own: Python 3.13 leaves a lock taken where a handler's exception comes at
        the end of a `while` loop under `with`.
        """
        while len(self._plans) > self._most or (
            self._held_bytes > self._limit_bytes and len(self._plans) > self._keep_newest
        ):
            _, oldest = self._plans.popitem(last=False)
            self._held_bytes -= oldest[1]
            evicted.append(oldest)
