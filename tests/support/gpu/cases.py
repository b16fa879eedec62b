"""Convolutions, nodes, networks and tiles on a device, each compared with float64.

The device is a fake one in Triton's interpreter (`interpret_worker`) or a real one
(`test_gpu_device.py`): the cases are the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np

from leanconv.api.network import Network
from leanconv.gpu.backend import DeviceBackend
from leanconv.gpu.device.driver import Driver
from leanconv.graph.onnx_import import read_model
from leanconv.types import FLOAT16, FLOAT64
from support import network_models
from support.errors import relative_error
from support.gpu.conv_cases import convolutions
from support.gpu.fake_cuda import FakeCuda
from support.gpu.node_cases import nodes
from support.gpu.stand import Case, Row, Stand
from support.gpu.tile_cases import sampled_tiles, tile_cases

NETWORKS = (
    ("squeezenet_like", None),
    ("shufflenet_like", None),
    ("googlenet_like", None),
    ("mobilenet_v3_like", None),
    ("mobilenetv2", None),
    ("squeezenet_like", FLOAT64),
    ("shufflenet_like", FLOAT16),
)


def network(stand: Stand, dtype: str | None, build: Callable[[str], bytes], name: str) -> Row:
    """Load a network, run it, and compare with float64."""
    built = build(name)
    x = network_models.images(built, 1)
    net = Network(
        DeviceBackend(read_model(built), stand.driver, dtype, compile_code=stand.compile_code)
    )
    found = net(x)
    stand.check_guards()
    (expected,) = network_models.by_numpy(built, {net.inputs[0].name: x}).values()
    return {
        "error": relative_error(found.astype(np.float64), expected),
        "allowed": 8 * net.plan.predicted_error,
        "used": net.used_bytes,
        "counted": net.plan.memory_bytes,
    }


def networks(stand: Stand) -> Iterator[Case]:
    for name, dtype in NETWORKS:
        build = network_models.model
        yield f"{name} {dtype or 'float32'}", functools.partial(network, stand, dtype, build, name)


def small_networks(stand: Stand) -> Iterator[Case]:
    """The same layers of images with half the height and width, for the interpreter.

    But for MobileNetV2, whose kinds of layers MobileNetV3 has, in a fifth of the time.
    """
    for name, dtype in NETWORKS:
        if name == "mobilenetv2":
            continue
        build = network_models.small_model
        yield f"{name} {dtype or 'float32'}", functools.partial(network, stand, dtype, build, name)


KINDS_OF_CASES: dict[str, Callable[[Stand], Iterator[Case]]] = {
    "conv": convolutions,
    "node": nodes,
    "network": networks,
    "small network": small_networks,
    "tile": tile_cases,
    "sample": sampled_tiles,
}


def run_case(run: Callable[[], Row]) -> Row:
    """A case's row; what it raised, as text, if it did."""
    try:
        return run()
    except Exception as error:
        return {"failure": f"{type(error).__name__}: {error}"[:500]}


@functools.cache
def case_names(kind: str) -> tuple[str, ...]:
    """The names of all cases of a kind for sm_90, each once; nothing is run."""
    fake = FakeCuda()
    stand = Stand(Driver(fake), fake.compile, fake.check_guards)
    names = tuple(name for name, _ in KINDS_OF_CASES[kind](stand))
    assert len(set(names)) == len(names), "two cases have the same name"
    return names


def check(row: Row) -> None:
    """Assert that an answer is right, its bytes are as predicted, and the error bound is tight."""
    assert "failure" not in row, row["failure"]
    assert row["error"] <= max(row["allowed"], 0.0), row
    assert row.get("used") == row.get("counted"), row
    if row.get("arithmetic") not in ("tf32", "tf32x3") and row["error"]:
        assert row.get("predicted", 0.0) <= 100 * row["error"], row
