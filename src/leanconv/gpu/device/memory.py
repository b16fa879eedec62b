"""Memory of a device, kept for the next array of the same size; a user's arrays, checked."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from leanconv.errors import InputError
from leanconv.gpu.device.dlpack import DeviceArray, is_device_array, take
from leanconv.gpu.device.driver import Driver
from leanconv.gpu.lowering.lowered import stored
from leanconv.graph.ir import TensorType
from leanconv.spec.arguments import mended
from leanconv.spec.format import aligned_offsets
from leanconv.types import DType
from leanconv.units import type_text

_MOST_KEPT = 8


class Memory:
    """Blocks that live as long as this object, and arrays that are handed out.

    Attributes:
        used_bytes: of the blocks, as requested.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.used_bytes = 0
        self._blocks: list[int] = []
        self._kept: list[tuple[int, int]] = []  # size and address of arrays that came back
        weakref.finalize(self, _free, driver, self._blocks, self._kept)

    def allocate(self, size: int) -> int:
        """Reserve a block for as long as this object lives, and return its address."""
        address = self._driver.allocate(size)
        self._blocks.append(address)
        self.used_bytes += size
        return address

    def upload(self, address: int, array: np.ndarray) -> None:
        """Copy an array from the host."""
        held = np.ascontiguousarray(array)
        self._driver.write(address, held.ctypes.data, held.nbytes)

    def place(self, arrays: Mapping[str, np.ndarray]) -> dict[str, ctypes.c_uint64]:
        """Copy arrays from the host into one block; where each of them begins, by name."""
        offsets, size = aligned_offsets({name: a.nbytes for name, a in arrays.items()})
        start = self.allocate(size)
        for name, array in arrays.items():
            self.upload(start + offsets[name], array)
        return {name: ctypes.c_uint64(start + offset) for name, offset in offsets.items()}

    def array(self, shape: tuple[int, ...], dtype: DType) -> DeviceArray:
        """An array without contents."""
        size = prod(shape) * dtype.bytes
        place = next((i for i, each in enumerate(self._kept) if each[0] == size), None)
        address = self._driver.allocate(size) if place is None else self._kept.pop(place)[1]
        driver, kept = self._driver, self._kept

        def release(array: DeviceArray) -> None:
            # The next array's memory is written by our stream, after all of ours that reads this
            # one. What another library still reads only the driver knows: `cuMemFree` waits.
            if array.shared or len(kept) >= _MOST_KEPT:
                driver.enter()
                driver.free(address)
            else:
                kept.append((size, address))

        return DeviceArray(driver, address, shape, dtype, release)


def _free(driver: Driver, blocks: list[int], kept: list[tuple[int, int]]) -> None:
    driver.enter()
    for address in (*blocks, *(address for _, address in kept)):
        driver.free(address)
    blocks.clear()
    # Arrays that come back later are freed at once.
    kept[:] = [(-1, 0)] * _MOST_KEPT


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
        label: the array's name in errors.
        array: on the device (anything with `__dlpack__`), or of NumPy, which is copied.
        kind: its shape, and its dtype on the device.
        memory: where copies go.
        driver: the device.
        accepts: dtypes of NumPy arrays that are converted while they are copied.
        copies: whether NumPy arrays are taken at all.
        mend: text on what else, beside `x.contiguous()`, gives the right memory layout.

    Raises:
        InputError: the array has another shape, dtype or order, or is on another device.
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
    """Say how to permute an array whose axes are in another order; "" where that is no mend."""
    text = mended("x", array.shape, kind.shape)
    return f": give {text}" if text else ""
