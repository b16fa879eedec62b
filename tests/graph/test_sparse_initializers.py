"""Sparse tensors of files: made dense as ONNX Runtime makes them, or refused before they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import SparseTensorProto, TensorProto, helper, numpy_helper

import leanconv as lc
from leanconv.errors import LeanConvError, ModelError, UnsupportedError
from leanconv.graph.ir import is_filled, is_spread
from leanconv.graph.limits import Limits
from leanconv.graph.onnx_import import read_model
from leanconv.graph.passes import run_passes
from leanconv.onnxruntime import InferenceSession
from leanconv.types import FLOAT64
from support.control_flow import branch, graph
from support.hostile import MIB, ResidentPeak, bounded, node, refused
from support.onnx_models import agree, model, reference, small_cnn
from support.sparse_models import sparse, sparsened, stated

R = np.random.default_rng(5)
X = R.standard_normal((1, 4, 8, 8)).astype("f4")
INT64_MOST = 2**63 - 1
TYPES = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"]


def pruned(*shape: int, share: float = 0.8) -> np.ndarray:
    """Weights of which a share is 0."""
    w = R.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
    return np.where(R.random(shape) < share, 0, w).astype("f4")


def given_out(held: SparseTensorProto, *, constant: bool = False) -> onnx.ModelProto:
    """A network that gives a sparse tensor, `w`, and Relu of its input."""
    nodes = [node("Identity", "w"), node("Relu", "x", "z")]
    proto = model(nodes, {"x": (1,)}, ["y", "z"])
    proto.graph.output[0].type.tensor_type.elem_type = held.values.data_type
    if constant:
        proto.graph.node.insert(0, helper.make_node("Constant", [], ["w"], sparse_value=held))
    else:
        proto.graph.sparse_initializer.append(held)
    return proto


def read(proto: onnx.ModelProto, **arguments: Any) -> np.ndarray:
    return lc.load(proto, threads=1, **arguments).run({"x": np.ones(1, "f4")})["y"]


def filters(held: SparseTensorProto) -> bytes:
    """A convolution whose weights are a sparse tensor."""
    proto = model([node("Conv", "x w", pads=[1] * 4)], {"x": X.shape}, ["y"])
    proto.graph.sparse_initializer.append(held)
    return proto.SerializeToString()


def values(*numbers: float, name: str = "w") -> TensorProto:
    return numpy_helper.from_array(np.array(numbers, "f4"), name)


# -- sound files ----------------------------------------------------------------------------------
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("coo", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
def test_all_types_and_both_forms(dtype: str, coo: bool, constant: bool) -> None:
    array = np.zeros((3, 4, 5), dtype)
    array[0, 0, 0], array[1, 2, 3], array[2, 3, 4], array[2, 3, 3] = 1, 3, 7, 1
    proto = given_out(sparse("w", array, coo=coo), constant=constant)
    found = read(proto)
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)
    if not constant:
        np.testing.assert_array_equal(found, reference(proto, {"x": np.ones(1, "f4")})["y"])


@pytest.mark.parametrize(
    "kind", ["BFLOAT16", "INT4", "UINT4", "FLOAT8E4M3FN", "FLOAT8E5M2FNUZ", "FLOAT4E2M1"]
)
def test_types_that_numpy_lacks(kind: str) -> None:
    held = helper.make_tensor("w", getattr(TensorProto, kind), [3], [1, 2, 3])
    proto = given_out(stated(held, [1, 4, 5], (2, 3)))
    proto.opset_import[0].version, proto.ir_version = 23, 11
    found = read(proto).astype("f4")
    np.testing.assert_array_equal(found, [[0, 1, 0], [0, 2, 3]])


def test_a_type_without_0_is_refused() -> None:
    held = helper.make_tensor("w", TensorProto.FLOAT8E8M0, [1], [1.0])
    proto = given_out(stated(held, [1], (2, 3)))
    with pytest.raises(UnsupportedError, match="'w' has elements of .*e8m0, which has no 0"):
        read(proto)


@pytest.mark.parametrize("shape", [(0,), (2, 0, 3), (5,), (2, 3), ()])
@pytest.mark.parametrize("coo", [False, True])
def test_nothing_but_zeros(shape: tuple[int, ...], coo: bool) -> None:
    indices = np.zeros((0, len(shape)) if coo else (0,), np.int64)
    proto = given_out(stated(values(), indices, shape))
    np.testing.assert_array_equal(read(proto), np.zeros(shape, "f4"))
    np.testing.assert_array_equal(read(proto), reference(proto, {"x": np.ones(1, "f4")})["y"])
    proto.graph.sparse_initializer[0].ClearField("indices")
    np.testing.assert_array_equal(read(proto), np.zeros(shape, "f4"))


def test_scalars_full_ones_and_ends() -> None:
    for array in (np.float32(3), R.random((2, 3)).astype("f4"), np.array([0, 0, 5], "f4")):
        np.testing.assert_array_equal(read(given_out(sparse("w", array))), array)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_shape_and_pattern(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    share = data.draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    seed = data.draw(st.integers(0, 1000))
    random = np.random.default_rng(seed)
    array = np.where(random.random(shape) < share, random.random(shape), 0).astype("f4")
    coo = data.draw(st.booleans())
    np.testing.assert_array_equal(read(given_out(sparse("w", array, coo=coo))), array)


@pytest.mark.parametrize("dtype", [None, FLOAT64])
@pytest.mark.parametrize("coo", [False, True])
def test_a_network_of_sparse_weights(coo: bool, dtype: str | None) -> None:
    """The bits are those of the same network with dense ones: norms fold, shapes are computed."""
    dense = small_cnn()
    given = R.standard_normal((2, 3, 16, 16)).astype(dtype or "f4")
    made = sparsened(dense, coo=coo)
    found = lc.load(made, threads=1, dtype=dtype)(given)
    np.testing.assert_array_equal(found, lc.load(dense, threads=1, dtype=dtype)(given))
    if dtype is None:
        np.testing.assert_allclose(
            found, next(iter(reference(made, {"x": given}).values())), rtol=1e-3, atol=1e-5
        )


def test_halves() -> None:
    array = np.zeros((4, 4, 3, 3), "f2")
    array[1, 2, 0, 0], array[3, 3, 2, 2] = 0.5, -2
    half = TensorProto.FLOAT16
    proto = model([node("Conv", "x w")], {"x": X.shape}, ["y"], elem_type=half)
    proto.graph.sparse_initializer.append(sparse("w", array))
    x = X.astype("f2")
    found = lc.load(proto, threads=1)(x)
    np.testing.assert_allclose(found, reference(proto, {"x": x})["y"], rtol=2e-3, atol=2e-3)


def test_graphs_that_nodes_hold() -> None:
    """Weights of branches and of a loop's body, and those that they capture."""
    body = graph(
        [node("Mul", "s k", "t"), node("Add", "t outer", "u"), node("Identity", "on", "more")],
        "more u",
        {"i": "int64", "on": "bool", "s": "float"},
        {"k": np.array([0, 0.5, 0, 2], "f4").reshape(1, 4, 1, 1)},
        kinds={"more": "bool"},
    )
    then, other = (
        graph([node(op, "v k", "n")], "n", None, {"k": np.array([0, 1, 0, 2], "f4")[:, None, None]})
        for op in ("Mul", "Add")
    )
    nodes = [
        node("ReduceSum", "x", "total", keepdims=0),
        node("Greater", "total zero", "positive"),
        node("Loop", "five true x", "v", body=body),
        branch("positive", "y", then, other),
    ]
    held = {
        "outer": np.array([[[0]], [[0]], [[1]], [[0]]], "f4"),
        "five": np.array(5),
        "true": np.array(True),
        "zero": np.float32(0),
    }
    proto = sparsened(model(nodes, {"x": X.shape}, ["y"], held))
    assert not proto.graph.initializer
    for x in (X - X.mean() + 1, X - X.mean() - 1):
        found = lc.load(proto, threads=1)(x)
        np.testing.assert_allclose(found, reference(proto, {"x": x})["y"], rtol=1e-5, atol=1e-5)


def test_an_input_of_that_name_and_weights_that_are_given() -> None:
    """As for dense ones: the input is none, and an array takes the place of the file's."""
    w = pruned(6, 4, 3, 3)
    proto = onnx.load_from_string(filters(sparse("w", w)))
    info = helper.make_tensor_value_info("w", TensorProto.FLOAT, w.shape)
    proto.graph.input.append(info)
    found = lc.load(proto, threads=1)
    assert [each.name for each in found.inputs] == ["x"]
    other = pruned(6, 4, 3, 3)
    replaced = lc.load(proto, threads=1, weights={"w": other})
    np.testing.assert_array_equal(replaced(X), lc.load(filters(sparse("w", other)), threads=1)(X))
    with pytest.raises(ModelError, match="expected that of the array"):
        lc.load(proto, weights={"w": other[1:]})


def test_external_data(tmp_path: Path) -> None:
    w = pruned(6, 4, 3, 3)
    held = sparse("w", w)
    content = b"....."
    for tensor in (held.values, held.indices):
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="weights.bin")
        tensor.external_data.add(key="offset", value=str(len(content)))
        tensor.external_data.add(key="length", value=str(len(tensor.raw_data)))
        content += tensor.raw_data
        tensor.ClearField("raw_data")
    (tmp_path / "weights.bin").write_bytes(content)
    path = tmp_path / "model.onnx"
    path.write_bytes(filters(held))
    expected = lc.load(filters(sparse("w", w)), threads=1)(X)
    np.testing.assert_array_equal(lc.load(path, threads=1)(X), expected)
    given = {"weights.bin": content}
    np.testing.assert_array_equal(lc.load(filters(held), threads=1, weights=given)(X), expected)
    held.values.external_data[0].value = "../weights.bin"
    path.write_bytes(filters(held))
    with pytest.raises(ModelError, match="outside the model's folder"):
        lc.load(path)


def test_sessions_of_the_drop_in() -> None:
    data = filters(sparse("w", pruned(6, 4, 3, 3)))
    session = InferenceSession(data, providers=["CPUExecutionProvider"])
    theirs = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    assert [each.name for each in session.get_inputs()] == ["x"]
    np.testing.assert_allclose(
        session.run(None, {"x": X})[0], theirs.run(None, {"x": X})[0], rtol=1e-4, atol=1e-5
    )


def test_a_session_whose_end_leanconv_lacks() -> None:
    """The part that the real onnxruntime computes has its sparse weights, and ours has ours."""
    columns = np.array([0, 0, 1, 0, 0, -1, 0, 0], "f4")
    lacking = helper.make_node("BiasGelu", ["c", "columns"], ["y"], domain="com.microsoft")
    nodes = [node("Conv", "x w", "c", pads=[1] * 4), lacking]
    proto = model(nodes, {"x": X.shape}, ["y"], {"w": pruned(6, 4, 3, 3), "columns": columns})
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    data = sparsened(onnx.shape_inference.infer_shapes(proto)).SerializeToString()
    session = InferenceSession(data, providers=["CPUExecutionProvider"])
    theirs = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(
        session.run(None, {"x": X})[0], theirs.run(None, {"x": X})[0], rtol=1e-4, atol=1e-5
    )


def test_quantising_a_network_of_sparse_weights() -> None:
    held = numpy_helper.from_array(np.arange(6, dtype="f4"))
    nodes = [node("Constant", "", "b", value=held), node("Conv", "x w b", "c"), node("Relu", "c")]
    dense = model(nodes, {"x": X.shape}, ["y"], {"w": pruned(6, 4, 3, 3)})
    made = [lc.quantize(each, {"x": X}, threads=1) for each in (dense, sparsened(dense))]
    assert all(each.precision == "int8" for result in made for each in result.layers)
    np.testing.assert_array_equal(*(lc.load(each.data, threads=1)(X) for each in made))


# -- memory ---------------------------------------------------------------------------------------
@pytest.mark.skipif(not ResidentPeak.is_known(), reason="reads /proc")
@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("count", [0, 1])
def test_a_gib_of_zeros_takes_no_memory(count: int, dtype: str, double: bool) -> None:
    """It does when a kernel packs it, as where one number is repeated."""
    rows = (1 << 30) // np.dtype(dtype).itemsize // 1024
    ones = numpy_helper.from_array(np.ones(count, dtype), "w")
    held = stated(ones, np.arange(count) + 5, (rows, 1024))
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    proto = model([node("MatMul", "x w")], {"x": (1, rows)}, ["y"], elem_type=kind)
    proto.graph.sparse_initializer.append(held)
    data = proto.SerializeToString()
    assert len(data) < 200
    peak = ResidentPeak()
    peak.begin()
    with bounded(4, 48 * MIB):
        read = read_model(data)
        bound = read.bind(dtype=FLOAT64 if double else None)
    assert peak.bytes < 48 * MIB
    (weight,) = bound.constants.values()
    assert is_spread(weight) if count else is_filled(weight)
    assert int(np.count_nonzero(weight[0])) == count


def test_passes_make_little_of_what_a_few_bytes_claim() -> None:
    """Filters that several norms scale are not copied for each."""
    held = stated(values(1, 2), [0, 70_000], (16_384, 1024, 1, 1))  # 64 MiB
    names = ["s", "b", "m", "v"]
    nodes = []
    for i in range(6):
        nodes += [node("Conv", "x w", f"c{i}")]
        nodes += [node("BatchNormalization", f"c{i} {' '.join(names)}", f"y{i}")]
    arrays = {name: np.full(16_384, 1.5, "f4") for name in names}
    proto = model(nodes, {"x": (1, 1024, 1, 1)}, [f"y{i}" for i in range(6)], arrays)
    proto.graph.sparse_initializer.append(held)
    made = run_passes(read_model(proto.SerializeToString()).bind())
    kept = {id(array): array.nbytes for array in made.constants.values() if array.nbytes > MIB}
    assert sum(kept.values()) <= 4 * 64 * MIB


def test_all_together_are_bounded() -> None:
    half = stated(values(1), [3], (1 << 14, 1 << 13))  # 512 MiB
    proto = model([node("MatMul", "x a", "y"), node("Add", "b c", "z")], {"x": (1, 1 << 14)}, ["y"])
    for name in "abc":
        half.values.name = name
        proto.graph.sparse_initializer.append(half)
    with bounded():
        read_model(proto.SerializeToString())  # two that no output needs
    proto.graph.output.append(helper.make_tensor_value_info("z", 1, None))
    refused(
        proto.SerializeToString(), r"'c' brings the sparse .* to 1610612736 bytes .* 1073741824"
    )


def test_constants_of_one_number_count_with_them() -> None:
    data = onnx.load_from_string(filters(stated(values(1), [3], (1 << 20, 4, 3, 3))))
    shape = numpy_helper.from_array(np.array([1 << 28]), "s")
    data.graph.initializer.append(shape)
    data.graph.node.extend(
        [node("ConstantOfShape", "s", "k"), node("ReduceMax", "k", "m"), node("Add", "x m", "z")]
    )
    data.graph.output.append(helper.make_tensor_value_info("z", 1, None))
    refused(data.SerializeToString(), "repeat one number, and sparse ones, take over 1 GiB")


def test_the_limit_is_the_users() -> None:
    data = filters(stated(values(1), [3], (64, 4, 3, 3)))
    read_model(data, Limits(filled_bytes=64 * 36 * 4))
    with pytest.raises(ModelError, match="raise the limit `filled_bytes` if you trust the file"):
        read_model(data, Limits(filled_bytes=64 * 36 * 4 - 1))


# -- hostile files --------------------------------------------------------------------------------
DIMS = (2, 4, 3, 3)
HOSTILE: list[tuple[Sequence[float], Any, Sequence[int], str]] = [
    ([1.0], [72], DIMS, "the index 72; expected one from 0 on, below 72"),
    ([1.0], [-1], DIMS, "the index -1; expected one from 0 on"),
    ([1.0], [INT64_MOST], DIMS, "the index 9223372036854775807; expected"),
    ([1.0], [-INT64_MOST - 1], DIMS, "the index -9223372036854775808; expected"),
    (
        [1.0],
        [[0, 4, 0, 0]],
        DIMS,
        r"the index \[0, 4, 0, 0\]; expected one .* below \[2, 4, 3, 3\]",
    ),
    ([1.0], [[0, 0, 0, -1]], DIMS, r"the index \[0, 0, 0, -1\]; expected"),
    ([1.0], [[0, 0, 0, INT64_MOST]], DIMS, "the index .*; expected"),
    ([1.0, 2.0], [5, 5], DIMS, "the index 5 twice; expected indices in ascending order, each once"),
    ([1.0, 2.0], [[0, 0, 0, 1]] * 2, DIMS, r"the index \[0, 0, 0, 1\] twice"),
    ([1.0, 2.0], [5, 4], DIMS, "the index 4 behind a larger one; expected"),
    ([1.0, 2.0], [[1, 0, 0, 0], [0, 0, 0, 1]], DIMS, "behind a larger one; expected"),
    ([1.0, 2.0], [5], DIMS, r"2 values, .* indices of shape \(1,\); expected"),
    ([1.0], [4, 5], DIMS, r"1 values, .* indices of shape \(2,\); expected"),
    ([], [4], DIMS, "0 values"),
    ([1.0], [[0, 0, 0]], DIMS, r"indices of shape \(1, 3\); expected \(1,\), or \(1, 4\)"),
    ([1.0], [[[0]]], DIMS, r"indices of shape \(1, 1, 1\)"),
    ([1.0], 0, DIMS, r"indices of shape \(\)"),
    ([1.0], [0], [1] * 17, "expected at most 16 extents"),
    ([1.0], [0], (2, -4, 3, 3), "extents of at least 0"),
    (
        [1.0],
        [0],
        (1 << 32, 1 << 32),
        "to 73786976294838206464 bytes .* expected at most 1073741824",
    ),
    ([1.0], [0], (1 << 16, 1 << 16, 1 << 16, 1 << 16), "expected at most 1073741824"),
    ([1.0], [0], (INT64_MOST,) * 16, "expected at most 1073741824"),
    ([1.0], [0], ((1 << 28) + 1,), "to 1073741828 bytes"),
    ([1.0], [0], (0, 4, 3, 3), "the index 0; expected one from 0 on, below 0"),
    ([], [], (0, INT64_MOST, INT64_MOST), "dims .* expected smaller extents"),
]


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(("numbers", "indices", "dims", "said"), HOSTILE)
def test_hostile_ones(
    numbers: Sequence[float], indices: Any, dims: Sequence[int], said: str, constant: bool
) -> None:
    held = stated(values(*numbers), np.array(indices, np.int64), dims)
    proto = given_out(held, constant=constant)
    refused(proto.SerializeToString(), f"(?s)'w' .*{said}")
    with pytest.raises(ModelError):
        lc.load(proto)


def changed(**fields: Any) -> SparseTensorProto:
    made = sparse("w", pruned(2, 4, 3, 3))
    for name, value in fields.items():
        if value is None:
            made.ClearField(name)
        else:
            getattr(made, name).CopyFrom(value)
    return made


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (changed(indices=None), "indices has the element type 0"),
        (changed(values=None), "has no name"),
        (changed(indices=numpy_helper.from_array(np.arange(9, dtype=np.int32))), "type int32"),
        (
            changed(indices=numpy_helper.from_array(np.ones(9, "f4"))),
            "type float32; expected int64",
        ),
        (changed(values=numpy_helper.from_array(np.ones((3, 3), "f4"), "w")), "values of rank 2"),
        (changed(values=numpy_helper.from_array(np.float32(1), "w")), "values of rank 0"),
        (changed(values=TensorProto(name="w", data_type=1, dims=[1 << 40])), "and data for 0"),
        (changed(indices=TensorProto(data_type=7, dims=[1 << 40])), "and data for 0"),
        (changed(indices=TensorProto(data_type=7, dims=[-1])), "of at least 0"),
        (changed(values=TensorProto(name="w", data_type=8, dims=[1])), "type string"),
        (changed(values=TensorProto(name="w", data_type=14, dims=[1])), "type complex64"),
    ],
)
def test_damaged_ones(held: SparseTensorProto, said: str) -> None:
    refused(filters(held), said)


def test_names_are_unique_among_all() -> None:
    proto = onnx.load_from_string(filters(sparse("w", pruned(2, 4, 3, 3))))
    proto.graph.initializer.append(numpy_helper.from_array(pruned(2, 4, 3, 3), "w"))
    refused(proto.SerializeToString(), "'w' has no name or is given twice")


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(-2, 40), max_size=5),
    st.lists(st.integers(-2, 6), max_size=4),
    st.integers(0, 5),
    st.booleans(),
)
def test_any_numbers(indices: list[int], dims: list[int], count: int, coo: bool) -> None:
    """What is taken, ONNX Runtime's rule of ascending indices kept, has each value in its place."""
    array = np.array(indices, np.int64)
    if coo and dims:
        array = np.resize(array, (len(indices), len(dims)))
    held = stated(values(*range(1, count + 1)), array, dims)
    try:
        found = read(given_out(held))
    except LeanConvError:
        return
    assert found.shape == tuple(dims)
    assert np.count_nonzero(found) == count
    np.testing.assert_array_equal(found[found != 0], np.arange(1, count + 1))


def test_agrees_with_the_interpreter() -> None:
    proto = sparsened(model([node("Conv", "x w", "c"), node("Add", "c b")], {"x": X.shape}, ["y"],
                            {"w": pruned(6, 4, 3, 3), "b": pruned(1, 6, 1, 1)}))  # fmt: skip
    agree(proto, {"x": X})
