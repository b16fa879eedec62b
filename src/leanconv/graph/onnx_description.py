"""An ONNX file's description: who wrote it, its inputs and outputs, in its own words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from leanconv.errors import InputError, LeanConvError, ModelError
from leanconv.graph import onnx_schema as schema
from leanconv.graph.file_kinds import refuse_other
from leanconv.graph.limits import Limits
from leanconv.graph.onnx_initializers import tensor_name, values_of
from leanconv.graph.onnx_tensor import open_view
from leanconv.graph.ops.base import MAX_RANK
from leanconv.graph.wire import Message, Reader
from leanconv.records import dataclass
from leanconv.types import DType

_NOTHING = memoryview(b"")


@dataclass(frozen=True)
class Port:
    """An input or output as the file declares it; nothing of it is checked.

    Attributes:
        name: of the value.
        dtype: of its elements; for those of a type that leanconv has not, ONNX's name of that
            type; `""` where the file says none or it is no tensor.
        shape: numbers, names of extents that vary, None for those without a name; None where the
            file does not fix the rank.
    """

    name: str
    dtype: DType | str
    shape: tuple[int | str | None, ...] | None


@dataclass(frozen=True)
class Description:
    """A file's metadata, inputs and outputs.

    Attributes:
        producer_name, domain, version, text: of the model; `text` is its `doc_string`.
        graph_name, graph_text: of its graph.
        metadata: its key-value pairs.
        inputs: the inputs that no initializer defines, in the file's order, read or not.
        outputs: in the file's order.
        weights: names of the initializers.
    """

    producer_name: str
    domain: str
    version: int
    text: str
    graph_name: str
    graph_text: str
    metadata: dict[str, str]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    weights: frozenset[str]


def describe(source: Path | bytes, limits: Limits | None = None) -> Description:
    """Read a file's description, and nothing else of it.

    Raises:
        InputError: the file cannot be read.
        ModelError: the file is no ONNX file, or a damaged one.
    """
    limits = limits or Limits()
    data = memoryview(source) if isinstance(source, bytes) else open_view(source, InputError)
    reader = Reader(limits.fields)
    most = {"metadata_props": limits.metadata, "node": limits.nodes}
    model = outermost(reader, data, "" if isinstance(source, bytes) else source.name, most)
    graph = reader.message(model["graph"], schema.GRAPH, "GraphProto", most)
    names = [tensor_name(each, reader) for each in graph["initializer"]]
    names += [values_of(each, reader).get("name", "") for each in graph["sparse_initializer"]]
    weights = frozenset(names)
    inputs = (declared_port(each, reader) for each in graph["input"])
    return Description(
        producer_name=model.get("producer_name", ""),
        domain=model.get("domain", ""),
        version=model.get("model_version", 0),
        text=model.get("doc_string", ""),
        graph_name=graph.get("name", ""),
        graph_text=graph.get("doc_string", ""),
        metadata=metadata(reader, model, limits),
        inputs=tuple(each for each in inputs if each.name not in weights),
        outputs=tuple(declared_port(each, reader) for each in graph["output"]),
        weights=weights,
    )


def outermost(reader: Reader, data: memoryview, name: str, most: Mapping[str, int]) -> Message:
    """The outermost message of a model file, which holds a graph.

    Args:
        reader: of the file.
        data: all of its bytes.
        name: of the file, `""` if it has none.
        most: of repeated fields.

    Raises:
        InputError: the file is of another format that is known.
        ModelError: the file is no ONNX file, or a damaged one.
    """
    try:
        model = reader.message(data, schema.MODEL, "ModelProto", most)
        if "graph" not in model:
            raise ModelError("the file holds no graph; expected an ONNX model")
    except ModelError as error:
        refuse_other(data, name)
        raise ModelError(f"{error}; is it an ONNX file?") from error
    return model


def metadata(reader: Reader, model: Message, limits: Limits) -> dict[str, str]:
    """The file's own key-value pairs; of a key that is given twice, the last.

    Raises:
        ModelError: metadata take more bytes than the limits allow.
    """
    held = sum(len(each) for each in model["metadata_props"])
    if held > limits.metadata_bytes:
        raise ModelError(
            f"the metadata takes {held} bytes; expected at most {limits.metadata_bytes}; "
            "raise the limit `metadata_bytes` if you trust the file"
        )
    entries = [reader.message(e, schema.ENTRY, "metadata") for e in model["metadata_props"]]
    return {entry.get("key", ""): entry.get("value", "") for entry in entries}


def declared_port(data: memoryview, reader: Reader) -> Port:
    """Read the name, type and shape of a ValueInfoProto."""
    value = reader.message(data, schema.VALUE, "input")
    name = value.get("name", "")
    try:
        kind = reader.message(value.get("type", _NOTHING), schema.TYPE, "input")
        tensor = reader.message(kind.get("tensor_type", _NOTHING), schema.TENSOR_TYPE, "input")
        number = tensor.get("elem_type", 0)
        dtype = schema.DTYPES.get(number) or schema.OTHER_DTYPES.get(number, "")
        return Port(name, dtype, _shape(tensor, reader))
    except LeanConvError:  # what is declared need not be sound: nothing is computed from it
        return Port(name, "", None)


def _shape(tensor: Message, reader: Reader) -> tuple[int | str | None, ...] | None:
    if "shape" not in tensor:
        return None
    extents = reader.message(tensor["shape"], schema.SHAPE, "input")["dim"]
    if len(extents) > MAX_RANK:
        return None
    return tuple(_extent(reader.message(e, schema.DIMENSION, "input")) for e in extents)


def _extent(extent: Message) -> int | str | None:
    if "dim_value" in extent:
        return int(extent["dim_value"]) if extent["dim_value"] >= 0 else None
    return extent.get("dim_param") or None
