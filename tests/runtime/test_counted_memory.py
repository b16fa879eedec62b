"""Bytes used, counted by an allocator: what plans predict is what the system is asked for."""

from __future__ import annotations

import gc
import mmap
import tracemalloc
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

import leanconv as lc
from leanconv.runtime import memory
from support import guard_pages
from support.network_models import images, model


class Counter:
    """Counts the anonymous mappings that live."""

    def __init__(self) -> None:
        self.live: dict[int, int] = {}
        self.most = 0
        self._number = 0

    def take(self, mapped: mmap.mmap) -> mmap.mmap:
        """Count a mapping until it is gone."""
        self._number += 1
        number, self.live[self._number] = self._number, len(mapped)
        weakref.finalize(mapped, self.live.pop, number)
        self.most = max(self.most, self.bytes)
        return mapped

    @property
    def bytes(self) -> int:
        """Bytes of all mappings that live."""
        return sum(self.live.values())


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter]:
    """Every block of memory in this test is counted where it is mapped."""
    if guard_pages.side():
        pytest.skip("guard pages map memory by themselves")
    found, plain = Counter(), memory._private
    monkeypatch.setattr(memory, "_private", lambda size: found.take(plain(size)))
    return found


@pytest.mark.parametrize("name", ["mobilenetv2", "vgg16", "densenet_like", "shufflenet_like"])
def test_a_network_maps_what_its_plan_predicts(name: str, counter: Counter) -> None:
    built = model(name)
    x = images(built, 1)
    network = lc.load(built, threads=2)
    network(x)
    gc.collect()
    assert counter.bytes == network.plan.memory_bytes == network.used_bytes
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    y = network(x)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown <= y.nbytes + 64 * 1024, "a call leaves no memory but its result"
    assert counter.bytes == network.used_bytes
    del network
    gc.collect()
    assert counter.bytes == 0


def test_a_convolution_maps_what_its_plan_predicts(counter: Counter) -> None:
    x = np.ones((2, 16, 20, 20), np.float32)
    w = np.ones((24, 16, 3, 3), np.float32)
    for algorithm in (
        None,
        "im2col:rows=batch",
        "mec",
        "mec:rows=3",
        "winograd:form=stages",
        "fft",
    ):
        plan = lc.plan_conv2d(x.shape, w, padding=1, algorithm=algorithm, threads=2)
        plan(x)
        assert counter.bytes == plan.memory_bytes == plan.used_bytes, algorithm
        del plan
        gc.collect()
        assert counter.bytes == 0, algorithm


def test_a_limit_holds_for_what_is_mapped(counter: Counter) -> None:
    built = model("shufflenet_like")
    x = images(built, 1)
    limit = lc.load(built, threads=1).bind(x.shape).memory_bytes
    network = lc.load(built, threads=1, memory_limit=limit)
    network(x)
    gc.collect()
    assert 0 < counter.bytes <= limit
