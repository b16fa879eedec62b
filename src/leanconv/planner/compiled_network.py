"""A network made ready for fixed input shapes, and its runs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import field, replace
from functools import partial

from leanconv.canonical import canonical_text
from leanconv.codegen import compiler
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.lowered import Call, Repeat
from leanconv.errors import BudgetError
from leanconv.graph.ir import Graph
from leanconv.graph.regions import all_constants
from leanconv.planner.arena import PlacedBuffers
from leanconv.planner.budget import Planner
from leanconv.planner.constant_pool import OwnedGraph, WeightStore
from leanconv.planner.decision import Decision
from leanconv.planner.found_plans import found_plan, is_searched, plan_within
from leanconv.planner.graph_planner import GraphPlanner
from leanconv.planner.lowered_graph import LoweredGraph, Step, all_repeats
from leanconv.planner.lowering import lower_graph, usual_choices, usual_decisions
from leanconv.planner.network_plan import NetworkPlan, PlannedStep
from leanconv.planner.plan_file import PlanFile, graph_digest, kernel_digests
from leanconv.planner.storage import Storage, place
from leanconv.planner.weight_block import WeightBlock, weights_key
from leanconv.planner.weight_prefetch import add_weight_prefetch
from leanconv.planner.weight_streaming import streamed_within
from leanconv.planner.weights import Packer, fill_weights
from leanconv.records import dataclass
from leanconv.runtime.file_block import unnamed_block
from leanconv.runtime.loop_program import LoopProgram, RepeatedStages
from leanconv.runtime.memory import Block, Memory, mapped_files
from leanconv.runtime.outputs import Outputs
from leanconv.runtime.program import Place, Program, Slot, Stage
from leanconv.runtime.shared_arena import SharedArena
from leanconv.runtime.stream_program import Load, StreamProgram, reading_rate
from leanconv.runtime.weight_file import WeightFiles
from leanconv.settings import current_settings
from leanconv.units import counted, format_bytes


@dataclass(frozen=True, eq=False)
class SharedMemory:
    """What all plans of one network have in common.

    Attributes:
        weights: packed ones, each once.
        arena: as large as the largest plan needs.
        outputs: memory of large results, taken again.
        files: where packed weights are for all processes; None for memory of this one.
        made_for: the options that may decide how they are packed; networks of others share none.
    """

    weights: WeightStore = field(default_factory=WeightStore)
    arena: SharedArena = field(default_factory=SharedArena)
    outputs: Outputs = field(default_factory=Outputs)
    files: WeightFiles | None = None
    made_for: str = ""


class CompiledNetwork:
    """A network made ready for fixed input shapes: plan, code, weights, arena.

    Args:
        owned: the graph after the passes; it is taken once its plan keeps the limits, so that no
            weights are held twice once they are packed.
        budget: plans of the same graph; its target must be able to run here.
        memory_limit: bytes that weights and arena may take together, None for no limit.
        pinned: a plan to follow as it is; None lets the planner find one.
        decisions: how each node is computed; None leaves it to the planner.
        shared: the memory of all plans of the same network; None if there are no others.

    Attributes:
        plan: what runs.
        memory: what this plan alone has: packed weights.
        arena: its part of the arena that all plans share.
        outputs: memory of its large results, which all plans share.
        forms, compiled_forms: how many its kernels have, and how many were compiled for it.
        shared_bytes: of the weights that other plans had packed already.
        blocks: bytes of the blocks that it keeps in memory, its own and other plans', by number.
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
        decisions, planner, exact = _decided(budget, memory_limit, pinned, decisions)
        target = planner.target
        merged = planner.merge(owned.graph)
        decisions = _complete(decisions, merged, planner)
        lowered = lower_graph(merged, target, planner.accuracy, decisions)
        streamed = None
        if planner.streams:
            streamed, storage = streamed_within(lowered, planner.threads, memory_limit)
        else:
            storage = place(lowered, planner.threads, pinned.buffers if pinned else None)
        self.misfits = _misfits(pinned, lowered, merged, storage) if pinned else ()
        calls = [call for step in lowered.steps for call in step.calls]
        if streamed is None:
            calls = add_weight_prefetch(calls, target)
            _, weight_bytes = lowered.constants.places()
        else:
            weight_bytes = streamed.kept_bytes
        results = {name: owned.graph.types[name] for name in owned.graph.outputs}
        self.plan = NetworkPlan(
            steps=tuple(_planned(step, lowered) for step in lowered.steps),
            inputs={name: owned.graph.types[name] for name in owned.graph.inputs},
            results=results,
            outputs=results,
            arena_bytes=storage.arena_bytes,
            live_bytes=storage.live_bytes,
            scratch_bytes=storage.scratch_bytes,
            peak_bytes=storage.peak_bytes,
            weight_bytes=weight_bytes,
            threads=planner.threads,
            limit=memory_limit,
            exact=exact,
            budget=budget,
            planner=planner,
            decisions=tuple(decisions),
            storage=storage,
            measured_error=pinned.measured_error if pinned else None,
            readings=streamed.read if streamed else (),
        )
        _check_limit(self.plan.memory_bytes, memory_limit)
        files = mapped_files(all_constants(owned.graph))
        self.memory, shared = Memory(), shared or SharedMemory()
        self.outputs = shared.outputs
        lowering = ""
        if shared.files is not None:
            lowering = canonical_text((graph_digest(merged), planner.accuracy, [*decisions]))
        owned.take()
        del merged  # so that weights are freed as they are packed
        self._shared = lowered.constants.take_shared(shared.weights)
        self.shared_bytes = 0 if streamed else sum(weights.bytes for weights in self._shared)
        pool = lowered.constants
        places, own_bytes = pool.places()
        make: Callable[[int], Block] = Block
        if streamed is not None:
            make = partial(unnamed_block, current_settings().cache_dir)
        block = WeightBlock(
            own_bytes,
            shared.files,
            lambda: weights_key(pool, target, (shared.made_for, lowering), files),
            make,
        )
        offered = pool.offered()
        self.arena = shared.arena.part(storage.arena_bytes)
        # Before memory is filled: compiling needs some, too.
        packers = [] if block.is_packed else pool.kernels()
        library = compiler.load([*(call.kernel for call in calls), *packers], target)
        self.code_bytes = library.code_bytes
        self.forms, self.compiled_forms = library.forms, library.compiled
        packer = Packer(library, planner.threads)
        weights = block.filled(lambda new: fill_weights(new, pool, places, packer, files))
        pool.drop()
        self._shared += shared.weights.keep(offered, weights, places)
        blocks = (weights, *(each.block for each in self._shared))
        addresses = {name: weights.address + place for name, place in places.items()}
        for each in self._shared:
            addresses.update(each.addresses)
        loads: list[Load] = []
        read: dict[tuple[int, str], Place] = {}
        if streamed is None:
            self.memory.keep("weights", weights)
        else:
            weights.release()
            kept = self.memory.allocate("weights", streamed.kept_bytes)
            streamed.settle(kept, addresses, blocks)
            addresses = dict(streamed.addresses)
            loads, read = streamed.loads(storage), streamed.operands(storage)
            self.plan = replace(self.plan, bytes_a_ns=reading_rate(loads))
            blocks = (kept,)
        self.blocks = {block.number: block.bytes for block in blocks}

        def operand(name: str, time: int) -> int | Slot | Place:
            if name in addresses:
                return addresses[name]
            found = read.get((time, name)) or storage.slots.get(name)
            return found or Place(storage.offsets[name])

        labels = [f"node {s.name!r} ({s.op})" for s in lowered.steps for _ in s.calls]
        stages = [
            Stage(c.kernel, tuple(operand(v, time) for v in c.values), Place(scratch), label)
            for time, (c, scratch, label) in enumerate(
                zip(calls, storage.scratch, labels, strict=True)
            )
        ]
        slots = len(lowered.inputs) + len(lowered.outputs)
        threads = planner.threads
        repeats = [_repeated(each, calls) for each in all_repeats(lowered.steps)]
        if streamed is not None:
            self._program: Program = StreamProgram(
                stages, library, slots, threads, self.arena, repeats, loads
            )
        elif repeats:
            self._program = LoopProgram(stages, library, slots, threads, self.arena, repeats)
        else:
            self._program = Program(stages, library, slots, 0, 0, threads, arena=self.arena)
        self._step_calls = [len(step.calls) for step in lowered.steps]

    def run(self, addresses: Sequence[int]) -> None:
        """Run on arrays at these addresses: inputs, then outputs."""
        self._program.run(addresses)

    def time_steps(self, addresses: Sequence[int], repeats: int) -> list[list[int]]:
        """Run step by step and return, for each step, the nanoseconds of every repeat."""
        rows: list[list[int]] = [[] for _ in self._step_calls]
        for _ in range(repeats):
            times = iter(self._program.time_stages(addresses))
            for row, count in zip(rows, self._step_calls, strict=True):
                row.append(sum(next(times) for _ in range(count)))
        return rows


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
    decisions, planner, _ = _decided(budget, memory_limit, None, decisions)
    merged = planner.merge(graph)
    decisions = _complete(decisions, merged, planner)
    lowered = lower_graph(merged, planner.target, planner.accuracy, decisions)
    calls = [call for step in lowered.steps for call in step.calls]
    if not planner.streams:
        calls = add_weight_prefetch(calls, planner.target)
    return [call.kernel for call in calls] + lowered.constants.kernels(packed)


def _complete(
    decisions: Sequence[Decision] | None, graph: Graph, planner: GraphPlanner
) -> Sequence[Decision]:
    """The decisions, the usual ones where there are none."""
    if decisions is not None:
        return decisions
    if graph.open_axes:  # else the plan finds the same choices again
        return usual_choices(graph, planner.target, planner.accuracy)
    return usual_decisions(graph, planner.target)


def _decided(
    budget: Planner,
    memory_limit: int | None,
    pinned: PlanFile | None,
    decisions: Sequence[Decision] | None,
) -> tuple[Sequence[Decision] | None, GraphPlanner, bool]:
    """The decisions (None: the defaults), the planner to use, and whether it proved them."""
    planner, exact = budget.unmerged, True
    if pinned is not None:
        decisions, planner = pinned.decisions, budget.merging(pinned.merged_blocks)
        planner.check([node.output for node in pinned.nodes], decisions)
    free = None
    if decisions is None and memory_limit is not None:
        free = plan_within(budget, memory_limit)
    if free is not None:
        decisions, exact = free
    elif decisions is None and memory_limit is not None:
        found = budget.within(memory_limit)
        decisions, planner = found.decisions, found.planner
        exact = found.path is None or found.path.exact
    elif decisions is None and is_searched(planner):
        decisions, exact = found_plan(budget)
    return decisions, planner, exact


def _misfits(
    pinned: PlanFile, lowered: LoweredGraph, graph: Graph, storage: Storage
) -> tuple[str, ...]:
    """How the network differs from the pinned plan that it follows."""
    found = []
    digests = kernel_digests(lowered, graph)
    changed = [node.name for node in pinned.nodes if digests.get(node.output) != node.kernels]
    if changed:
        found.append(
            f"the code of {len(changed)} of {len(pinned.nodes)} layers is generated in another "
            f"way now, {changed[0]!r} first: results may differ in the last bits"
        )
    if _offsets(storage.buffers) != _offsets(pinned.buffers):
        found.append("its buffers have other sizes or lives now, and were laid out anew")
    return tuple(found)


def _offsets(buffers: PlacedBuffers) -> dict[str, int]:
    return {buffer.name: offset for buffer, offset in buffers}


def _check_limit(needed: int, limit: int | None) -> None:
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


def _planned(step: Step, lowered: LoweredGraph) -> PlannedStep:
    sizes = lowered.constants.bytes
    constants = {v for call in step.calls for v in call.values if v in sizes}
    results = {name for call in step.calls for name in call.results}
    return PlannedStep(
        name=step.name,
        op=step.op,
        algorithm=step.algorithm,
        output=step.output,
        flops=step.flops,
        kernels=tuple(type(call.kernel).__name__ for call in step.calls),
        weight_bytes=sum(sizes[c] for c in constants),
        output_bytes=sum(lowered.bytes[r] for r in results if r in lowered.bytes),
    )
