"""Memory formats of tensors between the layers of a network."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Literal

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


Order = Literal["NCHW", "NHWC"]  # of axes in memory; for any number of spatial ones


@dataclass(frozen=True)
class Format:
    """Memory layout of a tensor of shape (N, C, spatial…).

    Attributes:
        block: 0, or the lanes of a block of channels: the tensor is stored as
            (N, ceil(C / block), spatial…, block), `nChw16c` for 16 lanes. Lanes past the last
            channel hold undefined numbers, which are written with the tensor and never read
            into a result.
        order: of the axes of a tensor in no blocks: row-major, or (N, spatial…, C).
    """

    block: int = 0
    order: Order = "NCHW"

    @staticmethod
    def of_layout(layout: str) -> Format:
        """The format of arrays for which a user states `layout="NCHW"` or `"NHWC"`."""
        return NHWC if layout == NHWC.order else PLAIN

    @staticmethod
    def parse(text: str) -> Format:
        """The format that `str` spells so.

        Raises:
            ValueError: there is none.
        """
        if text in _NAMED:
            return _NAMED[text]
        if text[:1] == "c" and text[1:] in ("2", "4", "8", "16", "32", "64"):
            return Format(int(text[1:]))
        raise ValueError(f"no format {text!r}")

    def axes(self, rank: int) -> tuple[int, ...]:
        """The axes of a tensor in no blocks, in the order of its memory."""
        if self.order == "NCHW" or rank < 3:
            return tuple(range(rank))
        return (0, *range(2, rank), 1)

    def physical_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Extents in memory order of a tensor of the logical shape."""
        if self.block:
            n, c, *spatial = shape
            return (n, ceil_div(c, self.block), *spatial, self.block)
        if self.order == "NCHW":
            return shape
        return tuple(shape[axis] for axis in self.axes(len(shape)))

    def elements(self, shape: tuple[int, ...]) -> int:
        """Elements in memory, unused lanes included."""
        return prod(self.physical_shape(shape))

    def __str__(self) -> str:
        if self.block:
            return f"c{self.block}"
        return "plain" if self.order == "NCHW" else "nhwc"


PLAIN, NHWC = Format(), Format(order="NHWC")
_NAMED = {str(form): form for form in (PLAIN, NHWC)}
