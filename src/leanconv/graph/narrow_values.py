"""What a file says of values whose elements have at most 8 bits: its outputs, its constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph.builder import Builder, Value
from leanconv.graph.convert import FileNode
from leanconv.graph.narrow_codes import is_narrow, read_mark
from leanconv.graph.onnx_file import FileModel
from leanconv.graph.onnx_names import shown
from leanconv.graph.ops.base import Array
from leanconv.types import FLOAT32, DType


class Declared(Protocol):
    """What a model says of its outputs, and its weights."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Their names."""

    @property
    def output_dtypes(self) -> tuple[DType | None, ...]:
        """Their types, None where it says none."""

    @property
    def constants(self) -> Mapping[str, Array]:
        """Weights by name."""


def check_narrow(
    model: Declared, builder: Builder, outputs: Mapping[str, Value], late: Sequence[FileNode]
) -> None:
    """Raise unless codes of narrow types are what the file says that they are.

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
    for name, value in outputs.items():
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
    nodes = [node.name for node in late if any(map(is_narrow, node.attributes.values()))]
    held = [name for node in late for name in node.reads if is_narrow(model.constants.get(name))]
    if nodes or held:
        where = f"node {nodes[0]!r}" if nodes else f"the constant {shown(held[0])!r}"
        raise UnsupportedError(
            f"{where} is of a type of at most 8 bits, and computed with when extents are known "
            "that depend on values; expected another type there"
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
