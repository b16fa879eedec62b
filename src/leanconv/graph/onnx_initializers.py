"""The initialisers of a graph of an ONNX file: its weights, by name."""

from __future__ import annotations

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph import onnx_schema as schema
from leanconv.graph.onnx_names import shown
from leanconv.graph.onnx_tensor import ExternalFiles, read_tensor, replaced_tensor, tensor_name
from leanconv.graph.ops.base import Array
from leanconv.graph.wire import Message, Reader


def initializers(graph: Message, reader: Reader) -> dict[str, memoryview | None]:
    """The bytes of all initialisers by name; None for one that is not dense.

    Raises:
        ModelError: one has no name, or two have the same.
    """
    result: dict[str, memoryview | None] = {}
    for each in graph["initializer"]:
        _name_once(result, tensor_name(each, reader), each)
    for each in graph["sparse_initializer"]:
        values = reader.message(each, schema.SPARSE, "sparse initializer").get("values", b"")
        _name_once(result, tensor_name(memoryview(values), reader), None)
    return result


def _name_once(held: dict[str, memoryview | None], name: str, data: memoryview | None) -> None:
    if not name or name in held:
        raise ModelError(
            f"initializer {shown(name)!r} has no name or is given twice; expected each once"
        )
    held[name] = data


def initializer(name: str, data: memoryview | None, reader: Reader, files: ExternalFiles) -> Array:
    """An initialiser that is needed.

    Raises:
        ModelError: it is damaged.
        UnsupportedError: it is sparse, or of an element type that is not taken.
    """
    if data is None:
        raise UnsupportedError(f"the initializer {shown(name)!r} is sparse; expected a dense one")
    given = files.given.arrays.get(name)
    if given is not None:
        return replaced_tensor(data, reader, given, f"initializer {shown(name)!r}")
    return read_tensor(data, reader, files, "initializer")[1]
