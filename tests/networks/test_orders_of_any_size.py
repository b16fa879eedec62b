"""TopK, ArgMax and pools with places behind a convolution whose sizes are open, exactly."""

from __future__ import annotations

import numpy as np
from onnx import helper, shape_inference

import leanconv as lc
from support.onnx_models import model, reference

OUTPUTS = ("p", "from", "t", "t at", "columns", "columns at", "many", "many at", "best", "least")
SIZES = (
    (1, 20, 30),
    (1, 21, 33),
    (2, 40, 64),
    (1, 100, 31),
    (3, 14, 12),
    (1, 15, 200),
    (2, 30, 18),
)


def test_every_size_gives_what_onnxruntime_gives() -> None:
    random = np.random.default_rng(0)
    constants = {
        "w": random.integers(-2, 3, (20, 3, 3, 3)).astype(np.float32),
        "5": np.array([5]),
        "40": np.array([40]),
        "flat": np.array([0, -1]),
    }
    pooled = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node("MaxPool", ["c"], ["p", "from"], **pooled),
        helper.make_node("TopK", ["p", "5"], ["t", "t at"], axis=1),
        helper.make_node("TopK", ["p", "5"], ["columns", "columns at"], axis=3, largest=0),
        helper.make_node("Reshape", ["p", "flat"], ["f"]),
        helper.make_node("TopK", ["f", "40"], ["many", "many at"], axis=1),
        helper.make_node("ArgMax", ["c"], ["best"], axis=1, keepdims=0),
        helper.make_node("ArgMin", ["c"], ["least"], axis=3, keepdims=0),
    ]
    proto = model(nodes, {"x": ("n", 3, "h", "w")}, OUTPUTS, constants)
    for out in proto.graph.output:  # their types are inferred
        out.ClearField("type")
    proto = shape_inference.infer_shapes(proto)
    network = lc.load(proto.SerializeToString(), threads=2)
    for batch, height, width in SIZES:
        x = random.integers(-9, 10, (batch, 3, height, width)).astype(np.float32)
        found = network.run({"x": x})
        for name, wanted in reference(proto, {"x": x}).items():
            assert found[name].dtype == wanted.dtype
            np.testing.assert_array_equal(found[name], wanted, err_msg=f"{name} of {x.shape}")
