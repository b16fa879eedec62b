"""Kernels of every operation but convolution, one module for each kind of operation.

A module may have two more names besides those of `KernelModule`: `accepts_blocked(node, graph,
block)` says whether a node can be done with its tensors in blocks of so many channels, which none
can where there is no such function; `CODES_IN_BLOCKS` names the operations whose codes may be in
blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from leanconv.codegen.lowered import Lowered
from leanconv.graph.ir import Graph, Node
from leanconv.records import dataclass
from leanconv.spec.format import Format
from leanconv.target import Target

__all__ = ["KernelContext", "KernelModule"]


@dataclass(frozen=True)
class KernelContext:
    """A node with all that its kernels depend on.

    Attributes:
        node: an operation in normal form.
        graph: types and constants of its values.
        formats: the format in which each of its values is stored.
        target: the machine.
    """

    node: Node
    graph: Graph
    formats: Mapping[str, Format]
    target: Target


class KernelModule(Protocol):
    """The interface of this folder's modules; `leanconv.operators` finds them by operation."""

    def lower(self, context: KernelContext) -> Lowered:
        """Make the kernels of a node whose result has elements."""
