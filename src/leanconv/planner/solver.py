"""The least time, or the fewest bytes, of a way through layers: exact.

A network is a sequence of layers. Before and after each one stands a state (what is kept in
memory, in which layout); a move leads from one to the next and has a time, weights that stay, an
error and a peak of memory while it runs. A way is one move for each layer, and is wanted with

    sum of times least,   max of peaks + sum of weights <= limit,   sum of errors <= error limit

All numbers are integers, so that "fits" and "does not fit" are no matter of rounding. The method
is dynamic programming over labels (time, weights, error, peak): of two ways to the same state the
one that is no better in anything is dropped, and so is one that no continuation can bring below
the best way known. The bound of continuations is Lagrangian: bytes and error at a price, for
several prices (Handler and Zang, "A dual algorithm for the constrained shortest path problem",
Networks 10, 1980).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_PRICE_STEPS = 24  # improvements of a pair of prices
_PEAKS = 12  # peaks for which prices and first ways are sought
_MOST_LABELS = 60_000  # kept after a layer; more are never needed but for adversarial networks
_CHUNK = 64
_NEVER = np.int64(2**62)


@dataclass(frozen=True, eq=False)
class Layer:
    """All moves of one layer, in ascending order of `source`.

    Attributes:
        source, target: states before and after, counted from 0.
        time: of each move, in nanoseconds.
        weights: bytes that stay for the whole run.
        error: squared relative error, in units chosen by the caller.
        peak: bytes of the arena while the move runs.
        states: number of states after the layer.
    """

    source: Integers
    target: Integers
    time: Integers
    weights: Integers
    error: Integers
    peak: Integers
    states: int

    @cached_property
    def segments(self) -> tuple[Integers, Integers]:
        """The states that moves leave, and where in the arrays the moves of each begin."""
        present, starts = np.unique(self.source, return_index=True)
        return present, starts

    def only(self, kept: npt.NDArray[np.bool_]) -> Layer:
        """The layer with some of its moves."""
        return Layer(
            self.source[kept],
            self.target[kept],
            self.time[kept],
            self.weights[kept],
            self.error[kept],
            self.peak[kept],
            self.states,
        )


@dataclass(frozen=True)
class Way:
    """One move for each layer.

    Attributes:
        moves: the index of each move in its layer.
        time, weights, error, peak: sums, and the largest peak.
        exact: whether it is proved to be the best.
    """

    moves: tuple[int, ...]
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
    layers: Sequence[Layer], limit: int | None = None, error_limit: int | None = None
) -> Way | None:
    """The way of least time within the limits, None if there is none.

    Args:
        layers: the first one leaves state 0.
        limit: bytes of peak and weights together.
        error_limit: the largest sum of errors.
    """
    return _Search(layers, limit, error_limit, for_time=True).run()


def leanest(layers: Sequence[Layer], error_limit: int | None = None) -> Way | None:
    """The way of the fewest bytes within the limit of errors, None if there is none."""
    return _Search(layers, None, error_limit, for_time=False).run()


def least_error(layers: Sequence[Layer]) -> int:
    """The smallest sum of errors."""
    return int(_to_go(layers, [layer.error for layer in layers])[0][0])


def least_time(layers: Sequence[Layer]) -> int:
    """The smallest sum of times, whatever the limits."""
    return int(_to_go(layers, [layer.time for layer in layers])[0][0])


def _to_go(layers: Sequence[Layer], costs: Sequence[npt.NDArray[np.number]]) -> list[Integers]:
    """The least sum of costs from each state to the end, before every layer and after the last."""
    after = np.zeros(layers[-1].states, costs[-1].dtype)
    result = [after]
    for number in range(len(layers) - 1, -1, -1):
        after = _backward(layers, number, costs[number] + after[layers[number].target])
        result.append(after)
    return result[::-1]


def _backward(layers: Sequence[Layer], number: int, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The least value of the moves that leave each state; a large one where there are none."""
    states = layers[number - 1].states if number else 1
    never = np.inf if values.dtype.kind == "f" else _NEVER
    before = np.full(states, never, values.dtype)
    present, starts = layers[number].segments
    if present.size:
        before[present] = np.minimum(np.minimum.reduceat(values, starts), never)
    return before


def _peaks_to_go(layers: Sequence[Layer]) -> list[Integers]:
    """The least largest peak from each state to the end."""
    after: Integers = np.zeros(layers[-1].states, np.int64)
    result = [after]
    for number in range(len(layers) - 1, -1, -1):
        layer = layers[number]
        after = _backward(layers, number, np.maximum(layer.peak, after[layer.target]))
        result.append(after)
    return result[::-1]


@dataclass(frozen=True, eq=False)
class _Labels:
    """Ways to the states after a layer, one in each row."""

    state: Integers
    cost: Integers  # (n, 4): time, weights, error, peak
    parent: Integers  # row among the labels before
    move: Integers


class _Search:
    def __init__(
        self,
        layers: Sequence[Layer],
        limit: int | None,
        error_limit: int | None,
        for_time: bool,
    ) -> None:
        self._for_time = for_time
        self._limit = int(_NEVER) if limit is None else limit
        self._error_limit = int(_NEVER) if error_limit is None else error_limit
        self._indices: list[Integers] = []
        self._layers = self._reduced(layers)
        self._best: Way | None = None
        self._exact = True

    def _reduced(self, layers: Sequence[Layer]) -> list[Layer]:
        """Without moves that no way within the limits can take."""
        weights, errors = [v.weights for v in layers], [v.error for v in layers]
        to_go = _to_go(layers, weights), _to_go(layers, errors), _peaks_to_go(layers)
        from_start = [np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64)]
        result = []
        for number, layer in enumerate(layers):
            after = [go[number + 1][layer.target] for go in to_go]
            weight = from_start[0][layer.source] + layer.weights + np.minimum(after[0], _NEVER // 4)
            error = from_start[1][layer.source] + layer.error + np.minimum(after[1], _NEVER // 4)
            peak = np.maximum(np.maximum(from_start[2][layer.source], layer.peak), after[2])
            kept = (weight + np.minimum(peak, _NEVER // 4) <= self._limit) & (
                error <= self._error_limit
            )
            kept &= after[2] < _NEVER
            self._indices.append(np.flatnonzero(kept))
            layer = layer.only(kept)
            result.append(layer)
            following = [np.full(layer.states, _NEVER // 4, np.int64) for _ in range(3)]
            before = [column[layer.source] for column in from_start]
            np.minimum.at(following[0], layer.target, before[0] + layer.weights)
            np.minimum.at(following[1], layer.target, before[1] + layer.error)
            np.minimum.at(following[2], layer.target, np.maximum(before[2], layer.peak))
            from_start = following
        return result

    def run(self) -> Way | None:
        if any(not layer.source.size for layer in self._layers):
            return None
        self._weights_to_go = _to_go(self._layers, [v.weights for v in self._layers])
        self._errors_to_go = _to_go(self._layers, [v.error for v in self._layers])
        self._peaks = _peaks_to_go(self._layers)
        self._prices = self._find_prices()
        start = np.zeros(1, np.int64)
        history = [_Labels(start, np.zeros((1, 4), np.int64), start, start)]
        for number in range(len(self._layers)):
            history.append(self._advance(number, history[-1]))
            if not history[-1].state.size:
                return self._result()
        last = history[-1]
        value = last.cost[:, 0] if self._for_time else last.cost[:, 1] + last.cost[:, 3]
        row = int(np.lexsort((last.cost[:, 1] + last.cost[:, 3], value))[0])
        moves = []
        for number in range(len(self._layers), 0, -1):
            labels = history[number]
            moves.append(int(labels.move[row]))
            row = int(labels.parent[row])
        self._offer(self._way(moves[::-1]))
        return self._result()

    def _result(self) -> Way | None:
        if self._best is None:
            return None
        best = self._best
        moves = tuple(
            int(index[move]) for index, move in zip(self._indices, best.moves, strict=True)
        )
        return Way(moves, best.time, best.weights, best.error, best.peak, self._exact)

    # -- ways known ------------------------------------------------------------------------
    def _way(self, moves: Sequence[int]) -> Way:
        chosen = list(zip(self._layers, moves, strict=True))
        return Way(
            tuple(moves),
            sum(int(layer.time[move]) for layer, move in chosen),
            sum(int(layer.weights[move]) for layer, move in chosen),
            sum(int(layer.error[move]) for layer, move in chosen),
            max(int(layer.peak[move]) for layer, move in chosen),
        )

    def _value(self, way: Way) -> int:
        return way.time if self._for_time else way.bytes

    def _offer(self, way: Way) -> None:
        """Keep a way if it is within the limits and better than the one known."""
        if way.bytes > self._limit or way.error > self._error_limit:
            return
        better = (self._value(way), way.bytes, way.time)
        if self._best is None or better < (
            self._value(self._best),
            self._best.bytes,
            self._best.time,
        ):
            self._best = way

    # -- prices ----------------------------------------------------------------------------
    def _find_prices(self) -> list[tuple[float, float, list[Floats]]]:
        """Prices of a byte and of error, each with the least priced time to the end.

        Ways found meanwhile are offered.
        """
        peaks = np.unique(np.concatenate([layer.peak for layer in self._layers]))
        peaks = peaks[peaks >= self._peaks[0][0]]
        some = np.unique(np.linspace(0, len(peaks) - 1, _PEAKS).round().astype(int))
        found: set[tuple[float, float]] = {(0.0, 0.0)}
        for peak in peaks[some]:
            layers = [layer.only(layer.peak <= peak) for layer in self._layers]
            found.update(self._prices_under(int(peak), layers))
        return [(p, q, self._priced(self._layers, p, q)) for p, q in sorted(found)]

    def _priced(self, layers: Sequence[Layer], price: float, dear: float) -> list[Floats]:
        times = 1.0 if self._for_time else 0.0
        costs = [v.time * times + v.weights * price + v.error * dear for v in layers]
        return _to_go(layers, costs)  # type: ignore[return-value]

    def _prices_under(self, peak: int, layers: Sequence[Layer]) -> Iterator[tuple[float, float]]:
        """Improve prices by the way that is best at them, for ways below a peak."""
        room = self._limit - peak
        price = dear = 0.0 if self._for_time else 1.0
        if not self._for_time:
            dear = 0.0
        best = -np.inf
        answer = (price, dear)
        scale = 0.0
        for step in range(_PRICE_STEPS):
            to_go = self._priced(layers, price, dear)
            if not np.isfinite(to_go[0][0]):
                return
            way = self._follow(layers, price, dear, to_go, peak)
            self._offer(way)
            over, wrong = way.weights - room, way.error - self._error_limit
            if self._limit >= _NEVER:
                over = 0
            if self._error_limit >= _NEVER:
                wrong = 0
            bound = float(to_go[0][0]) - price * room * bool(over) - dear * self._error_limit
            if bound > best:
                best, answer = bound, (price, dear)
            if (over <= 0 and wrong <= 0 and price == dear == 0) or not (over or wrong):
                break
            scale = scale or float(max(1, way.time if self._for_time else way.weights))
            size = scale / (2.0 + step)
            if self._for_time and self._limit < _NEVER:
                price = max(0.0, price + size * over / float(max(1, room)) / max(1.0, float(room)))
            if self._error_limit < _NEVER:
                allowed = float(max(1, self._error_limit))
                dear = max(0.0, dear + size * wrong / allowed / allowed)
        yield answer

    def _follow(
        self,
        layers: Sequence[Layer],
        price: float,
        dear: float,
        to_go: Sequence[Floats],
        peak: int,
    ) -> Way:
        """The way that is best at these prices, as moves of the layers with all peaks."""
        times = 1.0 if self._for_time else 0.0
        state, moves = 0, []
        for number, layer in enumerate(layers):
            first, last = np.searchsorted(layer.source, [state, state + 1])
            part = slice(first, last)
            cost = layer.time[part] * times + layer.weights[part] * price
            cost = cost + layer.error[part] * dear + to_go[number + 1][layer.target[part]]
            move = int(first) + int(np.argmin(cost))
            state = int(layer.target[move])
            moves.append(int(np.flatnonzero(self._layers[number].peak <= peak)[move]))
        return self._way(moves)

    # -- labels ----------------------------------------------------------------------------
    def _advance(self, number: int, labels: _Labels) -> _Labels:
        """All ways one layer further that may still become the best."""
        layer = self._layers[number]
        first = np.searchsorted(layer.source, labels.state)
        count = np.searchsorted(layer.source, labels.state + 1) - first
        parent = np.repeat(np.arange(labels.state.size), count)
        begin = np.repeat(first - np.concatenate(([0], np.cumsum(count)[:-1])), count)
        move = np.arange(parent.size) + begin
        cost = labels.cost[parent].copy()
        cost[:, 0] += layer.time[move]
        cost[:, 1] += layer.weights[move]
        cost[:, 2] += layer.error[move]
        cost[:, 3] = np.maximum(cost[:, 3], layer.peak[move])
        found = _Labels(layer.target[move], cost, parent, move)
        bounds = self._bounds(number + 1, found)
        found, bounds = self._pruned(found, bounds)
        rows = np.concatenate(
            [np.empty(0, np.int64)]
            + [self._undominated(found, state) for state in np.unique(found.state)]
        )
        if rows.size > _MOST_LABELS:
            self._exact = False
            rows = rows[np.argsort(bounds[rows], kind="stable")[:_MOST_LABELS]]
        return _Labels(found.state[rows], found.cost[rows], found.parent[rows], found.move[rows])

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
        for price, dear, to_go in self._prices:
            value = cost[:, 0] + to_go[number][state]
            if price:
                value = value - price * (float(self._limit) - peak - cost[:, 1])
            if dear:
                value = value - dear * (float(self._error_limit) - cost[:, 2])
            bound = np.maximum(bound, value)
        return np.where(possible, bound, np.inf)

    def _pruned(self, labels: _Labels, bounds: Floats) -> tuple[_Labels, Floats]:
        kept = np.isfinite(bounds)
        if self._best is not None:
            # Values are integers: a bound above the best one less 1 leaves nothing better.
            kept &= bounds <= self._value(self._best) - 1 + 1e-6
        return (
            _Labels(labels.state[kept], labels.cost[kept], labels.parent[kept], labels.move[kept]),
            bounds[kept],
        )


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
