"""Constants that follow from open sizes alone: the anchors of a detector, a mask, positions.

A network that is bound with symbols for its open extents has a graph that computes them
(`Graph.from_sizes`). Where numbers are filled in, NumPy computes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from leanconv.graph.ir import Graph
from leanconv.graph.open_graphs import graph_filler, tables_filler
from leanconv.graph.ops import evaluate
from leanconv.graph.ops.base import Array
from leanconv.symbolic import Holes, NeedsNumberError


class SizedArray:
    """Stands for such a constant in a graph with symbols, where it has no numbers."""

    def __getattr__(self, name: str) -> NoReturn:
        raise NeedsNumberError(f"{name} of a constant that follows from sizes")

    def __array__(self, *_: object, **__: object) -> NoReturn:
        raise NeedsNumberError("the numbers of a constant that follows from sizes")


def sized_filler(graph: Graph, holes: Holes) -> Callable[[Sequence[Any]], Mapping[str, Array]]:
    """What computes the outputs of a graph without inputs, with numbers for its symbols."""
    fill, tables = graph_filler(graph, holes), tables_filler(graph, holes)

    def filled(numbers: Sequence[Any]) -> Mapping[str, Array]:
        made = fill(numbers) if fill else graph
        return _computed(made, {**graph.constants, **tables(numbers)})

    return filled


def _computed(graph: Graph, constants: Mapping[str, Array]) -> Mapping[str, Array]:
    """The outputs of a graph of numbers, without inputs."""
    values: dict[str, Any] = dict(constants)
    for node in graph.nodes:
        read = [values[name] if name else None for name in node.inputs]
        made = evaluate(node.op, read, node.attributes)
        for name, each in zip(node.outputs, made, strict=True):
            values[name] = np.asarray(each, graph.types[name].dtype.numpy)
    found = {name: np.ascontiguousarray(values[name]) for name in graph.outputs}
    for each in found.values():
        each.flags.writeable = False
    return found
