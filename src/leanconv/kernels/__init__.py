"""Kernels of every operation but convolution, by the name of the operation.

Each module has `OPS`, the operations it knows, `accepts_blocked`, which says whether it takes an
operation's tensors in blocks of channels, and `lower`, which makes the kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from leanconv.codegen.lowered import Lowered
from leanconv.errors import UnsupportedError
from leanconv.graph.ir import Graph, Node
from leanconv.kernels import elementwise, layout, lrn, matmul, pool, reduce, resize, softmax
from leanconv.spec.format import Format
from leanconv.target import Target

__all__ = ["MODULES", "accepts_blocked", "lower"]


class _Lowering(Protocol):
    """What a module of this folder offers."""

    @property
    def OPS(self) -> Sequence[str]: ...  # noqa: N802

    def accepts_blocked(self, node: Node, graph: Graph, block: int) -> bool: ...

    def lower(
        self, node: Node, graph: Graph, formats: Mapping[str, Format], target: Target
    ) -> Lowered: ...


def _table(*modules: _Lowering) -> dict[str, _Lowering]:
    table: dict[str, _Lowering] = {}
    for module in modules:
        for op in module.OPS:
            assert op not in table, f"two modules lower {op}"
            table[op] = module
    return table


MODULES: Mapping[str, _Lowering] = _table(
    elementwise, layout, lrn, matmul, pool, reduce, resize, softmax
)


def _module(node: Node) -> _Lowering:
    if node.op not in MODULES:
        raise UnsupportedError(
            f"node {node.name!r}: no kernel for {node.op}; expected one of "
            f"{', '.join(sorted(MODULES))}; rewrite the node in terms of those"
        )
    return MODULES[node.op]


def accepts_blocked(node: Node, graph: Graph, block: int) -> bool:
    """Whether a node can be done with its tensors in blocks of `block` channels.

    If so, all its inputs of rank 3 and more that are no constants are blocked, and so is its
    output if it is of rank 3 or more; otherwise all are plain.

    Raises:
        UnsupportedError: there is no kernel for the operation.
    """
    return _module(node).accepts_blocked(node, graph, block)


def lower(node: Node, graph: Graph, formats: Mapping[str, Format], target: Target) -> Lowered:
    """Make the kernels of a node.

    Args:
        node: an operation in normal form.
        graph: types and constants of its values.
        formats: how each value of the node stands in memory, as `accepts_blocked` was asked.
        target: the machine.

    Returns:
        Calls, packed constants and scratch; no calls for a result without elements.

    Raises:
        UnsupportedError: there is no kernel for the operation.
    """
    module = _module(node)
    if graph.types[node.outputs[0]].elements == 0:
        return Lowered((), algorithm="empty")
    return module.lower(node, graph, formats, target)
