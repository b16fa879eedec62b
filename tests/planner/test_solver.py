"""The solver against every way there is, on small random layers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from leanconv.planner.solver import Layer, Way, fastest, leanest, least_error, undominated


def random_layers(rng: np.random.Generator, count: int, states: int, moves: int) -> list[Layer]:
    """Layers between at most so many states, with at most so many moves from each."""
    layers, before = [], 1
    for number in range(count):
        after = 1 if number == count - 1 else int(rng.integers(1, states + 1))
        rows = [
            (state, int(rng.integers(after)), *rng.integers(0, 20, 4).tolist())
            for state in range(before)
            for _ in range(int(rng.integers(0 if before > 1 else 1, moves + 1)))
        ]
        table = np.array(rows, np.int64).reshape(-1, 6)
        layers.append(Layer(*(np.ascontiguousarray(table[:, c]) for c in range(6)), after))
        before = after
    return layers


@dataclass(frozen=True)
class Found:
    """A way, from the definition."""

    moves: tuple[int, ...] = ()
    time: int = 0
    weights: int = 0
    error: int = 0
    peak: int = 0
    state: int = 0

    @property
    def bytes(self) -> int:
        return self.weights + self.peak


def every_way(layers: list[Layer]) -> list[Found]:
    ways = [Found()]
    for layer in layers:
        ways = [
            Found(
                (*way.moves, int(i)),
                way.time + int(layer.time[i]),
                way.weights + int(layer.weights[i]),
                way.error + int(layer.error[i]),
                max(way.peak, int(layer.peak[i])),
                int(layer.target[i]),
            )
            for way in ways
            for i in np.flatnonzero(layer.source == way.state)
        ]
    return ways


def sums(way: Way, ways: list[Found]) -> Found:
    """The way of these moves, whose sums must be those that the solver says."""
    (found,) = [other for other in ways if other.moves == way.moves]
    assert (way.time, way.weights, way.error, way.peak) == (
        found.time,
        found.weights,
        found.error,
        found.peak,
    )
    return found


@pytest.mark.parametrize("seed", range(40))
def test_it_finds_what_trying_every_way_finds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(6):
        layers = random_layers(rng, int(rng.integers(1, 6)), 3, 5)
        ways = every_way(layers)
        for _ in range(5):
            limit = None if rng.random() < 0.2 else int(rng.integers(0, 100))
            error = None if rng.random() < 0.4 else int(rng.integers(0, 60))
            accurate = [w for w in ways if error is None or w.error <= error]
            inside = [w for w in accurate if limit is None or w.bytes <= limit]
            fast, lean = fastest(layers, limit, error), leanest(layers, error)
            assert (fast is None) == (not inside)
            assert (lean is None) == (not accurate)
            if fast is not None:
                assert fast.exact
                assert sums(fast, inside).time == min(w.time for w in inside)
            if lean is not None:
                assert sums(lean, accurate).bytes == min(w.bytes for w in accurate)
        if ways:
            assert least_error(layers) == min(w.error for w in ways)


def test_the_limit_is_kept_to_the_byte() -> None:
    """At every limit, the time of the best way that fits; it never rises with the limit."""
    rng = np.random.default_rng(7)
    for _ in range(10):
        layers = random_layers(rng, 5, 3, 5)
        ways = every_way(layers)
        if not ways:
            continue
        least = min(w.bytes for w in ways)
        lean = leanest(layers)
        assert lean is not None
        assert lean.bytes == least
        assert fastest(layers, least - 1) is None
        times = []
        for limit in range(least, max(w.bytes for w in ways) + 1):
            way = fastest(layers, limit)
            assert way is not None
            assert way.time == min(w.time for w in ways if w.bytes <= limit)
            times.append(way.time)
        assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("columns", [1, 2, 3, 4])
def test_rows_that_nothing_betters(columns: int) -> None:
    rng = np.random.default_rng(columns)
    for _ in range(20):
        rows = rng.integers(0, 6, (int(rng.integers(0, 300)), columns))
        kept = undominated(rows)
        front = {tuple(row) for row in rows[kept].tolist()}
        assert len(front) == len(kept)
        for row in rows.tolist():
            better = [f for f in front if all(a <= b for a, b in zip(f, row, strict=True))]
            assert better
            assert (tuple(row) in front) == (better == [tuple(row)])
