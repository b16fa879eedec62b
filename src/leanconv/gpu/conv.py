"""One convolution on a GPU: planned once, run many times."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import numpy as np

from leanconv.errors import InputError
from leanconv.gpu.device.arrays import (
    DeviceArray,
    Memory,
    finish_reading,
    is_device_array,
    on_device,
    take,
)
from leanconv.gpu.device.compiler import Compile, Module, compile_cubin
from leanconv.gpu.device.driver import Driver, Graph
from leanconv.gpu.launch import Launch, permute
from leanconv.gpu.lowering.conv import DEVICE_ALGORITHMS, choose_algorithm
from leanconv.gpu.lowering.conv_problem import (
    ConvProblem,
    Epilogue,
    Lowered,
    check_error,
    fastest_within,
    stored,
    unstored,
)
from leanconv.gpu.lowering.gemm import sum_error
from leanconv.gpu.lowering.windows import at_least_2d
from leanconv.gpu.machine import choices, machine_of
from leanconv.graph.ir import TensorType
from leanconv.records import replace
from leanconv.runtime.locks import Lock, Unpicklable
from leanconv.spec import NHWC, ConvSpec
from leanconv.spec.arguments import check_residual
from leanconv.spec.format import aligned
from leanconv.types import BFLOAT16, FLOAT32, FLOATS, HALVES, DType, find_dtype
from leanconv.units import format_bytes


class _Chosen(NamedTuple):
    """A lowering with what turns the user's layout to channels last, and all that is packed."""

    lowered: Lowered
    launches: tuple[Launch, ...]
    temporaries: dict[str, int]
    constants: dict[str, np.ndarray]

    @property
    def workspace_bytes(self) -> int:
        return sum(aligned(size) for size in self.temporaries.values())

    @property
    def weight_bytes(self) -> int:
        return sum(aligned(array.nbytes) for array in self.constants.values())

    @property
    def memory_bytes(self) -> int:
        return self.workspace_bytes + self.weight_bytes


class DeviceConvPlan(Unpicklable):
    """One convolution, ready to run on a GPU. Calls run in turn on the plan's own stream.

    Attributes:
        spec: the convolution; its dtype that of all arrays.
        algorithm, arithmetic, parameters: how.
        workspace_bytes: memory that runs work in.
        weight_bytes: packed weights, bias, slopes and tables.
        predicted_error: expected relative error in the max norm, for data of random sign.
    """

    instead = "send the weights, and call leanconv.plan_conv2d where the plan is wanted"

    def __init__(
        self,
        spec: ConvSpec,
        w: np.ndarray,
        bias: np.ndarray | None,
        slope: np.ndarray | None,
        algorithm: str | None,
        memory_limit: int | None,
        max_error: float | None,
        precision: str | None,
        driver: Driver,
        compile_code: Compile = compile_cubin,
    ) -> None:
        self.spec, self._driver = spec, driver
        self.machine = machine_of(driver)
        arithmetics = choices(spec.dtype, precision)
        if max_error is not None:
            kept = [a for a in arithmetics if sum_error(spec.reduction, a) <= max_error]
            arithmetics = tuple(kept) or arithmetics
        channels = {"bias": bias, "slope": slope}
        self._given = {k: v for k, v in channels.items() if v is not None}
        epilogue = Epilogue(
            "bias" if bias is not None else "",
            "residual" if spec.residual else "",
            "slope" if slope is not None else "",
            spec.activation,
        )
        flat = at_least_2d(spec)
        self._problem = ConvProblem(flat, spec.dtype, arithmetics, "x", "y", epilogue, "conv")
        self._choose(w, algorithm, memory_limit)
        subject = f"{spec}: {self.algorithm} ({self.arithmetic})"
        check_error(subject, self.predicted_error, max_error)
        self._lock = Lock("a run of the same plan")
        self._prepare(compile_code)

    # -- planning --------------------------------------------------------------------------
    def _choose(self, w: np.ndarray, algorithm: str | None, limit: int | None) -> None:
        """Take the fastest lowering that keeps the limit."""

        def lower(lean: bool) -> _Chosen:
            lowered = choose_algorithm(
                replace(self._problem, lean=lean), w, self.machine, algorithm
            )
            launches, temporaries = self._with_layout(lowered)
            constants = dict(lowered.constants)
            for role, array in self._given.items():
                constants[role] = stored(array, self.spec.dtype)
            return _Chosen(lowered, launches, temporaries, constants)

        chosen = fastest_within(
            lower, lambda c: c.memory_bytes, limit, str(self.spec), self.machine
        )
        lowered, self._launches = chosen.lowered, chosen.launches
        self._temporaries, self._constants = chosen.temporaries, chosen.constants
        self.algorithm, self.arithmetic = lowered.algorithm, lowered.arithmetic
        self.parameters, self.predicted_error = lowered.parameters, lowered.error
        self.estimate_s = lowered.estimate_s
        self.workspace_bytes, self.weight_bytes = chosen.workspace_bytes, chosen.weight_bytes

    def _with_layout(self, lowered: Lowered) -> tuple[tuple[Launch, ...], dict[str, int]]:
        """Bring NCHW arrays to channels last and back: kernels work on nothing else."""
        spec, temporaries = self._problem.spec, dict(lowered.temporaries)
        if self.spec.format == NHWC:
            return lowered.launches, temporaries
        before: list[Launch] = []
        after: list[Launch] = []
        renamed: dict[str, str] = {}
        sides = [("x", spec.in_channels, spec.size), ("y", spec.out_channels, spec.output_size)]
        if spec.residual:
            sides.append(("residual", spec.out_channels, spec.output_size))
        for name, channels, size in sides:
            if channels == 1 or prod(size) == 1:
                continue
            shape = (spec.batch, channels, prod(size))
            last = f"{name}/channels last"
            renamed[name] = last
            temporaries[last] = prod(shape) * spec.dtype.bytes
            if name == "y":
                channels_first = (spec.batch, prod(size), channels)
                after.append(permute(last, name, spec.dtype, channels_first, (0, 2, 1)))
            else:
                before.append(permute(name, last, spec.dtype, shape, (0, 2, 1)))
        inner = tuple(_renamed(launch, renamed) for launch in lowered.launches)
        return (*before, *inner, *after), temporaries

    def _prepare(self, compile_code: Compile) -> None:
        """Compile, set memory aside, and bind launches to it."""
        self._driver.enter()
        self._memory = Memory(self._driver)
        places = self._memory.place(self._constants)
        workspace = self._memory.allocate(self.workspace_bytes)
        for name, size in self._temporaries.items():
            places[name] = ctypes.c_uint64(workspace)
            workspace += aligned(size)
        self._slots = {name: ctypes.c_uint64(0) for name in ("x", "y", "residual")}
        places.update(self._slots)
        self._constants = {}
        codes = (launch.code for launch in self._launches)
        self._module = Module(self._driver, codes, compile_code)
        self._runs = [self._module.bind(launch, places) for launch in self._launches]

    # -- what is known ---------------------------------------------------------------------
    @property
    def launches(self) -> tuple[Launch, ...]:
        """The kernels that a run starts, in order."""
        return self._launches

    @property
    def selector(self) -> str:
        """The text that selects this algorithm as `algorithm=`."""
        return self.algorithm

    @property
    def memory_bytes(self) -> int:
        """Workspace and packed weights."""
        return self.workspace_bytes + self.weight_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes that were allocated on the device for this plan."""
        return self._memory.used_bytes

    def explain(self) -> str:
        """Say which algorithm and arithmetic were chosen, and why the others were not."""
        spec = self.spec
        lines = [
            f"{spec} on {self.machine.name}: {self.algorithm} in {self.arithmetic} arithmetic "
            f"({self.parameters}), {spec.flops / 1e6:.2f} MFLOP, workspace "
            f"{format_bytes(self.workspace_bytes)}, weights {format_bytes(self.weight_bytes)}, "
            f"expected error {self.predicted_error:.1e}, {len(self._launches)} launch(es)"
        ]
        if self.arithmetic == "fp16x3":
            lines.append(
                "  tiles whose inputs leave the range of float16 halves are recomputed in tf32x3"
            )
        for other in DEVICE_ALGORITHMS:
            if other.name != self.algorithm.partition(":")[0]:
                reason = other.rejects(self._problem)
                lines.append(f"  {other.name}: {reason or 'possible, not preferred'}")
        return "\n".join(lines)

    # -- running ---------------------------------------------------------------------------
    def __call__(self, x: Any, out: Any = None, residual: Any = None) -> Any:
        """Convolve.

        Args:
            x: the input, of the planned shape and dtype: an array on the device (torch, CuPy:
                anything with DLPack), which is read in place, or a NumPy array, which is copied.
            out: where to write y, on the device; a new array if None.
            residual: of y's shape, if the plan adds one.

        Returns:
            y: `out`, a `DeviceArray` for a device array, a NumPy array for a NumPy array.

        Raises:
            InputError: an array does not fit the plan.
            DeviceError: the driver refuses something.
            ReentrantCallError: a signal handler calls this while its thread is in it.
        """
        spec = self.spec
        check_residual(spec.residual, residual is not None)
        self._driver.enter()
        held = [("x", self._on_device("x", x, spec.input_shape))]
        if residual is not None:
            held.append(("residual", self._on_device("residual", residual, spec.output_shape)))
        if out is None:
            result = self._memory.array(spec.output_shape, spec.dtype)
        else:
            result = self._on_device("out", out, spec.output_shape, copies=False)
        with self._lock.held:
            for name, array in (*held, ("y", result)):
                self._slots[name].value = array.address
            self.start()
        finish_reading(self._driver, x, residual, out)
        if out is not None:
            return out
        return result if is_device_array(x) else result.numpy()

    def start(self) -> None:
        """Start all launches on the arrays of the last call, without waiting."""
        for run in self._runs:
            run()

    @property
    def parts(self) -> tuple[tuple[Launch, Callable[[], None]], ...]:
        """Each launch of a run, in order, with what starts it alone."""
        return tuple(zip(self._launches, self._runs, strict=True))

    def record(self) -> Graph:
        """The launches on the arrays of the last call as a graph: its `run` starts all at once."""
        self._driver.enter()
        self._driver.begin_capture()
        try:
            self.start()
        finally:
            graph = self._driver.end_capture()
        return graph

    def _on_device(
        self, label: str, array: Any, shape: tuple[int, ...], copies: bool = True
    ) -> DeviceArray:
        """The array on the device, checked."""
        dtype = self.spec.dtype
        return on_device(
            label,
            array,
            TensorType(shape, dtype),
            self._memory,
            self._driver,
            accepts=(FLOAT32 if dtype == BFLOAT16 else dtype,),
            copies=copies,
            mend=", or plan with layout='NHWC' for channels-last memory",
        )


def _renamed(launch: Launch, names: dict[str, str]) -> Launch:
    return replace(
        launch,
        arguments=tuple(names.get(a, a) if isinstance(a, str) else a for a in launch.arguments),
        values=tuple(names.get(v, v) for v in launch.values),
    )


def host_weights(label: str, array: Any, driver: Driver) -> tuple[np.ndarray, DType]:
    """Weights as NumPy can compute with them, and the dtype they were given in.

    Raises:
        InputError: weights are no array of a dtype that leanconv knows.
    """
    if is_device_array(array):
        taken = take(label, array, driver)
        if not taken.dense:
            raise InputError(f"{label} has strides {taken.strides}; expected a row-major array")
        driver.wait()
        return taken.numpy(), taken.dtype
    kind = find_dtype(array.dtype) if isinstance(array, np.ndarray) else None
    if kind not in (*FLOATS, *HALVES):
        raise InputError(
            f"{label} is {getattr(array, 'dtype', type(array).__name__)}; expected a float16, "
            "float32 or float64 array, or one on the device (bfloat16 too)"
        )
    return unstored(array, kind), kind
