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


@pytest.mark.vectors
@pytest.mark.parametrize("op", sorted(set(OPERATORS) - REGIONS))
def test_every_accepted_format_is_read_rightly(op: str) -> None:
    runs, seen = 0, set[str]()
    for case in cases(op):
        expected = case.expected()
        for context in case.contexts(host()):
            for choice in choices(case, context):
                found = case.run(context, choice)
                error = np.abs(found - expected).max() / max(1e-30, np.abs(expected).max())
                allowed = ROUNDED if choice.algorithm == "amx" else ALLOWED
                assert error <= allowed, f"{case}, {choice}: off by {error:.1e}, {context.formats}"
                runs += 1
                seen.add(choice.algorithm)
    assert runs >= LEAST.get(op, 1)
    if op in ("Conv", "ConvChain", "BlockChain"):
        few = set(MACHINE_ALGORITHMS)
        assert seen - few == set(OPERATORS[op].algorithms) - few - OF_TRANSPOSED


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
