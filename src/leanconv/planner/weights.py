"""Pack a network's constants into one block of memory."""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence

from leanconv.codegen import compiler
from leanconv.codegen.linking import Library
from leanconv.codegen.lowered import Calls, PackCall
from leanconv.codegen.memory_limits import require_for_products
from leanconv.errors import OutOfMemoryError
from leanconv.planner.constant_pool import ConstantPool
from leanconv.progress import spending, step
from leanconv.runtime.memory import Block, give_back
from leanconv.runtime.program import Program, Stage
from leanconv.spec.format import aligned
from leanconv.target import Target

_READ_BYTES = 4 * 2**20  # packed between two times that what was read is given back


class Packer:
    """Runs the calls that pack weights, several together.

    Args:
        library: has their kernels.
        threads: that take part.
    """

    def __init__(self, library: Library, threads: int) -> None:
        self._library, self._threads = library, threads
        self._waiting: list[tuple[PackCall, int]] = []

    def add(self, call: PackCall, address: int) -> None:
        """Let a call wait that writes to an address."""
        self._waiting.append((call, address))

    def run(self) -> None:
        """Run the calls that wait, and let go of their weights."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        arrays = [(call.source(), call.tables()) for call, _ in waiting]
        stages = []
        for (call, address), (source, tables) in zip(waiting, arrays, strict=True):
            read = source.ctypes.data + call.first, *(table.ctypes.data for table in tables)
            stages.append(Stage(call.kernel, (*read, address)))
        stride = aligned(max(call.kernel.scratch_bytes for call, _ in waiting))
        scratch, threads = Block(stride * self._threads), self._threads
        Program(stages, self._library, 0, scratch.address, stride, threads, paced=False).run(())


def pack(calls: Calls, addresses: Mapping[str, int], target: Target, threads: int) -> None:
    """Pack all constants at once.

    Args:
        calls: what packs each, by name.
        addresses: where each is to be.
        target: what to emit for.
        threads: that take part.
    """
    each = [(name, call) for name, pieces in calls.items() for call in pieces]
    packer = Packer(compiler.load([call.kernel for _, call in each], target), threads)
    places = dict(addresses)
    for name, call in each:
        packer.add(call, places[name])
        places[name] += call.bytes
    packer.run()


def fill_weights(
    weights: Block,
    pool: ConstantPool,
    places: Mapping[str, int],
    packer: Packer,
    files: Sequence[mmap.mmap] = (),
) -> None:
    """Bring all constants to their places, so that hardly anything is in memory twice.

    The pool gives up each array when it is copied, so that it and the weights that it was packed
    from are freed at once.

    Args:
        weights: the block.
        pool: what is to be packed.
        places: offsets in the block.
        packer: runs the compiled code that packs weights.
        files: mapped ones, of which weights are views; pages that were read are given back.

    Raises:
        OutOfMemoryError: there is no memory to pack in.
    """
    require_for_products()
    try:
        with spending("packing weights"):
            _fill(weights, pool, places, packer, files)
    except MemoryError as error:
        raise OutOfMemoryError(
            f"memory to pack weights in could not be had ({error}); give a smaller memory_limit, "
            "or free memory"
        ) from error


def _fill(
    weights: Block,
    pool: ConstantPool,
    places: Mapping[str, int],
    packer: Packer,
    files: Sequence[mmap.mmap],
) -> None:
    give_back(files)
    sizes, filled, read, done = pool.bytes, dict.fromkeys(places, 0), 0, 0
    size = sum(sizes[name] for name in places)
    step("packing weights", 0, size)
    for name, packed in pool.take():
        address, start = weights.address + places[name], filled[name]
        count = packed.bytes if isinstance(packed, PackCall) else packed.nbytes
        filled[name], read = start + count, read + count
        assert filled[name] <= sizes[name], f"{name} has over {sizes[name]} bytes"
        if isinstance(packed, PackCall):
            packer.add(packed, address + start)
        else:
            weights.write(places[name] + start, packed)
        if read >= _READ_BYTES:
            packer.run()
            done, read = done + read, 0
            step("packing weights", done, size)
            give_back(files)
            weights.release()
    packer.run()
    step("packing weights", size, size)
    give_back(files)
    short = [name for name, size in filled.items() if size != sizes[name]]
    assert not short, f"{short[0]} has {filled[short[0]]} bytes, not {sizes[short[0]]}"
