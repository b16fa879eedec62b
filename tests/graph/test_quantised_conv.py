"""QLinearConv has the bits of onnxruntime's QLinearConv, and of QLinearAdd behind it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import helper

from leanconv.errors import ModelError
from leanconv.graph.ir import TensorType
from leanconv.graph.ops import evaluate_node, infer
from leanconv.types import FLOAT32, INT8, INT32, UINT8, DType
from support.quantised_convs import SHAPES, QuantisedConv, quantised_conv
from support.quantised_models import microsoft, model, peer

F = np.float32


def by_onnxruntime(case: QuantisedConv) -> np.ndarray:
    """What onnxruntime's operators make of a node of codes whose results are clamped nowhere."""
    attributes, constants = case.node.attributes, case.graph.constants
    types, own = case.graph.types, attributes["residual"]
    x, y = types["x"].dtype, attributes["dtype"]
    zero = attributes["y_zero"] if own is None else own.own_zero
    held: dict[str, Any] = {"w": constants["w"]}
    held |= {"xs": F(1), "xz": np.array(attributes["x_zero"], x)}
    held |= {"ws": constants["scale"], "wz": np.zeros(len(constants["w"]), constants["w"].dtype)}
    held |= {"ys": F(1), "yz": np.array(zero, y)}
    names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"]
    if "bias" in constants:
        held["bias"] = constants["bias"]
        names.append("bias")
    window = {name: list(attributes[name]) for name in ("strides", "pads", "dilations")}
    conv = helper.make_node("QLinearConv", names, ["c"], group=attributes["group"], **window)
    if own is None:
        return peer(model([conv], case.inputs, held, ["c"]), case.inputs)[0]
    held |= {"cs": F(own.own_scale), "cz": np.array(own.own_zero, y), "rs": F(own.scale)}
    held |= {"rz": np.array(own.zero, y), "ss": F(own.result_scale)}
    held["sz"] = np.array(attributes["y_zero"], y)
    operands = [["c", "cs", "cz"], ["r", "rs", "rz"]]
    first, second = operands[::-1] if own.first else operands
    added = microsoft("QLinearAdd", [*first, *second, "ss", "sz"])
    return peer(model([conv, added], case.inputs, held), case.inputs)[0]


def unclamped(case: QuantisedConv) -> QuantisedConv:
    """The same node, whose codes have the bounds of their type."""
    attributes = dict(case.node.attributes)
    low, high = int(attributes["dtype"].low), int(attributes["dtype"].high)
    attributes |= {"low": low, "high": high}
    if attributes["residual"] is not None:
        attributes["residual"] = replace(attributes["residual"], own_low=low, own_high=high)
    return replace(case, node=replace(case.node, attributes=attributes))


@pytest.mark.parametrize("dtype", [UINT8, INT8])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_bits_are_those_of_onnxruntime(number: int, residual: bool, dtype: DType) -> None:
    for seed in range(2):
        case = quantised_conv(number, dtype, dtype, residual, seed, zero=True)
        case = unclamped(case)
        (found,) = evaluate_node(case.node, {**case.inputs, **case.graph.constants})
        np.testing.assert_array_equal(found, by_onnxruntime(case))


def test_operands_that_do_not_fit_are_refused() -> None:
    attributes = quantised_conv(1).node.attributes
    x, w = TensorType((1, 4, 5, 5), UINT8), TensorType((6, 4, 1, 1), INT8)
    bias, scale = TensorType((6,), INT32), TensorType((6,), FLOAT32)
    residual = TensorType((1, 6, 5, 5), UINT8)
    assert infer("QLinearConv", [x, w, bias, scale], attributes) == (residual,)
    for operands, given, message in (
        ([x, replace(w, dtype=FLOAT32), bias, scale], {}, "expected uint8 or int8"),
        ([replace(x, dtype=INT8), replace(w, dtype=UINT8), bias, scale], {}, "expected uint8 or"),
        ([x, w, scale, scale], {}, "the bias is"),
        ([x, w, bias, bias], {}, "the scale is"),
        ([x, w, bias], {}, "expected one, but none"),
        ([x, w, bias, scale, residual], {}, "expected both"),
        ([x, w, bias, scale], {"x_zero": 256}, "got 256 as a code"),
        ([x, w, bias, scale], {"high": -1}, "got -1 as a code"),
        ([x, w, bias, scale], {"low": 9, "high": 8}, "expected bounds in order"),
        ([x, w, bias, scale], {"dtype": FLOAT32, "low": float("nan")}, "expected bounds in order"),
        ([x, w, bias, scale], {"dtype": "float64"}, "got results of"),
    ):
        with pytest.raises(ModelError, match=message):
            infer("QLinearConv", operands, {**attributes, **given})
