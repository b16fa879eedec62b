"""Networks most of whose weights are 0: as exact as dense ones, whatever the options and files."""

from __future__ import annotations

import copy
import json
import os
import pickle
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx.compose
import pytest

import leanconv as lc
from leanconv.codegen.cache import DiskCache
from leanconv.codegen.host import host
from leanconv.planner import found_plans
from support.libraries import check_as_loaded
from support.network_models import by_onnxruntime
from support.onnx_models import Array, model
from support.pruned_networks import chain, mobile
from support.small_inputs import made as made_of
from support.sparse_models import sparsened


def image(seed: int = 1, channels: int = 64) -> Array:
    return np.random.default_rng(seed).standard_normal((1, channels, 28, 28)).astype("f4")


def algorithms(net: lc.Network) -> dict[str, str]:
    return {step.name: step.algorithm for step in net.plan.steps if step.op == "Conv"}


def check(net: lc.Network, built: bytes) -> Array:
    """Check what a network answers, and its bytes."""
    x = image(channels=net.inputs[0].shape[1])
    (wanted,) = by_onnxruntime(built, {"x": x}).values()
    found = net(x)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    assert net.used_bytes == net.plan.memory_bytes
    return found


@pytest.fixture
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(found_plans, "_store", lambda: DiskCache(tmp_path / "p", suffix=".json"))


@pytest.mark.usefixtures("_own_store")
def test_plans_kept_on_disk_are_for_the_layers_that_have_zeros() -> None:
    """Networks alike but for which of two equal layers has zeros."""
    for shares, sparse in (((0.95, 0), {"conv0"}), ((0, 0.95), {"conv1"})):
        built = chain(shares, channels=66)  # no blocks of four outputs, whose number would differ
        net = lc.load(built, threads=1)
        check(net, built)
        assert {name for name, each in algorithms(net).items() if each == "sparse"} == sparse


@pytest.mark.parametrize("k", [1, 3])
def test_limits(k: int) -> None:
    built = chain((0.95, 0.9, 0.95), k=k)
    net = lc.load(built, threads=2)
    answer = check(net, built)
    assert "sparse" in algorithms(net).values()
    with pytest.raises(lc.BudgetError) as error:
        lc.load(built, threads=2, memory_limit=1)
    least = error.value.smallest_bytes
    limited = lc.load(built, threads=2, memory_limit=least)
    check(limited, built)
    assert limited.used_bytes <= least
    with pytest.raises(lc.BudgetError):
        lc.load(built, threads=2, memory_limit=least - 1)
    within = lc.load(built, threads=2, memory_limit=net.used_bytes)
    np.testing.assert_array_equal(check(within, built), answer)
    with pytest.raises(lc.BudgetError) as error:
        lc.load(built, max_error=1e-12)
    stated = error.value.smallest_error
    exact = lc.load(built, max_error=stated)
    check(exact, built)
    assert exact.plan.predicted_error <= stated


@pytest.mark.parametrize("shares", [(0.95, 0.9), (0.5, 0.99), (0.0, 0.0), (1.0, 1.0), (0.9, 0.0)])
def test_a_plan_file_serves_weights_with_other_zeros(
    shares: tuple[float, ...], tmp_path: Path
) -> None:
    built = chain((0.95, 0.9))
    net = lc.load(built, threads=1)
    answer = check(net, built)
    path = tmp_path / "plan.json"
    net.plan.save(path)
    again = lc.load(built, plan=path)
    np.testing.assert_array_equal(check(again, built), answer)
    assert algorithms(again) == algorithms(net)
    other = chain(shares, seed=5)
    check(lc.load(other, plan=path), other)


@pytest.mark.parametrize("kernel", [(1, 1), (3, 1), (3, 3)])
def test_transposed_convolutions(kernel: tuple[int, int]) -> None:
    """Their phases have some of the weights each."""
    random = np.random.default_rng(0)
    w = random.standard_normal((64, 66, *kernel)).astype("f4")
    w[random.random(w.shape) < 0.95] = 0
    strides = {"strides": [min(2, kernel[0]), 1]}
    node = onnx.helper.make_node("ConvTranspose", ["x", "w"], ["y"], "up", **strides)
    built = model([node], {"x": (1, 64, 28, 28)}, ["y"], {"w": w}).SerializeToString()
    check(lc.load(built, threads=1), built)


def test_reproducible_ones_leave_zeros_out(tmp_path: Path) -> None:
    built = chain((0.95, 0.9, 0.95), batch="N")
    nets = [lc.load(built, threads=n, reproducible=True) for n in (1, 3)]
    answer = check(nets[0], built)
    assert set(algorithms(nets[0]).values()) == {"sparse"}
    batch = np.concatenate([image(), image(2), image(3)])
    for net in nets:
        np.testing.assert_array_equal(net(batch)[:1], answer)
    least = nets[0].used_bytes
    limited = lc.load(built, reproducible=True, memory_limit=least, threads=1)
    np.testing.assert_array_equal(limited(image()), answer)


def steps(share: float, levels: int) -> bytes:
    """A chain of convolutions whose results are all added in the end, the last one first."""
    random = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    constants: dict[str, Array] = {}
    for number in range(levels):
        w = random.standard_normal((64, 64, 1, 1)).astype("f4") / 4
        w[random.random(w.shape) < share] = 0
        constants[f"w{number}"] = w
        read, name = f"y{number - 1}" if number else "x", f"conv{number}"
        nodes.append(onnx.helper.make_node("Conv", [read, f"w{number}"], [f"c{number}"], name))
        nodes.append(onnx.helper.make_node("Tanh", [f"c{number}"], [f"y{number}"]))
    total = f"y{levels - 1}"
    for number in reversed(range(levels - 1)):
        pool = onnx.helper.make_node("MaxPool", [f"y{number}"], [f"p{number}"], kernel_shape=[1, 1])
        nodes += [pool, onnx.helper.make_node("Add", [total, f"p{number}"], [f"s{number}"])]
        total = f"s{number}"
    return model(nodes, {"x": (1, 64, 28, 28)}, [total], constants).SerializeToString()


def test_zeros_are_left_out_where_too_many_values_live_for_a_search() -> None:
    built = steps(0.95, 8)
    net = lc.load(built, threads=1)
    check(net, built)
    assert set(algorithms(net).values()) == {"sparse"}
    assert not [step for step in net.plan.steps if step.op == "Reorder"]


def test_one_layer_may_be_named() -> None:
    built = chain((0.95, 0.9))
    net = lc.load(built, algorithms={"conv1": "sparse"}, threads=1)
    check(net, built)
    assert algorithms(net) == {"conv0": "sparse", "conv1": "sparse"}


def test_every_way_to_run_it_gives_the_same(tmp_path: Path) -> None:
    """Streamed and shared weights, a tuned plan, a library, the drop-in, another process's copy."""
    from leanconv import onnxruntime

    built, x = chain((0.95, 0.9, 0.95), k=3), image()
    path = tmp_path / "chain.onnx"
    path.write_bytes(built)
    net = lc.load(built, threads=1)
    answer = check(net, built)
    for options in ({"stream_weights": True}, {"shared_weights": tmp_path / "weights"}):
        found = lc.load(path, threads=1, **options)
        np.testing.assert_array_equal(check(found, built), answer)
        assert set(algorithms(found).values()) == {"sparse"}
    check(lc.load(built, threads=1, tune=True), built)
    files = built, *(sparsened(onnx.load_from_string(built), coo=coo) for coo in (False, True))
    for each in files:
        data = each if isinstance(each, bytes) else each.SerializeToString()
        (found_y,) = onnxruntime.InferenceSession(data).run(None, {"x": x})
        np.testing.assert_array_equal(found_y, answer)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(net))(x), answer)
    np.testing.assert_array_equal(copy.deepcopy(net)(x), answer)
    assert "sparse (95.0% of the weights are 0)" in net.explain()


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.parametrize("weights", ["packed", "compact", "file"])
def test_libraries(weights: str, tmp_path: Path) -> None:
    """One of several sizes, and one for several processors."""
    built = chain((0.95, 0.9), k=3, sizes=("H", 28))
    feeds = [{"x": image()}, {"x": image()[:, :, :13]}]
    check_as_loaded(built, feeds, tmp_path, threads=2, weights=weights)
    targets = "haswell,skylake-avx512"
    made = lc.compile(built, tmp_path / "libtwo.so", shapes=(1, 64, 28, 28), target=targets)
    if host().isa != "neon":
        with lc.open(made.files[0]) as opened:
            np.testing.assert_array_equal(opened(image()), lc.load(built, threads=1)(image()))


def test_images_of_any_size_whole_and_in_tiles() -> None:
    built = chain((0.95, 0.9, 0.97), k=3, channels=16, sizes=("H", "W"))
    x = np.random.default_rng(2).standard_normal((1, 16, 75, 61)).astype("f4")
    (wanted,) = by_onnxruntime(built, {"x": x}).values()
    found = []
    for threads in (1, 2, 5):
        net = lc.load(built, threads=threads)
        tiled = lc.tiled(net, tile=40)
        found += [net(x), tiled(x)]
        assert "sparse" in algorithms(net).values()
        assert tiled.plan.tiles > 3
    np.testing.assert_allclose(found[0], wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    assert all(np.array_equal(each, found[0]) for each in found)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("share", [0.6, 0.9])
def test_a_size_of_a_mobile_network_does_not_depend_on_the_sizes_before(share: float) -> None:
    """Which blocks leave zeros out is decided for likely sizes, as the graph has symbols first."""
    built = mobile(share, size="size")
    net, alone = lc.load(built, threads=1), lc.load(built, threads=1)
    for size in (28, 7):
        x = np.random.default_rng(size).standard_normal((1, 64, size, size)).astype("f4")
        y = net(x)
    assert y.tobytes() == alone(x).tobytes()
    assert net.explain() == alone.explain()
    memos = [memo for each in net.backend.templates for memo in each.memos]
    assert [(len(memo.entries), memo.refusals) for memo in memos] == [(1, [])]


def test_a_branch_of_a_mobile_network_does_not_depend_on_the_branches_before() -> None:
    """Which blocks leave zeros out is decided for the branch that a value chooses."""
    branches = []
    for name in ("then_branch", "else_branch"):
        made = onnx.compose.add_prefix(onnx.load_from_string(mobile(0.9)), name).graph
        first = onnx.helper.make_node("Identity", ["x"], [made.input[0].name])
        branches.append(
            onnx.helper.make_graph([first, *made.node], name, [], made.output, made.initializer)
        )
    chosen = onnx.helper.make_node("Cast", ["n"], ["chosen"], to=onnx.TensorProto.BOOL)
    one_of = onnx.helper.make_node(
        "If", ["chosen"], ["y"], then_branch=branches[0], else_branch=branches[1]
    )
    built = made_of([chosen, one_of], {"x": image(), "n": np.array(1)})
    net, alone = lc.load(built, threads=1), lc.load(built, threads=1)
    for number in (1, 0):
        y = net(image(), number)
    assert y.tobytes() == alone(image(), 0).tobytes()
    assert net.explain() == alone.explain()


def test_a_forked_process_runs_them() -> None:
    net, x = lc.load(chain((0.95,)), threads=2), image()
    y = net(x)
    with warnings.catch_warnings():  # of forks beside threads, as the workers are
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(net(x), y) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_plan_of_another_machine_is_made_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    built, path = chain((0.95, 0.9)), tmp_path / "plan.json"
    net = lc.load(built, threads=1)
    net.plan.save(path)
    document = json.loads(path.read_text())
    document["target"] |= {"cpu": "i486", "vector_bytes": 4}
    path.write_text(json.dumps(document))
    again = lc.load(built, plan=path, threads=1)
    assert "planning anew" in caplog.text
    np.testing.assert_array_equal(check(again, built), net(image()))
    assert algorithms(again) == algorithms(net)


def test_blocks_are_one_pass_or_without_zeros_as_the_plan_is_faster(tmp_path: Path) -> None:
    """The same for all threads, sizes and files."""
    for share, together, size in ((0.72, 1, 7), (0.72, 1, 28), (0.65, 4, 14), (0.45, 1, 28)):
        net = lc.load(mobile(share, together, size=size), threads=1)
        apart = any(step.op == "Conv" for step in net.plan.steps)
        assert ("sparse" in algorithms(net).values()) == apart
    assert not apart
    built = mobile(0.95)
    net = lc.load(built, threads=1)
    answer = check(net, built)
    assert {step.op for step in net.plan.steps} - {"Reorder"} == {"Conv"}
    net.plan.save(tmp_path / "plan.json")
    for options in ({"plan": tmp_path / "plan.json"}, {"threads": 3, "memory_limit": 2**22}):
        again = lc.load(built, **options)
        np.testing.assert_array_equal(check(again, built), answer)
    opened = lc.load(mobile(0.95, batch="N", size="S"), threads=1)
    found = opened(np.concatenate([image(), image(2)]))
    np.testing.assert_allclose(found[:1], answer, rtol=0, atol=1e-5 * np.abs(answer).max())
    assert {step.op for step in opened.plan.steps} - {"Reorder"} == {"Conv"}


def test_a_report_says_how_many_zeros_are_left_out() -> None:
    net = lc.load(chain((0.95, 0.4, 0.0)), threads=1)
    left = round(0.95 * 4096)
    text = f"1 convolution leaves out the weights that are 0: {left} of 4096 (95.0%)"
    assert f"{text}; 1 more with at least 30% zeros multiplies them" in net.explain()
    assert "that are 0" not in lc.load(chain((0.0,)), threads=1).explain()


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_halves(name: str) -> None:
    built = chain((0.95, 0.9))
    net = lc.load(built, threads=1, precision=name)
    (wanted,) = by_onnxruntime(built, {"x": image()}).values()
    np.testing.assert_allclose(net(image()), wanted, rtol=0, atol=0.02 * np.abs(wanted).max())
    assert net.used_bytes == net.plan.memory_bytes


@pytest.mark.parametrize("shares", [(0.95, 0.9), (0.0, 0.0)])
def test_a_plan_file_that_names_it_for_dense_layers_is_followed_or_refused(
    shares: tuple[float, ...], tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    lc.load(chain(shares), threads=1).plan.save(path)
    document = json.loads(path.read_text())
    for node in document["nodes"]:
        node["choice"] = "sparse"
    path.write_text(json.dumps(document))
    dense = chain((0.0, 0.0), seed=3)
    net = lc.load(dense, plan=path, threads=1)
    check(net, dense)
    in_planes = shares != (0.0, 0.0)
    assert ("sparse" in algorithms(net).values()) == in_planes


def dense_layers(shares: Sequence[float], batch: int | str = 1, seed: int = 0) -> bytes:
    """Fully connected layers behind a map that is flattened."""
    random = np.random.default_rng(seed)
    constants: dict[str, Array] = {}
    nodes = [onnx.helper.make_node("Flatten", ["x"], ["y"])]
    value, width = "y", 64 * 25
    for number, share in enumerate(shares):
        w = random.standard_normal((200, width)).astype("f4")
        w.reshape(-1)[random.permutation(w.size)[: round(share * w.size)]] = 0
        constants[f"w{number}"], constants[f"b{number}"] = w, np.ones(200, "f4")
        names = [value, f"w{number}", f"b{number}"]
        nodes.append(onnx.helper.make_node("Gemm", names, [f"c{number}"], f"fc{number}", transB=1))
        nodes.append(onnx.helper.make_node("Relu", [f"c{number}"], [f"r{number}"]))
        value, width = f"r{number}", 200
    return model(nodes, {"x": (batch, 64, 5, 5)}, [value], constants).SerializeToString()


@pytest.mark.parametrize("batch", [1, 3])
def test_fully_connected_layers(batch: int, tmp_path: Path) -> None:
    """The first reads a map, as a kernel as large; rows of a batch are pixels."""
    built = dense_layers((0.97, 0.97), batch)
    x = np.random.default_rng(2).standard_normal((batch, 64, 5, 5)).astype("f4")
    (wanted,) = by_onnxruntime(built, {"x": x}).values()
    net = lc.load(built, threads=2)
    answer = net(x)
    np.testing.assert_allclose(answer, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    if batch == 1:
        assert set(algorithms(net).values()) == {"sparse"}
    assert net.used_bytes == net.plan.memory_bytes
    net.plan.save(tmp_path / "plan.json")
    np.testing.assert_array_equal(lc.load(built, plan=tmp_path / "plan.json")(x), answer)
    for other in (dense_layers((0.9, 0.97), batch, 5), dense_layers((0, 0), batch, 5)):
        (wanted,) = by_onnxruntime(other, {"x": x}).values()
        found = lc.load(other, plan=tmp_path / "plan.json")(x)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    path = tmp_path / "layers.onnx"
    path.write_bytes(built)
    for options in ({"stream_weights": True}, {"tune": True}, {"shared_weights": tmp_path / "w"}):
        found = lc.load(path, threads=1, **options)
        np.testing.assert_allclose(found(x), answer, rtol=0, atol=1e-5 * np.abs(answer).max())
        assert found.used_bytes == found.plan.memory_bytes
    with pytest.raises(lc.BudgetError) as error:
        lc.load(built, memory_limit=1)
    least = lc.load(built, memory_limit=error.value.smallest_bytes)
    assert least.used_bytes <= error.value.smallest_bytes
    np.testing.assert_allclose(least(x), answer, rtol=0, atol=1e-5 * np.abs(answer).max())


def test_a_dense_layer_in_planes_may_be_named() -> None:
    """Zeros of few are not counted: all weights are packed, whatever they are."""
    built = dense_layers((0.97, 0.1, 0.97))
    x = np.random.default_rng(2).standard_normal((1, 64, 5, 5)).astype("f4")
    (wanted,) = by_onnxruntime(built, {"x": x}).values()
    net = lc.load(built, algorithms={"fc1": "sparse"}, threads=1)
    np.testing.assert_allclose(net(x), wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    assert set(algorithms(net).values()) == {"sparse"}
    assert net.used_bytes == net.plan.memory_bytes


def test_a_tuner_draws_weights_that_fit() -> None:
    """Of rows that are alike none waits; of those drawn at random some do."""
    w = np.zeros((64, 200, 1, 1), np.float32)
    w[:, ::20] = np.random.default_rng(0).standard_normal((64, 10, 1, 1))
    for size in (1, 14):
        node = onnx.helper.make_node("Conv", ["x", "w"], ["y"], "conv0")
        shape = (1, 200, size, size)
        built = model([node], {"x": shape}, ["y"], {"w": w}).SerializeToString()
        net = lc.load(built, threads=1, tune=True)
        x = np.random.default_rng(1).standard_normal(shape).astype("f4")
        wanted = np.einsum("nchw,kc->nkhw", x.astype("f8"), w[:, :, 0, 0])
        np.testing.assert_allclose(net(x), wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_fully_connected_layers_of_open_batches() -> None:
    built = dense_layers((0.97, 0.97), "N")
    net = lc.load(built, threads=1)
    for batch in (1, 3, 20, 1):
        x = np.random.default_rng(batch).standard_normal((batch, 64, 5, 5)).astype("f4")
        (wanted,) = by_onnxruntime(built, {"x": x}).values()
        np.testing.assert_allclose(net(x), wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_libraries_of_fully_connected_layers(tmp_path: Path) -> None:
    x = np.random.default_rng(2).standard_normal((1, 64, 5, 5)).astype("f4")
    check_as_loaded(dense_layers((0.97, 0.97)), [{"x": x}], tmp_path, threads=2)
