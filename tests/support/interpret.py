"""Run a graph with NumPy, node by node: the oracle of everything that is generated."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from leanconv.errors import InputError
from leanconv.graph.halves import stored_half
from leanconv.graph.ir import Graph, Node, TensorType
from leanconv.graph.ops import evaluate_node
from leanconv.graph.ops.base import Array
from leanconv.graph.ops.recurrent import run
from leanconv.half_arrays import as_float32, held_as, in_memory
from leanconv.types import BFLOAT16, HALVES, as_dtype
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
    halves = any(stored_half(node, graph) for node in graph.nodes)
    halves |= any(kind.dtype == BFLOAT16 for kind in graph.types.values())  # NumPy has none
    for name in graph.inputs:
        given, kind = np.asarray(inputs[name]), graph.types[name]
        if given.shape != kind.shape or as_dtype(given.dtype) not in (kind.dtype, kind.dtype.numpy):
            raise InputError(
                f"input {name!r} is {type_text(given.dtype, given.shape)}; expected {kind}"
            )
        values[name] = as_float32(given, kind.dtype) if halves and is_half(kind) else given
    if not halves:
        return dict(zip(graph.outputs, run(graph, values, evaluate_node), strict=True))
    found = run(graph, values, lambda node, read: _rounded(node, read, graph))
    kinds = [graph.types[name] for name in graph.outputs]
    return {
        name: in_memory(array, kind.dtype) if is_half(kind) else array
        for name, array, kind in zip(graph.outputs, found, kinds, strict=True)
    }


def is_half(kind: TensorType) -> bool:
    """Whether a value is stored in halves."""
    return kind.dtype in HALVES


def _rounded(node: Node, values: Mapping[str, Array], graph: Graph) -> tuple[Array, ...]:
    """`evaluate_node` on float32 numbers that the graph stores in halves, rounded as these."""
    made = evaluate_node(node, values)
    return tuple(
        held_as(array, graph.types[name].dtype)
        for array, name in zip(made, node.outputs, strict=True)
    )
