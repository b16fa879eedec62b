"""Weights given with a model: in memory, in a folder, in place of the file's own."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as real
import pytest
from onnx import helper

import leanconv as lc
import leanconv.onnxruntime as ours
from support.onnx_models import model

X = np.ones((1, 2), np.float32)
W = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.array([10, 20, 30], np.float32)
HELD = {"w": W, "b": B}
FOLDER = "session.model_external_initializers_file_folder_path"


def inside() -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["y"]),
    ]
    return model(nodes, {"x": ("N", 2)}, ["y"], HELD)


@pytest.fixture
def beside(tmp_path: Path) -> tuple[bytes, bytes]:
    """The model without its weights, and the file `m.bin` of these."""
    path = tmp_path / "first" / "m.onnx"
    path.parent.mkdir()
    options: dict[str, Any] = {"save_as_external_data": True, "size_threshold": 0}
    onnx.save(inside(), str(path), location="m.bin", **options)
    return path.read_bytes(), (path.parent / "m.bin").read_bytes()


def test_files_in_memory(beside: tuple[bytes, bytes]) -> None:
    proto, data = beside
    changing = bytearray(data)
    for held in (data, memoryview(data), changing):
        net = lc.load(proto, weights={"m.bin": held}, threads=1)
        np.testing.assert_array_equal(net(X), X @ W + B)
    net = lc.load(proto, weights={"m.bin": changing}, threads=1)
    changing[:] = bytes(len(changing))  # what was given may change
    np.testing.assert_array_equal(net(X), X @ W + B)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(net))(X), X @ W + B)


def test_arrays_by_name(beside: tuple[bytes, bytes]) -> None:
    """For initializers whose data lie elsewhere, and for others."""
    net = lc.load(beside[0], weights={"w": 2 * W, "b": B}, threads=1)
    np.testing.assert_array_equal(net(X), X @ (2 * W) + B)
    net = lc.load(beside[0], weights={"w": 2 * W, "m.bin": beside[1]}, threads=1)
    np.testing.assert_array_equal(net(X), X @ (2 * W) + B)
    net = lc.load(inside(), weights={"b": 3 * B}, threads=1)
    np.testing.assert_array_equal(net(X), X @ W + 3 * B)


def test_numbers_stay_numbers() -> None:
    """A row of the axis, not rows."""
    node = helper.make_node("Gather", ["x", "i"], ["y"], axis=1)
    proto = model([node], {"x": (1, 2)}, ["y"], {"i": np.array(0)})
    net = lc.load(proto, weights={"i": np.array(1)}, threads=1)
    np.testing.assert_array_equal(net(2 * X), [2])


def test_parts_of_files_without_a_length(beside: tuple[bytes, bytes], tmp_path: Path) -> None:
    """A tensor has as many bytes as its dims say, also where other ones follow; as ONNX Runtime."""
    proto = onnx.load_from_string(beside[0])
    for tensor, place in zip(proto.graph.initializer, (12, 0), strict=True):
        del tensor.external_data[:]
        tensor.external_data.add(key="location", value="./m.bin")
        tensor.external_data.add(key="offset", value=str(place))
    data = B.tobytes() + W.tobytes() + b"more"
    net = lc.load(proto, weights={"m.bin": data}, threads=1)
    np.testing.assert_array_equal(net(X), X @ W + B)
    (tmp_path / "m.bin").write_bytes(data)
    net = lc.load(proto, weights=tmp_path, threads=1)
    np.testing.assert_array_equal(net(X), X @ W + B)
    with pytest.raises(lc.ModelError, match="within its 35 bytes"):
        lc.load(proto, weights={"m.bin": data[:35]})


def test_a_folder(beside: tuple[bytes, bytes], tmp_path: Path) -> None:
    for folder in (tmp_path / "first", str(tmp_path / "first")):
        np.testing.assert_array_equal(lc.load(beside[0], weights=folder, threads=1)(X), X @ W + B)


@pytest.mark.parametrize("location", ["../first/m.bin", "link.bin", "/etc/hostname", "a/../m.bin"])
def test_files_outside_of_a_given_folder_are_refused(
    beside: tuple[bytes, bytes], tmp_path: Path, location: str
) -> None:
    """The model names the files, so they lie in the folder, links resolved."""
    folder = tmp_path / "second"
    folder.mkdir()
    (folder / "m.bin").write_bytes(beside[1])
    (folder / "link.bin").symlink_to(tmp_path / "first" / "m.bin")
    proto = onnx.load_from_string(beside[0])
    for tensor in proto.graph.initializer:
        tensor.external_data[0].value = location
    with pytest.raises(lc.ModelError, match="outside"):
        lc.load(proto, weights=folder)


@pytest.mark.parametrize(
    ("weights", "error", "said"),
    [
        ({"n.bin": b""}, lc.ModelError, "or weights="),
        ({"m.bin": b"short"}, lc.ModelError, "within its 5 bytes"),
        ({"w": W, "b": B, "q": B}, lc.ModelError, "no initializer 'q'"),
        ({"w": W.T, "b": B}, lc.ModelError, r"float32\[2x3\]; expected that .* float32\[3x2\]"),
        ({"w": W.astype(np.float64), "b": B}, lc.ModelError, r"float64\[2x3\]"),
        ({"w": [1.0]}, lc.SpecError, "expected a folder, or a mapping"),
        (7, lc.SpecError, "weights is 7; expected a folder, or a mapping"),
        ("no such folder", lc.InputError, "no folder"),
    ],
)
def test_what_does_not_fit_is_refused(
    beside: tuple[bytes, bytes], weights: Any, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        lc.load(beside[0], weights=weights)


def sessions_options(module: Any, how: str, folder: Path, data: bytes) -> tuple[Any, list[Any]]:
    """Options of a session, and what has to live as long as it does."""
    options, value = module.SessionOptions(), module.OrtValue.ortvalue_from_numpy
    if how == "files":
        options.add_external_initializers_from_files_in_memory(["m.bin"], [data], [len(data)])
    if how == "folder":
        options.add_session_config_entry(FOLDER, str(folder))
    if how == "arrays":
        options.add_external_initializers(["w", "b"], [value(2 * W), value(B)])
    kept = [value(3 * B), value(B)]
    if how == "shared":
        options.add_session_config_entry(FOLDER, str(folder))
        options.add_initializer("unknown", kept[1])
    if how == "inside":
        options.add_initializer("b", kept[0])
    return options, kept


@pytest.mark.parametrize("how", ["files", "folder", "arrays", "shared", "inside"])
def test_sessions_are_given_them_as_onnxruntimes(
    beside: tuple[bytes, bytes], tmp_path: Path, how: str
) -> None:
    given = inside().SerializeToString() if how == "inside" else beside[0]
    results = []
    for module in (ours, real):
        options, kept = sessions_options(module, how, tmp_path / "first", beside[1])
        session = module.InferenceSession(given, options, providers=["CPUExecutionProvider"])
        results += session.run(None, {"x": X})
        if module is ours:
            assert session.network is not None
        del session, kept
    np.testing.assert_array_equal(*results)


def test_onnxruntime_is_given_them_for_what_is_lacking(
    beside: tuple[bytes, bytes], tmp_path: Path
) -> None:
    proto = onnx.load_from_string(beside[0])
    proto.graph.node[1].op_type, proto.graph.node[1].domain = "BiasGelu", "com.microsoft"
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    for how in ("files", "folder", "arrays"):
        options, _ = sessions_options(ours, how, tmp_path / "first", beside[1])
        session = ours.InferenceSession(proto.SerializeToString(), options)
        assert session.network is None
        factor = 2 if how == "arrays" else 1
        np.testing.assert_allclose(*session.run(None, {"x": X}), factor * (X @ W) + B)


def test_names_and_contents_are_pairs() -> None:
    options = ours.SessionOptions()
    with pytest.raises(RuntimeError, match="2 names and 1 values"):
        options.add_external_initializers(["a", "b"], [B])
    with pytest.raises(RuntimeError, match="1 names and 2 values"):
        options.add_external_initializers_from_files_in_memory(["a"], [b"", b""], [0])
    options.add_external_initializers_from_files_in_memory(["a"], [b""], [0])
    with pytest.raises(RuntimeError, match="given twice"):
        options.add_external_initializers_from_files_in_memory(["a"], [b""], [0])
