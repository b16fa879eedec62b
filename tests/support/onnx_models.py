"""Small ONNX models for tests, and a check of the importer against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from leanconv.graph.ir import Graph
from leanconv.graph.onnx_import import read_model
from leanconv.graph.verify import verify
from leanconv.types import FLOAT64
from support.interpret import interpret
from support.templates import check_template

Array = np.ndarray
FLOAT = onnx.TensorProto.FLOAT


class Const:
    """Marks an operand that stands in the file."""

    def __init__(self, array: Any, dtype: Any = None) -> None:
        self.array = np.asarray(array, dtype=dtype)


def ints(*numbers: int) -> Const:
    """A list of integers in the file."""
    return Const(np.array(numbers, dtype=np.int64))


def floats(*numbers: float) -> Const:
    """A list of float32 numbers in the file."""
    return Const(np.array(numbers, dtype=np.float32))


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int | str | None] | None],
    outputs: Sequence[str],
    constants: Mapping[str, Any] | None = None,
    opset: int = 17,
    elem_type: int = FLOAT,
) -> onnx.ModelProto:
    """A model of float inputs; outputs have no declared shape."""
    graph = helper.make_graph(
        list(nodes),
        "network",
        [helper.make_tensor_value_info(name, elem_type, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, elem_type, None) for name in outputs],
        [
            numpy_helper.from_array(np.asarray(array), name)
            for name, array in (constants or {}).items()
        ],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8 if opset < 21 else 10
    )


def single(
    op: str,
    operands: Sequence[Array | Const | None],
    opset: int,
    outputs: int = 1,
    **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of one node, and the arrays of its inputs.

    Where these are not all float32, they have their types, and the outputs none.
    """
    names, given, constants = [], {}, {}
    for index, operand in enumerate(operands):
        name = "" if operand is None else f"in{index}"
        names.append(name)
        if isinstance(operand, Const):
            constants[name] = operand.array
        elif operand is not None:
            given[name] = operand
    results = [f"out{index}" for index in range(outputs)]
    node = helper.make_node(op, names, results, **attributes)
    shapes = {name: array.shape for name, array in given.items()}
    made = model([node], shapes, results, constants, opset)
    if any(array.dtype != np.float32 for array in given.values()):
        for value in made.graph.input:
            kind = helper.np_dtype_to_tensor_dtype(given[value.name].dtype)
            value.type.tensor_type.elem_type = kind
        for value in made.graph.output:
            value.ClearField("type")
    return made, given


def reference(proto: onnx.ModelProto, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """What ONNX Runtime computes."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def imported(
    proto: onnx.ModelProto, inputs: Mapping[str, Array], dtype: str | None = None
) -> dict[str, Array]:
    """What our graph, interpreted, computes."""
    read = read_model(proto.SerializeToString())
    shapes = {name: array.shape for name, array in inputs.items()}
    graph = verify(read.bind(shapes, dtype))
    if dtype is None:
        check_template(read, shapes)
    return interpreted(graph, inputs)


def interpreted(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """What a graph of a model gives; inputs in float32 become what it computes in."""
    return interpret(
        graph, {name: array.astype(graph.types[name].dtype) for name, array in inputs.items()}
    )


def agree(proto: onnx.ModelProto, inputs: Mapping[str, Array], tolerance: float = 1e-5) -> None:
    """Compare with ONNX Runtime in float32 and in float64, relative to the largest output."""
    expected = reference(proto, inputs)
    for dtype in (None, FLOAT64):
        found = imported(proto, inputs, dtype)
        assert list(found) == list(expected)
        for name, array in expected.items():
            got = found[name]
            assert got.shape == array.shape, (name, got.shape, array.shape)
            if dtype and array.dtype == np.float32:
                assert got.dtype == np.float64
            else:
                assert got.dtype == array.dtype
            largest = max(float(np.abs(array[np.isfinite(array)]).max(initial=0)), 1e-30)
            with np.errstate(invalid="ignore"):
                difference = np.abs(got.astype(np.float64) - array)
            difference = np.where(got == array, 0, difference)  # infinities
            assert not np.isnan(difference).any(), name
            assert difference.max(initial=0) <= tolerance * largest, (name, difference.max())


def small_cnn(opset: int = 17, seed: int = 0, batch: int | str = "N") -> onnx.ModelProto:
    """An inverted residual, pooling, shape arithmetic and a classifier: a MobileNet in small."""
    random = np.random.default_rng(seed)
    held: dict[str, Array] = {}

    def weight(name: str, *shape: int) -> str:
        held[name] = (random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype("f4")
        return name

    def norm(name: str, channels: int) -> list[str]:
        names = [weight(f"{name}_{part}", channels) for part in ("scale", "bias", "mean")]
        held[f"{name}_var"] = random.uniform(0.5, 1.5, channels).astype("f4")
        return [*names, f"{name}_var"]

    held.update(zero=np.float32(0), six=np.float32(6), first=np.int64(0))
    held.update(axes=np.array([0]), rest=np.array([-1]))
    bounds = ["zero", "six"]
    nodes = [
        helper.make_node(
            "Conv",
            ["x", weight("w0", 8, 3, 3, 3)],
            ["c0"],
            "stem",
            strides=[2, 2],
            pads=[1, 1, 1, 1],
        ),
        helper.make_node("BatchNormalization", ["c0", *norm("n0", 8)], ["b0"]),
        helper.make_node("Clip", ["b0", *bounds], ["r0"]),
        helper.make_node("Conv", ["r0", weight("w1", 24, 8, 1, 1)], ["c1"]),
        helper.make_node("BatchNormalization", ["c1", *norm("n1", 24)], ["b1"]),
        helper.make_node("Clip", ["b1", *bounds], ["r1"]),
        helper.make_node(
            "Conv", ["r1", weight("w2", 24, 1, 3, 3)], ["c2"], group=24, pads=[1, 1, 1, 1]
        ),
        helper.make_node("BatchNormalization", ["c2", *norm("n2", 24)], ["b2"]),
        helper.make_node("Clip", ["b2", *bounds], ["r2"]),
        helper.make_node("Conv", ["r2", weight("w3", 8, 24, 1, 1), weight("bias3", 8)], ["c3"]),
        helper.make_node("Add", ["r0", "c3"], ["a3"]),
        helper.make_node("MaxPool", ["a3"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["p"], ["g"]),
        helper.make_node("Shape", ["g"], ["s"]),
        helper.make_node("Gather", ["s", "first"], ["n"]),
        helper.make_node("Unsqueeze", ["n", "axes"], ["n1"]),
        helper.make_node("Concat", ["n1", "rest"], ["flat"], axis=0),
        helper.make_node("Reshape", ["g", "flat"], ["f"]),
        helper.make_node("Gemm", ["f", weight("w4", 5, 8), weight("bias4", 5)], ["l"], transB=1),
        helper.make_node("Softmax", ["l"], ["y"]),
    ]
    return model(nodes, {"x": (batch, 3, "H", "W")}, ["y"], held, opset)
