"""Reductions, running totals and norms against ONNX Runtime: bound, and compiled many in one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from leanconv.errors import LeanConvError
from leanconv.graph.onnx_import import read_model
from support.joined_cases import check_compiled, opsets
from support.onnx_models import Const, agree, imported, single
from support.reduction_cases import CASES, LABELS, SCORES, WHOLE


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


def test_root_mean_squares() -> None:
    x, scale = WHOLE.astype(np.float32), WHOLE[0, 0].astype(np.float32)
    expected = x / np.sqrt((x**2).mean((2, 3), keepdims=True, dtype=np.float64) + 0.1) * scale
    found = imported(*single("RMSNormalization", [x, scale], 23, axis=2, epsilon=0.1))["out0"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_further_outputs_of_a_layer_norm(outputs: int) -> None:
    operands = [WHOLE.astype(np.float32), Const(WHOLE[0, 0].astype(np.float32))]
    agree(*single("LayerNormalization", operands, 17, outputs, axis=2))


def test_a_loss_with_its_logarithms() -> None:
    agree(*single("SoftmaxCrossEntropyLoss", [SCORES, LABELS], 13, 2))


def test_axes_that_are_no_integers_are_refused() -> None:
    for number in (0.5, np.nan, np.inf):
        proto, _ = single("CumSum", [WHOLE.astype(np.float32), Const(np.float32(number))], 14)
        with pytest.raises(LeanConvError, match=r"CumSum.*expected an integer"):
            read_model(proto.SerializeToString()).bind()
