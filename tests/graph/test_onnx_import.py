"""Reading and binding: shapes, names, order, dtypes, and what is refused with which words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from leanconv.errors import InputError, ModelError, UnsupportedError
from leanconv.graph.ir import TensorType
from leanconv.graph.onnx_import import Model, read_model
from leanconv.graph.verify import verify
from leanconv.types import FLOAT16, FLOAT32, FLOAT64, INT32
from support.import_cases import Numbers
from support.interpret import interpret
from support.onnx_models import agree, imported, model, small_cnn

normal = Numbers(3).normal


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """A node from names separated by blanks; `-` stands for an absent input."""
    names = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(op, names, outputs.split(), **attributes)


def read(proto: onnx.ModelProto) -> Model:
    return read_model(proto.SerializeToString())


@pytest.mark.parametrize("opset", [13, 14, 15, 17, 18, 20, 22])
def test_small_network(opset: int) -> None:
    agree(small_cnn(opset), {"x": normal(2, 3, 17, 20)})


def test_only_floats_flow_and_shapes_are_folded() -> None:
    graph = verify(read(small_cnn()).bind({"x": (2, 3, 16, 16)}))
    assert [each.op for each in graph.nodes][-4:] == ["ReduceMean", "Reshape", "Gemm", "Softmax"]
    assert graph.outputs == ("y",)
    assert graph.types["y"] == TensorType((2, 5), FLOAT32)
    assert graph.nodes[0].name == "stem"
    for array in graph.constants.values():
        assert array.flags.c_contiguous
        assert not array.flags.writeable


def test_inputs_as_declared() -> None:
    found = read(small_cnn())
    assert [(each.name, each.dtype, each.shape) for each in found.inputs] == [
        ("x", FLOAT32, ("N", 3, "H", "W"))
    ]
    assert found.inputs[0].static_shape is None
    static = read(model([node("Relu", "x", "y")], {"x": (2, 3)}, ["y"]))
    assert static.inputs[0].static_shape == (2, 3)
    assert static.bind().types["y"].shape == (2, 3)
    anything = read(model([node("Relu", "x", "y")], {"x": None}, ["y"]))
    assert anything.inputs[0].shape is None
    assert anything.bind({"x": (4, 1, 2)}).types["y"].shape == (4, 1, 2)
    unknown = read(model([node("Relu", "x", "y")], {"x": (None, 0, 2)}, ["y"]))
    assert unknown.inputs[0].shape == (None, None, 2)


@pytest.mark.parametrize(
    ("shapes", "what"),
    [
        ({}, "expected its shape to be given"),
        ({"x": (1, 3, 8)}, "got the shape 1x3x8; expected Nx3xHxW"),
        ({"x": (1, 4, 8, 8)}, "expected"),
        ({"x": (-1, 3, 8, 8)}, "not negative"),
        ({"x": (1, 3, 8, 8), "z": (1,)}, "expected an input's name: 'x'"),
        ({"x": (1, 3, 2**30, 2**30)}, "bytes"),
    ],
)
def test_shapes_that_do_not_fit(shapes: dict[str, tuple[int, ...]], what: str) -> None:
    with pytest.raises(InputError, match=what):
        read(small_cnn()).bind(shapes)


def test_a_symbol_means_one_number() -> None:
    found = read(model([node("Add", "a b", "y")], {"a": ("N", 1), "b": ("N", "M")}, ["y"]))
    assert found.bind({"a": (2, 1), "b": (2, 3)}).types["y"].shape == (2, 3)
    with pytest.raises(InputError, match="with N = 2"):
        found.bind({"a": (2, 1), "b": (3, 3)})


@pytest.mark.parametrize("placeholder", ["?", "-1", "None"])
def test_what_exporters_write_for_unknown_extents_is_no_symbol(placeholder: str) -> None:
    shape = (placeholder, 1, placeholder, placeholder)
    found = read(model([node("Relu", "x", "y")], {"x": shape}, ["y"]))
    assert found.bind({"x": (1, 1, 48, 192)}).types["y"].shape == (1, 1, 48, 192)


def test_too_small_an_image_is_named() -> None:
    proto = model(
        [node("Conv", "x w", "y")], {"x": (1, 1, "H", "W")}, ["y"], {"w": normal(1, 1, 3, 3)}
    )
    with pytest.raises(ModelError, match=r"node 'Conv_0' \(Conv, opset 17\).*larger input"):
        read(proto).bind({"x": (1, 1, 2, 9)})


def test_float64_is_exact_promotion() -> None:
    proto = small_cnn()
    x = normal(1, 3, 16, 16)
    double = imported(proto, {"x": x}, FLOAT64)["y"]
    assert double.dtype == np.float64
    np.testing.assert_allclose(double, imported(proto, {"x": x})["y"], rtol=1e-5)
    with pytest.raises(InputError, match="float32 or float64"):
        read(proto).bind({"x": (1, 3, 8, 8)}, FLOAT16)


def test_casts_between_floats_vanish_when_promoted() -> None:
    nodes = [
        node("Cast", "x", "a", to=TensorProto.FLOAT),
        node("ConstantOfShape", "s", "k", value=numpy_helper.from_array(np.array([2.0], "f4"))),
        node("Mul", "a k", "y"),
    ]
    graph = verify(
        read(model(nodes, {"x": (2, 3)}, ["y"], {"s": np.array([3])})).bind(dtype="float64")
    )
    assert [each.op for each in graph.nodes] == ["Mul"]
    assert {kind.dtype for kind in graph.types.values()} == {FLOAT64}


def test_float64_model() -> None:
    proto = model(
        [node("Add", "x c", "y")],
        {"x": (2, 3)},
        ["y"],
        {"c": np.ones(3)},
        elem_type=TensorProto.DOUBLE,
    )
    found = read(proto)
    assert found.dtype == FLOAT64
    assert found.bind().types["y"].dtype == FLOAT64
    with pytest.raises(UnsupportedError, match="lose precision"):
        found.bind(dtype=FLOAT32)


def test_inputs_that_are_initializers_are_constants() -> None:
    proto = model([node("Mul", "x c", "y")], {"x": (2,), "c": (2,)}, ["y"], {"c": normal(2)})
    assert [each.name for each in read(proto).inputs] == ["x"]


def test_outputs_that_are_inputs_constants_or_one_value() -> None:
    nodes = [
        node("Identity", "x", "same"),
        node("Relu", "x", "r"),
        node("Identity", "r", "r1"),
        node("Dropout", "r", "r2"),
        node("Shape", "x", "shape"),
        node("Identity", "c", "held"),
    ]
    outputs = ["same", "r1", "r2", "shape", "held", "x", "r"]
    proto = model(nodes, {"x": (2, 3)}, outputs, {"c": normal(4)})
    graph = verify(read(proto).bind())
    assert graph.outputs == tuple(outputs)
    x = normal(2, 3)
    found = interpret(graph, {"x": x})
    np.testing.assert_array_equal(found["same"], x)
    np.testing.assert_array_equal(found["x"], x)
    for name in ("r", "r1", "r2"):
        np.testing.assert_array_equal(found[name], np.maximum(x, 0))
    assert found["shape"].tolist() == [2, 3]


def test_names_that_look_made_up_do_not_collide() -> None:
    nodes = [
        node("Sum", "x x x", "Sum_0#0"),
        node("Sum", "Sum_0#0 x x", "Sum_1#0"),
        node("Softmax", "Sum_1#0", "y", axis=1),
    ]
    proto = model(nodes, {"x": (2, 3, 4)}, ["y"], opset=11)
    agree(proto, {"x": normal(2, 3, 4)})


def test_nodes_in_any_order() -> None:
    proto = small_cnn()
    shuffled = list(proto.graph.node)
    np.random.default_rng(0).shuffle(shuffled)  # type: ignore[arg-type]
    del proto.graph.node[:]
    proto.graph.node.extend(shuffled)
    x = normal(1, 3, 16, 16)
    np.testing.assert_array_equal(
        imported(proto, {"x": x})["y"], imported(small_cnn(), {"x": x})["y"]
    )


def test_dead_nodes_are_dropped_before_they_are_judged() -> None:
    proto = model([node("Relu", "x", "y"), node("Floor", "x", "z")], {"x": (2,)}, ["y"])
    assert len(read(proto).bind().nodes) == 1


@pytest.mark.parametrize(
    ("each", "what"),
    [
        (node("Strange", "x", "y"), r"node 'Strange_0' \(Strange, opset 17\).*--operators"),
        (helper.make_node("Gelu", ["x"], ["y"], domain="com.microsoft"), "domain 'com.microsoft'"),
        (node("Cast", "x", "y", to=TensorProto.COMPLEX64), "complex64"),
        (node("AveragePool", "x", "z y", kernel_shape=[1, 1]), "output 'y' is used"),
        (node("Relu", "x", "z y"), "output 'y' is used"),
        (node("Relu", "x", "y", alpha=1.0), "attribute 'alpha' is not supported; expected none"),
        (node("LeakyRelu", "x", "y", alpha=1), "attribute alpha is of kind int; expected float"),
    ],
)
def test_refused_when_read(each: onnx.NodeProto, what: str) -> None:
    with pytest.raises((UnsupportedError, ModelError), match=what):
        read(model([each], {"x": (1, 1, 3, 3)}, ["y"]))


@pytest.mark.parametrize(
    ("each", "what"),
    [
        (node("Resize", "x - s", "y", mode="area"), "'area' is not supported; expected nearest"),
        (node("Dropout", "x - t", "y"), "evaluation mode"),
    ],
)
def test_refused_when_bound(each: onnx.NodeProto, what: str) -> None:
    held = {
        "s": np.ones(4, "f4"),
        "p": np.zeros(8, "i8"),
        "o": np.ones(1, "f4"),
        "t": np.bool_(True),
    }
    held = {name: array for name, array in held.items() if name in each.input}
    with pytest.raises(UnsupportedError, match=what):
        read(model([each], {"x": (3, 1, 3, 3)}, ["y"], held, opset=19)).bind()


@pytest.mark.parametrize(
    ("opset", "what"), [(-1, "opset -1; expected 1 to 28"), (29, "opset 29; expected 1 to 28")]
)
def test_opsets_outside(opset: int, what: str) -> None:
    with pytest.raises(UnsupportedError, match=what):
        read(model([node("Relu", "x", "y")], {"x": (2,)}, ["y"], opset=opset))


def test_all_unknown_operations_are_named() -> None:
    nodes = [
        node("Relu", "x", "a"),
        helper.make_node("Peculiar", ["a"], ["b"], name="first"),
        node("Peculiar", "b", "c"),
        helper.make_node("Foo", ["c"], ["d"], domain="com.foo"),
        node("Strange", "d", "y"),
    ]
    with pytest.raises(UnsupportedError) as caught:
        read(model(nodes, {"x": (2,)}, ["y"]))
    said = "node 'first' (Peculiar, opset 17) is not supported, nor com.foo.Foo, Strange; "
    assert said in str(caught.value)
    assert "operators that `leanconv explain --operators` lists" in str(caught.value)


@pytest.mark.parametrize(
    ("op", "meant"), [("relu", "Relu"), ("Max_Pool", "MaxPool"), ("ReduceSums", "ReduceSum")]
)
def test_the_nearest_operation_is_named(op: str, meant: str) -> None:
    proto = model([node(op, "x", "y")], {"x": (2,)}, ["y"])
    with pytest.raises(UnsupportedError, match=rf"did you mean {meant}\?"):
        read(proto)


def test_operation_of_another_opset() -> None:
    with pytest.raises(ModelError, match="HardSwish.*expected opset 14 to 28"):
        read(model([node("HardSwish", "x", "y")], {"x": (2,)}, ["y"], opset=13))
    with pytest.raises(ModelError, match="Upsample.*expected opset 1 to 9"):
        read(model([node("Upsample", "x x", "y")], {"x": (2,)}, ["y"], opset=10))


@pytest.mark.parametrize(
    ("each", "opset", "what"),
    [
        (node("ReduceMean", "x", "y", axes=[1]), 18, "attribute axes; expected an input"),
        (node("ReduceMean", "x c", "y"), 17, "2 inputs; expected 1 to 1"),
        (node("Clip", "x", "y", min=0.0), 11, "attribute min; expected an input"),
        (node("Clip", "x c", "y"), 10, "2 inputs; expected 1 to 1"),
        (node("Split", "x", "y", num_outputs=2), 18, "num_outputs is 2; expected 1"),
    ],
)
def test_forms_of_another_opset(each: onnx.NodeProto, opset: int, what: str) -> None:
    held = {"c": np.float32(1)} if "c" in each.input else {}
    with pytest.raises(ModelError, match=what):
        read(model([each], {"x": (2, 3)}, ["y"], held, opset)).bind()


@pytest.mark.parametrize("kind", [TensorProto.INT64, TensorProto.BOOL, TensorProto.UINT8])
def test_inputs_of_other_dtypes(kind: int) -> None:
    with pytest.raises(UnsupportedError, match="expected float"):
        read(model([node("Exp", "x", "y")], {"x": (2,)}, ["y"], elem_type=kind)).bind()


def test_every_storage_of_a_tensor() -> None:
    numbers = [-3, 0, 7, 100]
    x = normal(4)
    for dtype in (FLOAT32, FLOAT64, "int64", INT32, "int16", "int8", "bool", FLOAT16):
        array = np.array(numbers).astype(dtype)
        for raw in (True, False):
            held = helper.make_tensor(
                "c",
                helper.np_dtype_to_tensor_dtype(array.dtype),
                [4],
                array.tobytes() if raw else array.tolist(),
                raw,
            )
            nodes = [node("Cast", "c", "f", to=TensorProto.FLOAT), node("Add", "x f", "y")]
            proto = model(nodes, {"x": (4,)}, ["y"])
            proto.graph.initializer.append(held)
            np.testing.assert_array_equal(
                imported(proto, {"x": x})["y"], x + array.astype(np.float32)
            )
    for dtype in ("uint8", "uint16", "uint32", "uint64"):
        held = helper.make_tensor(
            "c", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [4], [0, 1, 200, 3]
        )
        proto.graph.initializer[0].CopyFrom(held)
        assert imported(proto, {"x": x})["y"][2] == x[2] + 200


def test_large_file_is_mapped_and_external_data_found(tmp_path: Path) -> None:
    big = normal(600, 600)
    proto = model([node("MatMul", "x w", "y")], {"x": ("N", 600)}, ["y"], {"w": big})
    whole, split = tmp_path / "whole.onnx", tmp_path / "split.onnx"
    onnx.save(proto, whole)
    onnx.save(proto, split, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert split.stat().st_size < 1000
    for path in (whole, split, str(split)):
        found = read_model(path)
        assert found.bytes > big.nbytes
        held = found.constants["w"]
        assert not held.flags.owndata
        np.testing.assert_array_equal(found.bind({"x": (1, 600)}).constants["w"], big)


def test_missing_file() -> None:
    with pytest.raises(InputError, match=r"no-such\.onnx"):
        read_model("no-such.onnx")


def test_reading_imports_no_onnx(tmp_path: Path) -> None:
    onnx.save(small_cnn(), tmp_path / "small.onnx")
    code = (
        "import sys; from leanconv.graph.onnx_import import read_model;"
        "read_model(sys.argv[1]).bind({'x': (1, 3, 16, 16)});"
        "sys.exit(any(name in sys.modules for name in ('onnx', 'google.protobuf')))"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "small.onnx")],
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
