"""Memory of a device: counted, and kept for the next array of the same size."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping
from math import prod

import numpy as np

from leanconv.gpu.device.dlpack import DeviceArray
from leanconv.gpu.device.driver import Driver
from leanconv.spec.format import aligned_offsets
from leanconv.types import DType

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
