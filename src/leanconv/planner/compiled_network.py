"""A network made ready for fixed input shapes, and its runs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial

from leanconv.canonical import canonical_text
from leanconv.codegen import compiler
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.linking import KernelForm, Library
from leanconv.codegen.lowered import Call, Repeat
from leanconv.errors import BudgetError
from leanconv.graph.ir import Graph, TensorType
from leanconv.graph.regions import all_constants
from leanconv.planner.budget import Planner
from leanconv.planner.decisions import Decision
from leanconv.planner.found_plans import Decided, decide
from leanconv.planner.graph_planner import GraphPlanner
from leanconv.planner.lowered_graph import LoweredGraph, OwnedGraph, WeightStore, all_repeats
from leanconv.planner.lowering import lower_graph
from leanconv.planner.network_plan import NetworkPlan
from leanconv.planner.plan_file import PlanFile, graph_digest
from leanconv.planner.weight_streaming import Layout, add_weight_prefetch, lay_out, streamed_within
from leanconv.planner.weights import PlanWeights
from leanconv.records import dataclass, field, replace
from leanconv.runtime.file_block import FileBlock, unnamed_block
from leanconv.runtime.memory import ArenaPart, Block, Memory, Outputs, SharedArena, mapped_files
from leanconv.runtime.portable import (
    PortableProgram,
    RepeatedStages,
    StreamedConstant,
    linked_stages,
)
from leanconv.runtime.program import Constant, Place, Program, Sized, Slot, Stage
from leanconv.runtime.segmented_program import Files, LoopProgram, StreamProgram, reading_rate
from leanconv.runtime.weight_file import WeightFiles
from leanconv.settings import current_settings
from leanconv.units import counted, format_bytes


@dataclass(frozen=True, eq=False)
class SharedMemory:
    """The packed weights, arena and outputs that all plans of one network share.

    Attributes:
        weights: packed ones, each once.
        arena: as large as the largest plan needs.
        outputs: memory of large results, taken again.
        files: where packed weights are for all processes; None for memory of this one.
        made_for: the options that may decide how they are packed; networks of others share none.
        make_room: called with the bytes of a plan before they are set aside.
    """

    weights: WeightStore = field(default_factory=WeightStore)
    arena: SharedArena = field(default_factory=SharedArena)
    outputs: Outputs = field(default_factory=Outputs)
    files: WeightFiles | None = None
    made_for: str = ""
    make_room: Callable[[int], None] = lambda _bytes: None


class CompiledNetwork:
    """A network made ready for fixed input shapes: plan, code, weights, arena.

    Args:
        owned: the graph after the passes; it is taken once its plan keeps the limits, so that no
            weights are in memory twice once they are packed.
        budget: plans of the same graph; its target must be able to run here.
        memory_limit: bytes that weights and arena may take together, None for no limit.
        pinned: a plan to follow as it is; None lets the planner find one.
        decisions: how each node is computed; None leaves it to the planner.
        shared: the memory of all plans of the same network; None if there are no others.

    Attributes:
        decided: how each node is computed, and the planner that says so.
        plan: steps, bytes, errors and times.
        program: the same without an address in it.
        memory: of this plan alone: packed weights.
        arena: its part of the arena that all plans share.
        outputs: memory of its large results, which all plans share.
        forms, compiled_forms: how many its kernels have, and how many were compiled for it.
        shared_bytes: of the weights that other plans had packed already.
        constants: addresses and bytes of the constants in memory, by where the program has them.
        blocks: bytes of the blocks that it keeps in memory, its own and other plans', by number.
        sized: results for which memory may be had amid a run, by number: the number of the result
            that says how much there is, and the stage before which memory is asked for.
        misfits: how the network differs from the pinned plan that it follows.

    Raises:
        BudgetError: no plan keeps the limits, or the pinned one does not.
        SpecError: the pinned plan names nodes, formats or choices that do not exist here.
    """

    def __init__(
        self,
        owned: OwnedGraph,
        budget: Planner,
        memory_limit: int | None = None,
        pinned: PlanFile | None = None,
        decisions: Sequence[Decision] | None = None,
        shared: SharedMemory | None = None,
    ) -> None:
        graph, shared = owned.graph, shared or SharedMemory()
        decided = self.decided = decide(graph, budget, memory_limit, pinned, decisions)
        planner = decided.planner
        lowered = lower(graph, decided)
        if planner.streams:
            layout = streamed_within(lowered, planner.threads, memory_limit)
        else:
            layout = lay_out(lowered, planner.threads, pinned.buffers if pinned else None)
        self.plan = planned(graph, lowered, layout, decided, memory_limit)
        self.misfits = _misfits(pinned, self.plan) if pinned else ()
        if pinned is not None:
            self.plan = replace(self.plan, measured_error=pinned.measured_error)
        shared.make_room(self.plan.memory_bytes)
        weights = plan_weights(owned, lowered, decided, shared)
        del graph  # so that weights are freed as they are packed
        self.outputs, self.arena = shared.outputs, shared.arena.part(layout.storage.arena_bytes)
        # Before memory is filled: compiling needs some, too.
        calls = running_calls(lowered, planner)
        kernels = [*(call.kernel for call in calls), *weights.kernels]
        library = compiler.load(kernels, planner.target)
        self.code_bytes = library.code_bytes
        self.forms, self.compiled_forms = library.forms, library.compiled
        self.program = place(lowered, layout, calls, library.form, planner.threads)
        self._step_calls = [len(step.calls) for step in lowered.steps]
        block, addresses = weights.packed(library, planner.threads)
        self._held, self.memory, self.shared_bytes = weights.held, Memory(), weights.shared_bytes
        blocks = dict.fromkeys((block, *(each.block for each in weights.held)))
        at, files = _by_offset(layout, addresses), None
        if planner.streams:
            files = _files(at, blocks)
            block.release()
            block = Block(layout.constant_bytes)
            keep_constants(self.program, block, files)
            at = {offset: block.address + offset for offset in layout.constants.values()}
            rate = reading_rate(self.program.streamed, files)
            self.plan = replace(self.plan, bytes_a_ns=rate)
            self.shared_bytes, blocks = 0, {block: None}
        self.memory.keep("weights", block)
        self.blocks = {each.number: each.bytes for each in blocks}
        self.constants = _sized(layout, at)
        self.sized = sized_results(self.program, calls)
        pauses = sorted({stage for _, stage in self.sized.values()})
        self._program = link(self.program, library, at.__getitem__, self.arena, files, pauses)

    @property
    def inputs(self) -> Mapping[str, TensorType]:
        """Types of the arrays that it reads, by name."""
        return self.plan.inputs

    @property
    def results(self) -> Mapping[str, TensorType]:
        """Types of the arrays that it gives, by name."""
        return self.plan.results

    def run(self, addresses: Sequence[int], sized: Sized | None = None) -> None:
        """Run on arrays at these addresses: inputs, then outputs.

        Args:
            addresses: of the arrays; of a result that `sized` gives, any number.
            sized: given a stage, gives slots and addresses of all `sized` results that it makes.
        """
        self._program.run(addresses, sized)

    @property
    def packings(self) -> dict[str, list[int]]:
        """Where the program has the constants of each packing, by its digest."""
        at = {address: offset for offset, (address, size) in self.constants.items() if size}
        return {
            each.digest: [at[address] for address in each.addresses.values()]
            for each in self._held
            if each.digest and at.keys() >= {*each.addresses.values()}
        }

    def constant(self, offset: int) -> memoryview:
        """The bytes of the constant that begins at a byte of them, not copied."""
        address, size = self.constants[offset]
        return memoryview((ctypes.c_uint8 * size).from_address(address))

    def time_steps(self, addresses: Sequence[int], repeats: int) -> list[list[int]]:
        """Run step by step and return, for each step, the nanoseconds of every repeat."""
        rows: list[list[int]] = [[] for _ in self._step_calls]
        for _ in range(repeats):
            times = iter(self._program.time_stages(addresses))
            for row, count in zip(rows, self._step_calls, strict=True):
                row.append(sum(next(times) for _ in range(count)))
        return rows


# -- four steps, each from data to data ------------------------------------------------------
def lower(graph: Graph, decided: Decided) -> LoweredGraph:
    """Lower a network to calls, its constants with them."""
    planner = decided.planner
    return lower_graph(planner.merge(graph), planner.target, planner.accuracy, decided.decisions)


def place(
    lowered: LoweredGraph,
    layout: Layout,
    calls: Sequence[Call],
    form: Callable[[Kernel], KernelForm],
    threads: int,
) -> PortableProgram:
    """The program of a network, without an address in it.

    Args:
        lowered: the network.
        layout: where its values and constants are.
        calls: its calls, with the kernels that run.
        form: gives the form of each kernel.
        threads: that take part, for whom there is scratch.
    """
    storage, streamed = layout.storage, layout.streamed

    def operand(name: str, time: int) -> Constant | Place | Slot:
        if name in layout.constants:
            return Constant(layout.constants[name])
        found = streamed.get((time, name)) or storage.slots.get(name)
        return found or Place(storage.offsets[name])

    labels = [f"node {s.name!r} ({s.op})" for s in lowered.steps for _ in s.calls]
    return PortableProgram(
        tuple(
            Stage(
                form(call.kernel),
                tuple(operand(name, time) for name in call.values),
                Place(scratch),
                label,
            )
            for time, (call, scratch, label) in enumerate(
                zip(calls, storage.scratch, labels, strict=True)
            )
        ),
        len(lowered.inputs),
        len(lowered.outputs),
        threads,
        storage.arena_bytes,
        layout.constant_bytes,
        tuple(_repeated(each, calls) for each in all_repeats(lowered.steps)),
        tuple(
            StreamedConstant(
                layout.image[r.constant], r.bytes, storage.offsets[r.name], r.free, r.first
            )
            for r in layout.read
        ),
        layout.kept,
    )


def link(
    program: PortableProgram,
    library: Library,
    constants: Callable[[int], int],
    arena: ArenaPart,
    files: Files | None = None,
    pauses: Sequence[int] = (),
) -> Program:
    """Put addresses into a program: the result runs in this process alone.

    Args:
        program: without addresses.
        library: has the code of its forms.
        constants: gives the address of the constant that begins at a byte of them.
        arena: of at least `arena_bytes`.
        files: where streamed constants are.
        pauses: stages before which a run may ask where arrays are.
    """
    stages, slots = linked_stages(program, constants), program.inputs + program.outputs
    given = stages, library, slots
    if program.streamed:
        assert files is not None, "streamed constants are in a file"
        more = program.repeats, program.streamed, files
        return StreamProgram(*given, program.threads, arena, *more, pauses)
    if program.repeats:
        return LoopProgram(*given, program.threads, arena, program.repeats, pauses=pauses)
    return Program(*given, 0, 0, program.threads, arena=arena, pauses=pauses)


def sized_results(program: PortableProgram, calls: Sequence[Call]) -> dict[int, tuple[int, int]]:
    """The results that one stage makes, once another result says how much of them there is.

    Args:
        program: of these calls.
        calls: in order.

    Returns:
        By number of the result: that of the number, and the stage.
    """
    uses: dict[Slot, list[int]] = {}
    for stage, each in enumerate(program.stages):
        for operand in each.operands:
            if isinstance(operand, Slot):
                uses.setdefault(Slot(operand.number), []).append(stage)
    repeated = {n for each in program.repeats for n in range(each.first, each.first + each.stages)}
    found = {}
    for stage, (each, call) in enumerate(zip(program.stages, calls, strict=True)):
        role = call.kernel.measure
        if role is None or stage in repeated:
            continue
        room, measure = each.operands[-1], each.operands[call.kernel.operands.index(role)]
        if isinstance(room, Slot) and isinstance(measure, Slot) and uses.get(room) == [stage]:
            found[room.number - program.inputs] = measure.number - program.inputs, stage
    return found


def keep_constants(program: PortableProgram, block: Block, files: Files) -> None:
    """Read the streamed constants that stay in memory from their file.

    Args:
        program: the one that reads the constants.
        block: of `constant_bytes`.
        files: where they are.
    """
    for start, size, offset in program.kept:
        file, first = files(start)
        file.read_into(first, block.view(offset, size))


def planned_kernels(
    graph: Graph,
    budget: Planner,
    memory_limit: int | None = None,
    decisions: Sequence[Decision] | None = None,
    packed: set[Hashable] | None = None,
) -> list[Kernel]:
    """The kernels of a `CompiledNetwork` of the same arguments: nothing is emitted or packed.

    Those that pack weights by one of the recipes `packed` are left out; new recipes are added.
    """
    decided = decide(graph, budget, memory_limit, None, decisions)
    lowered = lower(graph, decided)
    kernels = [call.kernel for call in running_calls(lowered, decided.planner)]
    return kernels + lowered.constants.kernels(packed)


def plan_alone(
    graph: Graph,
    budget: Planner,
    memory_limit: int | None = None,
    decisions: Sequence[Decision] | None = None,
) -> tuple[NetworkPlan, Decided]:
    """The plan of a `CompiledNetwork` of the same arguments: nothing is emitted or packed.

    Raises:
        BudgetError: no plan keeps the limit.
    """
    decided = decide(graph, budget, memory_limit, None, decisions)
    lowered = lower(graph, decided)
    layout = lay_out(lowered, decided.planner.threads)
    return planned(graph, lowered, layout, decided, memory_limit), decided


def running_calls(lowered: LoweredGraph, planner: GraphPlanner) -> list[Call]:
    """The calls of a network with the kernels that run."""
    calls = [call for step in lowered.steps for call in step.calls]
    return calls if planner.streams else add_weight_prefetch(calls, planner.target)


def plan_weights(
    owned: OwnedGraph, lowered: LoweredGraph, decided: Decided, shared: SharedMemory
) -> PlanWeights:
    """Memory for the constants; the graph is taken, so that nothing else holds its weights."""
    planner = decided.planner
    mapped = mapped_files(all_constants(owned.graph))
    lowering = ""
    if shared.files is not None:
        text = graph_digest(planner.graph), planner.accuracy, [*decided.decisions]
        lowering = canonical_text(text)
    owned.take()
    return PlanWeights(
        lowered.constants,
        shared.weights,
        shared.files,
        planner.target,
        (shared.made_for, lowering),
        mapped,
        partial(unnamed_block, current_settings().cache_dir) if planner.streams else Block,
    )


def _by_offset(layout: Layout, addresses: Mapping[str, int]) -> dict[int, int]:
    """Addresses of constants by where they begin in the image; one of 0 bytes may begin there."""
    names = sorted(addresses, key=lambda name: layout.sizes[name] > 0)
    return {layout.image[name]: addresses[name] for name in names}


def _sized(layout: Layout, addresses: Mapping[int, int]) -> dict[int, tuple[int, int]]:
    """Addresses and bytes of constants that stay in memory, by where they begin there."""
    sizes: dict[int, int] = {}
    for name, offset in layout.constants.items():
        sizes[offset] = max(layout.sizes[name], sizes.get(offset, 0))
    return {offset: (addresses[offset], size) for offset, size in sizes.items()}


def _files(found: Mapping[int, int], blocks: Iterable[Block]) -> Files:
    """Return a function: from the first byte of a constant to its place in a mapped file."""

    def file_of(start: int) -> tuple[FileBlock, int]:
        for block in blocks:
            if block.address <= found[start] < block.address + max(1, block.bytes):
                assert isinstance(block, FileBlock)
                return block, found[start] - block.address
        raise AssertionError(f"no file has the constant at byte {start}")

    return file_of


def planned(
    graph: Graph,
    lowered: LoweredGraph,
    layout: Layout,
    decided: Decided,
    limit: int | None,
) -> NetworkPlan:
    """Make the plan of a lowered network.

    Raises:
        BudgetError: the plan takes more memory than the limit.
    """
    planner, storage = decided.planner, layout.storage
    check_limit(storage.arena_bytes + layout.constant_bytes, limit)
    results = {name: graph.types[name] for name in graph.outputs}
    return NetworkPlan(
        steps=lowered.steps,
        inputs={name: graph.types[name] for name in graph.inputs},
        results=results,
        outputs=results,
        arena_bytes=storage.arena_bytes,
        live_bytes=storage.live_bytes,
        scratch_bytes=storage.scratch_bytes,
        peak_bytes=storage.peak_bytes,
        weight_bytes=layout.constant_bytes,
        threads=planner.threads,
        limit=limit,
        exact=decided.exact,
        whole=decided.budget.unmerged.graph,
        graph=planner.graph,
        merged=planner.merged,
        target=planner.target,
        accuracy=planner.accuracy,
        max_error=planner.max_error,
        decisions=tuple(decided.decisions),
        estimated=partial(planner.chosen, decided.decisions),
        storage=storage,
        readings=layout.read,
    )


def _misfits(pinned: PlanFile, plan: NetworkPlan) -> tuple[str, ...]:
    found = []
    digests = plan.kernel_digests
    changed = [node.name for node in pinned.nodes if digests.get(node.output) != node.kernels]
    if changed:
        found.append(
            f"the code of {len(changed)} of {len(pinned.nodes)} layers is generated in another "
            f"way now, {changed[0]!r} first: results may differ in the last bits"
        )
    now, then = (
        {buffer.name: offset for buffer, offset in each.buffers} for each in (plan.storage, pinned)
    )
    if now != then:
        found.append("its buffers have other sizes or lives now, and were laid out anew")
    return tuple(found)


def check_limit(needed: int, limit: int | None) -> None:
    if limit is not None and needed > limit:
        raise BudgetError(
            f"the plan needs {counted(needed, 'byte')} ({format_bytes(needed)}), the limit is "
            f"{counted(limit, 'byte')} ({format_bytes(limit)}); "
            f"give memory_limit={needed} or more",
            needed,
        )


def _repeated(each: Repeat, calls: Sequence[Call]) -> RepeatedStages:
    """Calls of the network that run several times, and their operands that move."""
    moving = [
        (number, operand, each.strides[name])
        for number in range(each.first, each.first + each.calls)
        for operand, name in enumerate(calls[number].values)
        if name in each.strides
    ]
    return RepeatedStages(each.first, each.calls, each.times, tuple(moving))
