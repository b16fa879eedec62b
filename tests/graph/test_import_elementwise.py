"""Functions of each element by itself against ONNX Runtime: bound, and compiled many in one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.elementwise_cases import CASES, X
from support.joined_cases import check_compiled, opsets
from support.onnx_models import agree, imported, single


@pytest.mark.parametrize(("op", "operands", "opset", "attributes"), CASES)
def test_one_operation(op: str, operands: Any, opset: int, attributes: dict[str, Any]) -> None:
    agree(*single(op, operands, opset, **attributes))


@pytest.mark.parametrize("opset", opsets(CASES))
def test_all_compiled_in_one_network(opset: int) -> None:
    check_compiled(CASES, opset)


@pytest.mark.parametrize("alpha", [1.0, 0.5])
def test_swish(alpha: float) -> None:
    """Of opsets that ONNX Runtime does not know yet."""
    sigmoid = 1 / (1 + np.exp(-alpha * X.astype(np.float64)))
    found = imported(*single("Swish", [X], 24, alpha=alpha))["out0"]
    np.testing.assert_allclose(found, X * sigmoid, rtol=1e-6)
    found = imported(*single("SwiGLU", [X, X[0]], 28, alpha=alpha))["out0"]
    np.testing.assert_allclose(found, X * sigmoid * X[0], rtol=1e-6)
