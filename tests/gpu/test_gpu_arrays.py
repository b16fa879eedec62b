"""Arrays shared with other libraries, without a copy, against a driver that records."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import numpy as np
import pytest

from leanconv.errors import InputError
from leanconv.gpu.device.arrays import DeviceArray, take
from leanconv.gpu.device.driver import Driver
from leanconv.types import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
from support.gpu.fake_cuda import FakeCuda
from support.gpu.fake_plans import SPEC, plan_on


class Foreign:
    """Another library's array that hands out the capsule of one of ours."""

    def __init__(self, array: DeviceArray, device: tuple[int, int] = (2, 0)) -> None:
        self._array, self._device = array, device
        self.streams: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        self.streams.append(stream)
        return self._array.__dlpack__(stream=-1)


def array_on(driver: Driver, shape: tuple[int, ...], dtype: str = FLOAT32) -> DeviceArray:
    released: list[int] = []
    made = DeviceArray(driver, driver.allocate(4096), shape, dtype)
    made.release = lambda array: released.append(array.address)
    return made


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16, FLOAT32, FLOAT64])
def test_arrays_are_shared_without_a_copy(dtype: str) -> None:
    fake = FakeCuda()
    driver = Driver(fake)
    given = array_on(driver, (2, 3), dtype)
    foreign = Foreign(given)
    taken = take("x", foreign, driver)
    assert (taken.address, taken.shape, taken.dtype) == (given.address, (2, 3), dtype)
    assert taken.dense
    assert foreign.streams == [driver.stream.value]  # the producer waits for us, we for it
    assert taken.numpy().shape == (2, 3)
    address, released = given.address, []
    given.release = lambda array: released.append(array.address)
    del given, foreign
    gc.collect()
    assert released == []  # the capsule's owner still holds it
    del taken
    gc.collect()
    assert released == [address]


def test_a_capsule_that_nobody_takes_is_released() -> None:
    driver = Driver(FakeCuda())
    given = array_on(driver, (4,))
    released: list[int] = []
    given.release = lambda array: released.append(array.address)
    capsule = given.__dlpack__()
    assert ctypes.pythonapi.PyCapsule_IsValid(ctypes.py_object(capsule), b"dltensor") == 1
    del given
    gc.collect()
    assert released == []
    del capsule
    gc.collect()
    assert len(released) == 1


def test_a_plan_reads_and_writes_other_libraries_arrays_in_place() -> None:
    fake = FakeCuda()
    plan = plan_on(fake)
    x = array_on(plan._driver, SPEC.input_shape)
    x.address = plan._driver.allocate(x.nbytes)
    out = plan._memory.array(SPEC.output_shape, FLOAT32)
    given = Foreign(x)
    assert plan(given, out=Foreign(out)) is not None
    assert x.address in fake.launches[0].arguments
    assert out.address in fake.launches[-1].arguments
    result = plan(given)
    assert isinstance(result, DeviceArray)
    assert result.__dlpack_device__() == (2, 0)
    strided = DeviceArray(plan._driver, x.address, SPEC.input_shape, FLOAT32, steps=(1, 2, 3, 4))
    with pytest.raises(InputError, match=r"has strides \(1, 2, 3, 4\)"):
        plan(Foreign(strided))
    odd = DeviceArray(plan._driver, x.address + 4, SPEC.input_shape, FLOAT32)
    with pytest.raises(InputError, match="an address of 4 modulo 16"):
        plan(Foreign(odd))
    with pytest.raises(InputError, match=r"device \(2, 1\); expected \(2, 0\)"):
        plan(Foreign(x, (2, 1)))
    with pytest.raises(InputError, match=r"x is float32\[1\]; expected float32\[2x9x9x16\]"):
        plan(np.zeros(1, np.float32))
    with pytest.raises(InputError, match="x is str; expected an array on the device"):
        plan("no array")
