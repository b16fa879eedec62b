"""What a file says of values whose elements have at most 8 bits: its outputs, its constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph import bfloat16_codes
from leanconv.graph.builder import Builder
from leanconv.graph.file_errors import shown
from leanconv.graph.file_graph import FileNode
from leanconv.graph.ir import TensorType
from leanconv.graph.narrow_codes import is_narrow, read_mark
from leanconv.graph.onnx_file import FileModel
from leanconv.graph.ops.base import Array
from leanconv.graph.value import Value
from leanconv.types import BFLOAT16, FLOAT32, DType


class DeclaredInput(Protocol):
    """An input by name, with its type."""

    @property
    def name(self) -> str:
        """As the file has it."""

    @property
    def dtype(self) -> DType:
        """As the file has it."""


class Declared(Protocol):
    """What a model says of its outputs, and its weights."""

    @property
    def inputs(self) -> Sequence[DeclaredInput]:
        """What it takes."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Their names."""

    @property
    def output_dtypes(self) -> tuple[DType | None, ...]:
        """Their types, None where it says none."""

    @property
    def constants(self) -> Mapping[str, Array]:
        """Weights by name."""


def as_float(value: Value, dtype: DType, builder: Builder) -> Value:
    """A float of another type; others stay as they are."""
    if value.type.dtype == dtype or not value.type.dtype.is_float:
        return value
    return builder.emit("Cast", [value], to=dtype)


def entered(builder: Builder, value: Value, kind: DType | None) -> Value:
    """An input of some kind as the network computes with it: bfloat16 as float32."""
    if kind == BFLOAT16:
        return bfloat16_codes.decoded(Emitting(builder), value, builder.single)
    return as_float(value, builder.kept(value.type.dtype), builder)


def leaving(builder: Builder, value: Value) -> Value:
    """Floats as an output of bfloat16."""
    codes = bfloat16_codes.encoded(Emitting(builder), value)
    return builder.as_narrow(codes, BFLOAT16)


def in_bfloat16(model: Declared) -> set[str]:
    """The inputs and outputs that are declared bfloat16."""
    outputs = zip(model.outputs, model.output_dtypes, strict=True)
    found = {name for name, kind in outputs if kind == BFLOAT16}
    return found | {each.name for each in model.inputs if each.dtype == BFLOAT16}


class Emitting:
    """Adds operations to a builder that no node of the file asks for."""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder

    def emit(self, op: str, inputs: Sequence[Value | None], **attributes: Any) -> Value:
        """Add an operation in normal form and give its value."""
        return self._builder.emit(op, inputs, **attributes)

    def number(self, number: float, like: Value) -> Value:
        """A scalar constant of another value's dtype."""
        dtype = like.type.dtype
        return Value(TensorType((), dtype), np.asarray(number, dtype=dtype))

    def kind(self, value: Value) -> TensorType:
        """The type of a value."""
        return value.type


def given_as_declared(
    model: Declared, builder: Builder, outputs: Mapping[str, Value], late: Sequence[FileNode]
) -> dict[str, Value]:
    """The outputs, floats that are declared bfloat16 as codes of it.

    Args:
        model: says what its outputs are.
        builder: knows which values are of narrow types.
        outputs: of the graph, with what late nodes read.
        late: nodes that run when values are known, which know of no such types.

    Raises:
        ModelError: an output is declared as something else.
        UnsupportedError: a late node has to do with a narrow type.
    """
    declared = dict(zip(model.outputs, model.output_dtypes, strict=True))
    found = dict(outputs)
    for name, value in outputs.items():
        if declared.get(name) == BFLOAT16 and value.type.dtype.is_float:
            found[name] = leaving(builder, value)
            continue
        kind, wanted = builder.narrow.get(value), declared.get(name)
        if kind is None and (wanted is None or wanted.held == wanted):
            continue
        if name not in declared:
            raise UnsupportedError(
                f"{shown(name)!r} is {kind}, and a node reads it whose extents are known only when "
                "the network has run; expected another type: insert a Cast before it"
            )
        if kind != wanted:
            raise ModelError(
                f"output {shown(name)!r} is {builder.declared(value)}, and declared as {wanted}; "
                "expected both alike"
            )
    _check_late(model, late)
    return found


def _check_late(model: Declared, late: Sequence[FileNode]) -> None:
    """Raise where a late node has to do with a type whose arrays are codes."""
    coded = {each.name for each in model.inputs if is_narrow(each.dtype)}
    kinds = zip(model.outputs, model.output_dtypes, strict=True)
    coded |= {name for name, kind in kinds if is_narrow(kind)}
    coded |= {name for name, array in model.constants.items() if is_narrow(array)}
    for node in late:
        named = any(map(is_narrow, node.attributes.values()))
        if named or not coded.isdisjoint((*node.reads, *node.outputs)):
            raise UnsupportedError(
                f"node {node.name!r} ({node.op}) has to do with elements of at most 8 bits, and is "
                "computed when extents are known that depend on values; expected another type "
                "there: insert a Cast"
            )


def float_bytes(file: FileModel) -> int:
    """By how much constants grow that are packed in a file, when they become float32.

    What a constant may cost is counted in bytes of the file: see `Limits.fold_budget`.
    """
    packed = {}
    for name, array in file.constants.items():
        if is_narrow(array):
            packed[name] = read_mark(array)[0].size
    for node in file.nodes:
        held = file.constants.get(node.inputs[1]) if len(node.inputs) > 1 else None
        bits = node.attributes.get("bits", 4)
        if node.op == "com.microsoft.MatMulNBits" and held is not None and 1 <= bits <= 8:
            packed[node.inputs[1]] = held.nbytes * 8 // bits
    return int(np.sum(list(packed.values()), dtype=np.int64)) * FLOAT32.bytes
