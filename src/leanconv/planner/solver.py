"""The least time, or the fewest bytes, of a path through a layered graph: exact.

The graph is a sequence of levels. Between two levels there are states (what is kept in memory, in
which layout); a transition leads from a state before its level to one after it, and has a time,
weights that stay for the whole run, an error, and a peak of memory while it runs. A path has one
transition for each level. Wanted is the path with

    sum of times least,   max of peaks + sum of weights <= limit,   sum of errors <= error limit

All numbers are integers, so no rounding decides whether a path fits. The method is dynamic
programming over labels (time, weights, error, peak): of two paths to the same state the one that is
no better in anything is dropped (dominance), and so is one that no continuation can bring below the
best path known. The bound of continuations is Lagrangian: bytes and error have a price, and several
prices are tried (Handler and Zang, "A dual algorithm for the constrained shortest path problem",
Networks 10, 1980).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from leanconv.records import cached_property, dataclass, replace

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_PRICE_STEPS = 24  # improvements of a pair of prices
_PEAKS = 12  # peaks for which prices and first paths are sought
_MOST_LABELS = 60_000  # kept after a level; more are never needed but for adversarial networks
_CHUNK = 64
_NEVER = np.int64(2**62)


def _firsts(ascending: Integers) -> Integers:
    """Return the indices at which each value comes first."""
    return np.flatnonzero(np.diff(ascending, prepend=ascending[:1] - 1))


def _distinct(values: Integers) -> Integers:
    """The values in ascending order, each once.

    NumPy's `unique` imports a module when it is first called, which a fork would not wait for.
    """
    ascending = np.sort(values)
    return ascending[_firsts(ascending)]


@dataclass(frozen=True, eq=False)
class Level:
    """All transitions of one level, in ascending order of `source`.

    Attributes:
        states: number of states after the level.
        source, target: states before and after, counted from 0.
        time: of each transition, in nanoseconds.
        weights: bytes that stay for the whole run.
        error: squared relative error, in units chosen by the caller.
        peak: bytes of the arena while the transition runs.
    """

    states: int
    source: Integers
    target: Integers
    time: Integers
    weights: Integers
    error: Integers
    peak: Integers

    @cached_property
    def segments(self) -> tuple[Integers, Integers]:
        """The states that transitions leave, and the index at which those of each begin."""
        starts = _firsts(self.source)
        return self.source[starts], starts

    def only(self, kept: npt.NDArray[np.bool_]) -> Level:
        """The level with some of its transitions."""
        columns = (self.source, self.target, self.time, self.weights, self.error, self.peak)
        return Level(self.states, *(column[kept] for column in columns))


@dataclass(frozen=True)
class Path:
    """One transition for each level.

    Attributes:
        transitions: the index of each transition in its level.
        time, weights, error, peak: sums, and the largest peak.
        exact: whether it is proved to be the best.
    """

    transitions: tuple[int, ...]
    time: int
    weights: int
    error: int
    peak: int
    exact: bool = True

    @property
    def bytes(self) -> int:
        """Arena and weights."""
        return self.peak + self.weights


def fastest(
    levels: Sequence[Level], limit: int | None = None, error_limit: int | None = None
) -> Path | None:
    """The path of least time within the limits, None if there is none.

    Args:
        levels: the first one leaves state 0.
        limit: bytes of peak and weights together.
        error_limit: the largest sum of errors.
    """
    return _Search(levels, limit, error_limit, for_time=True).run()


def smallest(levels: Sequence[Level], error_limit: int | None = None) -> Path | None:
    """The path of the fewest bytes within the limit of errors, None if there is none."""
    return _Search(levels, None, error_limit, for_time=False).run()


def least_error(levels: Sequence[Level]) -> int:
    """The smallest sum of errors."""
    return int(_to_go(levels, [level.error for level in levels])[0][0])


def least_time(levels: Sequence[Level]) -> int:
    """The smallest sum of times, whatever the limits."""
    return int(_to_go(levels, [level.time for level in levels])[0][0])


def _to_go(levels: Sequence[Level], costs: Sequence[npt.NDArray[np.number]]) -> list[Integers]:
    """The least sum of costs from each state to the end, before every level and after the last."""
    after = np.zeros(levels[-1].states, costs[-1].dtype)
    result = [after]
    for number in range(len(levels) - 1, -1, -1):
        after = _backward(levels, number, costs[number] + after[levels[number].target])
        result.append(after)
    return result[::-1]


def _backward(levels: Sequence[Level], number: int, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The least value of the transitions that leave each state; a large one if there are none."""
    states = levels[number - 1].states if number else 1
    never = np.inf if values.dtype.kind == "f" else _NEVER
    before = np.full(states, never, values.dtype)
    present, starts = levels[number].segments
    if present.size:
        before[present] = np.minimum(np.minimum.reduceat(values, starts), never)
    return before


def _peaks_to_go(levels: Sequence[Level]) -> list[Integers]:
    """The least largest peak from each state to the end."""
    after: Integers = np.zeros(levels[-1].states, np.int64)
    result = [after]
    for number in range(len(levels) - 1, -1, -1):
        level = levels[number]
        after = _backward(levels, number, np.maximum(level.peak, after[level.target]))
        result.append(after)
    return result[::-1]


@dataclass(frozen=True, eq=False)
class _Labels:
    """Labels of paths to the states after a level, one in each row."""

    state: Integers
    cost: Integers  # (n, 4): time, weights, error, peak
    parent: Integers  # row among the labels before
    transition: Integers

    def only(self, rows: npt.NDArray[Any]) -> _Labels:
        columns = (self.state, self.cost, self.parent, self.transition)
        return _Labels(*(column[rows] for column in columns))


class _Search:
    def __init__(
        self,
        levels: Sequence[Level],
        limit: int | None,
        error_limit: int | None,
        for_time: bool,
    ) -> None:
        self._for_time = for_time
        self._limit = int(_NEVER) if limit is None else limit
        self._error_limit = int(_NEVER) if error_limit is None else error_limit
        self._indices: list[Integers] = []
        self._levels = self._reduced(levels)
        self._best: Path | None = None
        self._exact = True

    def _reduced(self, levels: Sequence[Level]) -> list[Level]:
        """Without transitions that no path within the limits can take."""
        weights, errors = [v.weights for v in levels], [v.error for v in levels]
        to_go = _to_go(levels, weights), _to_go(levels, errors), _peaks_to_go(levels)
        from_start = [np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64)]
        result = []
        for number, level in enumerate(levels):
            after = [go[number + 1][level.target] for go in to_go]
            weight = from_start[0][level.source] + level.weights + np.minimum(after[0], _NEVER // 4)
            error = from_start[1][level.source] + level.error + np.minimum(after[1], _NEVER // 4)
            peak = np.maximum(np.maximum(from_start[2][level.source], level.peak), after[2])
            kept = (weight + np.minimum(peak, _NEVER // 4) <= self._limit) & (
                error <= self._error_limit
            )
            kept &= after[2] < _NEVER
            self._indices.append(np.flatnonzero(kept))
            level = level.only(kept)
            result.append(level)
            following = [np.full(level.states, _NEVER // 4, np.int64) for _ in range(3)]
            before = [column[level.source] for column in from_start]
            np.minimum.at(following[0], level.target, before[0] + level.weights)
            np.minimum.at(following[1], level.target, before[1] + level.error)
            np.minimum.at(following[2], level.target, np.maximum(before[2], level.peak))
            from_start = following
        return result

    def run(self) -> Path | None:
        if any(not level.source.size for level in self._levels):
            return None
        self._weights_to_go = _to_go(self._levels, [v.weights for v in self._levels])
        self._errors_to_go = _to_go(self._levels, [v.error for v in self._levels])
        self._peaks = _peaks_to_go(self._levels)
        self._prices = self._find_prices()
        start = np.zeros(1, np.int64)
        history = [_Labels(start, np.zeros((1, 4), np.int64), start, start)]
        for number in range(len(self._levels)):
            history.append(self._advance(number, history[-1]))
            if not history[-1].state.size:
                return self._result()
        last = history[-1]
        value = last.cost[:, 0] if self._for_time else last.cost[:, 1] + last.cost[:, 3]
        row = int(np.lexsort((last.cost[:, 1] + last.cost[:, 3], value))[0])
        transitions = []
        for number in range(len(self._levels), 0, -1):
            labels = history[number]
            transitions.append(int(labels.transition[row]))
            row = int(labels.parent[row])
        self._offer(self._path(transitions[::-1]))
        return self._result()

    def _result(self) -> Path | None:
        if self._best is None:
            return None
        pairs = zip(self._indices, self._best.transitions, strict=True)
        transitions = tuple(int(index[transition]) for index, transition in pairs)
        return replace(self._best, transitions=transitions, exact=self._exact)

    # -- paths known -----------------------------------------------------------------------
    def _path(self, transitions: Sequence[int]) -> Path:
        chosen = list(zip(self._levels, transitions, strict=True))
        return Path(
            tuple(transitions),
            sum(int(level.time[transition]) for level, transition in chosen),
            sum(int(level.weights[transition]) for level, transition in chosen),
            sum(int(level.error[transition]) for level, transition in chosen),
            max(int(level.peak[transition]) for level, transition in chosen),
        )

    def _value(self, path: Path) -> int:
        return path.time if self._for_time else path.bytes

    def _order(self, path: Path) -> tuple[int, int, int]:
        return self._value(path), path.bytes, path.time

    def _offer(self, path: Path) -> None:
        """Keep a path if it is within the limits and better than the one known."""
        if path.bytes > self._limit or path.error > self._error_limit:
            return
        if self._best is None or self._order(path) < self._order(self._best):
            self._best = path

    # -- prices ----------------------------------------------------------------------------
    def _find_prices(self) -> list[tuple[float, float, list[Floats]]]:
        """Prices of a byte and of error, each with the least priced time to the end.

        Paths found meanwhile are offered.
        """
        peaks = _distinct(np.concatenate([level.peak for level in self._levels]))
        peaks = peaks[peaks >= self._peaks[0][0]]
        some = _distinct(np.linspace(0, len(peaks) - 1, _PEAKS).round().astype(np.int64))
        found: set[tuple[float, float]] = {(0.0, 0.0)}
        for peak in peaks[some]:
            levels = [level.only(level.peak <= peak) for level in self._levels]
            found.update(self._prices_under(int(peak), levels))
        return [(p, q, self._priced(self._levels, p, q)) for p, q in sorted(found)]

    def _priced(
        self, levels: Sequence[Level], byte_price: float, error_price: float
    ) -> list[Floats]:
        times = 1.0 if self._for_time else 0.0
        costs = [v.time * times + v.weights * byte_price + v.error * error_price for v in levels]
        return _to_go(levels, costs)  # type: ignore[return-value]

    def _prices_under(self, peak: int, levels: Sequence[Level]) -> Iterator[tuple[float, float]]:
        """Improve prices by the path that is best at them, for paths below a peak."""
        room = self._limit - peak
        byte_price, error_price = 0.0 if self._for_time else 1.0, 0.0
        best = -np.inf
        answer = (byte_price, error_price)
        scale = 0.0
        for step in range(_PRICE_STEPS):
            to_go = self._priced(levels, byte_price, error_price)
            if not np.isfinite(to_go[0][0]):
                return
            path = self._follow(levels, byte_price, error_price, to_go, peak)
            self._offer(path)
            over, wrong = path.weights - room, path.error - self._error_limit
            if self._limit >= _NEVER:
                over = 0
            if self._error_limit >= _NEVER:
                wrong = 0
            bound = (
                float(to_go[0][0])
                - byte_price * room * bool(over)
                - error_price * self._error_limit
            )
            if bound > best:
                best, answer = bound, (byte_price, error_price)
            if (over <= 0 and wrong <= 0 and byte_price == error_price == 0) or not (over or wrong):
                break
            scale = scale or float(max(1, path.time if self._for_time else path.weights))
            size = scale / (2.0 + step)
            if self._for_time and self._limit < _NEVER:
                byte_price = max(
                    0.0, byte_price + size * over / float(max(1, room)) / max(1.0, float(room))
                )
            if self._error_limit < _NEVER:
                allowed = float(max(1, self._error_limit))
                error_price = max(0.0, error_price + size * wrong / allowed / allowed)
        yield answer

    def _follow(
        self,
        levels: Sequence[Level],
        byte_price: float,
        error_price: float,
        to_go: Sequence[Floats],
        peak: int,
    ) -> Path:
        """The path that is best at these prices, as transitions of the levels with all peaks."""
        times = 1.0 if self._for_time else 0.0
        state, transitions = 0, []
        for number, level in enumerate(levels):
            first, last = np.searchsorted(level.source, [state, state + 1])
            part = slice(first, last)
            cost = level.time[part] * times + level.weights[part] * byte_price
            cost = cost + level.error[part] * error_price + to_go[number + 1][level.target[part]]
            transition = int(first) + int(np.argmin(cost))
            state = int(level.target[transition])
            transitions.append(int(np.flatnonzero(self._levels[number].peak <= peak)[transition]))
        return self._path(transitions)

    # -- labels ----------------------------------------------------------------------------
    def _advance(self, number: int, labels: _Labels) -> _Labels:
        """All paths one level further that may still become the best."""
        level = self._levels[number]
        first = np.searchsorted(level.source, labels.state)
        count = np.searchsorted(level.source, labels.state + 1) - first
        parent = np.repeat(np.arange(labels.state.size), count)
        begin = np.repeat(first - np.concatenate(([0], np.cumsum(count)[:-1])), count)
        transition = np.arange(parent.size) + begin
        cost = labels.cost[parent].copy()
        cost[:, 0] += level.time[transition]
        cost[:, 1] += level.weights[transition]
        cost[:, 2] += level.error[transition]
        cost[:, 3] = np.maximum(cost[:, 3], level.peak[transition])
        found = _Labels(level.target[transition], cost, parent, transition)
        bounds = self._bounds(number + 1, found)
        found, bounds = self._pruned(found, bounds)
        rows = np.concatenate(
            [np.empty(0, np.int64)]
            + [self._undominated(found, state) for state in _distinct(found.state)]
        )
        if rows.size > _MOST_LABELS:
            self._exact = False
            rows = rows[np.argsort(bounds[rows], kind="stable")[:_MOST_LABELS]]
        return found.only(rows)

    def _undominated(self, labels: _Labels, state: int) -> Integers:
        rows = np.flatnonzero(labels.state == state)
        columns = [1, 3]
        if self._error_limit < _NEVER:
            columns.append(2)
        if self._for_time:
            columns.insert(0, 0)
            if self._limit >= _NEVER:
                columns = [c for c in columns if c in (0, 2)]
        return rows[undominated(labels.cost[rows][:, columns])]

    def _bounds(self, number: int, labels: _Labels) -> Floats:
        """A value that no continuation falls below; infinite where none is within the limits."""
        cost, state = labels.cost, labels.state
        peak = np.maximum(cost[:, 3], self._peaks[number][state])
        weights = cost[:, 1] + np.minimum(self._weights_to_go[number][state], _NEVER // 4)
        errors = cost[:, 2] + np.minimum(self._errors_to_go[number][state], _NEVER // 4)
        least = np.minimum(peak, _NEVER // 4) + weights
        possible = (least <= self._limit) & (errors <= self._error_limit)
        if not self._for_time:
            return np.where(possible, least.astype(np.float64), np.inf)
        bound = np.zeros(state.size)
        for byte_price, error_price, to_go in self._prices:
            value = cost[:, 0] + to_go[number][state]
            if byte_price:
                value = value - byte_price * (float(self._limit) - peak - cost[:, 1])
            if error_price:
                value = value - error_price * (float(self._error_limit) - cost[:, 2])
            bound = np.maximum(bound, value)
        return np.where(possible, bound, np.inf)

    def _pruned(self, labels: _Labels, bounds: Floats) -> tuple[_Labels, Floats]:
        kept = np.isfinite(bounds)
        if self._best is not None:
            # Values are integers: a bound above the best one less 1 leaves nothing better.
            kept &= bounds <= self._value(self._best) - 1 + 1e-6
        return labels.only(kept), bounds[kept]


def undominated(rows: Integers) -> Integers:
    """Indices of the rows that no other row equals or betters in every column; one of equal rows.

    Args:
        rows: (n, columns), the smaller the better.
    """
    order = np.lexsort(rows.T[::-1])
    sorted_rows = rows[order]
    front: Integers = np.empty((0, rows.shape[1] - 1), np.int64)
    kept: list[Integers] = []
    for begin in range(0, len(order), _CHUNK):
        chunk = sorted_rows[begin : begin + _CHUNK, 1:]
        index = order[begin : begin + _CHUNK]
        if len(front):
            free = ~(front[:, None, :] <= chunk[None]).all(axis=2).any(axis=0)
            chunk, index = chunk[free], index[free]
        within = (chunk[:, None, :] <= chunk[None]).all(axis=2)
        free = ~np.triu(within, 1).any(axis=0)
        front = np.concatenate((front, chunk[free]))
        kept.append(index[free])
    return np.concatenate([np.empty(0, np.int64), *kept])
