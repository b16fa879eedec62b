"""Plans kept for later calls, bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

from leanconv.runtime.locks import Lock
from leanconv.runtime.memory import Held

_Plan = TypeVar("_Plan")
NO_BLOCKS: Mapping[int, int] = MappingProxyType({})

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
        self._plans: OrderedDict[object, tuple[_Plan, Held]] = OrderedDict()
        self._own_bytes = 0
        self._blocks: dict[int, tuple[int, int]] = {}  # how many plans hold each, and its bytes
        self._block_bytes = 0
        self._works = False  # whether any plan has needed memory that all work in
        self._lock = Lock("the cache of plans")

    def __len__(self) -> int:
        return len(self._plans)

    @property
    def held_bytes(self) -> int:
        """Bytes of all plans in the cache; a block that several of them share counts once."""
        held = [held for _, held in self._plans.values()] if self._works else []
        working = max((each.working_bytes for each in held), default=0)
        return self._own_bytes + self._block_bytes + working

    @property
    def held(self) -> Held:
        """The memory that all cached plans keep; a block that several of them share counts once."""
        found = [held for _, held in list(self._plans.values())]
        blocks = {block: size for held in found for block, size in held.blocks.items()}
        working = max((held.working_bytes for held in found), default=0)
        own = sum(held.own_bytes - _OVERHEAD_BYTES for held in found)
        return Held(own, blocks, working)

    def _add(self, key: object, plan: _Plan, held: Held) -> None:
        """Take a plan in, and count it."""
        self._plans[key] = plan, held
        self._own_bytes += held.own_bytes
        self._works = self._works or held.working_bytes > 0
        for block, size in held.blocks.items():
            count, _ = self._blocks.get(block, (0, size))
            self._block_bytes += 0 if count else size
            self._blocks[block] = count + 1, size

    def _subtract(self, held: Held) -> None:
        """Count a plan no longer."""
        self._own_bytes -= held.own_bytes
        for block in held.blocks:
            count, size = self._blocks.pop(block, (0, 0))
            if count > 1:
                self._blocks[block] = count - 1, size
            else:
                self._block_bytes -= size

    def _recount(self) -> None:
        """Count all plans anew: a call that was interrupted may have lost count."""
        plans = list(self._plans.items())
        self._own_bytes, self._blocks, self._block_bytes = 0, {}, 0
        for key, (plan, held) in plans:
            self._add(key, plan, held)

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
            self._subtract(found[1])
            return found[0]

    def put(
        self,
        key: object,
        plan: _Plan,
        plan_bytes: int,
        blocks: Mapping[int, int] = NO_BLOCKS,
        working_bytes: int = 0,
    ) -> None:
        """Keep a plan, and evict others until all fit.

        Args:
            key: under which it is found.
            plan: the plan to keep.
            plan_bytes, blocks, working_bytes: as in `Held`; blocks stay while any plan holds them.
        """
        if self._lock.mine():
            return
        evicted = []  # freed outside the lock: what it holds may be large
        with self._lock.bare:
            before = self._plans.pop(key, None)
            if before is not None:
                self._subtract(before[1])
                evicted.append(before)
            self._add(key, plan, Held(plan_bytes + _OVERHEAD_BYTES, blocks, working_bytes))
            if self.held_bytes > self._limit_bytes:
                self._recount()
            self._evict(evicted)
        del evicted

    def clear(self) -> None:
        """Give all plans up."""
        if self._lock.mine():
            return
        with self._lock.bare:
            given_up = list(self._plans.values())  # freed outside the lock, as in `put`
            self._plans.clear()
            self._recount()
        del given_up

    def _evict(self, evicted: list[tuple[_Plan, Held]]) -> None:
        """Move the oldest plans out until the others fit; only under the lock.

        A function of its own: Python 3.13 leaves a lock taken where a handler's exception comes at
        the end of a `while` loop under `with`.
        """
        while len(self._plans) > self._most or (
            self.held_bytes > self._limit_bytes and len(self._plans) > self._keep_newest
        ):
            _, oldest = self._plans.popitem(last=False)
            self._subtract(oldest[1])
            evicted.append(oldest)
