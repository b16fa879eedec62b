"""A network of planned outputs and of outputs that follow from values, in any order."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

# Planned: r and p. Of data: where r is not 0, its larger numbers, how many there are.
_OUTPUTS = {
    "r": (TensorProto.FLOAT, ["N", 4, "H", "W"]),
    "p": (TensorProto.FLOAT, ["N", 4, 1, 1]),
    "places": (TensorProto.INT64, [4, None]),
    "large": (TensorProto.FLOAT, [None]),
    "count": (TensorProto.INT64, [1]),
}
LATE = frozenset({"places", "large", "count"})
ORDERS = [
    ("places",),
    *permutations(("p", "places")),
    *permutations(("r", "large", "places")),
    ("large", "p", "count"),
]


def late_outputs(
    *order: str, batch: int | str = "N", side: int | str = 8, typed: bool = True
) -> bytes:
    """The network.

    Args:
        order: of its outputs.
        batch, side: extents of its input.
        typed: whether the file says what outputs are.
    """
    weights = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("ReduceMean", ["r", "axes"], ["p"], keepdims=1),
        helper.make_node("NonZero", ["r"], ["places"]),
        helper.make_node("Reshape", ["r", "flat"], ["f"]),
        helper.make_node("Greater", ["f", "half"], ["chosen"]),
        helper.make_node("Compress", ["f", "chosen"], ["large"], axis=0),
        helper.make_node("Shape", ["large"], ["count"]),
    ]
    said = [helper.make_tensor_value_info(name, *_OUTPUTS[name]) for name in order]
    graph = helper.make_graph(
        nodes,
        "late",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, side, side])],
        said if typed else [onnx.ValueInfoProto(name=name) for name in order],
        [
            numpy_helper.from_array(weights, "w"),
            numpy_helper.from_array(np.array([2, 3]), "axes"),
            numpy_helper.from_array(np.array([-1]), "flat"),
            numpy_helper.from_array(np.float32(0.5), "half"),
        ],
    )
    opset = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString()
