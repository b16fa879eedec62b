"""What `load(..., device="cuda")` compiles and runs a network with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leanconv.errors import BudgetError, InputError, SpecError, UnsupportedError
from leanconv.gpu.compiled_network import CompiledDeviceNetwork, DevicePlan
from leanconv.gpu.device.compiler import Compile, compile_cubin
from leanconv.gpu.device.driver import Driver
from leanconv.graph.onnx_import import Model
from leanconv.graph.onnx_names import shown
from leanconv.graph.passes import GPU_PASSES, run_passes
from leanconv.graph.verify import check_flowing
from leanconv.runtime.locks import Lock, Unpicklable
from leanconv.runtime.memory import Held
from leanconv.types import FLOAT32, HALVES, find_dtype
from leanconv.units import error_text


class DeviceBackend(Unpicklable):
    """What compiles and runs a network on a GPU; runs of one network follow one another.

    Args:
        model: what the file says.
        driver: the device.
        dtype: to compute in, half precision included; None for the file's.
        precision: as for `plan_conv2d`.
        memory_limit: bytes that weights and arena may take together, None for no limit.
        max_error: the largest error of the outputs that a plan may state, None for no limit.
        compile_code: what makes cubins.
    """

    instead = "send the model's path, and call leanconv.load where the network is wanted"
    cache_bytes, most_cached = 2**62, 8

    def __init__(
        self,
        model: Model,
        driver: Driver,
        dtype: str | None = None,
        precision: str | None = None,
        memory_limit: int | None = None,
        max_error: float | None = None,
        compile_code: Compile = compile_cubin,
    ) -> None:
        other = next((each for each in model.inputs if each.dtype != model.dtype), None)
        if other is not None:
            raise UnsupportedError(
                f"the network takes {shown(other.name)!r} in {other.dtype} and computes in "
                f"{model.dtype}, which device='cuda' does not do; expected device='cpu', or a file "
                "without the cast"
            )
        half = find_dtype(dtype) if dtype in HALVES else None
        if half and model.dtype != FLOAT32:
            raise SpecError(
                f"dtype is {dtype!r} for a model in {model.dtype}; expected a model in float32"
            )
        self.model, self._driver, self._precision = model, driver, precision
        self._dtype_asked = dtype
        self._limit, self._max_error, self._compile_code = memory_limit, max_error, compile_code
        self._graph_dtype = model.runtime_dtype(None if half else dtype)
        self.input_dtype = model.dtype
        self.dtype = half or self._graph_dtype
        self._lock = Lock("a run of the same network")

    def private_bytes(self, held: Held) -> int:
        """Nothing: all is on the device."""
        return 0

    @property
    def output_bytes(self) -> int:
        """None: each result is made anew."""
        return 0

    def validated(self, arrays: Sequence[Any]) -> list[Any]:
        """The arrays; `CompiledDeviceNetwork.run` checks their dtypes.

        Raises:
            InputError: one of them is no array.
        """
        for spec, array in zip(self.model.inputs, arrays, strict=True):
            if not hasattr(array, "shape"):
                raise InputError(
                    f"input {spec.name!r} is {type(array).__name__}; expected an array"
                )
        return list(arrays)

    def prepare(self) -> tuple[()]:
        """Nothing: kernels are checked when the input shapes are known."""
        return ()

    deciding: tuple[str, ...] = ()  # no values are read: arrays may be on the device

    def compile(
        self, shapes: tuple[tuple[int, ...], ...], known: object = None
    ) -> CompiledDeviceNetwork:
        """Choose kernels, compile them and set memory aside.

        Raises:
            NeedsInputsError: what is computed follows from values of inputs.
            BudgetError: no plan keeps the limits.
        """
        del known
        if self.model.halves:
            raise UnsupportedError(
                "the file computes in float16, which is not supported on a GPU yet; expected "
                "float32: give the network from before it was converted, and dtype='float16'"
            )
        names = (spec.name for spec in self.model.inputs)
        given = dict(zip(names, shapes, strict=True))
        graph = self.model.bind(given, self._graph_dtype, holds_graphs=False)
        compiled = CompiledDeviceNetwork(
            check_flowing(run_passes(graph, GPU_PASSES), empty_outputs=False),
            self._driver,
            self.dtype,
            self._precision,
            self._limit,
            self._compile_code,
            self._lock,
        )
        self._check_error(compiled.plan)
        return compiled

    def _check_error(self, plan: DevicePlan) -> None:
        limit = self._max_error
        if limit is not None and not plan.predicted_error <= limit:
            raise BudgetError(
                f"the network is expected to err by {plan.predicted_error:.3g} in {self.dtype}, "
                f"the limit is {limit:.3g}; give max_error={error_text(plan.predicted_error)} or "
                "more, or use precision='ieee' or dtype='float64'",
                0,
                plan.predicted_error,
            )

    def of_model(self, model: Model) -> DeviceBackend:
        """The same for another model."""
        given = self._driver, self._dtype_asked, self._precision, self._limit, self._max_error
        return DeviceBackend(model, *given, self._compile_code)

    def copied(self, compiled: object) -> DeviceBackend:
        """Refused: what is on a device belongs to this process."""
        self.__reduce_ex__(2)
