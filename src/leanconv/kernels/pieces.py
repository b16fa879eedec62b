"""Chunks of kernels that read their input once: as many tiles of results as read enough."""

from __future__ import annotations

from abc import abstractmethod

from leanconv.codegen.kernel import Kernel
from leanconv.spec.format import ceil_div

PIECE = 16384  # elements that one chunk reads


class InPieces(Kernel):
    """A kernel whose chunks are whole tiles of results, about `PIECE` elements of the input each.

    The grid depends on shapes alone.
    """

    @property
    @abstractmethod
    def items(self) -> int:
        """Tiles of results."""

    @property
    @abstractmethod
    def elements(self) -> int:
        """Elements of the input; at least 1."""

    @property
    def group(self) -> int:
        """Tiles of results in one chunk."""
        return ceil_div(PIECE * self.items, self.elements)

    @property
    def chunks(self) -> int:
        return ceil_div(self.items, self.group)
