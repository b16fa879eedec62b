"""Reductions, running totals and norms against ONNX Runtime: bound, and compiled many in one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.joined_cases import check_compiled, opsets
from support.onnx_models import Const, agree, imported, single
from support.reduction_cases import CASES, WHOLE


@pytest.mark.parametrize(("op", "operands", "opset", "attributes"), CASES)
def test_one_operation(op: str, operands: Any, opset: int, attributes: dict[str, Any]) -> None:
    agree(*single(op, operands, opset, **attributes))


@pytest.mark.parametrize("opset", opsets(CASES))
def test_all_compiled_in_one_network(opset: int) -> None:
    check_compiled(CASES, opset, 1e-5)


def test_running_products() -> None:
    """Of an opset that ONNX Runtime does not know yet."""
    x = WHOLE.astype(np.int64)
    found = imported(*single("CumProd", [x, Const(np.array(-1))], 26))["out0"]
    np.testing.assert_array_equal(found, np.cumprod(x, -1))
    found = imported(*single("CumProd", [x, Const(np.array(1))], 26, exclusive=1, reverse=1))
    expected = np.flip(np.cumprod(np.flip(x, 1), 1), 1)[:, 1:]
    np.testing.assert_array_equal(found["out0"][:, :-1], expected)
    np.testing.assert_array_equal(found["out0"][:, -1], 1)
