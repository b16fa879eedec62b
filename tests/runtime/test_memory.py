"""Blocks of memory: aligned, zero, counted, given back."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import numpy as np
import pytest

from leanconv.errors import LeanConvError
from leanconv.half_arrays import numpy_dtype
from leanconv.runtime.locks import Registry
from leanconv.runtime.memory import Block, Memory, Outputs
from leanconv.spec.format import ALIGNMENT, aligned
from leanconv.types import BFLOAT16, FLOAT64, UINT8, DType


def resident_bytes() -> int:
    """Memory of this process that is in use, from the system."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 4096, 5_000_000])
def test_blocks_are_aligned_zero_and_whole(size: int) -> None:
    block = Block(size)
    assert block.address % ALIGNMENT == 0
    assert block.bytes == size
    view = block.view(0, size)
    assert view.shape == (size,)
    assert not view.any()
    view[:] = 7
    assert view.ctypes.data == block.address or size == 0
    assert (block.view(size // 2, size - size // 2) == 7).all()


@pytest.mark.parametrize(("size", "rounded"), [(0, 0), (1, 64), (64, 64), (65, 128)])
def test_aligned(size: int, rounded: int) -> None:
    assert aligned(size) == rounded


def test_memory_counts_what_was_asked_for() -> None:
    memory = Memory()
    assert memory.used_bytes == 0
    memory.allocate("weights", 1000)
    memory.allocate("arena", 64)
    assert memory.used_bytes == 1064
    assert {purpose: block.bytes for purpose, block in memory.blocks.items()} == {
        "weights": 1000,
        "arena": 64,
    }
    with pytest.raises(AssertionError):
        memory.allocate("arena", 1)


@pytest.mark.parametrize("size", [2**60, 2**63, 2**70])
def test_memory_that_cannot_be_had_is_an_error_with_a_way_out(size: int) -> None:
    with pytest.raises(LeanConvError, match=r"bytes of memory could not be had.*memory_limit"):
        Memory().allocate("arena", size)


def test_a_result_without_room_is_an_error_with_a_way_out() -> None:
    with pytest.raises(LeanConvError, match="smaller batch"):
        Outputs(0).maker((2**45,), FLOAT64)()


def test_a_view_keeps_its_block() -> None:
    view = Block(100_000).view(0, 100_000)
    gc.collect()
    view[:] = 3
    assert int(view.sum()) == 300_000


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/statm")
def test_blocks_are_given_back_to_the_system() -> None:
    size, before = 16 * 2**20, resident_bytes()
    for _ in range(20):
        block = Block(size)
        block.view(0, size)[:] = 1
        del block
    gc.collect()
    assert resident_bytes() - before < 2 * size


def test_numpy_reads_what_kernels_would() -> None:
    block = Block(64)
    block.view(0, 64).view(np.float32)[:] = 1.5
    assert block.view(32, 4).view(np.float32).tolist() == [1.5]


def test_what_outlives_an_object_goes_when_it_may_and_others_come() -> None:
    class Thing:
        pass

    allowed = [False]
    registry: Registry[Thing] = Registry(lambda: allowed[0])
    kept = Thing()
    registry.add(kept, "kept")
    for _ in range(1000):
        registry.add(Thing(), "of one that has ended")
    assert list(registry) == [kept]
    assert len(registry) == 1001
    allowed[0] = True
    for _ in range(1000):
        registry.add(Thing())
    assert list(registry) == [kept]
    registry.sweep()
    assert len(registry) == 1


@pytest.mark.parametrize("dtype", [FLOAT64, BFLOAT16, UINT8])
def test_a_large_result_begins_a_cache_line(dtype: DType) -> None:
    results = [Outputs(0).maker((3, 5 + i, 2**14 + i), dtype)()[0] for i in range(8)]
    for i, y in enumerate(results):
        assert y.shape == (3, 5 + i, 2**14 + i)
        assert y.dtype == numpy_dtype(dtype)
        assert y.ctypes.data % ALIGNMENT == 0
        assert y.flags.c_contiguous
        assert y.flags.writeable
        y.view(np.uint8)[...] = i
    assert all((y.view(np.uint8) == i).all() for i, y in enumerate(results))
