"""Packs constants: brings their elements into the order in which a kernel reads them.

    packed[block][i] = w[start of the block + table[i]]; 0 where the table has -1

A block is what one table describes: a panel of output channels, a group, or all of an array. How
its elements are ordered is a function of NumPy, such as a transposition with zeros beside it. It is
applied to the numbers of the elements, once for all blocks alike, and never to the weights: these
may be any view of an array, and the compiled code brings them from where they are to their place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from math import prod

import numpy as np

from leanconv.codegen.emitter import Function
from leanconv.codegen.half_stored import half_stored
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.lowered import PackCall
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.symbolic import Count
from leanconv.target import Target
from leanconv.types import FLOAT32, FLOAT64, HALVES, INT16, UINT8, DType, as_dtype

# Brings numbers of elements into their order; where there is none, a 0.
Order = Callable[[np.ndarray], np.ndarray]


class KnownOrder(ABC):
    """An order that many constants have: the tables of small blocks are kept.

    Sub-classes are frozen dataclasses; equal ones are equal orders.
    """

    @abstractmethod
    def __call__(self, numbers: np.ndarray) -> np.ndarray:
        """Bring numbers into the order."""


PIECE_BYTES = 4 * 2**20  # packed by one call: the weights read meanwhile are in memory twice
_CHUNK = 16384  # elements
_SMALL = 4096  # elements of blocks whose tables may be kept
_ELEMENT_MOVES = 4  # an element's place, a comparison and a selection, and the move itself
# Of any type of so many bytes; float32 may become a half on its way.
_MOVED = {each.bytes: each for each in (UINT8, INT16, FLOAT32, FLOAT64)}


@dataclass(frozen=True)
class Rearrangement(Kernel):
    """Code that packs blocks by a table.

    Attributes:
        outer, inner: how many blocks there are, one after the other.
        outer_stride, inner_stride: elements from where one block reads to where the next does.
        each: elements of a packed block.
        dtype: of the elements.
    """

    VARIES = True
    operands = ("w", "table", "packed")  # elements, numbers of a block's as i32, the result

    outer: Count
    inner: Count
    outer_stride: Count
    inner_stride: Count
    each: Count
    dtype: DType

    @property
    def pieces(self) -> int:
        """Chunks of a block."""
        return ceil_div(self.each, _CHUNK)

    @property
    def grid(self) -> tuple[int, ...]:
        """Blocks by pieces of each."""
        return self.outer, self.inner, self.pieces

    def packing_cycles(self, target: Target) -> float:
        """Cycles of each element by itself, and of memory."""
        elements = self.outer * self.inner * self.each
        size = elements * self.dtype.bytes
        moved = _ELEMENT_MOVES * target.costs.element_move * elements
        return target.costs.overlapped(moved, packing_traffic(target, size, size))

    def emit(self, target: Target) -> str:
        """Emit the loops: chunks, elements."""
        del target
        e, element = Function(self.NAME), self.dtype.llvm
        w, table, packed = map(e.pointer, range(3), (element, "i32", element))
        with e.chunks(*self.grid) as (outer, inner, piece):
            source = w.at(outer * self.outer_stride + inner * self.inner_stride)
            result = packed.at((outer * self.inner + inner) * self.each)
            start = piece * _CHUNK
            stop = e.smin(start + _CHUNK, self.each)
            with e.loop("i", stop, start=start) as i:
                place = e.index(e.convert("sext", e.load(table.at(i)), "i64"))
                value = e.load(source.at(e.smax(place, 0)), align=1)
                there = place.compare("sge", 0)
                e.store(e.select(there, value, e.zero(value.kind)), result.at(i))
        return e.finish()


def packing_traffic(target: Target, read: float, packed: float, streamed: bool = False) -> float:
    """Return the cycles of memory of what packs.

    A cache reads the lines that are written before; what is streamed is written past the caches.
    """
    costs = target.costs
    if streamed:
        return costs.moved(read + packed, target.l2_bytes)
    cycles = costs.moved(read + 2 * packed, target.l2_bytes)
    if read + packed <= costs.l3_share * target.l3_bytes:
        return min(cycles, (read + packed) / costs.l3_copy)
    return cycles


def rearranged(blocks: np.ndarray, order: Order, each: int, dtype: DType) -> PackCall:
    """Return the call that packs blocks of one shape.

    Args:
        blocks: (outer, inner, …), any view of an array.
        order: of one block (…).
        each: elements that it makes of one block.
        dtype: in which they are packed: that of the array, or a half where that is of float32.
    """
    (outer, inner, *shape), item = blocks.shape, blocks.itemsize
    steps = blocks.strides[2:]

    @cache
    def tables() -> tuple[np.ndarray, ...]:
        return (table_of(order, tuple(shape), tuple(step // item for step in steps)),)

    known = isinstance(order, KnownOrder) and prod(shape) <= _SMALL
    table_of = _known_table if known else _table

    halved = dtype in HALVES and blocks.dtype == FLOAT32
    outer_step, inner_step = (step // item for step in blocks.strides[:2])
    kernel = Rearrangement(outer, inner, outer_step, inner_step, each, _MOVED[item])
    stored = half_stored(kernel, ("", "", str(dtype) if halved else ""))
    size = outer * inner * each * (dtype.bytes if halved else item)
    return PackCall(stored, lambda: blocks, tables, size, lowest(shape, steps))


def _table(order: Order, shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    ordered = np.ascontiguousarray(order(numbers(shape, strides)), np.int32)
    table: np.ndarray = ordered.reshape(-1) - np.int32(1)
    return table


_known_table = lru_cache(maxsize=256)(_table)


def numbers(shape: Sequence[int], strides: Sequence[int]) -> np.ndarray:
    """Return the distances of a view's elements from the lowest in memory, plus 1: int32.

    Raises:
        AssertionError: they are 2^31 elements apart or more.
    """
    found = np.full(shape, 1 - lowest(shape, strides), np.int32)
    ends = (max(0, n - 1) * abs(step) for n, step in zip(shape, strides, strict=True))
    assert sum(ends) < 2**31 - 1, "the elements of a table are too far apart"
    for axis, step in enumerate(strides):
        along = np.arange(shape[axis], dtype=np.int32) * np.int32(step)
        found += along.reshape(-1, *(1 for _ in shape[axis + 1 :]))
    return found


def lowest(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return the offset of a view's lowest element from its first, in the unit of the strides."""
    return sum(min(0, (n - 1) * step) for n, step in zip(shape, strides, strict=True))


def copied(array: np.ndarray) -> list[PackCall]:
    """Return the calls that pack an array as it is."""
    flat = np.ascontiguousarray(array).reshape(-1)
    whole = flat.size - flat.size % _CHUNK
    parts = flat[:whole].reshape(1, -1, _CHUNK), flat[whole:].reshape(1, 1, -1)
    dtype = as_dtype(array.dtype)
    orders = [(part, _Filled(part.shape[2])) for part in parts if part.size]
    return [rearranged(part, order, order.width, dtype) for part, order in orders]


def _same(numbers: np.ndarray) -> np.ndarray:
    return numbers


def rows(w: np.ndarray, dtype: DType) -> list[PackCall]:
    """Return the calls that pack a view (K, …) row-major."""
    return [rearranged(w[:, np.newaxis], _same, prod(w.shape[1:]), dtype)]


def panels(
    w: np.ndarray, width: int, order: Order, size: Callable[[int], int], dtype: DType
) -> list[PackCall]:
    """Return the calls that pack panels of output channels, group by group.

    Args:
        w: (groups, outputs, …), any view.
        width: outputs of a panel; the last one of a group may have fewer.
        order: of some outputs of a group (k, …): their panels, one after the other.
        size: elements that it makes of so many outputs.
        dtype: as for `rearranged`.
    """
    groups, outputs = w.shape[:2]
    if groups > 1 or outputs <= width:
        return [rearranged(w[:, np.newaxis], order, size(outputs), dtype)]
    (w,), whole = w, outputs // width
    together = max(1, PIECE_BYTES // (size(width) * dtype.bytes))
    split = w[: whole * width].reshape(1, whole, width, *w.shape[1:])
    parts = [split[:, first : first + together] for first in range(0, whole, together)]
    calls = [rearranged(part, order, size(width), dtype) for part in parts]
    if rest := outputs % width:
        calls.append(rearranged(w[-rest:][np.newaxis, np.newaxis], order, size(rest), dtype))
    return calls


def matrix_panels(matrices: np.ndarray, width: int) -> list[PackCall]:
    """The calls that pack matrices (…, n, k), any view, as [panel of n][k][width], zeros past n."""

    def order(part: np.ndarray) -> np.ndarray:
        split = (part[first : first + width].T for first in range(0, len(part), width))
        filled = [np.pad(some, [(0, 0), (0, width - some.shape[1])]) for some in split]
        return np.concatenate([panel.reshape(-1) for panel in filled])

    *_, k = matrices.shape
    dtype = as_dtype(matrices.dtype)
    return panels(matrices, width, order, lambda n: ceil_div(n, width) * width * k, dtype)


@dataclass(frozen=True)
class _Filled(KnownOrder):
    """The order of numbers with zeros after them, so many in all."""

    width: int

    def __call__(self, numbers: np.ndarray) -> np.ndarray:
        return np.pad(numbers, (0, self.width - len(numbers)))


def channels(values: np.ndarray, each: int, width: int) -> list[PackCall]:
    """Return the calls that pack a number per output channel, zeros past each group.

    Args:
        values: (K,), or several arrays of such numbers, (n, K), which are packed end to end.
        each: channels of a group; the last one may have fewer.
        width: of a packed group.
    """
    order = _Filled(width)
    calls, whole = list[PackCall](), values.shape[-1] // each * each
    for one in np.atleast_2d(values):
        parts = one[:whole].reshape(1, -1, each), one[whole:].reshape(1, 1, -1)
        dtype = as_dtype(values.dtype)
        calls += [rearranged(part, order, width, dtype) for part in parts if part.size]
    return calls
