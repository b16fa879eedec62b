"""A planned network as data that another process, or another machine, can run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from leanconv.codegen import compiler
from leanconv.codegen.host import host
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.linking import KernelForm
from leanconv.codegen.lowered import PackCall, Packing
from leanconv.planner.budget import Planner
from leanconv.planner.compiled_network import (
    SharedMemory,
    check_limit,
    lower,
    place,
    plan_weights,
    planned,
    running_calls,
)
from leanconv.planner.decisions import Decision
from leanconv.planner.found_plans import decide
from leanconv.planner.lowered_graph import OwnedGraph
from leanconv.planner.network_plan import NetworkPlan
from leanconv.planner.packing import pack_program
from leanconv.planner.plan_file import PlanFile
from leanconv.planner.weight_streaming import lay_out
from leanconv.records import dataclass
from leanconv.runtime.portable import PortableProgram
from leanconv.runtime.program import Constant, Place, Slot
from leanconv.runtime.static_library import TargetPrograms
from leanconv.runtime.table_sum import TableSum
from leanconv.spec.format import aligned

Operand: TypeAlias = "int | Constant | Place | Slot"
_TILES = "@llvm.x86.tile"  # what all code of matrix tiles calls
_INFLATED = 1.1  # bytes packed for each of what they are made of, from which on a library packs


@dataclass(frozen=True, eq=False)
class PortableNetwork:
    """A network without an address in it.

    Attributes:
        plan: what runs.
        program: its stages.
        texts: LLVM IR of each form's function, by its name.
        symbols: the name of each form's function.
        constants: the program's, packed, by their first byte.
        tables: those of them that hold places in memory.
        unpacked: the other ones: the calls that pack each, by its first byte.
        packers: the forms of these calls' kernels.
    """

    plan: NetworkPlan
    program: PortableProgram
    texts: Mapping[str, str]
    symbols: Mapping[str, str]
    constants: Mapping[int, np.ndarray]
    tables: frozenset[int]
    unpacked: Mapping[int, Sequence[PackCall]]
    packers: Mapping[Kernel, KernelForm]


def portable_network(
    owned: OwnedGraph,
    budget: Planner,
    memory_limit: int | None = None,
    pinned: PlanFile | None = None,
    decisions: Sequence[Decision] | None = None,
    compact: bool = False,
) -> PortableNetwork:
    """Plan a network as `CompiledNetwork` does, for any target; nothing of it is loaded.

    Weights are packed here and now, by code for this machine.

    Args:
        owned, budget, pinned, decisions: as for `CompiledNetwork`.
        memory_limit: bytes of weights and arena; of the arena alone where a network that is loaded
            would read weights from a file in each run.
        compact: leave weights that packing makes larger to a program that packs them.

    Raises:
        BudgetError: no plan keeps the limits.
    """
    graph = owned.graph
    decided = decide(graph, budget, memory_limit, pinned, decisions)
    planner = decided.planner
    lowered = lower(graph, decided)
    layout = lay_out(lowered, planner.threads, pinned.buffers if pinned else None)
    limit = memory_limit
    if planner.streams:  # then only the arena counts: the system drops pages of a file
        check_limit(layout.storage.arena_bytes, limit)
        limit = None
    plan = planned(graph, lowered, layout, decided, limit)
    pool, later = lowered.constants, list[Packing]()
    if compact:
        later = [packing for packing in pool.packings if _is_inflated(packing)]
        pool.leave(later)
    tables = frozenset(layout.constants[name] for name in pool.tables())
    weights = plan_weights(owned, lowered, decided, SharedMemory())
    del graph
    calls = running_calls(lowered, planner)
    unpacked = {
        layout.constants[name]: pieces
        for packing in later
        for name, pieces in packing.calls().items()
    }
    packers = [call.kernel for pieces in unpacked.values() for call in pieces]
    emitted = compiler.emitted_forms([*(call.kernel for call in calls), *packers], planner.target)
    program = place(lowered, layout, calls, emitted.form, planner.threads)
    library = compiler.load(weights.kernels, host())
    block, addresses = weights.packed(library, planner.threads)
    packed = {
        layout.constants[name]: block.view(at - block.address, layout.sizes[name])
        for name, at in addresses.items()
        if layout.sizes[name]
    }
    forms = {kernel: emitted.form(kernel) for kernel in packers}
    texts, symbols = emitted.texts, emitted.symbols
    return PortableNetwork(plan, program, texts, symbols, packed, tables, unpacked, forms)


def _is_inflated(packing: Packing) -> bool:
    sources = sum(each.nbytes for each in packing.sources)
    return 0 < sources * _INFLATED < sum(packing.bytes.values())


class ConstantSection:
    """The constants of several programs in one piece of memory, equal ones once.

    Attributes:
        bytes: of all of them.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._arrays = dict[int, np.ndarray]()
        self._offsets = dict[bytes, int]()
        self._tables = set[int]()

    def add(self, array: np.ndarray, is_table: bool = False) -> int:
        """Return the byte at which an array's elements begin, as they lie in memory.

        Args:
            array: the constant.
            is_table: whether it holds places in memory.
        """
        flat = array.ravel("K").view(np.uint8)
        digest = hashlib.sha256(flat.data).digest()
        if digest not in self._offsets:
            self._offsets[digest] = self.bytes
            self._arrays[self.bytes] = flat
            self.bytes += aligned(flat.nbytes)
        if is_table:
            self._tables.add(self._offsets[digest])
        return self._offsets[digest]

    def table_sum(self, begin: int) -> TableSum:
        """The sum of all tables, of constants from a byte of a file on."""
        ranges = [(begin + at, self._arrays[at].nbytes) for at in sorted(self._tables)]

        def read(first: int, size: int) -> np.ndarray:
            found = np.zeros(size, np.uint8)
            array = self._arrays[first - begin]
            found[: array.nbytes] = array
            return found

        return TableSum.of(ranges, read)

    @property
    def mark(self) -> bytes:
        """32 bytes that name all constants."""
        return hashlib.sha256(b"".join(self._offsets)).digest()

    def write(self, body: bytearray, begin: int) -> None:
        """Write all constants, from a byte on."""
        for at, array in self._arrays.items():
            body[begin + at : begin + at + array.nbytes] = array.data


def target_programs(
    networks: Mapping[str, PortableNetwork], section: ConstantSection
) -> tuple[TargetPrograms, int, int]:
    """Bring networks into one memory and one section of constants.

    Args:
        networks: of one target, by the names of functions that run them.
        section: where constants are; theirs are added.

    Returns:
        Their programs, the bytes of memory that these need, and how many of them packed weights
        take.
    """
    each = list(networks.values())
    threads = each[0].plan.threads
    pieces, places, packed_bytes = _unpacked(each)
    forms = {kernel: form for network in each for kernel, form in network.packers.items()}
    packing = pack_program(pieces, forms.__getitem__, threads) if pieces else None
    arenas = [network.program.arena_bytes for network in each]
    begin = aligned(max([*arenas, packing.program.arena_bytes if packing else 0]))
    runs = {}
    for name, network, packed in zip(networks, each, places, strict=True):
        found: dict[int, Constant | Place]
        found = {
            at: Constant(section.add(array, at in network.tables))
            for at, array in network.constants.items()
        }
        found.update((at, Place(begin + new)) for at, new in packed.items())
        runs[name] = _placed(network.program, found, {})
    packs = None
    if packing is not None:
        arrays = [Constant(section.add(array)) for array in packing.arrays]
        tables = {at: Constant(section.add(table)) for at, table in packing.tables.items()}
        given = dict[int, Constant | Place](enumerate([*arrays, Place(begin)]))
        packs = replace(_placed(packing.program, tables, given), inputs=0, outputs=0)
    symbols = {digest: name for network in each for digest, name in network.symbols.items()}
    target = each[0].plan.target
    if not any(_TILES in text for network in each for text in network.texts.values()):
        target = target.without_tiles
    made = TargetPrograms(target, symbols, runs, packs)
    return made, begin + packed_bytes, packed_bytes


def _unpacked(
    networks: Sequence[PortableNetwork],
) -> tuple[list[tuple[PackCall, int]], list[dict[int, int]], int]:
    """Place the weights that a library packs, equal ones once.

    Returns:
        All calls with the bytes at which their results begin; where each network's constants are;
        and the bytes of all.
    """
    calls, known, end = list[tuple[PackCall, int]](), dict[object, int](), 0
    places = list[dict[int, int]]()
    for network in networks:
        found = {}
        for at, pieces in network.unpacked.items():
            key = tuple((piece.kernel, _read_by(piece)) for piece in pieces)
            if key not in known:
                known[key] = place = end
                for piece in pieces:
                    calls.append((piece, place))
                    place += piece.bytes
                end = aligned(place)
            found[at] = known[key]
        places.append(found)
    return calls, places, end


def _read_by(piece: PackCall) -> tuple[object, ...]:
    """Return a key of what a packing call reads."""
    arrays = piece.source(), *piece.tables()
    digests = (hashlib.sha256(np.ascontiguousarray(each).data).digest() for each in arrays)
    return piece.first, arrays[0].shape, arrays[0].strides, *digests


def _placed(
    program: PortableProgram,
    constants: Mapping[int, Constant | Place],
    given: Mapping[int, Constant | Place],
) -> PortableProgram:
    """Put a program's constants, and arrays that are the same in each run, in other places.

    Args:
        program: without streamed constants.
        constants: where each is, by its first byte.
        given: where arrays begin, by number.
    """

    def operand(was: Operand) -> Operand:
        if isinstance(was, Constant):
            return constants[was.offset]
        if isinstance(was, Slot) and was.number in given:
            start = given[was.number]
            return replace(start, offset=start.offset + was.offset)
        return was

    stages = (replace(s, operands=tuple(map(operand, s.operands))) for s in program.stages)
    return replace(program, stages=tuple(stages))
