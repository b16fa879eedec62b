"""Pack a network's constants into one block of memory."""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence

import numpy as np

from leanconv.codegen import compiler
from leanconv.codegen.linking import Library
from leanconv.codegen.lowered import Calls, PackCall
from leanconv.codegen.process_limits import require_for_products
from leanconv.errors import OutOfMemoryError
from leanconv.planner.constant_pool import ConstantPool
from leanconv.progress import spending, step
from leanconv.runtime.memory import Block, give_back
from leanconv.runtime.program import Program, Slot, Stage
from leanconv.spec.format import aligned
from leanconv.target import Target

_LEAST_SHARED = 2**20  # bytes for which workers are woken: one thread packs them in 0.3 ms
_READ_BYTES = 4 * 2**20  # packed between two times that what was read is given back


class Preparation:
    """Calls that pack constants, as a program that runs whenever what they are made of changes.

    Args:
        calls: each with the address of its result.
        library: has their kernels.
        threads: that take part where there is much to pack.
        given: arrays that each run gives anew, row-major; calls that read others read the same.

    Attributes:
        library: as given; while one is kept, others with these kernels link nothing.
    """

    def __init__(
        self,
        calls: Sequence[tuple[PackCall, int]],
        library: Library,
        threads: int,
        given: Sequence[np.ndarray] = (),
    ) -> None:
        self.library = library
        self._kept: list[object] = []  # tables, and arrays that are not given
        stages = []
        for call, address in calls:
            source, tables = call.source(), call.tables()
            self._kept += (source, tables)
            read = _place(source.ctypes.data + call.first, given)
            operands = (read, *(table.ctypes.data for table in tables), address)
            stages.append(Stage(call.kernel, operands))
        if sum(call.bytes for call, _ in calls) < _LEAST_SHARED:
            threads = 1
        stride = aligned(max(call.kernel.scratch_bytes for call, _ in calls))
        self._scratch = Block(stride * threads)
        self._program = Program(
            stages, library, len(given), self._scratch.address, stride, threads, paced=False
        )

    @classmethod
    def of(
        cls,
        calls: Calls,
        addresses: Mapping[str, int],
        target: Target,
        threads: int,
        given: Sequence[np.ndarray] = (),
    ) -> Preparation:
        """All pieces of constants, by name, each constant from its address on."""
        each, places = list[tuple[PackCall, int]](), dict(addresses)
        for name, pieces in calls.items():
            for call in pieces:
                each.append((call, places[name]))
                places[name] += call.bytes
        library = compiler.load([call.kernel for call, _ in each], target)
        return cls(each, library, threads, given)

    def run(self, given: Sequence[np.ndarray] = ()) -> None:
        """Pack, from arrays of the shapes and types of those that this was made for."""
        self._program.run([array.ctypes.data for array in given])


def _place(address: int, given: Sequence[np.ndarray]) -> int | Slot:
    """An address, or where it is in one of the arrays that are given."""
    for number, array in enumerate(given):
        if 0 <= address - array.ctypes.data < array.nbytes:
            return Slot(number, address - array.ctypes.data)
    return address


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
        if waiting:
            Preparation(waiting, self._library, self._threads).run()


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
