"""Kernels of items: tiles or rows of results, of which a chunk does some that follow each other."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from leanconv.codegen.emitter import Function, Value
from leanconv.codegen.kernel import Kernel
from leanconv.spec.format import ceil_div

PIECE = 16384  # elements that one chunk reads


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
