"""Networks of codes on x86 without VNNI: the bits of other machines, in whatever form they run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import leanconv as lc
from leanconv.codegen.host import check_runs_here
from leanconv.errors import SpecError
from leanconv.target import preset
from support.cache_check import run_program

TARGET = "haswell"
RUN = """
import json, sys, numpy as np, leanconv as lc
folder = {folder!r}
x, given = np.load(folder + "/x.npy"), dict(threads=1)
found = lc.load(folder + "/net.onnx", **given)
text, found = found.explain(), [found(x)]
least = {{"memory_limit": "150 KiB", "stream_weights": True}}
for more in ({{"shared_weights": folder + "/shared"}}, least, {{"reproducible": True}}):
    found.append(lc.load(folder + "/net.onnx", **given, **more)(x))
found.append(lc.load(folder + "/open.onnx", **given)(x))
made = lc.compile(folder + "/net.onnx", folder + "/library.o", target={target!r})
np.save(folder + "/y.npy", np.stack(found))
print(json.dumps(str(text)))
"""


def weights(random: np.random.Generator, shape: tuple[int, ...], exceeding: float) -> np.ndarray:
    """Weights of 7 bits, with some pairs of -128 or 127 beside each other; below 0: all ± 64."""
    if exceeding < 0:
        return random.choice(np.array([-64, 64], np.int8), shape)
    w = np.clip(np.rint(random.laplace(0, 14, shape)), -64, 63).astype(np.int8)
    if shape[1] > 1:
        first = w[:, : shape[1] // 2 * 2 : 2]
        where = np.nonzero(random.random(first.shape) < exceeding)
        for place in (where[1] * 2, where[1] * 2 + 1):
            w[(where[0], place, *where[2:])] = random.choice([-128, 127], len(place))
    return w


def network(dtype: np.dtype, size: tuple[int | str, int | str]) -> bytes:
    """Convolutions of codes: a stem, a depthwise one, of one tap, of several, strided, grouped."""
    random, nodes = np.random.default_rng(4), []
    zero = dtype.type(0 if dtype == np.int8 else 128)
    held = {"s": np.float32(0.02), "z": zero, "wz": np.int8(0)}
    layers = [  # outputs, taps, stride, groups, share of pairs that exceed
        (32, 3, 2, 1, 0.0),
        (32, 3, 1, 32, 0.0),
        (48, 1, 1, 1, 0.01),
        (40, 3, 2, 1, 0.005),
        (64, 5, 1, 1, 0.003),
        (48, 1, 1, 1, 0.3),
        (72, 1, 1, 1, 0.01),
        (24, 3, 1, 2, 0.0),
        (24, 1, 2, 1, -1),
        (48, 1, 1, 1, 0.0),
    ]
    name, channels = "x", 3
    for number, (outputs, taps, stride, groups, exceeding) in enumerate(layers):
        w = weights(random, (outputs, channels // groups, taps, taps), exceeding)
        scale = 0.8 / np.sqrt((w.astype(np.float64) ** 2).sum() / outputs)
        own = {f"w{number}": w, f"s{number}": np.float32(scale)}
        own[f"b{number}"] = random.integers(-300, 300, outputs).astype(np.int32)
        held |= own
        inputs = [name, "s", "z", f"w{number}", f"s{number}", "wz", "s", "z", f"b{number}"]
        name, channels, pads = f"y{number}", outputs, [taps // 2] * 4
        window = {"pads": pads, "strides": [stride] * 2, "group": groups}
        node = helper.make_node("QLinearConv", inputs, [name])
        node.attribute.extend(helper.make_attribute(key, value) for key, value in window.items())
        nodes.append(node)
    kind = TensorProto.UINT8 if dtype == np.uint8 else TensorProto.INT8
    ports = (
        [helper.make_tensor_value_info("x", kind, [1, 3, *size])],
        [helper.make_tensor_value_info(name, kind, None)],
    )
    constants = [numpy_helper.from_array(np.asarray(a), n) for n, a in held.items()]
    graph = helper.make_graph(nodes, "codes", *ports, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    return bytes(model.SerializeToString())


@pytest.mark.once
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_forms_of_a_network_have_the_same_bits(dtype: type, tmp_path: Path) -> None:
    try:
        check_runs_here(preset(TARGET))
    except SpecError as reason:
        pytest.skip(str(reason))
    (tmp_path / "net.onnx").write_bytes(network(np.dtype(dtype), (37, 45)))
    (tmp_path / "open.onnx").write_bytes(network(np.dtype(dtype), ("h", "w")))
    (tmp_path / "shared").mkdir()
    bounds = np.iinfo(dtype)
    random = np.random.default_rng(1)
    x = random.integers(bounds.min, bounds.max, (1, 3, 37, 45), dtype, endpoint=True)
    np.save(tmp_path / "x.npy", x)
    program = RUN.format(folder=str(tmp_path), target=TARGET)
    made = run_program(program, LEANCONV_TARGET=TARGET)
    assert made.returncode == 0, made.stderr
    text = json.loads(made.stdout)
    assert "direct (bytes by twos)" in text
    assert "direct (bytes by fours" in text
    assert "% exceed)" in text
    assert "by direct," in text  # of too many that exceed
    expected = lc.load(network(np.dtype(dtype), (37, 45)))(x)
    assert len(np.unique(expected)) > 20
    for found in np.load(tmp_path / "y.npy"):
        np.testing.assert_array_equal(found, expected)
