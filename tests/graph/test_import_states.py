"""Layers that hand on a state against ONNX's reference; ONNX Runtime does not know them yet."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import leanconv as lc
from leanconv.errors import LeanConvError
from support.import_cases import Numbers
from support.onnx_models import Const, imported, single

normal = Numbers(31).normal
X, W = normal(2, 3, 9), Const(normal(3, 1, 4))


def agree(op: str, operands: list[Any], **attributes: Any) -> None:
    proto, given = single(op, operands, 27, 2, **attributes)
    for value in proto.graph.output:  # the reference does not look at them
        value.ClearField("type")
    expected = ReferenceEvaluator(proto).run(None, given)
    for found in (imported(proto, given), lc.load(proto, threads=1).run(given)):
        for ours, theirs in zip(found.values(), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("bias", [None, Const(normal(3))])
@pytest.mark.parametrize("past", [None, normal(2, 3, 3)])
def test_causal_convolutions(activation: str, bias: Any, past: Any) -> None:
    agree("CausalConvWithState", [X, W, bias, past], activation=activation)


def test_a_causal_convolution_of_one_tap() -> None:
    agree("CausalConvWithState", [X, Const(normal(3, 1, 1))])


@pytest.mark.parametrize("past", [None, normal(2, 2, 3, 4)])
@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
def test_linear_attention(rule: str, past: Any) -> None:
    decay = -np.abs(normal(2, 5, 6 if past is None else 2)) if "gated" in rule else None
    beta = np.abs(normal(2, 5, 2 if past is None else 1)) if "delta" in rule else None
    heads = {"q_num_heads": 4, "kv_num_heads": 2}
    operands = [normal(2, 5, 12), normal(2, 5, 6), normal(2, 5, 8), past, decay, beta]
    while operands[-1] is None:
        operands.pop()
    agree("LinearAttention", operands, update_rule=rule, **heads)


@pytest.mark.parametrize(
    ("operands", "attributes", "what"),
    [
        ([X, X, X], {"update_rule": "linear"}, "a multiple of heads"),
        ([X, X, X], {"q_num_heads": 3, "kv_num_heads": 3}, "goes with decay"),
        ([np.ones((1, 9999, 2), "f4")] * 3, {"q_num_heads": 1, "kv_num_heads": 1}, "9999 steps"),
    ],
)
def test_what_is_refused(operands: Any, attributes: Any, what: str) -> None:
    if "9999" in what:
        attributes = {**attributes, "update_rule": "linear"}
    proto, _ = single("LinearAttention", operands, 27, **attributes)
    with pytest.raises(LeanConvError, match=what):
        lc.load(proto.SerializeToString())
