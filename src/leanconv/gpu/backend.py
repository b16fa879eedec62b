"""`device="cuda"`: from the public arguments to plans and networks on a GPU."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from leanconv.errors import BudgetError, InputError, SpecError, UnsupportedError, shown
from leanconv.gpu.compiled_network import CompiledDeviceNetwork, DevicePlan
from leanconv.gpu.conv import DeviceConvPlan, host_weights
from leanconv.gpu.device.arrays import is_device_array, take
from leanconv.gpu.device.compiler import Compile, compile_cubin, require_triton
from leanconv.gpu.device.driver import Driver, driver
from leanconv.gpu.fft import FftConvPlan, TorchFft
from leanconv.graph.network_inputs import Deciding
from leanconv.graph.onnx_import import Model
from leanconv.graph.passes import GPU_PASSES, run_passes
from leanconv.graph.verify import check_flowing
from leanconv.runtime.locks import Lock, Unpicklable
from leanconv.runtime.memory import Held
from leanconv.spec import ConvSpec
from leanconv.spec.arguments import ConvArguments, check_slope, spec_of
from leanconv.types import FLOAT32, HALVES, find_dtype
from leanconv.units import error_text, type_text

ConvPlan = DeviceConvPlan | FftConvPlan
Weights = tuple[Any, Any, Any]  # w, bias, slope
Limits = tuple[str | None, int | None, float | None]  # algorithm, memory limit, largest error
_MOST_PLANS = 64


def device_driver(device: str) -> Driver:
    """The driver of `"cuda"` or `"cuda:1"`.

    Raises:
        SpecError: the text is neither.
        DeviceError: there is no such device.
        MissingExtraError: triton is not installed.
    """
    name, _, number = device.partition(":") if isinstance(device, str) else ("", "", "")
    if name != "cuda" or not (number.isdecimal() or device == "cuda"):
        raise SpecError(f"device is {device!r}; expected 'cpu', 'cuda' or 'cuda:1'")
    found = driver(int(number or 0))
    require_triton()
    return found


def check_options(**options: object) -> None:
    """Refuse options that are for the CPU.

    Raises:
        SpecError: such an option is given.
    """
    for name, given in options.items():
        if given:
            raise SpecError(f"{name} is {given!r}; expected it to be left out on a GPU")


def plan_conv(
    device: str,
    precision: str | None,
    x_shape: Sequence[int],
    weights: Weights,
    arguments: ConvArguments,
    residual: bool,
    limits: Limits,
) -> ConvPlan:
    """Plan a convolution on a GPU.

    Args:
        device: `"cuda"` or `"cuda:1"`.
        precision: of the arithmetic; None for that of the arrays.
        x_shape: as for `plan_conv2d`.
        weights: w, bias and slope: NumPy arrays or arrays on the device.
        arguments: of the convolution, beside its arrays.
        residual: whether a tensor of y's shape is added.
        limits: algorithm, memory limit, largest error.
    """
    used = device_driver(device)
    spec, arrays = _spec(used, x_shape, weights, arguments, residual)
    return _made(device, used, spec, arrays, limits, precision)


def _made(
    device: str,
    used: Driver,
    spec: ConvSpec,
    arrays: tuple[np.ndarray, np.ndarray | None, np.ndarray | None],
    limits: Limits,
    precision: str | None,
) -> ConvPlan:
    """The plan of our own kernels, or by transforms of torch."""
    algorithm, memory_limit, max_error = limits
    if algorithm == "fft":
        library = TorchFft(device)
        return FftConvPlan(spec, *arrays, memory_limit, max_error, precision, library)
    return DeviceConvPlan(spec, *arrays, algorithm, memory_limit, max_error, precision, used)


def convolve(
    x: Any,
    residual: Any,
    weights: Weights,
    arguments: ConvArguments,
    limits: Limits,
    *,
    device: str,
    precision: str | None,
) -> Any:
    """Plan and run once; the plans used last are kept by shape, weights and limits.

    Returns:
        A NumPy array for a NumPy array x, else an array on the device.
    """
    used = device_driver(device)
    if is_device_array(x):
        x = take("x", x, used)
    elif not isinstance(x, np.ndarray):
        raise InputError(
            f"x is {type(x).__name__}; expected a NumPy array, or one on the device with __dlpack__"
        )
    spec, arrays = _spec(used, x.shape, weights, arguments, residual is not None)
    digests = tuple(None if a is None else hashlib.sha256(a.tobytes()).digest() for a in arrays)
    key = (device, spec, precision, limits, digests)
    plans, lock = _plans()
    with lock.held:
        plan = plans.pop(key, None)
        if plan is None:
            plan = _made(device, used, spec, arrays, limits, precision)
        plans[key] = plan
        for oldest in list(plans)[:-_MOST_PLANS]:
            del plans[oldest]
        return plan(x, residual=residual)


@functools.cache
def _plans() -> tuple[dict[Any, ConvPlan], Lock]:
    return {}, Lock("a convolution on the GPU")


def _spec(
    used: Driver,
    x_shape: Sequence[int],
    weights: Weights,
    arguments: ConvArguments,
    residual: bool,
) -> tuple[ConvSpec, tuple[np.ndarray, np.ndarray | None, np.ndarray | None]]:
    w, dtype = host_weights("w", weights[0], used)
    spec = spec_of(x_shape, w.shape, arguments, dtype, weights[1] is not None, residual)
    channels: list[np.ndarray | None] = []
    for label, given in (("bias", weights[1]), ("slope", weights[2])):
        if given is None:
            channels.append(None)
            continue
        array, kept = host_weights(label, given, used)
        if array.shape != (spec.out_channels,) or kept != dtype:
            raise InputError(
                f"{label} is {type_text(kept, array.shape)}; expected {dtype}[{spec.out_channels}]"
            )
        channels.append(array)
    check_slope(spec.activation, channels[1] is not None)
    if spec.activation is not None and (spec.activation.affine or spec.activation.before_residual):
        raise UnsupportedError(
            f"activation {spec.activation} on a GPU; expected one that comes last: apply the rest "
            "to the result"
        )
    return spec, (w, channels[0], channels[1])


class DeviceBackend(Unpicklable):
    """A backend of one network on a GPU; runs of one network follow one another.

    Args:
        model: the network as read from its file.
        driver: the device.
        dtype: to compute in, half precision included; None for the file's.
        precision: as for `plan_conv2d`.
        memory_limit: bytes that weights and arena may take together, None for no limit.
        max_error: the largest error of the outputs that a plan may state, None for no limit.
        compile_code: compiles a code to a cubin.
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

    @property
    def whole(self) -> DeviceBackend:
        """Itself: it makes plans."""
        return self

    def private_bytes(self, held: Held) -> int:
        """Return 0: all memory is on the device."""
        return 0

    @property
    def output_bytes(self) -> int:
        """0: each result is made anew."""
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
        """Return nothing to compile: kernels are checked when the input shapes are known."""
        return ()

    ports = None  # the model has them
    deciding = Deciding()  # no values are read: arrays may be on the device

    def compile(
        self, shapes: tuple[tuple[int, ...], ...], known: object = None
    ) -> CompiledDeviceNetwork:
        """Choose kernels, compile them and set memory aside.

        Raises:
            NeedsInputsError: values of inputs decide what is computed.
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

    def limit_to(self, memory_limit: int) -> None:
        """Let later plans take at most so many bytes, whatever the options of `load`."""
        self._limit = memory_limit

    def kept(self, shapes: object) -> None:
        """Return None: there are no snapshots of a device's networks."""

    def report(self, shapes: tuple[tuple[int, ...], ...], front: bool) -> dict[str, Any]:
        """Say of every layer what was chosen for input shapes."""
        return self.compile(shapes).report(front)

    def of_model(self, model: Model, shapes: object) -> DeviceBackend:
        """A backend with the same options for this model at stated shapes."""
        del shapes
        given = self._driver, self._dtype_asked, self._precision, self._limit, self._max_error
        return DeviceBackend(model, *given, self._compile_code)

    def copied(self, compiled: object) -> DeviceBackend:
        """Refuse a copy: memory on a device belongs to this process."""
        self.__reduce_ex__(2)
