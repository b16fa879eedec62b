"""Every operation that computes takes halves, in every format that it accepts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from leanconv.codegen.host import host
from leanconv.graph.halves import COMPUTES, MOVES, computes, moves
from leanconv.graph.ir import TensorType
from leanconv.graph.verify import verify
from leanconv.half_arrays import as_float32, in_memory
from leanconv.operators import OPERATORS, operator_of
from leanconv.types import BFLOAT16, FLOAT16, FLOAT32, HALVES, DType
from support.format_cases import Case, cases, choices
from support.interpret import interpret
from support.nodes import run_lowered

ROUNDOFFS = 24  # between two orders of float32 sums, of weights in halves, of the largest number


def in_halves(case: Case, half: DType) -> Case:
    """The case with all values of float32 that are no constants in halves."""
    graph = case.graph
    types = {
        name: TensorType(kind.shape, half)
        if kind.dtype == FLOAT32 and name not in graph.constants
        else kind
        for name, kind in graph.types.items()
    }
    inputs = {
        name: in_memory(array, half) if types[name].dtype == half else array
        for name, array in case.inputs.items()
    }
    return Case(case.node, verify(replace(graph, types=types)), inputs)


OPS = sorted((COMPUTES | MOVES) & set(OPERATORS))
# With other vectors a third of them: how halves are loaded and stored there, tests/codegen has.
AGAIN = OPS[::3]


@pytest.mark.vectors
@pytest.mark.parametrize(
    "op", [op if op in AGAIN else pytest.param(op, marks=pytest.mark.once) for op in OPS]
)
def test_operations_take_halves(op: str) -> None:
    runs, number = 0, 0
    for given in cases(op):
        types = given.graph.types
        if op in MOVES and types[given.graph.outputs[0]].dtype != FLOAT32:
            continue
        if not (moves(given.node) if op in MOVES else computes(given.node)):
            continue
        number += 1
        half = (FLOAT16, BFLOAT16)[number % 2]
        if op in MOVES and given.graph.constants:
            continue
        case = in_halves(given, half)
        y = case.graph.outputs[0]
        kind = case.graph.types[y]
        expected = interpret(case.graph, case.inputs)[y]
        for context in case.contexts(host()):
            for choice in choices(case, context):
                if "products" in str(choice):  # sums in halves
                    continue
                lowered = operator_of(case.node).lower(context, choice)
                found = run_lowered(
                    lowered, case.graph, context.formats, case.inputs, host(), (1 / 3,)
                )
                if kind.dtype in HALVES:
                    a, b = (as_float32(each, half) for each in (found, expected))
                    error = np.abs(a - b).max() / max(1e-30, np.abs(b).max())
                    assert error <= ROUNDOFFS * half.roundoff, (case, choice, context.formats)
                else:
                    assert np.array_equal(found, expected), (case, choice)
                runs += 1
    assert runs or op == "ScatterElements"  # its cases are sums
