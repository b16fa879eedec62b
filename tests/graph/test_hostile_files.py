"""Whatever stands in the bytes of a model file, it ends as an error, quickly, in little memory."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from leanconv.errors import InputError, LeanConvError, ModelError, UnsupportedError
from leanconv.graph.limits import Limits
from leanconv.graph.onnx_import import read_model
from support.hostile import MIB, bounded, held, network, node, refused, varint
from support.onnx_models import model, small_cnn

# -- the bytes of the file ---------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"\0", b"not a model", b"\x08\x08", b"\xff" * 100])
def test_no_model_at_all(data: bytes) -> None:
    refused(data, "expected")


def test_every_truncation() -> None:
    data = small_cnn().SerializeToString()
    for end in range(0, len(data), 37):
        with pytest.raises(LeanConvError):
            read_model(data[:end])


def test_a_length_beyond_the_file() -> None:
    refused(b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "truncated or damaged")


def test_an_endless_number() -> None:
    refused(b"\x08" + b"\x80" * 50, "over 10 bytes")


def test_groups_and_wrong_wire_types() -> None:
    refused(b"\x3b\x3c", "wire type 3")
    refused(b"\x38\x01", "wire type 0")


def test_a_graph_that_stands_twice() -> None:
    data = small_cnn().SerializeToString()
    refused(data + data, "occurs twice")


def test_a_file_of_empty_messages() -> None:
    """Two bytes a field: objects for all of them would take a hundred times the file."""
    field = b"\x0a\x00" * (4 * MIB)
    graph = b"\x42\x02\x10\x11\x3a" + varint(len(field)) + field
    with bounded(40, 64 * MIB), pytest.raises(ModelError, match="over 100000 entries 'node'"):
        read_model(graph)
    field = field.replace(b"\x0a", b"\x2a")
    graph = b"\x42\x02\x10\x11\x3a" + varint(len(field)) + field
    with bounded(40, 64 * MIB), pytest.raises(ModelError, match="over 200000 fields"):
        read_model(graph, Limits(fields=200_000))
    with bounded(2), pytest.raises(ModelError, match="over 1000 fields"):
        read_model(graph, Limits(fields=1000))


def test_nested_without_end() -> None:
    data = b""
    for _ in range(2000):
        graph = b"\x0a" + varint(len(data)) + data if data else b""
        attribute = b"\x32" + varint(len(graph)) + graph
        data = b"\x2a" + varint(len(attribute)) + attribute
    proto = b"\x42\x02\x10\x11\x3a"
    whole = b"\x0a" + varint(len(data)) + data
    refused(proto + varint(len(whole)) + whole, "no outputs")


def test_subgraphs_are_refused() -> None:
    inner = helper.make_graph([], "inner", [], [])
    refused(network([node("SequenceMap", "x", body=inner)]), "SequenceMap.*not supported")
    refused(network([node("Softmax", "x", axis=inner)]), "of kind graph; expected int")


def test_names_that_are_not_utf8() -> None:
    data = network([node("Relu", "x")])
    assert b"Relu" in data
    refused(data.replace(b"Relu", b"R\xfflu"), "not UTF-8")


def test_a_file_over_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "large.onnx"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with bounded(), pytest.raises(InputError, match="expected at most 2147483647"):
        read_model(path)
    with pytest.raises(ModelError, match="expected at most 10"):
        read_model(b"0" * 11, Limits(file_bytes=10))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes on this system")
def test_files_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    for path in (tmp_path / "pipe.onnx", tmp_path, Path(os.devnull), Path("a\0b")):
        with bounded(), pytest.raises(InputError, match="expected|cannot be read"):
            read_model(path)


# -- tensors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dims", "what"),
    [
        ([2**62, 4], "data for 4"),
        ([2**32, 2**32], "data for 4"),
        ([2**63 - 1] * 16, "data for 4"),
        ([1] * 17 + [4], "at most 16 extents"),
        ([-1, 4], "at least 0"),
        ([5], "data for 4"),
        ([], "data for 4"),
    ],
)
def test_dims_that_do_not_fit_the_data(dims: list[int], what: str) -> None:
    refused(held(dims, bytes(16)), what)


def test_data_of_the_wrong_length() -> None:
    refused(held([4], bytes(15)), "multiple of 4")
    refused(held([0, 2**62]), "expected smaller extents")
    refused(held([4], float_data=[1.0, 2.0]), "data for 0")


def test_data_types() -> None:
    for number, what in (
        (8, "string"),
        (14, "complex64"),
        (27, "float6e2m3"),
        (28, "float6e3m2"),
        (99, "type 99, which ONNX 1.23 does not have"),
    ):
        with bounded(), pytest.raises(UnsupportedError, match=what):
            read_model(held([4], bytes(16), data_type=number))
    for number in (21, 22, 23, 25, 26):  # packed: 4 elements take 1 or 2 bytes
        with bounded(), pytest.raises(ModelError, match="4 elements of .* and 16 bytes of data"):
            read_model(held([4], bytes(16), data_type=number))
    for number in (0, -1):
        with bounded(), pytest.raises(ModelError, match=f"the element type {number}; expected"):
            read_model(held([4], bytes(16), data_type=number))


@pytest.mark.parametrize(
    ("shape", "what"),
    [
        ((4, 4, 3, 3, 3), "of rank 5; expected rank 4"),
        ((4, 4, 3), "expected rank 4"),
        ((4,), "expected rank 4"),
        ((), "expected rank 4"),
        ((4, 3, 3, 3), "expected an input of 3 channels"),
        ((0, 4, 3, 3), "extents of at least 1"),
        ((4, 4, 0, 3), "extents of at least 1"),
        ((4, 4, 9, 9), "larger input"),
    ],
)
def test_weights_of_the_wrong_shape(shape: tuple[int, ...], what: str) -> None:
    for op in (
        ("Conv", "ConvTranspose") if "channels" not in what and "larger" not in what else ("Conv",)
    ):
        refused(network([node(op, "x w")], {"w": np.zeros(shape, "f4")}), what)


def test_inputs_of_the_wrong_rank() -> None:
    for shape in ((), (4,), (1, 4), (1,) * 6):
        for op, held_arrays in (
            ("Conv", {"w": np.zeros((4, 4, 3, 3), "f4")}),
            ("GlobalAveragePool", {}),
            ("MaxPool", {}),
        ):
            each = node(op, " ".join(["x", *held_arrays]), kernel_shape=[1, 1])
            if op == "GlobalAveragePool":
                each = node(op, "x")
            proto = model([each], {"x": shape}, ["y"], held_arrays)
            refused(proto.SerializeToString(), "rank|kernel_shape")


# -- external data -----------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "good.bin").write_bytes(bytes(576))
    (tmp_path / "secret.bin").write_bytes(bytes(576))
    return inside


def external(folder: Path, **entries: str) -> Path:
    proto = onnx.load_from_string(held([4, 4, 3, 3], data_location=TensorProto.EXTERNAL))
    proto.graph.initializer[0].ClearField("raw_data")
    for key, value in entries.items():
        proto.graph.initializer[0].external_data.add(key=key, value=value)
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_external_data_inside_is_read(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "link.bin").symlink_to(folder / "good.bin")
    for location in ("good.bin", "./good.bin", "sub/link.bin"):
        assert read_model(external(folder, location=location)).constants["w"].shape == (4, 4, 3, 3)


@pytest.mark.parametrize(
    "location",
    ["../secret.bin", "sub/../../secret.bin", "..\\secret.bin", "{}/secret.bin", "C:\\x", "",
     "\\\\host\\x", "a\0b", "x" * 10000, "missing.bin", ".", "/dev/zero", "good.bin/x"],
)  # fmt: skip
def test_external_data_outside(folder: Path, location: str) -> None:
    path = external(folder, location=location.format(folder.parent))
    with bounded(), pytest.raises(ModelError, match="external data"):
        read_model(path)


def test_external_data_behind_links(folder: Path) -> None:
    (folder / "link.bin").symlink_to(folder.parent / "secret.bin")
    (folder / "up").symlink_to(folder.parent)
    (folder / "loop.bin").symlink_to(folder / "loop.bin")
    os.mkfifo(folder / "pipe.bin")
    for location in ("link.bin", "up/secret.bin", "loop.bin", "pipe.bin"):
        with bounded(), pytest.raises(ModelError, match="external data|regular file|cannot"):
            read_model(external(folder, location=location))


@pytest.mark.parametrize(
    ("offset", "length", "what"),
    [
        ("0", "577", "range within its 576 bytes"),
        ("1", "576", "range within"),
        ("9223372036854775807", "576", "range within"),
        ("99999999999999999999", "576", "expected bytes"),
        ("-1", "576", "expected bytes"),
        ("0", "-576", "expected bytes"),
        ("zero", "576", "expected bytes"),
        ("0x10", "", "expected bytes"),
        ("576", "", "length 576; expected a range within"),
        ("577", "", "range within"),
        ("0", "4", "data for 1"),
    ],
)
def test_external_ranges(folder: Path, offset: str, length: str, what: str) -> None:
    with bounded(), pytest.raises(ModelError, match=what):
        read_model(external(folder, location="good.bin", offset=offset, length=length))


def test_external_data_of_a_model_in_memory(folder: Path) -> None:
    with pytest.raises(ModelError, match="given as bytes"):
        read_model(external(folder, location="good.bin").read_bytes())
