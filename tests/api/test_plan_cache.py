"""The bytes of plans that are kept are counted once each."""

from __future__ import annotations

import numpy as np

import leanconv as lc
from leanconv.api.plan_cache import PlanCache
from leanconv.api.planned_call import PlannedCall
from support.onnx_models import small_cnn


def test_a_plan_put_again_counts_once() -> None:
    cache = PlanCache[str](2**30, keep_newest=False)
    cache.put("key", "first", 1000)
    held = cache.held_bytes
    cache.put("key", "second", 1000)
    assert cache.held_bytes == held
    assert len(cache) == 1
    assert cache.take("key") == "second"
    assert cache.held_bytes == 0


def test_what_plans_share_counts_once_while_one_of_them_is_kept() -> None:
    cache = PlanCache[str](2**30, keep_newest=False)
    cache.put("empty", "", 0)
    own = cache.held_bytes
    cache.put("a", "A", 0, {1: 10_000, 2: 500}, 7_000)
    cache.put("b", "B", 0, {1: 10_000, 3: 800}, 9_000)
    assert cache.held_bytes == 3 * own + 11_300 + 9_000
    assert cache.take("a") == "A"
    assert cache.held_bytes == 2 * own + 10_800 + 9_000
    cache.put("b", "B", 0, {3: 800}, 2_000)
    assert cache.held_bytes == 2 * own + 800 + 2_000
    assert cache.take("b") == "B"
    assert cache.take("empty") == ""
    assert cache.held_bytes == 0


def test_weights_of_evicted_plans_count_while_others_read_them() -> None:
    net = lc.load(small_cnn(), threads=1)
    x = np.ones((2, 3, 16, 16), np.float32)
    net(x)
    first = net._plans.take((net._current.given.shapes,))  # type: ignore[union-attr]
    assert isinstance(first, PlannedCall)
    net(np.ones((3, 3, 16, 16), np.float32))
    second = net._current
    assert isinstance(second, PlannedCall)
    shared = set(first.network.blocks) & set(second.network.blocks)
    assert shared
    del first  # it was evicted: only the second one holds its weights
    blocks = sum(second.network.blocks.values())
    assert net._plans.held_bytes >= blocks + second.network.arena.bytes
    assert net._plans.held_bytes >= second.used_bytes
