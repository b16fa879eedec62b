"""Weights that each run reads from a file: the same bits in fewer bytes than the weights have."""

from __future__ import annotations

import gc
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import leanconv as lc
from leanconv.api import options
from leanconv.planner import weight_streaming
from leanconv.planner.storage import Reading
from leanconv.planner.weight_streaming import STAYS_BYTES, streamed_ns
from leanconv.runtime.file_block import FileBlock
from support.control_flow import node
from support.graph_builder import Builder
from support.loops import CONV, W, X, loop, made
from support.network_models import by_onnxruntime
from support.network_models import images as small_images
from support.network_models import model as network_model
from support.onnx_models import model

KIB = 1024


def layers(batch: int | str = "n", transposed: bool = True) -> bytes:
    """Convolutions, then dense layers of 3 MiB, most of it in the first two."""
    random = np.random.default_rng(0)
    nodes, held, x, channels = [], {}, "x", 5
    for number, outputs in enumerate((24, 64, 30)):
        fan = channels * 9
        held[f"w{number}"] = random.normal(size=(outputs, channels, 3, 3)) / np.sqrt(fan)
        held[f"b{number}"] = random.normal(size=outputs)
        nodes.append(node("Conv", f"{x} w{number} b{number}", f"c{number}", pads=[1] * 4))
        nodes.append(node("Relu", f"c{number}", f"r{number}"))
        x, channels = f"r{number}", outputs
    nodes.append(node("MaxPool", x, "p", kernel_shape=[2, 2], strides=[2, 2]))
    nodes.append(node("Flatten", "p", "f"))
    x, inputs = "f", channels * 12
    for number, outputs in enumerate((1000, 410, 11)):
        shape = (outputs, inputs) if transposed else (inputs, outputs)
        held[f"d{number}"] = random.normal(size=shape) / np.sqrt(inputs)
        held[f"e{number}"] = random.normal(size=outputs)
        nodes.append(node("Gemm", f"{x} d{number} e{number}", f"g{number}", transB=int(transposed)))
        nodes.append(node("PRelu" if number == 1 else "Relu", _read(number), f"h{number}"))
        x, inputs = f"h{number}", outputs
    held["slope"] = random.normal(size=410)
    constants = {name: array.astype(np.float32) for name, array in held.items()}
    return model(nodes, {"x": (batch, 5, 8, 7)}, [x], constants).SerializeToString()


def _read(number: int) -> str:
    return "g1 slope" if number == 1 else f"g{number}"


NETWORK = layers()


@cache
def images(batch: int) -> np.ndarray:
    return np.random.default_rng(batch).normal(size=(batch, 5, 8, 7)).astype(np.float32)


@cache
def whole() -> lc.Network:
    return lc.load(NETWORK, threads=1)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("limit", [None, 900 * KIB, 2500 * KIB])
def test_bits_are_those_of_weights_in_memory(batch: int, limit: int | None) -> None:
    net, x = lc.load(NETWORK, threads=2, memory_limit=limit, stream_weights=True), images(batch)
    expected = whole()(x)
    near = 0.0 if limit is None else 1e-5  # within a limit other algorithms may be chosen
    for _ in range(2):
        np.testing.assert_allclose(net(x), expected, atol=near * np.abs(expected).max(), rtol=0)
    (theirs,) = by_onnxruntime(NETWORK, {"x": x}).values()
    np.testing.assert_allclose(net(x), theirs, atol=2e-5 * np.abs(theirs).max())
    plan = net.plan
    weights = whole().plan.weight_bytes
    assert net.used_bytes == plan.memory_bytes < weights
    assert 0 < plan.streamed_bytes <= weights
    assert plan.memory_bytes <= (limit or weights)
    assert f"{plan.streamed_bytes} bytes" in net.explain()


def test_as_much_stays_in_memory_as_a_limit_has_room_for() -> None:
    least = lc.load(NETWORK, threads=1, stream_weights=True)
    read = [least(images(1)) is not None and least.plan.streamed_bytes]
    for limit in (1500 * KIB, 2500 * KIB, 8000 * KIB):
        net = lc.load(NETWORK, threads=1, stream_weights=True, memory_limit=limit)
        np.testing.assert_allclose(net(images(1)), whole()(images(1)), atol=1e-4)
        assert net.plan.memory_bytes <= limit
        read.append(net.plan.streamed_bytes)
    assert read == sorted(read, reverse=True)
    assert read[-1] == 0


def test_too_small_a_limit_names_the_least_that_works() -> None:
    with pytest.raises(lc.BudgetError, match=r"memory_limit=\d+ or more$") as found:
        lc.load(NETWORK, threads=1, stream_weights=True, memory_limit=80 * KIB)(images(1))
    least = found.value.smallest_bytes
    assert least < 600 * KIB
    net = lc.load(NETWORK, threads=1, stream_weights=True, memory_limit=least)
    np.testing.assert_allclose(net(images(1)), whole()(images(1)), atol=1e-4)
    with pytest.raises(lc.BudgetError, match="or stream_weights=True"):
        lc.load(NETWORK, threads=1, memory_limit=least)(images(1))


def test_the_least_that_works_does_not_follow_from_the_limit() -> None:
    said = []
    for limit in (1, 100 * KIB, 140 * KIB):
        with pytest.raises(lc.BudgetError) as found:
            lc.load(NETWORK, threads=1, stream_weights=True, memory_limit=limit)(images(1))
        said.append(found.value.smallest_bytes)
    assert len(set(said)) == 1
    for limit in (said[0], said[0] + 16 * KIB, 900 * KIB):
        net = lc.load(NETWORK, threads=1, stream_weights=True, memory_limit=limit)
        assert net(images(1)).shape == (1, 11)
        assert net.used_bytes <= limit


def test_plans_of_several_shapes_share_one_file() -> None:
    net = lc.load(NETWORK, threads=1, stream_weights=True)
    for batch in (1, 2, 3, 2):
        np.testing.assert_array_equal(net(images(batch)), whole()(images(batch)))
    gc.collect()
    files = [block for block in gc.get_objects() if isinstance(block, FileBlock)]
    assert sum(block.bytes for block in files) < 2.5 * whole().plan.weight_bytes  # of three plans


def test_the_file_may_be_one_that_processes_share(tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    for _ in range(2):
        net = lc.load(NETWORK, threads=1, stream_weights=True, shared_weights=folder)
        np.testing.assert_array_equal(net(images(1)), whole()(images(1)))
        assert net.used_bytes == net.plan.memory_bytes
        (kept,) = folder.glob("*.weights")
        assert kept.stat().st_size > net.plan.streamed_bytes


def test_weights_of_loops_stay() -> None:
    wide = np.random.default_rng(0).normal(size=(700, 3, 3, 3)).astype(np.float32)
    back = np.random.default_rng(1).normal(size=(3, 700, 1, 1)).astype(np.float32) / 700
    nodes = [
        node("Conv", "x wide", "a", pads=[1] * 4),
        node("Conv", "a back", "z"),
        loop("n true z", "y", CONV),
    ]
    proto = made(nodes, 4, shape=X.shape, wide=wide, back=back).SerializeToString()
    expected = lc.load(proto, threads=1)(X)
    net = lc.load(proto, threads=1, stream_weights=True)
    np.testing.assert_array_equal(net(X), expected)
    assert net.plan.streamed_bytes >= wide.nbytes
    assert net.plan.weight_bytes >= W.nbytes


def test_without_a_thread_the_run_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    net = lc.load(NETWORK, threads=1, stream_weights=True)
    expected = net(images(1))

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    np.testing.assert_array_equal(net(images(1)), expected)


def test_what_cannot_be_read_ends_a_run_and_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    net = lc.load(NETWORK, threads=1, stream_weights=True)
    expected, plain, left = net(images(1)), FileBlock.read_into, [2]

    def read(self: FileBlock, offset: int, array: np.ndarray) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise OSError("Input/output error")
        plain(self, offset, array)

    monkeypatch.setattr(FileBlock, "read_into", read)
    with pytest.raises(lc.InputError, match="weights could not be read .*Input/output error"):
        net(images(1))
    for _ in range(2):
        np.testing.assert_array_equal(net(images(1)), expected)
    assert not [each for each in threading.enumerate() if each.name == "leanconv-weights"]


@pytest.mark.parametrize("name", ["alexnet_like", "googlenet_like", "shufflenet_like"])
def test_networks_of_all_kinds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    built = network_model(name)
    x = small_images(built, 2)
    expected = lc.load(built, threads=1)(x)
    monkeypatch.setattr(weight_streaming, "STAYS_BYTES", 256)
    net = lc.load(built, threads=1, stream_weights=True)
    for one, other in zip(listed(net(x)), listed(expected), strict=True):  # or other algorithms
        np.testing.assert_allclose(one, other, atol=2e-5 * max(1.0, np.abs(other).max()))
    assert net.plan.streamed_bytes
    monkeypatch.setattr(options, "_PART_BYTES", 2 * KIB)
    monkeypatch.setattr(options, "_LEAST_PART_BYTES", 2 * KIB)
    net = lc.load(built, threads=1, stream_weights=True)  # layers in parts, of other algorithms
    for one, other in zip(listed(net(x)), listed(expected), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5 * max(1.0, np.abs(other).max()))


def listed(found: Any) -> list[np.ndarray]:
    """The outputs of a network."""
    return list(found) if isinstance(found, list | tuple) else [found]


def test_options_for_a_layer_are_for_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "_PART_BYTES", 64 * KIB)
    random = np.random.default_rng(0)
    w, x = random.normal(size=(200, 32, 3, 3)), random.normal(size=(2, 32, 5, 4))
    proto = model([node("Conv", "x w", "y")], {"x": x.shape}, ["y"], {"w": w.astype(np.float32)})
    given = {"threads": 1, "algorithms": {"Conv_0": "im2col"}}
    net = lc.load(proto, **given, stream_weights=True)
    algorithms = [step.algorithm for step in net.plan.steps if step.op == "Conv"]
    assert algorithms == ["im2col"] * 5
    expected = lc.load(proto, **given)(x.astype(np.float32))
    np.testing.assert_array_equal(net(x.astype(np.float32)), expected)


def test_a_layer_of_very_many_channels_has_a_bounded_number_of_parts() -> None:
    b = Builder()
    whole = b.graph(b.conv(b.input(1, 1, 1, 1), b.normal(160_000, 1, 1, 1)))
    cut = weight_streaming.cutting_weights(1)(whole)
    assert 1000 < len(cut.nodes) <= weight_streaming._MOST_PARTS


def test_times_of_steps_are_measured() -> None:
    net = lc.load(NETWORK, threads=1, stream_weights=True)
    rows = net.profile(images(1), repeats=2)
    assert [row.name for row in rows] == [step.name for step in net.plan.steps]


def test_options_that_exclude_it() -> None:
    with pytest.raises(lc.SpecError, match="stream_weights together with samples"):
        lc.load(NETWORK, stream_weights=True, samples=images(1))
    with pytest.raises(lc.SpecError, match="stream_weights is 'yes'"):
        lc.load(NETWORK, stream_weights="yes")  # type: ignore[arg-type]


def _reading(first: int, free: int, size: int) -> Reading:
    return Reading(f"b{first}", f"w{first}", size, free, first, first)


@pytest.mark.parametrize(
    ("calls", "read", "expected"),
    [
        ([10, 10], [], 20),
        ([10, 10], [_reading(1, 0, 10)], 20),  # read beside the first
        ([10, 10], [_reading(1, 0, 25)], 35),
        ([10, 10, 10], [_reading(1, 0, 10), _reading(2, 1, 40)], 60),
        ([10], [_reading(0, 0, 7)], 17),
    ],
)
def test_a_run_waits_for_what_is_not_read_in_time(
    calls: Sequence[float], read: Sequence[Reading], expected: int
) -> None:
    assert streamed_ns(calls, read, 1.0) == expected


def test_small_constants_stay() -> None:
    net = lc.load(NETWORK, threads=1, stream_weights=True)
    net(images(1))
    assert all(reading.bytes > STAYS_BYTES for reading in net.plan.readings)
