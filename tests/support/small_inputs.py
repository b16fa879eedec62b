"""Networks in which small integer inputs decide what is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from support.control_flow import node
from support.onnx_models import Array

R = np.random.default_rng(3)
IMAGE = R.standard_normal((1, 3, 6, 5)).astype("f4")
RATE = {"rate": np.array(16000)}


def made(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Array],
    outputs: str = "y",
    opened: Sequence[str] = (),
    **held: Any,
) -> onnx.ModelProto:
    """A model whose outputs are floats; the extents of some inputs may be open."""
    given = [
        helper.make_tensor_value_info(
            name,
            helper.np_dtype_to_tensor_dtype(array.dtype),
            [f"{name}{axis}" if name in opened else n for axis, n in enumerate(array.shape)],
        )
        for name, array in inputs.items()
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs.split()
    ]
    constants = [numpy_helper.from_array(np.asarray(a), name) for name, a in held.items()]
    graph = helper.make_graph(list(nodes), "small", given, ends, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def branch(weights: str, size: int) -> onnx.GraphProto:
    """A convolution of the image that is captured."""
    w = numpy_helper.from_array(R.standard_normal((4, 3, size, size)).astype("f4"), weights)
    nodes = [node("Conv", f"x {weights}", f"{weights}y")]
    end = helper.make_tensor_value_info(f"{weights}y", TensorProto.FLOAT, None)
    return helper.make_graph(nodes, weights, [], [end], [w])


def by_rate(opened: bool = True, then: Array | None = None) -> onnx.ModelProto:
    """One of two convolutions, by a sampling rate; after it one of the weights `then`."""
    last = "y" if then is None else "chosen"
    nodes = [
        node("Equal", "rate wide", "is_wide"),
        helper.make_node(
            "If", ["is_wide"], [last], then_branch=branch("a", 3), else_branch=branch("b", 1)
        ),
    ]
    held = {"wide": np.int64(16000)}
    if then is not None:
        nodes.append(node("Conv", "chosen then", "y"))
        held["then"] = then
    return made(nodes, {"x": IMAGE, **RATE}, opened=("x",) if opened else (), **held)
