"""The protocols that networks of the CPU and of a GPU share, and their profiles and footprints.

A `Network` (`api.network`) is the same class for both: it checks names and shapes and keeps
compiled networks by input shapes, and a `Backend` compiles them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from leanconv.records import dataclass
from leanconv.runtime.memory import Held, Resident, resident
from leanconv.types import DType
from leanconv.units import format_bytes

if TYPE_CHECKING:  # what networks have: one convolution imports no reader of files
    from leanconv.api.inputs import Known, Ports, Shape
    from leanconv.graph.ir import TensorType
    from leanconv.graph.network_inputs import Deciding
    from leanconv.graph.onnx_import import Model


class DeviceTensor(Protocol):
    """An array on a GPU, of torch, CuPy and others, that is read in place."""

    def __dlpack__(self, *, stream: Any = None) -> Any:
        """The array's memory, as DLPack describes it."""


class NetworkFacts(Protocol):
    """A network's plan, as far as it is known before the first run."""

    @property
    def steps(self) -> Sequence[Step]:
        """Operations in order."""

    @property
    def inputs(self) -> Mapping[str, TensorType]:
        """Types of the inputs by name."""

    @property
    def outputs(self) -> Mapping[str, TensorType | None]:
        """Types of the outputs by name; None where the extents follow from values in a run."""

    @property
    def arena_bytes(self) -> int:
        """The buffer in which activations and workspaces live."""

    @property
    def weight_bytes(self) -> int:
        """Packed weights."""

    @property
    def memory_bytes(self) -> int:
        """All memory that runs need besides the caller's arrays."""

    @property
    def flops(self) -> int:
        """Floating point operations of one run."""

    @property
    def predicted_error(self) -> float:
        """Expected relative error of the outputs."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as JSON, for `leanconv.load(model, plan=path)`."""


class Compiled(Protocol):
    """A network compiled for fixed input shapes, which may be known by a snapshot of its plan."""

    def is_for(self, shapes: tuple[Shape, ...], known: Known) -> bool:
        """Return whether it was compiled for these shapes, and these values of deciding inputs."""

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The shapes of all inputs."""

    @property
    def inputs(self) -> Mapping[str, TensorType]:
        """Types of the arrays that it reads, by name."""

    @property
    def outputs(self) -> Mapping[str, TensorType | None]:
        """Types of the outputs by name; None where the extents follow from values in a run."""

    @property
    def planned(self) -> Planned | None:
        """Itself, with its plan; None of a snapshot, which has none."""

    @property
    def memory_bytes(self) -> int:
        """Bytes that its plan says that runs need besides the caller's arrays."""

    @property
    def used_bytes(self) -> int:
        """Bytes of weights and activations, counted as they were allocated."""

    @property
    def held(self) -> Held:
        """The memory that the compiled network keeps, its code included."""

    def call(self, x: object) -> Any | None:
        """The only output for the only input; None where the general path must be taken."""

    def call_all(self, arrays: Sequence[object]) -> list[Any] | None:
        """The outputs for all inputs; None where the general path must be taken."""

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        """The outputs for arrays that `Backend.validated` returned."""

    def report(self, front: bool) -> dict[str, Any]:
        """Say of every layer which candidates there were and why all but one lost, as JSON.

        Raises:
            InputError: it is of a snapshot, and the file has changed since.
        """


class Planned(Compiled, Protocol):
    """A compiled network with its plan."""

    @property
    def plan(self) -> NetworkFacts:
        """The plan that the compiled network runs."""

    def time_steps(self, arrays: Sequence[Any], repeats: int) -> list[list[int]]:
        """Run step by step: for each step the nanoseconds of every repeat."""

    def step_estimates(self) -> Sequence[int | None]:
        """For each step the nanoseconds that the plan predicts; None where it predicts none."""

    def explain(self) -> str:
        """Say how every step is computed, with its bytes, and what makes the memory."""


class Backend(Protocol):
    """A planner and compiler of one network, for one kind of device."""

    @property
    def model(self) -> Model:
        """The network as read from its file."""

    @property
    def ports(self) -> Ports | None:
        """Inputs and outputs as the file declares them; None where the model says it."""

    @property
    def whole(self) -> PlanningBackend:
        """The backend that makes plans: itself, or for one of snapshots the one that made them.

        Raises:
            InputError: the file has changed since.
        """

    @property
    def input_dtype(self) -> DType:
        """The dtype that arrays are given in."""

    @property
    def dtype(self) -> DType:
        """The dtype of the computation and of the outputs."""

    @property
    def deciding(self) -> Deciding:
        """The inputs whose values decide what is computed, as found until now."""

    @property
    def cache_bytes(self) -> int:
        """The most bytes that all cached compiled networks may take together."""

    def private_bytes(self, held: Held) -> int:
        """Return the bytes of `held` in memory of this process alone: no shared file, no device."""

    @property
    def output_bytes(self) -> int:
        """Memory of large results that nobody refers to any more, kept for the next ones."""

    @property
    def most_cached(self) -> int:
        """The most compiled networks that are cached."""

    def validated(self, arrays: Sequence[Any]) -> list[Any]:
        """The inputs in an order and dtype that kernels can read.

        Raises:
            InputError: an array does not fit.
        """

    def prepare(self) -> Sequence[tuple[tuple[Shape, ...], Known]]:
        """Do the work of `load` for a network of open shapes.

        Where only the batch is open, a network that cannot be computed at all is refused.

        Returns:
            Shapes of all inputs, with known values of some, to compile for at once.
        """

    def compile(self, shapes: tuple[Shape, ...], known: Known) -> Compiled | None:
        """Compile for input shapes; None where snapshots lack them, and `whole` is to compile.

        Args:
            shapes: of all inputs.
            known: values of some, which count for those of `deciding`.

        Raises:
            NeedsInputsError: the values of others decide what is computed.
        """

    def limit_to(self, memory_limit: int) -> None:
        """Let later plans take at most so many bytes, whatever the options of `load`."""

    def kept(self, shapes: Any) -> Backend | None:
        """Return a backend for stated shapes, if a snapshot has their plan."""

    def copied(self, compiled: Compiled | None) -> Backend:
        """A backend for a copy of the network, which follows the plan if that was measured."""


class PlanningBackend(Backend, Protocol):
    """A backend that plans: all but those of snapshots."""

    def compile(self, shapes: tuple[Shape, ...], known: Known) -> Planned:
        """Plan and compile for input shapes, as `Backend` says."""

    def report(self, shapes: tuple[Shape, ...], front: bool) -> dict[str, Any]:
        """Plan for input shapes as `compile` does, and say of every layer what was chosen."""

    def of_model(self, model: Model, shapes: Any) -> PlanningBackend:
        """Return a backend with these options for this model at the shapes that a user states."""


@dataclass(frozen=True)
class ProfileRow:
    """Times of one step over the repeats of a profile, in nanoseconds.

    Attributes:
        name, op, algorithm: of the step, as the plan and `explain` name it.
        calls: number of times that it was timed.
        median_ns, average_ns, least_ns, most_ns: of the times.
        share: of the median in the sum of all steps' medians.
        flops: of the plain sum.
        predicted_ns: the plan's estimate; None where it estimates no times.
    """

    name: str
    op: str
    algorithm: str
    calls: int
    median_ns: float
    average_ns: float
    least_ns: int
    most_ns: int
    share: float
    flops: int
    predicted_ns: int | None = None


class Step(Protocol):
    """Interface of a plan's step, for a profile."""

    @property
    def name(self) -> str:
        """Name of the node in the file."""

    @property
    def op(self) -> str:
        """Operation of the node in the file."""

    @property
    def algorithm(self) -> str:
        """Algorithm that computes the step."""

    @property
    def flops(self) -> int:
        """Floating point operations of one run."""


def profile_rows(
    steps: Sequence[Step],
    times: Sequence[Sequence[int]],
    estimates: Sequence[int | None],
) -> list[ProfileRow]:
    """One row for each step.

    Args:
        steps: of the plan, in order.
        times: for each of them the nanoseconds of every repeat.
        estimates: for each of them the nanoseconds that the plan predicts.
    """
    from statistics import median

    medians = [float(median(row)) if row else 0.0 for row in times]
    total = sum(medians) or 1.0
    return [
        ProfileRow(
            step.name,
            step.op,
            step.algorithm,
            len(row),
            median,
            sum(row) / max(1, len(row)),
            min(row, default=0),
            max(row, default=0),
            median / total,
            step.flops,
            estimate,
        )
        for step, row, median, estimate in zip(steps, times, medians, estimates, strict=True)
    ]


@dataclass(frozen=True)
class Footprint:
    """Bytes of memory, by what they are for.

    Attributes:
        weights: packed, of all plans that the network keeps; what plans share counts once.
        workspace: in which its runs work, as large as the largest plan needs.
        code: of its kernels; of kernels that several plans use, for each of them.
        outputs: of large results that nobody refers to any more, which wait for the next ones.
        process: the whole process's bytes in memory; None where the system does not say.
        llvm_loaded: whether LLVM has been loaded: something had to be compiled.
        private: how much of these four is memory of this process alone.
    """

    weights: int
    workspace: int
    code: int
    outputs: int
    process: Resident | None
    llvm_loaded: bool
    private: int

    @classmethod
    def of(cls, held: Held, outputs: int, private: int) -> Footprint:
        """Make the footprint of a network's plans and of this process now.

        Args:
            held: the memory that its plans keep.
            outputs: bytes of large results that are free.
            private: how much of what its plans hold is memory of this process alone.
        """
        loaded = "llvmlite.binding.ffi" in sys.modules
        weights = sum(held.blocks.values())
        sizes = weights, held.working_bytes, held.own_bytes, outputs
        return cls(*sizes, resident(), loaded, private + outputs)

    @property
    def rest(self) -> int | None:
        """Memory of no file and not of the network: Python's objects, arrays, LLVM's own.

        None where the system does not say. Memory that was allocated and never touched is not in
        the process's count: until the first run this is too small by the workspace.
        """
        if self.process is None:
            return None
        return max(0, self.process.other - self.private)

    def __str__(self) -> str:
        parts = [
            f"weights {format_bytes(self.weights)}",
            f"workspace {format_bytes(self.workspace)}",
            f"code {format_bytes(self.code)}",
        ]
        if self.outputs:
            parts.append(f"free outputs {format_bytes(self.outputs)}")
        if self.process is None or self.rest is None:
            return ", ".join(parts)
        llvm = format_bytes(self.process.llvm) if self.llvm_loaded else "not loaded"
        parts += [
            f"LLVM {llvm}",
            f"libraries {format_bytes(self.process.libraries)}",
            f"mapped files {format_bytes(self.process.files)}",
            f"Python's objects and all else {format_bytes(self.rest)}",
        ]
        return f"{format_bytes(self.process.total)} in memory: {', '.join(parts)}"

    def to_json(self) -> dict[str, int | bool | None]:
        """Return the bytes as a JSON object."""
        process = self.process
        return {
            "weight_bytes": self.weights,
            "workspace_bytes": self.workspace,
            "code_bytes": self.code,
            "output_bytes": self.outputs,
            "resident_bytes": process.total if process else None,
            "llvm_bytes": process.llvm if process else None,
            "library_bytes": process.libraries if process else None,
            "file_bytes": process.files if process else None,
            "other_bytes": self.rest,
            "llvm_loaded": self.llvm_loaded,
        }
