"""Single operators on codes as ONNX Runtime computes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, np.ndarray],
    constants: Mapping[str, Any],
    outputs: Sequence[str] = ("y",),
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    opset: int = 21,
) -> onnx.ModelProto:
    """A network of nodes; inputs have the types and, unless `shapes` has others, the extents."""
    infos = [
        helper.make_tensor_value_info(
            name,
            helper.np_dtype_to_tensor_dtype(array.dtype),
            list((shapes or {}).get(name, array.shape)),
        )
        for name, array in inputs.items()
    ]
    held = [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()]
    results = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph(list(nodes), "g", infos, results, held)
    sets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_model(graph, opset_imports=sets)
    made.ir_version = 10
    return made


def peer(made: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """What ONNX Runtime answers, on one thread."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    data = made.SerializeToString()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    found: list[np.ndarray] = session.run(None, dict(inputs))
    return found


def microsoft(op: str, inputs: Sequence[str], outputs: Sequence[str] = ("y",), **more: Any) -> Any:
    """A node of the domain com.microsoft."""
    return helper.make_node(op, list(inputs), list(outputs), domain="com.microsoft", **more)
