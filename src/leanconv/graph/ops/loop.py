"""The operation that computes a region many times."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from leanconv.errors import ModelError
from leanconv.graph.ir import Attributes, Graph, Node, TensorType
from leanconv.graph.ops.base import Array, Arrays, Op, Types, array, checked, required
from leanconv.types import DTYPES

Evaluate = Callable[[Node, Mapping[str, Array]], tuple[Array, ...]]
Work = Callable[[Node, Mapping[str, TensorType]], int]


def _infer(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    body: Graph = attributes["body"].graph
    count, states = attributes["count"], attributes["states"]
    if len(types) != len(body.inputs) or not 0 <= states <= min(len(types), len(body.outputs)):
        raise ModelError(
            f"got {len(types)} inputs, {states} of them carried, for a body of {len(body.inputs)} "
            f"inputs and {len(body.outputs)} outputs; expected as many"
        )
    if count < 1:
        raise ModelError("attribute count is less than 1; expected a loop that runs")
    given = [required(types, index) for index in range(len(types))]
    for name, kind in zip(body.inputs, given, strict=True):
        if body.types[name] != kind:
            raise ModelError(
                f"the body's input {name!r} is {body.types[name]}; expected {kind}, as the node's"
            )
    made = [body.types[name] for name in body.outputs]
    for name, kind, wanted in zip(body.outputs[:states], made, given, strict=False):
        if kind != wanted:
            raise ModelError(
                f"the body carries {wanted} on as {name!r}, which is {kind}; expected equal types"
            )
    stacked = (checked((count, *kind.shape), kind.dtype) for kind in made[states:])
    return (*made[:states], *stacked)


def run(graph: Graph, values: dict[str, Array], evaluate: Evaluate) -> list[Array]:
    """The outputs of a graph, node by node; an array goes when nothing reads it any more.

    Args:
        graph: in normal form.
        values: of its inputs and constants.
        evaluate: computes a node.
    """
    left: dict[str, int] = {}
    for name in (*graph.outputs, *(name for node in graph.nodes for name in node.inputs)):
        left[name] = left.get(name, 0) + 1
    for node in graph.nodes:
        values.update(zip(node.outputs, evaluate(node, values), strict=True))
        for name in node.inputs:
            left[name] -= 1
            if not left[name]:
                values.pop(name, None)
    return [values[name] for name in graph.outputs]


def loop(evaluate: Evaluate, work: Work) -> Op:
    """The operation, made of what computes a node and of what says how much that is."""

    def computed(arrays: Arrays, attributes: Attributes) -> tuple[Array, ...]:
        body: Graph = attributes["body"].graph
        states = attributes["states"]
        given = [array(arrays, index) for index in range(len(arrays))]
        stacks: list[list[Array]] = [[] for _ in body.outputs[states:]]
        for _ in range(attributes["count"]):
            values = {**body.constants, **dict(zip(body.inputs, given, strict=True))}
            made = run(body, values, evaluate)
            given[:states] = made[:states]
            for stack, each in zip(stacks, made[states:], strict=True):
                stack.append(each)
        return (*given[:states], *map(np.stack, stacks))

    def worked(types: Types, attributes: Attributes, results: tuple[TensorType, ...]) -> int:
        del types, results
        body: Graph = attributes["body"].graph
        once = sum(work(node, body.types) for node in body.nodes)
        return int(attributes["count"]) * (len(body.nodes) + once)

    return Op(_infer, computed, 0, 1 << 31, ("body", "count", "states"), worked, dtypes=DTYPES)
