"""The whole suite on a real device: every case and every tile, against float64.

Buffers are poisoned and guarded. Kernels with eight warps are a known hazard of the compiler that
nothing without a device shows: no configuration is left out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from leanconv.errors import DeviceError
from leanconv.gpu.device.compiler import compile_cubin
from leanconv.gpu.device.driver import load_library
from support.gpu.cases import KINDS_OF_CASES, case_names, check, run_case
from support.gpu.conv_cases import TENSOR, convolution
from support.gpu.fake_cuda import FakeCuda
from support.gpu.guarded_driver import GuardedDriver
from support.gpu.stand import Row, Stand
from support.gpu.workers import HAS_TRITON


@functools.cache
def device() -> Stand | None:
    """The first device, or None."""
    try:
        driver = GuardedDriver(load_library())
    except DeviceError:
        return None
    return Stand(driver, compile_cubin, driver.check_guards)


@functools.cache
def cases(kind: str) -> dict[str, Callable[[], Row]]:
    """The cases of a kind for this device, by name."""
    stand = device()
    assert stand is not None
    return dict(KINDS_OF_CASES[kind](stand))


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_TRITON or device() is None, reason="no GPU, or no triton")
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param(kind, name, id=f"{kind} {name}")
        for kind in ("conv", "node", "network", "tile")
        for name in case_names(kind)
    ],
)
def test_a_case_is_right_on_the_device(kind: str, name: str) -> None:
    stand = device()
    assert stand is not None
    if name not in cases(kind):
        pytest.skip(f"sm_{stand.driver.arch} has no such case")
    row = run_case(cases(kind)[name])
    if "arch" in row.get("failure", "") and stand.driver.arch < 90:
        pytest.skip(row["failure"])
    check(row)


def test_the_guarded_driver_sees_what_is_written_beside_a_buffer() -> None:
    fake = FakeCuda()
    driver = GuardedDriver(fake)
    address = driver.allocate(100)
    stand = Stand(driver, fake.compile, driver.check_guards)
    stand.check_guards()
    zero = bytes(4)
    import ctypes

    source = ctypes.create_string_buffer(zero, 4)
    driver.write(address + 96, ctypes.addressof(source), 4)
    stand.check_guards()
    driver.write(address + 98, ctypes.addressof(source), 4)
    with pytest.raises(AssertionError, match="written outside a buffer"):
        stand.check_guards()


def test_a_kernel_that_writes_nothing_is_found() -> None:
    fake = FakeCuda()
    driver = GuardedDriver(fake)
    stand = Stand(driver, fake.compile, driver.check_guards)
    row = convolution(stand, "mb1ic16ih9oc24kh3ph1", TENSOR, precision="tf32x3")
    assert row["error"] == float("inf")
