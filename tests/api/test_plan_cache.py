"""The bytes of plans that are kept are counted once each."""

from __future__ import annotations

from leanconv.api.plan_cache import PlanCache


def test_a_plan_put_again_counts_once() -> None:
    cache = PlanCache[str](2**30, keep_newest=False)
    cache.put("key", "first", 1000)
    held = cache.held_bytes
    cache.put("key", "second", 1000)
    assert cache.held_bytes == held
    assert len(cache) == 1
    assert cache.take("key") == "second"
    assert cache.held_bytes == 0
