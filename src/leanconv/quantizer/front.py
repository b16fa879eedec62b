"""Choices of layers from the fastest to the most accurate, by the planner's solver.

Each layer is a level of the solver's graph, its state the precision of the layer before. Sought is
the least time for which the squared sensitivities of the layers on codes sum to no more than a
budget, and weights to no more than the bytes allowed:

    sum over layers (time + edge from the layer before)  least
    sum over layers on codes of sensitivity^2            <= budget
    sum over layers in float32 of the bytes more         <= room

for many budgets. That squares add up is a guess (they do where roundings are independent); whoever
takes a choice measures it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from leanconv.planner.solver import Level, fastest
from leanconv.quantizer.costs import LayerCost, edge_ns

_BUDGETS = 48
_UNITS = 1 << 40  # of the sum of all squares
_ORDERS = 12  # powers of two of budgets


def front(
    costs: Sequence[LayerCost], sensitivities: Mapping[str, float], room: int | None = None
) -> list[frozenset[str]]:
    """The layers on codes of each choice, from the fastest to the most accurate.

    Args:
        costs: of the layers, in the network's order.
        sensitivities: the error of the outputs with a layer alone on codes, by name.
        room: bytes that layers in float32 may take more than all layers on codes; None: any.

    Returns:
        Distinct choices. The last one has none on codes, if there is room.
    """
    errors = np.square([min(sensitivities[cost.name], 1e9) for cost in costs])
    units = np.ceil(errors * (_UNITS / max(float(errors.sum()), 1e-300))).astype(np.int64)
    levels = _levels(costs, units)
    shares = [*np.exp2(-np.linspace(0.0, _ORDERS, _BUDGETS)), 0.0]
    found: dict[frozenset[str], None] = {}
    for share in shares:
        limit = int(float(units.sum()) * share)
        path = fastest(levels, room, limit)
        if path is None:
            break  # none is more accurate
        coded = [_coded(levels[n], t) for n, t in enumerate(path.transitions)]
        found[frozenset(cost.name for cost, on in zip(costs, coded, strict=True) if on)] = None
    return list(found)


def _levels(costs: Sequence[LayerCost], units: np.ndarray) -> list[Level]:
    """One level for each layer; state 0 is float32, 1 is codes."""
    found = []
    for number, cost in enumerate(costs):
        edge = edge_ns(costs[number - 1], cost) if number else 0
        sources = (0, 1) if number else (0,)
        rows = [
            (
                source,
                coded,
                (max(0, -cost.gain_ns) if coded else max(0, cost.gain_ns))
                + (edge if number and source != coded else 0),
                0 if coded else cost.saved_bytes,
                int(units[number]) if coded else 0,
                0,
            )
            for source in sources
            for coded in (0, 1)
        ]
        columns = np.array(rows, np.int64).T
        found.append(Level(2, *columns))
    return found


def _coded(level: Level, transition: int) -> bool:
    return bool(level.target[transition] == 1)
