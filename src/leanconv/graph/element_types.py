"""Element types of a file: the float type in which it computes, outputs in declared types.

Floats narrower than float32, and elements of at most 8 bits, are codes where they enter and leave.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from leanconv.errors import ModelError, UnsupportedError, shown
from leanconv.graph.builder import Builder
from leanconv.graph.convert import RULES
from leanconv.graph.file_graph import FileNode
from leanconv.graph.ir import takes_no_memory
from leanconv.graph.narrow_codes import from_bfloat16, is_narrow, read_mark, to_bfloat16
from leanconv.graph.onnx_file import FileModel
from leanconv.graph.onnx_flow import held_flow
from leanconv.graph.value import Value
from leanconv.records import dataclass
from leanconv.types import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    FLOATS,
    HALVES,
    DType,
    as_dtype,
)


@dataclass(frozen=True)
class ComputedDType:
    """The types of floats in a file.

    Attributes:
        dtype: the one of `FLOATS` that most nodes give; if none does, that of the first input of
            one.
        halves: whether some node computes in half precision: then numbers that the file has in
            float16 are computed in float32.
        stored: the half precision in which values are stored: that in which all nodes compute, or
            None.
        half_names: values of float16, in a file in which other nodes compute in wider floats.
    """

    dtype: DType
    halves: bool
    stored: DType | None
    half_names: frozenset[str]


def computed_dtype(file: FileModel) -> ComputedDType:
    """In which float type a network computes."""
    kinds = {each.name: each.dtype for each in file.inputs}
    given: Counter[DType] = Counter()
    halves = wider = False
    for node in file.nodes:
        read = [kinds[name] for name in _data_inputs(node, kinds)]
        if not read:
            continue
        computes = not RULES[node.op].moves
        halves |= computes and any(kind in HALVES for kind in read)
        wider |= computes and any(kind in FLOATS for kind in read)
        kind = _given(node, read, kinds, file)
        outputs = held_flow(node, kinds, any) if node.graphs else node.outputs
        kinds.update((name, kind) for name in outputs if name)
        given[kind] += 1
    found = [kind for kind, _ in given.most_common()]
    starts = [each.dtype for each in file.inputs]
    dtype = next((kind for kind in (*found, *starts) if kind in FLOATS), FLOAT32)
    if halves and not wider:
        return ComputedDType(dtype, halves, FLOAT16, frozenset())
    names = (name for name, kind in kinds.items() if halves and kind == FLOAT16)
    return ComputedDType(dtype, halves, None, frozenset(names))


def _given(node: FileNode, read: list[DType], kinds: Mapping[str, DType], file: FileModel) -> DType:
    """The type of a node's first output; if the operation does not say, of the last that it reads.

    The last one, since a condition comes first.
    """
    if node.op == "Cast":
        target: DType = node.attributes.get("to", read[0])
        return target
    if node.op == "CastLike" and len(node.inputs) > 1:
        like = node.inputs[1]
        held = file.constants.get(like)
        if held is None:
            return kinds.get(like, read[0])
        return read_mark(held)[1] or as_dtype(held.dtype)
    if node.graphs and read[-1] in HALVES:  # they may have cast it
        return FLOAT32
    return RULES[node.op].gives or read[-1]


def _data_inputs(node: FileNode, running: Mapping[str, object]) -> Iterator[str]:
    """The inputs that depend on the network's and of which elements are read."""
    rule = RULES[node.op]
    if not rule.knows_shape:
        for index, name in enumerate(node.reads):
            if name in running and index not in rule.typed:
                yield name


def as_float(value: Value, dtype: DType, builder: Builder) -> Value:
    """A float of another type; others stay as they are."""
    if value.type.dtype == dtype or not value.type.dtype.is_float:
        return value
    return builder.emit("Cast", [value], to=dtype)


def entered(builder: Builder, value: Value, kind: DType | None) -> Value:
    """An input of some kind as the network computes with it: bfloat16 as float32."""
    if kind == BFLOAT16:
        return from_bfloat16(builder, value, builder.single)
    return as_float(value, builder.kept(value.type.dtype), builder)


def leaving(builder: Builder, value: Value) -> Value:
    """Floats as an output of bfloat16."""
    codes = to_bfloat16(builder, value)
    return builder.as_narrow(codes, BFLOAT16)


def in_bfloat16(model: FileModel) -> set[str]:
    """The inputs and outputs that are declared bfloat16."""
    outputs = zip(model.outputs, model.output_dtypes, strict=True)
    found = {name for name, kind in outputs if kind == BFLOAT16}
    return found | {each.name for each in model.inputs if each.dtype == BFLOAT16}


def given_as_declared(
    model: FileModel, builder: Builder, outputs: Mapping[str, Value], late: Sequence[FileNode]
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


def _check_late(model: FileModel, late: Sequence[FileNode]) -> None:
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
        if is_narrow(array) and not takes_no_memory(array):
            packed[name] = read_mark(array)[0].size
    for node in file.nodes:
        held = file.constants.get(node.inputs[1]) if len(node.inputs) > 1 else None
        bits = node.attributes.get("bits", 4)
        if held is None or takes_no_memory(held):
            continue
        if node.op == "com.microsoft.MatMulNBits" and 1 <= bits <= 8:
            packed[node.inputs[1]] = held.nbytes * 8 // bits
    return int(np.sum(list(packed.values()), dtype=np.int64)) * FLOAT32.bytes
