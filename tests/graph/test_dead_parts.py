"""What no output needs is neither judged nor used."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import leanconv as lc
from leanconv.errors import ModelError, UnsupportedError
from support.hostile import node
from support.onnx_models import model, reference

R = np.random.default_rng(3)
W = R.standard_normal((4, 3, 3, 3)).astype("f4")
X = R.standard_normal((1, 3, 8, 8)).astype("f4")
CONV = node("Conv", "x w", "y", pads=[1] * 4)


def convolution(*others: onnx.NodeProto, **held: Any) -> onnx.ModelProto:
    return model([CONV, *others], {"x": X.shape}, ["y"], {"w": W, **held})


def agrees(proto: onnx.ModelProto, **others: np.ndarray) -> None:
    inputs = {"x": X, **others}
    found = lc.load(proto, threads=1).run(inputs)["y"]
    np.testing.assert_allclose(found, reference(proto, inputs)["y"], rtol=1e-4, atol=1e-4)


def test_operations_that_are_not_known() -> None:
    dead = (
        node("Flatten", "y", "f"),
        node("TopK", "f k", "v i"),
        node("ArgMax", "y", "a"),
        node("Constant", "", "note", value_string="made by me"),
    )
    agrees(convolution(*dead, k=np.array([5])))


def test_what_is_read_is_judged_whoever_else_is_dead() -> None:
    proto = convolution(node("ArgMax", "y", "a"), node("Bernoulli", "y", "b"))
    proto.graph.output[0].name = "b"
    with pytest.raises(UnsupportedError, match=r"\(Bernoulli, opset 17\) is not supported; "):
        lc.load(proto)


@pytest.mark.parametrize(
    "tensor",
    [
        helper.make_tensor("names", TensorProto.STRING, [2], [b"cat", b"dog"]),
        helper.make_tensor("half", TensorProto.BFLOAT16, [2], [1.0, 2.0]),
    ],
)
def test_initializers_of_other_types(tensor: onnx.TensorProto) -> None:
    proto = convolution()
    proto.graph.initializer.append(tensor)
    agrees(proto)
    proto.graph.initializer.append(tensor)
    with pytest.raises(ModelError, match="given twice"):
        lc.load(proto)


def test_sparse_initializers() -> None:
    proto = convolution()
    values = helper.make_tensor("s", TensorProto.FLOAT, [1], [1.0])
    indices = helper.make_tensor("i", TensorProto.INT64, [1], [0])
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))
    agrees(proto)
    proto.graph.node.append(node("Add", "y s", "z"))
    proto.graph.output[0].name = "z"
    proto.graph.sparse_initializer[0].indices.ClearField("int64_data")
    with pytest.raises(ModelError, match="sparse initializer 's': indices"):
        lc.load(proto)


def test_external_data_of_a_dead_initializer_is_not_opened() -> None:
    proto = convolution()
    held = TensorProto(name="far", data_type=1, dims=[4], data_location=TensorProto.EXTERNAL)
    held.external_data.add(key="location", value="../../etc/passwd")
    proto.graph.initializer.append(held)
    assert lc.load(proto, threads=1)(X).shape == (1, 4, 8, 8)


def test_an_input_of_integers() -> None:
    """As with ONNX Runtime it has to be given, and is not looked at."""
    proto = convolution(node("Shape", "sr", "s"))
    proto.graph.input.append(helper.make_tensor_value_info("sr", TensorProto.INT64, (1,)))
    agrees(proto, sr=np.array([16000]))
    assert [str(each.dtype) for each in lc.load(proto, threads=1).inputs] == ["float32", "int64"]


def test_an_input_of_no_type_that_arrays_have_is_left_out() -> None:
    proto = convolution()
    proto.graph.input.append(helper.make_tensor_value_info("label", TensorProto.STRING, (1,)))
    network = lc.load(proto, threads=1)
    assert [each.name for each in network.inputs] == ["x"]
    assert network(X).shape == (1, 4, 8, 8)


def test_places_of_a_pool_that_nothing_reads() -> None:
    pool = node("MaxPool", "y", "p i", kernel_shape=[2, 2])
    back = node("Sub", "i i", "d")
    proto = convolution(pool, node("Shape", "d", "s"), node("Reshape", "p s", "z"))
    proto.graph.node.insert(2, back)
    proto.graph.output[0].name = "z"
    found = lc.load(proto, threads=1)
    np.testing.assert_allclose(found(X), reference(proto, {"x": X})["z"], rtol=1e-4, atol=1e-4)
    assert [step.op for step in found.plan.steps][:2] == ["Conv", "MaxPool"]
