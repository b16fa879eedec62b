"""Choices of layers from the fastest to the most accurate, by the planner's solver.

Each layer is a level of the solver's graph, its state the precision of the layer before. Sought is
the least time for which the squared sensitivities of the layers sum to no more than a budget, and
weights to no more than the bytes allowed:

    sum over layers (time + edge from the layer before)           least
    sum over layers of sensitivity^2 in their precision           <= budget
    sum over layers of the bytes more than in the smallest one    <= room

for many budgets. That squares add up is a guess (they do where roundings are independent); whoever
takes a choice measures it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from leanconv.planner.solver import Level, fastest
from leanconv.quantizer.costs import LayerCost, edge_ns
from leanconv.quantizer.rungs import FLOAT32, key

_BUDGETS = 48
_UNITS = 1 << 40  # of the sum of all squares
_ORDERS = 12  # powers of two of budgets


def front(
    costs: Sequence[LayerCost],
    sensitivities: Mapping[str, Mapping[str, float]],
    room: int | None = None,
) -> list[dict[str, str]]:
    """The precisions of each choice, from the fastest to the most accurate.

    Args:
        costs: of the layers, in the network's order.
        sensitivities: by layer and precision, the error of the outputs with that layer alone in it.
        room: bytes that layers may take more than in their smallest precision; None: any.

    Returns:
        Distinct choices. The last one has all layers in float32, if there is room.
    """
    states = [[FLOAT32, *cost.rungs] for cost in costs]
    units = _units(costs, sensitivities)
    levels = _levels(costs, states, units)
    most = sum(max(each.values()) for each in units)
    found: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
    for share in [*np.exp2(-np.linspace(0.0, _ORDERS, _BUDGETS)), 0.0]:
        path = fastest(levels, room, int(float(most) * share))
        if path is None:
            break  # none is more accurate
        chosen = {}
        for number, transition in enumerate(path.transitions):
            rung = states[number][int(levels[number].target[transition])]
            if rung != FLOAT32:
                chosen[costs[number].name] = rung
        found.setdefault(key(chosen), chosen)
    return list(found.values())


def _units(
    costs: Sequence[LayerCost], sensitivities: Mapping[str, Mapping[str, float]]
) -> list[dict[str, int]]:
    """Squared errors as whole numbers, by layer and precision."""
    squares = [
        {rung: min(sensitivities[cost.name][rung], 1e9) ** 2 for rung in cost.rungs}
        for cost in costs
    ]
    whole = sum(max(each.values(), default=0.0) for each in squares)
    factor = _UNITS / max(whole, 1e-200)  # where no output changes, all are 0
    return [
        {FLOAT32: 0, **{rung: math.ceil(value * factor) for rung, value in each.items()}}
        for each in squares
    ]


def _levels(
    costs: Sequence[LayerCost], states: Sequence[Sequence[str]], units: Sequence[Mapping[str, int]]
) -> list[Level]:
    """One level for each layer; its states are the layer's precisions."""
    found = []
    for number, cost in enumerate(costs):
        kinds = [cost.of(rung) for rung in states[number]]
        most_ns = max(kind.gain_ns for kind in kinds)
        most_bytes = max(kind.saved_bytes for kind in kinds)
        rows = []
        for source, before in enumerate(states[number - 1] if number else [FLOAT32]):
            for target, (rung, kind) in enumerate(zip(states[number], kinds, strict=True)):
                edge = edge_ns(costs[number - 1], cost, before, rung) if number else 0
                more = most_bytes - kind.saved_bytes
                time = most_ns - kind.gain_ns + edge
                rows.append((source, target, time, more, units[number][rung], 0))
        columns = np.array(rows, np.int64).T
        found.append(Level(len(states[number]), *columns))
    return found
