"""Inputs, outputs and data of other dtypes than a network computes in, against ONNX Runtime."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import leanconv as lc
from leanconv.errors import InputError, LeanConvError, UnsupportedError
from leanconv.gpu.backend import DeviceBackend
from leanconv.graph.onnx_import import read_model
from leanconv.types import FLOAT16, FLOAT32, FLOAT64, INT32
from support.hostile import node
from support.onnx_models import model, reference

R = np.random.default_rng(6)
W = R.standard_normal((4, 3, 3, 3)).astype("f4")
FLOAT, DOUBLE = TensorProto.FLOAT, TensorProto.DOUBLE
_BYTE, _INT, _LONG, _HALF = 2, 6, 7, 10  # of TensorProto, too
TYPES = {
    each: helper.np_dtype_to_tensor_dtype(np.dtype(each))
    for each in (
        *("uint8", "int8", "uint16", "int16", INT32, "uint32", "int64", "uint64"),
        *(FLOAT16, FLOAT64, "bool"),
    )
}


def conv(x: str = "f", y: str = "y") -> onnx.NodeProto:
    return node("Conv", f"{x} w", y, pads=[1] * 4)


def network(
    nodes: Sequence[onnx.NodeProto],
    shape: Sequence[int | str],
    input_type: int = FLOAT,
    output_type: int = FLOAT,
    **held: Any,
) -> onnx.ModelProto:
    proto = model(nodes, {"x": shape}, ["y"], {"w": W, **held}, opset=18)
    proto.graph.input[0].type.tensor_type.elem_type = input_type
    proto.graph.output[0].type.tensor_type.elem_type = output_type
    return proto


def agrees(proto: onnx.ModelProto, x: np.ndarray, **options: Any) -> np.ndarray:
    found = lc.load(proto, threads=1, **options)(x)
    wanted = reference(proto, {"x": x})["y"]
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    return found


def numbers(dtype: str, shape: Sequence[int]) -> np.ndarray:
    if np.dtype(dtype).kind == "f":
        return R.standard_normal(shape).astype(dtype)
    if dtype == "bool":
        return R.integers(0, 2, shape).astype(bool)
    return R.integers(max(np.iinfo(dtype).min, -1000), min(np.iinfo(dtype).max, 1000), shape, dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_an_input_that_is_cast_first(dtype: str) -> None:
    proto = network([node("Cast", "x", "f", to=FLOAT), conv()], (1, 3, 8, 8), TYPES[dtype])
    agrees(proto, numbers(dtype, (1, 3, 8, 8)) if dtype != INT32 else numbers(INT32, (1, 3, 8, 8)))


def test_large_integers_are_rounded_once_to_nearest() -> None:
    x = np.array([2**24 + 1, 2**24 + 3, -(2**53) - 1, 2**62 + 2**38 + 1, 0, 1])
    for target, kind in ((FLOAT, FLOAT32), (DOUBLE, FLOAT64)):
        nodes = [node("Cast", "x", "f", to=target), node("Neg", "f", "y")]
        proto = network(nodes, (6,), TYPES["int64"], target)
        found = lc.load(proto, threads=1)(x)
        assert found.dtype == kind
        np.testing.assert_array_equal(found, -x.astype(kind))
        np.testing.assert_array_equal(found, reference(proto, {"x": x})["y"])


def image_network(shape: Sequence[int | str]) -> onnx.ModelProto:
    """Bytes, channels last, scaled within the network."""
    nodes = [
        node("Cast", "x", "a", to=FLOAT),
        node("Transpose", "a", "b", perm=[0, 3, 1, 2]),
        node("Sub", "b mean", "c"),
        node("Div", "c scale", "f"),
        conv("f", "g"),
        node("Relu", "g", "y"),
    ]
    mean, scale = np.float32([[[120]], [[110]], [[100]]]), np.float32([[[58]], [[57]], [[56]]])
    return network(nodes, shape, TYPES["uint8"], mean=mean, scale=scale)


def test_a_network_of_images_as_bytes_of_any_batch_and_size() -> None:
    proto = image_network(("N", "H", "W", 3))
    found = lc.load(proto, threads=1)
    assert [(each.shape, each.dtype) for each in found.inputs] == [(("N", "H", "W", 3), "uint8")]
    for shape in ((1, 8, 8, 3), (2, 9, 12, 3), (3, 16, 11, 3), (1, 8, 8, 3)):
        x = R.integers(0, 256, shape, np.uint8)
        np.testing.assert_allclose(found(x), reference(proto, {"x": x})["y"], rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(found(x[:, ::-1]), found(x[:, ::-1].copy()))
        np.testing.assert_array_equal(found.run({"x": x})["y"], found.run(None, {"x": x})[0])
    with pytest.raises(InputError, match=r"expected uint8.*x\.astype\('uint8'\)"):
        found(x.astype("f4"))


def test_copies_and_pickles_and_double_precision() -> None:
    proto, x = image_network((1, 8, 8, 3)), R.integers(0, 256, (1, 8, 8, 3), np.uint8)
    wanted = agrees(proto, x)
    network_ = lc.load(proto, threads=1)
    np.testing.assert_array_equal(copy.deepcopy(network_)(x), wanted)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(network_))(x), wanted)
    exact = lc.load(proto, threads=1, dtype="float64")(x)
    assert exact.dtype == FLOAT64
    np.testing.assert_allclose(exact, wanted, rtol=1e-4, atol=1e-4)
    assert len(network_.profile(x, 1)) > 0


def test_in_double_precision_nothing_is_rounded_to_less() -> None:
    nodes = [node("Cast", "x", "f", to=FLOAT), node("Neg", "f", "y")]
    proto, x = network(nodes, (5,), DOUBLE), R.standard_normal(5)
    np.testing.assert_array_equal(lc.load(proto)(x), -x.astype("f4"))
    np.testing.assert_array_equal(lc.load(proto, dtype="float64")(x), -x)


def test_elements_may_be_moved_before_they_are_cast() -> None:
    nodes = [
        node("Transpose", "x", "a", perm=[0, 3, 1, 2]),
        node("Gather", "a bgr", "b", axis=1),
        node("Slice", "b first last axes", "c"),
        node("Cast", "c", "d", to=_INT),
        node("Concat", "d d", "e", axis=3),
        node("Shape", "x", "s"),
        node("Cast", "e", "f", to=FLOAT),
        conv(),
    ]
    held = {
        "bgr": np.array([2, 1, 0]),
        "first": np.array([1]),
        "last": np.array([7]),
        "axes": np.array([2]),
    }
    proto = network(nodes, (1, 8, 8, 3), TYPES["uint8"], **held)
    agrees(proto, R.integers(0, 256, (1, 8, 8, 3), np.uint8))


@pytest.mark.parametrize("target", [FLOAT64, FLOAT16, "int64", INT32, "int16", "uint8"])
def test_an_output_that_is_cast_last(target: str) -> None:
    """To integers by truncation; what they do not hold is any number, so there is none."""
    nodes = [
        node("Relu", "x", "a"),
        node("Mul", "a k", "b"),
        node("Cast", "b", "y", to=TYPES[target]),
    ]
    proto = network(nodes, (2, 50), FLOAT, TYPES[target], k=np.float32(20))
    found = agrees(proto, R.standard_normal((2, 50)).astype("f4"))
    assert len(np.unique(found)) > 10
    open_ = network(nodes, ("N", 50), FLOAT, TYPES[target], k=np.float32(20))
    assert lc.load(open_, threads=1).outputs[0].dtype == target
    agrees(open_, R.standard_normal((3, 50)).astype("f4"))


def test_truncation_is_toward_zero_and_bool_is_what_is_not_zero() -> None:
    x = np.array([-2.9, -1.5, -0.5, -0.0, 0.0, 0.5, 1.5, 2.9], "f4")
    for target in ("int64", "int8", "bool"):
        nodes = [node("Neg", "x", "a"), node("Cast", "a", "y", to=TYPES[target])]
        agrees(network(nodes, (8,), FLOAT, TYPES[target]), x)


def test_casts_at_the_end_one_after_the_other_and_moves_behind_them() -> None:
    nodes = [
        conv("x", "a"),
        node("Cast", "a", "b", to=DOUBLE),
        node("Cast", "b", "c", to=_INT),
        node("Cast", "c", "d", to=FLOAT),
        node("Transpose", "d", "e", perm=[0, 2, 3, 1]),
        node("Flatten", "e", "y"),
    ]
    proto = network(nodes, (1, 3, 8, 8))
    found = agrees(proto, R.standard_normal((1, 3, 8, 8)).astype("f4") * 3)
    assert np.array_equal(found, np.trunc(found))


def test_a_cast_to_more_precision_and_back_is_nothing() -> None:
    nodes = [
        node("Cast", "x", "a", to=DOUBLE),
        node("Cast", "a", "f", to=FLOAT),
        conv("f", "b"),
        node("Cast", "b", "c", to=DOUBLE),
        node("CastLike", "c x", "d"),
        node("Relu", "d", "y"),
    ]
    agrees(network(nodes, (1, 3, 8, 8)), R.standard_normal((1, 3, 8, 8)).astype("f4"))


def test_the_dtype_that_is_computed_in_is_the_casts() -> None:
    """An input in float32, all else in float64."""
    nodes = [node("Cast", "x", "a", to=DOUBLE), node("Neg", "a", "y")]
    proto = network(nodes, (4,), FLOAT, DOUBLE)
    assert lc.load(proto).inputs[0].dtype == "float32"
    agrees(proto, R.standard_normal(4).astype("f4"))


def test_two_inputs_of_two_dtypes() -> None:
    nodes = [node("Cast", "x", "a", to=FLOAT), node("Add", "a z", "y")]
    proto = network(nodes, (2, 3), TYPES["uint8"])
    proto.graph.input.append(helper.make_tensor_value_info("z", FLOAT, (2, 3)))
    x, z = R.integers(0, 256, (2, 3), np.uint8), R.standard_normal((2, 3)).astype("f4")
    found = lc.load(proto, threads=1).run({"x": x, "z": z})["y"]
    np.testing.assert_array_equal(found, reference(proto, {"x": x, "z": z})["y"])


@pytest.mark.parametrize("dtype", TYPES)
def test_elements_of_every_type_may_pass_through(dtype: str) -> None:
    proto = network([node("Transpose", "x", "y")], (2, 3), TYPES[dtype], TYPES[dtype])
    agrees(proto, numbers(dtype, (2, 3)))


@pytest.mark.parametrize(
    ("nodes", "input_type", "output_type"),
    [
        ([node("Add", "x x", "y")], _LONG, _LONG),
        ([node("Cast", "x", "a", to=2), node("Cast", "a", "y", to=1)], _LONG, FLOAT),
        ([node("Cast", "x", "a", to=7), node("Add", "a a", "y")], FLOAT, _LONG),
        (
            [node("Cast", "x", "a", to=7), node("Cast", "a", "b", to=1), node("Relu", "b", "y")],
            FLOAT,
            FLOAT,
        ),
        ([node("Cast", "x", "a", to=7), node("Concat", "a i", "y", axis=0)], FLOAT, _LONG),
        (
            [node("Relu", "x", "a"), node("Cast", "a", "b", to=11), node("Neg", "b", "y")],
            FLOAT,
            DOUBLE,
        ),
        ([node("Greater", "x z", "c"), node("Where", "c x z", "y")], FLOAT, FLOAT),
    ],
)
def test_what_is_computed_on_other_types(
    nodes: list[onnx.NodeProto], input_type: int, output_type: int
) -> None:
    held = {"i": np.array([1]), "z": np.float32(0.25)}
    proto = network(nodes, (9,), input_type, output_type, **held)
    x = R.integers(0, 9, 9) if input_type == _LONG else R.standard_normal(9).astype("f4") * 3
    agrees(proto, x)


@pytest.mark.parametrize(
    ("nodes", "input_type", "what"),
    [
        ([conv("x")], _BYTE, "got inputs of dtypes float32, uint8; expected one dtype"),
        ([node("Exp", "x", "y")], _LONG, "Exp reads int64.*expected float32 or float64: cast it"),
    ],
)
def test_what_is_computed_on_no_other_types_is_refused_by_name(
    nodes: list[onnx.NodeProto], input_type: int, what: str
) -> None:
    shape = (1, 3, 8, 8) if nodes[0].op_type == "Conv" else (4,)
    with pytest.raises(LeanConvError, match=what) as caught:
        lc.load(network(nodes, shape, input_type), threads=1)
    assert "node " in str(caught.value)


def test_a_gpu_refuses_them_by_name() -> None:
    model_ = read_model(image_network((1, 8, 8, 3)).SerializeToString())
    driver: Any = None
    with pytest.raises(UnsupportedError, match="which device='cuda' does not do"):
        DeviceBackend(model_, driver)


@pytest.mark.parametrize("shape", [(2, 3), ("n", 3)])
@pytest.mark.parametrize("dtype", [None, FLOAT64])
def test_outputs_that_are_shapes_and_constants_of_any_type(
    shape: Sequence[int | str], dtype: str | None
) -> None:
    nodes = [node("Relu", "x", "y"), node("Shape", "x", "s"), node("Identity", "b", "k")]
    held = np.array([True, False, True])
    proto = network(nodes, shape, b=held)
    for name, kind in (("s", "int64"), ("k", "bool")):
        proto.graph.output.append(helper.make_tensor_value_info(name, TYPES[kind], None))
    found, x = lc.load(proto, threads=1, dtype=dtype), np.ones((2, 3), dtype or "f4")
    assert [each.dtype for each in found.outputs] == [dtype or FLOAT32, "int64", "bool"]
    y = found.run({"x": x})
    assert [array.dtype for array in y.values()] == [each.dtype for each in found.outputs]
    assert y["s"].tolist() == [2, 3]
    np.testing.assert_array_equal(y["k"], held)


# -- places of extremes ------------------------------------------------------------------------


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_a_segmenter_that_ends_in_the_largest_class(op: str, last: int, keepdims: int) -> None:
    found = node(op, "a", "y", axis=1, keepdims=keepdims, select_last_index=last)
    half = node("Mul", "x k", "f")
    proto = network([half, conv("f", "a"), found], (1, 3, 8, 9), FLOAT, _LONG, k=np.float32(0.5))
    agrees(proto, R.standard_normal((1, 3, 8, 9)).astype("f4"))
    shape = lc.load(proto, threads=1).outputs[0].shape
    assert shape == ((1, 1, 8, 9) if keepdims else (1, 8, 9))
    ties = network([node("Abs", "x", "a"), found], (1, 3, 4), FLOAT, _LONG)
    agrees(ties, R.integers(-1, 2, (1, 3, 4)).astype("f4"))


def test_places_of_any_size_that_are_cast() -> None:
    nodes = [conv("x", "a"), node("ArgMax", "a", "b", axis=-3), node("Cast", "b", "y", to=2)]
    found = lc.load(network(nodes, ("n", 3, "h", "w_"), FLOAT, _BYTE), threads=1)
    assert (found.outputs[0].dtype, found.outputs[0].name) == ("uint8", "y")
    for shape in ((1, 3, 8, 9), (2, 3, 7, 5)):
        agrees(network(nodes, ("n", 3, "h", "w_"), FLOAT, _BYTE), R.random(shape, np.float32))


@pytest.mark.parametrize(
    "behind",
    [node("Add", "b b", "y"), node("Squeeze", "b", "y"), node("ConstantOfShape", "s", "y")],
)
def test_places_that_are_read_in_the_network(behind: onnx.NodeProto) -> None:
    nodes = [node("ArgMax", "x", "b", axis=1), node("Shape", "b", "s"), behind]
    kind = FLOAT if behind.op_type == "ConstantOfShape" else _LONG
    agrees(network(nodes, (2, 3), FLOAT, kind), R.standard_normal((2, 3)).astype("f4"))


def test_places_along_no_axis_or_of_constants() -> None:
    with pytest.raises(LeanConvError, match="axis is 2; expected -2 to 1"):
        lc.load(network([node("ArgMax", "x", "y", axis=2)], (2, 3), FLOAT, _LONG))
    held = {"c": np.float32([[1, 7, 7], [5, 2, 5]])}
    nodes = [node("ArgMax", "c", "p", axis=1, keepdims=0), node("Gather", "x p", "y", axis=1)]
    agrees(network(nodes, (2, 3), **held), R.standard_normal((2, 3)).astype("f4"))
