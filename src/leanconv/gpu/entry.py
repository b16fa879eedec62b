"""What `device="cuda"` means: the way from the public arguments to plans on a GPU."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from leanconv.errors import InputError, SpecError
from leanconv.gpu.conv import DeviceConvPlan, host_weights
from leanconv.gpu.device.compiler import require_triton
from leanconv.gpu.device.dlpack import is_device_array, take
from leanconv.gpu.device.driver import Driver, driver
from leanconv.gpu.fft import FftConvPlan, TorchFft
from leanconv.runtime.locks import Lock
from leanconv.spec import Activation, ConvSpec
from leanconv.spec.arguments import Padding, Steps, check_slope, spec_of
from leanconv.units import parse_bytes

DevicePlan = DeviceConvPlan | FftConvPlan
Weights = tuple[Any, Any, Any]  # w, bias, slope
Window = tuple[Steps, Padding, Steps, int]  # stride, padding, dilation, groups
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
    window: Window,
    kind: tuple[str | Activation | None, str, bool],
    limits: tuple[str | None, int | str | None, float | None],
) -> DevicePlan:
    """Plan a convolution on a GPU.

    Args:
        device: `"cuda"` or `"cuda:1"`.
        precision: what is asked of the arithmetic; None for that of the arrays.
        x_shape: as for `plan_conv2d`.
        weights: w, bias and slope: NumPy arrays or arrays on the device.
        window: stride, padding, dilation, groups.
        kind: activation, layout, and whether a residual is added.
        limits: algorithm, memory limit, largest error.
    """
    used = device_driver(device)
    spec, (w, bias, slope) = _spec(used, x_shape, weights, window, kind)
    algorithm, memory, max_error = limits
    limit = None if memory is None else parse_bytes(memory)
    return _made(device, used, spec, (w, bias, slope), algorithm, limit, max_error, precision)


def _made(
    device: str,
    used: Driver,
    spec: ConvSpec,
    arrays: tuple[np.ndarray, np.ndarray | None, np.ndarray | None],
    algorithm: str | None,
    limit: int | None,
    max_error: float | None,
    precision: str | None,
) -> DevicePlan:
    """The plan of our own kernels, or by transforms of torch."""
    if algorithm == "fft":
        library = TorchFft(device)
        return FftConvPlan(spec, *arrays, limit, max_error, precision, library)
    return DeviceConvPlan(spec, *arrays, algorithm, limit, max_error, precision, used)


def convolve(
    device: str,
    precision: str | None,
    x: Any,
    residual: Any,
    weights: Weights,
    window: Window,
    kind: tuple[str | Activation | None, str],
    algorithm: str | None,
) -> Any:
    """Plan and run once; the plans used last are kept by shape and weights."""
    used = device_driver(device)
    if is_device_array(x):
        x = take("x", x, used)
    elif not isinstance(x, np.ndarray):
        raise InputError(
            f"x is {type(x).__name__}; expected a NumPy array, or one on the device with __dlpack__"
        )
    spec, arrays = _spec(used, x.shape, weights, window, (*kind, residual is not None))
    digests = tuple(None if a is None else hashlib.sha256(a.tobytes()).digest() for a in arrays)
    key = (device, spec, precision, algorithm, digests)
    plans, lock = _plans()
    with lock.held:
        plan = plans.pop(key, None)
        if plan is None:
            plan = _made(device, used, spec, arrays, algorithm, None, None, precision)
        plans[key] = plan
        while len(plans) > _MOST_PLANS:
            plans.pop(next(iter(plans)))
        return plan(x, residual=residual)


@functools.cache
def _plans() -> tuple[dict[Any, DevicePlan], Lock]:
    return {}, Lock()


def _spec(
    used: Driver,
    x_shape: Sequence[int],
    weights: Weights,
    window: Window,
    kind: tuple[str | Activation | None, str, bool],
) -> tuple[ConvSpec, tuple[np.ndarray, np.ndarray | None, np.ndarray | None]]:
    w, dtype = host_weights("w", weights[0], used)
    stride, padding, dilation, groups = window
    activation, layout, residual = kind
    spec = spec_of(
        x_shape,
        w.shape,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        dtype=dtype,
        layout=layout,
        bias=weights[1] is not None,
        residual=residual,
        activation=activation,
    )
    channels: list[np.ndarray | None] = []
    for label, given in (("bias", weights[1]), ("slope", weights[2])):
        if given is None:
            channels.append(None)
            continue
        array, kept = host_weights(label, given, used)
        if array.shape != (spec.out_channels,) or kept != dtype:
            raise InputError(
                f"{label} is {kept}{list(array.shape)}; expected {dtype}[{spec.out_channels}]"
            )
        channels.append(array)
    check_slope(spec.activation, channels[1] is not None)
    return spec, (w, channels[0], channels[1])
