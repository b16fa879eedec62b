"""Files that people give for ONNX models, recognised by content first and by name second.

Nothing is decoded: only magic numbers and a few texts at the beginning or the end are looked at.
"""

from __future__ import annotations

import codecs
from itertools import islice
from pathlib import Path

from leanconv.errors import InputError
from leanconv.records import dataclass

_NEAR = 4096  # bytes at the beginning that are looked at
_FAR = 1 << 16  # and at the end, where a zip file lists its members
_LETTERS = 4  # that are taken for text, if there is nothing else
_LISTED = 5  # files of a folder that a message names

_TORCH = "export the network: torch.onnx.export(network.eval(), (example,), 'model.onnx')"
_DOWNLOAD = "download it again, the file itself"
_UNPACK = "unpack it and give the .onnx file inside"
_ORIGINAL = "give the ONNX file that it was made from, or export one anew"
_ARRAYS = "give it as a sample, behind the model"
_PICTURE = "the model comes first, then pictures"
_WEIGHTS = "it holds weights but no network; export one from the framework that wrote it"
_TF2ONNX = "convert it: python -m tf2onnx.convert"


@dataclass(frozen=True)
class FileKind:
    """A kind of file, and what to do with it where an ONNX model is expected."""

    what: str
    mend: str

    @property
    def picture(self) -> bool:
        """True if the file is a picture."""
        return self.mend is _PICTURE

    @property
    def arrays(self) -> bool:
        """True if the file holds arrays of NumPy."""
        return self.mend is _ARRAYS


_KERAS = FileKind("a Keras model", f"{_TF2ONNX} --keras FILE --output model.onnx")
_TFLITE = FileKind("a TensorFlow Lite model", f"{_TF2ONNX} --tflite FILE --output model.onnx")
_OPENVINO = FileKind("an OpenVINO model", _ORIGINAL)

# Where magic bytes are, and what they say.
_MAGIC: tuple[tuple[int, bytes, FileKind], ...] = (
    (
        0,
        b"version https://git-lfs.github.com/spec/",
        FileKind("a Git LFS pointer", "fetch the file that it points to: git lfs pull"),
    ),
    (4, b"TFL3", _TFLITE),
    (4, b"ORTM", FileKind("a model in ONNX Runtime's ORT format", _ORIGINAL)),
    (0, b"\x89HDF\r\n\x1a\n", _KERAS),
    (0, b"7767517\n", FileKind("an ncnn .param file", _ORIGINAL)),
    (0, b"GGUF", FileKind("a GGUF file", _WEIGHTS)),
    (0, b"\x89PNG\r\n\x1a\n", FileKind("a PNG picture", _PICTURE)),
    (0, b"\xff\xd8\xff", FileKind("a JPEG picture", _PICTURE)),
    (0, b"GIF8", FileKind("a GIF picture", _PICTURE)),
    (8, b"WEBPVP8", FileKind("a WebP picture", _PICTURE)),
    (0, b"II*\0", FileKind("a TIFF picture", _PICTURE)),
    (0, b"MM\0*", FileKind("a TIFF picture", _PICTURE)),
    (0, b"%PDF-", FileKind("a PDF document", "give an ONNX file")),
    (0, b"\x93NUMPY", FileKind("a NumPy array", _ARRAYS)),
    (0, b"\x1f\x8b", FileKind("a gzip archive", "unpack it: gunzip FILE, or tar -xzf FILE")),
    (0, b"BZh", FileKind("a bzip2 archive", _UNPACK)),
    (0, b"\xfd7zXZ\0", FileKind("an xz archive", _UNPACK)),
    (0, b"\x28\xb5\x2f\xfd", FileKind("a Zstandard archive", _UNPACK)),
    (0, b"7z\xbc\xaf\x27\x1c", FileKind("a 7z archive", _UNPACK)),
    (0, b"Rar!\x1a\x07", FileKind("a RAR archive", _UNPACK)),
    (257, b"ustar", FileKind("a tar archive", _UNPACK)),
    (0, b"\x7fELF", FileKind("a program or library", "give an ONNX file, or see leanconv.open")),
    (0, b"MZ", FileKind("a program or library", "give an ONNX file")),
)
# Of zip files: what their members' names hold.
_MEMBERS: tuple[tuple[bytes, FileKind], ...] = (
    (b"constants.pkl", FileKind("a TorchScript archive", f"torch.jit.load it and {_TORCH}")),
    (b"data.pkl", FileKind("a PyTorch checkpoint", _TORCH)),
    (b".weights.h5", _KERAS),
    (b".npy", FileKind("a bundle of NumPy arrays", _ARRAYS)),
    (b".mlmodel", FileKind("a Core ML package", _ORIGINAL)),
)
# Of texts: how they begin, in lower case and behind blanks.
_TEXTS: tuple[tuple[bytes, FileKind], ...] = (
    (b"<!doctype html", FileKind("a web page", _DOWNLOAD)),
    (b"<html", FileKind("a web page", _DOWNLOAD)),
    (b"<net ", _OPENVINO),
    (b"<?xml", FileKind("an XML file", "give an ONNX file")),
    (b"{", FileKind("a JSON file", "give an ONNX file; a plan is given as plan=FILE")),
    (b"[net]", FileKind("a Darknet configuration", "export its network as ONNX")),
    (b"ir_version:", FileKind("an ONNX model as text", "onnx.save(onnx.load(FILE), 'model.onnx')")),
    (b"404: not found", FileKind("a server's answer that there is no such file", _DOWNLOAD)),
    (b"entry not found", FileKind("a server's answer that there is no such file", _DOWNLOAD)),
)
_TEXT = FileKind("a text file", "give an ONNX file")
_PICKLE = FileKind("a Python pickle, as older PyTorch writes checkpoints", _TORCH)
_SAFETENSORS = FileKind("a safetensors file", _WEIGHTS)
_SAVED_MODEL = FileKind(
    "a TensorFlow SavedModel", f"{_TF2ONNX} --saved-model FOLDER --output model.onnx"
)
_GRAPH_DEF = FileKind(
    "a TensorFlow graph",
    f"{_TF2ONNX} --graphdef FILE --inputs NAME:0 --outputs NAME:0 --output model.onnx",
)
_OUTSIDE = FileKind("what an ONNX model keeps outside of its file", "give the .onnx file beside it")
# What cannot be recognised by content: the ends of names.
_NAMES: tuple[tuple[tuple[str, ...], FileKind], ...] = (
    ((".pt", ".pth", ".ckpt", ".torchscript"), FileKind("a PyTorch checkpoint", _TORCH)),
    ((".tflite",), _TFLITE),
    (("saved_model.pb",), _SAVED_MODEL),
    ((".pb",), _GRAPH_DEF),
    ((".h5", ".hdf5", ".keras"), _KERAS),
    ((".onnx_data", ".onnx.data", ".data"), _OUTSIDE),
    ((".bin",), FileKind("a file of weights", _WEIGHTS)),
    ((".caffemodel", ".prototxt"), FileKind("a Caffe model", "convert it to ONNX")),
    ((".mlmodel",), FileKind("a Core ML model", _ORIGINAL)),
    ((".engine", ".plan", ".trt"), FileKind("a TensorRT engine", _ORIGINAL)),
    ((".pdmodel", ".pdiparams"), FileKind("a Paddle model", "convert it with paddle2onnx")),
    ((".mnn", ".param", ".om"), FileKind("a model in the format of another engine", _ORIGINAL)),
)


def file_kind(data: bytes | memoryview, name: str = "") -> FileKind | None:
    """The kind of a file that is no ONNX model.

    Args:
        data: all of its bytes, or as many from its beginning as are at hand.
        name: of the file, looked at where the content says nothing.

    Returns:
        The kind, None if it is not known.
    """
    head = bytes(data[:_NEAR])
    if not head:
        return FileKind("an empty file", _DOWNLOAD)
    return (
        _by_magic(head, bytes(data[-_FAR:]))
        or _by_text(head)
        or _by_structure(head, len(data))
        or next((kind for ends, kind in _NAMES if name.lower().endswith(ends)), None)
        or (_TEXT if _is_text(head) else None)
    )


def refuse_other(data: bytes | memoryview, name: str = "") -> None:
    """Refuse a file that is known to be no ONNX model, by its kind.

    Args:
        data, name: as of `file_kind`.

    Raises:
        InputError: the file is known to be no ONNX model.
    """
    kind = file_kind(data, name)
    if kind is not None:
        raise InputError(f"got {kind.what}; expected an ONNX model; {kind.mend}")


def _is_text(head: bytes) -> bool:
    """Return whether a file begins with some letters of UTF-8, of which the last may be cut."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return len(text) >= _LETTERS and all(c.isprintable() or c in "\n\r\t\f\ufeff" for c in text)


def _by_magic(head: bytes, tail: bytes) -> FileKind | None:
    if head.startswith(b"PK\x03\x04"):
        found = (kind for text, kind in _MEMBERS if text in head or text in tail)
        return next(found, FileKind("a zip archive", _UNPACK))
    for place, magic, kind in _MAGIC:
        if head.startswith(magic, place):
            return kind
    return None


def _by_text(head: bytes) -> FileKind | None:
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    for text, kind in _TEXTS:
        if start.startswith(text):
            return _OPENVINO if text == b"<?xml" and b"<net " in start else kind
    return None


def _by_structure(head: bytes, size: int) -> FileKind | None:
    if head[:1] == b"\x80" and head[1:2] in b"\2\3\4\5":
        return _PICKLE
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= max(size, 100_000_000):
        return _SAFETENSORS
    nodes = (b"\x12\x0bPlaceholder", b"\x12\x05Const", b"\x12\x0aVariableV2", b"\x12\x04NoOp")
    if head.startswith(b"\x08\x01\x12") and (b"serve" in head or any(n in head for n in nodes)):
        return _SAVED_MODEL
    if head.startswith(b"\x0a") and any(node in head for node in nodes):
        return _GRAPH_DEF
    return None


def folder_kind(folder: Path) -> str:
    """Say what a folder given for a model is, and what to give instead."""
    if (folder / "saved_model.pb").is_file():
        return f"{_SAVED_MODEL.what}; expected an ONNX model; {_SAVED_MODEL.mend}"
    found = sorted(path.name for path in islice(folder.glob("*.onnx"), _LISTED))
    inside = f"; give one of {', '.join(found)} in it" if found else ""
    return f"a folder; expected an ONNX file{inside}"
