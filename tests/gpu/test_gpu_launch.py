"""Launching, graphs, memory and shared arrays, against a driver that records: no GPU, no triton."""

from __future__ import annotations

import ctypes
import gc
from dataclasses import replace
from typing import Any

import network_models
import numpy as np
import pytest
from fake_cuda import Encoded, FakeCuda
from gpu_workers import HAS_TRITON

import leanconv as lc
from leanconv.errors import (
    BudgetError,
    DeviceError,
    InputError,
    MissingExtraError,
    SpecError,
    UnsupportedError,
)
from leanconv.gpu.arithmetic import FP16X3, IEEE, choices
from leanconv.gpu.conv import DeviceConvPlan
from leanconv.gpu.device.dlpack import DeviceArray, take
from leanconv.gpu.device.driver import Driver
from leanconv.gpu.entry import check_options, device_driver
from leanconv.gpu.launch import BOXES
from leanconv.gpu.loaded import DeviceNetwork
from leanconv.gpu.lowering.gemm import pack
from leanconv.graph.onnx_import import read_model
from leanconv.spec import Activation, ConvSpec

SPEC = ConvSpec.parse("mb2ic16ih9oc24kh3ph1", layout="NHWC", bias=True)
W, BIAS = np.ones(SPEC.weight_shape, np.float32), np.ones(24, np.float32)


def plan_on(fake: FakeCuda, spec: ConvSpec = SPEC, **changes: Any) -> DeviceConvPlan:
    given: dict[str, Any] = {
        "algorithm": None,
        "memory_limit": None,
        "max_error": None,
        "precision": None,
    }
    given.update(changes)
    w = np.ones(spec.weight_shape, spec.dtype if spec.dtype != "bfloat16" else np.float32)
    bias = np.ones(spec.out_channels, w.dtype) if spec.bias else None
    return DeviceConvPlan(
        spec, w, bias, None, driver=Driver(fake), compile_code=fake.compile, **given
    )


# -- launches --------------------------------------------------------------------------------


def test_arguments_arrive_as_they_were_planned() -> None:
    fake = FakeCuda()
    plan = plan_on(fake, precision="fp16x3")
    x = plan._memory.array(SPEC.input_shape, "float32")
    y = plan(x)
    assert [one.code for one in fake.launches] == [launch.code for launch in plan.launches]
    for one, launch in zip(fake.launches, plan.launches, strict=True):
        assert one.grid == launch.grid
        assert one.threads == 32 * launch.code.warps
        assert one.shared_bytes == 60000
        assert one.scratch == [0, 0]
        held = zip(launch.code.types, launch.arguments, one.arguments, strict=True)
        for (name, kind), planned, arrived in held:
            if kind.startswith(BOXES):
                arrived = arrived.address
            if kind[0] not in "*t":
                assert arrived == pytest.approx(planned, rel=1e-7), name
            elif planned == "":
                assert arrived == 0, name
            elif name in ("x", "y") and planned in ("x", "y"):
                assert arrived == {"x": x.address, "y": y.address}[planned]
            else:
                assert any(b <= arrived < b + size for b, (_, size) in fake.buffers.items()), name
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


def test_a_refusing_driver_is_an_error_with_its_own_text() -> None:
    fake = FakeCuda()
    plan = plan_on(fake)
    fake.fail = "cuLaunchKernel"
    with pytest.raises(DeviceError, match=r"cuLaunchKernel failed .*illegal memory access"):
        plan(np.zeros(SPEC.input_shape, np.float32))
    with pytest.raises(DeviceError, match="cuMemAlloc"):
        plan_on(FakeCuda(memory_bytes=1000))
    with pytest.raises(DeviceError, match=r"'cuda:3' was asked for and the driver knows 1"):
        Driver(FakeCuda(), 3)
    with pytest.raises(SpecError, match=r"compute capability 7\.5; expected 8\.0"):
        plan_on(FakeCuda(arch=75))


# -- arithmetic ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_never_a_lower_precision_than_asked_for(dtype: str) -> None:
    unit = {"float64": 2.0**-53, "float32": 2.0**-19, "float16": 2.0**-11, "bfloat16": 2.0**-8}
    assert all(a.unit_error <= unit[dtype] for a in choices(dtype, None))
    assert all(a.name != "tf32" for a in choices("float32", None))
    with pytest.raises(SpecError, match=r"precision is 'float8' for .* expected one of"):
        choices(dtype, "float8")
    if dtype != "float32":
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
    packed = pack(w, 8, FP16X3, "float32")
    whole = packed["w"].astype(np.float64) + packed["w_low"].astype(np.float64)
    whole = (whole * packed["scale"][:, None].astype(np.float64)).reshape(5, 2, 16)
    largest = np.abs(w).max(axis=(1, 2))
    assert np.abs(whole[:, :, :9] - w).max(axis=(1, 2)).max() <= 2.0**-22 * largest.max()
    assert (np.abs(whole[:, :, :9] - w).max(axis=(1, 2)) <= 2.0**-22 * largest).all()
    assert not whole[:, :, 9:].any()
    assert list(pack(w, 8, IEEE, "float32")) == ["w"]


# -- networks in graphs ----------------------------------------------------------------------


def network_on(fake: FakeCuda, **changes: Any) -> tuple[DeviceNetwork, np.ndarray]:
    built = network_models.model("mobilenetv2")
    net = DeviceNetwork(read_model(built), Driver(fake), compile_code=fake.compile, **changes)
    return net, network_models.images(built, 1)


def test_a_network_is_captured_once_for_each_set_of_addresses() -> None:
    fake = FakeCuda()
    net, x = network_on(fake)
    net.bind(x.shape)
    shape, bound = x.shape, net.bound
    first = bound.memory.array(shape, "float32")
    results = bound.memory.array((1, 1000), "float32")
    addresses = [first.address, results.address]
    count = net.plan.launches
    bound.start(addresses)  # seen for the first time: launch by launch
    assert (len(fake.launches), fake.calls.count("cuGraphLaunch")) == (count, 0)
    bound.start(addresses)
    assert (len(fake.launches), fake.calls.count("cuGraphLaunch")) == (2 * count, 1)
    bound.start(addresses)
    assert (len(fake.launches), fake.calls.count("cuGraphLaunch")) == (3 * count, 2)
    assert fake.calls.count("cuStreamBeginCapture_v2") == 1
    replayed, direct = fake.launches[count : 2 * count], fake.launches[:count]
    assert [one.arguments for one in replayed] == [one.arguments for one in direct]
    other = bound.memory.array(shape, "float32")
    bound.start([other.address, results.address])
    assert fake.calls.count("cuGraphLaunch") == 2
    assert other.address in fake.launches[-count].arguments


def test_a_network_sets_all_its_memory_aside_at_load() -> None:
    fake = FakeCuda()
    net, x = network_on(fake)
    net.bind(x.shape)
    assert net.used_bytes == net.plan.memory_bytes
    allocated = fake.calls.count("cuMemAlloc_v2")
    net(x)
    net(x)
    assert fake.calls.count("cuMemAlloc_v2") == allocated + 2  # the arrays of x and y, kept
    with pytest.raises(BudgetError) as caught:
        network_on(FakeCuda(), memory_limit=1000)[0].bind(x.shape)
    least = caught.value.smallest_bytes
    lean, _ = network_on(FakeCuda(), memory_limit=least)
    assert lean.bind(x.shape).memory_bytes <= least
    assert f"{net.plan.launches} launches in one graph" in net.explain()


def test_a_networks_values_are_half_as_large_in_half_precision() -> None:
    full, x = network_on(FakeCuda())
    half, _ = network_on(FakeCuda(), dtype="float16")
    assert half.bind(x.shape).arena_bytes < 0.6 * full.bind(x.shape).arena_bytes
    assert {s.arithmetic for s in half.plan.steps if s.op == "Conv"} == {"native"}
    with pytest.raises(InputError, match=r"float16\[1, 3, 96, 96\]"):
        half(np.zeros(x.shape, np.float64))
    with pytest.raises(BudgetError, match="expected to err by"):
        network_on(FakeCuda(), dtype="float16", max_error=1e-5)[0].bind(x.shape)


# -- shared arrays ---------------------------------------------------------------------------


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


def array_on(driver: Driver, shape: tuple[int, ...], dtype: str = "float32") -> DeviceArray:
    released: list[int] = []
    made = DeviceArray(driver, driver.allocate(4096), shape, dtype)
    made.release = lambda array: released.append(array.address)
    return made


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
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
    out = plan._memory.array(SPEC.output_shape, "float32")
    given = Foreign(x)
    assert plan(given, out=Foreign(out)) is not None
    assert x.address in fake.launches[0].arguments
    assert out.address in fake.launches[-1].arguments
    result = plan(given)
    assert isinstance(result, DeviceArray)
    assert result.__dlpack_device__() == (2, 0)
    strided = DeviceArray(plan._driver, x.address, SPEC.input_shape, "float32", steps=(1, 2, 3, 4))
    with pytest.raises(InputError, match=r"has strides \(1, 2, 3, 4\)"):
        plan(Foreign(strided))
    odd = DeviceArray(plan._driver, x.address + 4, SPEC.input_shape, "float32")
    with pytest.raises(InputError, match="an address of 4 modulo 16"):
        plan(Foreign(odd))
    with pytest.raises(InputError, match=r"device \(2, 1\); expected \(2, 0\)"):
        plan(Foreign(x, (2, 1)))
    with pytest.raises(InputError, match=r"x is float32\[1\]; expected float32\[2, 9, 9, 16\]"):
        plan(np.zeros(1, np.float32))
    with pytest.raises(InputError, match="x is str; expected an array on the device"):
        plan("no array")


# -- the public edge -------------------------------------------------------------------------


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
    kind, text = (
        (DeviceError, r"no CUDA driver was found; expected libcuda\.so\.1 .* device='cpu'")
        if HAS_TRITON
        else (MissingExtraError, r"needs triton, which is not installed; .*leanconv\[gpu\]")
    )
    for call in (
        lambda: lc.conv2d(x, w, device="cuda"),
        lambda: lc.plan_conv2d(x.shape, w, device="cuda"),
        lambda: lc.load(network_models.model("squeezenet_like"), device="cuda"),
    ):
        with pytest.raises(kind, match=text):
            call()


def test_what_no_kernel_computes_is_named() -> None:
    from leanconv.gpu.network import BoundDeviceNetwork
    from node_runner import one_node

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
        BoundDeviceNetwork(graph, Driver(fake), "float32", compile_code=fake.compile)


# -- tensor maps -----------------------------------------------------------------------------

STRIDED = ConvSpec.parse("mb2ic8ih11iw16oc24kh3kw5sh2sw3", layout="NHWC")


@pytest.mark.parametrize(("precision", "kind", "item"), [("tf32", 7, 4), (None, 6, 2)])
def test_windows_are_an_overlapping_view_of_the_input(
    precision: str | None, kind: int, item: int
) -> None:
    fake = FakeCuda()
    spec = STRIDED if item == 4 else replace(STRIDED, dtype="float16")
    plan = plan_on(fake, spec, algorithm="direct:loads=windows", precision=precision)
    x = plan._memory.array(spec.input_shape, spec.dtype)
    fake.encoded.clear()
    plan(x)
    windows, weights, _ = fake.encoded
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
    assert (len(windows.box), windows.box[1], windows.box[-1]) == (5, 1, 1)
    assert weights.shape == (3 * -(-5 * channels // windows.box[0]) * windows.box[0], 24)
    assert weights.strides == (weights.shape[0] * item,)
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
        plan_on(FakeCuda(), spec, algorithm="direct:loads=tma", precision="tf32")
    assert plan_on(FakeCuda(), spec, precision="tf32").algorithm == "direct"


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
        driver.encode(target, "float32", address, shape, strides, box, 3)

    encode(**given)
    with pytest.raises(DeviceError, match="cuTensorMapEncodeTiled failed"):
        encode(**(given | changes))
