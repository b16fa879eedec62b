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
from support.drawn import a_third, of_tree
from support.format_cases import cases, choices

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


MANY = 40  # runs of an operation, of which the tree draws a third
ALL = pytest.param(True, marks=pytest.mark.exhaustive, id="all")


@pytest.mark.vectors
@pytest.mark.parametrize("all_runs", [pytest.param(False, id="drawn"), ALL])
@pytest.mark.parametrize("op", sorted(set(OPERATORS) - REGIONS))
def test_every_accepted_format_is_read_rightly(op: str, all_runs: bool) -> None:
    given = cases(op)
    runs = [
        (number, context, choice)
        for number, case in enumerate(given)
        for context in case.contexts(host())
        for choice in choices(case, context)
    ]
    kinds = [
        (number, choice.algorithm, *map(context.formats.get, given[number].operands))
        for number, context, choice in runs
    ]
    assert len(runs) >= LEAST.get(op, 1)
    if op in ("Conv", "ConvChain", "BlockChain"):
        few, seen = set(MACHINE_ALGORITHMS), {choice.algorithm for *_, choice in runs}
        assert seen - few == set(OPERATORS[op].algorithms) - few - OF_TRANSPOSED
    if len(runs) >= MANY and not all_runs:
        kept = a_third([f"{op} {i} {kind}" for i, kind in enumerate(kinds)], kinds, of_tree())
        runs = [runs[i] for i in sorted(kept)]
    expected = {number: given[number].expected() for number in {number for number, *_ in runs}}
    for number, context, choice in runs:
        case, wanted = given[number], expected[number]
        error = np.abs(case.run(context, choice) - wanted).max()
        error /= max(1e-30, np.abs(wanted).max())
        allowed = ROUNDED if choice.algorithm == "amx" else ALLOWED
        assert error <= allowed, f"{case}, {choice}: off by {error:.1e}, {context.formats}"


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
