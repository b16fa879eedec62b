"""Weights whose products, added by twos in 16 bits, saturate nowhere; and what those give that do.

Engines add so on x86 CPUs without VNNI: `leanconv.quantizer.saturating` has the sums.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import leanconv as lc
from leanconv.cli.main import main
from leanconv.errors import SpecError
from leanconv.quantizer.codes import WeightCodes, limited, weight_codes, weight_scales
from leanconv.quantizer.float_network import read_graph
from leanconv.quantizer.layers import Layer, layer_of
from leanconv.quantizer.rounding import Windows
from leanconv.quantizer.saturating import lost, unsafe_pairs
from support.networks_to_quantise import model, normal
from support.quantised_models import peer

_NODES = [
    helper.make_node("Conv", ["x", "w0", "b0"], ["a"], name="first", pads=[1, 1, 1, 1]),
    helper.make_node("Relu", ["a"], ["b"]),
    helper.make_node("Conv", ["b", "w1"], ["c"], name="depthwise", pads=[1] * 4, group=16),
    helper.make_node("Relu", ["c"], ["d"]),
    helper.make_node("Conv", ["d", "w2"], ["e"], name="pointwise"),
    helper.make_node("GlobalAveragePool", ["e"], ["f"]),
    helper.make_node("Flatten", ["f"], ["g"]),
    helper.make_node("Gemm", ["g", "w3", "b3"], ["y"], name="last", transB=1),
]


def smooth() -> bytes:
    """A network of filters that smooth: without negative weights, the case that saturates most."""
    weights = {
        "w0": np.abs(normal(16, 3, 3, 3)) + 0.5,
        "w1": np.abs(normal(16, 1, 3, 3, seed=1)) + 0.5,
        "w2": np.abs(normal(12, 16, 1, 1, seed=2)) + 0.5,
        "w3": np.abs(normal(5, 12, seed=3)) + 0.5,
        "b0": normal(16, seed=4) * 0.1,
        "b3": normal(5, seed=5),
    }
    held = {name: each.astype(np.float32) for name, each in weights.items()}
    return model(_NODES, ["n", 3, 8, 9], held, rank=2)


def bright(count: int = 24) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [
        rng.random((1, 3, 8, 9), np.float32) * np.float32(0.4) + np.float32(0.6)
        for _ in range(count)
    ]


def layers_of(data: bytes) -> dict[str, tuple[Layer, np.ndarray]]:
    """The layers of a file by name, with their int8 codes in rows."""
    parsed = onnx.load_from_string(data)
    held = {each.name: numpy_helper.to_array(each) for each in parsed.graph.initializer}
    made = {name: node for node in parsed.graph.node for name in node.output}
    found = {}
    for node in parsed.graph.node:
        source = made.get(node.input[1]) if node.op_type in ("Conv", "Gemm", "MatMul") else None
        if source is None:
            continue
        codes = held[source.input[0]]
        plain = onnx.NodeProto()
        plain.CopyFrom(node)
        plain.input[:] = ["x", "w"]
        layer = layer_of(
            read_graph(model([plain], ["n"] * codes.ndim, {"w": codes.astype(np.float32)})).nodes[
                0
            ],
            read_graph(model([plain], ["n"] * codes.ndim, {"w": codes.astype(np.float32)})),
        )
        assert layer is not None
        found[node.name] = layer, layer.by_channel().astype(np.int64)
    return found


def largest_pair(codes: np.ndarray, channels: int) -> int:
    """The largest sum of two weights beside each other, by row, column and channel."""
    rows = codes.reshape(len(codes), channels, -1).swapaxes(1, 2).reshape(len(codes), -1)
    return int(np.abs(rows[:, 1:] + rows[:, :-1]).max())


@pytest.mark.parametrize("ranges", ["mse", "min-max"])
@pytest.mark.parametrize("rounding", [False, True])
def test_no_pair_saturates(rounding: bool, ranges: str) -> None:
    made = lc.quantize(smooth(), bright(), ranges=ranges, rounding=rounding, threads=1)
    found = layers_of(made.data)
    assert set(found) == {"first", "depthwise", "pointwise", "last"}
    for name, (layer, codes) in found.items():
        if name == "depthwise":  # which no engine adds by twos, and keeps 8 bits
            assert np.abs(codes).max() > 100
        else:
            assert largest_pair(codes, layer.input_channels) <= 128
    assert (made.runs_on, made.elsewhere) == ("any", None)
    full = lc.quantize(
        smooth(), bright(), ranges=ranges, rounding=rounding, runs_on="vnni", threads=1
    )
    assert made.error < 3 * full.error


def test_what_saturates_is_measured() -> None:
    made = lc.quantize(smooth(), bright(), runs_on="vnni", threads=1)
    assert made.runs_on == "vnni"
    assert any(
        largest_pair(c, layer.input_channels) > 200 for layer, c in layers_of(made.data).values()
    )
    assert made.elsewhere is not None
    assert made.elsewhere.error > 20 * made.error
    assert made.elsewhere in made.trials
    assert (made.elsewhere.how, made.elsewhere.count) == ("sums that saturate", 8)
    assert any("saturate on x86 CPUs" in warning for warning in made.warnings)


def test_onnxruntime_answers_as_it_is_said_to() -> None:
    """With VNNI, and on ARM, its sums are exact; else they are those of `saturating`."""
    made = lc.quantize(smooth(), bright(), runs_on="vnni", threads=1)
    safe = lc.quantize(smooth(), bright(), threads=1)
    x = {"x": bright()[1]}
    (found,) = peer(onnx.load_from_string(made.data), x)
    size = float(np.linalg.norm(found))
    exact = lc.load(made.data, threads=1).run(x)["y"]
    assert made.elsewhere is not None
    far = float(np.linalg.norm(found - exact)) / size
    assert far < 0.01 or abs(far / made.elsewhere.error - 1) < 0.5
    (found,) = peer(onnx.load_from_string(safe.data), x)
    exact = lc.load(safe.data, threads=1).run(x)["y"]
    assert float(np.linalg.norm(found - exact)) / size < 0.001


def test_codes_are_changed_no_more_than_they_must_be() -> None:
    rng = np.random.default_rng(0)
    for count in (1, 2, 3, 8, 27):
        codes = rng.integers(-127, 128, (40, count)).astype(np.float64)
        order = rng.permutation(count)
        found = limited(codes, order)
        ordered, before = found[:, order], codes[:, order]
        pairs = ordered[:, 1:] + ordered[:, :-1]
        assert np.abs(pairs).max(initial=0) <= 128
        assert (np.abs(found) <= np.abs(codes)).all()
        assert (found * codes >= 0).all()
        wrong = np.abs(before[:, 1:] + before[:, :-1]) > 128
        touched = np.zeros(before.shape, bool)
        touched[:, 1:] |= wrong
        touched[:, :-1] |= wrong
        np.testing.assert_array_equal(ordered[~touched], before[~touched])
        np.testing.assert_array_equal(limited(found, order), found)
    assert limited(codes, None) is codes


@pytest.mark.parametrize(
    ("node", "shape", "wanted"),
    [
        (helper.make_node("Conv", ["x", "w"], ["y"]), (2, 2, 1, 3), [0, 3, 1, 4, 2, 5]),
        (helper.make_node("Conv", ["x", "w"], ["y"], group=2), (4, 1, 1, 2), [0, 1]),
        (helper.make_node("Conv", ["x", "w"], ["y"], group=4), (4, 1, 1, 2), None),
        (helper.make_node("ConvTranspose", ["x", "w"], ["y"]), (2, 3, 1, 2), [0, 2, 1, 3]),
        (helper.make_node("MatMul", ["x", "w"], ["y"]), (3, 5), [0, 1, 2]),
        (helper.make_node("Gemm", ["x", "w"], ["y"], transB=1), (5, 3), [0, 1, 2]),
    ],
)
def test_the_order_of_sums(
    node: onnx.NodeProto, shape: tuple[int, ...], wanted: list[int] | None
) -> None:
    graph = read_graph(model([node], ["n"] * len(shape), {"w": normal(*shape)}))
    layer = layer_of(graph.nodes[0], graph)
    assert layer is not None
    order = layer.neighbours()
    assert (None if order is None else order.tolist()) == wanted


def test_sums_are_those_of_the_definition() -> None:
    rng = np.random.default_rng(1)
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 0, 1, 2], strides=[2, 1], group=2)
    codes = rng.integers(-40, 128, (4, 3, 3, 3)).astype(np.int8)
    graph = read_graph(model([node], ["n", 6, 7, 6], {"w": codes.astype(np.float32)}))
    layer = layer_of(graph.nodes[0], graph)
    assert layer is not None
    window = Windows.of(layer)
    assert window is not None
    x = rng.integers(100, 256, (1, 6, 7, 6)).astype(np.uint8)
    read = window.patches(x, 1000)
    weights = WeightCodes(layer.by_channel().astype(np.int8), np.ones(4, np.float32))
    found = lost(layer, weights, read.astype(np.uint8))
    assert unsafe_pairs(layer, weights).any()
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (0, 2))).astype(int)
    for channel in range(4):
        for place, (row, column) in enumerate(np.ndindex(4, 6)):
            group = 3 * (channel // 2)
            taps = [
                int(padded[0, group + c, 2 * row + i, column + j]) * int(codes[channel, c, i, j])
                for i in range(3)
                for j in range(3)
                for c in range(3)
            ]
            pairs = [sum(taps[n : n + 2]) for n in range(0, 27, 2)]
            wanted = sum(min(max(each, -(2**15)), 2**15 - 1) - each for each in pairs)
            assert found[channel, place] == wanted


def test_scales_leave_room_for_pairs() -> None:
    weights = np.abs(normal(6, 40)) + np.float32(1)
    order = np.arange(40)
    for least in (False, True):
        free, kept = (
            weight_codes(weights, weight_scales(weights, least, each), each)
            for each in (None, order)
        )
        errors = [np.abs(each.values - weights).max(axis=1) for each in (free, kept)]
        assert (errors[1] < 8 * errors[0]).all()
        assert np.abs(kept.codes[:, 1:].astype(int) + kept.codes[:, :-1]).max() <= 128


def test_other_cpus_are_refused() -> None:
    with pytest.raises(SpecError, match="runs_on is 'avx2'; expected 'any' or 'vnni'"):
        lc.quantize(smooth(), bright(), runs_on="avx2", threads=1)


def test_the_command_says_where_a_file_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network, page = tmp_path / "smooth.onnx", tmp_path / "page.html"
    network.write_bytes(smooth())
    np.save(tmp_path / "x.npy", np.concatenate(bright()))
    given = ["quantize", str(network), str(tmp_path / "x.npy"), "-o", str(tmp_path / "q.onnx")]
    assert main([*given, "--threads", "1"]) == 0
    assert "other engines answer so on every CPU" in " ".join(capsys.readouterr().out.split())
    assert main([*given, "--threads", "1", "--for", "vnni", "--json", "--html", str(page)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["runs_on"] == "vnni"
    assert report["elsewhere"]["error"] > 20 * report["error"]
    assert "sums that saturate" in page.read_text("utf-8")
