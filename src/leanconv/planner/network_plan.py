"""The plan of a network for given input shapes, and its execution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from leanconv.codegen import compiler
from leanconv.codegen.kernel import Kernel
from leanconv.errors import BudgetError
from leanconv.graph.ir import Graph, TensorType
from leanconv.planner.lowering import Accuracy, LoweredGraph, Step, lower_graph
from leanconv.planner.storage import Storage, place
from leanconv.runtime.memory import Memory
from leanconv.runtime.program import Program, Slot, Stage
from leanconv.spec.format import aligned
from leanconv.target import Target
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


@dataclass(frozen=True, eq=False)
class NetworkPlan:
    """Everything that is known about a network's run before the first one.

    Attributes:
        steps: operations in order.
        inputs, outputs: types by name.
        arena_bytes: the one buffer in which activations and scratch live.
        live_bytes: the largest set of activations alive at once.
        scratch_bytes: the part of the arena that kernels work in, all threads together.
        weight_bytes: packed weights and tables.
        threads: threads that take part.
    """

    steps: tuple[PlannedStep, ...]
    inputs: Mapping[str, TensorType]
    outputs: Mapping[str, TensorType]
    arena_bytes: int
    live_bytes: int
    scratch_bytes: int
    weight_bytes: int
    threads: int

    @property
    def memory_bytes(self) -> int:
        """All memory that runs need besides the caller's arrays."""
        return self.arena_bytes + self.weight_bytes

    @property
    def flops(self) -> int:
        """Floating point operations of one run."""
        return sum(step.flops for step in self.steps)


class BoundNetwork:
    """A network made ready for fixed input shapes: plan, code, weights, arena.

    Args:
        graph: after the passes.
        target: what to emit for; it must be able to run here.
        threads: threads that take part, the caller counted.
        accuracy: what is asked of the arithmetic.
        memory_limit: bytes that weights and arena may take together, None for no limit.

    Raises:
        BudgetError: the plan needs more than the limit.
    """

    def __init__(
        self,
        graph: Graph,
        target: Target,
        threads: int,
        accuracy: Accuracy,
        memory_limit: int | None = None,
    ) -> None:
        lowered = lower_graph(graph, target, accuracy)
        storage = place(lowered)
        calls = [call for step in lowered.steps for call in step.calls]
        kernels: list[Kernel] = [call.kernel for call in calls]
        stride = aligned(max((k.scratch_bytes for k in kernels), default=0))
        places, weight_bytes = _pack(lowered.constants)
        self.plan = NetworkPlan(
            steps=tuple(_planned(step, lowered) for step in lowered.steps),
            inputs={name: graph.types[name] for name in graph.inputs},
            outputs={name: graph.types[name] for name in graph.outputs},
            arena_bytes=storage.arena_bytes + stride * threads,
            live_bytes=storage.live_bytes,
            scratch_bytes=stride * threads,
            weight_bytes=weight_bytes,
            threads=threads,
        )
        _check_limit(self.plan.memory_bytes, memory_limit)
        self.memory = Memory()
        weights = self.memory.allocate("weights", weight_bytes)
        for name, array in lowered.constants.items():
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            weights.view(places[name], array.nbytes)[:] = data
        arena = self.memory.allocate("arena", self.plan.arena_bytes)
        library = compiler.load(kernels, target)
        self.code_bytes = library.code_bytes

        def operand(name: str) -> int | Slot:
            if name in places:
                return weights.address + places[name]
            if name in storage.slots:
                return storage.slots[name]
            return arena.address + storage.offsets[name]

        stages = [Stage(c.kernel, tuple(operand(v) for v in c.values)) for c in calls]
        scratch = arena.address + storage.arena_bytes
        slots = len(lowered.inputs) + len(lowered.outputs)
        self._program = Program(stages, library, slots, scratch, stride, threads)
        self._step_calls = [len(step.calls) for step in lowered.steps]
        self.storage: Storage = storage

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


def _check_limit(needed: int, limit: int | None) -> None:
    if limit is not None and needed > limit:
        raise BudgetError(
            f"the plan needs {needed} bytes ({format_bytes(needed)}), the limit is {limit}; "
            f"give memory_limit={needed} or more",
            needed,
        )


def _pack(constants: Mapping[str, np.ndarray]) -> tuple[dict[str, int], int]:
    """Offsets of constants in the weights' block, equal arrays of one identity stored once."""
    places: dict[str, int] = {}
    seen: dict[int, int] = {}
    end = 0
    for name, array in constants.items():
        if id(array) not in seen:
            seen[id(array)] = end
            end += aligned(array.nbytes)
        places[name] = seen[id(array)]
    return places, end


def _planned(step: Step, lowered: LoweredGraph) -> PlannedStep:
    constants = {v for call in step.calls for v in call.values if v in lowered.constants}
    results = {call.values[-1] for call in step.calls}
    return PlannedStep(
        name=step.name,
        op=step.op,
        algorithm=step.algorithm,
        flops=step.flops,
        kernels=tuple(type(call.kernel).__name__ for call in step.calls),
        weight_bytes=sum(lowered.constants[c].nbytes for c in constants),
        output_bytes=sum(lowered.bytes[r] for r in results if r in lowered.bytes),
    )
