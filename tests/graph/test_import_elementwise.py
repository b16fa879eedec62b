"""Functions of each element by itself against ONNX Runtime: bound, and compiled many in one."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import leanconv as lc
from support.elementwise_cases import CASES, X
from support.onnx_models import agree, imported, reference, single


@pytest.mark.parametrize(("op", "operands", "opset", "attributes"), CASES)
def test_one_operation(op: str, operands: Any, opset: int, attributes: dict[str, Any]) -> None:
    agree(*single(op, operands, opset, **attributes))


def joined(opset: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """All cases of an opset as one network with an output for each."""
    nodes, inputs, outputs, held, given = [], [], [], [], {}
    for number, parameters in enumerate(CASES):
        op, operands, at, attributes = parameters.values
        if at != opset:
            continue
        proto, arrays = single(op, list(operands), at, **attributes)
        names = {name: f"c{number}.{name}" for node in proto.graph.node for name in node.input}
        names |= {node.output[0]: f"y{number}" for node in proto.graph.node}
        for node in proto.graph.node:
            node.name = f"n{number}"
            node.input[:] = [names[name] for name in node.input]
            node.output[:] = [names[name] for name in node.output]
            nodes.append(node)
        for values, kept in (
            (proto.graph.input, inputs),
            (proto.graph.initializer, held),
            (proto.graph.output, outputs),
        ):
            for value in values:
                value.name = names[value.name]
                kept.append(value)
        given |= {names[name]: array for name, array in arrays.items()}
    graph = helper.make_graph(nodes, "joined", inputs, outputs, held)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    return made, given


@pytest.mark.parametrize("opset", sorted({parameters.values[2] for parameters in CASES}))
def test_all_compiled_in_one_network(opset: int) -> None:
    proto, given = joined(opset)
    found = lc.load(proto.SerializeToString(), threads=1).run(given)
    for name, wanted in reference(proto, given).items():
        assert found[name].dtype == wanted.dtype, name
        if wanted.dtype.kind == "f":
            np.testing.assert_allclose(found[name], wanted, rtol=2e-6, atol=1e-6, err_msg=name)
        else:
            np.testing.assert_array_equal(found[name], wanted, err_msg=name)


@pytest.mark.parametrize("alpha", [1.0, 0.5])
def test_swish(alpha: float) -> None:
    """Of opsets that ONNX Runtime does not know yet."""
    sigmoid = 1 / (1 + np.exp(-alpha * X.astype(np.float64)))
    found = imported(*single("Swish", [X], 24, alpha=alpha))["out0"]
    np.testing.assert_allclose(found, X * sigmoid, rtol=1e-6)
    found = imported(*single("SwiGLU", [X, X[0]], 28, alpha=alpha))["out0"]
    np.testing.assert_allclose(found, X * sigmoid * X[0], rtol=1e-6)
