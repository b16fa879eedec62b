"""The peak of resident memory is what the plan says, over what a loaded network takes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from examples.networks import FULL_NETWORKS
from support.onnx_models import model

pytestmark = pytest.mark.once  # any plan will do

# Beside the plan: tables, stacks of the pool, a layer's packed weights on their way, the input.
# (What Winograd by stages packs is in memory five times, in float64: these networks have none.)
CONSTANT_BYTES = 12 * 2**20
_SCRIPT = """
import sys
import numpy as np
import leanconv as lc
from leanconv.codegen.backend import release_llvm_pages

def read(key):
    with open("/proc/self/status") as status:
        return next(int(l.split()[1]) * 1024 for l in status if l.startswith(key))

more = dict(memory_limit=sys.argv[3], stream_weights=True) if len(sys.argv) > 3 else {}

def load(path):
    net = lc.load(path, threads=2, **more)
    (x,) = net.inputs
    net(np.ones(x.shape, np.float32))
    return net

load(sys.argv[1])  # so that all modules are there
release_llvm_pages()
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak begins anew
before = read("VmRSS")
net = load(sys.argv[2])
print(read("VmHWM") - before, net.plan.memory_bytes, net.used_bytes)
"""
_CHANNELS, _LAYERS = 1024, 10


def vgg(share: float) -> onnx.ModelProto:
    """Weights that are packed as the file has them."""
    image = 224 if share == 1 else 32
    return FULL_NETWORKS["vgg16"](batch=1, width=share / 4, image=image)


def normalised(share: float) -> onnx.ModelProto:
    """Layers whose weights a BatchNormalization is folded into."""
    channels, random = round(_CHANNELS * share), np.random.default_rng(0)
    nodes, constants, x = [], {}, "x"
    for number in range(_LAYERS):
        shape = (channels, channels, 1, 1)
        constants[f"w{number}"] = random.standard_normal(shape, np.float32) / 32
        names = [f"{of}{number}" for of in ("scale", "shift", "mean", "variance")]
        constants |= {name: np.full(channels, 0.5, np.float32) for name in names}
        nodes.append(helper.make_node("Conv", [x, f"w{number}"], [f"c{number}"]))
        x = f"y{number}"
        nodes.append(helper.make_node("BatchNormalization", [f"c{number}", *names], [x]))
    return model(nodes, {"x": (1, channels, 4, 4)}, [x], constants)


def quantised(share: float) -> onnx.ModelProto:
    """Layers of codes, whose weights are int8 in the file."""
    channels, random = round(_CHANNELS * share), np.random.default_rng(0)
    constants = {
        "s": np.float32(0.05),
        "z": np.uint8(128),
        "sw": np.full(channels, 0.002, np.float32),
        "zw": np.zeros(channels, np.int8),
    }
    nodes, x = [], "x"
    for number in range(_LAYERS):
        shape = (channels, channels, 1, 1)
        constants[f"w{number}"] = random.integers(-127, 128, shape, np.int8)
        given, codes, floats = f"q{number}", f"w{number}", f"v{number}"
        nodes += [
            helper.make_node("QuantizeLinear", [x, "s", "z"], [given]),
            helper.make_node("DequantizeLinear", [given, "s", "z"], [f"d{number}"]),
            helper.make_node("DequantizeLinear", [codes, "sw", "zw"], [floats], axis=0),
            helper.make_node("Conv", [f"d{number}", floats], [f"y{number}"]),
        ]
        x = f"y{number}"
    return model(nodes, {"x": (1, channels, 4, 4)}, [x], constants)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("network", [vgg, normalised, quantised])
def test_the_peak_is_that_of_the_plan(
    network: Callable[[float], onnx.ModelProto], tmp_path: Path
) -> None:
    """Weights are in memory once, from the file to the first answer.

    Pages of the mapped file are given back as they are packed, and so are weights with folded
    factors; of weights in codes no floats are made.
    """
    grown, planned = measured(network, tmp_path)
    assert planned * 0.95 <= grown <= planned + CONSTANT_BYTES


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("network", [vgg, normalised])
def test_the_peak_is_that_of_a_plan_that_streams(
    network: Callable[[float], onnx.ModelProto], tmp_path: Path
) -> None:
    """Weights of 32 to 40 MiB are never in memory together, those with folded factors included."""
    grown, planned = measured(network, tmp_path, "12 MiB")
    assert planned <= 12 * 2**20
    assert grown <= planned + CONSTANT_BYTES


def measured(
    network: Callable[[float], onnx.ModelProto], folder: Path, *limit: str
) -> tuple[int, int]:
    """By how much the peak grows for a network, and the bytes of its plan."""
    files = folder / "small.onnx", folder / "large.onnx"
    for file, share in zip(files, (1 / 16, 1), strict=True):
        file.write_bytes(network(share).SerializeToString())
    for _ in range(2):  # once to compile: LLVM's own memory is not what this is about
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT, *map(str, files), *limit],
            capture_output=True,
            text=True,
            check=True,
        )
    grown, planned, used = (int(word) for word in done.stdout.split())
    assert used == planned
    return grown, planned
