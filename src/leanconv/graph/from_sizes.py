"""Constants that follow from open sizes alone: the anchors of a detector, a mask, positions.

A network that is bound with symbols for its open extents has a graph that computes them
(`Graph.from_sizes`). Where numbers are filled in, NumPy computes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np

from leanconv.graph.ir import Attributes, Graph
from leanconv.graph.ops import evaluate
from leanconv.graph.ops.base import Array
from leanconv.symbolic import NeedsNumberError


class SizedArray:
    """Stands for such a constant in a graph with symbols, where it has no numbers."""

    def __getattr__(self, name: str) -> NoReturn:
        raise NeedsNumberError(f"{name} of a constant that follows from sizes")

    def __array__(self, *_: object, **__: object) -> NoReturn:
        raise NeedsNumberError("the numbers of a constant that follows from sizes")


def computed(
    graph: Graph, attributes: Callable[[Attributes], Attributes], array: Callable[[str], Array]
) -> Mapping[str, Array]:
    """Compute the outputs of a graph without inputs.

    Args:
        graph: it may have symbols.
        attributes: those of a node with numbers for symbols.
        array: a constant with numbers for symbols.
    """
    values: dict[str, Any] = {name: array(name) for name in graph.constants}
    for node in graph.nodes:
        read = [values[name] if name else None for name in node.inputs]
        made = evaluate(node.op, read, attributes(node.attributes))
        for name, each in zip(node.outputs, made, strict=True):
            values[name] = np.asarray(each, graph.types[name].dtype.numpy)
    found = {name: np.ascontiguousarray(values[name]) for name in graph.outputs}
    for each in found.values():
        each.flags.writeable = False
    return found
