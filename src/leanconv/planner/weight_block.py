"""Where packed weights are: in this process's memory, or in a file that processes share."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from leanconv.canonical import canonical_text
from leanconv.codegen.keys import choice_key
from leanconv.graph.ir import number_of
from leanconv.planner.constant_pool import ConstantPool
from leanconv.runtime.memory import Block, give_back
from leanconv.runtime.weight_file import WeightFiles
from leanconv.target import Target

_LEAST_BYTES = 64 * 2**10  # smaller blocks are in no file: a page of it takes as much
_PIECE = 4 * 2**20  # bytes hashed between two times that what was read is given back


class WeightBlock:
    """A block for a plan's weights, found packed or to be filled.

    Args:
        size: bytes that it has.
        files: where it may be found and kept; None for memory of this process alone.
        key: gives the name that it has there, or None; it is called only where there are files.
        make: makes a block of so many bytes where it is in none of the files.

    Attributes:
        is_packed: whether it was found.

    Raises:
        OutOfMemoryError: the system does not give the memory.
    """

    def __init__(
        self,
        size: int,
        files: WeightFiles | None,
        key: Callable[[], str | None],
        make: Callable[[int], Block] = Block,
    ) -> None:
        self._bytes, self._files, self._make = size, files, make
        self._key = key() if files is not None and size >= _LEAST_BYTES else None
        self._block: Block | None = None
        if files is None or self._key is None:
            self._block, self.is_packed = make(size), False  # at once: there may be no room
        else:
            self._block = files.find(self._key, size)
            self.is_packed = self._block is not None

    def filled(self, fill: Callable[[Block], None]) -> Block:
        """The block with its weights.

        Args:
            fill: packs them into a block; called where that is still to be done.
        """
        if self.is_packed:
            assert self._block is not None
            return self._block
        block = self._block
        if block is None:
            assert self._files is not None
            assert self._key is not None
            kept = self._files.made(self._key, self._bytes, fill)
            if kept is not None:
                return kept
            block = self._make(self._bytes)
        fill(block)
        return block


def weights_key(
    pool: ConstantPool,
    target: Target,
    made_for: tuple[str, str],
    files: Sequence[mmap.mmap] = (),
) -> str | None:
    """The key of a block of weights, which names all that its bytes follow from.

    These are places, recipes and the bytes of what is packed. Plans of other shapes and batches
    have the same key where they pack alike.

    Args:
        pool: what is to be packed.
        target: the form of weights follows from it.
        made_for: options that may decide how weights are packed; and all that lowering follows
            from, part of the key where a packing has no recipe.
        files: mapped ones, of which weights are views; pages that were read are given back.

    Returns:
        Hexadecimal digits; None if it is not known what some of the weights are made of.
    """
    packings, (options, lowering) = pool.packings, made_for
    if any(packing.recipe is None and not packing.sources for packing in packings):
        return None
    digests: dict[int, str] = {}

    def digest(array: np.ndarray) -> str:
        number = number_of(array)
        if number not in digests:
            digests[number] = _digest(array, files)
        return digests[number]

    places, _ = pool.places()
    parts = [canonical_text([(places[name], size) for name, size in pool.bytes.items()])]
    parts += [digest(array) for array in pool.arrays.values()]
    for number, packing in enumerate(packings):
        recipe = (lowering, number) if packing.recipe is None else packing.recipe
        sources = [digest(array) for array in packing.sources]
        parts.append(canonical_text((recipe, [*packing.bytes.values()], sources)))
    return choice_key("\n".join(("weights", options, *parts)), target)


def _digest(array: np.ndarray, files: Sequence[mmap.mmap]) -> str:
    """A digest of an array's shape, type and elements, in row-major order."""
    digest = hashlib.sha256(f"{array.dtype.str} {array.shape}\n".encode())
    for piece in _pieces(array):
        digest.update(np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data)
        if piece.nbytes > _PIECE // 2:
            give_back(files)
    return digest.hexdigest()


def _pieces(array: np.ndarray) -> Iterator[np.ndarray]:
    """An array in parts of few bytes, one after the other in row-major order."""
    if array.nbytes <= _PIECE:
        yield array
        return
    rows = max(1, len(array) * _PIECE // array.nbytes)
    for start in range(0, len(array), rows):
        part = array[start : start + rows]
        yield from _pieces(part[0]) if len(part) == 1 else (part,)
