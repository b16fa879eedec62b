"""Every operation that computes takes halves, in every format that it accepts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from leanconv.codegen.host import host
from leanconv.graph.halves import computes, moves
from leanconv.graph.ir import TensorType
from leanconv.graph.ops import OPS
from leanconv.graph.verify import verify
from leanconv.half_arrays import as_float32, in_memory
from leanconv.operators import OPERATORS, operator_of
from leanconv.types import BFLOAT16, FLOAT16, FLOAT32, HALVES, DType
from support.format_cases import ALL, Case, cases, drawn_runs, runs
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


MOVES = {op for op, each in OPS.items() if each.moves}
STORED = sorted(op for op, each in OPS.items() if op in OPERATORS and (each.moves or each.halves))
# With other vectors a third of them: how halves are loaded and stored there, tests/codegen has.
AGAIN = STORED[::3]


@pytest.mark.vectors
@pytest.mark.parametrize("all_runs", [pytest.param(False, id="drawn"), ALL])
@pytest.mark.parametrize(
    "op", [op if op in AGAIN else pytest.param(op, marks=pytest.mark.once) for op in STORED]
)
def test_operations_take_halves(op: str, all_runs: bool) -> None:
    found = [
        run
        for run in runs(list(_half_cases(op)))
        if "products" not in str(run.choice)  # sums in halves
    ]
    assert found or op == "ScatterElements"  # its cases are sums
    expected: dict[int, np.ndarray] = {}
    for run in found if all_runs else drawn_runs(found):
        case, context, choice = run.case, run.context, run.choice
        y, types = case.graph.outputs[0], case.graph.types
        if id(case) not in expected:
            expected[id(case)] = interpret(case.graph, case.inputs)[y]
        lowered = operator_of(case.node).lower(context, choice)
        made = run_lowered(lowered, case.graph, context.formats, case.inputs, host(), (1 / 3,))
        half = types[y].dtype
        if half in HALVES:
            a, b = (as_float32(each, half) for each in (made, expected[id(case)]))
            error = np.abs(a - b).max() / max(1e-30, np.abs(b).max())
            assert error <= ROUNDOFFS * half.roundoff, (case, choice, context.formats)
        else:
            assert np.array_equal(made, expected[id(case)]), (case, choice)


def _half_cases(op: str) -> Iterator[Case]:
    """The cases that take halves, of either type by turns."""
    number = 0
    for given in cases(op):
        types = given.graph.types
        if op in MOVES and types[given.graph.outputs[0]].dtype != FLOAT32:
            continue
        if not (moves(given.node) if op in MOVES else computes(given.node)):
            continue
        number += 1
        if not (op in MOVES and given.graph.constants):
            yield in_halves(given, (FLOAT16, BFLOAT16)[number % 2])
