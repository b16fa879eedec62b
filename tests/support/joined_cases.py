"""Cases of one node each, many in one network: compiled once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

import leanconv as lc
from support.onnx_models import reference, single


def opsets(cases: Sequence[Any]) -> list[int]:
    """Those that cases are of."""
    return sorted({parameters.values[2] for parameters in cases})


def joined(cases: Sequence[Any], opset: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """All cases of an opset as one network with an output for each."""
    nodes, inputs, outputs, held, given = [], [], [], [], {}
    for number, parameters in enumerate(cases):
        op, operands, at, attributes = parameters.values
        if at != opset:
            continue
        proto, arrays = single(op, list(operands), at, **attributes)
        names = {
            name: f"c{number}.{name}" for node in proto.graph.node for name in node.input if name
        } | {"": ""}
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


def check_compiled(
    cases: Sequence[Any], opset: int, rtol: float = 2e-6, atol: float = 1e-6
) -> None:
    """Compile all cases of an opset and compare with ONNX Runtime; integers are equal."""
    proto, given = joined(cases, opset)
    found = lc.load(proto.SerializeToString(), threads=1).run(given)
    for name, wanted in reference(proto, given).items():
        assert found[name].dtype == wanted.dtype, name
        if wanted.dtype.kind == "f":
            np.testing.assert_allclose(found[name], wanted, rtol=rtol, atol=atol, err_msg=name)
        else:
            np.testing.assert_array_equal(found[name], wanted, err_msg=name)
