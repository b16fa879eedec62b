"""All plans of a network work in one arena, as large as the largest needs."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import leanconv as lc
from leanconv.errors import OutOfMemoryError, ReentrantCallError
from leanconv.runtime import memory
from leanconv.runtime.memory import Block, SharedArena
from support.network_models import images, model

BATCHES = (3, 1, 4, 2)


def arena_of(net: lc.Network) -> SharedArena:
    arena: SharedArena = net._backend._shared.arena  # type: ignore[attr-defined]
    return arena


def size(arena: SharedArena) -> int:
    assert arena.block is not None
    return arena.block.bytes


def test_the_arena_is_as_large_as_the_largest_plan() -> None:
    built = model("squeezenet_like")
    net, sizes = lc.load(built, threads=2), []
    for batch in BATCHES:
        net(images(built, batch))
        sizes.append(net.plan.arena_bytes)
        assert size(arena_of(net)) == max(sizes)
        assert net.used_bytes == net.plan.memory_bytes
    assert len(set(sizes)) == len(sizes)


def test_answers_do_not_depend_on_where_the_arena_is() -> None:
    built = model("squeezenet_like")
    net, answers = lc.load(built, threads=2), {}
    for batch in BATCHES:
        answers[batch] = net(images(built, batch))
    for batch in (*reversed(BATCHES), *BATCHES):
        arena = arena_of(net)
        with arena.lock.held:
            arena.resize(size(arena) + 4096)
            assert arena.block is not None
            arena.block.view(0, arena.block.bytes)[:] = 255  # NaNs
        assert np.array_equal(net(images(built, batch)), answers[batch])


def test_plans_run_in_turn() -> None:
    built = model("squeezenet_like")
    net, alone = lc.load(built, threads=2), lc.load(built, threads=1)
    answers = {batch: alone(images(built, batch)) for batch in BATCHES}
    with ThreadPoolExecutor(4) as threads:
        found = threads.map(lambda batch: (batch, net(images(built, batch))), BATCHES * 8)
        for batch, answer in found:
            assert np.array_equal(answer, answers[batch])


def test_it_shrinks_with_the_plans() -> None:
    arena = SharedArena()
    small = arena.part(1000)
    large = arena.part(9000)
    assert (small.growth, large.growth, size(arena)) == (1000, 8000, 9000)
    del large
    gc.collect()
    other = arena.part(2000)
    assert (other.growth, size(arena)) == (1000, 2000)


def test_it_recovers_from_want_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = SharedArena()
    small = arena.part(1000)

    def refused(size: int) -> Block:
        raise OutOfMemoryError("no memory")

    with monkeypatch.context() as patched:
        patched.setattr(memory, "Block", refused)
        with pytest.raises(OutOfMemoryError):
            arena.part(9000)
    assert arena.block is None
    assert small.address()
    assert size(arena) == 1000


def test_a_part_is_not_made_within_a_run() -> None:
    arena = SharedArena()
    with arena.lock.held, pytest.raises(ReentrantCallError, match="interrupts"):
        arena.part(1)
