"""Every operation finds its module, and what has no kernel is refused by name."""

from __future__ import annotations

import pytest

from leanconv import kernels
from leanconv.codegen.host import host
from leanconv.errors import UnsupportedError
from leanconv.graph.ir import Node
from leanconv.graph.ops import OPS
from leanconv.kernels import layout
from leanconv.spec.format import PLAIN
from support.kernel_cases import Case, distinct


def test_every_operation_but_convolution_has_kernels() -> None:
    # Convolutions are lowered by `algorithms`; batch normalisation is folded or rewritten before.
    ours = {"Conv", "ConvTranspose", "ConvChain", "BlockChain"}
    assert set(OPS) - set(kernels.MODULES) == {*ours, "BatchNormalization"}
    assert set(kernels.MODULES) <= set(OPS)


def test_unknown_operation_is_named() -> None:
    case = Case(layout, "Transpose", [distinct((2, 3), "float32")], {"perm": (1, 0)})
    node = Node("Einsum", ("x0",), ("y",), {}, "mix")
    with pytest.raises(UnsupportedError, match=r"'mix'.*Einsum.*expected one of"):
        kernels.lower(node, case.graph, {"x0": PLAIN, "y": PLAIN}, host())
    with pytest.raises(UnsupportedError, match="Einsum"):
        kernels.accepts_blocked(node, case.graph, 8)


def test_results_without_elements_need_no_kernel() -> None:
    attributes = {"starts": (0, 0), "steps": (1, 1), "sizes": (2, 0)}
    case = Case(layout, "Slice", [distinct((2, 3), "float32")], attributes)
    assert not kernels.lower(case.node, case.graph, {"x0": PLAIN, "y": PLAIN}, host()).calls
    case = Case(layout, "Transpose", [distinct((2, 3), "float32")], {"perm": (1, 0)})
    lowered = kernels.lower(case.node, case.graph, {"x0": PLAIN, "y": PLAIN}, host())
    assert lowered.calls[0].values == ("x0", "y")
