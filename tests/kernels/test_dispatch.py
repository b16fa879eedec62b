"""Every operation finds its module, and what has no kernel is refused by name."""

from __future__ import annotations

import pytest

from leanconv.codegen.host import host
from leanconv.errors import UnsupportedError
from leanconv.graph.ir import Node
from leanconv.graph.ops import OPS
from leanconv.kernels import layout
from leanconv.operators import OPERATORS, NodeContext, operator_of
from leanconv.spec.format import PLAIN
from leanconv.types import FLOAT32
from support.nodes import Case, distinct


def _context(case: Case) -> NodeContext:
    return NodeContext(case.node, case.graph, {"x0": PLAIN, "y": PLAIN}, host())


def test_every_operation_has_an_operator() -> None:
    # These are folded or rewritten before.
    assert set(OPS) - set(OPERATORS) == {"BatchNormalization", "QLinearSoftmax"}
    assert set(OPERATORS) <= set(OPS)


def test_unknown_operation_is_named() -> None:
    node = Node("Einsum", ("x0",), ("y",), {}, "mix")
    with pytest.raises(UnsupportedError, match=r"'mix'.*Einsum.*expected one of"):
        operator_of(node)


def test_results_without_elements_need_no_kernel() -> None:
    attributes = {"starts": (0, 0), "steps": (1, 1), "sizes": (2, 0)}
    case = Case(layout, "Slice", [distinct((2, 3), FLOAT32)], attributes)
    assert not operator_of(case.node).lower(_context(case)).calls
    case = Case(layout, "Transpose", [distinct((2, 3), FLOAT32)], {"perm": (1, 0)})
    lowered = operator_of(case.node).lower(_context(case))
    assert lowered.calls[0].values == ("x0", "y")
