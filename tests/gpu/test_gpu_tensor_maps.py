"""Tensor maps: overlapping views of the input, and what a driver refuses."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from leanconv.errors import DeviceError, SpecError
from leanconv.gpu.device.driver import Driver
from leanconv.spec import ConvSpec
from leanconv.types import FLOAT16, FLOAT32, Precision
from support.gpu.fake_cuda import Encoded, FakeCuda
from support.gpu.fake_plans import plan_on

STRIDED = ConvSpec.parse("mb2ic8ih11iw16oc24kh3kw5sh2sw3", layout="NHWC")


@pytest.mark.parametrize(("precision", "kind", "item"), [("tf32x3", 7, 4), ("fp16x3", 7, 4)])
def test_windows_are_an_overlapping_view_of_the_input(
    precision: str | None, kind: int, item: int
) -> None:
    fake = FakeCuda()
    spec = STRIDED
    plan = plan_on(fake, spec, algorithm="direct:loads=windows", precision=precision)
    x = plan._memory.array(spec.input_shape, spec.dtype)
    fake.encoded.clear()
    plan(x)
    windows, weights, *_ = fake.encoded
    _, height, width, channels = spec.input_shape
    out_h, out_w = spec.output_size
    box = dict(plan.launches[0].code.types)["x"].partition("[")[2].rstrip("]>").split(", ")
    assert windows == Encoded(
        kind=kind,
        address=x.address,
        shape=(5 * channels, 3, out_w, out_h, 2),
        strides=tuple(item * step * channels for step in (width, 3, 2 * width, height * width)),
        box=tuple(int(extent) for extent in reversed(box)),
        steps=(1,) * 5,
        modes=(0, 3, 2, 0),  # not interleaved, swizzled by 128 bytes, lines of 128 bytes, zeros
    )
    assert windows.strides[1] < 5 * channels * item  # the next window begins within this one
    assert (len(windows.box), windows.box[1], windows.box[-1]) == (5, 1, 2)  # both images at once
    assert weights.shape == (3 * -(-5 * channels // windows.box[0]) * windows.box[0], 24)
    assert weights.strides == (weights.shape[0] * 2,)  # halves of float16
    assert "of overlapping windows" in plan.explain()


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        ("mb2ic3ih12oc24kh3sh2", "has a stride of 24 bytes; expected multiples of 16"),
        ("mb2ic8ih11oc24kh3ph1sh2", r"stride is \(2, 2\); expected 1; the input is padded by"),
        ("mb2ic8ih19oc24kh3sh2dh1", "no row of a window is contiguous"),
        ("g2mb2ic8ih11oc24kh3sh2", "groups is 2; expected 1"),
    ],
)
def test_tensor_copies_say_what_they_cannot_bring(problem: str, reason: str) -> None:
    spec = ConvSpec.parse(problem, layout="NHWC")
    with pytest.raises(SpecError, match=reason):
        plan_on(FakeCuda(), spec, algorithm="direct:loads=tma", precision="tf32x3")
    assert plan_on(FakeCuda(), spec, precision="tf32x3").algorithm == "direct"


@pytest.mark.parametrize(
    ("dtype", "precision", "shown"),
    [(FLOAT32, "tf32", "float32 in tf32"), (FLOAT16, None, "float16 in native")],
)
def test_products_that_would_stay_in_flight_are_not_loaded_so(
    dtype: str, precision: str | None, shown: str
) -> None:
    spec = replace(STRIDED, precision=Precision.of(dtype))
    with pytest.raises(SpecError, match=f"{shown} arithmetic; expected products that are split"):
        plan_on(FakeCuda(), spec, algorithm="direct:loads=tma", precision=precision)


def test_a_driver_that_makes_no_overlapping_maps_gets_none() -> None:
    fake = FakeCuda(refuses_overlap=True)
    with pytest.raises(SpecError, match="makes no tensor maps whose cells overlap"):
        plan_on(fake, STRIDED, algorithm="direct:loads=windows")
    plan_on(fake, STRIDED)(np.zeros(STRIDED.input_shape, np.float32))
    assert all(one.code.function != "patches.patch_gemm" for one in fake.launches)
    assert not Driver(FakeCuda(refuses_overlap=True)).overlapping_maps
    assert Driver(FakeCuda()).overlapping_maps


@pytest.mark.parametrize(
    "changes",
    [
        {"address": 8},
        {"strides": (66, 6, 1)},  # 24 bytes
        {"strides": (2**38, 64, 1)},
        {"box": (1, 257, 32)},
        {"box": (1, 8, 2)},  # 8 bytes
        {"box": (1, 8, 64)},  # wider than the swizzle
        {"shape": (0, 5, 64)},
        {"shape": (1, 1, 1, 5, 5, 64), "strides": (64,) * 5 + (1,), "box": (1,) * 5 + (32,)},
    ],
)
def test_the_fake_driver_refuses_what_the_manual_forbids(changes: dict[str, Any]) -> None:
    driver = Driver(FakeCuda())
    held = ctypes.create_string_buffer(256)
    target = ctypes.addressof(held) + -ctypes.addressof(held) % 64
    given = {"address": 0x1000, "shape": (2, 5, 64), "strides": (320, 64, 1), "box": (1, 8, 32)}

    def encode(address: int, shape: Any, strides: Any, box: Any) -> None:
        driver.encode(target, FLOAT32, address, shape, strides, box, 3)

    encode(**given)
    with pytest.raises(DeviceError, match="cuTensorMapEncodeTiled failed"):
        encode(**(given | changes))
