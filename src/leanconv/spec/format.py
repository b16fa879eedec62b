"""Memory formats of tensors between the layers of a network."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from leanconv.records import dataclass


def ceil_div(a: int, b: int) -> int:
    """Divide, rounding up."""
    return -(-a // b)


ALIGNMENT = 64  # bytes of a cache line; every buffer starts on one


def aligned(size: int) -> int:
    """Round a size in bytes up to whole cache lines."""
    return ceil_div(size, ALIGNMENT) * ALIGNMENT


def aligned_offsets(sizes: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """Offsets of arrays in one block, each on a cache line of its own, and the block's bytes."""
    offsets, end = {}, 0
    for name, size in sizes.items():
        offsets[name] = end
        end += aligned(size)
    return offsets, end


@dataclass(frozen=True)
class Format:
    """Plain row-major (`block == 0`), or channels in blocks of `block` lanes.

    A tensor of shape (N, C, spatial…) in blocks is stored as (N, ceil(C / block), spatial…, block):
    `nChw16c` for 16 lanes. Lanes past the last channel hold nothing that may be relied on: they
    are written by whoever writes the tensor, never read into a result.
    """

    block: int = 0

    def physical_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Extents in memory order of a tensor of the logical shape."""
        if not self.block:
            return shape
        n, c, *spatial = shape
        return (n, ceil_div(c, self.block), *spatial, self.block)

    def elements(self, shape: tuple[int, ...]) -> int:
        """Elements in memory, unused lanes included."""
        return prod(self.physical_shape(shape))

    def __str__(self) -> str:
        return f"c{self.block}" if self.block else "plain"


PLAIN = Format()
