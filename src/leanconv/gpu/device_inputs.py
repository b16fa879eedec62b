"""A user's arrays on a GPU: read in place if they are on the device, else copied to it."""

from __future__ import annotations

from typing import Any

import numpy as np

from leanconv.errors import InputError
from leanconv.gpu.device.dlpack import DeviceArray, is_device_array, take
from leanconv.gpu.device.driver import Driver
from leanconv.gpu.device.memory import Memory
from leanconv.gpu.lowering.stored import stored
from leanconv.graph.ir import TensorType
from leanconv.spec.arguments import mended
from leanconv.units import type_text

_VECTOR_BYTES = 16  # that the addresses of a user's arrays must be multiples of


def on_device(
    label: str,
    array: Any,
    kind: TensorType,
    memory: Memory,
    driver: Driver,
    *,
    accepts: tuple[str, ...],
    copies: bool = True,
    mend: str = "",
) -> DeviceArray:
    """An array on the device, checked.

    Args:
        label: what it is called in errors.
        array: on the device (anything with `__dlpack__`), or of NumPy, which is copied.
        kind: its shape, and its dtype on the device.
        memory: where copies go.
        driver: the device.
        accepts: dtypes of NumPy arrays that are converted while they are copied.
        copies: whether NumPy arrays are taken at all.
        mend: what else, beside `x.contiguous()`, gives an array the right memory layout.

    Raises:
        InputError: it has another shape, dtype or order, or is on another device.
    """
    if isinstance(array, np.ndarray) and copies:
        if array.shape != kind.shape or str(array.dtype) not in accepts:
            wanted = type_text(accepts[0], kind.shape)
            raise InputError(
                f"{label} is {type_text(array.dtype, array.shape)}; expected {wanted}"
                f"{_axes(array, kind)}"
            )
        made = memory.array(kind.shape, kind.dtype)
        memory.upload(made.address, stored(array, kind.dtype))
        return made
    if not is_device_array(array):
        raise InputError(
            f"{label} is {type(array).__name__}; expected an array on the device (torch, CuPy: "
            "anything with __dlpack__)" + (", or a NumPy array" if copies else "")
        )
    held = take(label, array, driver)
    if (held.shape, held.dtype) != (kind.shape, kind.dtype):
        raise InputError(
            f"{label} is {type_text(held.dtype, held.shape)}; expected {kind}{_axes(held, kind)}"
        )
    if not held.dense or held.address % _VECTOR_BYTES:
        raise InputError(
            f"{label} has strides {held.strides} and begins at an address of "
            f"{held.address % _VECTOR_BYTES} modulo {_VECTOR_BYTES}; expected a row-major array "
            f"that begins at a multiple of {_VECTOR_BYTES}; call x.contiguous(){mend}"
        )
    return held


def finish_reading(driver: Driver, *given: Any) -> None:
    """Let the owners' default stream wait before it writes what we still read or write."""
    if any(not isinstance(a, np.ndarray | DeviceArray) and a is not None for a in given):
        driver.lead(1)


def _axes(array: Any, kind: TensorType) -> str:
    """What a message says of an array whose axes are in another order."""
    text = mended("x", array.shape, kind.shape)
    return f": give {text}" if text else ""
