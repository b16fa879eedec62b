"""One layer, planned once and run many times: floats, integers and transposed ones alike."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np

from leanconv.algorithms.magnitudes import Magnitudes
from leanconv.api.conv_arguments import Constants, fitting_array
from leanconv.codegen.linking import Library
from leanconv.errors import InputError, memory_reported
from leanconv.records import cached_property
from leanconv.runtime.arrays import Lookup
from leanconv.runtime.locks import Lock, Unpicklable
from leanconv.runtime.memory import Block, Outputs, SharedArena
from leanconv.runtime.portable import PortableProgram, told_program
from leanconv.spec import ConvSpec
from leanconv.spec.arguments import check_residual
from leanconv.spec.transposed import TransposedSpec
from leanconv.types import DType
from leanconv.units import format_bytes

LayerSpec: TypeAlias = ConvSpec | TransposedSpec


class PackedConstants:
    """Packed constants in one block, which plans for several sizes may share.

    Args:
        size: of the block.
        pack: packs constants into one.

    Attributes:
        block: where they lie.
        bytes: of the block.
        version: of the constants that are packed: see `kept_plans`. 0 for none.
    """

    def __init__(self, size: int, pack: Callable[[Constants, Block], None]) -> None:
        self.bytes, self.version, self._pack = size, 0, pack
        self.block = Block(size)

    @memory_reported("packing weights")
    def fill(self, constants: Constants) -> None:
        """Pack constants in the place of the old ones."""
        self._pack(constants, self.block)

    def copied(self) -> PackedConstants:
        """A copy in memory of its own."""
        copied = PackedConstants(self.bytes, self._pack)
        copied.block.write(0, self.block.view(0, self.bytes))
        return copied


class CompiledLayer(ABC):
    """One layer, chosen and compiled for any weights of its shape.

    Args:
        spec: the layer.
        x, y: the types of its arrays.
        program, library: the compiled program, and its kernels' code.

    Attributes:
        threads: threads that take part.
        workspace_bytes: memory that runs work in.
        packed_bytes: of packed constants.
        algorithm: its name.
        parameters: the algorithm's choices as text: `"F(4x4, 3x3) blocks of 9 tiles, …"`.
        selector: the text that selects the same arithmetic as `algorithm=`: `"winograd:m=4x4,…"`.
        pack: packs constants into a block.
        recipe: a key of what packs alike for other sizes; None if nothing does.
        program: takes the addresses of x, of the residual if the layer adds one, of y, and of
            packed constants.
    """

    algorithm: str
    parameters: str
    selector: str
    pack: Callable[[Constants, Block], None]
    recipe: Hashable = None

    def __init__(
        self, spec: LayerSpec, x: DType, y: DType, program: PortableProgram, library: Library
    ) -> None:
        self.spec, self.x, self.y = spec, x, y
        self.threads, self.workspace_bytes = program.threads, program.arena_bytes
        self.packed_bytes, self._portable = program.constant_bytes, (program, library)
        self._link()

    def _link(self, arena: SharedArena | None = None) -> None:
        program, library = self._portable
        self.arena = (arena or SharedArena()).part(program.arena_bytes)
        self.program = told_program(program, library, self.arena)

    def copied(self, arena: SharedArena | None = None) -> CompiledLayer:
        """A copy with a workspace of its own, or in an arena where others work, too."""
        made = copy.copy(self)
        made._link(arena)
        return made

    @property
    @abstractmethod
    def predicted_error(self) -> float:
        """Expected relative error in the max norm, for data of random sign."""

    def magnitudes(self, w: np.ndarray | None) -> Magnitudes | None:
        """Return the magnitudes of results and inputs for which the error is stated, if it is."""
        del w
        return None

    def unfilled(self) -> PackedConstants:
        """Memory for packed constants."""
        return PackedConstants(self.packed_bytes, self.pack)

    @abstractmethod
    def explain(self, plan: LayerPlan) -> str:
        """Say how a plan is computed, with its bytes."""


class LayerPlan(Unpicklable):
    """One convolution or transposed one, ready to run. Calls from several threads run in turn.

    `copy.deepcopy(plan)` has memory of its own, so that both can run at the same time;
    `copy.copy` shares it. A plan cannot be pickled: its weights are packed for this CPU.

    Attributes:
        spec: the layer: a `ConvSpec`, or a `TransposedSpec`.
        algorithm: how.
        parameters: the algorithm's choices as text.
        selector: the text that selects the same arithmetic as `algorithm=`.
        threads: threads that take part.
        workspace_bytes: memory that runs work in.
        weight_bytes: packed weights, bias and slopes.
        layer: the compiled layer.
        packed: weights, bias and slopes as kernels read them.
        magnitudes: of results and inputs for which the error is stated; None if nothing says.
    """

    instead = (
        "send the weights, and call leanconv.plan_conv2d or plan_conv_transpose2d where the plan "
        "is wanted"
    )

    def __init__(
        self, layer: CompiledLayer, packed: PackedConstants, outputs: Outputs | None = None
    ) -> None:
        """Make a plan of a compiled layer.

        Args:
            layer: the compiled layer.
            packed: its constants.
            outputs: the memory of large results; the plan's own if None.
        """
        self.spec: Any = layer.spec
        self.threads = layer.threads
        self.algorithm, self.parameters = layer.algorithm, layer.parameters
        self.selector = layer.selector
        self.workspace_bytes, self.weight_bytes = layer.workspace_bytes, packed.bytes
        self.magnitudes: Magnitudes | None = None
        self._x, self._y = (self.spec.input_shape, layer.x), (self.spec.output_shape, layer.y)
        self._new = (Outputs() if outputs is None else outputs).maker(*self._y)
        self._adds = isinstance(self.spec, ConvSpec) and self.spec.residual
        self._find_x, self._find_added = Lookup(*self._x), Lookup(*self._y)
        self._find_out = Lookup(*self._y, writeable=True)
        self._extents = tuple(prod(shape) * dtype.bytes for shape, dtype in (self._x, self._y))
        self._bind(layer, packed)

    def _bind(self, layer: CompiledLayer, packed: PackedConstants) -> None:
        self.layer, self.packed = layer, packed
        self._run, self._constants = layer.program.run, packed.block.address

    def __copy__(self) -> LayerPlan:
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> LayerPlan:
        copied = memo[id(self)] = copy.copy(self)
        copied._bind(self.layer.copied(), self.packed.copied())
        return copied

    @cached_property
    def predicted_error(self) -> float:
        """Expected relative error in the max norm, for data of random sign."""
        return self.layer.predicted_error

    @property
    def memory_bytes(self) -> int:
        """Workspace and packed weights."""
        return self.workspace_bytes + self.weight_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes that the runtime has allocated for this plan."""
        return self.layer.arena.bytes + self.packed.block.bytes

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the compiled layer: `candidate` of floats, `plan` of others."""
        if name.startswith("_") or name == "layer":
            raise AttributeError(name)
        return getattr(self.layer, name)

    def __repr__(self) -> str:
        return f"<LayerPlan {self.spec}: {self.algorithm}, {format_bytes(self.memory_bytes)}>"

    def explain(self) -> str:
        """Say which algorithm was chosen, what it needs, and why the others were not chosen."""
        return self.layer.explain(self)

    def repack(
        self, w: np.ndarray, bias: np.ndarray | None = None, slope: np.ndarray | None = None
    ) -> None:
        """Replace the weights by others of the same shapes; no run may be under way."""
        self.packed.fill(Constants(w, bias, slope))
        self.magnitudes = self.layer.magnitudes(w)

    def __call__(
        self, x: np.ndarray, out: np.ndarray | None = None, residual: np.ndarray | None = None
    ) -> np.ndarray:
        """Convolve.

        Args:
            x: the input, of the planned shape and dtype; contiguous arrays are read in place.
            out: where to write y: contiguous, and no part of x; a new array if None.
            residual: of y's shape, if the plan adds one; it may be `out`, but no part of it.

        Returns:
            y, of int32 where x is of bytes.

        Raises:
            InputError: an array does not fit the plan.
            LeanConvError: there is no memory for y.
        """
        # What kernels read and write in place needs a native look each.
        read = self._find_x(x) if self._adds == (residual is not None) else 0
        added = self._find_added(residual) if read and self._adds else 0
        if out is None and read and (added or not self._adds):
            out, write = self._new()
            constants = self._constants
            self._run((read, added, write, constants) if added else (read, write, constants))
            return out
        if read and not self._adds and (write := self._find_out(out)):
            x_bytes, y_bytes = self._extents
            if write + y_bytes <= read or read + x_bytes <= write:
                self._run((read, write, self._constants))
                assert out is not None
                return out
        return self._checked(x, out, residual)

    def run_at(self, x: int, y: int) -> None:
        """Convolve what lies at an address, contiguous, into what lies at another one."""
        self._run((x, y, self._constants))

    def _checked(
        self, x: np.ndarray, out: np.ndarray | None, residual: np.ndarray | None
    ) -> np.ndarray:
        """Run on any arrays, with copies of those that lie otherwise than kernels read them."""
        arrays = [fitting_array("x", x, *self._x)]
        check_residual(self._adds, residual is not None)
        if residual is not None:
            arrays.append(fitting_array("residual", residual, *self._y))
        if out is None:
            out, _ = self._new()
        else:
            self._check_output(out, arrays)
        self._run([*(array.ctypes.data for array in (*arrays, out)), self._constants])
        return out

    def _check_output(self, out: np.ndarray, inputs: Sequence[np.ndarray]) -> None:
        """Check the array of the result; `inputs` are x and the residual, if there is one."""
        checked = fitting_array("out", out, *self._y)
        if checked is not out or not out.flags.writeable:
            raise InputError("out is not contiguous and writeable; expected an array that is")
        if np.may_share_memory(out, inputs[0]):
            raise InputError("out shares memory with x; expected an array of its own")
        for residual in inputs[1:]:
            if np.may_share_memory(out, residual) and out.ctypes.data != residual.ctypes.data:
                raise InputError(
                    "out shares memory with a part of residual; expected the same array or another "
                    "one"
                )


class WeightlessPlan(LayerPlan):
    """A layer whose weights come with each run, which packs them: `plan(x, w, bias)`.

    It plans and compiles nothing more, whatever the weights are. `weight_bytes` are of what a run
    packs.
    """

    def __init__(self, layer: CompiledLayer, no_bias: np.ndarray | None) -> None:
        super().__init__(layer, layer.unfilled())
        self.magnitudes, self._no_bias = layer.magnitudes(None), no_bias

    def _bind(self, layer: CompiledLayer, packed: PackedConstants) -> None:
        super()._bind(layer, packed)
        self._packing = Lock("a run of the same plan")

    def __call__(  # type: ignore[override]
        self,
        x: np.ndarray,
        w: np.ndarray,
        bias: np.ndarray | None = None,
        slope: np.ndarray | None = None,
        *,
        out: np.ndarray | None = None,
        residual: np.ndarray | None = None,
    ) -> np.ndarray:
        """Convolve with weights.

        Args:
            x, out, residual: as a plan with weights takes them.
            w, bias, slope: of the planned shapes and dtype; no bias is one of zeros.

        Returns:
            y.

        Raises:
            InputError: an array does not fit the plan.
            LeanConvError: there is no memory for y.
        """
        constants = Constants(w, self._no_bias if bias is None else bias, slope)
        with self._packing.held:
            self.packed.fill(constants)
            return super().__call__(x, out, residual)
