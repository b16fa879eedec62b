"""Types of files of at most 8 bits: casts, codes and arrays against onnxruntime and ml_dtypes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import leanconv as lc
from leanconv.graph import narrow_codes
from leanconv.types import NARROW

FLOATS8 = ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ")
OF_ML = {each.onnx: helper.tensor_dtype_to_np_dtype(each.onnx) for each in NARROW}


def model(nodes, given, wanted, held=(), opset=24):
    """A model of nodes; inputs and outputs as (name, type, shape)."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(*each) for each in given],
        [helper.make_tensor_value_info(*each) for each in wanted],
        list(held),
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=11)


def ort(proto, feed):
    """What onnxruntime gives."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    return onnxruntime.InferenceSession(proto.SerializeToString(), options).run(None, feed)


def numbers(seed=0):
    """Numbers of all sizes, ties, and what is none."""
    rng = np.random.default_rng(seed)
    sizes = np.ldexp(rng.standard_normal(4000), rng.integers(-24, 20, 4000))
    ties = np.concatenate([narrow_codes.table(as_of(name)) for name in FLOATS8])
    ties = ties[np.isfinite(ties)]
    odd = [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, 3e38, 464, 465, 448, 240, 248, 57344, 61440]
    return np.concatenate([sizes, ties, (ties[1:] + ties[:-1]) / 2, odd]).astype(np.float32)


def as_of(name):
    return narrow_codes.NUMBERS[getattr(TensorProto, name)]


@pytest.mark.parametrize("kind", NARROW)
def test_tables_and_arrays_are_those_of_ml_dtypes(kind):
    """The numbers of all codes, and back; arrays in and out."""
    if not kind.is_float:
        return
    codes = np.arange(1 << narrow_codes.BITS[kind], dtype=np.uint8)
    theirs = codes.view(OF_ML[kind.onnx])
    np.testing.assert_array_equal(narrow_codes.table(kind)[: len(codes)], theirs.astype(np.float32))
    assert np.array_equal(narrow_codes.taken(theirs, kind), codes)
    assert narrow_codes.given(codes, kind).dtype == theirs.dtype


@pytest.mark.parametrize("saturate", [0, 1])
def test_casts_to_float8_round_as_they_should(saturate):
    """All four types, of numbers of all sizes: bit for bit as onnxruntime saturates.

    Without saturation onnxruntime 1.32 gives 448 for 480 and NaN for 64,000 where the standard, and
    ml_dtypes, have NaN and infinity.
    """
    x, nodes, outputs = numbers(), [], []
    for name in FLOATS8:
        number = getattr(TensorProto, name)
        nodes.append(helper.make_node("Cast", ["x"], [name], to=number, saturate=saturate))
        nodes.append(helper.make_node("Cast", [name], [f"{name}_y"], to=TensorProto.FLOAT))
        outputs.append((f"{name}_y", TensorProto.FLOAT, [None]))
    proto = model(nodes, [("x", TensorProto.FLOAT, [None])], outputs, opset=21)
    found = lc.load(proto, threads=1).run({"x": x})
    theirs = ort(proto, {"x": x})
    for name, wanted in zip(FLOATS8, theirs, strict=True):
        if not saturate:
            wanted = x.astype(OF_ML[as_of(name).onnx]).astype(np.float32)
        y = found[f"{name}_y"]
        np.testing.assert_array_equal(y, wanted, name)
        known = ~np.isnan(y)
        np.testing.assert_array_equal(np.signbit(y[known]), np.signbit(wanted[known]), name)


def test_casts_to_integers_of_four_bits_are_those_of_onnxruntime():
    """From floats and integers, and back; arrays of ml_dtypes as results."""
    x = np.concatenate([np.arange(-40, 40) / 4, [300, 0.49999997, -0.5, np.nan]]).astype("f4")
    i = np.arange(-128, 128).astype(np.int8)
    nodes, outputs = [], []
    for name, back in (("INT4", TensorProto.INT8), ("UINT4", TensorProto.UINT8)):
        number = getattr(TensorProto, name)
        for source in ("x", "i"):
            nodes.append(helper.make_node("Cast", [source], [source + name], to=number))
            nodes.append(helper.make_node("Cast", [source + name], [f"{source}{name}y"], to=back))
            outputs.append((f"{source}{name}y", back, [None]))
    given = [("x", TensorProto.FLOAT, [None]), ("i", TensorProto.INT8, [None])]
    proto = model(nodes, given, outputs, opset=21)
    found = lc.load(proto, threads=1).run({"x": x, "i": i})
    for (name, *_), wanted in zip(outputs, ort(proto, {"x": x, "i": i}), strict=True):
        np.testing.assert_array_equal(found[name], wanted, name)
    codes = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.INT4)
    proto = model([codes], given[:1], [("y", TensorProto.INT4, [None])], opset=21)
    y = lc.load(proto, threads=1)(x)
    assert y.dtype == ml_dtypes.int4
    np.testing.assert_array_equal(y.astype(np.int8), found["xINT4y"])


@pytest.mark.parametrize("name", ["INT4", "UINT4", "INT2", "FLOAT4E2M1", *FLOATS8])
def test_constants_are_packed_as_the_file_format_has_them(name):
    """An odd number of elements, in raw bytes and in int32_data; moved, then dequantised."""
    kind = as_of(name)
    values = np.arange(15).reshape(3, 5).astype(np.float32) - (7 if kind.low < 0 else 0)
    values = np.clip(values, kind.low, kind.high).astype(OF_ML[kind.onnx])
    raw = numpy_helper.from_array(values, "w")
    listed = helper.make_tensor("w", kind.onnx, values.shape, values.astype(np.float32).flat)
    scale = numpy_helper.from_array(np.float32([0.5, 2, 3]), "s")
    nodes = [
        helper.make_node("Transpose", ["w"], ["t"]),
        helper.make_node("DequantizeLinear", ["t", "s"], ["d"], axis=1),
        helper.make_node("Add", ["x", "d"], ["y"]),
    ]
    for held in (raw, listed):
        given, wanted = [("x", 1, [5, 3])], [("y", 1, [5, 3])]
        y = lc.load(model(nodes, given, wanted, [held, scale]), threads=1)(np.zeros((5, 3), "f4"))
        expected = values.T.astype(np.float32) * np.float32([0.5, 2, 3])
        np.testing.assert_array_equal(y, expected)


def test_what_is_not_taken_is_refused_by_name():
    """Arithmetic on codes, outputs that are declared as something else, damaged constants."""
    given = [("x", TensorProto.FLOAT8E5M2, [4])]
    relu = helper.make_node("Relu", ["x"], ["y"])
    with pytest.raises(lc.UnsupportedError, match="Relu.*float8e5m2.*insert a Cast"):
        lc.load(model([relu], given, [("y", TensorProto.FLOAT8E5M2, [4])]))
    same = helper.make_node("Identity", ["x"], ["y"])
    with pytest.raises(lc.ModelError, match="output 'y' is float8e5m2, and declared as uint8"):
        lc.load(model([same], given, [("y", TensorProto.UINT8, [4])]))
    net = lc.load(model([same], given, [("y", TensorProto.FLOAT8E5M2, [4])]))
    with pytest.raises(lc.InputError, match="ml_dtypes, or one of uint8"):
        net(np.zeros(4, np.float32))
    codes = np.uint8([0, 60, 188, 255])
    assert np.array_equal(net(codes).view(np.uint8), codes)
    assert np.array_equal(net(codes.view(ml_dtypes.float8_e5m2)).view(np.uint8), codes)
    short = TensorProto(name="w", data_type=TensorProto.INT4, dims=[4], raw_data=b"1")
    cast = helper.make_node("Cast", ["w"], ["y"], to=TensorProto.FLOAT)
    with pytest.raises(lc.ModelError, match="4 elements of int4, and 1 bytes"):
        lc.load(model([cast], [("x", 1, [1])], [("y", 1, [4])], [short]))


def test_bfloat16_at_the_borders_and_in_casts():
    """Codes or arrays of ml_dtypes in and out, rounded as ml_dtypes does; also behind NonZero."""
    x = numbers()
    kind, number = ml_dtypes.bfloat16, TensorProto.BFLOAT16
    nodes = [
        helper.make_node("Cast", ["x"], ["y"], to=number),
        helper.make_node("Cast", ["y"], ["z"], to=TensorProto.FLOAT),
        helper.make_node("Identity", ["b"], ["c"]),
        helper.make_node("Compress", ["b", "which"], ["d"]),
    ]
    given = [("x", 1, [None]), ("b", number, [4]), ("which", TensorProto.BOOL, [4])]
    wanted = [("y", number, [None]), ("z", 1, [None]), ("c", number, [4]), ("d", number, [None])]
    net = lc.load(model(nodes, given, wanted), threads=1)
    b = np.float32([1.5, -0.0, np.inf, 3e-3]).astype(kind)
    feed = {"x": x, "b": b, "which": np.array([True, False, True, True])}
    found = net.run(feed)
    rounded = x.astype(kind)
    nan = np.isnan(x)
    assert found["y"].dtype == kind
    same = found["y"].view(np.uint16) == rounded.view(np.uint16)
    assert np.all(same | nan)
    assert np.all(np.isnan(found["y"].astype("f4")) == nan)
    np.testing.assert_array_equal(found["z"], rounded.astype(np.float32))
    np.testing.assert_array_equal(found["c"].view(np.uint16), b.view(np.uint16))
    np.testing.assert_array_equal(found["d"].view(np.uint16), b[[0, 2, 3]].view(np.uint16))
    codes = net.run({**feed, "b": b.view(np.uint16)})
    np.testing.assert_array_equal(codes["d"].view(np.uint16), b[[0, 2, 3]].view(np.uint16))
