"""The operations of a graph in normal form: one table, `OPS`.

Each record says what the operation reads and gives; `docs/operations.md` prints them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from leanconv.errors import LeanConvError, ModelError, UnsupportedError
from leanconv.graph.ir import Attributes, Node, TensorType
from leanconv.graph.ops import (
    algebra,
    chain,
    conv,
    gradients,
    indexing,
    movement,
    pointwise,
    pooling,
    quantised,
    quantised_layers,
    recurrent,
    resample,
    resize,
    sampling,
    selection,
    typed,
)
from leanconv.graph.ops.base import Array, Arrays, Op, Types, is_described
from leanconv.graph.ops.pointwise import BINARY, UNARY, activate, expression
from leanconv.graph.ops.recurrent import loop
from leanconv.types import FLOATS, HALVES, DType

__all__ = [
    "BINARY",
    "OPS",
    "UNARY",
    "Op",
    "activate",
    "check_dtypes",
    "evaluate",
    "evaluate_node",
    "infer",
    "infer_node",
    "label",
    "not_taken",
    "table_bytes",
    "working_bytes",
]

_PLACE_BYTES = 8
OPS: Mapping[str, Op] = MappingProxyType(
    {
        **conv.OPS,
        **gradients.OPS,
        **chain.OPS,
        **pooling.OPS,
        **pointwise.OPS,
        **algebra.OPS,
        **movement.OPS,
        **resize.OPS,
        **resample.OPS,
        **sampling.OPS,
        **typed.OPS,
        **selection.OPS,
        **indexing.OPS,
        **recurrent.OPS,
        **quantised.OPS,
        **quantised_layers.OPS,
        "Expression": expression(
            lambda op, types, attributes: infer_term(op, types, attributes),
            lambda op, arrays, attributes: evaluate(op, arrays, attributes),
        ),
        "Loop": loop(
            lambda node, values: evaluate_node(node, values), lambda node, types: _work(node, types)
        ),
    }
)


def infer(op: str, types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    """Return the types of an operation's outputs.

    Args:
        op: a key of `OPS`.
        types: the inputs' types, None for an absent one.
        attributes: in normal form.

    Raises:
        ModelError: the inputs or attributes do not fit the operation.
    """
    entry = OPS.get(op)
    if entry is None:
        raise ModelError(f"got the operation {op!r}; expected one of {', '.join(sorted(OPS))}")
    if not entry.least <= len(types) <= entry.most:
        raise ModelError(f"got {len(types)} inputs; expected {entry.least} to {entry.most}")
    for index in range(entry.least):
        if types[index] is None:
            raise ModelError(f"input {index} is absent; expected a tensor")
    absent = [name for name in entry.attributes if name not in attributes]
    if absent:
        raise ModelError(f"attributes {', '.join(absent)} are missing; expected all of them")
    return entry.infer(types, attributes)


def infer_term(op: str, types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    """Return the type of a term of an Expression, as `infer` does.

    Raises:
        ModelError: the operation is none of single elements; else as of `infer`.
    """
    entry = OPS.get(op)
    if entry is None or entry.kernel != OPS["Expression"].kernel:
        raise ModelError(f"a term is {op}; expected an elementwise operation")
    return infer(op, types, attributes)


def check_dtypes(op: str, types: Types) -> None:
    """Raise unless an operation computes on run-time data of its inputs' types.

    Raises:
        UnsupportedError: it does not compute on the dtype of one of them.
    """
    taken = OPS[op].dtypes
    refused = next((kind for kind in types if kind and kind.dtype not in taken), None)
    if refused is None:
        return
    raise not_taken(op, refused.dtype, str(refused), taken)


def not_taken(
    op: str, dtype: DType, read: str, taken: Sequence[DType] = FLOATS
) -> UnsupportedError:
    """Return the error of an operation that does not compute on data of some dtype."""
    mend = "cast it in the network"
    if dtype in HALVES:  # all of the network is, and a Cast would not help
        mend = "export the float32 network (in PyTorch model.float())"
    return UnsupportedError(
        f"{op} reads {read}, which is not supported on data yet; expected "
        f"{' or '.join(taken)}: {mend}"
    )


def evaluate(op: str, arrays: Arrays, attributes: Attributes) -> tuple[Array, ...]:
    """Return the output arrays of an operation, computed in the dtype of its inputs.

    Args:
        op: a key of `OPS`.
        arrays: the inputs, None for an absent one; types that `infer` accepts.
        attributes: in normal form.
    """
    with np.errstate(all="ignore"):
        return OPS[op].evaluate(arrays, attributes)


def table_bytes(
    op: str, types: Types, attributes: Attributes, results: tuple[TensorType, ...]
) -> int:
    """Return the bytes of tables made from attributes alone; 0 where none is made.

    Args:
        op: a key of `OPS`.
        types, attributes, results: of a node.
    """
    tables = OPS[op].tables
    return 0 if tables is None or is_described() else tables(types, attributes, results)


def working_bytes(op: str, types: Types, results: Types) -> int:
    """Return the most bytes that NumPy works in, beside operands and results.

    Args:
        op: a key of `OPS`.
        types, results: of its inputs and outputs.
    """
    kinds = [kind for kind in (*types, *results) if kind is not None]
    entry = OPS[op]
    places = entry.places * _PLACE_BYTES * sum(kind.elements for kind in kinds)
    return places + entry.working * sum(kind.bytes for kind in kinds)


def label(node: Node) -> str:
    """Return a node's name in messages: its name in the file and its operation."""
    return f"node {node.name!r} ({node.op})" if node.name else f"a node {node.op}"


def infer_node(node: Node, types: Mapping[str, TensorType]) -> tuple[TensorType, ...]:
    """`infer` for a node of a graph, given the types of its inputs by name.

    Raises:
        ModelError: as `infer`, naming the node.
    """
    try:
        return infer(
            node.op, [types[name] if name else None for name in node.inputs], node.attributes
        )
    except LeanConvError as error:
        raise type(error)(f"{label(node)}: {error}") from error


def evaluate_node(node: Node, values: Mapping[str, Array]) -> tuple[Array, ...]:
    """`evaluate` for a node of a graph, given its inputs by name."""
    arrays = [values[name] if name else None for name in node.inputs]
    return evaluate(node.op, arrays, node.attributes)


def _work(node: Node, types: Mapping[str, TensorType]) -> int:
    """A quarter of the bytes that a node reads and writes, and what it computes beyond."""
    entry, names = OPS[node.op], (*node.inputs, *node.outputs)
    moved = sum(types[name].bytes for name in names if name) // 4
    if entry.work is None:
        return moved
    given = [types[name] if name else None for name in node.inputs]
    return moved + entry.work(given, node.attributes, tuple(types[n] for n in node.outputs))
