"""Launching and its arithmetic, against a driver that records: no GPU, no triton."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import leanconv as lc
from leanconv.errors import (
    BudgetError,
    DeviceError,
    SpecError,
    UnsupportedError,
)
from leanconv.gpu.backend import check_options, device_driver
from leanconv.gpu.compiled_network import CompiledDeviceNetwork
from leanconv.gpu.conv import DeviceConvPlan
from leanconv.gpu.device.driver import Driver
from leanconv.gpu.launch import TENSOR_MAP
from leanconv.gpu.lowering import HANDLERS
from leanconv.gpu.lowering.gemm import pack
from leanconv.gpu.machine import FP16X3, IEEE, choices
from leanconv.graph.ops import BINARY, OPS, UNARY
from leanconv.spec import Activation, ConvSpec
from leanconv.spec.activation import KINDS
from leanconv.types import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
from support import network_models
from support.gpu.fake_cuda import FakeCuda
from support.gpu.fake_plans import BIAS, SPEC, plan_on
from support.nodes import one_node


# -- launches ----------------------------------------------------------------------------------
def test_arguments_arrive_as_they_were_planned() -> None:
    fake = FakeCuda()
    plan = plan_on(fake, precision="fp16x3")
    x = plan._memory.array(SPEC.input_shape, FLOAT32)
    y = plan(x)
    assert [one.code for one in fake.launches] == [launch.code for launch in plan.launches]
    for one, launch in zip(fake.launches, plan.launches, strict=True):
        assert one.grid == launch.grid
        assert one.threads == 32 * launch.code.warps
        assert one.shared_bytes == 60000
        assert one.scratch == [0, 0]
        held = zip(launch.code.types, launch.arguments, one.arguments, strict=True)
        for (name, kind), planned, on_device in held:
            if kind.startswith(TENSOR_MAP):
                on_device = on_device.address
            if kind[0] not in "*t":
                assert on_device == pytest.approx(planned, rel=1e-7), name
            elif planned == "":
                assert on_device == 0, name
            elif name in ("x", "y") and planned in ("x", "y"):
                assert on_device == {"x": x.address, "y": y.address}[planned]
            else:
                assert any(b <= on_device < b + size for b, (_, size) in fake.buffers.items()), name
    assert fake.calls.count("cuFuncSetAttribute") == len(fake.codes)  # over 48 KiB


def test_memory_is_counted_to_the_byte() -> None:
    fake = FakeCuda()
    plan = plan_on(fake, algorithm="im2col")
    assert plan.used_bytes == plan.memory_bytes == plan.workspace_bytes + plan.weight_bytes
    assert sum(size for _, size in fake.buffers.values()) == plan.memory_bytes
    lowered = 2 * 81 * 9 * 16 * 4
    assert plan.workspace_bytes >= lowered
    assert plan.workspace_bytes - lowered < lowered  # nothing but sums of splits beside it
    del plan
    gc.collect()
    assert fake.buffers == {}


@pytest.mark.parametrize("problem", ["mb1ic64ih32oc64oh32kh3", "g64mb4ic64ih32oc64oh32kh3"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_budget_finds_the_leanest_plan(problem: str, layout: str) -> None:
    spec = ConvSpec.parse(problem, layout=layout)
    fake = FakeCuda()
    free = plan_on(fake, spec)
    with pytest.raises(BudgetError) as caught:
        plan_on(fake, spec, memory_limit=1)
    least = caught.value.smallest_bytes
    assert plan_on(fake, spec, memory_limit=least).memory_bytes == least <= free.memory_bytes
    with pytest.raises(BudgetError):
        plan_on(fake, spec, memory_limit=least - 1)


def test_small_grids_start_before_the_kernel_in_front_has_ended() -> None:
    wide, narrow = FakeCuda(), FakeCuda(processors=1)
    for fake in (wide, narrow):
        plan_on(fake, precision="ieee")(np.zeros(SPEC.input_shape, np.float32))
    assert "cuLaunchKernelEx" in wide.calls
    assert "cuLaunchKernel" not in wide.calls
    assert "cuLaunchKernel" in narrow.calls


def test_a_refusing_driver_is_an_error_with_its_own_text() -> None:
    fake = FakeCuda()
    plan = plan_on(fake)
    fake.fail = "cuLaunchKernelEx"
    with pytest.raises(DeviceError, match=r"cuLaunchKernelEx failed .*illegal memory access"):
        plan(np.zeros(SPEC.input_shape, np.float32))
    with pytest.raises(DeviceError, match="cuMemAlloc"):
        plan_on(FakeCuda(memory_bytes=1000))
    with pytest.raises(DeviceError, match=r"'cuda:3' was asked for and the driver knows 1"):
        Driver(FakeCuda(), 3)
    with pytest.raises(SpecError, match=r"compute capability 7\.5; expected 8\.0"):
        plan_on(FakeCuda(arch=75))


# -- arithmetic --------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64, FLOAT16, BFLOAT16])
def test_never_a_lower_precision_than_asked_for(dtype: str) -> None:
    unit = {FLOAT64: 2.0**-53, FLOAT32: 2.0**-19, FLOAT16: 2.0**-11, BFLOAT16: 2.0**-8}
    assert all(a.unit_error <= unit[dtype] for a in choices(dtype, None))
    assert all(a.name != "tf32" for a in choices(FLOAT32, None))
    with pytest.raises(SpecError, match=r"precision is 'float8' for .* expected one of"):
        choices(dtype, "float8")
    if dtype != FLOAT32:
        with pytest.raises(SpecError, match="precision is 'tf32'"):
            choices(dtype, "tf32")


def test_the_plan_says_which_arithmetic_it_uses() -> None:
    for precision in ("ieee", "tf32", "tf32x3", "fp16x3"):
        plan = plan_on(FakeCuda(), precision=precision)
        assert plan.arithmetic == precision
        assert f"in {precision} arithmetic" in plan.explain()
    with pytest.raises(BudgetError, match="is expected to err by"):
        plan_on(FakeCuda(), precision="tf32", max_error=1e-6)


def test_weights_that_are_not_finite_are_not_split() -> None:
    fake = FakeCuda()
    w = np.full(SPEC.weight_shape, np.inf, np.float32)
    args: tuple[Any, ...] = (SPEC, w, BIAS, None, None, None, None, None, Driver(fake))
    assert DeviceConvPlan(*args, fake.compile).arithmetic == "ieee"


def test_split_weights_add_up() -> None:
    w = np.random.default_rng(0).standard_normal((5, 2, 9)) * np.logspace(-20, 20, 5)[:, None, None]
    packed = pack(w, 8, FP16X3, FLOAT32)
    whole = packed["w"].astype(np.float64) + packed["w_low"].astype(np.float64)
    whole = (whole * packed["scale"][:, None].astype(np.float64)).reshape(5, 2, 16)
    largest = np.abs(w).max(axis=(1, 2))
    assert np.abs(whole[:, :, :9] - w).max(axis=(1, 2)).max() <= 2.0**-22 * largest.max()
    assert (np.abs(whole[:, :, :9] - w).max(axis=(1, 2)) <= 2.0**-22 * largest).all()
    assert not whole[:, :, 9:].any()
    assert list(pack(w, 8, IEEE, FLOAT32)) == ["w"]


# -- the public edge ---------------------------------------------------------------------------
def test_options_of_the_cpu_are_refused() -> None:
    with pytest.raises(SpecError, match="threads is 2; expected it to be left out on a GPU"):
        check_options(threads=2)
    with pytest.raises(SpecError, match="precision is 'tf32' for device 'cpu'"):
        lc.plan_conv2d((1, 3, 8, 8), np.ones((4, 3, 3, 3), np.float32), precision="tf32")
    with pytest.raises(SpecError, match="precision is 'tf32' for device 'cpu'"):
        lc.load(network_models.model("squeezenet_like"), precision="tf32")


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "", "cuda:-1", 3])
def test_an_unknown_device_is_refused(device: Any) -> None:
    with pytest.raises(SpecError, match="expected 'cpu', 'cuda' or 'cuda:1'"):
        device_driver(device)


def test_without_a_device_the_error_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from leanconv.gpu.device import driver as module

    def none(name: str) -> Any:
        raise OSError(name)

    monkeypatch.setattr(module.ctypes, "CDLL", none)
    module.driver.cache_clear()
    x, w = np.zeros((1, 3, 8, 8), np.float32), np.ones((4, 3, 3, 3), np.float32)
    text = r"no CUDA driver was found; expected libcuda\.so\.1 .* device='cpu'"
    for call in (
        lambda: lc.conv2d(x, w, device="cuda"),
        lambda: lc.plan_conv2d(x.shape, w, device="cuda"),
        lambda: lc.load(network_models.model("squeezenet_like"), device="cuda"),
    ):
        with pytest.raises(DeviceError, match=text):
            call()


def test_what_no_kernel_computes_is_named() -> None:
    fake = FakeCuda()
    x, w = np.zeros((1, 2, 4, 4), np.float32), np.ones((2, 3, 40, 40), np.float32)
    attributes = {
        "strides": (40, 40),
        "pads": (0,) * 4,
        "dilations": (1, 1),
        "group": 1,
        "activation": Activation("relu"),
        "output_padding": (0, 0),
    }
    _, graph = one_node("ConvTranspose", {"x": x}, {"w": w}, ("x", "w"), attributes)
    with pytest.raises(UnsupportedError, match="split the output into 1600 phases"):
        CompiledDeviceNetwork(graph, Driver(fake), FLOAT32, compile_code=fake.compile)


def test_elementwise_operations_that_are_lowered_have_code() -> None:
    folder = Path(lc.__file__).parent / "gpu" / "kernels"
    code = "".join((folder / name).read_text() for name in ("arithmetic.py", "common.py"))
    lowered = [op for op in (*UNARY, *BINARY) if op in HANDLERS and not OPS[op].activation]
    wanted = [*(f'OP == "{op}"' for op in lowered), *(f'ACT == "{kind}"' for kind in KINDS)]
    assert [each for each in wanted if each not in code] == []
