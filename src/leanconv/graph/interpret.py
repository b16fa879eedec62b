"""Run a graph with NumPy, node by node: the oracle of everything that is generated."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from leanconv.errors import InputError
from leanconv.graph.ir import Graph
from leanconv.graph.ops import evaluate_node
from leanconv.graph.ops.base import Array
from leanconv.graph.ops.loop import run
from leanconv.units import type_text


def interpret(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Compute a graph's outputs with NumPy.

    Args:
        graph: in normal form.
        inputs: one array for every graph input, of its type.

    Returns:
        The outputs by name.

    Raises:
        InputError: an input is missing, unknown, or of another shape or dtype.
    """
    if set(inputs) != set(graph.inputs):
        raise InputError(f"got inputs {sorted(inputs)}; expected {sorted(graph.inputs)}")
    values: dict[str, Array] = dict(graph.constants)
    for name in graph.inputs:
        given, kind = np.asarray(inputs[name]), graph.types[name]
        if given.shape != kind.shape or given.dtype != np.dtype(kind.dtype):
            raise InputError(
                f"input {name!r} is {type_text(given.dtype, given.shape)}; expected {kind}"
            )
        values[name] = given
    return dict(zip(graph.outputs, run(graph, values, evaluate_node), strict=True))
