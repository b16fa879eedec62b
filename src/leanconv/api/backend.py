"""The protocols that networks of the CPU and of a GPU share.

A `Network` (`api.network`) is the same class for both: it checks names and shapes and keeps
compiled networks by input shapes, and a `Backend` compiles them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from leanconv.types import DType

if TYPE_CHECKING:  # what networks have: one convolution imports no reader of files
    from leanconv.api.inputs import Known, Shape
    from leanconv.graph.ir import TensorType
    from leanconv.graph.onnx_import import Model
    from leanconv.runtime.memory import Held
    from leanconv.runtime.profile import Step


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
    """A network compiled for fixed input shapes."""

    def is_for(self, shapes: tuple[Shape, ...], known: Known) -> bool:
        """Return whether it was compiled for these shapes, and these values of deciding inputs."""

    @property
    def plan(self) -> NetworkFacts:
        """The plan that the compiled network runs."""

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

    def time_steps(self, arrays: Sequence[Any], repeats: int) -> list[list[int]]:
        """Run step by step: for each step the nanoseconds of every repeat."""

    def step_estimates(self) -> Sequence[int | None]:
        """For each step the nanoseconds that the plan predicts; None where it predicts none."""

    def explain(self) -> str:
        """Say how every step is computed, with its bytes, and what makes the memory."""

    def report(self, front: bool) -> dict[str, Any]:
        """Say of every layer which candidates there were and why all but one lost, as JSON."""


class Backend(Protocol):
    """A planner and compiler of one network, for one kind of device."""

    @property
    def model(self) -> Model:
        """The network as read from its file."""

    @property
    def input_dtype(self) -> DType:
        """The dtype that arrays are given in."""

    @property
    def dtype(self) -> DType:
        """The dtype of the computation and of the outputs."""

    @property
    def deciding(self) -> tuple[str, ...]:
        """Names of the inputs whose values decide what is computed, as found until now."""

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

    def compile(self, shapes: tuple[Shape, ...], known: Known) -> Compiled:
        """Compile for input shapes.

        Args:
            shapes: of all inputs.
            known: values of some, which count for those of `deciding`.

        Raises:
            NeedsInputsError: the values of others decide what is computed.
        """

    def of_model(self, model: Model) -> Backend:
        """Return a backend with these options for another model, such as this at fixed shapes."""

    def copied(self, compiled: Compiled | None) -> Backend:
        """A backend for a copy of the network, which follows the plan if that was measured."""
