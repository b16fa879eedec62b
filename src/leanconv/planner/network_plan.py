"""The plan of a network for given input shapes."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Mapping

from leanconv.canonical import canonical_text
from leanconv.graph.halves import stored_half
from leanconv.graph.ir import Graph, TensorType
from leanconv.operators import Accuracy
from leanconv.planner.decisions import Decision
from leanconv.planner.lowered_graph import Step
from leanconv.planner.node_costs import NodeCost, step_times
from leanconv.planner.plan_file import (
    PlanFile,
    PlannedNode,
    graph_digest,
    target_facts,
    write_plan,
)
from leanconv.planner.storage import Reading, Storage
from leanconv.planner.weight_streaming import streamed_ns
from leanconv.records import cached_property, dataclass
from leanconv.runtime.locks import Unpicklable
from leanconv.target import Target
from leanconv.types import DType
from leanconv.units import format_bytes


@dataclass(frozen=True, eq=False, repr=False)
class NetworkPlan(Unpicklable):
    """Everything that is known about a network's run before the first one.

    Attributes:
        steps: operations in order.
        inputs: types by name.
        results: types of what the steps give, by name: of outputs, and of what is read behind them.
        outputs: types of the network's outputs by name, in order; None where NumPy computes one
            behind the steps, so that its extents are known when it has run.
        arena_bytes: the one buffer in which activations and scratch live.
        live_bytes: the largest set of activations alive at once.
        scratch_bytes: the most that the kernels of a call work in, all threads together.
        peak_bytes: the most that one call needs of both; no arena can be smaller.
        weight_bytes: packed weights and tables that stay in memory.
        threads: threads that take part.
        limit: bytes that arena and weights may take together, None for no limit.
        exact: whether no plan within the limits is predicted to be faster, which is proved.
        whole: the network's graph, without the bytes of its weights.
        graph: the one that is computed, of which first blocks may be one operation each.
        merged: how many blocks are.
        target, accuracy, max_error: for which the plan was made.
        decisions: how each node of the graph is computed.
        estimated: gives the estimates for every node of the graph, in order: they take time.
        storage: where each value is stored.
        measured_error: the largest error of an output on samples, where it was measured.
        late_bytes: the most that arrays take that NumPy computes behind the steps; 0 if there are
            none. Where only the run bounds them: of those that the steps hand on.
        late_bounded: whether it is of all of them.
        late_text: the late operations as text; "" for none.
        segment_bytes: of what earlier runs compiled there, and of all shapes keep.
        readings: weights that each run reads from a file into the arena; see `weight_streaming`.
        bytes_a_ns: the rate at which it was read when the plan was made.
    """

    steps: tuple[Step, ...]
    inputs: Mapping[str, TensorType]
    results: Mapping[str, TensorType]
    outputs: Mapping[str, TensorType | None]
    arena_bytes: int
    live_bytes: int
    scratch_bytes: int
    peak_bytes: int
    weight_bytes: int
    threads: int
    limit: int | None
    exact: bool
    whole: Graph
    graph: Graph
    merged: int
    target: Target
    accuracy: Accuracy
    max_error: float | None
    decisions: tuple[Decision, ...]
    estimated: Callable[[], tuple[NodeCost, ...]]
    storage: Storage
    measured_error: float | None = None
    late_bytes: int = 0
    late_bounded: bool = True
    late_text: str = ""
    segment_bytes: int = 0
    readings: tuple[Reading, ...] = ()
    bytes_a_ns: float = math.inf

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
        return self.estimated()

    @property
    def predicted_ns(self) -> int:
        """Estimated time of a run, with the waiting for weights."""
        computed = self._shared(node_cost.estimated_ns for node_cost in self.node_costs)
        return computed + self.waiting_ns + self.call_ns

    @property
    def call_ns(self) -> int:
        """Estimated time of a call from Python, beside the steps."""
        costs = self.target.costs
        return costs.ns(costs.call or 0.0)

    @property
    def waiting_ns(self) -> int:
        """Estimated time in which a run waits for weights that are being read."""
        if not self.readings:
            return 0
        pairs = zip(self.steps, self.step_estimates(), strict=True)
        calls = [ns / len(step.kernels) for step, ns in pairs for _ in step.kernels]
        return streamed_ns(calls, self.readings, self.bytes_a_ns) - round(sum(calls))

    @property
    def streamed_bytes(self) -> int:
        """Bytes that each run reads from a file."""
        return sum(reading.bytes for reading in self.readings)

    @property
    def counted_ns(self) -> int:
        """Nanoseconds of a run as the search counts them: no less than `predicted_ns`."""
        return self._shared(node_cost.time_ns for node_cost in self.node_costs) + self.call_ns

    def _shared(self, nodes_ns: Iterable[int]) -> int:
        """Estimated time of all threads, where nodes take one alone so long."""
        return sum(self.shared_ns(alone) for alone in (*nodes_ns, *self._reorders_ns))

    def shared_ns(self, alone_ns: int) -> int:
        """Estimated time of all threads for a step that takes one so long."""
        return self.target.costs.shared_ns(alone_ns, self.threads)

    @property
    def alone_ns(self) -> int:
        """`counted_ns` of one thread, its steps alone."""
        return sum(node_cost.time_ns for node_cost in self.node_costs) + sum(self._reorders_ns)

    @property
    def _reorders_ns(self) -> list[int]:
        costs = self.target.costs
        return [costs.reorder_ns(s.output_bytes) for s in self.steps if s.op == "Reorder"]

    def step_estimates(self) -> tuple[int, ...]:
        """The estimated time of each of `steps`."""
        costs = self.target.costs
        return step_times(self.steps, self.graph.nodes, self.node_costs, costs, self.threads)

    @property
    def kernel_digests(self) -> dict[str, str]:
        """A digest of the kernels of each node, by the node's output."""
        of: dict[str, list[str]] = {node.key: [] for node in self.graph.nodes}
        for step in self.steps:
            if step.output in of:
                of[step.output] += map(canonical_text, step.kernels)
        return {
            name: hashlib.sha256("\n".join(kernels).encode()).hexdigest()[:16]
            for name, kernels in of.items()
        }

    def file(self) -> PlanFile:
        """The plan as it is written to a file."""
        digests = self.kernel_digests
        nodes = tuple(
            PlannedNode(
                name=node.name,
                op=node.op,
                output=node.key,
                reads=node_cost.decision.reads,
                writes=node_cost.decision.writes,
                choice_text=str(node_cost.decision.choice) or None,
                algorithm=node_cost.algorithm,
                weight_bytes=node_cost.weight_bytes,
                time_ns=self.shared_ns(node_cost.estimated_ns),
                error=node_cost.error,
                kernels=digests[node.key],
            )
            for node, node_cost in zip(self.graph.nodes, self.node_costs, strict=True)
        )
        return PlanFile(
            network=graph_digest(self.whole),
            merged_blocks=self.merged,
            target=target_facts(self.target),
            threads=self.threads,
            precision=self.accuracy.half or self.precision,
            dtype=self.dtype,
            reproducible=self.accuracy.reproducible,
            memory_limit=self.limit,
            max_error=self.max_error,
            inputs={name: kind.shape for name, kind in self.inputs.items()},
            arena_bytes=self.arena_bytes,
            weight_bytes=self.weight_bytes,
            predicted_ns=self.predicted_ns,
            predicted_error=self.predicted_error,
            nodes=nodes,
            buffers=self.storage.buffers,
            measured_error=self.measured_error,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as JSON: equal plans are equal files, line by line.

        `leanconv.load(model, plan=path)` follows it, without planning or tuning, and gives
        the same bits on the same CPU.

        Args:
            path: the file to write.

        Raises:
            InputError: the file cannot be written.
        """
        write_plan(self.file(), path)

    @property
    def precision(self) -> DType | None:
        """The half precision in which values of float32 are stored; None if none are."""
        found = (stored_half(node, self.graph) for node in self.graph.nodes)
        return next((half for half in found if half), None)

    @property
    def dtype(self) -> DType:
        """The float type that is computed in."""
        return self.graph.dtype

    @property
    def predicted_error(self) -> float:
        """Relative error of the outputs: expected or, where samples were given, measured.

        An estimate is the root of the layers' summed squares, to first order;
        `NodeCost.passed_error` says what a layer's error becomes.
        """
        if self.measured_error is not None:
            return self.measured_error
        return math.sqrt(sum(node_cost.passed_error**2 for node_cost in self.node_costs))

    @property
    def memory_bytes(self) -> int:
        """All memory that runs need besides the caller's arrays."""
        return self.arena_bytes + self.weight_bytes + self.late_bytes + self.segment_bytes

    @property
    def flops(self) -> int:
        """Floating point operations of one run."""
        return sum(step.flops for step in self.steps)
