"""The contents of an ONNX file: messages decoded, of what the outputs need.

What flows between nodes is checked as far as that needs no shapes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType

from leanconv.errors import LeanConvError, ModelError, UnsupportedError, shown
from leanconv.graph import onnx_schema as schema
from leanconv.graph.convert import FIRST_OPSET, LAST_OPSET, RULES, in_parts
from leanconv.graph.file_graph import DOMAINS, FileNode
from leanconv.graph.limits import Limits
from leanconv.graph.network_inputs import is_small
from leanconv.graph.onnx_description import metadata, outermost
from leanconv.graph.onnx_flow import Subgraphs, check_operations, flowing
from leanconv.graph.onnx_functions import Functions
from leanconv.graph.onnx_initializers import initializer, initializers
from leanconv.graph.onnx_nodes import decoded, raw_nodes
from leanconv.graph.onnx_tensor import ExternalFiles, dtype_of_number
from leanconv.graph.ops.base import MAX_RANK, Array
from leanconv.graph.wire import Message, Reader
from leanconv.records import dataclass
from leanconv.types import DType

Extents = tuple[int | str | None, ...]
# What exporters write for an extent that they know nothing of, where another extent of the same
# name is another number: Keras and tf2onnx `None`, `unk__12`, Paddle `-1`, `DynamicDimension.0`,
# `p2o.DynamicDimension.0`, others `?`, `*`, `dynamic`. It says nothing about an extent but that it
# is open, so two of a name need not be equal.
_NAMELESS = re.compile(
    r"[\W_]*|[-+]?\d+|(p2o\.)?(dynamic|dyn|unknown|unk|undefined|undef|any|none|null|nan|auto)"
    r"([-_. ]?(dim|dims|dimension|axis|axes|size|shape))?([-_.]*\d+)?",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class ModelInput:
    """An input as the file declares it.

    Attributes:
        name: the input's name.
        dtype: of the arrays that are given.
        shape: numbers, names of symbolic extents, None where unknown; None for unknown rank.
    """

    name: str
    dtype: DType
    shape: tuple[int | str | None, ...] | None

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        """The shape when all of it is numbers, otherwise None."""
        if self.shape is None or not all(isinstance(extent, int) for extent in self.shape):
            return None
        return tuple(int(extent) for extent in self.shape if isinstance(extent, int))


@dataclass(frozen=True, eq=False)
class FileModel:
    """The contents of a file, as far as the importer reads them.

    Attributes:
        inputs: the inputs that no initializer defines.
        outputs: names of what the user gets.
        output_shapes, output_dtypes: as the file declares them, unchecked; None where it
            does not.
        opset: the version of ONNX's default operations.
        nodes: the nodes that the outputs need, in an order in which they can run.
        constants: the file's weights, views of it where possible.
        metadata: the file's own key-value pairs.
        spread_bytes: of what the file has as sparse tensors, where it is dense.
    """

    inputs: tuple[ModelInput, ...]
    outputs: tuple[str, ...]
    output_shapes: tuple[Extents | None, ...]
    output_dtypes: tuple[DType | None, ...]
    opset: int
    nodes: tuple[FileNode, ...]
    constants: Mapping[str, Array]
    metadata: Mapping[str, str]
    spread_bytes: int


def read_file(data: memoryview, files: ExternalFiles, limits: Limits, name: str = "") -> FileModel:
    """Decode a model file; `name` is the file's, if it has one.

    Raises:
        InputError: the file is of another format that is known.
        ModelError: the bytes are not a sound ONNX file, or exceed the limits.
        UnsupportedError: an operation, opset or element type that is not taken.
    """
    reader = Reader(limits.fields, limits.filled_bytes)
    most = {"metadata_props": limits.metadata}
    model = outermost(reader, data, name, most)
    opset = _opset(reader, model)
    pairs = metadata(reader, model, limits)
    most = {"node": limits.nodes}
    graph = reader.message(model["graph"], schema.GRAPH, "GraphProto", most)
    tensors = initializers(graph, reader)
    unknown = next((each for each in files.given.arrays if each not in tensors), None)
    if unknown is not None:
        raise ModelError(
            f"there is no initializer {shown(unknown)!r}, for which an array is given; expected "
            f"one of {shown(', '.join(tensors))}"
        )
    declared = _declared(graph, reader, tensors)
    outputs = [reader.message(each, schema.VALUE, "output") for each in graph["output"]]
    names = tuple(each.get("name", "") for each in outputs)
    given = {*tensors, *declared}
    functions = Functions(model["functions"], reader, opset, limits)
    raw = Subgraphs(functions, limits).complete(
        raw_nodes(graph["node"], reader, opset), given, names
    )
    check_operations(raw)
    needed = {*names, *(name for node in raw for name in node.reads)}
    first = {name: node for node in reversed(raw) for name in node.reads}
    inputs = [
        _input(name, each, reader, first.get(name), name in needed)
        for name, each in declared.items()
    ]
    promised = [_declared_output(each, reader) for each in outputs]
    constants = {
        name: initializer(name, data, reader, files)
        for name, data in tensors.items()
        if name in needed
    }
    return FileModel(
        opset=opset,
        inputs=tuple(each for each in inputs if each is not None),
        outputs=names,
        output_shapes=tuple(shape for shape, _ in promised),
        output_dtypes=tuple(dtype for _, dtype in promised),
        nodes=in_parts(decoded(each, reader, files) for each in raw),
        constants=MappingProxyType(constants),
        metadata=MappingProxyType(pairs),
        spread_bytes=reader.spread_bytes,
    )


def _declared(graph: Message, reader: Reader, tensors: Mapping[str, object]) -> dict[str, Message]:
    """The inputs that no initializer defines, by name."""
    result: dict[str, Message] = {}
    for each in graph["input"]:
        value = reader.message(each, schema.VALUE, "input")
        name = value.get("name", "")
        if not name:
            raise ModelError("an input has no name; expected one")
        if name in result:
            raise ModelError(f"input {shown(name)!r} is given twice; expected it once")
        if name not in tensors:
            result[name] = value
    return result


def _opset(reader: Reader, model: Message) -> int:
    entries = [reader.message(e, schema.OPSET, "opset_import") for e in model["opset_import"]]
    versions = {e.get("version", 0) for e in entries if e.get("domain", "") in DOMAINS}
    others = sorted({entry.get("domain", "") for entry in entries} - set(DOMAINS))
    if not versions and others:
        raise UnsupportedError(
            f"the file has operations of the domain {shown(', '.join(others))!r} only"
            f"{_first_operations(reader, model)}; expected a network of ONNX's own operations, "
            "such as Conv"
        )
    if not versions and not entries and 1 <= model.get("ir_version", 0) < 3:
        versions.add(1)  # before there were numbers
    if len(versions) != 1:
        raise ModelError(
            f"the file imports {len(versions)} versions of ONNX's operations; expected one"
        )
    opset = int(versions.pop())
    if not FIRST_OPSET <= opset <= LAST_OPSET:
        raise UnsupportedError(
            f"the model is of opset {opset}; expected {FIRST_OPSET} to {LAST_OPSET}; convert it "
            "with onnx.version_converter"
        )
    return opset


def _first_operations(reader: Reader, model: Message) -> str:
    """Operations of a file that is refused, for the message; empty where they are not sound."""
    try:
        nodes = reader.message(model["graph"], schema.GRAPH, "GraphProto")["node"]
        ops = [reader.message(node, schema.NODE, "node").get("op_type", "") for node in nodes[:3]]
    except LeanConvError:
        return ""
    return f" ({shown(', '.join(ops))})" if ops else ""


def _input(
    name: str, value: Message, reader: Reader, first: FileNode | None, needed: bool
) -> ModelInput | None:
    """A declared input; None for one that no output needs and that is of no type that is taken."""
    what = f"input {shown(name)!r}"
    if first is not None:
        what = f"{what} of node {shown(first.name)!r} ({shown(first.op)})"
    try:
        tensor = _tensor_type(value, reader, what)
        dtype = dtype_of_number(tensor.get("elem_type", 0), what, narrow=True)
    except UnsupportedError:
        if needed:
            raise
        return None
    return ModelInput(name, dtype, _shape(tensor, reader, what))


def _tensor_type(value: Message, reader: Reader, what: str) -> Message:
    kind = reader.message(value.get("type", memoryview(b"")), schema.TYPE, what)
    if "tensor_type" not in kind:
        raise UnsupportedError(f"{what} is no tensor; expected a tensor of float32 or float64")
    return reader.message(kind["tensor_type"], schema.TENSOR_TYPE, what)


def _declared_output(value: Message, reader: Reader) -> tuple[Extents | None, DType | None]:
    """Shape and element type that the file declares; nothing needs them, so both may be damaged."""
    shape = dtype = None
    with suppress(LeanConvError):
        tensor = _tensor_type(value, reader, "output")
        with suppress(LeanConvError):
            shape = _shape(tensor, reader, "output")
        dtype = dtype_of_number(tensor.get("elem_type", 0), "output", narrow=True)
    return shape, dtype


def _shape(tensor: Message, reader: Reader, what: str) -> Extents | None:
    """A declared shape, None where the file does not even fix the rank."""
    if "shape" not in tensor:
        return None
    extents = reader.message(tensor["shape"], schema.SHAPE, what)["dim"]
    if len(extents) > MAX_RANK:
        raise ModelError(f"{what} has rank {len(extents)}; expected at most {MAX_RANK}")
    return tuple(_extent(each, reader, what) for each in extents)


def _extent(data: memoryview, reader: Reader, what: str) -> int | str | None:
    extent = reader.message(data, schema.DIMENSION, what)
    number = extent.get("dim_value", 0)
    if number > 0:
        return int(number)
    name = extent.get("dim_param", "")
    return None if _NAMELESS.fullmatch(name.strip()) else name


def check_flow(file: FileModel) -> None:
    """Check the values between the nodes that the outputs need.

    Raises:
        UnsupportedError: weights depend on the inputs, or an output of a node is used that is not
            computed.
    """
    _check_used(file)
    _check_running(
        file.nodes, {each.name for each in file.inputs if not is_small(each.shape, each.dtype)}
    )


def _check_used(file: FileModel) -> None:
    used = {name for node in file.nodes for name in node.reads}
    used.update(file.outputs)
    for node in file.nodes:
        extra = [name for name in node.outputs[RULES[node.op].outputs :] if name in used]
        if extra:
            raise UnsupportedError(
                f"node {node.name!r} ({node.op}, opset {node.opset}): its output "
                f"{shown(extra[0])!r} is used; expected only the first "
                f"{RULES[node.op].outputs} to be; export the model for inference, or without what "
                "reads it"
            )


def _check_running(nodes: Sequence[FileNode], inputs: set[str]) -> None:
    """Raise where weights of what only a compiler computes are data."""
    for node, flows in flowing(nodes, inputs):
        running = RULES[node.op].running
        refused = [index for index in flows if running is not None and index not in running]
        if not refused or not RULES[node.op].products:
            continue
        first = ", ".join(map(str, (running or ())[:4]))
        raise UnsupportedError(
            f"node {node.name!r} ({node.op}, opset {node.opset}): input {refused[0]} "
            f"({shown(node.inputs[refused[0]])!r}) depends on the network's inputs, which is not "
            f"supported on data yet; expected a constant: only input {first} may be data"
        )
