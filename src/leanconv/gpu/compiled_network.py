"""A network on a GPU: all memory set aside at load, all launches in one CUDA graph."""

from __future__ import annotations

import ctypes
import math
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from leanconv.errors import UnsupportedError
from leanconv.gpu.device.arrays import (
    DeviceArray,
    Memory,
    finish_reading,
    is_device_array,
    on_device,
)
from leanconv.gpu.device.compiler import Compile, Module, compile_cubin
from leanconv.gpu.device.driver import Driver
from leanconv.gpu.device.driver import Graph as Captured
from leanconv.gpu.lowering import DeviceGraph, lower_graph
from leanconv.gpu.lowering.conv_problem import fastest_within
from leanconv.gpu.lowering.lowering_context import DeviceStep
from leanconv.gpu.machine import Machine, choices, machine_of
from leanconv.graph.ir import Graph, TensorType
from leanconv.planner.storage import Storage, place
from leanconv.records import dataclass
from leanconv.runtime.locks import Lock
from leanconv.runtime.memory import Held
from leanconv.spec.format import aligned
from leanconv.types import BFLOAT16, FLOAT32, DType
from leanconv.units import counted

_MOST_GRAPHS = 8  # captured, each for one set of the user's addresses


@dataclass(frozen=True, eq=False)
class DevicePlan:
    """Everything that is known about a network's run before the first one.

    Attributes:
        steps: operations in order, with their launches.
        inputs, outputs: types by name, in the dtype of the device.
        arena_bytes: the one buffer in which activations and workspaces live.
        live_bytes: the largest set of them alive at once.
        weight_bytes: packed weights and tables.
        device: the machine's name.
    """

    steps: tuple[DeviceStep, ...]
    inputs: Mapping[str, TensorType]
    outputs: Mapping[str, TensorType]
    arena_bytes: int
    live_bytes: int
    weight_bytes: int
    device: str

    @property
    def memory_bytes(self) -> int:
        """All memory that runs need besides the caller's arrays."""
        return self.arena_bytes + self.weight_bytes

    @property
    def flops(self) -> int:
        """Floating point operations of one run."""
        return sum(step.flops for step in self.steps)

    @property
    def predicted_error(self) -> float:
        """Expected relative error of the outputs: layers add up like independent errors."""
        return math.sqrt(sum(step.error**2 for step in self.steps))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Refused: a plan file holds the choices of the CPU's planner."""
        raise UnsupportedError(f"{path}: plans on a GPU are not saved; they are made at each load")

    @property
    def launches(self) -> int:
        """Kernels that one run starts."""
        return sum(len(step.calls) for step in self.steps)


class CompiledDeviceNetwork:
    """A network made ready for fixed input shapes.

    Args:
        graph: after the passes.
        driver: the device.
        dtype: that values are kept in.
        precision: of convolutions' arithmetic; None for that of the dtype.
        memory_limit: bytes that weights and arena may take together, None for no limit.
        compile_code: compiles a code to a cubin.
        lock: that runs hold: those of a network for other shapes share the device's stream.

    Raises:
        BudgetError: no plan keeps the limit.
    """

    def __init__(
        self,
        graph: Graph,
        driver: Driver,
        dtype: DType,
        precision: str | None = None,
        memory_limit: int | None = None,
        compile_code: Compile = compile_cubin,
        lock: Lock | None = None,
    ) -> None:
        self._driver, self._dtype = driver, dtype
        self._lock = Lock("a run of the same network") if lock is None else lock
        machine = machine_of(driver)
        lowered, storage = _within(graph, machine, dtype, precision, memory_limit)
        self.plan = DevicePlan(
            steps=lowered.steps,
            inputs={n: TensorType(graph.types[n].shape, dtype) for n in graph.inputs},
            outputs={n: TensorType(graph.types[n].shape, dtype) for n in graph.outputs},
            arena_bytes=storage.arena_bytes,
            live_bytes=storage.live_bytes,
            weight_bytes=_weight_bytes(lowered),
            device=machine.name,
        )
        self.storage = storage
        driver.enter()
        self.memory = Memory(driver)
        places = self.memory.place(lowered.constants)
        arena = self.memory.allocate(storage.arena_bytes)
        ends = len(lowered.inputs) + len(lowered.outputs)
        self._slots = [ctypes.c_uint64(0) for _ in range(ends)]
        for name, offset in storage.offsets.items():
            places[name] = ctypes.c_uint64(arena + offset)
        for name, slot in storage.slots.items():
            places[name] = self._slots[slot.number]
        calls = [call for step in lowered.steps for call in step.calls]
        self._module = Module(driver, (call.code for call in calls), compile_code)
        self._runs = [self._module.bind(call, places) for call in calls]
        self._graphs: OrderedDict[tuple[int, ...], Captured | None] = OrderedDict()

    def is_for(self, shapes: tuple[tuple[int, ...], ...], known: object) -> bool:
        """Return whether it was compiled for inputs of these shapes."""
        del known
        return self.shapes == shapes

    def call_all(self, arrays: object) -> None:
        """Return None: arrays come from other devices."""

    @property
    def planned(self) -> CompiledDeviceNetwork:
        """Itself, with its plan."""
        return self

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the inputs."""
        return tuple(kind.shape for kind in self.plan.inputs.values())

    @property
    def inputs(self) -> Mapping[str, TensorType]:
        """Types of the inputs by name."""
        return self.plan.inputs

    @property
    def outputs(self) -> Mapping[str, TensorType]:
        """Types of the outputs by name."""
        return self.plan.outputs

    @property
    def memory_bytes(self) -> int:
        """Bytes that its plan says that runs need besides the caller's arrays."""
        return self.plan.memory_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes that were allocated on the device."""
        return self.memory.used_bytes

    @property
    def held(self) -> Held:
        """The memory that the network keeps: `used_bytes`, shared with none."""
        return Held(self.used_bytes)

    # -- running ---------------------------------------------------------------------------
    def call(self, x: object) -> None:
        """Return None: there is no fast path on a device."""

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        """Run the network.

        Args:
            arrays: one for each input: on the device, which is read in place, or of NumPy.

        Returns:
            The outputs: on the device if the first input was, else of NumPy.

        Raises:
            InputError: an array does not fit.
        """
        with self._lock.held:
            self._driver.enter()
            given, results = self._prepared(arrays)
            self.start([a.address for a in (*given, *results)])
            finish_reading(self._driver, *arrays)
        if arrays and is_device_array(arrays[0]):
            return list(results)
        return [each.numpy() for each in results]

    def start(self, addresses: Sequence[int]) -> None:
        """Start everything on arrays at these addresses, without waiting.

        Addresses seen for the second time are captured in a graph, which later calls replay.
        """
        key = tuple(addresses)
        if key in self._graphs:
            self._graphs.move_to_end(key)
            captured = self._graphs[key] or self._capture(key)
            captured.run()
            return
        self._graphs[key] = None
        while len(self._graphs) > _MOST_GRAPHS:
            _, oldest = self._graphs.popitem(last=False)
            if oldest is not None:
                oldest.close()
        self._bind(key)
        for run in self._runs:
            run()

    def _bind(self, addresses: Sequence[int]) -> None:
        for slot, address in zip(self._slots, addresses, strict=True):
            slot.value = address

    def _capture(self, addresses: tuple[int, ...]) -> Captured:
        self._bind(addresses)
        self._driver.begin_capture()
        try:
            for run in self._runs:
                run()
        finally:
            captured = self._driver.end_capture()
        self._graphs[addresses] = captured
        return captured

    def time_steps(self, arrays: Sequence[Any], repeats: int) -> list[list[int]]:
        """Run step by step and return, for each step, the nanoseconds of every repeat."""
        with self._lock.held:
            return self._time_steps(arrays, repeats)

    def _time_steps(self, arrays: Sequence[Any], repeats: int) -> list[list[int]]:
        self._driver.enter()
        given, results = self._prepared(arrays)
        self._bind([a.address for a in (*given, *results)])
        rows: list[list[int]] = [[] for _ in self.plan.steps]
        for _ in range(repeats):
            runs = iter(self._runs)
            for row, step in zip(rows, self.plan.steps, strict=True):
                first = self._driver.event()
                for _ in step.calls:
                    next(runs)()
                row.append(round(self._driver.seconds(first, self._driver.event()) * 1e9))
        return rows

    def _prepared(self, arrays: Sequence[Any]) -> tuple[list[DeviceArray], list[DeviceArray]]:
        """The inputs on the device, checked, and arrays for the outputs."""
        host = FLOAT32 if self._dtype == BFLOAT16 else self._dtype
        given = [
            on_device(
                f"input {name!r}",
                array,
                kind,
                self.memory,
                self._driver,
                accepts=(host, FLOAT32),
            )
            for (name, kind), array in zip(self.plan.inputs.items(), arrays, strict=True)
        ]
        results = [self.memory.array(k.shape, self._dtype) for k in self.plan.outputs.values()]
        return given, results

    def step_estimates(self) -> tuple[None, ...]:
        """None for each step: no record has the costs of a GPU."""
        return (None,) * len(self.plan.steps)

    def explain(self) -> str:
        """Say how every step is computed, in which arithmetic, and the parts of the memory."""
        plan, lines = self.plan, []
        for step in plan.steps:
            shown = f" in {step.arithmetic} arithmetic" if step.arithmetic else ""
            details = f" ({step.parameters})" if step.parameters else ""
            lines.append(
                f"{step.name}: {step.op} by {step.algorithm}{shown}{details}, "
                f"{step.flops / 1e6:.2f} MFLOP, {len(step.calls)} launch(es)"
            )
        lines.append(f"expected error {plan.predicted_error:.1e}")
        lines.append(
            f"memory on {plan.device} {counted(plan.memory_bytes, 'byte')}: weights "
            f"{counted(plan.weight_bytes, 'byte')}, buffers between layers "
            f"{counted(plan.arena_bytes, 'byte')} (at most {counted(plan.live_bytes, 'byte')} in "
            f"use at once); {counted(plan.launches, 'launch', 'launches')} in one graph"
        )
        return "\n".join(lines)

    def report(self, front: bool) -> dict[str, Any]:
        """Refuse: there is no search whose candidates could be shown."""
        raise UnsupportedError("net.report() is of the CPU's planner; use net.explain() on a GPU")


def _weight_bytes(lowered: DeviceGraph) -> int:
    return sum(aligned(array.nbytes) for array in lowered.constants.values())


def _within(
    graph: Graph, machine: Machine, dtype: DType, precision: str | None, limit: int | None
) -> tuple[DeviceGraph, Storage]:
    """The fastest lowering that keeps the limit, with its storage."""

    def lower(lean: bool) -> tuple[DeviceGraph, Storage]:
        lowered = lower_graph(graph, machine, dtype, choices(dtype, precision), lean)
        return lowered, place(lowered)

    def needed(made: tuple[DeviceGraph, Storage]) -> int:
        return made[1].arena_bytes + _weight_bytes(made[0])

    return fastest_within(lower, needed, limit, "the plan", machine)
