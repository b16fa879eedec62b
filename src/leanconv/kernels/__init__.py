"""Kernels of every operation but convolution, one module for each kind of operation.

A module may have two more names besides those of `KernelModule`: `accepts_blocked(node, graph,
block)` says whether a node can be done with its tensors in blocks of so many channels, which none
can where there is no such function, and all where it is `any_blocks`; `CODES_IN_BLOCKS` says
whether codes may be in blocks.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from leanconv.codegen.emitter import Function, Value
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.lowered import Lowered
from leanconv.graph.ir import Graph, Node
from leanconv.records import dataclass
from leanconv.spec.format import Format, ceil_div
from leanconv.target import Target

__all__ = ["PIECE", "InPieces", "KernelContext", "KernelModule", "OfItems", "any_blocks"]

PIECE = 16384  # elements that one chunk reads


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


def any_blocks(node: Node, graph: Graph, block: int) -> bool:
    """The `accepts_blocked` of modules whose nodes do not care in what blocks their tensors are."""
    del node, graph, block
    return True


class OfItems(Kernel):
    """A kernel whose chunks are groups of items. The grid depends on shapes alone."""

    @property
    @abstractmethod
    def items(self) -> int:
        """Tiles or rows of results."""

    @property
    @abstractmethod
    def group(self) -> int:
        """Items in one chunk."""

    @property
    def chunks(self) -> int:
        return ceil_div(self.items, self.group)

    @contextmanager
    def each_group(self, e: Function) -> Iterator[tuple[Value, Value]]:
        """Run the body for each chunk, given its first item and one past its last."""
        with e.chunks(self.chunks) as (chunk,):
            first = chunk * self.group
            yield first, e.smin(first + self.group, self.items)

    @contextmanager
    def each_item(self, e: Function, label: str = "item") -> Iterator[Value]:
        """Run the body for each item of each chunk."""
        with self.each_group(e) as (first, stop), e.loop(label, stop, start=first) as item:
            yield item


class InPieces(OfItems):
    """One whose chunks read about `PIECE` elements of the input each."""

    @property
    @abstractmethod
    def elements(self) -> int:
        """Elements of the input; at least 1."""

    @property
    def group(self) -> int:
        return ceil_div(PIECE * self.items, self.elements)
