"""Taps are counted and columns are cut in closed form: against a walk over all positions."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from leanconv.codegen.column_tiles import (
    ColumnTile,
    bounded_tiles,
    column_tiles,
    overlapping_tiles,
    written_tiles,
)
from leanconv.codegen.geometry import Window, first_residue_below, floor_sum, residues_below


def _windows(count: int) -> list[Window]:
    """Windows along one axis, strange ones among them."""
    draw = random.Random(count)
    return [
        Window(
            (1, 1, draw.choice((1, 2, 3, 5, 8, 13, 30))),
            (1, 1, draw.choice((1, 2, 3, 7, 20, 70))),
            (1, 1, draw.choice((1, 2, 3, 4, 7, 11, 20))),
            (1, 1, draw.choice((1, 1, 2, 3, 5, 9))),
            (1, 1, draw.choice((1, 1, 2, 3, 5, 8, 17, 40))),
            (0, 0, draw.choice((0, 0, 1, 2, 3, 5, 17, 60, -1, -3, -40))),
        )
        for _ in range(count)
    ]


def _touched(window: Window, o: int) -> frozenset[int]:
    start = o * window.stride[2] - window.pad[2]
    taps = range(window.kernel[2])
    return frozenset(t for t in taps if 0 <= start + t * window.dilation[2] < window.size[2])


def test_floor_sums_are_sums() -> None:
    draw = random.Random(1)
    for _ in range(500):
        count, step, start = (draw.randrange(40) for _ in range(3))
        divisor = draw.randrange(1, 30)
        assert floor_sum(count, step, start, divisor) == sum(
            (start + i * step) // divisor for i in range(count)
        )
        bound = draw.randrange(divisor + 1)
        low = [(start - 20 + i * step) % divisor < bound for i in range(count)]
        assert residues_below(count, step, start - 20, divisor, bound) == sum(low)
        first = low.index(True) if any(low) else count
        assert first_residue_below(count, step, start - 20, divisor, bound) == first


def test_taps_are_counted_as_they_are() -> None:
    for window in _windows(600):
        touched = [_touched(window, o) for o in range(window.out[2])]
        every = window.kernel[2]
        full = [o for o, taps in enumerate(touched) if len(taps) == every]
        first, stop = window.full(2)
        assert list(range(first, stop)) == full, window
        assert window.always_full(2) == (len(full) == window.out[2]), window
        assert window.sometimes_empty(2) == (not all(touched)), window
        assert window.live_taps(2) == sum(map(len, touched)), window
        assert window.most_taps(2) == max(map(len, touched)), window


def _spelt(tiles: list[ColumnTile]) -> list[frozenset[int] | None]:
    """For each column the taps that its tile says; None where they are computed."""
    columns: list[frozenset[int] | None] = []
    for tile in tiles:
        assert tile.first == len(columns)
        for _ in range(tile.count):
            for p in range(tile.pixels):
                runs = [range(low, high) for low, high, of in tile.runs if p in of]
                taps = frozenset(tap for run in runs for tap in run)
                columns.append(None if tile.computed else taps)
    return columns


@pytest.mark.parametrize("pixels", [1, 2, 3, 7, 14])
def test_tiles_have_the_taps_of_their_columns(pixels: int) -> None:
    for window in _windows(300 + pixels):
        expected = [_touched(window, o) for o in range(window.out[2])]
        tiles = list(column_tiles(window, pixels))
        assert _spelt(tiles) == expected, window
        kinds = [(tile.pixels, tile.runs) for tile in tiles]
        assert all(a != b for a, b in pairwise(kinds)), "equal ones are merged"
        for found in (bounded_tiles(window, pixels), written_tiles(window, pixels, 5)):
            pairs = zip(_spelt(found), expected, strict=True)
            assert all(taps in (None, wanted) for taps, wanted in pairs), window


def test_code_does_not_grow_with_what_is_at_the_ends() -> None:
    window = Window((1, 1, 9), (1, 1, 2**30 + 9), (1, 1, 3), (1, 1, 1), (1, 1, 1), (0, 0, 2**29))
    assert len(list(column_tiles(window, 7))) < 8
    long = Window((1, 1, 999), (1, 1, 999), (1, 1, 999), (1, 1, 1), (1, 1, 1), (0, 0, 499))
    assert [tile.computed for tile in written_tiles(long, 14, 64)] == [True, False, True]


@pytest.mark.pairs
@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("pixels", [3, 6, 7, 8, 14])
@pytest.mark.parametrize(
    ("kernel", "stride", "pad"),
    [(1, 1, 0), (3, 1, 1), (5, 1, 2), (3, 2, 1), (7, 1, 3), (7, 2, 3), (1, 1, 2), (9, 2, 6)],
)
def test_overlapping_tiles_store_every_column(
    kernel: int, stride: int, pad: int, pixels: int, once: bool
) -> None:
    for width in range(1, 6 * pixels):
        fitting = (width - 1) * stride + kernel - 2 * pad  # as many columns before as behind
        for size in {width * stride, width * stride - stride + 1, max(1, fitting)}:
            window = Window(
                (1, 1, size), (1, 1, width), (1, 1, kernel), (1, 1, stride), (1, 1, 1), (0, 0, pad)
            )
            stored = [0] * width
            for tile in overlapping_tiles(window, pixels, once):
                for index in range(tile.count if tile.needed > 0 else 0):
                    column = tile.first + index * tile.pixels
                    first = column if tile.most is None else min(column, tile.most)
                    done = column - first if tile.once else tile.done
                    for p in range(tile.pixels):  # those that are done read, too
                        runs = [range(low, high) for low, high, of in tile.runs if p in of]
                        taps = frozenset(tap for run in runs for tap in run)
                        touched = _touched(window, first + p)
                        assert tile.computed or taps == touched, (window, tile)
                        stored[first + p] += p >= done
            assert min(stored) == 1, (window, stored)
            assert not once or max(stored) == 1, (window, stored)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("pixels", [6, 8])
def test_overlapping_tiles_are_the_same_but_for_the_narrowest_rows(
    pixels: int, stride: int
) -> None:
    def cut(size: int) -> tuple[object, ...]:
        out = (1, 1, (size - 1) // stride + 1)
        window = Window((1, 1, size), out, (1, 1, 3), (1, 1, stride), (1, 1, 1), (0, 0, 1))
        return tuple((t.pixels, t.runs) for t in overlapping_tiles(window, pixels, once=False))

    assert len({cut(size) for size in range((pixels + 2) * stride, 300)}) == 1
    assert len({cut(size) for size in range(1, 300)}) <= 3
