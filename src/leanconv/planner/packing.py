"""Programs of a candidate, and of what packs constants: once at load, or whenever they change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from leanconv.algorithms import Candidate
from leanconv.codegen import compiler
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.linking import KernelForm, Library
from leanconv.codegen.lowered import Calls, PackCall
from leanconv.graph.ir import number_of, owner
from leanconv.records import dataclass
from leanconv.runtime.memory import Block, SharedArena
from leanconv.runtime.portable import Operand, PortableProgram, linked_stages
from leanconv.runtime.program import Constant, Place, Program, Slot, Stage
from leanconv.spec.format import aligned, aligned_offsets
from leanconv.target import Target

_LEAST_SHARED = 2**20  # bytes for which workers are woken: one thread packs them in 0.3 ms


@dataclass(frozen=True, eq=False)
class PackProgram:
    """A program that packs constants.

    Attributes:
        program: its inputs are the arrays that are packed, its constants tables, its output the
            constants.
        arrays: its inputs; their bytes from the first element on are read as they lie.
        tables: by the bytes at which they begin among its constants.
    """

    program: PortableProgram
    arrays: tuple[np.ndarray, ...]
    tables: Mapping[int, np.ndarray]


def pack_program(
    calls: Sequence[tuple[PackCall, int]],
    form: Callable[[Kernel], KernelForm],
    threads: int,
    given: Sequence[np.ndarray] = (),
) -> PackProgram:
    """The program that makes some calls of packing kernels.

    Args:
        calls: each with the byte of the constants at which its result begins.
        form: gives the form of each kernel.
        threads: that take part where there is much to pack.
        given: the first of its inputs, row-major.
    """
    arrays, tables = list(given), dict[int, np.ndarray]()
    numbers, offsets = dict[int, int](), dict[int, int]()  # by the numbers of arrays
    stages, end = [], 0

    def slot(call: PackCall) -> Slot:
        source = call.source()
        address = source.ctypes.data + call.first
        for number, array in enumerate(given):
            if 0 <= address - array.ctypes.data < array.nbytes:
                return Slot(number, address - array.ctypes.data)
        whole = owner(source)
        number = numbers.setdefault(number_of(whole), len(arrays))
        if number == len(arrays):
            arrays.append(whole)
        return Slot(number, address - whole.ctypes.data)

    for call, place in calls:
        operands: list[Slot | Constant] = [slot(call)]
        for table in call.tables():
            at = offsets.setdefault(number_of(table), end)
            if at == end:
                tables[at], end = table, end + aligned(table.nbytes)
            operands.append(Constant(at))
        stages.append((form(call.kernel), operands, place))
    if sum(call.bytes for call, _ in calls) < _LEAST_SHARED:
        threads = 1
    scratch = aligned(max(form.scratch_bytes for form, _, _ in stages))
    result = len(arrays)
    program = PortableProgram(
        tuple(Stage(f, (*read, Slot(result, place)), Place(0)) for f, read, place in stages),
        result,
        1,
        threads,
        scratch * threads,
        end,
    )
    return PackProgram(program, tuple(arrays), tables)


class Preparation:
    """Calls that pack constants, as a program that runs whenever its sources change.

    Args:
        calls: each with the address of its result.
        library: has their kernels.
        threads: that take part where there is much to pack.
        given: arrays that each run gives anew, row-major; calls that read others read the same.
        moving: whether each run says from which address on those of `calls` count.

    Attributes:
        library: as given; while one is kept, others with these kernels link nothing.
    """

    def __init__(
        self,
        calls: Sequence[tuple[PackCall, int]],
        library: Library,
        threads: int,
        given: Sequence[np.ndarray] = (),
        moving: bool = False,
    ) -> None:
        self.library = library
        base = 0 if moving else min(address for _, address in calls)
        made = pack_program([(c, at - base) for c, at in calls], library.form, threads, given)
        tables, others = made.tables, made.arrays[len(given) :]
        self._kept = tables, others
        known = dict[int, Operand]()
        known.update((n, array.ctypes.data) for n, array in enumerate(others, len(given)))
        known[len(made.arrays)] = Slot(len(given)) if moving else base
        size = made.program.arena_bytes
        arena = self._arena = SharedArena().part(size) if size else None
        stages = linked_stages(made.program, lambda at: tables[at].ctypes.data, known)
        threads = made.program.threads
        slots = len(given) + moving
        self._program = Program(stages, library, slots, 0, 0, threads, paced=False, arena=arena)

    @classmethod
    def of(
        cls,
        calls: Calls,
        addresses: Mapping[str, int],
        target: Target,
        threads: int,
        given: Sequence[np.ndarray] = (),
        moving: bool = False,
    ) -> Preparation:
        """All pieces of constants, by name, each constant from its address on."""
        each = placed_calls(calls, addresses)
        library = compiler.load([call.kernel for call, _ in each], target)
        return cls(each, library, threads, given, moving)

    def run(self, given: Sequence[np.ndarray] = (), start: int | None = None) -> None:
        """Pack, from arrays of the shapes and types of those that this was made for.

        Args:
            given: these.
            start: from which address on results are, where that moves.
        """
        addresses = [array.ctypes.data for array in given]
        self.run_at(addresses if start is None else [*addresses, start])

    def run_at(self, addresses: Sequence[int]) -> None:
        """Pack, from arrays at these addresses; the last one is of results, where that moves."""
        try:
            self._program.run(addresses)
        finally:
            if self._arena is not None:
                self._arena.arena.give_back()


def placed_calls(calls: Calls, places: Mapping[str, int]) -> list[tuple[PackCall, int]]:
    """All pieces of constants, by name, each with where its result begins."""
    each, ends = list[tuple[PackCall, int]](), dict(places)
    for name, pieces in calls.items():
        for call in pieces:
            each.append((call, ends[name]))
            ends[name] += call.bytes
    return each


def candidate_program(
    candidate: Candidate, target: Target, threads: int, ends: Sequence[str]
) -> tuple[PortableProgram, Library]:
    """Compile a candidate's kernels; constants are in one block, in the order of their roles.

    Args:
        candidate: the one to run.
        target: the processor to emit for.
        threads: threads that take part.
        ends: roles of the arrays that each run is given: inputs, then the output.
    """
    constants, constant_bytes = aligned_offsets(candidate.constant_bytes)
    temporaries, shared = aligned_offsets(candidate.temporaries)
    places: dict[str, Slot | Constant | Place] = {role: Slot(n) for n, role in enumerate(ends)}
    places |= {role: Constant(offset) for role, offset in constants.items()}
    places |= {role: Place(offset) for role, offset in temporaries.items()}
    library = compiler.load([use.kernel for use in candidate.kernels], target)
    stages = tuple(
        Stage(library.form(use.kernel), tuple(places[r] for r in use.roles), Place(shared))
        for use in candidate.kernels
    )
    arena = candidate.workspace_bytes(threads)
    return PortableProgram(stages, len(ends) - 1, 1, threads, arena, constant_bytes), library


@dataclass(frozen=True, eq=False)
class PackingRuns:
    """A program whose runs pack its constants, and then compute with them.

    Attributes:
        program: its inputs are those of a candidate, then the arrays that are packed; its
            constants are tables. What is packed lies in the arena.
        library: has the code.
        tables: in memory.
    """

    program: PortableProgram
    library: Library
    tables: Block


def packing_runs(
    candidate: Candidate,
    given: Mapping[str, np.ndarray],
    target: Target,
    threads: int,
    ends: Sequence[str],
) -> PackingRuns:
    """Compile a candidate's kernels, and those that pack its constants in each run.

    Args:
        candidate: the one to run.
        given: arrays that lie in memory as those of all runs will: "w", and those of channels.
        target, threads, ends: as `candidate_program` has them.
    """
    plain, _ = candidate_program(candidate, target, threads, ends)
    channels = {name: array for name, array in given.items() if name != "w"}
    offsets, packed_bytes = aligned_offsets(candidate.constant_bytes)
    calls = placed_calls(candidate.packing(given["w"], channels), offsets)
    kernels = [*(use.kernel for use in candidate.kernels), *(call.kernel for call, _ in calls)]
    library = compiler.load(kernels, target)
    arrays = list(given.values())
    made = pack_program(calls, library.form, threads, arrays)
    scratch = made.program.arena_bytes // made.program.threads * threads
    packed, first, y = max(plain.arena_bytes, scratch), len(ends) - 1, len(ends) - 1 + len(arrays)
    held, end = dict(made.tables), made.program.constant_bytes
    known: dict[int, Operand] = {len(made.arrays): Place(packed)}
    for number, array in enumerate(made.arrays):
        if number < len(arrays):
            known[number] = Slot(first + number)
        else:
            known[number], held[end] = Constant(end), array
            end += aligned(array.nbytes)
    packs = linked_stages(made.program, Constant, known)
    runs = linked_stages(plain, lambda at: Place(packed + at), {first: Slot(y)})
    tables = Block(end)
    for at, array in held.items():
        tables.write(at, array)
    size = packed + packed_bytes
    program = PortableProgram((*packs, *runs), y, 1, threads, size, end)
    return PackingRuns(program, library, tables)
