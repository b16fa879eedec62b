"""Scales, zero points, weights and bias that are data, against onnxruntime: the same codes."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import leanconv as lc

KINDS = {np.uint8: TensorProto.UINT8, np.int8: TensorProto.INT8}
OTHERS = {np.float32: TensorProto.FLOAT, np.int32: TensorProto.INT32}


def both(node, given, held, kind):
    """The results of a node, of onnxruntime and of leanconv, of inputs and weights by name."""
    info, types = helper.make_tensor_value_info, {**KINDS, **OTHERS}
    graph = helper.make_graph(
        [node],
        "g",
        [info(name, types[x.dtype.type], x.shape) for name, x in given.items()],
        [info("y", kind, None)],
        [numpy_helper.from_array(x, name) for name, x in held.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    (theirs,) = session.run(None, given)
    (ours,) = lc.load(proto, threads=1).run(None, given)
    return ours, theirs


def codes(rng, kind, *shape):
    ends = np.iinfo(kind)
    return rng.integers(ends.min, ends.max + 1, shape).astype(kind)


@pytest.mark.parametrize("seed", range(18))
def test_convolutions_and_products(seed):
    """QLinearConv, QLinearMatMul and QGemm; which of the numbers are data is random."""
    rng = np.random.default_rng(seed)
    a_kind = (np.uint8, np.int8)[seed % 2]
    b_kind = np.int8 if a_kind == np.int8 or seed % 4 < 2 else np.uint8
    op = ("QLinearConv", "QLinearMatMul", "QGemm")[seed % 3]
    inner, columns = int(rng.integers(1, 9)), int(rng.integers(1, 9))
    if op == "QLinearConv":
        a = codes(rng, a_kind, 2, inner, 5, 6)
        b = codes(rng, b_kind, columns, inner, 3, 3)
    else:
        a, b = codes(rng, a_kind, 4, inner), codes(rng, b_kind, inner, columns)
    several = columns if op == "QLinearConv" and rng.integers(2) else 1
    shape = (several,) if several > 1 else ()
    values = {
        "a": a,
        "sa": rng.uniform(0.001, 0.1, ()).astype("f4"),
        "za": codes(rng, a_kind)[()] * np.ones((), a_kind),
        "b": b,
        "sb": rng.uniform(0.001, 0.1, shape).astype("f4"),
        "zb": np.zeros(shape, b_kind),
        "sy": np.float32(0.1 * np.sqrt(a[0].size)) * np.ones((), "f4"),
        "zy": codes(rng, a_kind)[()] * np.ones((), a_kind),
    }
    names = list(values)
    if op == "QGemm" or (op == "QLinearConv" and rng.integers(2)):
        values["c"] = rng.integers(-999, 999, columns).astype(np.int32)
        names.insert(6 if op == "QGemm" else 8, "c")
    data = {n for n in ("sa", "za", "sb", "sy", "zy", "b", "zb", "c") if rng.integers(2)}
    given = {n: np.asarray(x) for n, x in values.items() if n == "a" or n in data}
    held = {n: np.asarray(x) for n, x in values.items() if n not in given}
    attributes = {"pads": [1, 1, 1, 0]} if op == "QLinearConv" else {}
    domain = "com.microsoft" if op == "QGemm" else ""
    node = helper.make_node(op, names, ["y"], domain=domain, **attributes)
    ours, theirs = both(node, given, held, KINDS[a_kind])
    np.testing.assert_array_equal(ours, theirs)


LEAST = [(1e-39, 2e-39), (1e-39, 3e-38), (3e-38, 1e-39), (1e-37, 1e-39)]


@pytest.mark.parametrize(("given", "wanted"), LEAST)
def test_scales_below_the_least_normal_number_count(given, wanted):
    """Kernels take such numbers for 0; a scale is none that is lost."""
    x = np.arange(16, dtype=np.uint8).reshape(1, 1, 4, 4) * 15
    held = {"a": np.float32(given), "b": np.float32(wanted), "z": np.uint8(5)}
    for op, inputs, attributes in (
        ("QLinearAveragePool", "xazbz", {"kernel_shape": [2, 2]}),
        ("QLinearGlobalAveragePool", "xazbz", {}),
        ("QLinearAdd", "xazxazbz", {}),
        ("QLinearMul", "xazxazbz", {}),
    ):
        node = helper.make_node(op, list(inputs), ["y"], domain="com.microsoft", **attributes)
        ours, theirs = both(node, {"x": x}, held, TensorProto.UINT8)
        np.testing.assert_array_equal(ours, theirs, op)
    node = helper.make_node("DequantizeLinear", ["x", "a", "z"], ["y"])
    ours, theirs = both(node, {"x": x}, held, TensorProto.FLOAT)
    normal = np.abs(theirs) >= np.finfo(np.float32).tiny
    np.testing.assert_array_equal(ours[normal], theirs[normal])
    floats = np.float32([0, 1.2e-38, 2e-38, -2e-38, 1e-37, 1, np.inf, -np.inf, np.nan])
    node = helper.make_node("QuantizeLinear", ["x", "a", "z"], ["y"])
    ours, theirs = both(node, {"x": floats}, held, TensorProto.UINT8)
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("seed", range(4))
def test_channels_that_are_last(seed):
    """QLinearConv and NhwcMaxPool of com.microsoft, as onnxruntime writes optimised networks."""
    rng = np.random.default_rng(seed)
    x, kind = codes(rng, np.uint8, 2, 7, 6, 4), TensorProto.UINT8
    held = {
        "s": np.float32(0.02),
        "z": np.uint8(rng.integers(256)),
        "w": codes(rng, np.int8, 6, 4, 3, 2),
        "y_scale": np.float32(0.5),
        "none": np.int8(0),
    }
    node = helper.make_node(
        "QLinearConv",
        ["x", "s", "z", "w", "s", "none", "y_scale", "z"],
        ["y"],
        domain="com.microsoft",
        channels_last=1,
        pads=[1, 0, 0, 1],
        strides=[2, 1],
    )
    ours, theirs = both(node, {"x": x}, held, kind)
    np.testing.assert_array_equal(ours, theirs)
    sizes = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}
    node = helper.make_node("NhwcMaxPool", ["x"], ["y"], domain="com.microsoft", **sizes)
    ours, theirs = both(node, {"x": x}, {}, kind)
    np.testing.assert_array_equal(ours, theirs)
