"""Offsets in the arena: nothing alive overlaps, and no more memory than is needed."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leanconv.planner.arena import Lifetime, assign_offsets, largest_live_set

pytestmark = pytest.mark.presets  # lives are given: there is no machine


@st.composite
def lifetimes(draw: st.DrawFn, most: int = 25) -> list[Lifetime]:
    count = draw(st.integers(1, most))
    result = []
    for i in range(count):
        first = draw(st.integers(0, 30))
        last = first + draw(st.integers(0, 12))
        size = 64 * draw(st.integers(0, 40))
        result.append(Lifetime(f"b{i}", size, first, last))
    return result


def overlapping(buffers: list[Lifetime], offsets: dict[str, int]) -> list[tuple[str, str]]:
    """Pairs that live at the same time and share a byte, from the definition."""
    found = []
    for i, a in enumerate(buffers):
        for b in buffers[i + 1 :]:
            times = set(range(a.first, a.last + 1)) & set(range(b.first, b.last + 1))
            here, there = offsets[a.name], offsets[b.name]
            apart = here + a.bytes <= there or there + b.bytes <= here
            if times and not apart and a.bytes and b.bytes:
                found.append((a.name, b.name))
    return found


def live_set(buffers: list[Lifetime]) -> int:
    """The largest sum of bytes at any time, from the definition."""
    times = range(max(b.last for b in buffers) + 1)
    return max(sum(b.bytes for b in buffers if b.first <= t <= b.last) for t in times)


@settings(max_examples=150, deadline=None)
@given(lifetimes())
def test_nothing_alive_overlaps_and_the_total_is_the_end(buffers: list[Lifetime]) -> None:
    offsets, total = assign_offsets(buffers)
    assert set(offsets) == {b.name for b in buffers}
    assert not overlapping(buffers, offsets)
    assert min(offsets.values()) >= 0
    assert total == max(offsets[b.name] + b.bytes for b in buffers)
    bound = largest_live_set(buffers)
    assert bound == live_set(buffers)
    assert bound <= total <= sum(b.bytes for b in buffers)
    assert all(offset % 64 == 0 for offset in offsets.values())


@settings(max_examples=60, deadline=None)
@given(lifetimes(12))
def test_the_arena_is_near_the_bound(buffers: list[Lifetime]) -> None:
    """First fit by size is within a small factor of the bound on anything."""
    _, total = assign_offsets(buffers)
    assert total <= 2 * largest_live_set(buffers)


def test_the_same_every_time() -> None:
    buffers = [Lifetime(f"b{i}", 64 * (7 * i % 13 + 1), i % 9, i % 9 + i % 4) for i in range(40)]
    assert assign_offsets(buffers) == assign_offsets(buffers)


def test_a_chain_needs_two_neighbours() -> None:
    """As in a network without branches: the largest input and output of one layer."""
    sizes = [640, 1280, 320, 2560, 64, 1920]
    chain = [Lifetime(f"v{i}", size, i, i + 1) for i, size in enumerate(sizes)]
    _, total = assign_offsets(chain)
    assert total == max(a + b for a, b in pairwise(sizes))


def test_a_buffer_that_lives_on_is_not_reused() -> None:
    buffers = [Lifetime("skip", 640, 0, 9), *(Lifetime(f"v{i}", 640, i, i + 1) for i in range(9))]
    offsets, total = assign_offsets(buffers)
    assert not overlapping(buffers, offsets)
    assert total == 3 * 640


def test_buffers_of_one_call_only() -> None:
    offsets, total = assign_offsets([Lifetime("a", 128, 3, 3), Lifetime("b", 128, 4, 4)])
    assert offsets == {"a": 0, "b": 0}
    assert total == 128


def test_thousands_of_buffers_end_soon() -> None:
    buffers = [Lifetime(f"b{i}", 64 * (i % 17), i, i + i % 5) for i in range(3000)]
    offsets, _ = assign_offsets(buffers)
    assert len(offsets) == 3000


def test_a_small_buffer_that_would_end_above_the_bound_is_placed_early() -> None:
    """Inverted residuals: what is projected lives on beside two expanded tensors."""
    buffers = [
        Lifetime("x", 32768, 0, 1),
        Lifetime("expanded", 196608, 1, 2),
        Lifetime("strided", 49152, 2, 7),
        Lifetime("projected", 16384, 7, 15),
        Lifetime("expanded again", 98304, 8, 9),
        Lifetime("filtered", 98304, 9, 14),
    ]
    offsets, total = assign_offsets(buffers)
    assert total == largest_live_set(buffers) == 196608 + 49152
    assert not overlapping(buffers, offsets)


def test_most_arenas_that_can_be_packed_without_a_gap_are() -> None:
    """Rectangles of bytes and time are cut into 24 buffers each, which fill it."""
    draw, reached = random.Random(0), 0
    for _ in range(40):
        pieces = [(0, 64, 0, 31)]
        while len(pieces) < 24:
            pieces.sort(key=lambda p: (p[1] - p[0]) * (p[3] - p[2] + 1))
            low, high, first, last = pieces.pop()
            if draw.random() < 0.5 and high - low > 1:
                middle = draw.randrange(low + 1, high)
                pieces += [(low, middle, first, last), (middle, high, first, last)]
            elif last > first:
                middle = draw.randrange(first, last)
                pieces += [(low, high, first, middle), (low, high, middle + 1, last)]
            else:
                pieces.append((low, high, first, last))
        buffers = [Lifetime(f"b{i}", 64 * (h - lo), a, z) for i, (lo, h, a, z) in enumerate(pieces)]
        reached += assign_offsets(buffers)[1] == 64 * 64
    assert reached >= 36
