"""Plans of whole networks: bytes as predicted, nothing overwritten, no needless reorders."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from onnx import TensorProto, helper

import leanconv as lc
from examples.networks import FULL_NETWORKS, SMALL_NETWORKS
from leanconv.codegen.host import host
from leanconv.planner.storage import place
from leanconv.target import preset
from leanconv.types import FLOAT64
from support.control_flow import node, value
from support.onnx_models import model as onnx_model
from support.onnx_models import reference
from support.storage_check import check, lowered_network

NARROW = {
    "mobilenetv2": {"width": 0.25, "image": 96},
    "resnet50": {"width": 0.125, "image": 64},
    "resnet101": {"width": 0.125, "image": 64},
    "vgg16": {"width": 0.0625, "image": 64},
}
TARGETS = ("haswell", "skylake-avx512", "neoverse-n1")


@cache
def model(name: str) -> bytes:
    """A small network, or a narrow version of a big one."""
    if name in NARROW:
        return FULL_NETWORKS[name](**NARROW[name]).SerializeToString()
    return SMALL_NETWORKS[name]().SerializeToString()


@cache
def mobilenet() -> bytes:
    return FULL_NETWORKS["mobilenetv2"]().SerializeToString()


def image(net: lc.Network, batch: int) -> np.ndarray:
    (port,) = net.inputs
    shape = [n if isinstance(n, int) else batch for n in port.shape]
    return np.zeros(shape, port.dtype)


@pytest.mark.drawn
@pytest.mark.presets
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", [*SMALL_NETWORKS, *NARROW])
def test_no_value_is_lost(name: str, batch: int) -> None:
    for target in TARGETS if batch == 1 else TARGETS[:1]:
        lowered = lowered_network(model(name), preset(target), batch)
        assert check(lowered) == place(lowered).arena_bytes


@pytest.mark.parametrize("name", ["shufflenet_like", "convnext_like", "segmentation_like"])
def test_no_value_is_lost_in_float64(name: str) -> None:
    check(lowered_network(model(name), host(), 2, FLOAT64))


def test_the_simulation_sees_an_overlap() -> None:
    """The check itself can fail: shift any buffer onto another that is alive."""
    lowered = lowered_network(model("densenet_like"), preset("haswell"))
    storage = place(lowered)
    caught = 0
    for name in storage.offsets:
        moved = replace(storage, offsets={**storage.offsets, name: 0})
        if storage.offsets[name] == 0:
            continue
        try:
            check(lowered, moved)
        except AssertionError:
            caught += 1
    assert caught > 3


def test_results_take_over_operands_that_die() -> None:
    """In-place is used at all: a residual network needs no third buffer."""
    lowered = lowered_network(model("resnet50"), host())
    storage = place(lowered)
    calls = [call for step in lowered.steps for call in step.calls]
    shared = [
        call
        for call in calls
        for index in call.in_place
        if call.values[-1] in storage.offsets
        and storage.offsets.get(call.values[index]) == storage.offsets[call.values[-1]]
    ]
    assert len(shared) >= 8


@pytest.mark.drawn
@pytest.mark.parametrize("name", SMALL_NETWORKS)
def test_bytes_used_are_the_bytes_predicted(name: str) -> None:
    for threads in (1, 3):
        net = lc.load(model(name), threads=threads)
        x = image(net, 1)
        net(x)
        plan = net.plan
        assert net.used_bytes == plan.memory_bytes == plan.arena_bytes + plan.weight_bytes
        assert plan.threads == threads
        assert plan.peak_bytes <= plan.arena_bytes <= plan.live_bytes + plan.scratch_bytes
        assert plan.scratch_bytes % threads == 0


def test_a_network_that_states_more_than_is_aimed_at_says_why() -> None:
    net = lc.load(model("resnet50"))
    net.bind((1, 3, 64, 64))
    stated = net.plan.predicted_error
    assert stated > 1e-5
    said = net.explain()
    assert f"expected error {stated:.1e}, more than the 1e-05 aimed at" in said
    most = max(net.plan.node_costs, key=lambda node_cost: node_cost.passed_error)
    assert f"{most.passed_error:.1e}" in said
    assert said.splitlines()[-1] in net.report(front=False)["text"]
    little = lc.load(model("shufflenet_like"))
    little.bind(image(little, 1).shape)
    shown = f"expected error {little.plan.predicted_error:.1e}, an estimate"
    assert shown in little.explain().splitlines()[-1]


def test_mobilenet_needs_its_peak_and_no_more() -> None:
    net = lc.load(mobilenet(), threads=2)
    net.bind((1, 3, 224, 224))
    plan = net.plan
    assert plan.arena_bytes == plan.peak_bytes <= 1.5 * 2**20
    assert net.used_bytes == plan.memory_bytes
    assert 3.4e6 * 4 < plan.weight_bytes < 3.8e6 * 4


@pytest.mark.presets
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["mobilenetv2", "resnet50"])
def test_nothing_is_reordered_inside(name: str, target: str) -> None:
    """From the image, plain, to the answer, plain, without a step that only moves numbers."""
    built = mobilenet() if name == "mobilenetv2" else model(name)
    for batch in (1, 8):
        lowered = lowered_network(built, preset(target), batch)
        assert [step.op for step in lowered.steps if step.op == "Reorder"] == []


@pytest.mark.usefixtures("nodes_evaluated_once")
def test_a_limit_is_kept_or_refused_with_the_least_that_works() -> None:
    built = model("squeezenet_like")
    net = lc.load(built, threads=2)
    net(image(net, 1))
    needed = net.plan.memory_bytes
    exact = lc.load(built, threads=2, memory_limit=needed)
    exact(image(exact, 1))
    assert exact.used_bytes == needed
    with pytest.raises(lc.BudgetError) as caught:
        lc.load(built, threads=2, memory_limit=1).bind((1, 3, 64, 64))
    least = caught.value.smallest_bytes
    assert least <= needed
    again = lc.load(built, threads=2, memory_limit=least)  # plans anew, with other algorithms
    again(image(again, 1))
    assert again.used_bytes <= least
    tight = lc.load(built, threads=2, memory_limit=least - 1)
    with pytest.raises(lc.BudgetError, match=str(least - 1)):
        tight(image(tight, 1))


def test_weights_do_not_depend_on_the_batch() -> None:
    net = lc.load(model("resnext_like"), threads=1)
    bytes_ = []
    for batch in (1, 4):
        net(image(net, batch))
        bytes_.append((net.plan.weight_bytes, net.plan.live_bytes))
    assert bytes_[1][1] > 3 * bytes_[0][1]
    assert bytes_[1][0] < 1.5 * bytes_[0][0]  # a layer may take another algorithm


def test_a_layer_beside_the_users_arrays_may_be_plain() -> None:
    w = np.ones((64, 2, 1), np.float32)
    conv = node("Conv", "x w", "y", group=32)
    built = onnx_model([conv], {"x": (1, 64, 8000)}, ["y"], {"w": w})
    net = lc.load(built, threads=1)
    assert [step.op for step in net.plan.steps] == ["Conv"]


def test_a_plan_names_every_step() -> None:
    net = lc.load(model("mobilenetv2"), threads=1)
    net(image(net, 1))
    steps = net.plan.steps
    assert all(step.name and step.op and step.algorithm for step in steps)
    assert len({step.name for step in steps}) == len(steps)
    convolutions = [step for step in steps if step.op in ("Conv", "ConvChain")]
    assert sum(len(step.kernels) for step in convolutions) >= 19
    assert all(step.flops > 0 and step.weight_bytes > 0 for step in convolutions)
    assert sum(step.flops for step in steps) == net.plan.flops


def test_many_values_that_are_read_in_two_formats() -> None:
    """Any of them may be given up in one of them: too many states to search them all."""
    slice_ = [
        node("Neg", "r", "n"),
        node("ReduceSum", "n", "sum", keepdims=0),
        node("Add", "s sum", "t"),
    ]
    kinds = [value("s", "float", ()), value("r", "float"), value("t", "float", ())]
    rows = helper.make_tensor_value_info("n", TensorProto.FLOAT, ("N", "C", "W"))
    inside = helper.make_graph(slice_, "slice", kinds[:2], [kinds[2], rows])
    nodes = [
        node("Conv", "x w", "c"),
        node("Round", "c", "r"),
        node("Scan", "zero r", "y z", body=inside, num_scan_inputs=1, scan_input_axes=[2]),
    ]
    w = np.random.default_rng(1).standard_normal((4, 3, 1, 1)).astype(np.float32)
    held = {"w": w, "zero": np.float32(0)}
    proto = onnx_model(nodes, {"x": (2, 3, 8, 5)}, ["y", "z"], held)
    x = np.random.default_rng(2).standard_normal((2, 3, 8, 5)).astype(np.float32)
    net = lc.load(proto.SerializeToString(), threads=1)
    found = net.run({"x": x})
    for name, wanted in reference(proto, {"x": x}).items():
        np.testing.assert_allclose(found[name], wanted, 1e-4, 1e-4, err_msg=name)
