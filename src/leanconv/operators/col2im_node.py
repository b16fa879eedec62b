"""ConvTranspose nodes as one product whose results are added where they overlap."""

from __future__ import annotations

from leanconv.algorithms import col2im
from leanconv.algorithms.interface import Candidate
from leanconv.algorithms.magnitudes import are_small
from leanconv.algorithms.parameters import Choice
from leanconv.algorithms.problem import Problem, default_error
from leanconv.codegen.epilogue import Epilogue
from leanconv.errors import SpecError
from leanconv.operators.half_values import precision_of
from leanconv.operators.operator import NodeContext
from leanconv.operators.transposed import transposed_window
from leanconv.units import shape_text

CHOICE = Choice(col2im.NAME)


def problem_of(context: NodeContext) -> Problem:
    """The transposed convolution of a node; its window is that of the whole of it."""
    node, graph, accuracy = context.node, context.graph, context.accuracy
    w = graph.constants[node.inputs[1]]
    x_type, y_type = graph.types[node.inputs[0]], graph.types[node.output]
    groups, types = node.attributes["group"], precision_of(x_type.dtype, y_type.dtype)
    error = accuracy.layer_error
    return Problem(
        batch=x_type.shape[0],
        in_channels=w.shape[0],
        out_channels=groups * w.shape[1],
        groups=groups,
        precision=types,
        epilogue=Epilogue(bool(node.input(2)), False, node.attributes["activation"]),
        window=transposed_window(node, graph, w),
        x=context.access(node.inputs[0]),
        y=context.access(node.output),
        label=f"a transposed convolution of {shape_text(w.shape[2:])} taps",
        max_error=default_error(types) if error is None else error,
        weights_from_dram=accuracy.weights_from_dram,
        any_size=context.any_size,
        small_weights=are_small(w),
    )


def refusal(context: NodeContext) -> str | None:
    """Why a node cannot be computed like that; None if it can."""
    if context.node.op != "ConvTranspose":
        return "only transposed convolutions are"
    return col2im.refusal(problem_of(context), context.target)


def estimated(context: NodeContext) -> Choice:
    """What a node that is not refused costs."""
    problem, found = candidate_of(context)
    cycles = col2im.cost(problem, context.target)
    return Choice(col2im.NAME, found.choice.parameters, cycles, found.choice.error)


def candidate_of(context: NodeContext) -> tuple[Problem, Candidate]:
    """How a node is computed.

    Raises:
        SpecError: it cannot be computed like that.
    """
    if reason := refusal(context):
        node = context.node
        raise SpecError(
            f"node {node.name or node.key!r} ({node.op}) cannot be computed by col2im: {reason}"
        )
    problem = problem_of(context)
    return problem, col2im.candidate(problem, context.target)
