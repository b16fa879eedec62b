"""Every format that an operator accepts is one in which its kernels read all operands rightly.

An operand has several readers where a node takes it twice, and where a block inside of a node adds
its own input: the nodes come with every two operands of one type as one value, too.
"""

from __future__ import annotations

import numpy as np
import pytest

from leanconv.algorithms import MACHINE_ALGORITHMS
from leanconv.codegen.host import host
from leanconv.operators import OPERATORS
from leanconv.operators.convolution import OF_TRANSPOSED
from support.format_cases import ALL, cases, drawn_runs, runs

ALLOWED = 1e-4  # of the largest number; what is read in another format is wrong by about 1
ROUNDED = 0.02  # where factors are rounded to bfloat16
# Runs of an operation at least: nodes by formats by choices, of which other machines have fewer.
LEAST = {
    "Conv": 100,
    "ConvTranspose": 20,
    "ConvChain": 40,
    "BlockChain": 24,
    "Add": 30,
    "Concat": 2,
    "Split": 11,
    "Mod": 4,
    "Where": 7,
    "TopK": 4,
    "MaxPoolWithIndices": 2,
}

# What a loop carries and stacks is plain; its body is a graph of its own, whose formats are others.
REGIONS = {"Loop"}


@pytest.mark.vectors
@pytest.mark.parametrize("all_runs", [pytest.param(False, id="drawn"), ALL])
@pytest.mark.parametrize("op", sorted(set(OPERATORS) - REGIONS))
def test_every_accepted_format_is_read_rightly(op: str, all_runs: bool) -> None:
    found = runs(cases(op))
    assert len(found) >= LEAST.get(op, 1)
    if op in ("Conv", "ConvChain", "BlockChain"):
        few, seen = set(MACHINE_ALGORITHMS), {run.choice.algorithm for run in found}
        assert seen - few == set(OPERATORS[op].algorithms) - few - OF_TRANSPOSED
    expected: dict[int, np.ndarray] = {}
    for run in found if all_runs else drawn_runs(found):
        case, choice = run.case, run.choice
        if id(case) not in expected:
            expected[id(case)] = case.expected()
        wanted = expected[id(case)]
        error = np.abs(case.run(run.context, choice) - wanted).max()
        error /= max(1e-30, np.abs(wanted).max())
        allowed = ROUNDED if choice.algorithm == "amx" else ALLOWED
        assert error <= allowed, f"{case}, {choice}: off by {error:.1e}, {run.context.formats}"


def test_blocks_are_tried_wherever_an_operator_accepts_them() -> None:
    blocked = {
        op
        for op in OPERATORS
        for case in cases(op)
        for context in case.contexts(host())
        if any(form.block for form in context.formats.values())
    }
    # Windows that run across channels, matrices, values of no float, elements found by index.
    typed = {"ArgMax", "ArgMin", "IsNaN", "IsInf", "And", "Or", "Xor", "Not", "Equal"}
    typed |= {"Less", "LessOrEqual", "Greater", "GreaterOrEqual", "TopK", "NonMaxSuppression"}
    typed |= {"MaxPoolWithIndices", "Recurrence", "BitCast", "NonZero", "Compress"}
    plain = {"LRN", "Softmax", "LogSoftmax", "MatMul", "Gemm", "CumSum", "CumProd", "Attention"}
    plain |= {"Extremes", "QLinearMatMul", "MatMulNBits"}
    plain |= {"Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND"}
    assert set(OPERATORS) - blocked == plain | typed | REGIONS


def test_some_nodes_read_one_value_in_two_ways() -> None:
    for op in ("Conv", "ConvChain", "BlockChain", "Add", "Concat"):
        found = [case for case in cases(op) if case.reads_twice]
        assert found, f"no {op} reads a value twice"
