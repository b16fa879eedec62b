"""Whatever a graph in a model file tries, it ends as an error, quickly, in little memory."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph.onnx_import import read_model
from support.counted import lines_of
from support.hostile import MIB, bounded, network, node, refused, varint

# -- the graph ---------------------------------------------------------------------------------


def test_circles() -> None:
    refused(network([node("Relu", "y")]), "circle")
    refused(network([node("Relu", "a", "b"), node("Relu", "b", "a"), node("Relu", "x")]), "circle")
    ring = [node("Relu", f"v{i}", f"v{(i + 1) % 5000}") for i in range(5000)]
    refused(network([*ring, node("Relu", "v0")]), "circle")


def test_names() -> None:
    refused(network([node("Relu", "nothing")]), "nothing defines")
    refused(network([node("Relu", "x"), node("Relu", "x")]), "defined once")
    refused(network([node("Relu", "x", "x"), node("Relu", "x")]), "defined once")
    refused(network([node("Relu", "x", "z")]), "output 'y' is defined by nothing")
    refused(network([node("Relu", "-")]), "input 0 is absent")
    refused(network([node("Relu", "", "y")]), "0 inputs; expected 1")
    refused(network([helper.make_node("Relu", ["x"], [])]), "defined by nothing")
    long = "n" * (4 * MIB)
    refused(network([node("Relu", long)]), "nothing defines", peak_bytes=64 * MIB)


def test_inputs_and_outputs_twice() -> None:
    proto = onnx.load_from_string(network([node("Relu", "x")]))
    for field, what in (("input", "given twice"), ("output", "given twice")):
        changed = onnx.ModelProto()
        changed.CopyFrom(proto)
        getattr(changed.graph, field).append(getattr(proto.graph, field)[0])
        refused(changed.SerializeToString(), what)
        del getattr(changed.graph, field)[:]
        refused(changed.SerializeToString(), "output|inputs|nothing defines")


def test_a_million_nodes() -> None:
    each = b"\x0a\x1a" + node("Relu", "x", "y" * 9).SerializeToString()[:26].ljust(26, b"\0")
    data = each * 1_000_000
    proto = b"\x42\x02\x10\x11\x3a" + varint(len(data)) + data
    with bounded(40, 64 * MIB), pytest.raises(ModelError, match="over 100000 entries 'node'"):
        read_model(proto)


def test_many_nodes_take_linear_work() -> None:
    def lines(count: int) -> int:
        nodes = [node("Relu", "x" if i == 0 else f"v{i}", f"v{i + 1}") for i in range(count - 1)]
        data = network([*nodes, node("Relu", f"v{count - 1}")])
        return lines_of(lambda: read_model(data).bind())

    assert lines(8_000) < 5 * lines(2_000)


def test_deep_chains_do_not_recurse() -> None:
    depth = 3 * sys.getrecursionlimit()
    nodes = [node("Identity", "x" if i == 0 else f"v{i}", f"v{i + 1}") for i in range(depth)]
    data = network([*nodes, node("Relu", f"v{depth}")])
    assert len(read_model(data).bind().nodes) == 1


# -- shapes and constants ----------------------------------------------------------------------


def shape_of(*extents: int) -> dict[str, Any]:
    return {"s": np.array(extents, np.int64)}


def added(each: onnx.NodeProto, arrays: dict[str, Any], opset: int = 17) -> bytes:
    """A network that adds the constant `k` of a node."""
    cast = node("Cast", "k", "f", to=TensorProto.FLOAT)
    return network([each, cast, node("Add", "x f")], arrays, opset)


@pytest.mark.parametrize(
    "extents",
    [(2**60,), (2**30, 2**30), (2**62, 2**62, 2**62), (2**36,), (2**26,), (-1,), (1,) * 17],
)
def test_constant_of_shape(extents: tuple[int, ...]) -> None:
    refused(added(node("ConstantOfShape", "s", "k"), shape_of(*extents)), "expected")


def test_other_constants_without_end() -> None:
    zero, far = np.int64(0), np.int64(2**62)
    arrays = {"zero": zero, "far": far, "one": np.int64(1)}
    refused(added(node("Range", "zero far one", "k"), arrays), "bytes")
    floats = {"zero": np.float32(0), "far": np.float32(1e38), "one": np.float32(1e-38)}
    refused(added(node("Range", "zero far one", "k"), floats), "bytes")
    floats["one"] = np.float32("nan")
    refused(added(node("Range", "zero far one", "k"), floats), "expected a range")
    column = {"c": np.zeros((2**12, 1), "f4"), **shape_of(1, 2**50)}
    refused(added(node("Expand", "c s", "k"), column), "bytes")
    refused(added(node("Tile", "c s", "k"), column), "bytes")
    wide = {"a": np.zeros((2**14, 1), "f4"), "b": np.zeros((1, 2**14), "f4")}
    for op in ("Add", "Mul", "MatMul"):
        refused(added(node(op, "a b", "k"), wide), "traffic")
    pads = {"c": np.zeros(4, "f4"), "s": np.array([2**61, 2**61])}
    refused(added(node("Pad", "c s", "k"), pads), "bytes")
    huge = {"c": np.zeros((1, 1, 2, 2), "f4"), "t": np.array([1, 1, 1e30, 1e30], "f4")}
    refused(added(node("Resize", "c - t", "k"), huge), "bytes|smaller")


def test_constants_that_double() -> None:
    nodes = [node("Concat", f"c{i} c{i}", f"c{i + 1}", axis=0) for i in range(60)]
    refused(
        network([*nodes, node("Add", "x c60")], {"c0": np.zeros(4, "f4")}),
        "traffic",
        peak_bytes=128 * MIB,
    )


def test_values_that_double() -> None:
    nodes = [node("Concat", f"{'x' if i == 0 else f'v{i}'} {'x' if i == 0 else f'v{i}'}",
                  f"v{i + 1}", axis=0) for i in range(60)]  # fmt: skip
    refused(network([*nodes, node("Relu", "v60")]), "expected at most 1099511627776 bytes")


def test_many_reductions_of_one_constant() -> None:
    """Little output, much work: what is read counts as well."""
    nodes = [node("ReduceSum", "c", f"k{i}", keepdims=0) for i in range(3000)]
    nodes.append(node("Sum", "x " + " ".join(f"k{i}" for i in range(3000))))
    data = network(nodes, {"c": np.zeros(MIB // 4, "f4")})
    refused(data, "traffic", seconds=5)


def test_much_work_on_constants() -> None:
    tall = {"c": np.zeros((1, 1, 600, 600), "f4"), "w": np.zeros((64, 1, 25, 25), "f4")}
    refused(added(node("Conv", "c w", "k"), tall), "traffic")
    one = {"c": np.zeros((1, 1, 2, 2), "f4")}
    wide = [2**30] * 2
    refused(
        added(node("MaxPool", "c", "k", kernel_shape=wide, pads=[2**30 - 1] * 4), one),
        "traffic|bytes",
    )
    refused(added(node("LRN", "c", "k", size=2**62), one), "size")


INTEGERS = "expected 2 integers from 1 to 2147483647 for an input with 2 spatial axes"
PADS = "expected 4 integers from 0 to 2147483647 for an input with 2 spatial axes"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("strides", [0, 1], f"is (0, 1); {INTEGERS}"),
        ("strides", [-1, 1], f"is (-1, 1); {INTEGERS}"),
        ("strides", [2**62, 1], f"is ({2**62}, 1); {INTEGERS}"),
        ("strides", [1], f"is (1,); {INTEGERS}"),
        ("strides", [1] * 1000, "holds 1000 numbers; expected at most 64"),
        ("strides", 1.5, "is of kind float; expected ints"),
        ("strides", [1.5, float("nan")], "is of kind floats; expected ints"),
        ("dilations", [0, 1], f"is (0, 1); {INTEGERS}"),
        ("dilations", [2**62, 1], f"is ({2**62}, 1); {INTEGERS}"),
        ("pads", [-1, 0, 0, 0], f"is (-1, 0, 0, 0); {PADS}"),
        ("pads", [2**63 - 1] * 4, f"is {(2**63 - 1,) * 4}; {PADS}"),
        ("pads", [0, 0], f"is (0, 0); {PADS}"),
        ("auto_pad", "SOME", "is 'SOME'; expected NOTSET, VALID, SAME_UPPER or SAME_LOWER"),
        ("auto_pad", b"\xff", "is not UTF-8 at byte 0; expected text"),
    ],
)
def test_attributes_of_windows(name: str, value: Any, said: str) -> None:
    for op in ("Conv", "ConvTranspose"):
        refused_window(op, {name: value}, f"attribute {name} {said}")
    for op in ("MaxPool", "AveragePool"):
        refused_window(op, {"kernel_shape": [3, 3], name: value}, f"attribute {name} {said}")


@pytest.mark.parametrize("group", [0, -1, 3, 2**62])
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_groups_that_divide_nothing(op: str, group: int) -> None:
    said = f"attribute group is {group} with input float32[1x4x8x8] and weight float32[4x4x3x3]; "
    refused_window(op, {"group": group}, f"{said}expected a positive divisor of the channels")


@pytest.mark.parametrize(
    ("op", "kernel", "said"),
    [
        ("Conv", [3, 2], "is 3x2; expected the weight's, 3x3"),
        ("ConvTranspose", [3, 2], "is 3x2; expected the weight's, 3x3"),
        ("Conv", [2**62] * 2, f"is {2**62}x{2**62}; expected the weight's, 3x3"),
        ("ConvTranspose", [2**62] * 2, f"is {2**62}x{2**62}; expected the weight's, 3x3"),
        ("MaxPool", [2**62] * 2, f"is ({2**62}, {2**62}); expected 2 integers of at least 1"),
        ("AveragePool", [2**62] * 2, f"is ({2**62}, {2**62}); expected 2 integers of at least 1"),
    ],
)
def test_extents_of_windows(op: str, kernel: list[int], said: str) -> None:
    refused_window(op, {"kernel_shape": kernel}, f"attribute kernel_shape {said}")


@pytest.mark.parametrize("name", ["dilations", "pads"])
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "MaxPool", "AveragePool"])
def test_windows_beyond_all_inputs(op: str, name: str) -> None:
    most = 2**31 - 1
    tensor = "got a tensor float32[1x4x{0}x{0}] of "
    unfit = f"a kernel of extent 3 (dilation {most}) does not fit an input of extent 8 "
    cut = f"of an input of extent 8 (kernel 3, stride 1) cut by {most} and {most} leaves an extent"
    beside = f"attribute pads is {(most,) * 4}; expected less than the kernel, which spans 3"
    said = {
        ("dilations", "ConvTranspose"): tensor.format(2 * most + 8),
        ("pads", "Conv"): tensor.format(2 * most + 6),
        ("pads", "ConvTranspose"): f"a transposed convolution {cut}",
    }.get((name, op), unfit if name == "dilations" else beside)
    window = {name: [most] * (4 if name == "pads" else 2)}
    if op.endswith("Pool"):
        window["kernel_shape"] = [3, 3]
    refused_window(op, window, said)


def refused_window(op: str, attributes: dict[str, Any], said: str) -> None:
    """A convolution or a pool over 3 by 3 must raise an error whose message begins so."""
    if op.endswith("Pool"):
        data = network([node(op, "x", **attributes)], opset=19)
    else:
        weight = {"w": np.zeros((4, 4, 3, 3), "f4")}
        data = network([node(op, "x w", **attributes)], weight)
    refused(data, re.escape(f"): {said}"))


@pytest.mark.parametrize(
    ("each", "arrays", "said"),
    [
        (node("Softmax", "x", axis=4), {}, "axis is 4"),
        (node("Softmax", "x", axis=-(2**63)), {}, "axis is -9223372036854775808"),
        (node("Concat", "x x", axis=9), {}, "axis is 9"),
        (node("Concat", "x x"), {}, "attribute axis is missing"),
        (node("Transpose", "x", perm=[0, 1, 2]), {}, "attribute perm is (0, 1, 2)"),
        (node("Transpose", "x", perm=[0, 0, 1, 2]), {}, "attribute perm is (0, 0, 1, 2)"),
        (node("Flatten", "x", axis=5), {}, "attribute axis is 5"),
        (
            node("Reshape", "x s"),
            shape_of(3, 3),
            "got the input float32[1x4x8x8] of 256 elements and the shape 3x3 of 9",
        ),
        (node("Reshape", "x s"), shape_of(-1, -1), "got the shape (-1, -1)"),
        (
            node("Reshape", "x s"),
            shape_of(2**62, 2**62),
            "got a tensor float32[4611686018427387904x4611686018427387904] of ",
        ),
        (node("Reshape", "x s"), {"s": np.zeros(10**5, np.int64)}, "input 1 is int64[100000]"),
        (node("Reshape", "x s"), {"s": np.array([1.5])}, "input 1 is float64[1]"),
        (node("Unsqueeze", "x s"), {"s": np.arange(40)}, "input 1 is int64[40]"),
        (node("Squeeze", "x s"), shape_of(1), "got axes (1,) of the input float32[1x4x8x8]"),
        (node("Slice", "x s s s s"), shape_of(0), "got the step 0"),
        (node("Slice", "x s s s"), shape_of(1, 1), "axes is (1, 1)"),
        (node("Split", "x", "y", axis=7), {}, "axis is 7"),
        (node("Split", "x s", "y", axis=1), shape_of(5), "got parts (5,) for 1 outputs"),
        (node("Split", "x s", "y z", axis=1), shape_of(-4, 8), "got parts (-4, 8) for 2 outputs"),
        (node("Expand", "x s"), shape_of(3), "got shapes 1x4x8x8, 3, which do not broadcast"),
        (
            node("Expand", "x s"),
            shape_of(2**40, 1, 1, 1, 1),
            "got a tensor float32[1099511627776x1x4x8x8] of 1125899906842624 bytes",
        ),
        (node("Gather", "x s"), shape_of(9), "indices element out of data bounds, idx=9"),
        (node("Gather", "x s"), {"s": np.float32(1)}, "input 1 holds float32"),
        (node("Pad", "x s"), shape_of(1, 1), "got pads (1, 1)"),
        (
            node("Pad", "x s"),
            shape_of(-9, 0, 0, 0, 0, 0, 0, 0),
            "got pads (-9, 0, 0, 0, 0, 0, 0, 0)",
        ),
        (
            node("Pad", "x s", mode="reflect"),
            shape_of(0, 0, 9, 0, 0, 0, 0, 0),
            "got reflect padding by 9 and 0 of an axis of extent 8",
        ),
        (node("ReduceMean", "x", axes=[0, 0]), {}, "axes is (0, 0)"),
        (node("ReduceMean", "x", axes=[2**40]), {}, "an element of axes is 1099511627776"),
        (node("ReduceMean", "x", keepdims=2), {}, "attribute keepdims is 2"),
        (node("Clip", "x s"), {"s": np.float32("nan")}, "min is not a number"),
        (node("Clip", "x s"), {"s": np.zeros(2, "f4")}, "input 1 has 2 elements"),
        (
            node("Resize", "x - s"),
            {"s": np.array([1, 1, float("nan"), 1], "f4")},
            "scales is (1.0, 1.0, nan, 1.0)",
        ),
        (
            node("Resize", "x - s"),
            {"s": np.array([1, 1, 0, 1], "f4")},
            "scales is (1.0, 1.0, 0.0, 1.0)",
        ),
        (
            node("Resize", "x - s"),
            {"s": np.array([1, 1, -1, 1], "f4")},
            "scales is (1.0, 1.0, -1.0, 1.0)",
        ),
        (
            node("Resize", "x - - s"),
            shape_of(1, 4, 0, 8),
            "got sizes (1, 4, 0, 8) of the input float32[1x4x8x8]",
        ),
        (node("Resize", "x"), {}, "got both or neither of scales and sizes"),
        (
            node("Gemm", "x s"),
            {"s": np.zeros((3, 3), "f4")},
            "input 0 is float32[1x4x8x8], of rank 4",
        ),
        (node("MatMul", "x s"), {"s": np.zeros((3, 3), "f4")}, "got shapes 1x4x8x8 and 3x3"),
        (node("MatMul", "x s"), {"s": np.float32(3)}, "got shapes 1x4x8x8 and a single number"),
        (
            node("Add", "x s"),
            {"s": np.zeros(3, "f4")},
            "got shapes 1x4x8x8, 3, which do not broadcast",
        ),
        (node("Add", "x s"), {"s": np.zeros(8, "f8")}, "got inputs of dtypes float32, float64"),
        (node("Add", "x s"), {"s": np.zeros(8, "i8")}, "got inputs of dtypes float32, int64"),
        (
            node("PRelu", "x s"),
            {"s": np.zeros((2, 1, 4, 8, 8), "f4")},
            "the slope is float32[2x1x4x8x8]",
        ),
        (
            node("BatchNormalization", "x s s s s"),
            {"s": np.zeros(3, "f4")},
            "the scale is float32[3]",
        ),
        (node("LRN", "x", size=0), {}, "attribute size is 0"),
        (node("LRN", "x"), {}, "attribute size is missing"),
        (node("Constant", "", "y"), {}, "got attributes []"),
        (node("Cast", "x"), {}, "attribute to is missing"),
    ],
)
def test_operands_that_do_not_fit(each: onnx.NodeProto, arrays: dict[str, Any], said: str) -> None:
    refused(network([each], arrays), re.escape(f"): {said}"))


@pytest.mark.parametrize(
    ("each", "arrays", "said"),
    [
        (
            node("Div", "s t", "k"),
            {"s": np.array([1]), "t": np.array([0])},
            "got an integer division by zero",
        ),
        (
            node("Mod", "s t", "k"),
            {"s": np.array([1]), "t": np.array([0])},
            "got an integer division by zero",
        ),
        (node("Neg", "s", "k"), {"s": np.array([True])}, "the constants do not fit the operation"),
        (
            node("Sub", "s s", "k"),
            {"s": np.array([True])},
            "the constants do not fit the operation",
        ),
        (
            node("ReduceMean", "s", "k"),
            {"s": np.zeros(0, "f4")},
            "computes float32[1] from float32[0], which has no elements",
        ),
        (node("Where", "s s s", "k"), {"s": np.zeros(1, "f4")}, "got float32, float32, float32"),
        (node("Not", "s", "k"), {"s": np.zeros(1, "f4")}, "the input holds float32"),
        (
            node("Equal", "s t", "k"),
            {"s": np.zeros(1, "f4"), "t": np.zeros(1, "i8")},
            "got inputs of float32 and int64",
        ),
        (
            node("Constant", "", "k", value_int=1, value_float=1.0),
            {},
            "got attributes ['value_float', 'value_int']",
        ),
        (
            node("Constant", "", "k", value_string="text"),
            {},
            "attribute 'value_string' is not supported",
        ),
    ],
)
def test_constants_that_do_not_fit(each: onnx.NodeProto, arrays: dict[str, Any], said: str) -> None:
    refused(added(each, arrays), re.escape(f"): {said}"))


def test_messages_stay_short() -> None:
    proto = onnx.load_from_string(network([node("Relu", "x")]))
    proto.graph.node[0].op_type = "R" * MIB
    proto.graph.node[0].name = "n" * MIB
    with pytest.raises(UnsupportedError) as caught:
        read_model(proto.SerializeToString())
    assert len(str(caught.value)) < 3000


def test_sparse_and_sequence_tensors() -> None:
    proto = onnx.load_from_string(network([node("Relu", "x")]))
    proto.graph.sparse_initializer.add().values.name = "x"
    refused(proto.SerializeToString(), "sparse")
    proto.graph.sparse_initializer[0].values.ClearField("name")
    refused(proto.SerializeToString(), "no name")
    sequence: Callable[..., Any] = helper.make_tensor_sequence_value_info
    proto = onnx.load_from_string(network([node("Relu", "x")]))
    proto.graph.input[0].CopyFrom(sequence("x", TensorProto.FLOAT, None))
    refused(proto.SerializeToString(), "no tensor")
    proto = onnx.load_from_string(network([node("Add", "x w")]))
    segment = numpy_helper.from_array(np.zeros(4, "f4"), "w")
    segment.segment.begin = 0
    proto.graph.initializer.append(segment)
    refused(proto.SerializeToString(), "segments")
