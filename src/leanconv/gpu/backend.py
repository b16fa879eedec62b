"""What `device="cuda"` means: the way from the public arguments to plans on a GPU."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from leanconv.errors import InputError, SpecError, UnsupportedError
from leanconv.gpu.conv import DeviceConvPlan, host_weights
from leanconv.gpu.device.compiler import require_triton
from leanconv.gpu.device.dlpack import is_device_array, take
from leanconv.gpu.device.driver import Driver, driver
from leanconv.gpu.fft import FftConvPlan, TorchFft
from leanconv.runtime.locks import Lock
from leanconv.spec import ConvSpec
from leanconv.spec.arguments import ConvArguments, check_slope, spec_of
from leanconv.units import type_text

DevicePlan = DeviceConvPlan | FftConvPlan
Weights = tuple[Any, Any, Any]  # w, bias, slope
Limits = tuple[str | None, int | None, float | None]  # algorithm, memory limit, largest error
_MOST_PLANS = 64


def device_driver(device: str) -> Driver:
    """The driver of `"cuda"` or `"cuda:1"`.

    Raises:
        SpecError: it is neither.
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
    """Refuse what belongs to the CPU.

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
) -> DevicePlan:
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
) -> DevicePlan:
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
def _plans() -> tuple[dict[Any, DevicePlan], Lock]:
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
