"""Networks in which layers are computed as the user says, or as the clock says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import leanconv as lc
from leanconv.cli.main import main
from leanconv.codegen.cache import DiskCache
from leanconv.graph.file_graph import FileNode
from leanconv.graph.onnx_import import read_model
from leanconv.planner import tuner
from leanconv.planner.overrides import check_layers
from support.errors import relative_error
from support.network_models import by_numpy, images, model, small, weights


@pytest.fixture(autouse=True)
def _quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner, "_store", lambda: DiskCache(tmp_path, suffix=".json"))
    monkeypatch.setattr(tuner, "_RUN_NS", 50_000)
    monkeypatch.setattr(tuner, "ROUNDS", 1)
    monkeypatch.setattr(tuner, "_MOST", 3)


def exact(net: lc.Network, built: bytes, x: np.ndarray) -> np.ndarray:
    (answer,) = by_numpy(built, {net.inputs[0].name: x}).values()
    return answer


def convolutions(net: lc.Network) -> dict[str, str]:
    return {step.name: step.algorithm for step in net.plan.steps if step.op == "Conv"}


def three_by_three(built: bytes, x: np.ndarray) -> str:
    """The name of the first 3 x 3 convolution of stride 1, which every algorithm can compute."""
    read = read_model(built)
    graph = read.bind({read.inputs[0].name: x.shape})
    return next(
        node.name
        for node in graph.nodes
        if node.op == "Conv"
        and graph.types[node.inputs[1]].shape[2:] == (3, 3)
        and node.attributes["strides"] == (1, 1)
    )


@pytest.mark.parametrize("text", ["mec:solution=B", "im2col", "winograd:m=2", "fft:tile=16"])
def test_one_layer_by_another_algorithm(text: str, tmp_path: Path) -> None:
    built = model("squeezenet_like")
    x = images(built, 1)
    plain = lc.load(built)
    plain(x)
    name = three_by_three(built, x)
    assert name in convolutions(plain)
    net = lc.load(built, algorithms={name: text})
    answer = net(x)
    assert convolutions(net)[name].startswith(text.split(":")[0])
    assert relative_error(answer, exact(net, built, x)) < 1e-4
    assert net.used_bytes == net.plan.memory_bytes
    net.plan.save(tmp_path / "plan.json")
    assert np.array_equal(lc.load(built, plan=tmp_path / "plan.json")(x), answer)


def test_what_cannot_be_asked() -> None:
    built = model("squeezenet_like")
    x = images(built, 1)
    with pytest.raises(lc.SpecError, match="no convolution of the network"):
        lc.load(built, algorithms={"nothing": "direct"})(x)
    name = next(iter(convolutions(_run(built, x))))
    with pytest.raises(lc.SpecError, match="not known"):
        lc.load(built, algorithms={name: "magic"})(x)
    with pytest.raises(lc.SpecError, match="together with memory_limit"):
        lc.load(built, algorithms={name: "direct"}, memory_limit="64 MiB")


def test_what_may_be_named_is_said() -> None:
    """Whatever becomes a convolution, products of codes and recurrent layers among them."""
    layers = {"gemm": "com.microsoft.QGemm", "conv": "com.microsoft.QLinearConv", "layer": "LSTM"}
    nodes = [FileNode(op, (), (), {}, name) for name, op in {**layers, "act": "Relu"}.items()]
    with pytest.raises(lc.SpecError, match="expected some of gemm, conv, layer$"):
        check_layers({"nothing": "direct"}, nodes)


def _run(built: bytes, x: np.ndarray) -> lc.Network:
    net = lc.load(built)
    net(x)
    return net


def test_blocks_are_taken_apart_where_algorithms_are_named() -> None:
    built = model("mobilenetv2")
    x = images(built, 1)
    whole = _run(built, x)
    chains = [step for step in whole.plan.steps if step.op == "ConvChain"]
    assert chains
    name = chains[0].name
    net = lc.load(built, algorithms={name: "direct"})
    answer = net(x)
    assert not [step for step in net.plan.steps if step.op == "ConvChain"]
    assert convolutions(net)[name] == "direct"
    assert relative_error(answer, exact(net, built, x)) < 1e-4


@pytest.mark.parametrize("algorithm", ["winograd:tiles=4", "im2win"])
def test_named_algorithms_of_reproducible_networks_keep_an_images_bits(
    tmp_path: Path, algorithm: str
) -> None:
    """Of convolutions and the phases of transposed ones; the same after a plan file."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "first", strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("ConvTranspose", ["a", "u"], ["y"], "up", strides=[2, 2]),
    ]
    constants = {"w": weights(35, 20, 3, 3), "u": weights(35, 16, 6, 6)}
    built = small(nodes, {"x": ["N", 20, 35, 23]}, {"y": ["N", 16, "H", "W"]}, constants)
    x = images(built, 3)
    named = {"first": algorithm, "up": "fft"}
    net = lc.load(built, reproducible=True, threads=2, algorithms=named)
    batch = net(x)
    net.plan.save(tmp_path / "plan.json")
    assert np.array_equal(net(x[1:2])[0], batch[1])
    assert np.array_equal(lc.load(built, plan=tmp_path / "plan.json")(x), batch)


@pytest.mark.parametrize("reproducible", [False, True])
def test_tuned_networks_are_right_and_remembered(
    monkeypatch: pytest.MonkeyPatch, reproducible: bool
) -> None:
    built = model("squeezenet_like")
    x = images(built, 1)
    net = lc.load(built, tune=True, reproducible=reproducible)
    answer = net(x)
    assert relative_error(answer, exact(net, built, x)) < 1e-4
    assert net.used_bytes == net.plan.memory_bytes
    again = lc.load(built, tune=True, reproducible=reproducible)

    def never(*_: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(tuner, "_race", never)
    assert np.array_equal(again(x), answer)


def test_a_tuned_plan_is_kept_as_a_file(tmp_path: Path) -> None:
    built = model("squeezenet_like")
    x = images(built, 1)
    net = lc.load(built, tune=True)
    answer = net(x)
    net.plan.save(tmp_path / "plan.json")
    pinned = lc.load(built, plan=tmp_path / "plan.json")
    assert np.array_equal(pinned(x), answer)


def test_the_command_line_takes_algorithms_by_layer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    built = model("squeezenet_like")
    (tmp_path / "net.onnx").write_bytes(built)
    name = next(iter(convolutions(_run(built, images(built, 1)))))
    file = str(tmp_path / "net.onnx")
    assert main(["explain", file, "--algorithm", f"{name}=im2col:rows=whole", "--json"]) == 0
    steps = capsys.readouterr().out
    assert "im2col" in steps
    assert main(["explain", file, "--algorithm", f"{name}=magic"]) == 1
    assert "magic" in capsys.readouterr().err
    assert main(["explain", file, "--algorithm", "im2col"]) == 2
    assert main(["explain", "ic8ih9oc8oh7kh3", "--algorithm", "a=im2col"]) == 2


def transposed(w: np.ndarray, shape: tuple[int, ...]) -> bytes:
    """A network of one ConvTranspose named `up`, of stride 1."""
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], name="up", strides=[1, 1])
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w, "w")],
    )
    built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    built.ir_version = 8
    return built.SerializeToString()


def test_a_transposed_convolution_takes_what_was_predicted() -> None:
    """Its taps are those of the window, not of the spec."""
    w = np.random.default_rng(0).standard_normal((2, 3, 4, 3)).astype("f4")
    built = transposed(w, (1, 2, 5, 6))
    net = lc.load(built, algorithms={"up": "planar"})
    x = np.random.default_rng(1).standard_normal((1, 2, 5, 6)).astype("f4")
    assert relative_error(net(x), exact(net, built, x)) < 1e-5
    assert net.used_bytes == net.plan.memory_bytes


def test_a_transposed_convolution_keeps_the_error_of_a_network() -> None:
    """64 channels on 40x40 would be fastest with large tiles, which err by 2e-5 and more."""
    w = np.random.default_rng(0).standard_normal((64, 64, 3, 3)).astype("f4")
    built = transposed(w, (1, 64, 40, 40))
    nets = {1e-5: lc.load(built), 5e-6: lc.load(built, max_error=5e-6)}
    x = np.random.default_rng(1).standard_normal((1, 64, 40, 40)).astype("f4")
    y = exact(nets[1e-5], built, x)
    for limit, net in nets.items():
        assert relative_error(net(x), y) < net.plan.node_costs[0].error <= limit
