"""Operations in another float type than most of their network computes in."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import leanconv as lc
from leanconv.errors import BudgetError
from leanconv.types import FLOAT32, FLOAT64, DType
from support.hostile import node
from support.onnx_models import imported

R = np.random.default_rng(8)
W = R.standard_normal((8, 6, 3, 3))
WINDOW = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 0, 1]}
OPERATIONS: dict[str, onnx.NodeProto] = {
    "conv": node("Conv", "f w b", "g", pads=[1] * 4),
    "strided": node("Conv", "f w b", "g", strides=[2, 2]),
    "grouped": node("Conv", "f d", "g", group=6, pads=[1] * 4),
    "transposed": node("ConvTranspose", "f t", "g", strides=[2, 2]),
    "max": node("MaxPool", "f", "g", **WINDOW),
    "average": node("AveragePool", "f", "g", **WINDOW),
    "counted": node("AveragePool", "f", "g", count_include_pad=1, **WINDOW),
    "global": node("GlobalAveragePool", "f", "g"),
    "lrn": node("LRN", "f", "g", size=3),
    "resize": helper.make_node("Resize", ["f", "", "scales"], ["g"], mode="linear"),
    "softmax": node("Softmax", "f", "g", axis=1),
    "matmul": node("MatMul", "f m", "g"),
    "mean": node("ReduceMean", "f", "g"),
    "prelu": node("PRelu", "f s", "g"),
    "gelu": node("Erf", "f", "g"),
    "pad": node("Pad", "f pads", "g", mode="reflect"),
}


def network(op: str, dtype: DType, inner: DType) -> onnx.ModelProto:
    """Some steps in `dtype`, among which one is in `inner`."""
    held: dict[str, Any] = {
        "w": W,
        "b": R.standard_normal(8),
        "d": W[:6, :1],
        "t": W[:6],
        "m": W[0, 0, 0, :, None],
        "s": np.abs(W[0, :, :1, :1]),
    }
    arrays = {name: array.astype(inner) for name, array in held.items()}
    arrays["m"] = R.standard_normal((9, 5)).astype(inner)
    arrays["scales"] = np.float32([1, 1, 2, 2])
    arrays["pads"] = np.array([0, 0, 1, 2, 0, 0, 0, 1])
    nodes = [
        node("Tanh", "x", "a"),
        node("Neg", "a", "c"),
        node("Cast", "c", "f", to=inner.onnx),
        OPERATIONS[op],
        node("Cast", "g", "h", to=dtype.onnx),
        *(node("Tanh", before, after) for before, after in ("hi", "ij", "jy")),
    ]
    graph = helper.make_graph(
        nodes,
        "two",
        [helper.make_tensor_value_info("x", dtype.onnx, ["N", 6, "H", 9])],
        [helper.make_tensor_value_info("y", dtype.onnx, None)],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize(("dtype", "inner"), [(FLOAT32, FLOAT64), (FLOAT64, FLOAT32)])
@pytest.mark.parametrize("op", OPERATIONS)
def test_an_operation_in_another_precision(op: str, dtype: DType, inner: DType) -> None:
    proto = network(op, dtype, inner)
    net = lc.load(proto, threads=1)
    assert net.inputs[0].dtype == net.outputs[0].dtype == dtype
    for shape in ((1, 6, 7, 9), (2, 6, 12, 9)):
        given = {"x": R.standard_normal(shape).astype(dtype)}
        wanted = imported(proto, given)["y"]
        np.testing.assert_allclose(net.run(given)["y"], wanted, rtol=1e-4, atol=1e-5)


def test_errors_are_those_of_the_least_precise_layer() -> None:
    proto = network("conv", FLOAT64, FLOAT32)
    shape = {"x": (1, 6, 7, 9)}
    net = lc.load(proto, threads=1, shapes=shape, max_error=1e-4)
    net.bind(shape["x"])
    assert 1e-9 < net.plan.predicted_error <= 1e-4
    with pytest.raises(BudgetError, match=r"give max_error=") as caught:
        lc.load(proto, threads=1, shapes=shape, max_error=1e-12)
    assert caught.value.smallest_error is not None
    lc.load(proto, threads=1, shapes=shape, max_error=caught.value.smallest_error)
