"""Files of other formats, given for an ONNX model, are named, with what to do about them."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

import leanconv as lc
from leanconv.errors import InputError, ModelError
from leanconv.graph.file_kinds import file_kind
from leanconv.graph.limits import Limits
from leanconv.graph.onnx_description import describe
from leanconv.graph.onnx_import import read_model
from leanconv.quantizer.float_network import read_graph
from support.hostile import bounded
from support.onnx_models import small_cnn


def zipped(*members: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for member in members:
            archive.writestr(member, b"\0" * 100)
    return file.getvalue()


def safetensors() -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(4)


PNG = b"\x89PNG\r\n\x1a\n" + bytes(30)
PICKLED = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 102869449\n"
GRAPH_DEF = b"\x0a\x1c\x0a\x05input\x12\x0bPlaceholder*\x0e\x0a\x05dtype\x12\x020\x01"
SAVED_MODEL = b"\x08\x01\x12\x80\x01\x0a\x20*\x07\x12\x05serve" + bytes(90)
NOT_ONNX: list[tuple[str, bytes, str]] = [
    ("net.pt", zipped("net/data.pkl", "net/data/0"), "PyTorch checkpoint.*torch.onnx.export"),
    ("net.pt", zipped("net/data.pkl", "net/constants.pkl"), "TorchScript.*torch.onnx.export"),
    ("net.pth", PICKLED, "pickle.*torch.onnx.export"),
    ("net.onnx", zipped("net/data.pkl"), "PyTorch checkpoint"),
    ("net.tflite", b"\x1c\0\0\0TFL3" + bytes(60), "TensorFlow Lite.*tf2onnx"),
    ("frozen.pb", GRAPH_DEF, "TensorFlow graph.*tf2onnx.convert --graphdef"),
    ("saved_model.pb", SAVED_MODEL, "SavedModel.*--saved-model"),
    ("net.h5", b"\x89HDF\r\n\x1a\n" + bytes(60), "Keras.*tf2onnx"),
    ("net.keras", zipped("config.json", "model.weights.h5"), "Keras"),
    ("net.safetensors", safetensors(), "safetensors.*no network"),
    ("net.xml", b'<?xml version="1.0"?>\n<net name="n" version="11">', "OpenVINO"),
    ("net.xml", b'<?xml version="1.0"?>\n<html>', "XML file"),
    ("net.param", b"7767517\n75 83\nInput data 0 1 data", "ncnn"),
    ("net.ort", b"\x20\0\0\0ORTM" + bytes(60), "ORT format"),
    ("net.onnx", POINTER, "Git LFS pointer.*git lfs pull"),
    ("net.onnx", b"\n<!DOCTYPE html>\n<html><body>sign in", "web page.*download"),
    ("net.onnx", b"Entry not found", "no such file.*download"),
    ("net.onnx", b"", "empty file.*download"),
    ("net.onnx.gz", gzip.compress(small_cnn().SerializeToString()), "gzip.*gunzip"),
    ("net.zip", zipped("net.onnx"), "zip archive.*unpack"),
    ("photo.png", PNG, "PNG picture.*model comes first"),
    ("photo.jpg", b"\xff\xd8\xff\xe0" + bytes(60), "JPEG picture"),
    ("x.npz", zipped("x.npy"), "NumPy arrays"),
    ("plan.json", b'{"format": 1}', "JSON.*plan=FILE"),
    ("net.onnx", b'ir_version: 8\ngraph {', "as text.*onnx.save"),
    ("net.onnx_data", np.ones(99, "f4").tobytes(), "outside of its file.*the .onnx file beside it"),
    ("net.caffemodel", b"\x0a\x04name" + bytes(60), "Caffe"),
    ("net.engine", b"\xff" * 60, "TensorRT"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "data", "what"), NOT_ONNX, ids=[w for _, _, w in NOT_ONNX])
def test_other_formats_are_named(tmp_path: Path, name: str, data: bytes, what: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with bounded(), pytest.raises(InputError, match=f"{name}.*got .*{what}") as caught:
        lc.load(path)
    assert "expected an ONNX model; " in str(caught.value)
    if what not in ("TensorRT", "Caffe") and "outside" not in what:  # told by the name alone
        with bounded(), pytest.raises(InputError, match=what):
            lc.load(data)


def test_what_is_no_known_format_stays_damaged(tmp_path: Path) -> None:
    whole = small_cnn().SerializeToString()
    for data in (b"\0" * 40, whole[:-100], b"\xff" + whole):
        (tmp_path / "net.onnx").write_bytes(data)
        with pytest.raises(ModelError):
            lc.load(tmp_path / "net.onnx")
        assert file_kind(data) is None


def test_a_model_is_read_whatever_it_is_called(tmp_path: Path) -> None:
    for name in ("net.pb", "net.pt", "net.bin", "net"):
        (tmp_path / name).write_bytes(small_cnn().SerializeToString())
        assert read_model(tmp_path / name).inputs[0].name == "x"


def test_a_large_file_of_another_format_is_named_too(tmp_path: Path) -> None:
    (tmp_path / "net.pt").write_bytes(PICKLED + bytes(100))
    with pytest.raises(InputError, match="got a Python pickle"):
        read_model(tmp_path / "net.pt", Limits(file_bytes=10))


def test_folders_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder; expected an ONNX file$"):
        lc.load(tmp_path)
    (tmp_path / "net.onnx").touch()
    with pytest.raises(InputError, match=r"a folder.*give one of net\.onnx in it"):
        lc.load(tmp_path)
    (tmp_path / "saved_model.pb").touch()
    with pytest.raises(InputError, match="SavedModel.*--saved-model"):
        lc.load(tmp_path)


def test_a_network_of_torch_is_to_be_exported() -> None:
    class Module:
        def state_dict(self) -> dict[str, int]:
            return {}

    with pytest.raises(InputError, match="model is Module; expected .*torch.onnx.export"):
        lc.load(Module())


@pytest.mark.parametrize("text", ["no model at all\n", "import onnx\n", "# Größe\n" + 2000 * "äß€"])
def test_texts_are_called_texts(text: str) -> None:
    with pytest.raises(InputError, match="got a text file; expected an ONNX model"):
        read_model(text.encode())
    with pytest.raises(InputError, match="got a text file; expected an ONNX model"):
        describe(text.encode())  # as `leanconv.onnxruntime` reads it
    with pytest.raises(InputError, match="got a text file; expected an ONNX model"):
        read_graph(text.encode())  # as `quantize` does


@pytest.mark.parametrize("data", [b"\x00text", b"text\x01", b"te\xffxt", b"abc"])
def test_other_bytes_are_no_text(data: bytes) -> None:
    assert file_kind(data) is None
