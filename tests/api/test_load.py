"""`leanconv.load`: its sources and options, and files that are refused."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import leanconv as lc
from leanconv.errors import (
    InputError,
    LeanConvError,
    ModelError,
    SpecError,
    UnsupportedError,
)
from leanconv.graph.limits import Limits
from leanconv.graph.onnx_import import read_model
from leanconv.planner import lowering
from leanconv.types import FLOAT64
from support.onnx_models import model, small_cnn

IMAGE = np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype("f4")


def node(op: str, inputs: str, outputs: str = "y", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(" "), outputs.split(), **attributes)


# -- what is loaded ----------------------------------------------------------------------------


def test_a_path_bytes_and_a_proto_are_one_network(tmp_path: Path) -> None:
    proto = small_cnn()
    file = tmp_path / "m.onnx"
    file.write_bytes(proto.SerializeToString())
    sources: list[Any] = [file, str(file), file.read_bytes(), bytearray(file.read_bytes()), proto]
    answers = [lc.load(source, threads=1)(IMAGE) for source in sources]
    assert all(np.array_equal(answer, answers[0]) for answer in answers)


@pytest.mark.parametrize("source", [None, 7, ["m.onnx"], np.zeros(3)])
def test_what_is_no_model_is_refused(source: Any) -> None:
    with pytest.raises(InputError, match="expected a path, the bytes of an ONNX file"):
        lc.load(source)


def test_a_proto_too_large_for_protobuf_says_how_to_save_it() -> None:
    class Large:
        def SerializeToString(self) -> bytes:  # noqa: N802
            raise ValueError("exceeds maximum protobuf size of 2GB: 2200000000")

    with pytest.raises(ModelError, match="2GB.*save_as_external_data=True"):
        lc.load(Large())


@pytest.mark.parametrize("name", ["missing.onnx", "folder", "empty.onnx", "text.onnx", "cut.onnx"])
def test_files_that_cannot_be_used_name_themselves(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.onnx").write_bytes(b"")
    (tmp_path / "text.onnx").write_text("These are not the weights you are looking for.\n" * 50)
    (tmp_path / "cut.onnx").write_bytes(small_cnn().SerializeToString()[:-100])
    with pytest.raises(LeanConvError, match=name):
        lc.load(tmp_path / name)


def test_metadata() -> None:
    proto = small_cnn()
    assert lc.load(proto).metadata == {}
    helper.set_model_props(proto, {"labels": '["ä", "b"]', "empty": ""})
    network = lc.load(proto)
    assert network.metadata == {"labels": '["ä", "b"]', "empty": ""}
    network.metadata["labels"] = "changed"
    assert network.metadata["labels"] == '["ä", "b"]'


def test_metadata_is_bounded() -> None:
    proto = small_cnn()
    helper.set_model_props(proto, {str(i): "x" * 100 for i in range(20)})
    data = proto.SerializeToString()
    with pytest.raises(ModelError, match="over 10 entries 'metadata_props'"):
        read_model(data, Limits(metadata=10))
    with pytest.raises(ModelError, match="metadata takes .* bytes; expected at most 1000"):
        read_model(data, Limits(metadata_bytes=1000))
    bad = data + b"\x72\x04\x0a\x02\xff\xfe"  # a key that is not UTF-8
    with pytest.raises(ModelError, match="not UTF-8"):
        read_model(bad)


def test_dtype_is_checked_at_load() -> None:
    with pytest.raises(InputError, match="expected float32 or float64"):
        lc.load(small_cnn(), dtype="int8")
    double = model([node("Relu", "x")], {"x": ("N", "C")}, ["y"], elem_type=onnx.TensorProto.DOUBLE)
    with pytest.raises(UnsupportedError, match="lose precision"):
        lc.load(double, dtype="float32")


@pytest.mark.parametrize(
    "options", [{"threads": 0}, {"max_error": 0.0}, {"memory_limit": "12 parsecs"}]
)
def test_options_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="expected"):
        lc.load(small_cnn(), **options)


# -- refused at load ---------------------------------------------------------------------------


def test_outputs_without_elements_are_given() -> None:
    empty = lc.load(
        model([node("Relu", "c")], {"x": ("N", 4)}, ["y"], {"c": np.zeros((0, 2), "f4")})
    )
    assert empty(np.zeros((3, 4), "f4")).shape == (0, 2)
    slices = {"starts": np.array([2]), "ends": np.array([2]), "axes": np.array([1])}
    proto = model(
        [node("Slice", "x starts ends axes", "e"), node("Relu", "e")],
        {"x": (1, 4, 8, 8)},
        ["y"],
        slices,
    )
    assert lc.load(proto)(np.zeros((1, 4, 8, 8), "f4")).shape == (1, 0, 8, 8)


@pytest.mark.parametrize(
    "options",
    [{}, {"memory_limit": 1 << 20}, {"reproducible": True}, {"max_error": 1e-3}, {"tune": True}],
)
def test_no_images_give_no_images(options: dict[str, Any], tmp_path: Path) -> None:
    network = lc.load(small_cnn(), **options)
    wanted = network(np.ones((2, 3, 16, 16), "f4")).shape
    empty = network(np.zeros((0, 3, 16, 16), "f4"))
    assert (empty.shape, empty.dtype) == ((0, *wanted[1:]), np.float32)
    assert network.report()["memory_bytes"] == network.plan.memory_bytes == 0
    assert len(network.profile(np.zeros((0, 3, 16, 16), "f4"))) == len(network.plan.steps)
    network.plan.save(tmp_path / "plan.json")
    if "tune" not in options:
        again = lc.load(small_cnn(), plan=tmp_path / "plan.json")
        assert again(np.zeros((0, 3, 16, 16), "f4")).shape == empty.shape


def test_what_is_computed_from_no_elements_is_refused() -> None:
    network = lc.load(model([node("GlobalAveragePool", "x")], {"x": ("N", 4, "H", "W")}, ["y"]))
    assert network(np.zeros((0, 4, 8, 8), "f4")).shape == (0, 4, 1, 1)
    with pytest.raises(UnsupportedError, match="from float32\\[1x4x0x8\\], which has no elements"):
        network(np.zeros((1, 4, 0, 8), "f4"))


def test_batch_norms_that_would_explode_are_refused() -> None:
    """Each reads the same few vectors in another order: folded, every one is new."""
    channels, count = 2**19, 40
    rng = np.random.default_rng(0)
    held = {f"p{i}": rng.uniform(1, 2, channels).astype("f4") for i in range(4)}
    nodes, last = [], "x"
    for i in range(count):
        order = " ".join(f"p{(i + k * (1 + i % 3)) % 4}" for k in range(4))
        nodes.append(
            node("BatchNormalization", f"{last} {order}", f"b{i}", epsilon=float(1 + i) / 100)
        )
        nodes.append(node("Sigmoid", f"b{i}", f"r{i}"))
        last = f"r{i}"
    proto = model(nodes, {"x": (1, channels, 1, 1)}, [last], held)
    with pytest.raises(UnsupportedError, match="BatchNormalization.*cannot be folded"):
        lc.load(proto)


def test_an_open_batch_is_tried_at_load() -> None:
    """Whether a Dropout trains is known when the node is bound."""
    proto = model([node("Dropout", "x  t")], {"x": ("N", 4, 2, 2)}, ["y"], {"t": np.array(True)})
    with pytest.raises(UnsupportedError, match="Dropout"):
        lc.load(proto)


def test_a_layer_that_is_not_there_is_refused_at_load() -> None:
    """Also where shapes are open: the nearest name is said."""
    proto = small_cnn()
    name = next(each.name for each in proto.graph.node if each.op_type == "Conv") or "Conv_0"
    assert lc.load(proto, algorithms={name: "direct"})
    with pytest.raises(SpecError, match=rf"names '{name}x', which is no .*mean '{name}'\?"):
        lc.load(proto, algorithms={name + "x": "direct"})


def test_a_network_for_another_batch_than_one_still_loads() -> None:
    proto = model([node("Reshape", "x s")], {"x": ("N", 4)}, ["y"], {"s": np.array([2, 2, 4])})
    network = lc.load(proto)
    x = np.arange(16, dtype="f4").reshape(4, 4)
    assert np.array_equal(network(x), x.reshape(2, 2, 4))
    with pytest.raises(ModelError, match="Reshape"):
        network(x[:1])


def test_weights_beside_the_file(tmp_path: Path) -> None:
    """External data beside the file is found from a path, and refused for bytes."""
    proto = small_cnn()
    file = tmp_path / "m.onnx"
    onnx.save(proto, file, save_as_external_data=True, location="w.bin", size_threshold=0)
    assert np.array_equal(lc.load(file)(IMAGE), lc.load(small_cnn())(IMAGE))
    with pytest.raises(LeanConvError, match="external"):
        lc.load(file.read_bytes())


# -- small files that ask for much -------------------------------------------------------------


def test_a_transposed_convolution_of_endless_phases() -> None:
    proto = model(
        [node("ConvTranspose", "x w", strides=[300, 300])],
        {"x": (1, 1, 2, 2)},
        ["y"],
        {"w": np.ones((1, 1, 3, 3), "f4")},
    )
    expected = np.zeros((1, 1, 303, 303), "f4")
    for row, column in itertools.product((0, 300), repeat=2):
        expected[..., row : row + 3, column : column + 3] = 1
    assert np.array_equal(lc.load(proto)(np.ones((1, 1, 2, 2), "f4")), expected)
    with pytest.raises(UnsupportedError, match="90000 phases"):
        lc.load(proto, algorithms={"ConvTranspose_0": "phases"})


def test_a_chain_of_too_many_nodes() -> None:
    names = ["x", *(f"v{i}" for i in range(5000))]
    nodes = [node("Softmax", a, b) for a, b in itertools.pairwise(names)]
    with pytest.raises(UnsupportedError, match="calls of kernels"):
        lc.load(model(nodes, {"x": (1, 2, 3, 3)}, [names[-1]]))


def test_one_weight_that_every_node_reads_is_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering, "_PACKED_BYTES", 2**16)
    names = ["x", *(f"v{i}" for i in range(40))]
    nodes = [node("Conv", f"{a} w", b) for a, b in itertools.pairwise(names)]
    held = {"w": np.ones((64, 64, 1, 1), "f4")}
    once, every = (
        lc.load(model(some, {"x": (1, 64, 1, 1)}, [some[-1].output[0]], held)).plan
        for some in (nodes[:1], nodes)
    )
    assert every.weight_bytes == once.weight_bytes > 0


def test_weights_that_grow_where_they_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering, "_PACKED_BYTES", 0)
    monkeypatch.setattr(lowering, "_PACKED_FACTOR", 1)
    held = {"w": np.ones((64, 64, 3, 3), "f4")}
    proto = model([node("Conv", "x w", "y")], {"x": (1, 64, 34, 34)}, ["y"], held)
    with pytest.raises(UnsupportedError, match="packed weights"):
        lc.load(proto, algorithms={"Conv_0": "winograd:m=4"})


# -- small conveniences ---------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [np.float64, np.dtype("float64"), "float64"])
def test_dtypes_as_numpy_has_them(dtype: Any) -> None:
    network = lc.load(small_cnn(), dtype=dtype)
    assert network.inputs[0].dtype == FLOAT64
    with pytest.raises(InputError, match="dtype is 'int8'; expected float32 or float64"):
        lc.load(small_cnn(), dtype=np.int8)


def test_a_file_of_another_kind() -> None:
    with pytest.raises(InputError, match="got a text file; expected an ONNX model"):
        lc.load(b"import numpy as np")
    with pytest.raises(ModelError, match="is it an ONNX file"):
        lc.load(b"\x00\x01 no format that anybody knows")
