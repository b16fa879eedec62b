"""Pack a network's constants into one block of memory."""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence

from leanconv.codegen.memory_limits import require_for_products
from leanconv.errors import OutOfMemoryError
from leanconv.planner.constant_pool import ConstantPool
from leanconv.progress import step
from leanconv.runtime.memory import Block, give_back

_READ_BYTES = 8 * 2**20  # packed between two times that what was read is given back


def fill_weights(
    weights: Block,
    pool: ConstantPool,
    places: Mapping[str, int],
    files: Sequence[mmap.mmap] = (),
) -> None:
    """Bring all constants to their places, so that hardly anything is in memory twice.

    The pool gives up each array when it is copied, so that it and the weights that it was packed
    from are freed at once.

    Args:
        weights: the block.
        pool: what is to be packed.
        places: offsets in the block.
        files: mapped ones, of which weights are views; pages that were read are given back.

    Raises:
        OutOfMemoryError: there is no memory to pack in.
    """
    require_for_products()
    try:
        _fill(weights, pool, places, files)
    except MemoryError as error:
        raise OutOfMemoryError(
            f"memory to pack weights in could not be had ({error}); give a smaller memory_limit, "
            "or free memory"
        ) from error


def _fill(
    weights: Block, pool: ConstantPool, places: Mapping[str, int], files: Sequence[mmap.mmap]
) -> None:
    give_back(files)
    sizes, filled, read, done = pool.bytes, dict.fromkeys(places, 0), 0, 0
    size = sum(sizes[name] for name in places)
    step("packing weights", 0, size)
    for name, array in pool.take():
        start, filled[name] = filled[name], filled[name] + array.nbytes
        assert filled[name] <= sizes[name], f"{name} has over {sizes[name]} bytes"
        weights.write(places[name] + start, array)
        read, done = read + array.nbytes, done + array.nbytes
        step("packing weights", done, size)
        if read >= _READ_BYTES:
            give_back(files)
            read = 0
    give_back(files)
    short = [name for name, size in filled.items() if size != sizes[name]]
    assert not short, f"{short[0]} has {filled[short[0]]} bytes, not {sizes[short[0]]}"
