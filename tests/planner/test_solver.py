"""The solver against every path there is, on small random levels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from leanconv.planner.solver import Level, Path, fastest, least_error, smallest, undominated

pytestmark = pytest.mark.presets  # levels are given: there is no machine


def random_levels(
    rng: np.random.Generator, count: int, states: int, transitions: int
) -> list[Level]:
    """Levels between at most so many states, with at most so many transitions from each."""
    levels, before = [], 1
    for number in range(count):
        after = 1 if number == count - 1 else int(rng.integers(1, states + 1))
        rows = [
            (state, int(rng.integers(after)), *rng.integers(0, 20, 4).tolist())
            for state in range(before)
            for _ in range(int(rng.integers(0 if before > 1 else 1, transitions + 1)))
        ]
        table = np.array(rows, np.int64).reshape(-1, 6)
        levels.append(Level(after, *(np.ascontiguousarray(table[:, c]) for c in range(6))))
        before = after
    return levels


@dataclass(frozen=True)
class Found:
    """A path, from the definition."""

    transitions: tuple[int, ...] = ()
    time: int = 0
    weights: int = 0
    error: int = 0
    peak: int = 0
    state: int = 0

    @property
    def bytes(self) -> int:
        return self.weights + self.peak


def every_path(levels: list[Level]) -> list[Found]:
    paths = [Found()]
    for level in levels:
        paths = [
            Found(
                (*path.transitions, int(i)),
                path.time + int(level.time[i]),
                path.weights + int(level.weights[i]),
                path.error + int(level.error[i]),
                max(path.peak, int(level.peak[i])),
                int(level.target[i]),
            )
            for path in paths
            for i in np.flatnonzero(level.source == path.state)
        ]
    return paths


def sums(path: Path, paths: list[Found]) -> Found:
    """The path of these transitions, whose sums must be those that the solver says."""
    (found,) = [other for other in paths if other.transitions == path.transitions]
    assert (path.time, path.weights, path.error, path.peak) == (
        found.time,
        found.weights,
        found.error,
        found.peak,
    )
    return found


@pytest.mark.drawn
@pytest.mark.parametrize("seed", range(40))
def test_it_finds_what_trying_every_path_finds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(6):
        levels = random_levels(rng, int(rng.integers(1, 6)), 3, 5)
        paths = every_path(levels)
        for _ in range(5):
            limit = None if rng.random() < 0.2 else int(rng.integers(0, 100))
            error = None if rng.random() < 0.4 else int(rng.integers(0, 60))
            accurate = [w for w in paths if error is None or w.error <= error]
            inside = [w for w in accurate if limit is None or w.bytes <= limit]
            fast, lean = fastest(levels, limit, error), smallest(levels, error)
            assert (fast is None) == (not inside)
            assert (lean is None) == (not accurate)
            if fast is not None:
                assert fast.exact
                assert sums(fast, inside).time == min(w.time for w in inside)
            if lean is not None:
                assert sums(lean, accurate).bytes == min(w.bytes for w in accurate)
        if paths:
            assert least_error(levels) == min(w.error for w in paths)


def test_the_limit_is_kept_to_the_byte() -> None:
    """At every limit, the time of the best path that fits; it never rises with the limit."""
    rng = np.random.default_rng(7)
    for _ in range(10):
        levels = random_levels(rng, 5, 3, 5)
        paths = every_path(levels)
        if not paths:
            continue
        least = min(w.bytes for w in paths)
        lean = smallest(levels)
        assert lean is not None
        assert lean.bytes == least
        assert fastest(levels, least - 1) is None
        times = []
        for limit in range(least, max(w.bytes for w in paths) + 1):
            path = fastest(levels, limit)
            assert path is not None
            assert path.time == min(w.time for w in paths if w.bytes <= limit)
            times.append(path.time)
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
