"""Kernels of every operation but convolution, one module for each kind of operation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from leanconv.codegen.lowered import Lowered
from leanconv.graph.ir import Graph, Node
from leanconv.spec.format import Format
from leanconv.target import Target

__all__ = ["KernelModule"]


class KernelModule(Protocol):
    """What a module of this folder offers; `leanconv.operators` finds it by the operation."""

    def accepts_blocked(self, node: Node, graph: Graph, block: int) -> bool:
        """Whether a node can be done with its tensors in blocks of `block` channels."""

    def lower(
        self, node: Node, graph: Graph, formats: Mapping[str, Format], target: Target
    ) -> Lowered:
        """Make the kernels of a node whose result has elements."""
