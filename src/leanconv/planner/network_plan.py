"""The plan of a network for given input shapes, and its execution."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from leanconv.codegen import compiler
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.llvm_pages import release_llvm_pages
from leanconv.errors import BudgetError
from leanconv.graph.ir import Graph, TensorType
from leanconv.planner.budget import Planner
from leanconv.planner.constant_pool import OwnedGraph
from leanconv.planner.decision import Decision
from leanconv.planner.lowering import (
    LoweredGraph,
    Step,
    default_decisions,
    format_rules,
    lower_graph,
)
from leanconv.planner.node_costs import NodeCost, reorder_ns, shared_ns
from leanconv.planner.plan_file import (
    PlanFile,
    PlannedNode,
    graph_digest,
    kernel_digests,
    target_facts,
    write_plan,
)
from leanconv.planner.storage import Storage, place
from leanconv.planner.weight_prefetch import add_weight_prefetch
from leanconv.planner.weights import fill_weights
from leanconv.runtime.memory import Memory, mapped_files
from leanconv.runtime.program import Program, Slot, Stage
from leanconv.runtime.unpicklable import Unpicklable
from leanconv.units import format_bytes


@dataclass(frozen=True, eq=False)
class PlannedStep:
    """One operation as planned.

    Attributes:
        name, op, algorithm: which node, what it computes, how.
        flops: operations of one run.
        kernels: the kernels' names, one for each call.
        weight_bytes: packed constants that it reads.
        output_bytes: what it writes.
    """

    name: str
    op: str
    algorithm: str
    flops: int
    kernels: tuple[str, ...]
    weight_bytes: int
    output_bytes: int


@dataclass(frozen=True, eq=False, repr=False)
class NetworkPlan(Unpicklable):
    """Everything that is known about a network's run before the first one.

    Attributes:
        steps: operations in order.
        inputs, outputs: types by name.
        arena_bytes: the one buffer in which activations and scratch live.
        live_bytes: the largest set of activations alive at once.
        scratch_bytes: the most that the kernels of a call work in, all threads together.
        peak_bytes: the most that one call needs of both; no arena can be smaller.
        weight_bytes: packed weights and tables.
        threads: threads that take part.
        limit: bytes that arena and weights may take together, None for no limit.
        exact: whether no plan within the limits is predicted to be faster, which is proved.
        planner: it made the plan, and finds those for other limits.
        decisions: how each node of the graph is computed.
        storage: where each value is stored.
    """

    steps: tuple[PlannedStep, ...]
    inputs: Mapping[str, TensorType]
    outputs: Mapping[str, TensorType]
    arena_bytes: int
    live_bytes: int
    scratch_bytes: int
    peak_bytes: int
    weight_bytes: int
    threads: int
    limit: int | None
    exact: bool
    planner: Planner
    decisions: tuple[Decision, ...]
    storage: Storage

    instead = "write it with plan.save(path), and give that to leanconv.load(model, plan=path)"

    def __copy__(self) -> NetworkPlan:
        return self  # nothing in it changes

    def __deepcopy__(self, memo: dict[int, object]) -> NetworkPlan:
        return self

    def __repr__(self) -> str:
        return (
            f"<NetworkPlan of {len(self.steps)} steps, {self.threads} threads: "
            f"{format_bytes(self.memory_bytes)}>"
        )

    @cached_property
    def node_costs(self) -> tuple[NodeCost, ...]:
        """Estimates for every node of the graph, in order."""
        return self.planner.chosen(self.decisions)

    @property
    def predicted_ns(self) -> int:
        """Estimated time of a run."""
        moved = [step.output_bytes for step in self.steps if step.op == "Reorder"]
        costs = self.planner.target.costs
        alone = sum(node_cost.time_ns for node_cost in self.node_costs)
        alone += sum(reorder_ns(size, costs) for size in moved)
        return shared_ns(alone, self.threads)

    def file(self) -> PlanFile:
        """The plan as it is written to a file."""
        planner, graph = self.planner, self.planner.graph
        node_costs = self.node_costs
        decisions = tuple(node_cost.decision for node_cost in node_costs)
        digests = kernel_digests(planner.place_plan(decisions, None).lowered, graph)
        nodes = tuple(
            PlannedNode(
                name=node.name,
                op=node.op,
                output=node.outputs[0],
                reads=node_cost.decision.reads,
                writes=node_cost.decision.writes,
                way=str(node_cost.decision.choice) or None,
                algorithm=node_cost.algorithm,
                weight_bytes=node_cost.weight_bytes,
                time_ns=shared_ns(node_cost.time_ns, self.threads),
                error=node_cost.error,
                kernels=digests[node.outputs[0]],
            )
            for node, node_cost in zip(graph.nodes, node_costs, strict=True)
        )
        places = self.storage.places
        return PlanFile(
            network=graph_digest(planner.merging(0).graph),
            merged_blocks=planner.merged,
            target=target_facts(planner.target),
            threads=self.threads,
            dtype=next(iter(self.inputs.values())).dtype if self.inputs else "float32",
            reproducible=planner.accuracy.reproducible,
            memory_limit=self.limit,
            max_error=planner.max_error,
            inputs={name: kind.shape for name, kind in self.inputs.items()},
            arena_bytes=self.arena_bytes,
            weight_bytes=self.weight_bytes,
            predicted_ns=self.predicted_ns,
            predicted_error=self.predicted_error,
            nodes=nodes,
            buffers=tuple((buffer, places[buffer.name]) for buffer in self.storage.lifetimes),
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as JSON: equal plans are equal files, line by line.

        `leanconv.load(model, plan=path)` follows it, without planning or tuning, and gives
        the same bits on the same CPU.

        Args:
            path: the file to write.

        Raises:
            InputError: it cannot be written.
        """
        write_plan(self.file(), path)

    @property
    def predicted_error(self) -> float:
        """Expected relative error of the outputs: the root of the layers' summed squares.

        To first order; `NodeCost.passed_error` says what a layer's error becomes.
        """
        return math.sqrt(sum(node_cost.passed_error**2 for node_cost in self.node_costs))

    @property
    def memory_bytes(self) -> int:
        """All memory that runs need besides the caller's arrays."""
        return self.arena_bytes + self.weight_bytes

    @property
    def flops(self) -> int:
        """Floating point operations of one run."""
        return sum(step.flops for step in self.steps)


class CompiledNetwork:
    """A network made ready for fixed input shapes: plan, code, weights, arena.

    Args:
        owned: the graph after the passes; it is taken once its plan keeps the limits, so that no
            weights are held twice once they are packed.
        planner: of the same graph, nothing merged; its target must be able to run here.
        memory_limit: bytes that weights and arena may take together, None for no limit.
        pinned: a plan to follow as it is; None lets the planner find one.
        decisions: how each node is computed; None leaves it to the planner.

    Attributes:
        plan: what runs.
        misfits: how the network differs from the pinned plan that it follows.

    Raises:
        BudgetError: no plan keeps the limits, or the pinned one does not.
        SpecError: the pinned plan names nodes, formats or choices that do not exist here.
    """

    def __init__(
        self,
        owned: OwnedGraph,
        planner: Planner,
        memory_limit: int | None = None,
        pinned: PlanFile | None = None,
        decisions: Sequence[Decision] | None = None,
    ) -> None:
        graph, threads, target = owned.graph, planner.threads, planner.target
        exact = True
        if pinned is not None:
            decisions, planner = pinned.decisions, planner.merging(pinned.merged_blocks)
            planner.check([node.output for node in pinned.nodes], decisions)
        limited = memory_limit is not None or planner.max_error is not None
        if decisions is None and (limited or not planner.needs_no_reorder):
            found = planner.within(memory_limit)
            decisions, planner = found.decisions, found.planner
            exact = found.path is None or found.path.exact
        merged = planner.merge(graph)
        if decisions is None:
            decisions = default_decisions(format_rules(merged, target))
        lowered = lower_graph(merged, target, planner.accuracy, decisions)
        storage = place(lowered, threads, pinned.offsets if pinned else None)
        self.misfits = _misfits(pinned, lowered, merged, storage) if pinned else ()
        sizes = lowered.constants.bytes
        calls = [call for step in lowered.steps for call in step.calls]
        calls = add_weight_prefetch(calls, target)
        kernels: list[Kernel] = [call.kernel for call in calls]
        places, weight_bytes = lowered.constants.places()
        self.plan = NetworkPlan(
            steps=tuple(_planned(step, lowered, sizes) for step in lowered.steps),
            inputs={name: graph.types[name] for name in graph.inputs},
            outputs={name: graph.types[name] for name in graph.outputs},
            arena_bytes=storage.arena_bytes,
            live_bytes=storage.live_bytes,
            scratch_bytes=storage.scratch_bytes,
            peak_bytes=storage.peak_bytes,
            weight_bytes=weight_bytes,
            threads=threads,
            limit=memory_limit,
            exact=exact,
            planner=planner,
            decisions=tuple(decisions),
            storage=storage,
        )
        _check_limit(self.plan.memory_bytes, memory_limit)
        owned.take()
        self.memory = Memory()
        weights = self.memory.allocate("weights", weight_bytes)
        arena = self.memory.allocate("arena", self.plan.arena_bytes)
        library = compiler.load(kernels, target)  # before memory is filled: it needs some, too
        release_llvm_pages()
        self.code_bytes = library.code_bytes
        files = mapped_files(graph.constants.values())
        del graph, merged  # so that weights are freed as they are packed
        fill_weights(weights, lowered.constants, places, files)

        def operand(name: str) -> int | Slot:
            if name in places:
                return weights.address + places[name]
            if name in storage.slots:
                return storage.slots[name]
            return arena.address + storage.offsets[name]

        stages = [
            Stage(c.kernel, tuple(operand(v) for v in c.values), arena.address + scratch)
            for c, scratch in zip(calls, storage.scratch, strict=True)
        ]
        slots = len(lowered.inputs) + len(lowered.outputs)
        self._program = Program(stages, library, slots, 0, 0, threads)
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
    if storage.places != pinned.offsets:
        found.append("its buffers have other sizes or lives now, and were laid out anew")
    return tuple(found)


def _check_limit(needed: int, limit: int | None) -> None:
    if limit is not None and needed > limit:
        raise BudgetError(
            f"the plan needs {needed} bytes ({format_bytes(needed)}), the limit is {limit}; "
            f"give memory_limit={needed} or more",
            needed,
        )


def _planned(step: Step, lowered: LoweredGraph, sizes: Mapping[str, int]) -> PlannedStep:
    constants = {v for call in step.calls for v in call.values if v in sizes}
    results = {call.values[-1] for call in step.calls}
    return PlannedStep(
        name=step.name,
        op=step.op,
        algorithm=step.algorithm,
        flops=step.flops,
        kernels=tuple(type(call.kernel).__name__ for call in step.calls),
        weight_bytes=sum(sizes[c] for c in constants),
        output_bytes=sum(lowered.bytes[r] for r in results if r in lowered.bytes),
    )
