"""Constants of a plan: found packed, or packed by compiled code into one block of memory."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from leanconv.canonical import canonical_text
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.keys import choice_key
from leanconv.codegen.linking import Library
from leanconv.codegen.lowered import PackCall, Packing
from leanconv.codegen.process_limits import require_for_products
from leanconv.errors import memory_reported
from leanconv.graph.ir import number_of
from leanconv.planner.lowered_graph import ConstantPool, WeightStore
from leanconv.planner.packing import Preparation
from leanconv.progress import spending, step
from leanconv.runtime.memory import Block, give_back, mapped_files
from leanconv.runtime.weight_file import WeightFiles
from leanconv.target import Target

_READ_BYTES = 4 * 2**20  # packed between two times that what was read is given back
_LEAST_BYTES = 64 * 2**10  # smaller blocks are in no file: a page of it takes as much
_PIECE = 4 * 2**20  # bytes hashed between two times that what was read is given back


class PlanWeights:
    """The constants of a plan in memory: shared by other plans or processes, or packed here.

    Args:
        pool: all of them; it gives them up.
        store: packed weights of the network's plans.
        files: where blocks of them are found and kept; None for memory of this process alone.
        made_for: as `weights_key` takes it, with the target.
        mapped: files of which the network's arrays are views.
        make: makes a block of so many bytes where it is in none of the files.

    Attributes:
        shared_bytes: of constants that other plans had packed already.
        held: all packed weights, in their blocks; other plans find them as long as this is kept.

    Raises:
        OutOfMemoryError: the system does not give the memory.
    """

    def __init__(
        self,
        pool: ConstantPool,
        store: WeightStore,
        files: WeightFiles | None,
        target: Target,
        made_for: tuple[str, str],
        mapped: Sequence[mmap.mmap] = (),
        make: Callable[[int], Block] = Block,
    ) -> None:
        self._pool, self._store, self._files = pool, store, files
        self._mapped, self._make = mapped, make
        self.held = pool.take_shared(store)
        self.shared_bytes = sum(weights.bytes for weights in self.held)
        self._places, self._bytes = pool.places()
        self._key, self._block = None, None
        if files is not None and self._bytes >= _LEAST_BYTES:
            self._key = weights_key(pool, target, made_for, mapped)
        if files is None or self._key is None:
            self._block, self._is_packed = make(self._bytes), False  # there may be no room
        else:
            self._block = files.find(self._key, self._bytes)
            self._is_packed = self._block is not None

    @property
    def kernels(self) -> list[Kernel]:
        """The kernels that pack the constants that are not packed yet."""
        return [] if self._is_packed else self._pool.kernels()

    def packed(self, library: Library, threads: int) -> tuple[Block, dict[str, int]]:
        """Pack the constants that are not packed yet, and offer them to other plans.

        Args:
            library: has `kernels`.
            threads: that take part.

        Returns:
            The plan's own block, and the addresses of all constants by name.

        Raises:
            OutOfMemoryError: there is no memory to pack in.
        """
        offered = self._pool.offered(self._store.digest)
        given = self._pool, self._places, library, threads, self._mapped
        block = self._filled(lambda new: fill_weights(new, *given))
        self._pool.drop()
        self.held += self._store.keep(offered, block, self._places)
        addresses = {name: block.address + at for name, at in self._places.items()}
        for each in self.held:
            addresses.update(each.addresses)
        return block, addresses

    def _filled(self, fill: Callable[[Block], None]) -> Block:
        block = self._block
        if block is not None and self._is_packed:
            return block
        if block is None:
            assert self._files is not None
            assert self._key is not None
            kept = self._files.made(self._key, self._bytes, fill)
            if kept is not None:
                return kept
            block = self._make(self._bytes)
        fill(block)
        return block


@memory_reported("packing weights")
@spending("packing weights")
def fill_weights(
    weights: Block,
    pool: ConstantPool,
    places: Mapping[str, int],
    library: Library,
    threads: int,
    files: Sequence[mmap.mmap] = (),
) -> None:
    """Bring all constants to their places, so that hardly anything is in memory twice.

    The pool gives up each array when it is copied, so that it and the weights that it was packed
    from are freed at once.

    Args:
        weights: the block.
        pool: the constants to be packed.
        places: offsets in the block.
        library: has the code that packs it.
        threads: that take part.
        files: mapped ones, of which weights are views; pages that were read are given back.

    Raises:
        OutOfMemoryError: there is no memory to pack in.
    """
    require_for_products()
    give_back(files)
    sizes, filled, read, done = pool.bytes, dict.fromkeys(places, 0), 0, 0
    waiting: list[tuple[PackCall, int]] = []

    def pack() -> None:
        if waiting:
            Preparation(waiting, library, threads).run()
            waiting.clear()

    size = sum(sizes[name] for name in places)
    step("packing weights", 0, size)
    for name, packed in pool.take():
        address, start = weights.address + places[name], filled[name]
        count = packed.bytes if isinstance(packed, PackCall) else packed.nbytes
        filled[name], read = start + count, read + count
        assert filled[name] <= sizes[name], f"{name} has over {sizes[name]} bytes"
        if isinstance(packed, PackCall):
            waiting.append((packed, address + start))
        else:
            weights.write(places[name] + start, packed)
        if read >= _READ_BYTES:
            pack()
            done, read = done + read, 0
            step("packing weights", done, size)
            give_back(files)
            weights.release()
    pack()
    step("packing weights", size, size)
    give_back(files)
    short = [name for name, size in filled.items() if size != sizes[name]]
    assert not short, f"{short[0]} has {filled[short[0]]} bytes, not {sizes[short[0]]}"


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
        pool: the constants to be packed.
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


def packing_digest(packing: Packing) -> str:
    """A digest of a packing's recipe and of the arrays that it packs, the same in any process."""
    files = mapped_files(packing.sources)
    sources = [_digest(array, files) for array in packing.sources]
    text = canonical_text((packing.recipe, [*packing.bytes.values()], sources))
    return hashlib.sha256(text.encode()).hexdigest()


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
