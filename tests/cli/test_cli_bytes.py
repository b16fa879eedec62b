"""The command line on a network that takes its images as bytes, channels last; and operators."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from leanconv.graph.convert import FILE_RULES
from support import quantised_models
from support.cli_fakes import Call
from support.hostile import node
from support.onnx_models import model, reference

PIXELS = np.random.default_rng(8).integers(0, 256, (12, 17, 3), np.uint8)


@pytest.fixture
def network(tmp_path: Path) -> str:
    """Cast, Transpose, scale, Conv, on any size."""
    nodes = [
        node("Cast", "x", "a", to=1),
        node("Transpose", "a", "b", perm=[0, 3, 1, 2]),
        node("Div", "b k", "c"),
        node("Conv", "c w", "y"),
    ]
    held = {"k": np.float32(255), "w": np.ones((2, 3, 3, 3), "f4")}
    proto = model(nodes, {"x": ("n", "h", "w_", 3)}, ["y"], held, elem_type=2)
    proto.graph.output[0].type.tensor_type.elem_type = 1
    file = tmp_path / "bytes.onnx"
    file.write_bytes(proto.SerializeToString())
    wanted = reference(proto, {"x": PIXELS[None]})["y"]
    np.save(tmp_path / "wanted.npy", wanted)
    return str(file)


def test_run_on_a_picture(network: str, tmp_path: Path, call: Call) -> None:
    image = pytest.importorskip("PIL.Image").fromarray(PIXELS)
    image.save(tmp_path / "p.png")
    result = call("run", network, str(tmp_path / "p.png"), "--layout", "NHWC", "--repeat", "1")
    assert result.code == 0, result.err
    wanted = np.load(tmp_path / "wanted.npy")
    assert f"{wanted.max():.4g}" in result.out
    assert "1x2x10x15" in result.out


def test_verify_and_profile(network: str, tmp_path: Path, call: Call) -> None:
    assert call("verify", network, "--shape", "1x12x17x3", "--count", "1").code == 0
    assert call("profile", network, "--shape", "1x12x17x3").code == 0
    np.save(tmp_path / "sample.npy", PIXELS[None])
    assert call("verify", network, str(tmp_path / "sample.npy")).code == 0
    np.save(tmp_path / "sample.npy", PIXELS[None] / 2)
    refused = call("verify", network, str(tmp_path / "sample.npy"))
    assert refused.code == 1
    assert "uint8 does not hold all numbers" in refused.err


def test_explain_lists_operators(call: Call) -> None:
    result = call("explain", "--operators")
    assert result.code == 0
    listed = {line.split()[0] for line in result.out.splitlines()[2:] if line.strip()}
    assert listed == set(FILE_RULES)
    rows = json.loads(call("explain", "--operators", "--json").out)["operators"]
    assert {"operator": "Shape", "since": 1, "until": 28, "data": False} in rows
    assert call("explain").code == 2


def test_a_network_of_codes_is_verified(tmp_path: Path, call: Call) -> None:
    """Its scales stay float32 where the rest is in float64; sums that become floats are cast."""
    rng = np.random.default_rng(0)
    held = {
        "xs": np.float32(0.05),
        "xz": np.uint8(128),
        "w": rng.integers(-127, 128, (5, 3, 3, 3)).astype(np.int8),
        "ws": rng.random(5).astype(np.float32) / 500,
        "wz": np.zeros(5, np.int8),
        "ys": np.float32(0.02),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "xs", "xz"], ["a"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["b"], axis=0),
        helper.make_node("Conv", ["a", "b"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "ys", "xz"], ["d"]),
        helper.make_node("DequantizeLinear", ["d", "ys", "xz"], ["e"]),
        helper.make_node("Conv", ["a", "b"], ["f"]),
        helper.make_node("Add", ["e", "f"], ["y"]),
    ]
    made = quantised_models.model(nodes, {"x": np.zeros((1, 3, 8, 8), np.float32)}, held)
    file = tmp_path / "codes.onnx"
    file.write_bytes(made.SerializeToString())
    assert call("verify", str(file), "--count", "1").code in (0, 3)
    assert "8-bit integers may exceed the peak" in call("profile", str(file), "--wide").out
