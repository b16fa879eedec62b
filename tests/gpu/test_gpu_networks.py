"""Networks in CUDA graphs, and their memory, against a driver that records."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from leanconv.api.network import Network
from leanconv.errors import BudgetError, InputError, UnsupportedError
from leanconv.gpu.backend import DeviceBackend
from leanconv.gpu.conv import DeviceConvPlan
from leanconv.gpu.device.driver import Driver
from leanconv.gpu.fft import FftConvPlan
from leanconv.graph.onnx_import import read_model
from leanconv.runtime.locks import Unpicklable
from leanconv.types import FLOAT16, FLOAT32
from support import network_models
from support.gpu.fake_cuda import FakeCuda


def network_on(fake: FakeCuda, **changes: Any) -> tuple[Network, np.ndarray]:
    built = network_models.model("mobilenetv2")
    net = Network(
        DeviceBackend(read_model(built), Driver(fake), compile_code=fake.compile, **changes)
    )
    return net, network_models.images(built, 1)


def test_a_network_is_captured_once_for_each_set_of_addresses() -> None:
    fake = FakeCuda()
    net, x = network_on(fake)
    net.bind(x.shape)
    shape, bound = x.shape, net.compiled
    first = bound.memory.array(shape, FLOAT32)
    results = bound.memory.array((1, 1000), FLOAT32)
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
    other = bound.memory.array(shape, FLOAT32)
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
    half, _ = network_on(FakeCuda(), dtype=FLOAT16)
    assert half.bind(x.shape).arena_bytes < 0.6 * full.bind(x.shape).arena_bytes
    assert {s.arithmetic for s in half.plan.steps if s.op == "Conv"} == {"native"}
    with pytest.raises(InputError, match=r"float16\[1x3x96x96\]"):
        half(np.zeros(x.shape, np.float64))
    with pytest.raises(BudgetError, match="expected to err by"):
        network_on(FakeCuda(), dtype=FLOAT16, max_error=1e-5)[0].bind(x.shape)


def test_a_network_is_called_with_what_it_names() -> None:
    """With the words of a network on a CPU."""
    net, x = network_on(FakeCuda())
    with pytest.raises(InputError, match="expected integers such as"):
        net.bind(("a", 3, 96, 96))
    with pytest.raises(InputError, match=r"expected a dictionary with .*; call net\(x\)"):
        net.run(x)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"got inputs \['z'\]"):
        net.profile({"z": x})


def test_a_network_is_called_by_name_and_as_in_onnxruntime() -> None:
    net, x = network_on(FakeCuda())
    (name,), (output,) = ([port.name for port in ports] for ports in (net.inputs, net.outputs))
    assert net.outputs[0].dtype == FLOAT32
    for y in (net(x), net(**{name: x}), net.run({name: x})[output]):
        assert y.shape == (1, 1000)
    for listed in (net.run(None, {name: x}), net.run([output], input_feed={name: x})):
        assert [y.shape for y in listed] == [(1, 1000)]
    with pytest.raises(InputError, match=f"did you mean '{name}'"):
        net(**{f"{name}_": x})
    with pytest.raises(InputError, match="output name 'z'; expected some of"):
        net.run(["z"], {name: x})


def test_compiling_for_a_device_is_told_of() -> None:
    seen: list[tuple[str, int, int]] = []
    net, x = network_on(FakeCuda())
    net.bind(x.shape, progress=lambda *step: seen.append(step))
    compiled = [step for step in seen if step[0] == "compiling kernels"]
    assert compiled[0][1] == 0
    assert compiled[-1][1] == compiled[-1][2] > 0


def test_what_lies_on_a_device_cannot_be_sent() -> None:
    net, _ = network_on(FakeCuda())
    for send in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(UnsupportedError, match="DeviceBackend cannot be .*send the model's"):
            send(net)
    for plan in (DeviceConvPlan, FftConvPlan):
        assert issubclass(plan, Unpicklable)
        assert "plan_conv2d" in plan.instead
