"""In which float type a network computes, as far as its file says without shapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from leanconv.graph.convert import RULES
from leanconv.graph.file_graph import FileNode
from leanconv.graph.narrow_codes import read_mark
from leanconv.graph.onnx_file import FileModel
from leanconv.graph.onnx_operations import held_flow
from leanconv.graph.ops.typed import COMPARISONS, LOGIC
from leanconv.records import dataclass
from leanconv.types import (
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOATS,
    HALVES,
    INT32,
    INT64,
    UINT8,
    DType,
    as_dtype,
)

_GIVEN: Mapping[str, DType] = {
    **dict.fromkeys(("ArgMax", "ArgMin", "NonZero", "NonMaxSuppression"), INT64),
    **dict.fromkeys(("QuantizeLinear", "DynamicQuantizeLinear"), UINT8),
    **dict.fromkeys(("ConvInteger", "MatMulInteger"), INT32),
    **dict.fromkeys(("DequantizeLinear", "com.microsoft.DequantizeLinear"), FLOAT32),
    **dict.fromkeys(("com.microsoft.QuantizeLinear", "com.microsoft.QGemm"), UINT8),
    **dict.fromkeys((*COMPARISONS, *LOGIC, "Not", "IsNaN", "IsInf"), BOOL),
}


# What takes half precision: it gives elements back as they are, or converts them.
_TAKE_HALVES = frozenset(
    (
        *("Cast", "CastLike", "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "Identity"),
        *("Pad", "Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose"),
        *("GatherElements", "GatherND", "Scatter", "ScatterElements", "ScatterND"),
        *("TensorScatter", "Unsqueeze", "Where"),
    )
)


@dataclass(frozen=True)
class ComputedDType:
    """What a file says of floats.

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
        computes = node.op not in _TAKE_HALVES
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
    return _GIVEN.get(node.op, read[-1])


def _data_inputs(node: FileNode, running: Mapping[str, object]) -> Iterator[str]:
    """The inputs that depend on the network's and of which elements are read."""
    rule = RULES[node.op]
    if not rule.knows_shape:
        for index, name in enumerate(node.reads):
            if name in running and index not in rule.typed:
                yield name
